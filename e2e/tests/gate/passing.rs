//! Nodes that pass: at once, after failures, after everybody had given them up; under any name and any label.

use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt as _;
use nodekeeper_core::report::Verdict;
use serde_json::json;

use crate::eye::{Eye, Step};
use crate::play::{
    controller, delete_node, end_the_lease, gate, is_gated, is_labelled, no_workers_left, node, node_is,
    opens, patch_node, record, tells, until, worker_on, workers_of,
};
use crate::worker::{State, say};
use crate::world::{BROKEN, Fate, LABEL, Machine, TAINT, WORKS, World, machine, taint};

/// The first worker passes: taint gone, label there, told, nothing left over. It is the end of the worker that opens
/// the gate: nothing else happens to the node meanwhile.
pub async fn f01_a_finished_worker_opens_the_gate(world: impl World) -> Result<()> {
    let eye = Eye::open(&world);
    gate(&world, "default", json!({})).await?;
    let _controller = controller(&world, "a");
    world.fates().set("first", Fate::Hangs);
    world.join(machine("first")).await?;
    let pod = worker_on(&world, "first").await?;
    ensure!(is_gated(&node(&world, "first").await?), "open before its worker ended");
    say(&world.client(), &pod, State::Passed).await?;
    let record = opens(&world, "first").await?;
    ensure!(record.verdict == Some(Verdict::Passed) && record.attempts == 1, "{record:?}");
    tells(&world, "first", "NodeVerified", "passed").await?;
    no_workers_left(&world).await?;
    let seen = eye.never_two()?;
    ensure!(seen.made.len() == 1, "more than one worker: {seen:?}");
    Ok(())
}

/// What has ended does not stay: neither the worker that passed nor those that failed before it. But one that failed can
/// be read until the next is there.
pub async fn f11_workers_do_not_stay(world: impl World) -> Result<()> {
    let eye = Eye::open(&world);
    gate(&world, "default", json!({})).await?;
    let _controller = controller(&world, "a");
    world.fates().set("tidy", Fate::Fails { first: 1 });
    world.join(machine("tidy")).await?;
    let failed = node_is(&world, "tidy", "blamed", |node| record(node).is_some()).await?;
    ensure!(is_gated(&failed), "a failure opened the gate");
    opens(&world, "tidy").await?;
    no_workers_left(&world).await?;
    let kept = async || Ok(eye.seen()?.in_order((Step::Made, 2), (Step::Deleted, 1)).then_some(()));
    until(&world, "the second worker was made before the first was deleted", kept)
        .await
        .with_context(|| format!("{:?}", eye.seen()))
}

/// A failed attempt is followed by another though nothing else happens to the node, and the count is told.
pub async fn f08_a_failed_attempt_is_followed_by_the_next(world: impl World) -> Result<()> {
    let eye = Eye::open(&world);
    gate(&world, "default", json!({})).await?;
    let _controller = controller(&world, "a");
    world.fates().set("second", Fate::Fails { first: 1 });
    world.join(machine("second")).await?;
    let record = opens(&world, "second").await?;
    ensure!((record.number, record.attempts) == (2, 2), "{record:?}");
    tells(&world, "second", "NodeCheckFailed", "dns").await?;
    tells(&world, "second", "NodeVerified", "attempt 2").await?;
    no_workers_left(&world).await?;
    eye.never_two().map(drop)
}

/// All attempts fail: it is said with the reason, the node keeps its taint, is looked at again and again, and is let
/// in when it heals.
pub async fn f09_a_node_that_never_passes_is_told_and_heals(world: impl World) -> Result<()> {
    gate(&world, "default", json!({"retry": {"maxRetries": 1, "recheckPeriodSeconds": 10}})).await?;
    let _controller = controller(&world, "a");
    world.fates().set("hopeless", BROKEN);
    world.join(machine("hopeless")).await?;
    tells(&world, "hopeless", "NodeVerificationFailed", "").await?;
    let failed = node(&world, "hopeless").await?;
    let record = record(&failed).context("given up without a record")?;
    ensure!(is_gated(&failed) && !is_labelled(&failed), "given up, and let in");
    ensure!(record.attempts == 2 && record.why.contains("dns"), "{record:?}");
    world.fates().set("hopeless", WORKS);
    let healed = opens(&world, "hopeless").await?;
    ensure!(healed.number > record.number && healed.verdict == Some(Verdict::Passed), "{healed:?}");
    no_workers_left(&world).await
}

/// A node's name may have 253 characters; a pod's name and a label's value have less room.
pub async fn f04_node_names_may_be_as_long_as_they_are(world: impl World) -> Result<()> {
    let name = ["a".repeat(63), "b".repeat(63), "c".repeat(63), "d".repeat(61)].join(".");
    ensure!(name.len() == 253, "{}", name.len());
    gate(&world, "default", json!({})).await?;
    let _controller = controller(&world, "a");
    // The label is the kubelet's, and has 63 characters.
    world.join(machine(&name).labelled("kubernetes.io/hostname", &name[..63])).await?;
    opens(&world, &name).await?;
    tells(&world, &name, "NodeVerified", "passed").await?;
    no_workers_left(&world).await
}

/// The hostname label is not the name of the node: the worker gets to its node all the same.
pub async fn f05_a_worker_finds_its_node_by_name(world: impl World) -> Result<()> {
    gate(&world, "default", json!({})).await?;
    let _controller = controller(&world, "a");
    for (node, hostname) in [("alice", "bob"), ("bob", "alice")] {
        world.fates().set(node, Fate::Hangs);
        world.join(machine(node).labelled("kubernetes.io/hostname", hostname)).await?;
    }
    for node in ["alice", "bob"] {
        let pod = worker_on(&world, node).await?;
        ensure!(pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node), "{:?}", pod.spec);
        say(&world.client(), &pod, State::Passed).await?;
        opens(&world, node).await?;
    }
    no_workers_left(&world).await
}

/// Nothing is looked at before the node is Ready: nothing could be seen, and attempts would be used up.
pub async fn f16_no_worker_before_the_node_is_ready(world: impl World) -> Result<()> {
    let eye = Eye::open(&world);
    gate(&world, "default", json!({})).await?;
    let _controller = controller(&world, "a");
    world.join(Machine { ready: false, ..machine("late") }).await?;
    // The other is later and through: the first had its chance.
    world.join(machine("ready")).await?;
    opens(&world, "ready").await?;
    let late = node(&world, "late").await?;
    let uid = late.uid().context("no uid")?;
    ensure!(is_gated(&late) && eye.seen()?.of(&uid) == 0, "looked at too early: {:?}", eye.seen()?);
    world.say_ready("late", true).await?;
    let record = opens(&world, "late").await?;
    ensure!(record.attempts == 1, "{record:?}");
    no_workers_left(&world).await
}

/// A kubelet can give its node the label. That opens nothing: the node is looked at like any other, and held if it
/// fails.
pub async fn a_forged_label_opens_nothing(world: impl World) -> Result<()> {
    gate(&world, "default", json!({})).await?;
    let _controller = controller(&world, "a");
    world.fates().set("forger", BROKEN);
    world.join(machine("forger").labelled(LABEL, "true")).await?;
    let blamed = node_is(&world, "forger", "blamed", |node| record(node).is_some()).await?;
    ensure!(is_gated(&blamed), "the label opened the gate");
    world.fates().set("forger", WORKS);
    let record = opens(&world, "forger").await?;
    ensure!(record.verdict == Some(Verdict::Passed) && record.number > 1, "{record:?}");
    no_workers_left(&world).await
}

/// A node that was let in is tainted again by hand: it is looked at once more, from the first attempt on.
pub async fn f07_a_node_that_is_tainted_again_is_verified_again(world: impl World) -> Result<()> {
    gate(&world, "default", json!({})).await?;
    let first = controller(&world, "a");
    world.join(machine("again")).await?;
    let before = opens(&world, "again").await?;
    no_workers_left(&world).await?;
    let again = json!({"metadata": {"labels": {LABEL: null}}, "spec": {"taints": [taint(TAINT)]}});
    patch_node(&world, "again", again.clone()).await?;
    let after = opens(&world, "again").await?;
    ensure!(after.number == before.number + 1 && after.attempts == 1, "{before:?}, then {after:?}");
    no_workers_left(&world).await?;
    // And also by a controller that did not see it the first time.
    first.kill();
    end_the_lease(&world).await?;
    patch_node(&world, "again", again).await?;
    let _second = controller(&world, "b");
    let last = opens(&world, "again").await?;
    ensure!(last.number == after.number + 1, "{after:?}, then {last:?}");
    no_workers_left(&world).await
}

/// A machine is replaced by another of the same name while its worker runs: the new one is looked at for itself.
pub async fn a_namesake_is_another_node(world: impl World) -> Result<()> {
    gate(&world, "default", json!({})).await?;
    let _controller = controller(&world, "a");
    world.fates().set("phoenix", Fate::Hangs);
    world.join(machine("phoenix")).await?;
    let old = worker_on(&world, "phoenix").await?;
    let before = node(&world, "phoenix").await?.uid();
    world.power_off("phoenix").await?;
    delete_node(&world, "phoenix").await?;
    world.fates().set("phoenix", BROKEN);
    world.join(machine("phoenix")).await?;
    let blamed = node_is(&world, "phoenix", "blamed", |node| record(node).is_some()).await?;
    ensure!(blamed.uid() != before && is_gated(&blamed), "not another, or let in: {:?}", blamed.metadata);
    // What the worker of the old one says now, if anybody still listens, is not about this node.
    drop(say(&world.client(), &old, State::Passed).await);
    world.fates().set("phoenix", WORKS);
    let record = opens(&world, "phoenix").await?;
    ensure!(record.number > 1 && Some(&record.uid) == blamed.uid().as_ref(), "{record:?}");
    until(&world, "the worker of the old one is gone", async || {
        Ok(workers_of(&world, "phoenix").await?.iter().all(|pod| pod.uid() != old.uid()).then_some(()))
    })
    .await
}
