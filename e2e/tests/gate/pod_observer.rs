//! An observer on all workers: what it saw holds for every moment, because it reads the watch and misses nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, ensure};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{WatchEvent, WatchParams};
use kube::{Api, Client, ResourceExt as _};
use nodekeeper_core::worker::{NODE_UID, SELECTOR};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::steps::is_live;
use crate::world::{NAMESPACE, World};

/// What happens to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodChange {
    Created,
    /// It is deleted, if not gone yet.
    Deleted,
}

/// What was seen.
#[derive(Clone, Debug, Default)]
pub struct PodHistory {
    /// Names of workers, and the uids of the pods that bore them.
    pub made: BTreeMap<String, BTreeSet<String>>,
    /// Names of workers, as they were made and as they were deleted.
    pub order: Vec<(PodChange, String)>,
    /// Workers that had neither ended nor been deleted, at most, of all nodes and of one.
    pub most: usize,
    pub most_of_one: usize,
    /// Those of now, with the uid of their node.
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
        if is_live(pod) && !matches!(event, WatchEvent::Deleted(_)) {
            let node = pod.labels().get(NODE_UID).cloned().unwrap_or_default();
            self.live.insert(uid, node.clone());
            self.most = self.most.max(self.live.len());
            self.most_of_one = self.most_of_one.max(self.live.values().filter(|one| **one == node).count());
        } else {
            self.live.remove(&uid);
        }
    }

    /// Whether this happened to the worker of this number, and then that to the other. For scenarios with one node.
    pub fn in_order(&self, (step, number): (PodChange, u32), (then, other): (PodChange, u32)) -> bool {
        let at = |step: PodChange, number: u32| {
            let end = format!("-{number}");
            self.order.iter().position(|(one, name)| *one == step && name.ends_with(&end))
        };
        at(step, number).zip(at(then, other)).is_some_and(|(first, second)| first < second)
    }

    /// How many workers a node had.
    pub fn of(&self, node_uid: &str) -> usize {
        let names = self.made.iter().filter(|(name, _)| name.contains(node_uid));
        names.map(|(_, uids)| uids.len()).sum()
    }
}

/// An open observer. Dropping it closes it.
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
    /// To be opened before there is a worker.
    pub fn start(world: &impl World) -> Self {
        let seen = Arc::<Mutex<(PodHistory, Option<String>)>>::default();
        let task = tokio::spawn(watch_pods(world.client(), seen.clone()));
        Self { seen, task }
    }

    /// What was seen so far; an error where something may have been missed.
    pub fn seen(&self) -> Result<PodHistory> {
        let (seen, lost) = self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        ensure!(lost.is_none(), "the watch on workers has a gap: {lost:?}");
        Ok(seen)
    }

    /// No two workers of a node at once, and no name used twice.
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
        // From the first version on that is still known where it has not begun yet.
        let from = if version.is_empty() { "0" } else { &version };
        if let Ok(events) = pods.watch(&params, from).await {
            let mut events = events.boxed();
            while let Some(Ok(event)) = events.next().await {
                match &event {
                    WatchEvent::Bookmark(mark) => version.clone_from(&mark.metadata.resource_version),
                    WatchEvent::Error(status) => {
                        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                        seen.1 = Some(status.message.clone());
                        return;
                    }
                    WatchEvent::Added(pod) | WatchEvent::Modified(pod) | WatchEvent::Deleted(pod) => {
                        version = pod.resource_version().unwrap_or_default();
                        seen.lock().unwrap_or_else(PoisonError::into_inner).0.record(&event);
                    }
                }
            }
        }
        sleep(Duration::from_millis(10)).await;
    }
}
