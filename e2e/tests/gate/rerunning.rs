//! Nodes that were let in, and are to be looked at once more. They are not tainted for that: only a failure does.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use nodekeeper_core::report::Verdict;
use serde_json::json;

use crate::eye::Eye;
use crate::play::{
    controller, gate, is_gated, is_labelled, no_workers_left, node, node_is, opens, patch_node, record,
    tells, worker_on,
};
use crate::worker::{State, say};
use crate::world::{BROKEN, Fate, LABEL, WORKS, World, machine};

const VERIFY: &str = "nodekeeper.dev/verify";

/// A node that was let in, and on which workers hang from now on; and the number of its last worker.
async fn verified(world: &impl World, name: &str) -> Result<u32> {
    gate(world, "default", json!({})).await?;
    world.join(machine(name)).await?;
    let record = opens(world, name).await?;
    no_workers_left(world).await?;
    world.fates().set(name, Fate::Hangs);
    Ok(record.number)
}

/// One worker looks at a node in place; it passes, and all is as it was.
async fn is_looked_at_in_place(world: &impl World, name: &str, before: u32) -> Result<()> {
    let pod = worker_on(world, name).await?;
    ensure!(!is_gated(&node(world, name).await?), "{name} was tainted, to be looked at");
    say(&world.client(), &pod, State::Passed).await?;
    let passed = |node: &Node| is_labelled(node) && record(node).is_some_and(|it| it.number == before + 1);
    let after = node_is(world, name, "verified again", passed).await?;
    let record = record(&after).context("no record")?;
    ensure!(!is_gated(&after) && record.verdict == Some(Verdict::Passed), "{record:?}");
    no_workers_left(world).await
}

/// Somebody removes the label: one worker looks at the node in place, and the label comes back.
pub async fn f07_a_label_that_is_removed_comes_back_by_a_worker(world: impl World) -> Result<()> {
    let eye = Eye::open(&world);
    let _controller = controller(&world, "a");
    let before = verified(&world, "unlabelled").await?;
    patch_node(&world, "unlabelled", json!({"metadata": {"labels": {LABEL: null}}})).await?;
    is_looked_at_in_place(&world, "unlabelled", before).await?;
    let seen = eye.never_two()?;
    ensure!(seen.made.len() == 2, "{seen:?}");
    Ok(())
}

/// Somebody asks for it, of a node that was let in.
pub async fn f07_a_verified_node_is_looked_at_when_asked_for(world: impl World) -> Result<()> {
    let _controller = controller(&world, "a");
    let before = verified(&world, "asked").await?;
    patch_node(&world, "asked", json!({"metadata": {"annotations": {VERIFY: "now"}}})).await?;
    is_looked_at_in_place(&world, "asked", before).await
}

/// Somebody asks for it, of a node that was given up: it does not have to wait for its turn.
pub async fn f07_a_failed_node_is_looked_at_when_asked_for(world: impl World) -> Result<()> {
    // Nobody would look by himself before the scenario is over.
    gate(&world, "default", json!({"retry": {"maxRetries": 0, "recheckPeriodSeconds": 86_400}})).await?;
    let _controller = controller(&world, "a");
    world.fates().set("failed", BROKEN);
    world.join(machine("failed")).await?;
    tells(&world, "failed", "NodeVerificationFailed", "").await?;
    world.fates().set("failed", WORKS);
    patch_node(&world, "failed", json!({"metadata": {"annotations": {VERIFY: "now"}}})).await?;
    opens(&world, "failed").await?;
    no_workers_left(&world).await
}

/// A machine boots again: one worker looks at the node in place.
pub async fn f07_a_verified_node_that_boots_is_looked_at(world: impl World) -> Result<()> {
    let _controller = controller(&world, "a");
    let before = verified(&world, "booted").await?;
    world.reboot("booted").await?;
    is_looked_at_in_place(&world, "booted", before).await
}

/// What is looked at in place and fails is held like any other, until it heals.
pub async fn f07_only_a_failure_taints_a_verified_node(world: impl World) -> Result<()> {
    let _controller = controller(&world, "a");
    verified(&world, "worse").await?;
    world.fates().set("worse", BROKEN);
    world.reboot("worse").await?;
    let held = node_is(&world, "worse", "held", is_gated).await?;
    ensure!(record(&held).is_some_and(|it| it.verdict == Some(Verdict::Failed)), "{:?}", record(&held));
    world.fates().set("worse", WORKS);
    opens(&world, "worse").await?;
    no_workers_left(&world).await
}
