//! Nodes that pass: at once, after failures, and after all attempts failed.

use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt as _;
use nodekeeper_core::report::Verdict;
use nodekeeper_e2e::scenario::pod_observer::{PodChange, PodObserver};
use nodekeeper_e2e::scenario::steps::{
    controller, delete_lease, delete_node, event_on, gate, is_gated, is_labelled, is_verified,
    no_workers_left, node, node_is, patch_node, record, until, worker_on, workers_of,
};
use nodekeeper_e2e::scenario::worker::{State, say};
use nodekeeper_e2e::scenario::world::{
    BROKEN, LABEL, Machine, TAINT, WORKS, WorkerBehaviour, World, machine, taint,
};
use serde_json::json;

/// The first worker passes: the taint is removed, the label set, an Event emitted, and the worker deleted. The end of
/// the worker alone triggers this.
pub async fn f01_a_passed_worker_removes_the_taint(world: impl World) -> Result<()> {
    let observer = PodObserver::start(&world);
    gate(&world, "default", json!({})).await?;
    let _controller = controller(&world, "a");
    world.behaviours().set("first", WorkerBehaviour::Hangs);
    world.join(machine("first")).await?;
    let pod = worker_on(&world, "first").await?;
    ensure!(is_gated(&node(&world, "first").await?), "untainted before its worker ended");
    say(&world.client(), &pod, State::Passed).await?;
    let record = is_verified(&world, "first").await?;
    ensure!(record.verdict == Some(Verdict::Passed) && record.attempts == 1, "{record:?}");
    event_on(&world, "first", "NodeVerified", "passed").await?;
    no_workers_left(&world).await?;
    let seen = observer.assert_one_worker_per_node()?;
    ensure!(seen.made.len() == 1, "more than one worker: {seen:?}");
    Ok(())
}

/// Finished workers are deleted. A failed one is kept until the next exists, so that it can be inspected.
pub async fn f11_finished_workers_are_deleted(world: impl World) -> Result<()> {
    let observer = PodObserver::start(&world);
    gate(&world, "default", json!({})).await?;
    let _controller = controller(&world, "a");
    world.behaviours().set("tidy", WorkerBehaviour::Fails { first: 1 });
    world.join(machine("tidy")).await?;
    let failed = node_is(&world, "tidy", "failed", |node| record(node).is_some()).await?;
    ensure!(is_gated(&failed), "a failure removed the taint");
    is_verified(&world, "tidy").await?;
    no_workers_left(&world).await?;
    let kept = async || {
        Ok(observer.seen()?.in_order((PodChange::Created, 2), (PodChange::Deleted, 1)).then_some(()))
    };
    until(&world, "the second worker was made before the first was deleted", kept)
        .await
        .with_context(|| format!("{:?}", observer.seen()))
}

/// After a failed attempt the next follows without another change of the node, and the Event contains its number.
pub async fn f08_a_failed_attempt_is_followed_by_the_next(world: impl World) -> Result<()> {
    let observer = PodObserver::start(&world);
    gate(&world, "default", json!({})).await?;
    let _controller = controller(&world, "a");
    world.behaviours().set("second", WorkerBehaviour::Fails { first: 1 });
    world.join(machine("second")).await?;
    let record = is_verified(&world, "second").await?;
    ensure!((record.number, record.attempts) == (2, 2), "{record:?}");
    event_on(&world, "second", "NodeCheckFailed", "dns").await?;
    event_on(&world, "second", "NodeVerified", "attempt 2").await?;
    no_workers_left(&world).await?;
    observer.assert_one_worker_per_node().map(drop)
}

/// All attempts fail: an Event says why, the node keeps its taint, is rechecked periodically, and is untainted when
/// it recovers.
pub async fn f09_a_failed_node_is_reported_and_recovers(world: impl World) -> Result<()> {
    gate(&world, "default", json!({"retry": {"maxRetries": 1, "recheckPeriodSeconds": 10}})).await?;
    let _controller = controller(&world, "a");
    world.behaviours().set("failing", BROKEN);
    world.join(machine("failing")).await?;
    event_on(&world, "failing", "NodeVerificationFailed", "").await?;
    let failed = node(&world, "failing").await?;
    let record = record(&failed).context("failed without a record")?;
    ensure!(is_gated(&failed) && !is_labelled(&failed), "failed and untainted");
    ensure!(record.attempts == 2 && record.why.contains("dns"), "{record:?}");
    world.behaviours().set("failing", WORKS);
    let healed = is_verified(&world, "failing").await?;
    ensure!(healed.number > record.number && healed.verdict == Some(Verdict::Passed), "{healed:?}");
    no_workers_left(&world).await
}

/// A node's name may have 253 characters; names of pods and label values must be shorter.
pub async fn f04_long_node_names_work(world: impl World) -> Result<()> {
    let name = ["a".repeat(63), "b".repeat(63), "c".repeat(63), "d".repeat(61)].join(".");
    ensure!(name.len() == 253, "{}", name.len());
    gate(&world, "default", json!({})).await?;
    let _controller = controller(&world, "a");
    // The kubelet sets this label, which is limited to 63 characters.
    world.join(machine(&name).labelled("kubernetes.io/hostname", &name[..63])).await?;
    is_verified(&world, &name).await?;
    event_on(&world, &name, "NodeVerified", "passed").await?;
    no_workers_left(&world).await
}

/// The worker is bound by the node's name, not by its hostname label.
pub async fn f05_a_worker_is_bound_by_node_name(world: impl World) -> Result<()> {
    gate(&world, "default", json!({})).await?;
    let _controller = controller(&world, "a");
    for (node, hostname) in [("alice", "bob"), ("bob", "alice")] {
        world.behaviours().set(node, WorkerBehaviour::Hangs);
        world.join(machine(node).labelled("kubernetes.io/hostname", hostname)).await?;
    }
    for node in ["alice", "bob"] {
        let pod = worker_on(&world, node).await?;
        ensure!(pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node), "{:?}", pod.spec);
        say(&world.client(), &pod, State::Passed).await?;
        is_verified(&world, node).await?;
    }
    no_workers_left(&world).await
}

/// No worker starts before the node is Ready, so no attempt is used up.
pub async fn f16_no_worker_before_the_node_is_ready(world: impl World) -> Result<()> {
    let observer = PodObserver::start(&world);
    gate(&world, "default", json!({})).await?;
    let _controller = controller(&world, "a");
    world.join(Machine { ready: false, ..machine("late") }).await?;
    // This node came later and is verified, so the controller had time to act on the first.
    world.join(machine("ready")).await?;
    is_verified(&world, "ready").await?;
    let late = node(&world, "late").await?;
    let uid = late.uid().context("no uid")?;
    ensure!(is_gated(&late) && observer.seen()?.of(&uid) == 0, "checked too early: {:?}", observer.seen()?);
    world.say_ready("late", true).await?;
    let record = is_verified(&world, "late").await?;
    ensure!(record.attempts == 1, "{record:?}");
    no_workers_left(&world).await
}

/// A kubelet can set the label on its node. The node is verified regardless, and stays gated if it fails.
pub async fn a_forged_label_does_not_remove_the_taint(world: impl World) -> Result<()> {
    gate(&world, "default", json!({})).await?;
    let _controller = controller(&world, "a");
    world.behaviours().set("forger", BROKEN);
    world.join(machine("forger").labelled(LABEL, "true")).await?;
    let failed = node_is(&world, "forger", "failed", |node| record(node).is_some()).await?;
    ensure!(is_gated(&failed), "the label removed the taint");
    world.behaviours().set("forger", WORKS);
    let record = is_verified(&world, "forger").await?;
    ensure!(record.verdict == Some(Verdict::Passed) && record.number > 1, "{record:?}");
    no_workers_left(&world).await
}

/// A verified node that a user taints again is verified again, starting with the first attempt.
pub async fn f07_a_node_that_is_tainted_again_is_verified_again(world: impl World) -> Result<()> {
    gate(&world, "default", json!({})).await?;
    let first = controller(&world, "a");
    world.join(machine("again")).await?;
    let before = is_verified(&world, "again").await?;
    no_workers_left(&world).await?;
    let again = json!({"metadata": {"labels": {LABEL: null}}, "spec": {"taints": [taint(TAINT)]}});
    patch_node(&world, "again", again.clone()).await?;
    let after = is_verified(&world, "again").await?;
    ensure!(after.number == before.number + 1 && after.attempts == 1, "{before:?}, then {after:?}");
    no_workers_left(&world).await?;
    // The same with a controller that did not see the first verification.
    first.kill();
    delete_lease(&world).await?;
    patch_node(&world, "again", again).await?;
    let _second = controller(&world, "b");
    let last = is_verified(&world, "again").await?;
    ensure!(last.number == after.number + 1, "{after:?}, then {last:?}");
    no_workers_left(&world).await
}

/// A machine is replaced by another with the same name while its worker runs: the new node is verified on its own.
pub async fn a_new_node_with_the_same_name_is_verified_again(world: impl World) -> Result<()> {
    gate(&world, "default", json!({})).await?;
    let _controller = controller(&world, "a");
    world.behaviours().set("phoenix", WorkerBehaviour::Hangs);
    world.join(machine("phoenix")).await?;
    let old = worker_on(&world, "phoenix").await?;
    let before = node(&world, "phoenix").await?.uid();
    world.power_off("phoenix").await?;
    delete_node(&world, "phoenix").await?;
    world.behaviours().set("phoenix", BROKEN);
    world.join(machine("phoenix")).await?;
    let failed = node_is(&world, "phoenix", "failed", |node| record(node).is_some()).await?;
    ensure!(failed.uid() != before && is_gated(&failed), "not replaced, or untainted: {:?}", failed.metadata);
    // A late report of the old worker does not apply to the new node.
    drop(say(&world.client(), &old, State::Passed).await);
    world.behaviours().set("phoenix", WORKS);
    let record = is_verified(&world, "phoenix").await?;
    ensure!(record.number > 1 && failed.uid().is_some_and(|uid| record.uid == uid), "{record:?}");
    until(&world, "the worker of the old node is gone", async || {
        Ok(workers_of(&world, "phoenix").await?.iter().all(|pod| pod.uid() != old.uid()).then_some(()))
    })
    .await
}
