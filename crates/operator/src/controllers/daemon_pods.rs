//! The pods of DaemonSets on nodes that wait for them: watched by node, and only while a node waits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{AbortHandle, BoxStream, StreamExt as _, abortable};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use nodekeeper_core::gate::DaemonPod;
use parking_lot::Mutex;

use super::kinds;
use crate::clock::Clock;
use crate::runtime::cache::Signal;
use crate::runtime::reconciler::Change;
use crate::runtime::source::{Source, Update};
use crate::runtime::store::{Cached, Store, parse_version};
use crate::runtime::watcher::{self, Selector, WatchEvent};

/// So many nodes at most have their pods watched at once; others wait for their turn.
const MAX_WATCHES: usize = 100;
/// How long the pods of a node are watched while other nodes wait for their turn.
const TURN: Duration = Duration::from_mins(1);

#[derive(Clone, Debug)]
struct DaemonPodView {
    name: String,
    resource_version: u64,
    pod: DaemonPod,
}

impl DaemonPodView {
    fn new(pod: &Pod) -> Option<Self> {
        let metadata = &pod.metadata;
        let resource_version = parse_version(metadata.resource_version.as_deref().unwrap_or_default());
        Some(Self { name: metadata.name.clone()?, resource_version, pod: DaemonPod::new(pod)? })
    }
}

impl Cached for DaemonPodView {
    fn key(&self) -> Arc<str> {
        self.name.as_str().into()
    }

    fn resource_version(&self) -> u64 {
        self.resource_version
    }
}

#[derive(Debug, Default)]
struct Wanted {
    /// By node: since when its pods are wanted, and what is known of them.
    nodes: BTreeMap<String, (Duration, Store<DaemonPodView>)>,
    /// Nodes whose watch has to end, even if it is wanted again by now: then it starts with a new list.
    unwanted: BTreeSet<String>,
}

/// The pods of DaemonSets, by node.
#[derive(Clone, Debug)]
pub struct DaemonPods {
    wanted: Arc<Mutex<Wanted>>,
    signal: Signal,
}

impl DaemonPods {
    pub fn new(signal: Signal) -> Self {
        Self { wanted: Arc::default(), signal }
    }

    /// The pods of a node have to be watched from now on, or no longer.
    pub fn want(&self, node: &str, wanted: bool, now: Duration) {
        let mut all = self.wanted.lock();
        if wanted == all.nodes.contains_key(node) {
            return;
        }
        if wanted {
            all.nodes.insert(node.to_owned(), (now, Store::default()));
        } else {
            all.nodes.remove(node);
            all.unwanted.insert(node.to_owned());
        }
        drop(all);
        self.signal.notify();
    }

    /// The pods of DaemonSets on a node; none as long as they were not listed.
    pub fn of(&self, node: &str) -> Option<Vec<DaemonPod>> {
        let all = self.wanted.lock();
        let (_, store) = all.nodes.get(node).filter(|(_, store)| store.is_synced() && store.is_served())?;
        Some(store.iter().map(|view| view.pod.clone()).collect())
    }

    /// Whether the API server does not let us watch pods.
    pub fn is_forbidden(&self) -> bool {
        let all = self.wanted.lock();
        all.nodes.values().any(|(_, store)| store.is_synced() && !store.is_served())
    }

    /// The nodes that are watched now: those that have waited longest. And those whose watch has to end.
    fn watched(&self, now: Duration) -> (BTreeSet<String>, BTreeSet<String>) {
        let Wanted { nodes, unwanted } = &mut *self.wanted.lock();
        if nodes.len() > MAX_WATCHES {
            for (node, (since, store)) in nodes.iter_mut() {
                if store.is_synced() && now.saturating_sub(*since) > TURN {
                    (*since, *store) = (now, Store::default());
                    unwanted.insert(node.clone());
                }
            }
        }
        let mut waiting: Vec<(Duration, &String)> =
            nodes.iter().map(|(node, (since, _))| (*since, node)).collect();
        waiting.sort();
        let watched = waiting.into_iter().take(MAX_WATCHES).map(|(_, node)| node.clone()).collect();
        (watched, std::mem::take(unwanted))
    }

    fn handle_event(&self, node: &str, event: WatchEvent<DaemonPodView>, now: Duration) -> Vec<Change> {
        let is_partial = matches!(event, WatchEvent::ListStarted | WatchEvent::Listed(_));
        if let Some((_, store)) = self.wanted.lock().nodes.get_mut(node) {
            store.handle_event(kinds::DAEMON_PODS, event, now, false);
        }
        if is_partial {
            return Vec::new();
        }
        vec![Change::derived(kinds::DAEMON_PODS, node.into())]
    }

    fn clear(&self) {
        let mut all = self.wanted.lock();
        let nodes = std::mem::take(&mut all.nodes);
        all.unwanted.extend(nodes.into_keys());
    }
}

/// The watches of [`DaemonPods`].
pub struct DaemonPodSource {
    client: Client,
    pods: DaemonPods,
    clock: Clock,
    seed: u64,
    running: BTreeMap<String, AbortHandle>,
}

impl DaemonPodSource {
    pub fn new(client: Client, pods: DaemonPods, clock: Clock, seed: u64) -> Self {
        Self { client, pods, clock, seed, running: BTreeMap::new() }
    }

    fn start(&mut self, node: String) -> BoxStream<'static, Update> {
        let fields = Some(format!("spec.nodeName={node}"));
        // Optional, so that a missing right is known instead of waited for.
        let selector = Selector { fields, optional: true, ..Selector::default() };
        let api = Api::<Pod>::all(self.client.clone());
        let projection = Arc::new(DaemonPodView::new);
        let events =
            watcher::watch(api, kinds::DAEMON_PODS, selector, projection, self.clock.clone(), self.seed);
        let (pods, name) = (self.pods.clone(), node.clone());
        let (updates, handle) = abortable(events.map(move |event| {
            let (pods, name) = (pods.clone(), name.clone());
            Box::new(move |now, _wanted| pods.handle_event(&name, event, now)) as Update
        }));
        self.running.insert(node, handle);
        updates.boxed()
    }
}

impl Source for DaemonPodSource {
    fn sync(&mut self) -> Vec<BoxStream<'static, Update>> {
        let (watched, unwanted) = self.pods.watched(self.clock.elapsed());
        self.running.retain(|node, watch| {
            let keep = watched.contains(node) && !unwanted.contains(node);
            if !keep {
                watch.abort();
            }
            keep
        });
        let new: Vec<String> = watched.into_iter().filter(|node| !self.running.contains_key(node)).collect();
        new.into_iter().map(|node| self.start(node)).collect()
    }

    /// Only a leader waits for these pods.
    fn leadership_changed(&mut self) {
        self.pods.clear();
    }
}
