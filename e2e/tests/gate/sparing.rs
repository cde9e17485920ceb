//! Nodes that fail are kept: nobody here deletes a machine, whatever the seed's file asks for.

use anyhow::{Result, anyhow, ensure};
use http::Method;
use kube::ResourceExt as _;
use nodekeeper_operator::config::load;
use serde_json::json;

use crate::line::{Asked, Line};
use crate::play::{
    controller, controller_with, delete_node, gate, is_gated, is_labelled, node, node_is, opens, tells,
    worker_on,
};
use crate::world::{BROKEN, Fate, World, machine};

/// As somebody had it for whom failed nodes were deleted.
const CONFIG: &str =
    "{nodeManagement: {deleteFailedNodes: true}, reconciliation: {maxRetries: 1, intervalSeconds: 5},
    worker: {checkTimeoutSeconds: 2, timeoutSeconds: 30}}";

/// Names resolve nowhere, and the seed's file says to delete nodes that fail: that would be all of them. One word says
/// that it is not done, and all nodes stay, tainted.
pub async fn f13_nodes_that_fail_are_not_deleted(world: impl World) -> Result<()> {
    let loaded = load(CONFIG, None).map_err(|problems| anyhow!("{problems:?}"))?;
    let [warning] = loaded.warnings.as_slice() else { return Err(anyhow!("{:?}", loaded.warnings)) };
    ensure!(warning.contains("deleteFailedNodes") && warning.contains("RemediationPolicy"), "{warning}");
    let names = ["doomed-1", "doomed-2", "doomed-3"];
    let mut uids = Vec::new();
    for name in names {
        world.fates().set(name, BROKEN);
        world.join(machine(name)).await?;
        uids.push(node_is(&world, name, "registered", |_| true).await?.uid());
    }
    let controller = controller_with(&world, "a", Line::default(), |settings| {
        settings.gate = Some(loaded.gate);
        settings.sweep = loaded.resync;
    });
    for (name, uid) in names.iter().zip(uids) {
        tells(&world, name, "NodeVerificationFailed", "stays tainted").await?;
        let failed = node(&world, name).await?;
        ensure!(failed.uid() == uid && failed.metadata.deletion_timestamp.is_none(), "{name} was deleted");
        ensure!(is_gated(&failed) && !is_labelled(&failed), "{name} was let in");
    }
    let deletions = of_method(&controller.line, &Method::DELETE);
    // Workers are, so that it would have been seen.
    ensure!(!deletions.is_empty(), "no worker was deleted");
    ensure!(deletions.iter().all(|one| one.uri.contains("/pods/")), "{deletions:?}");
    Ok(())
}

/// Whatever becomes of a node, nothing is asked of the API server about it but to read and to patch it, and nothing at
/// all about what an autoscaler made it from.
pub async fn f14_nodes_are_read_and_patched_and_nothing_else(world: impl World) -> Result<()> {
    gate(&world, "default", json!({"retry": {"maxRetries": 0, "recheckPeriodSeconds": 10}})).await?;
    let controller = controller(&world, "a");
    world.fates().set("hopeless", BROKEN);
    world.fates().set("leaver", Fate::Hangs);
    for name in ["fine", "hopeless", "leaver"] {
        world.join(machine(name)).await?;
    }
    tells(&world, "hopeless", "NodeVerificationFailed", "").await?;
    opens(&world, "fine").await?;
    worker_on(&world, "leaver").await?;
    world.power_off("leaver").await?;
    delete_node(&world, "leaver").await?;
    world.fates().set("fine", BROKEN);
    world.reboot("fine").await?;
    node_is(&world, "fine", "held again", is_gated).await?;
    let asked = controller.line.asked();
    let about: Vec<&Asked> = asked.iter().filter(|one| one.is_about_nodes()).collect();
    let other: Vec<_> =
        about.iter().filter(|one| ![Method::GET, Method::PATCH].contains(&one.method)).collect();
    ensure!(about.iter().any(|one| one.method == Method::PATCH), "no node was patched: {about:?}");
    ensure!(other.is_empty(), "{other:?}");
    let claims: Vec<_> = asked.iter().filter(|one| one.uri.contains("nodeclaims")).collect();
    ensure!(claims.is_empty(), "{claims:?}");
    Ok(())
}

fn of_method(line: &Line, method: &Method) -> Vec<Asked> {
    line.asked().into_iter().filter(|one| one.method == *method).collect()
}
