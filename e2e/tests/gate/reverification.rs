//! Verified nodes that are verified again. They are tainted only if they fail.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use nodekeeper_core::report::Verdict;
use nodekeeper_e2e::scenario::pod_observer::PodObserver;
use nodekeeper_e2e::scenario::steps::{
    controller, event_on, gate, is_gated, is_labelled, is_verified, no_workers_left, node, node_is,
    patch_node, record, worker_on,
};
use nodekeeper_e2e::scenario::worker::{State, say};
use nodekeeper_e2e::scenario::world::{BROKEN, LABEL, WORKS, WorkerBehaviour, World, machine};
use serde_json::json;

const VERIFY: &str = "nodekeeper.dev/verify";

/// Adds a verified node whose next workers do not end, and returns the number of its last worker.
async fn verified(world: &impl World, name: &str) -> Result<u32> {
    gate(world, "default", json!({})).await?;
    world.join(machine(name)).await?;
    let record = is_verified(world, name).await?;
    no_workers_left(world).await?;
    world.behaviours().set(name, WorkerBehaviour::Hangs);
    Ok(record.number)
}

/// One worker checks the node without a taint; it passes, and the node stays verified.
async fn is_verified_in_place(world: &impl World, name: &str, before: u32) -> Result<()> {
    let pod = worker_on(world, name).await?;
    ensure!(!is_gated(&node(world, name).await?), "{name} was tainted for the check");
    say(&world.client(), &pod, State::Passed).await?;
    let passed = |node: &Node| is_labelled(node) && record(node).is_some_and(|it| it.number == before + 1);
    let after = node_is(world, name, "verified again", passed).await?;
    let record = record(&after).context("no record")?;
    ensure!(!is_gated(&after) && record.verdict == Some(Verdict::Passed), "{record:?}");
    no_workers_left(world).await
}

/// A user removes the label: a worker checks the node in place, and the label is set again.
pub async fn f07_a_removed_label_is_set_again_by_a_worker(world: impl World) -> Result<()> {
    let observer = PodObserver::start(&world);
    let _controller = controller(&world, "a");
    let before = verified(&world, "unlabelled").await?;
    patch_node(&world, "unlabelled", json!({"metadata": {"labels": {LABEL: null}}})).await?;
    is_verified_in_place(&world, "unlabelled", before).await?;
    let seen = observer.assert_one_worker_per_node()?;
    ensure!(seen.made.len() == 2, "{seen:?}");
    Ok(())
}

/// A user requests verification of a verified node.
pub async fn f07_a_verified_node_is_verified_on_request(world: impl World) -> Result<()> {
    let _controller = controller(&world, "a");
    let before = verified(&world, "requested").await?;
    patch_node(&world, "requested", json!({"metadata": {"annotations": {VERIFY: "now"}}})).await?;
    is_verified_in_place(&world, "requested", before).await
}

/// A user requests verification of a failed node, which does not have to wait for its next recheck.
pub async fn f07_a_failed_node_is_verified_on_request(world: impl World) -> Result<()> {
    // The periodic recheck is later than the end of the scenario.
    gate(&world, "default", json!({"retry": {"maxRetries": 0, "recheckPeriodSeconds": 86_400}})).await?;
    let _controller = controller(&world, "a");
    world.behaviours().set("failed", BROKEN);
    world.join(machine("failed")).await?;
    event_on(&world, "failed", "NodeVerificationFailed", "").await?;
    world.behaviours().set("failed", WORKS);
    patch_node(&world, "failed", json!({"metadata": {"annotations": {VERIFY: "now"}}})).await?;
    is_verified(&world, "failed").await?;
    no_workers_left(&world).await
}

/// After a reboot one worker checks the node in place.
pub async fn f07_a_rebooted_node_is_verified_again(world: impl World) -> Result<()> {
    let _controller = controller(&world, "a");
    let before = verified(&world, "booted").await?;
    world.reboot("booted").await?;
    is_verified_in_place(&world, "booted", before).await
}

/// A node that fails in place is gated until it recovers.
pub async fn f07_only_a_failure_taints_a_verified_node(world: impl World) -> Result<()> {
    let _controller = controller(&world, "a");
    verified(&world, "worse").await?;
    world.behaviours().set("worse", BROKEN);
    world.reboot("worse").await?;
    let held = node_is(&world, "worse", "gated", is_gated).await?;
    ensure!(record(&held).is_some_and(|it| it.verdict == Some(Verdict::Failed)), "{:?}", record(&held));
    world.behaviours().set("worse", WORKS);
    is_verified(&world, "worse").await?;
    no_workers_left(&world).await
}
