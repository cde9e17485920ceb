//! Many nodes at once, and other controllers that write to the same nodes.

use nodekeeper_e2e::scenario::fault_proxy::{FaultProxy, WriteHook};
use nodekeeper_e2e::scenario::pod_observer::PodObserver;
use nodekeeper_e2e::scenario::steps::{
    controller_with, gate, has_taint, is_gated, is_labelled, no_workers_left, node, node_is, record, until,
};
use nodekeeper_e2e::scenario::world::{Machine, WorkerBehaviour, World, machine, taint};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::{Node, Taint};
use kube::api::{ListParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::sleep;

/// The gate's taints; the second evicts pods.
const OURS: [&str; 2] = ["gate.example.com/one", "gate.example.com/two"];
const FOREIGN: [&str; 3] = ["foreign.example.com/a", "foreign.example.com/b", "foreign.example.com/c"];
const LATE: [&str; 3] = ["late.example.com/a", "late.example.com/b", "late.example.com/c"];

/// The gate's two taints are between others, which other controllers add and remove all the time, also between
/// decision and write: only the gate's taints are removed.
pub async fn f03_only_the_gates_taints_are_removed(world: impl World) -> Result<()> {
    let second = json!({"key": OURS[1], "effect": "NoExecute"});
    gate(&world, "default", json!({"taints": [{"key": OURS[0], "effect": "NoSchedule"}, second]})).await?;
    let names = ["crowded-1", "crowded-2", "crowded-3"];
    for (turn, name) in names.iter().enumerate() {
        let mut taints =
            vec![taint(FOREIGN[0]), taint(OURS[0]), taint(FOREIGN[1]), second.clone(), taint(FOREIGN[2])];
        taints.rotate_left(turn);
        // The second attempt passes: then the node has a record, and its resource version is no precondition.
        world.behaviours().set(name, WorkerBehaviour::Fails { first: 1 });
        world.join(Machine { taints, ..machine(name) }).await?;
    }
    let (stop, stopped) = watch::channel(false);
    let other_writers =
        names.map(|name| tokio::spawn(add_and_remove_taints(world.client(), name, stopped.clone())));
    let late = Late::default();
    let proxy = FaultProxy::with_write_hook(overtake(world.client(), late.clone()));
    let _controller = controller_with(&world, "a", proxy, |_| {});
    for name in names {
        let open = |node: &Node| !OURS.iter().any(|key| has_taint(node, key));
        let node = node_is(&world, name, "open", open).await?;
        ensure!(is_labelled(&node), "{name} is open without the label");
    }
    stop.send(true)?;
    for (name, writer) in names.iter().zip(other_writers) {
        let (theirs, writes) = writer.await??;
        let node = node(&world, name).await?;
        // Kubernetes adds and removes its own taints with the node's conditions.
        let is = taints(&node).into_iter().map(|taint| taint.key);
        let is: BTreeSet<String> = is.filter(|key| !key.starts_with("node.kubernetes.io/")).collect();
        let late = late.lock().clone();
        let late = late.into_iter().filter(|(node, _)| node == name).map(|(_, key)| key);
        let late: BTreeSet<&str> = late.collect();
        ensure!(!late.is_empty(), "no taint was added to {name} before a patch");
        let foreign = FOREIGN.into_iter().chain(late).map(str::to_owned);
        let foreign: BTreeSet<String> = foreign.chain(theirs).collect();
        ensure!(is == foreign, "{name} has {is:?}, and should have {foreign:?}");
        ensure!(writes > 0, "no other controller wrote {name}");
    }
    no_workers_left(&world).await
}

/// Nodes, and the taints that they were given.
type Late = Arc<Mutex<BTreeSet<(String, &'static str)>>>;

/// Before each patch of a node that has a record, adds a taint at the front of its list. Those patches remove the
/// gate's taints.
fn overtake(client: Client, late: Late) -> WriteHook {
    let nodes: Api<Node> = Api::all(client);
    Box::new(move |_, path| {
        let (nodes, late) = (nodes.clone(), late.clone());
        let name = path.strip_prefix("/api/v1/nodes/").map(str::to_owned);
        Box::pin(async move {
            let Some(name) = name else { return };
            // Repeats on conflicts.
            while let Ok(mut node) = nodes.get(&name).await {
                let mut taints = taints(&node);
                let has = |key: &&str| taints.iter().any(|taint| taint.key == *key);
                let Some(key) = LATE.into_iter().find(|key| !has(key) && record(&node).is_some()) else {
                    return;
                };
                taints.insert(0, mild(key));
                node.spec.get_or_insert_default().taints = Some(taints);
                if nodes.replace(&name, &PostParams::default(), &node).await.is_ok() {
                    late.lock().insert((name, key));
                    return;
                }
            }
        })
    })
}

/// A taint that does not repel workers.
fn mild(key: &str) -> Taint {
    Taint { key: key.to_owned(), effect: "PreferNoSchedule".into(), ..Taint::default() }
}

fn taints(node: &Node) -> Vec<Taint> {
    node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default()
}

/// Adds and removes a taint at the front of the list until stopped. Returns the taints it left and the number of
/// writes.
async fn add_and_remove_taints(
    client: Client,
    name: &str,
    stop: watch::Receiver<bool>,
) -> Result<(Vec<String>, usize)> {
    let nodes: Api<Node> = Api::all(client);
    let mut left = Vec::new();
    for turn in 0.. {
        let key = format!("other.example.com/{}", turn % 7);
        if *stop.borrow() {
            return Ok((left, turn));
        }
        // Like other controllers: replaces the whole object with its resource version.
        let mut node = nodes.get(name).await?;
        let mut taints = taints(&node);
        if left.is_empty() {
            taints
                .insert(0, Taint { key: key.clone(), effect: "PreferNoSchedule".into(), ..Taint::default() });
        } else {
            taints.retain(|taint| !left.contains(&taint.key));
        }
        node.spec.get_or_insert_default().taints = Some(taints);
        match nodes.replace(name, &PostParams::default(), &node).await {
            Ok(_) if left.is_empty() => left.push(key),
            Ok(_) => left.clear(),
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(error.into()),
        }
        sleep(Duration::from_millis(15)).await;
    }
    Ok((left, 0))
}

/// More failing nodes than worker slots exist before healthy nodes join: the healthy ones are verified while the
/// others keep failing.
pub async fn f15_failing_nodes_do_not_starve_healthy_ones(world: impl World) -> Result<()> {
    let (failing_nodes, healthy, cap) = (world.about(150), world.about(100), world.about(100));
    let observer = PodObserver::start(&world);
    gate(&world, "default", json!({})).await?;
    let bad: Vec<String> = (0..failing_nodes).map(|n| format!("bad-{n}")).collect();
    for name in &bad {
        world.behaviours().set(name, WorkerBehaviour::TimesOut);
    }
    join_all(&world, &bad).await?;
    let _controller =
        controller_with(&world, "a", FaultProxy::default(), |settings| settings.most_workers = cap);
    until(&world, "failing nodes use every worker slot", async || {
        Ok((observer.seen()?.most >= cap).then_some(()))
    })
    .await?;
    let good: Vec<String> = (0..healthy).map(|n| format!("good-{n}")).collect();
    join_all(&world, &good).await?;
    all_open(&world, "good-", healthy).await?;
    let gated = all(&world, "bad-").await?.iter().filter(|node| is_gated(node) && !is_labelled(node)).count();
    ensure!(gated == failing_nodes, "{gated} of {failing_nodes} failing nodes are gated");
    let failing = async || {
        let attempts = |node: &Node| record(node).map(|record| record.attempts).unwrap_or_default();
        Ok(all(&world, "bad-").await?.iter().any(|node| attempts(node) > 1).then_some(()))
    };
    until(&world, "failing nodes are rechecked", failing).await?;
    let seen = observer.assert_one_worker_per_node()?;
    ensure!(seen.most <= cap, "{} workers at once, {cap} are allowed", seen.most);
    Ok(())
}

/// With a thousand nodes at once, the worker limit is never exceeded, and all are verified.
pub async fn f15_a_thousand_nodes_stay_within_the_worker_limit(world: impl World) -> Result<()> {
    let (count, cap) = (1000, 100);
    let observer = PodObserver::start(&world);
    gate(&world, "default", json!({})).await?;
    let names: Vec<String> = (0..count).map(|n| format!("many-{n}")).collect();
    join_all(&world, &names).await?;
    let _controller =
        controller_with(&world, "a", FaultProxy::default(), |settings| settings.most_workers = cap);
    all_open(&world, "many-", count).await?;
    no_workers_left(&world).await?;
    until(&world, "the observer has recorded all", async || {
        Ok((observer.seen()?.made.len() >= count).then_some(()))
    })
    .await?;
    let seen = observer.assert_one_worker_per_node()?;
    ensure!(seen.most <= cap, "{} workers at once, {cap} are allowed", seen.most);
    ensure!(seen.made.len() == count, "{} workers for {count} nodes", seen.made.len());
    println!("{count} nodes, {} workers at once at most", seen.most);
    Ok(())
}

async fn join_all(world: &impl World, names: &[String]) -> Result<()> {
    stream::iter(names).map(|name| Ok(world.join(machine(name)))).try_buffer_unordered(32).try_collect().await
}

async fn all(world: &impl World, prefix: &str) -> Result<Vec<Node>> {
    let nodes = Api::<Node>::all(world.client()).list(&ListParams::default()).await?.items;
    Ok(nodes.into_iter().filter(|node| node.name_any().starts_with(prefix)).collect())
}

async fn all_open(world: &impl World, prefix: &str, count: usize) -> Result<()> {
    let look = async || {
        let open =
            all(world, prefix).await?.iter().filter(|node| !is_gated(node) && is_labelled(node)).count();
        // Listing all nodes is expensive.
        sleep(Duration::from_secs(1)).await;
        Ok((open == count).then_some(()))
    };
    until(world, &format!("all {count} nodes {prefix}… are untainted"), look).await
}
