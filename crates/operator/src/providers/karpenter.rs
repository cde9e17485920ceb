//! Karpenter: a node is replaced by deleting its `NodeClaim`.

use std::time::Duration;

use kube::api::ListParams;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client, ResourceExt as _};
use nodekeeper_core::remediate::Target;
use nodekeeper_core::remediate::provider::{NodeClaimView, NodeClaims};
use tracing::info;

use crate::apply::{WriteError, Writer};
use crate::runtime::call::{CallError, call};

const LIST_TIMEOUT: Duration = Duration::from_secs(10);
const PAGE_SIZE: u32 = 500;

pub fn node_claims(client: &Client) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("karpenter.sh", "v1", "NodeClaim");
    Api::all_with(client.clone(), &ApiResource::from_gvk(&kind))
}

fn view(claim: &DynamicObject) -> NodeClaimView {
    let status = |key: &str| claim.data["status"][key].as_str().unwrap_or_default().to_owned();
    NodeClaimView {
        name: claim.name_any(),
        uid: claim.uid().unwrap_or_default(),
        provider_id: status("providerID"),
        node_name: status("nodeName"),
        deleting: claim.metadata.deletion_timestamp.is_some(),
    }
}

/// Reads the `NodeClaims` among which a node's is, if it has one.
pub async fn find(client: &Client, target: &Target) -> NodeClaims {
    match read(client, target).await {
        Ok(claims) => NodeClaims::Known(claims),
        // Karpenter is not installed.
        Err(error) if error.is_not_found() => NodeClaims::NotServed,
        Err(error) => {
            let hint = if error.code() == Some(403) {
                ": give the controller the right to get and list them"
            } else {
                ""
            };
            NodeClaims::Unreadable(format!("NodeClaims of karpenter.sh/v1 cannot be read: {error}{hint}"))
        }
    }
}

async fn read(client: &Client, target: &Target) -> Result<Vec<NodeClaimView>, CallError> {
    let claims = node_claims(client);
    if let Some((name, uid)) = &target.owner {
        match call(LIST_TIMEOUT, claims.get_opt(name)).await? {
            Some(claim) if claim.uid().as_ref() == Some(uid) => return Ok(vec![view(&claim)]),
            // It is looked for among all.
            Some(_) | None => {}
        }
    }
    let mut params = ListParams::default().limit(PAGE_SIZE);
    let mut all = Vec::new();
    loop {
        let page = call(LIST_TIMEOUT, claims.list(&params)).await?;
        all.extend(page.items.iter().map(view));
        match page.metadata.continue_ {
            Some(token) if !token.is_empty() => params = params.continue_token(&token),
            _ => return Ok(all),
        }
    }
}

/// Deletes the `NodeClaim`: Karpenter ends the machine, and creates another if it needs one.
pub async fn replace(writer: &Writer, claim: &NodeClaimView, target: &Target) -> Result<(), WriteError> {
    let name = &claim.name;
    info!(
        nodeClaim = name,
        node = target.identity.name,
        "Found NodeClaim for failed node, deleting NodeClaim instead"
    );
    writer.delete_node_claim(claim).await?;
    info!(nodeClaim = name, "Successfully deleted NodeClaim, node should be terminated by Karpenter");
    Ok(())
}
