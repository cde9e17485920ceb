//! The components of the cluster besides the API server: scheduler, controllers, kubelets and a cloud.

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

/// Periods of the controllers. The defaults are those of kube-controller-manager.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    pub node_monitor_period: Duration,
    /// A node whose kubelet does not report for this time becomes Unknown.
    pub node_monitor_grace: Duration,
    /// The grace period of a node that has not reported yet.
    pub node_startup_grace: Duration,
    pub pod_gc_period: Duration,
    /// Pods are deleted once their node has been gone for this time.
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

/// Runs the controllers until it is dropped.
#[must_use = "the controllers stop when this is dropped"]
pub struct Actors(JoinSet<()>);

impl Actors {
    /// The number of controllers that run; fewer than at the start means that one has panicked.
    #[must_use]
    pub fn running(&mut self) -> usize {
        while self.0.try_join_next().is_some() {}
        self.0.len()
    }
}

/// Starts the scheduler and the controllers.
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

/// Deletes Events an hour after their last write. A real server does that with an etcd lease.
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

/// The delay between an event and the reaction of a controller.
const REACTION_TIME: Duration = Duration::from_millis(5);
