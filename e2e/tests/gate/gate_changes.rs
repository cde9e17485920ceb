//! Gates that are changed, paused and deleted while a worker runs.

use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt as _;
use kube::api::DeleteParams;
use serde_json::json;

use crate::pod_observer::PodObserver;
use crate::steps::{
    controller, edit_gate, gate, gates, is_gated, no_workers_left, node, node_is, opens, record, until,
    worker_on, workers_of,
};
use crate::worker::{State, identity, say};
use crate::world::{BROKEN, WORKS, WorkerBehaviour, World, machine};

/// A gate is changed while a worker runs: its verdict is about the gate as it was, and opens nothing. The next worker
/// is for the gate as it is.
pub async fn a_gate_that_is_edited_begins_anew(world: impl World) -> Result<()> {
    gate(&world, "default", json!({})).await?;
    let _controller = controller(&world, "a");
    world.behaviours().set("edited", WorkerBehaviour::Hangs);
    world.join(machine("edited")).await?;
    let old = worker_on(&world, "edited").await?;
    world.behaviours().set("edited", BROKEN);
    edit_gate(&world, "default", json!({"retry": {"maxRetries": 9}})).await?;
    drop(say(&world.client(), &old, State::Passed).await);
    let blamed =
        node_is(&world, "edited", "blamed", |node| record(node).is_some_and(|it| it.attempts > 0)).await?;
    ensure!(is_gated(&blamed), "a verdict for the gate as it was opened it as it is");
    world.behaviours().set("edited", WorkerBehaviour::Hangs);
    let new = worker_on(&world, "edited").await?;
    ensure!(identity(&new)?.gate_generation > identity(&old)?.gate_generation, "not for the gate as it is");
    say(&world.client(), &new, State::Passed).await?;
    opens(&world, "edited").await?;
    no_workers_left(&world).await
}

/// A gate is deleted while a worker runs: the worker goes, the taint is nobody's to take, and the node passes when
/// there is a gate again.
pub async fn a_gate_that_is_deleted_leaves_the_node_alone(world: impl World) -> Result<()> {
    gate(&world, "default", json!({})).await?;
    let _controller = controller(&world, "a");
    world.behaviours().set("ungated", WorkerBehaviour::Hangs);
    world.join(machine("ungated")).await?;
    worker_on(&world, "ungated").await?;
    gates(&world).delete("default", &DeleteParams::default()).await?;
    no_workers_left(&world).await?;
    ensure!(is_gated(&node(&world, "ungated").await?), "a taint was taken that no gate answers for");
    world.behaviours().set("ungated", WORKS);
    gate(&world, "default", json!({})).await?;
    let record = opens(&world, "ungated").await?;
    ensure!(record.attempts == 1, "{record:?}");
    no_workers_left(&world).await
}

/// A gate is paused: no worker starts, and a worker that passes opens nothing, until it is enforced again.
pub async fn a_gate_that_is_paused_opens_nothing(world: impl World) -> Result<()> {
    let observer = PodObserver::start(&world);
    let only = |pool: &str| json!({"matchLabels": {"pool": pool}});
    gate(&world, "paused", json!({"nodeSelector": only("paused")})).await?;
    gate(&world, "other", json!({"nodeSelector": only("other")})).await?;
    let _controller = controller(&world, "a");
    world.behaviours().set("running", WorkerBehaviour::Hangs);
    world.join(machine("running").labelled("pool", "paused")).await?;
    let pod = worker_on(&world, "running").await?;
    edit_gate(&world, "paused", json!({"enforcement": "Paused"})).await?;
    drop(say(&world.client(), &pod, State::Passed).await);
    world.join(machine("new").labelled("pool", "paused")).await?;
    // The other came last and is through: those two had their chance.
    world.join(machine("other").labelled("pool", "other")).await?;
    opens(&world, "other").await?;
    for name in ["running", "new"] {
        ensure!(is_gated(&node(&world, name).await?), "{name} was let in by a gate that is paused");
    }
    let uid = node(&world, "new").await?.uid().context("no uid")?;
    ensure!(observer.seen()?.of(&uid) == 0, "a worker started for a gate that is paused");
    world.behaviours().set("running", WORKS);
    edit_gate(&world, "paused", json!({"enforcement": "Enforce"})).await?;
    for name in ["running", "new"] {
        opens(&world, name).await?;
    }
    until(&world, "no worker is left", async || Ok(workers_of(&world, "new").await?.is_empty().then_some(())))
        .await
}
