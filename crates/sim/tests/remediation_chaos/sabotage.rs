//! The real controller beside a saboteur with the same client, which the invariants must catch.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client, ResourceExt as _};
use nodekeeper_core::api::{NodeRemediation, RemediationPolicy};
use nodekeeper_core::node::CORDONED;
use nodekeeper_sim::cluster::Local;
use nodekeeper_sim::harness::{Program, Replica, Scenario};
use nodekeeper_sim::object::{is_deleting, name, set, uid};
use nodekeeper_sim::value::{Value, json};
use tokio::time::sleep;

use super::REMEDIATIONS;
use crate::gate::NAMESPACE;
use crate::gate::invariants::is_gated;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// Deletes claims that were not approved.
    Blind,
    /// Reverts cordons of other users.
    Uncordons,
    /// Approves remediations with expired evidence.
    Late,
    /// Approves remediations of nodes that a person freed, and cordons them.
    ActsOnFreedNodes,
    /// Reserves disruptions, and cordons nodes whose remediation is not approved.
    ActsWithoutApproval,
    /// Says that a remediation is approved for which there is no reservation.
    ApprovesWithoutReservation,
    /// Says that a node was verified that is gated.
    SpeaksTooEarly,
    /// Writes eleven seconds after it renewed the lease. The controller does not run.
    WritesAfterTheLease,
    /// Repeats a request that is refused, ten times a second.
    RepeatsRefusedWrites,
    /// Serves metrics in which all nodes are verified.
    ServesFalseMetrics,
}

pub fn scenario(kind: Sabotage) -> Scenario {
    let right = super::scenario();
    let controller = right.program.clone();
    let program: Program = Arc::new(move |replica: Replica| {
        let (client, seed) = (replica.client.clone(), replica.seed);
        let (name, user) = (replica.name.clone(), replica.cluster.local("user"));
        if kind == Sabotage::WritesAfterTheLease {
            return Box::pin(sabotage(client, user, name, seed, kind));
        }
        let metrics = replica.metrics.clone();
        let running = controller(replica);
        if kind == Sabotage::ServesFalseMetrics {
            let cluster = user.cluster().clone();
            metrics.serve(move || false_metrics(&cluster.local("user")));
        }
        Box::pin(async move {
            tokio::select! {
                biased;
                () = running => {}
                () = sabotage(client, user, name, seed, kind) => {}
            }
        })
    });
    Scenario { program, replicas: 1, ..right }
}

async fn sabotage(client: Client, user: Local, replica: String, seed: u64, kind: Sabotage) {
    let mut random = fastrand::Rng::with_seed(seed);
    // Lets users change the policy first.
    let delay = if matches!(kind, Sabotage::Blind) { random.u64(60..400) } else { 5 };
    sleep(Duration::from_secs(delay)).await;
    let period = match kind {
        Sabotage::RepeatsRefusedWrites => Duration::from_millis(100),
        _ => Duration::from_secs(5),
    };
    loop {
        // Requests may fail here too, and are sent again.
        let _ = match kind {
            Sabotage::Blind => delete_a_claim(&client, &mut random).await,
            Sabotage::Uncordons => uncordon(&client).await,
            Sabotage::Late => reserve(&client, has_expired_evidence).await.map(drop),
            Sabotage::ActsOnFreedNodes => act_on_a_freed_node(&client, &user).await,
            Sabotage::ActsWithoutApproval => act_without_approval(&client).await,
            Sabotage::ApprovesWithoutReservation => approve_without_reservation(&client).await,
            Sabotage::SpeaksTooEarly => speak_too_early(&client).await,
            Sabotage::WritesAfterTheLease => write_after_the_lease(&client, &replica, seed).await,
            Sabotage::RepeatsRefusedWrites => delete_what_is_gone(&client).await,
            Sabotage::ServesFalseMetrics => Ok(()),
        };
        sleep(period).await;
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

/// Cordons a node as the controller does for a remediation.
async fn cordon(client: &Client, request: &NodeRemediation) -> kube::Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let patch = Patch::Merge(json!({"metadata": {"annotations": {CORDONED: request.name_any()}},
        "spec": {"unschedulable": true}}));
    nodes.patch(&request.spec.node.name, &PatchParams::default(), &patch).await.map(drop)
}

async fn requests(client: &Client) -> kube::Result<Vec<NodeRemediation>> {
    let requests: Api<NodeRemediation> = Api::all(client.clone());
    Ok(requests.list(&ListParams::default()).await?.items)
}

fn has_expired_evidence(request: &NodeRemediation) -> bool {
    is_blocked_for(request, "EvidenceExpired")
}

fn is_blocked_for(request: &NodeRemediation, reason: &str) -> bool {
    let conditions = request.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().any(|one| one.type_ == "Approved" && one.reason == reason)
}

fn is_blocked(request: &NodeRemediation) -> bool {
    let conditions = request.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().any(|one| one.type_ == "Approved" && one.status == "False")
}

/// Reserves a disruption that was not approved, within the budget: what is wrong about it is only its evidence.
/// Returns the request and the time of the reservation.
async fn reserve(
    client: &Client,
    fits: impl Fn(&NodeRemediation) -> bool,
) -> kube::Result<Option<(NodeRemediation, String)>> {
    let policies: Api<RemediationPolicy> = Api::all(client.clone());
    let Some(request) = requests(client).await?.into_iter().find(fits) else { return Ok(None) };
    let policy = policies.get("default").await?;
    let budget = &policy.spec.budget;
    let known = policy.status.as_ref().map_or(0, |status| status.reservations.len());
    if known >= usize::try_from(budget.max_in_flight.min(budget.max_per_hour)).unwrap_or_default() {
        return Ok(None);
    }
    let mut status = serde_json::to_value(&policy.status).unwrap_or_default();
    // Any time will do: the invariants use the time of the commit.
    let at = policy.metadata.creation_timestamp.as_ref().map(|time| time.0.to_string()).unwrap_or_default();
    let (uid, boot) = (request.uid(), &request.spec.node.boot_id);
    let own = json!({"remediation": request.name_any(), "node": request.spec.node.name, "uid": uid,
        "bootID": boot, "group": "sabotage", "zone": "", "at": at});
    match status["reservations"].as_array_mut() {
        Some(reservations) => reservations.push((&own).into()),
        None => status["reservations"] = serde_json::json!([own]),
    }
    let patch: Patch<Value> = Patch::Merge(json!({"status": status}));
    policies.patch_status("default", &PatchParams::default(), &patch).await?;
    Ok(Some((request, at)))
}

async fn approve(client: &Client, request: &NodeRemediation, at: &str) -> kube::Result<()> {
    let api: Api<NodeRemediation> = Api::all(client.clone());
    let condition = json!({"type": "Approved", "status": "True", "reason": "WithinBudget", "message": "",
        "lastTransitionTime": at});
    let status = json!({"status": {"approvedAt": at, "conditions": [condition]}});
    let patch: Patch<Value> = Patch::Merge(status);
    api.patch_status(&request.name_any(), &PatchParams::default(), &patch).await.map(drop)
}

async fn act_on_a_freed_node(client: &Client, user: &Local) -> kube::Result<()> {
    let nodes = user.all("nodes");
    let requested =
        |node: &&Arc<Value>| user.get(REMEDIATIONS, "", uid(node)).is_some() && !is_deleting(node);
    for node in nodes.iter().filter(requested) {
        if is_gated(node) {
            let _ = user.change(node, None, |node| set(node, "spec.taints", json!([])));
        }
    }
    sleep(Duration::from_secs(7)).await;
    let is_free = |request: &NodeRemediation| {
        let node = user.get("nodes", "", &request.spec.node.name);
        node.is_some_and(|node| uid(&node) == request.name_any() && !is_gated(&node))
    };
    let Some((request, at)) = reserve(client, is_free).await? else { return Ok(()) };
    approve(client, &request, &at).await?;
    cordon(client, &request).await
}

async fn act_without_approval(client: &Client) -> kube::Result<()> {
    let Some((request, _)) = reserve(client, is_blocked).await? else { return Ok(()) };
    cordon(client, &request).await
}

async fn approve_without_reservation(client: &Client) -> kube::Result<()> {
    let all = requests(client).await?;
    let Some(request) = all.iter().find(|request| is_blocked(request)) else { return Ok(()) };
    approve(client, request, &request.creation_timestamp().map(|time| time.0.to_string()).unwrap_or_default())
        .await
}

async fn emit(client: &Client, node: (&str, &str), reason: &str, count: usize) -> kube::Result<()> {
    let api: Api<Event> = Api::namespaced(client.clone(), "default");
    let (node, uid) = node;
    let event = json!({"metadata": {"name": format!("{node}.{reason}.{count}").to_lowercase()},
        "regarding": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}, "reason": reason,
        "action": "RemoveTaint", "note": "sabotage", "type": "Normal", "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "nodekeeper.dev/controller", "reportingInstance": "saboteur"});
    let event: Event = event.decode().expect("it is well formed");
    api.create(&PostParams::default(), &event).await.map(drop)
}

async fn speak_too_early(client: &Client) -> kube::Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    for node in nodes.list(&ListParams::default()).await?.items {
        let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
        if taints.into_iter().any(|taint| taint.key == crate::gate::TAINT) {
            let uid = node.uid().unwrap_or_default();
            return emit(client, (&node.name_any(), &uid), "NodeVerified", 0).await;
        }
    }
    Ok(())
}

async fn write_after_the_lease(client: &Client, replica: &str, seed: u64) -> kube::Result<()> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), NAMESPACE);
    let holder = format!("{replica}_{seed:x}");
    let lease = json!({"metadata": {"name": "kube-node-ready-leader"},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15}});
    let lease: Lease = lease.decode().expect("it is well formed");
    let _ = leases.delete("kube-node-ready-leader", &DeleteParams::default()).await;
    leases.create(&PostParams::default(), &lease).await?;
    sleep(Duration::from_secs(11)).await;
    let nodes: Api<Node> = Api::all(client.clone());
    if let Some(node) = nodes.list(&ListParams::default()).await?.items.first() {
        let uid = node.uid().unwrap_or_default();
        emit(client, (&node.name_any(), &uid), "Sabotage", 0).await?;
    }
    Ok(())
}

async fn delete_what_is_gone(client: &Client) -> kube::Result<()> {
    let requests: Api<NodeRemediation> = Api::all(client.clone());
    requests.delete("gone", &DeleteParams::default()).await.map(drop)
}

fn false_metrics(user: &Local) -> String {
    let row = |node: &Arc<Value>| {
        format!("nodekeeper_node_info{{node=\"{}\",gate=\"default\",state=\"verified\"}} 1.0\n", name(node))
    };
    user.all("nodes").iter().map(row).collect()
}
