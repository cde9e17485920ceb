//! What we know of the cluster: ordered maps of small views, filled by the watches and by the answers to our writes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use nodekeeper_core::gate::{DaemonPod, GateView};
use nodekeeper_core::node::NodeView;
use nodekeeper_core::remediate::{Policy, Remediation};
use nodekeeper_core::worker::{self, WorkerView};

use crate::watch::Event;

/// Something that is kept.
pub trait View: Clone {
    /// Under which key.
    fn key(&self) -> Arc<str>;
    /// As of which version.
    fn version(&self) -> u64;
    /// The node or gate that has to be looked at when it changes.
    fn touches(&self) -> Arc<str>;
    /// It is seen for the first time.
    fn born(&mut self, _now: Duration) {}
    /// It was seen before.
    fn age_with(&mut self, _known: &Self, _now: Duration) {}
}

impl View for NodeView {
    fn key(&self) -> Arc<str> {
        self.name.clone()
    }

    fn touches(&self) -> Arc<str> {
        self.name.clone()
    }

    fn version(&self) -> u64 {
        self.resource_version
    }

    fn born(&mut self, now: Duration) {
        (self.record_seen_at, self.failing_since) = (now, now);
    }

    fn age_with(&mut self, known: &Self, now: Duration) {
        let is_the_same = self.record == known.record && self.record_text == known.record_text;
        self.record_seen_at = if is_the_same { known.record_seen_at } else { now };
        let goes_on = || self.failing_scope().is_some_and(|round| known.failing_scope() == Some(round));
        self.failing_since = if is_the_same || goes_on() { known.failing_since } else { now };
    }
}

impl View for WorkerView {
    fn key(&self) -> Arc<str> {
        self.name.as_str().into()
    }

    fn touches(&self) -> Arc<str> {
        self.node_name.as_str().into()
    }

    fn version(&self) -> u64 {
        number(&self.resource_version)
    }

    fn born(&mut self, now: Duration) {
        self.first_seen = now;
    }

    fn age_with(&mut self, known: &Self, now: Duration) {
        self.first_seen = if self.uid == known.uid { known.first_seen } else { now };
    }
}

impl View for GateView {
    fn key(&self) -> Arc<str> {
        self.name.as_str().into()
    }

    fn touches(&self) -> Arc<str> {
        self.name.as_str().into()
    }

    fn version(&self) -> u64 {
        // What we write of them is not read back: there are no answers to put in order.
        0
    }
}

impl View for Remediation {
    fn key(&self) -> Arc<str> {
        self.name.as_str().into()
    }

    fn touches(&self) -> Arc<str> {
        self.name.as_str().into()
    }

    fn version(&self) -> u64 {
        number(&self.resource_version)
    }
}

impl View for Policy {
    fn key(&self) -> Arc<str> {
        Self::NAME.into()
    }

    fn touches(&self) -> Arc<str> {
        Self::NAME.into()
    }

    fn version(&self) -> u64 {
        number(&self.resource_version)
    }
}

/// A DaemonSet's pod.
#[derive(Clone, Debug)]
pub struct DaemonView {
    name: String,
    version: String,
    pod: DaemonPod,
}

impl DaemonView {
    /// Keeps what is needed of a pod; none if it is not a DaemonSet's.
    pub fn new(pod: &Pod) -> Option<Self> {
        let metadata = &pod.metadata;
        let version = metadata.resource_version.clone().unwrap_or_default();
        Some(Self { name: metadata.name.clone()?, version, pod: DaemonPod::new(pod)? })
    }
}

impl View for DaemonView {
    fn key(&self) -> Arc<str> {
        self.name.as_str().into()
    }

    fn touches(&self) -> Arc<str> {
        self.name.as_str().into()
    }

    fn version(&self) -> u64 {
        number(&self.version)
    }
}

/// How long a node's pods are watched where others wait for it.
const TURN: Duration = Duration::from_mins(1);

/// Versions are numbers on every server that we claim. One that is not is never newer than another.
fn number(version: &str) -> u64 {
    version.parse().unwrap_or(0)
}

/// One collection.
#[derive(Debug)]
pub struct Store<V> {
    views: BTreeMap<Arc<str>, V>,
    /// How far the watch has come.
    seen: u64,
    synced: bool,
}

impl<V: View> Store<V> {
    fn new() -> Self {
        Self { views: BTreeMap::new(), seen: 0, synced: false }
    }

    /// Takes in what the watch says, and returns whom it touches.
    pub fn take(&mut self, event: Event<V>, now: Duration) -> Vec<Arc<str>> {
        match event {
            Event::All(all, version) => self.take_all(all, &version, now),
            Event::Is(view) => {
                self.seen = self.seen.max(view.version());
                if self.is_ahead_of(&view.key(), view.version()) {
                    return Vec::new();
                }
                vec![self.put(view, now)]
            }
            Event::Gone(key, version) => {
                self.seen = self.seen.max(number(&version));
                // A namesake may have been made since, and we may have read it.
                if self.is_ahead_of(&key, number(&version)) {
                    return Vec::new();
                }
                self.views.remove(&*key).iter().map(View::touches).collect()
            }
            Event::UpTo(version) => {
                self.seen = self.seen.max(number(&version));
                Vec::new()
            }
        }
    }

    fn take_all(&mut self, all: Vec<V>, version: &str, now: Duration) -> Vec<Arc<str>> {
        let before = std::mem::take(&mut self.views);
        // Versions that go back mean that the cluster was restored from a backup: nothing we knew holds.
        let restored = number(version) < self.seen;
        self.seen = number(version);
        self.synced = true;
        let aged = all.into_iter().map(|mut view| {
            match before.get(&view.key()) {
                Some(known) => view.age_with(known, now),
                None => view.born(now),
            }
            (view.key(), view)
        });
        // At once and not one by one: that packs them twice as densely.
        self.views = aged.collect();
        let mut touched = Vec::new();
        for (key, view) in before {
            // An answer to a write of ours may be ahead of the list.
            if !restored && view.version() > self.seen {
                self.views.insert(key, view);
            } else if !self.views.contains_key(&key) {
                touched.push(view.touches());
            }
        }
        touched.extend(self.views.values().map(View::touches));
        touched
    }

    fn put(&mut self, mut view: V, now: Duration) -> Arc<str> {
        let (key, touches) = (view.key(), view.touches());
        match self.views.get(&key) {
            Some(known) => view.age_with(known, now),
            None => view.born(now),
        }
        self.views.insert(key, view);
        touches
    }

    /// Whether all of it was listed.
    pub fn is_synced(&self) -> bool {
        self.synced
    }

    /// All of it is about to be listed anew, with more of each.
    pub fn unsync(&mut self) {
        self.synced = false;
    }

    /// Whether an answer of the server brought us further than the watch is.
    fn is_ahead_of(&self, key: &str, version: u64) -> bool {
        self.views.get(key).is_some_and(|known| known.version() > version)
    }

    /// Takes in an answer of the server. Where the watch is further already, it has seen this and what came of it.
    pub fn learn(&mut self, view: V, now: Duration) {
        let known = self.views.get(&view.key()).map_or(0, View::version);
        if view.version() > self.seen.max(known) {
            self.put(view, now);
        }
    }

    /// Takes in what the server answered about something that the watch does not show.
    pub fn insist(&mut self, view: V, now: Duration) {
        self.put(view, now);
    }

    /// It is gone, and the watch will not say so.
    pub fn forget(&mut self, key: &str) {
        self.views.remove(key);
    }

    /// The view under this key.
    pub fn get(&self, key: &str) -> Option<&V> {
        self.views.get(key)
    }

    /// Changes the view under this key, if there is one.
    pub fn update(&mut self, key: &str, change: impl FnOnce(&mut V)) {
        if let Some(view) = self.views.get_mut(key) {
            change(view);
        }
    }

    /// All views, by key.
    pub fn all(&self) -> impl Iterator<Item = &V> + Clone {
        self.views.values()
    }
}

/// All collections.
#[derive(Debug)]
pub struct Views {
    /// By name.
    pub nodes: Store<NodeView>,
    /// By the name of their pod, which begins with the node's uid.
    pub workers: Store<WorkerView>,
    /// By name.
    pub gates: Store<GateView>,
    /// Workers that only compare, by the name of their pod.
    pub controls: Store<WorkerView>,
    /// By name, which is the uid of their node.
    pub requests: Store<Remediation>,
    /// None or one.
    pub policy: Store<Policy>,
    /// The labels that are kept of nodes.
    pub labels: BTreeSet<Arc<str>>,
    /// Names of workers that the watch does not show: somebody took the label by which it selects.
    pub unwatched: BTreeSet<String>,
    /// Pods of DaemonSets by node, of those nodes that wait for them; and since when they do.
    daemons: BTreeMap<String, (Duration, Store<DaemonView>)>,
    /// Nodes whose pods were watched for nothing any more.
    unwanted: BTreeSet<String>,
}

impl Views {
    /// Nothing is known yet.
    pub fn new() -> Self {
        Self {
            nodes: Store::new(),
            workers: Store::new(),
            gates: Store::new(),
            controls: Store::new(),
            requests: Store::new(),
            policy: Store::new(),
            labels: BTreeSet::new(),
            unwatched: BTreeSet::new(),
            daemons: BTreeMap::new(),
            unwanted: BTreeSet::new(),
        }
    }

    fn lists(&self) -> [(&'static str, bool); 6] {
        [
            ("nodes", self.nodes.synced),
            ("workers", self.workers.synced),
            ("gates", self.gates.synced),
            ("controls", self.controls.synced),
            ("remediations", self.requests.synced),
            ("policy", self.policy.synced),
        ]
    }

    /// Whether everything was listed: before, what is missing means nothing.
    pub fn synced(&self) -> bool {
        self.lists().into_iter().all(|(_, synced)| synced)
    }

    /// What was not listed yet.
    pub fn missing(&self) -> Vec<&'static str> {
        self.lists().into_iter().filter(|(_, synced)| !synced).map(|(name, _)| name).collect()
    }

    /// The policy, if there is one.
    pub fn the_policy(&self) -> Option<&Policy> {
        self.policy.get(Policy::NAME)
    }

    /// Takes in what the server answered about a node.
    pub fn learn_node(&mut self, node: &Node, now: Duration) {
        let view = NodeView::new(node).with_labels(&self.labels);
        self.nodes.learn(view, now);
    }

    /// The workers made for a node.
    pub fn workers_of(&self, node_uid: &str) -> Vec<WorkerView> {
        let prefix = worker::name_prefix(node_uid);
        let from = self.workers.views.range::<str, _>((Bound::Included(prefix.as_str()), Bound::Unbounded));
        from.take_while(|(name, _)| name.starts_with(&prefix)).map(|(_, view)| view.clone()).collect()
    }

    /// A node's pods have to be watched from now on, or no longer.
    pub fn want_pods(&mut self, node: &str, wanted: bool, now: Duration) {
        if wanted {
            self.daemons.entry(node.to_owned()).or_insert_with(|| (now, Store::new()));
        } else if self.daemons.remove(node).is_some() {
            self.unwanted.insert(node.to_owned());
        }
    }

    /// The nodes whose pods have to be watched, so many at most: those that wait longest. Where more wait, whoever had
    /// a minute lets others look. Also those whose watch is for nothing.
    pub fn wanting_pods(&mut self, most: usize, now: Duration) -> (BTreeSet<String>, BTreeSet<String>) {
        if self.daemons.len() > most {
            for (node, (since, store)) in &mut self.daemons {
                if store.synced && now.saturating_sub(*since) > TURN {
                    (*since, *store) = (now, Store::new());
                    self.unwanted.insert(node.clone());
                }
            }
        }
        let mut waiting: Vec<(Duration, &String)> =
            self.daemons.iter().map(|(node, (since, _))| (*since, node)).collect();
        waiting.sort();
        let wanted = waiting.into_iter().take(most).map(|(_, node)| node.clone()).collect();
        (wanted, std::mem::take(&mut self.unwanted))
    }

    /// Takes in what the watch of a node's pods says.
    pub fn take_daemon(&mut self, node: &str, event: Event<DaemonView>, now: Duration) {
        if let Some((_, store)) = self.daemons.get_mut(node) {
            store.take(event, now);
        }
    }

    /// The DaemonSets' pods on a node; none as long as they are not known.
    pub fn daemons_of(&self, node: &str) -> Option<Vec<DaemonPod>> {
        let (_, store) = self.daemons.get(node).filter(|(_, store)| store.synced)?;
        Some(store.all().map(|view| view.pod.clone()).collect())
    }

    /// A worker of ours was deleted, as the server said: it need not be asked again.
    pub fn mark_deleted(&mut self, name: &str, uid: &str) {
        if let Some(view) = self.workers.views.get_mut(name).filter(|view| view.uid == uid) {
            view.deleting = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use nodekeeper_core::record::Record;
    use nodekeeper_core::report::Verdict;

    use super::*;

    const NOW: Duration = Duration::ZERO;

    fn node(version: u64, uid: &str) -> NodeView {
        NodeView { name: "n".into(), uid: uid.into(), resource_version: version, ..NodeView::default() }
    }

    fn known(store: &Store<NodeView>) -> Option<(&str, u64)> {
        store.get("n").map(|node| (&*node.uid, node.version()))
    }

    #[test]
    fn a_watch_that_is_behind_takes_nothing_back() {
        let mut store = Store::new();
        store.take(Event::All(vec![node(5, "a")], "6".into()), NOW);
        store.learn(node(9, "a"), NOW);
        assert!(store.take(Event::Is(node(7, "a")), NOW).is_empty());
        assert_eq!(known(&store), Some(("a", 9)));
        store.take(Event::Is(node(11, "a")), NOW);
        assert_eq!(known(&store), Some(("a", 11)));
    }

    #[test]
    fn a_node_that_fails_again_is_blamed_since_it_failed_first() {
        let mut store = Store::new();
        let mut version = 0;
        let mut since = |record: Record, at: u64| {
            version += 1;
            let record = Some(Record { uid: "a".into(), ..record }.into());
            store.take(Event::Is(NodeView { record, ..node(version, "a") }), Duration::from_secs(at));
            store.get("n").map(|node| (node.failing_since.as_secs(), node.record_seen_at.as_secs()))
        };
        let failed = |number| Record { number, verdict: Some(Verdict::Failed), ..Record::default() };
        assert_eq!(since(failed(1), 10), Some((10, 10)));
        assert_eq!(since(failed(2), 20), Some((10, 20)), "what others showed in between says something");
        let silent = Record { verdict: Some(Verdict::Inconclusive), ..failed(3) };
        assert_eq!((since(silent, 30), since(failed(4), 40)), (Some((30, 30)), Some((40, 40))));
        let mut rebooted = failed(5);
        rebooted.scope.boot_id = "other".into();
        assert_eq!(since(rebooted, 50), Some((50, 50)));
    }

    #[test]
    fn an_answer_that_is_behind_the_watch_is_no_news() {
        let mut store = Store::new();
        store.take(Event::All(vec![], "6".into()), NOW);
        store.take(Event::Gone("n".into(), "9".into()), NOW);
        store.learn(node(8, "a"), NOW);
        assert_eq!(known(&store), None, "it came and went before its answer did");
    }

    #[test]
    fn the_end_of_a_namesake_is_not_the_end_of_the_one_we_read() {
        let mut store = Store::new();
        store.take(Event::All(vec![node(5, "a")], "6".into()), NOW);
        store.learn(node(9, "b"), NOW);
        store.take(Event::Gone("n".into(), "7".into()), NOW);
        store.take(Event::Is(node(8, "b")), NOW);
        assert_eq!(known(&store), Some(("b", 9)));
    }

    #[test]
    fn a_list_that_is_behind_takes_nothing_back() {
        let mut store = Store::new();
        store.take(Event::All(vec![node(5, "a")], "6".into()), NOW);
        store.learn(node(9, "a"), NOW);
        store.take(Event::All(vec![node(5, "a")], "7".into()), NOW);
        assert_eq!(known(&store), Some(("a", 9)));
        let touched = store.take(Event::All(vec![], "12".into()), NOW);
        assert_eq!((known(&store), touched.len()), (None, 1), "and what is gone is told");
    }

    #[test]
    fn a_cluster_that_was_restored_is_believed() {
        let mut store = Store::new();
        store.take(Event::All(vec![node(500, "a")], "600".into()), NOW);
        store.learn(node(900, "a"), NOW);
        store.take(Event::All(vec![node(5, "b")], "7".into()), NOW);
        assert_eq!(known(&store), Some(("b", 5)));
        store.learn(node(8, "b"), NOW);
        assert_eq!(known(&store), Some(("b", 8)));
    }
}
