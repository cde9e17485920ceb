//! The scenarios, which run in every world.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::events::v1::Event;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use nodekeeper_core::record::{ANNOTATION, Record};
use nodekeeper_core::report::Verdict;
use nodekeeper_core::worker::SELECTOR;
use tokio::time::{Instant, sleep};

use crate::world::{LABEL, NAMESPACE, TAINT, World, gate};

/// The number of polls within the patience of a world.
const LOOK: Duration = Duration::from_millis(200);

/// A tainted node is verified and untainted. A node whose DNS is broken stays tainted with a reason, and is untainted
/// when DNS works again.
pub async fn a_broken_node_is_gated_until_it_recovers(mut world: impl World) -> Result<()> {
    let nodes = world.nodes();
    let [good, bad, other] = nodes.as_slice() else { bail!("three nodes, not {nodes:?}") };
    for node in &nodes {
        ensure!(is_gated(&get(&world, node).await?), "{node} is not gated");
    }
    world.break_dns(bad).await?;
    world.start_controller(&gate()).await?;

    for node in [good, other] {
        let node = until(&world, node, "open", |node| !is_gated(node)).await?;
        let record = record(&node).context("untainted without a record")?;
        ensure!(
            node.labels().get(LABEL).map(String::as_str) == Some("true"),
            "no label: {:?}",
            node.labels()
        );
        ensure!(record.verdict == Some(Verdict::Passed), "{record:?}");
        // A real CNI plugin or kube-proxy may be ready later than its node; the gate exists for that.
        ensure!(record.attempts <= 3, "{record:?}");
    }

    let has_failed = |node: &Node| record(node).is_some_and(|record| record.verdict == Some(Verdict::Failed));
    let held = until(&world, bad, "failed", has_failed).await?;
    let why = record(&held).context("no record")?.why;
    ensure!(is_gated(&held), "a broken node was untainted");
    ensure!(!held.labels().contains_key(LABEL), "a broken node bears the label");
    ensure!(why.contains("dns") && why.contains("kubernetes.default"), "the reason is missing: {why}");
    println!("{bad} is gated: {why}");
    event_on(&world, bad, "NodeCheckFailed", "dns").await?;

    world.heal_dns(bad).await?;
    let healed = until(&world, bad, "open", |node| !is_gated(node)).await?;
    let record = record(&healed).context("untainted without a record")?;
    ensure!(record.verdict == Some(Verdict::Passed) && record.number > 1, "{record:?}");
    println!("{bad} is open after worker {}: {}", record.number, record.why);
    event_on(&world, bad, "NodeVerified", "passed").await?;
    no_workers_left(&world).await
}

/// Every node is gated, including those of cluster DNS. No node fails while DNS does not run, and all are untainted
/// when it does.
pub async fn a_fully_gated_cluster_starts(mut world: impl World) -> Result<()> {
    world.start_controller(&gate()).await?;
    for node in world.nodes() {
        let checked = until(&world, &node, "checked", |node| record(node).is_some()).await?;
        let record = record(&checked).context("no record")?;
        ensure!(is_gated(&checked), "{node} was untainted without DNS: {record:?}");
        ensure!(
            record.verdict == Some(Verdict::Inconclusive) && record.attempts == 0,
            "{node} failed: {record:?}"
        );
        println!("{node} waits: {}", record.why);
        ensure!(record.why.contains("ClusterDNSNotRunning"), "the reason is missing: {}", record.why);
    }
    world.start_cluster_dns().await?;
    for node in world.nodes() {
        until(&world, &node, "open", |node| !is_gated(node)).await?;
    }
    no_workers_left(&world).await
}

pub fn is_gated(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    taints.into_iter().flatten().any(|taint| taint.key == TAINT)
}

pub fn record(node: &Node) -> Option<Record> {
    Record::read(node.annotations().get(ANNOTATION).map(String::as_str), &node.uid()?)
}

pub async fn get(world: &impl World, name: &str) -> Result<Node> {
    Ok(Api::<Node>::all(world.client()).get(name).await?)
}

pub async fn until(world: &impl World, name: &str, what: &str, so: impl Fn(&Node) -> bool) -> Result<Node> {
    let end = Instant::now() + world.patience();
    loop {
        let node = get(world, name).await?;
        if so(&node) {
            return Ok(node);
        }
        if Instant::now() > end {
            bail!(
                "{name} is not {what} after {:?}; taints {:?}, record {:?}; {}",
                world.patience(),
                node.spec.and_then(|spec| spec.taints),
                node.metadata.annotations,
                world.hint()
            );
        }
        sleep(LOOK).await;
    }
}

pub async fn event_on(world: &impl World, node: &str, reason: &str, word: &str) -> Result<()> {
    let events: Api<Event> = Api::namespaced(world.client(), "default");
    let end = Instant::now() + world.patience();
    let fields = format!("regarding.kind=Node,regarding.name={node},reason={reason}");
    loop {
        let found = events.list(&ListParams::default().fields(&fields)).await?;
        let notes: Vec<String> = found.items.into_iter().filter_map(|event| event.note).collect();
        if notes.iter().any(|note| note.contains(word)) {
            return Ok(());
        }
        ensure!(Instant::now() < end, "no Event {reason} on {node} contains {word:?}: {notes:?}");
        sleep(LOOK).await;
    }
}

/// All nodes are verified, so no worker is left.
pub async fn no_workers_left(world: &impl World) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(world.client(), NAMESPACE);
    let end = Instant::now() + world.patience();
    loop {
        let left = pods.list(&ListParams::default().labels(SELECTOR)).await?.items;
        if left.is_empty() {
            return Ok(());
        }
        let names: Vec<String> = left.iter().map(ResourceExt::name_any).collect();
        ensure!(Instant::now() < end, "left over: {names:?}; {}", world.hint());
        sleep(LOOK).await;
    }
}
