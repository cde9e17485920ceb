//! Who replaces machines: what can be read of them. What follows from it is decided in `core::remediate::provider`.

use std::time::Duration;

use kube::api::ListParams;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client, Error, ResourceExt as _};
use nodekeeper_core::remediate::Target;
use nodekeeper_core::remediate::provider::{NodeClaimView, NodeClaims};
use tokio::time::timeout;

const READ: Duration = Duration::from_secs(10);
const PAGE: u32 = 500;

/// The `NodeClaims` of Karpenter.
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

/// The claims among which a node's is, if it has one.
pub async fn claims_for(client: &Client, target: &Target) -> NodeClaims {
    let claims = node_claims(client);
    if let Some((name, uid)) = &target.owner {
        match timeout(READ, claims.get(name)).await {
            Ok(Ok(claim)) if claim.uid().as_ref() == Some(uid) => {
                return NodeClaims::Known(vec![view(&claim)]);
            }
            Ok(Ok(_)) => {}
            // It is looked for among all.
            Ok(Err(Error::Api(status))) if status.code == 404 => {}
            Ok(Err(error)) => return unreadable(&why(error)),
            Err(_) => return unreadable("no answer"),
        }
    }
    let mut params = ListParams::default().limit(PAGE);
    let mut all = Vec::new();
    loop {
        let page = match timeout(READ, claims.list(&params)).await {
            Ok(Ok(page)) => page,
            // There is no Karpenter here.
            Ok(Err(Error::Api(status))) if status.code == 404 => return NodeClaims::NotServed,
            Ok(Err(error)) => return unreadable(&why(error)),
            Err(_) => return unreadable("no answer"),
        };
        all.extend(page.items.iter().map(view));
        match page.metadata.continue_ {
            Some(token) if !token.is_empty() => params = params.continue_token(&token),
            _ => return NodeClaims::Known(all),
        }
    }
}

fn why(error: Error) -> String {
    match error {
        Error::Api(status) if status.code == 403 => {
            format!("{}: give the controller the right to get and list them", status.message)
        }
        Error::Api(status) => status.message,
        error => error.to_string(),
    }
}

fn unreadable(why: &str) -> NodeClaims {
    NodeClaims::Unreadable(format!("NodeClaims of karpenter.sh/v1 cannot be read: {why}"))
}
