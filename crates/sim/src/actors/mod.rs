//! Who works in the cluster besides the API server: each small, each separate, each through the API's own rules.

pub mod autoscaler;
pub mod cloud;
mod disruption;
mod garbage;
pub mod karpenter;
pub mod kubelet;
mod lifecycle;
mod namespaces;
pub mod placement;
mod scheduler;

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::cluster::{Cluster, Local};
use crate::object::{text, uid};

/// How fast the controllers are. The defaults are those of a real controller manager.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// How often nodes are looked at.
    pub node_monitor_period: Duration,
    /// How long a kubelet may be silent before its node is Unknown.
    pub node_monitor_grace: Duration,
    /// How long a node may take to report for the first time.
    pub node_startup_grace: Duration,
    /// How often pods without a node are looked for.
    pub pod_gc_period: Duration,
    /// How long a node must be gone before its pods are.
    pub pod_gc_quarantine: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            node_monitor_period: Duration::from_secs(5),
            node_monitor_grace: Duration::from_secs(50),
            node_startup_grace: Duration::from_mins(1),
            pod_gc_period: Duration::from_secs(20),
            pod_gc_quarantine: Duration::from_secs(40),
        }
    }
}

/// The controllers at work, until this is dropped.
#[must_use = "the controllers stop when this is dropped"]
pub struct Actors(JoinSet<()>);

impl Actors {
    /// How many are at work; fewer than started means that one of them died.
    #[must_use]
    pub fn is_running(&mut self) -> usize {
        while self.0.try_join_next().is_some() {}
        self.0.len()
    }
}

/// Starts scheduler, node lifecycle, garbage collector, namespace and disruption controller.
pub fn start(cluster: &Cluster, timing: Timing) -> Actors {
    let mut actors = JoinSet::new();
    actors.spawn(scheduler::run(cluster.local("kube-scheduler")));
    actors.spawn(lifecycle::run(cluster.local("node-controller"), timing));
    actors.spawn(lifecycle::evict(cluster.local("taint-eviction-controller")));
    actors.spawn(lifecycle::collect_pods(cluster.local("pod-garbage-collector"), timing));
    actors.spawn(garbage::run(cluster.local("generic-garbage-collector")));
    actors.spawn(namespaces::run(cluster.local("namespace-controller")));
    actors.spawn(disruption::run(cluster.local("disruption-controller")));
    actors.spawn(expire_events(cluster.local("kube-apiserver")));
    Actors(actors)
}

/// Events are gone an hour after they were last written, on a real server by a lease of etcd's.
async fn expire_events(api: Local) {
    let mut written: BTreeMap<String, (String, Instant)> = BTreeMap::new();
    loop {
        sleep(Duration::from_mins(1)).await;
        let events = api.all("events");
        written.retain(|id, _| events.iter().any(|e| uid(e) == id));
        for event in events {
            let version = text(&event, "metadata.resourceVersion").to_owned();
            let seen =
                written.entry(uid(&event).to_owned()).or_insert_with(|| (version.clone(), Instant::now()));
            if seen.0 != version {
                *seen = (version, Instant::now());
            } else if seen.1.elapsed() > Duration::from_hours(1) {
                let _ = api.delete(&event, None);
            }
        }
    }
}

/// The time between seeing something and acting on it.
const REACTION_TIME: Duration = Duration::from_millis(5);
