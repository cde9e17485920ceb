//! Lost workers use up no attempt, and the next worker continues.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::ResourceQuota;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt as _};
use nodekeeper_core::record::InconclusiveReason;
use nodekeeper_e2e::scenario::fault_proxy::{FaultProxy, RecordedRequest};
use nodekeeper_e2e::scenario::pod_observer::PodObserver;
use nodekeeper_e2e::scenario::steps::{
    controller, controller_with, delete_node, delete_pod, edit_gate, event_on, gate, gate_condition,
    is_gated, is_verified, no_workers_left, node, node_is, record, until, worker_on,
};
use nodekeeper_e2e::scenario::worker::{State, say};
use nodekeeper_e2e::scenario::world::{IMAGE, MISSING, NAMESPACE, WORKS, WorkerBehaviour, World, machine};
use serde_json::json;

/// A worker is lost in this state; the next one passes, and counts as the first attempt.
async fn a_worker_is_lost(world: &impl World, name: &str, state: State, word: &str) -> Result<()> {
    gate(world, "default", json!({})).await?;
    let _controller = controller(world, "a");
    world.behaviours().set(name, WorkerBehaviour::Hangs);
    world.join(machine(name)).await?;
    let pod = worker_on(world, name).await?;
    world.behaviours().set(name, WORKS);
    say(&world.client(), &pod, state).await?;
    let lost = node_is(world, name, "recorded", |node| record(node).is_some()).await?;
    let lost = record(&lost).unwrap_or_default();
    ensure!(lost.attempts == 0 || lost.number > 1, "an attempt was used: {lost:?}");
    ensure!(lost.number > 1 || lost.why.contains(word), "the reason is missing: {lost:?}");
    let record = is_verified(world, name).await?;
    ensure!(record.attempts == 1 && record.number == 2, "{record:?}");
    no_workers_left(world).await
}

pub async fn an_evicted_worker_is_inconclusive(world: impl World) -> Result<()> {
    a_worker_is_lost(&world, "evicted", State::Evicted, "Evicted").await
}

pub async fn an_oom_killed_worker_is_inconclusive(world: impl World) -> Result<()> {
    a_worker_is_lost(&world, "oom", State::OutOfMemory, "OOMKilled").await
}

/// A user deletes the worker. It is created again.
pub async fn a_deleted_worker_is_created_again(world: impl World) -> Result<()> {
    gate(&world, "default", json!({})).await?;
    let _controller = controller(&world, "a");
    world.behaviours().set("deleted", WorkerBehaviour::Hangs);
    world.join(machine("deleted")).await?;
    let pod = worker_on(&world, "deleted").await?;
    world.behaviours().set("deleted", WORKS);
    delete_pod(&world, &pod).await?;
    let record = is_verified(&world, "deleted").await?;
    ensure!(record.attempts == 1, "a deleted worker cost an attempt: {record:?}");
    no_workers_left(&world).await
}

/// The image cannot be pulled: this is reported and uses up no attempt. Once the gate names another image, the node
/// passes.
pub async fn an_image_pull_error_is_inconclusive(world: impl World) -> Result<()> {
    let deadlines = json!({"checkSeconds": 2, "workerSeconds": 120});
    let worker = json!({"image": MISSING});
    gate(&world, "default", json!({"worker": worker, "deadlines": deadlines})).await?;
    let _controller = controller(&world, "a");
    world.join(machine("pulling")).await?;
    let given_up = node_is(&world, "pulling", "recorded", |node| record(node).is_some()).await?;
    let lost = record(&given_up).unwrap_or_default();
    ensure!(is_gated(&given_up) && lost.attempts == 0, "failed or untainted: {lost:?}");
    ensure!(
        lost.cause == Some(InconclusiveReason::ImagePull) && lost.why.contains("ImagePullBackOff"),
        "{lost:?}"
    );
    event_on(&world, "pulling", "NodeVerificationInconclusive", "ImagePullBackOff").await?;
    edit_gate(&world, "default", json!({"worker": {"image": IMAGE}})).await?;
    let record = is_verified(&world, "pulling").await?;
    ensure!(record.attempts == 1 && record.number > lost.number, "{record:?}");
    no_workers_left(&world).await
}

/// A node is deleted while its worker runs. The only worker slot is free again.
pub async fn a_deleted_node_frees_its_worker_slot(world: impl World) -> Result<()> {
    let observer = PodObserver::start(&world);
    gate(&world, "default", json!({})).await?;
    let _controller =
        controller_with(&world, "a", FaultProxy::default(), |settings| settings.most_workers = 1);
    world.behaviours().set("leaver", WorkerBehaviour::Hangs);
    world.join(machine("leaver")).await?;
    worker_on(&world, "leaver").await?;
    world.join(machine("stayer")).await?;
    world.power_off("leaver").await?;
    delete_node(&world, "leaver").await?;
    let record = is_verified(&world, "stayer").await?;
    ensure!(record.attempts == 1, "{record:?}");
    let seen = observer.assert_one_worker_per_node()?;
    ensure!(seen.most == 1, "the only slot was given twice: {seen:?}");
    Ok(())
}

/// A quota refuses every worker: no attempt is used up and the taint stays. Verification continues when the quota is
/// deleted.
pub async fn a_quota_that_refuses_workers_uses_no_attempt(world: impl World) -> Result<()> {
    let quotas: Api<ResourceQuota> = Api::namespaced(world.client(), NAMESPACE);
    let none = json!({"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}});
    quotas.create(&PostParams::default(), &serde_json::from_value(none)?).await?;
    gate(&world, "default", json!({})).await?;
    let controller = controller(&world, "a");
    world.join(machine("refused")).await?;
    // Creation is retried without a change of the node.
    until(&world, "workers are refused", async || {
        let refused = |one: &&RecordedRequest| one.uri.contains("/pods") && one.status == 403;
        Ok((controller.proxy.requests().iter().filter(refused).count() > 3).then_some(()))
    })
    .await?;
    let waiting = node(&world, "refused").await?;
    ensure!(
        is_gated(&waiting) && record(&waiting).is_none(),
        "failed or untainted: {:?}",
        waiting.annotations()
    );
    gate_condition(&world, "default", ("WorkersCannotRun", "True", "CreateRefused")).await?;
    gate_condition(&world, "default", ("Ready", "False", "CreateRefused")).await?;
    quotas.delete("none", &DeleteParams::default()).await?;
    let record = is_verified(&world, "refused").await?;
    ensure!((record.number, record.attempts) == (1, 1), "{record:?}");
    gate_condition(&world, "default", ("WorkersCannotRun", "False", "WorkersRun")).await?;
    no_workers_left(&world).await
}
