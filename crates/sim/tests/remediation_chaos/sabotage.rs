//! The real controller beside a saboteur with the same client, which the invariants must catch.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client, ResourceExt as _};
use nodekeeper_core::api::{NodeRemediation, RemediationPolicy};
use nodekeeper_sim::harness::{Program, Replica, Scenario};
use nodekeeper_sim::value::{Value, json};
use tokio::time::sleep;

#[derive(Clone, Copy, Debug)]
pub enum Sabotage {
    /// Deletes claims that were not approved.
    Blind,
    /// Reverts cordons of other users.
    Uncordons,
    /// Approves remediations with expired evidence.
    Late,
}

pub fn scenario(kind: Sabotage) -> Scenario {
    let right = super::scenario();
    let controller = right.program.clone();
    let program: Program = Arc::new(move |replica: Replica| {
        let (client, seed) = (replica.client.clone(), replica.seed);
        let running = controller(replica);
        Box::pin(async move {
            tokio::select! {
                biased;
                () = running => {}
                () = sabotage(client, seed, kind) => {}
            }
        })
    });
    Scenario { program, replicas: 1, ..right }
}

async fn sabotage(client: Client, seed: u64, kind: Sabotage) {
    let mut random = fastrand::Rng::with_seed(seed);
    // Lets users change the policy first.
    let delay = if matches!(kind, Sabotage::Blind) { random.u64(60..400) } else { 5 };
    sleep(Duration::from_secs(delay)).await;
    loop {
        // Requests may fail here too, and are sent again.
        let _ = match kind {
            Sabotage::Blind => delete_a_claim(&client, &mut random).await,
            Sabotage::Uncordons => uncordon(&client).await,
            Sabotage::Late => approve(&client, has_expired_evidence).await,
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

fn has_expired_evidence(request: &NodeRemediation) -> bool {
    is_blocked_for(request, "EvidenceExpired")
}

fn is_blocked_for(request: &NodeRemediation, reason: &str) -> bool {
    let conditions = request.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().any(|one| one.type_ == "Approved" && one.reason == reason)
}

/// Reserves a disruption that was not approved, within the budget: what is wrong about it is only its evidence.
async fn approve(client: &Client, fits: fn(&NodeRemediation) -> bool) -> kube::Result<()> {
    let requests: Api<NodeRemediation> = Api::all(client.clone());
    let policies: Api<RemediationPolicy> = Api::all(client.clone());
    let all = requests.list(&ListParams::default()).await?.items;
    let Some(request) = all.into_iter().find(fits) else { return Ok(()) };
    let policy = policies.get("default").await?;
    let budget = &policy.spec.budget;
    let known = policy.status.as_ref().map_or(0, |status| status.reservations.len());
    if known >= usize::try_from(budget.max_in_flight.min(budget.max_per_hour)).unwrap_or_default() {
        return Ok(());
    }
    let mut status = serde_json::to_value(&policy.status).unwrap_or_default();
    // Any time will do: the invariants use the time of the commit.
    let at = policy.metadata.creation_timestamp.as_ref().map(|time| time.0.to_string());
    let own = json!({"remediation": request.name_any(), "node": request.spec.node.name,
        "group": "sabotage", "zone": "", "at": at});
    match status["reservations"].as_array_mut() {
        Some(reservations) => reservations.push((&own).into()),
        None => status["reservations"] = serde_json::json!([own]),
    }
    let patch: Patch<Value> = Patch::Merge(json!({"status": status}));
    policies.patch_status("default", &PatchParams::default(), &patch).await?;
    Ok(())
}
