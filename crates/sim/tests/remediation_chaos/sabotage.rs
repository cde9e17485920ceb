//! The real controller with a saboteur in its process: does what must never be done, for the invariants to catch.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client, ResourceExt as _};
use nodekeeper_core::api::{NodeRemediation, RemediationPolicy};
use nodekeeper_sim::harness::{Program, Replica, Scenario};
use serde_json::{Value, json};
use tokio::time::sleep;

/// What is done that must not be.
#[derive(Clone, Copy, Debug)]
pub enum Bug {
    /// Deletes claims that nobody approved anything for, whatever the policy says.
    Blind,
    /// Undoes cordons of other people.
    Uncordons,
    /// Approves what was asked for long ago.
    Late,
}

pub fn scenario(way: Bug) -> Scenario {
    let right = super::scenario();
    let honest = right.program.clone();
    let program: Program = Arc::new(move |replica: Replica| {
        let (client, seed) = (replica.client.clone(), replica.seed);
        let running = honest(replica);
        Box::pin(async move {
            tokio::select! {
                biased;
                () = running => {}
                () = sabotage(client, seed, way) => {}
            }
        })
    });
    Scenario { program, replicas: 1, ..right }
}

async fn sabotage(client: Client, seed: u64, way: Bug) {
    let mut random = fastrand::Rng::with_seed(seed);
    // Not at once: people have to have their say first.
    let client_timeout = if matches!(way, Bug::Blind) { random.u64(60..400) } else { 5 };
    sleep(Duration::from_secs(client_timeout)).await;
    loop {
        // Requests get lost here too: the next one may not.
        let _ = match way {
            Bug::Blind => delete_a_claim(&client, &mut random).await,
            Bug::Uncordons => uncordon(&client).await,
            Bug::Late => approve(&client, is_late).await,
        };
        sleep(Duration::from_secs(5)).await;
    }
}

fn node_claims(client: &Client) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("karpenter.sh", "v1", "NodeClaim");
    Api::all_with(client.clone(), &ApiResource::from_gvk(&kind))
}

async fn delete_a_claim(client: &Client, random: &mut fastrand::Rng) -> kube::Result<()> {
    let claims = node_claims(client);
    let all = claims.list(&ListParams::default()).await?.items;
    if let Some(claim) = random.choice(all) {
        claims.delete(&claim.name_any(), &DeleteParams::default()).await?;
    }
    Ok(())
}

async fn uncordon(client: &Client) -> kube::Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    for node in nodes.list(&ListParams::default()).await?.items {
        if node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true)) {
            let patch = Patch::Merge(json!({"spec": {"unschedulable": null}}));
            nodes.patch(&node.name_any(), &PatchParams::default(), &patch).await?;
        }
    }
    Ok(())
}

fn is_late(request: &NodeRemediation) -> bool {
    is_held_for(request, "EvidenceExpired")
}

fn is_held_for(request: &NodeRemediation, reason: &str) -> bool {
    let conditions = request.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().any(|one| one.type_ == "Approved" && one.reason == reason)
}

/// Reserves an act that no brake let through, one at a time.
async fn approve(client: &Client, fits: fn(&NodeRemediation) -> bool) -> kube::Result<()> {
    let requests: Api<NodeRemediation> = Api::all(client.clone());
    let policies: Api<RemediationPolicy> = Api::all(client.clone());
    let all = requests.list(&ListParams::default()).await?.items;
    let Some(request) = all.into_iter().find(fits) else { return Ok(()) };
    let policy = policies.get("default").await?;
    let mut status = serde_json::to_value(&policy.status).unwrap_or_default();
    // Any time will do: the invariants go by when it is written.
    let at = policy.metadata.creation_timestamp.as_ref().map(|time| time.0.to_string());
    status["reservations"] = json!([{"remediation": request.name_any(), "node": request.spec.node.name,
        "group": "sabotage", "zone": "", "at": at}]);
    let patch: Patch<Value> = Patch::Merge(json!({"status": status}));
    policies.patch_status("default", &PatchParams::default(), &patch).await?;
    Ok(())
}
