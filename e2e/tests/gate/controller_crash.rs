//! Controllers that crash: the next leader continues from the state in the cluster.

use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt as _;
use nodekeeper_e2e::scenario::fault_proxy::{FaultProxy, KillPoint};
use nodekeeper_e2e::scenario::pod_observer::PodObserver;
use nodekeeper_e2e::scenario::steps::{
    controller, controller_with, delete_lease, gate, is_verified, leader, no_workers_left, node, node_is,
    record, until, worker_on,
};
use nodekeeper_e2e::scenario::worker::{State, say};
use nodekeeper_e2e::scenario::world::{NAMESPACE, WorkerBehaviour, World, machine};
use serde_json::json;

/// A controller is killed before and after each of its writes, in one run each, until a run has no further write.
/// Each time the node gets exactly the two workers it needs, and both attempts are counted once.
pub async fn f06_a_crash_at_any_write_loses_nothing(world: impl World) -> Result<()> {
    gate(&world, "default", json!({})).await?;
    for side in [KillPoint::BeforeWrite, KillPoint::AfterWrite] {
        let mut write = 1;
        while killed_at(&world, side(write)).await.with_context(|| format!("killed {:?}", side(write)))? {
            write += 1;
        }
        // At least: the lease, creation and deletion of two workers, two records, two Events.
        ensure!(write > 8, "the controller makes only {} writes", write - 1);
        println!("killed at each of {} writes", write - 1);
    }
    Ok(())
}

/// Returns whether the controller reached that write.
async fn killed_at(world: &impl World, kill_point: KillPoint) -> Result<bool> {
    let name = match kill_point {
        KillPoint::BeforeWrite(n) => format!("before-{n}"),
        KillPoint::AfterWrite(n) => format!("after-{n}"),
    };
    let observer = PodObserver::start(world);
    world.behaviours().set(&name, WorkerBehaviour::Fails { first: 1 });
    let first = controller_with(world, &format!("{name}-first"), FaultProxy::killing_at(kill_point), |_| {});
    world.join(machine(&name)).await?;
    // The controller is killed, or completes the scenario.
    let story = async {
        is_verified(world, &name).await?;
        no_workers_left(world).await
    };
    tokio::select! {
        biased;
        () = first.proxy.killed() => {}
        story = story => story?,
    }
    let reached = first.proxy.writes() >= kill_point.write();
    first.kill();
    delete_lease(world).await?;
    let next = controller(world, &format!("{name}-next"));
    let record = is_verified(world, &name).await?;
    ensure!((record.number, record.attempts) == (2, 2), "{record:?}");
    no_workers_left(world).await?;
    let seen = observer.assert_one_worker_per_node()?;
    let workers = seen.of(&node(world, &name).await?.uid().context("no uid")?);
    ensure!(workers == 2, "{workers} workers: {seen:?}");
    next.kill();
    delete_lease(world).await?;
    Ok(reached)
}

/// The leader crashes while a worker runs. The other replica acquires the expired lease and waits for the same
/// worker.
pub async fn f06_the_next_leader_waits_for_the_same_worker(world: impl World) -> Result<()> {
    let observer = PodObserver::start(&world);
    gate(&world, "default", json!({})).await?;
    let first = controller(&world, "first");
    until(&world, "the first leads", async || Ok((leader(&world).await? == "first").then_some(()))).await?;
    let _second = controller(&world, "second");
    world.behaviours().set("node", WorkerBehaviour::Fails { first: 1 });
    world.join(machine("node")).await?;
    node_is(&world, "node", "failed once", |node| record(node).is_some()).await?;
    world.behaviours().set("node", WorkerBehaviour::Hangs);
    let pod = worker_on(&world, "node").await?;
    first.kill();
    until(&world, "the second leads", async || Ok((leader(&world).await? == "second").then_some(()))).await?;
    say(&world.client(), &pod, State::Passed).await?;
    let record = is_verified(&world, "node").await?;
    ensure!((record.number, record.attempts) == (2, 2), "{record:?}");
    no_workers_left(&world).await?;
    let seen = observer.assert_one_worker_per_node()?;
    ensure!(seen.made.len() == 2, "{seen:?}");
    Ok(())
}

/// The API server fails every other read while a controller starts: a running worker is not considered lost.
pub async fn f10_a_failed_read_is_not_a_lost_worker(world: impl World) -> Result<()> {
    let observer = PodObserver::start(&world);
    gate(&world, "default", json!({})).await?;
    let first = controller(&world, "first");
    world.behaviours().set("unread", WorkerBehaviour::Hangs);
    world.join(machine("unread")).await?;
    let pod = worker_on(&world, "unread").await?;
    first.kill();
    delete_lease(&world).await?;
    let second = controller_with(&world, "second", FaultProxy::failing_reads(9), |_| {});
    until(&world, "the second leads", async || Ok((leader(&world).await? == "second").then_some(()))).await?;
    say(&world.client(), &pod, State::Passed).await?;
    let record = is_verified(&world, "unread").await?;
    ensure!((record.number, record.attempts) == (1, 1), "{record:?}");
    no_workers_left(&world).await?;
    let seen = observer.assert_one_worker_per_node()?;
    ensure!(seen.made.len() == 1, "{seen:?}");
    second.kill();
    Ok(())
}

/// Pods are read only in the workers' namespace; elsewhere at most those of a single node.
pub async fn f12_only_worker_pods_are_read(world: impl World) -> Result<()> {
    gate(&world, "default", json!({})).await?;
    let controller = controller(&world, "a");
    world.join(machine("quiet")).await?;
    is_verified(&world, "quiet").await?;
    no_workers_left(&world).await?;
    let asked = controller.proxy.requests();
    let pods: Vec<&str> =
        asked.iter().map(|one| one.uri.as_str()).filter(|uri| uri.contains("/pods")).collect();
    let own = format!("/api/v1/namespaces/{NAMESPACE}/pods");
    let all = |uri: &&&str| !uri.contains(&own) && !uri.contains("spec.nodeName");
    let all: Vec<_> = pods.iter().filter(all).collect();
    ensure!(!pods.is_empty() && all.is_empty(), "pods of other namespaces are read: {all:?} of {pods:?}");
    Ok(())
}
