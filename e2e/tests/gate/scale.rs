//! Many at once: nodes before the gate, and others who write to the same nodes.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::{Node, Taint};
use kube::api::{ListParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::fault_proxy::{FaultProxy, WriteHook};
use crate::pod_observer::PodObserver;
use crate::steps::{
    controller_with, gate, has_taint, is_gated, is_labelled, no_workers_left, node, node_is, record, until,
};
use crate::world::{Machine, WorkerBehaviour, World, machine, taint};

/// The taints that hold nodes here: two, of which the second comes with pods' eviction.
const OURS: [&str; 2] = ["gate.example.com/one", "gate.example.com/two"];
const FOREIGN: [&str; 3] = ["foreign.example.com/a", "foreign.example.com/b", "foreign.example.com/c"];
const LATE: [&str; 3] = ["late.example.com/a", "late.example.com/b", "late.example.com/c"];

/// Two taints of ours stand among foreign ones, and others add and remove taints all the time, also between our
/// decision and our write: ours go, and nobody else's.
pub async fn f03_two_taints_go_and_no_foreign_one(world: impl World) -> Result<()> {
    let second = json!({"key": OURS[1], "effect": "NoExecute"});
    gate(&world, "default", json!({"taints": [{"key": OURS[0], "effect": "NoSchedule"}, second]})).await?;
    let names = ["crowded-1", "crowded-2", "crowded-3"];
    for (turn, name) in names.iter().enumerate() {
        let mut taints =
            vec![taint(FOREIGN[0]), taint(OURS[0]), taint(FOREIGN[1]), second.clone(), taint(FOREIGN[2])];
        taints.rotate_left(turn);
        // The second attempt passes: from then on there is a record, and the version of the node guards nothing.
        world.behaviours().set(name, WorkerBehaviour::Fails { first: 1 });
        world.join(Machine { taints, ..machine(name) }).await?;
    }
    let (stop, stopped) = watch::channel(false);
    let meddlers = names.map(|name| tokio::spawn(meddle(world.client(), name, stopped.clone())));
    let late = Late::default();
    let proxy = FaultProxy::with_write_hook(overtake(world.client(), late.clone()));
    let _controller = controller_with(&world, "a", proxy, |_| {});
    for name in names {
        let open = |node: &Node| !OURS.iter().any(|key| has_taint(node, key));
        let node = node_is(&world, name, "open", open).await?;
        ensure!(is_labelled(&node), "{name} is open without the label");
    }
    stop.send(true)?;
    for (name, meddler) in names.iter().zip(meddlers) {
        let (theirs, writes) = meddler.await??;
        let node = node(&world, name).await?;
        // Those of Kubernetes come and go with the node's condition.
        let is = taints(&node).into_iter().map(|taint| taint.key);
        let is: BTreeSet<String> = is.filter(|key| !key.starts_with("node.kubernetes.io/")).collect();
        let late = late.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let late = late.into_iter().filter(|(node, _)| node == name).map(|(_, key)| key);
        let late: BTreeSet<&str> = late.collect();
        ensure!(!late.is_empty(), "nobody was faster with {name}");
        let foreign = FOREIGN.into_iter().chain(late).map(str::to_owned);
        let foreign: BTreeSet<String> = foreign.chain(theirs).collect();
        ensure!(is == foreign, "{name} has {is:?}, and should have {foreign:?}");
        ensure!(writes > 0, "nobody meddled with {name}");
    }
    no_workers_left(&world).await
}

/// Nodes, and the taints that they were given.
type Late = Arc<Mutex<BTreeSet<(String, &'static str)>>>;

/// Gives a node that has a record one more taint, in front of all others, before each of our next patches to it: those
/// open the gate.
fn overtake(client: Client, late: Late) -> WriteHook {
    let nodes: Api<Node> = Api::all(client);
    Box::new(move |_, path| {
        let (nodes, late) = (nodes.clone(), late.clone());
        let name = path.strip_prefix("/api/v1/nodes/").map(str::to_owned);
        Box::pin(async move {
            let Some(name) = name else { return };
            // Until it was not changed in between.
            while let Ok(mut node) = nodes.get(&name).await {
                let mut taints = taints(&node);
                let has = |key: &&str| taints.iter().any(|taint| taint.key == *key);
                let Some(key) = LATE.into_iter().find(|key| !has(key) && record(&node).is_some()) else {
                    return;
                };
                taints.insert(0, mild(key));
                node.spec.get_or_insert_default().taints = Some(taints);
                if nodes.replace(&name, &PostParams::default(), &node).await.is_ok() {
                    late.lock().unwrap_or_else(PoisonError::into_inner).insert((name, key));
                    return;
                }
            }
        })
    })
}

/// A taint that keeps no worker away.
fn mild(key: &str) -> Taint {
    Taint { key: key.to_owned(), effect: "PreferNoSchedule".into(), ..Taint::default() }
}

fn taints(node: &Node) -> Vec<Taint> {
    node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default()
}

/// Adds a taint at the front, and removes it again, until it is stopped. Says which taints it left, and after how many
/// writes.
async fn meddle(client: Client, name: &str, stop: watch::Receiver<bool>) -> Result<(Vec<String>, usize)> {
    let nodes: Api<Node> = Api::all(client);
    let mut left = Vec::new();
    for turn in 0.. {
        let key = format!("meddler.example.com/{}", turn % 7);
        if *stop.borrow() {
            return Ok((left, turn));
        }
        // As others do it: the whole object, guarded by its version.
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

/// Hopeless nodes were here first, more of them than there are slots: those that come later and are healthy are let in
/// all the same, while the hopeless go on failing.
pub async fn f15_hopeless_nodes_do_not_starve_the_healthy(world: impl World) -> Result<()> {
    let (hopeless, healthy, cap) = (world.about(150), world.about(100), world.about(100));
    let observer = PodObserver::start(&world);
    gate(&world, "default", json!({})).await?;
    let bad: Vec<String> = (0..hopeless).map(|n| format!("bad-{n}")).collect();
    for name in &bad {
        world.behaviours().set(name, WorkerBehaviour::TimesOut);
    }
    join_all(&world, &bad).await?;
    let _controller =
        controller_with(&world, "a", FaultProxy::default(), |settings| settings.most_workers = cap);
    until(&world, "the hopeless take every slot", async || Ok((observer.seen()?.most >= cap).then_some(())))
        .await?;
    let good: Vec<String> = (0..healthy).map(|n| format!("good-{n}")).collect();
    join_all(&world, &good).await?;
    all_open(&world, "good-", healthy).await?;
    let held = all(&world, "bad-").await?.iter().filter(|node| is_gated(node) && !is_labelled(node)).count();
    ensure!(held == hopeless, "{held} of {hopeless} hopeless nodes are held");
    let failing = async || {
        let attempts = |node: &Node| record(node).map(|record| record.attempts).unwrap_or_default();
        Ok(all(&world, "bad-").await?.iter().any(|node| attempts(node) > 1).then_some(()))
    };
    until(&world, "the hopeless go on failing", failing).await?;
    let seen = observer.assert_one_worker_per_node()?;
    ensure!(seen.most <= cap, "{} workers at once, {cap} are allowed", seen.most);
    Ok(())
}

/// A thousand nodes at once: never more workers than are allowed, and in the end all are open.
pub async fn f15_a_thousand_nodes_at_once_stay_within_the_cap(world: impl World) -> Result<()> {
    let (count, cap) = (1000, 100);
    let observer = PodObserver::start(&world);
    gate(&world, "default", json!({})).await?;
    let names: Vec<String> = (0..count).map(|n| format!("many-{n}")).collect();
    join_all(&world, &names).await?;
    let _controller =
        controller_with(&world, "a", FaultProxy::default(), |settings| settings.most_workers = cap);
    all_open(&world, "many-", count).await?;
    no_workers_left(&world).await?;
    until(&world, "the observer has seen all", async || {
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
        // A list of them all is no small thing to ask for.
        sleep(Duration::from_secs(1)).await;
        Ok((open == count).then_some(()))
    };
    until(world, &format!("all {count} nodes {prefix}… are open"), look).await.context("a crowd")
}
