//! Gates that are changed, paused or deleted while a worker runs.

use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt as _;
use kube::api::DeleteParams;
use nodekeeper_e2e::scenario::pod_observer::PodObserver;
use nodekeeper_e2e::scenario::steps::{
    controller, edit_gate, event_on, gate, gates, is_gated, is_verified, no_workers_left, node, node_is,
    record, until, worker_on, workers_of,
};
use nodekeeper_e2e::scenario::worker::{State, identity, say};
use nodekeeper_e2e::scenario::world::{BROKEN, WORKS, WorkerBehaviour, World, machine};
use serde_json::json;

/// A verdict about an older generation of the gate does not remove the taint. The next worker checks the new
/// generation.
pub async fn an_edited_gate_discards_earlier_verdicts(world: impl World) -> Result<()> {
    gate(&world, "default", json!({})).await?;
    let _controller = controller(&world, "a");
    world.behaviours().set("edited", WorkerBehaviour::Hangs);
    world.join(machine("edited")).await?;
    let old = worker_on(&world, "edited").await?;
    world.behaviours().set("edited", BROKEN);
    edit_gate(&world, "default", json!({"retry": {"maxRetries": 9}})).await?;
    drop(say(&world.client(), &old, State::Passed).await);
    let failed =
        node_is(&world, "edited", "failed", |node| record(node).is_some_and(|it| it.attempts > 0)).await?;
    ensure!(is_gated(&failed), "a verdict about an older generation removed the taint");
    world.behaviours().set("edited", WorkerBehaviour::Hangs);
    let new = worker_on(&world, "edited").await?;
    ensure!(
        identity(&new)?.gate_generation > identity(&old)?.gate_generation,
        "the worker is for an older generation"
    );
    say(&world.client(), &new, State::Passed).await?;
    is_verified(&world, "edited").await?;
    no_workers_left(&world).await
}

/// The worker of a deleted gate is deleted, and the taint stays until there is a gate again.
pub async fn a_deleted_gate_leaves_the_taint(world: impl World) -> Result<()> {
    gate(&world, "default", json!({})).await?;
    let _controller = controller(&world, "a");
    world.behaviours().set("ungated", WorkerBehaviour::Hangs);
    world.join(machine("ungated")).await?;
    worker_on(&world, "ungated").await?;
    gates(&world).delete("default", &DeleteParams::default()).await?;
    no_workers_left(&world).await?;
    ensure!(is_gated(&node(&world, "ungated").await?), "the taint was removed without a gate");
    world.behaviours().set("ungated", WORKS);
    gate(&world, "default", json!({})).await?;
    let record = is_verified(&world, "ungated").await?;
    ensure!(record.attempts == 1, "{record:?}");
    no_workers_left(&world).await
}

/// While a gate is paused no worker starts, and a passed worker does not remove the taint.
pub async fn a_paused_gate_removes_no_taint(world: impl World) -> Result<()> {
    let observer = PodObserver::start(&world);
    let only = |pool: &str| json!({"matchLabels": {"pool": pool}});
    gate(&world, "paused", json!({"nodeSelector": only("paused")})).await?;
    gate(&world, "other", json!({"nodeSelector": only("other")})).await?;
    let _controller = controller(&world, "a");
    world.behaviours().set("running", WorkerBehaviour::Hangs);
    world.join(machine("running").labelled("pool", "paused")).await?;
    let pod = worker_on(&world, "running").await?;
    edit_gate(&world, "paused", json!({"enforcement": "Paused"})).await?;
    // Until the controller knows of the pause, a report may still remove the taint.
    event_on(&world, "running", "NodeGatePaused", "paused").await?;
    drop(say(&world.client(), &pod, State::Passed).await);
    world.join(machine("new").labelled("pool", "paused")).await?;
    // This node came last and is verified, so the controller had time to act on the others.
    world.join(machine("other").labelled("pool", "other")).await?;
    is_verified(&world, "other").await?;
    for name in ["running", "new"] {
        ensure!(is_gated(&node(&world, name).await?), "a paused gate removed the taint of {name}");
    }
    let uid = node(&world, "new").await?.uid().context("no uid")?;
    ensure!(observer.seen()?.of(&uid) == 0, "a worker started for a paused gate");
    world.behaviours().set("running", WORKS);
    edit_gate(&world, "paused", json!({"enforcement": "Enforce"})).await?;
    for name in ["running", "new"] {
        is_verified(&world, name).await?;
    }
    until(&world, "no worker is left", async || Ok(workers_of(&world, "new").await?.is_empty().then_some(())))
        .await
}
