//! Records all workers from a watch without gaps, so that a test can make statements about every moment.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::api::{WatchEvent, WatchParams};
use kube::{Api, Client, ResourceExt as _};
use nodekeeper_core::worker::{NODE_UID, SELECTOR};
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::steps::is_live;
use super::world::{NAMESPACE, World};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodChange {
    Created,
    /// The deletion timestamp is set, or the pod is gone.
    Deleted,
}

#[derive(Clone, Debug, Default)]
pub struct PodHistory {
    /// Names of workers, and the uids of the pods with that name.
    pub made: BTreeMap<String, BTreeSet<String>>,
    /// Names of workers, in the order of creation and deletion.
    pub order: Vec<(PodChange, String)>,
    /// The maximum number of workers that ran at once, of all nodes and of one.
    pub most: usize,
    pub most_of_one: usize,
    /// Names and exit codes of init containers that ended.
    pub ended_init: BTreeSet<(String, i32)>,
    /// The running workers, with the uid of their node.
    live: BTreeMap<String, String>,
}

impl PodHistory {
    fn record(&mut self, event: &WatchEvent<Pod>) {
        let (WatchEvent::Added(pod) | WatchEvent::Modified(pod) | WatchEvent::Deleted(pod)) = event else {
            return;
        };
        let uid = pod.uid().unwrap_or_default();
        let gone = matches!(event, WatchEvent::Deleted(_)) || pod.metadata.deletion_timestamp.is_some();
        let step = (if gone { PodChange::Deleted } else { PodChange::Created }, pod.name_any());
        if !self.order.contains(&step) {
            self.order.push(step);
        }
        self.made.entry(pod.name_any()).or_default().insert(uid.clone());
        let init = pod.status.iter().flat_map(|status| status.init_container_statuses.iter().flatten());
        let end = |one: &ContainerStatus| one.state.as_ref()?.terminated.as_ref().map(|end| end.exit_code);
        self.ended_init.extend(init.filter_map(|one| Some((one.name.clone(), end(one)?))));
        if is_live(pod) && !matches!(event, WatchEvent::Deleted(_)) {
            let node = pod.labels().get(NODE_UID).cloned().unwrap_or_default();
            self.live.insert(uid, node.clone());
            self.most = self.most.max(self.live.len());
            self.most_of_one = self.most_of_one.max(self.live.values().filter(|one| **one == node).count());
        } else {
            self.live.remove(&uid);
        }
    }

    /// Whether the first change of one worker happened before that of the other. For scenarios with one node.
    pub fn in_order(&self, (step, number): (PodChange, u32), (then, other): (PodChange, u32)) -> bool {
        let at = |step: PodChange, number: u32| {
            let end = format!("-{number}");
            self.order.iter().position(|(one, name)| *one == step && name.ends_with(&end))
        };
        at(step, number).zip(at(then, other)).is_some_and(|(first, second)| first < second)
    }

    /// The number of workers of a node.
    pub fn of(&self, node_uid: &str) -> usize {
        let names = self.made.iter().filter(|(name, _)| name.contains(node_uid));
        names.map(|(_, uids)| uids.len()).sum()
    }
}

/// Stops watching when dropped.
pub struct PodObserver {
    seen: Arc<Mutex<(PodHistory, Option<String>)>>,
    task: JoinHandle<()>,
}

impl Drop for PodObserver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl PodObserver {
    /// Start it before the first worker is created.
    pub fn start(world: &impl World) -> Self {
        let seen = Arc::<Mutex<(PodHistory, Option<String>)>>::default();
        let task = tokio::spawn(watch_pods(world.client(), seen.clone()));
        Self { seen, task }
    }

    /// Fails if the watch had a gap.
    pub fn seen(&self) -> Result<PodHistory> {
        let (seen, lost) = self.seen.lock().clone();
        ensure!(lost.is_none(), "the watch on workers has a gap: {lost:?}");
        Ok(seen)
    }

    /// Asserts that no node had two workers at once, and that no name was used twice.
    pub fn assert_one_worker_per_node(&self) -> Result<PodHistory> {
        let seen = self.seen()?;
        let twice: Vec<_> = seen.made.iter().filter(|(_, uids)| uids.len() > 1).collect();
        ensure!(seen.most_of_one <= 1, "{} workers of one node at once", seen.most_of_one);
        ensure!(twice.is_empty(), "made twice: {twice:?}");
        Ok(seen)
    }
}

async fn watch_pods(client: Client, seen: Arc<Mutex<(PodHistory, Option<String>)>>) {
    let pods: Api<Pod> = Api::namespaced(client, NAMESPACE);
    let mut version = String::new();
    loop {
        let params = WatchParams { timeout: Some(200), ..WatchParams::default().labels(SELECTOR) };
        // "0" starts from the oldest version that the server still has.
        let from = if version.is_empty() { "0" } else { &version };
        if let Ok(events) = pods.watch(&params, from).await {
            let mut events = events.boxed();
            while let Some(Ok(event)) = events.next().await {
                match &event {
                    WatchEvent::Bookmark(mark) => version.clone_from(&mark.metadata.resource_version),
                    WatchEvent::Error(status) => {
                        let mut seen = seen.lock();
                        seen.1 = Some(status.message.clone());
                        return;
                    }
                    WatchEvent::Added(pod) | WatchEvent::Modified(pod) | WatchEvent::Deleted(pod) => {
                        version = pod.resource_version().unwrap_or_default();
                        seen.lock().0.record(&event);
                    }
                }
            }
        }
        sleep(Duration::from_millis(10)).await;
    }
}
