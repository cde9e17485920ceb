//! Failed nodes are kept: without a policy nothing deletes a node.

use anyhow::{Result, anyhow, ensure};
use http::Method;
use kube::ResourceExt as _;
use nodekeeper_core::configured::{ConfiguredObject, ObjectKind};
use nodekeeper_e2e::scenario::fault_proxy::{FaultProxy, RecordedRequest};
use nodekeeper_e2e::scenario::steps::{
    controller, controller_with, delete_node, event_on, gate, is_gated, is_labelled, is_verified, node,
    node_is, worker_on,
};
use nodekeeper_e2e::scenario::world::{BROKEN, WorkerBehaviour, World, machine};
use nodekeeper_operator::config::{LegacyConfig, load};
use serde_json::json;

/// A kube-node-ready file that has failed nodes deleted.
const CONFIG: &str =
    "{nodeManagement: {deleteFailedNodes: true}, reconciliation: {maxRetries: 1, intervalSeconds: 5},
    worker: {checkTimeoutSeconds: 2, timeoutSeconds: 30}}";

/// DNS fails everywhere, and the kube-node-ready file asks for deletion. The controller reports that it does not
/// delete, and all nodes stay tainted.
pub async fn f13_nodes_that_fail_are_not_deleted(world: impl World) -> Result<()> {
    let loaded = load(CONFIG, None).map_err(|problems| anyhow!("{problems:?}"))?;
    let [warning] = loaded.warnings.as_slice() else { return Err(anyhow!("{:?}", loaded.warnings)) };
    ensure!(warning.contains("deleteFailedNodes") && warning.contains("RemediationPolicy"), "{warning}");
    let names = ["failing-1", "failing-2", "failing-3"];
    let mut uids = Vec::new();
    for name in names {
        world.behaviours().set(name, BROKEN);
        world.join(machine(name)).await?;
        uids.push(node_is(&world, name, "registered", |_| true).await?.uid());
    }
    let controller = controller_with(&world, "a", FaultProxy::default(), |settings| {
        settings.objects = gate_of(&loaded);
        settings.resync = loaded.resync;
    });
    for (name, uid) in names.iter().zip(uids) {
        event_on(&world, name, "NodeVerificationFailed", "stays tainted").await?;
        let failed = node(&world, name).await?;
        ensure!(failed.uid() == uid && failed.metadata.deletion_timestamp.is_none(), "{name} was deleted");
        ensure!(is_gated(&failed) && !is_labelled(&failed), "{name} was untainted");
    }
    let deletions = of_method(&controller.proxy, &Method::DELETE);
    // Workers are deleted, so a deletion of a node would be visible.
    ensure!(!deletions.is_empty(), "no worker was deleted");
    ensure!(deletions.iter().all(|one| one.uri.contains("/pods/")), "{deletions:?}");
    Ok(())
}

/// Only reads and patches of nodes are sent to the API server, and none for objects of an autoscaler.
pub async fn f14_nodes_are_only_read_and_patched(world: impl World) -> Result<()> {
    gate(&world, "default", json!({"retry": {"maxRetries": 0, "recheckPeriodSeconds": 10}})).await?;
    let controller = controller(&world, "a");
    world.behaviours().set("failing", BROKEN);
    world.behaviours().set("leaver", WorkerBehaviour::Hangs);
    for name in ["fine", "failing", "leaver"] {
        world.join(machine(name)).await?;
    }
    event_on(&world, "failing", "NodeVerificationFailed", "").await?;
    is_verified(&world, "fine").await?;
    worker_on(&world, "leaver").await?;
    world.power_off("leaver").await?;
    delete_node(&world, "leaver").await?;
    world.behaviours().set("fine", BROKEN);
    world.reboot("fine").await?;
    node_is(&world, "fine", "gated again", is_gated).await?;
    let asked = controller.proxy.requests();
    let about: Vec<&RecordedRequest> = asked.iter().filter(|one| one.is_about_nodes()).collect();
    let other: Vec<_> =
        about.iter().filter(|one| ![Method::GET, Method::PATCH].contains(&one.method)).collect();
    ensure!(about.iter().any(|one| one.method == Method::PATCH), "no node was patched: {about:?}");
    ensure!(other.is_empty(), "{other:?}");
    let claims: Vec<_> = asked.iter().filter(|one| one.uri.contains("nodeclaims")).collect();
    ensure!(claims.is_empty(), "{claims:?}");
    Ok(())
}

/// The gate of the file without its policy.
fn gate_of(loaded: &LegacyConfig) -> Vec<ConfiguredObject> {
    let is_gate = |object: &ConfiguredObject| object.key.kind == ObjectKind::NodeGate;
    loaded.objects().into_iter().filter(is_gate).collect()
}

fn of_method(proxy: &FaultProxy, method: &Method) -> Vec<RecordedRequest> {
    proxy.requests().into_iter().filter(|one| one.method == *method).collect()
}
