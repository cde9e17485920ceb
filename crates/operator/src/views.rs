//! What we know of the cluster: ordered maps of small views, filled by the watches and by the answers to our writes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use nodekeeper_core::gate::GateView;
use nodekeeper_core::node::NodeView;
use nodekeeper_core::worker::{self, WorkerView};

use crate::watch::Event;

/// Something that is kept.
pub trait View: Clone {
    /// Under which key.
    fn key(&self) -> &str;
    /// As of which version.
    fn version(&self) -> &str;
    /// It is seen for the first time.
    fn born(&mut self, _now: Duration) {}
    /// It was seen before.
    fn age_with(&mut self, _known: &Self, _now: Duration) {}
}

impl View for NodeView {
    fn key(&self) -> &str {
        &self.name
    }

    fn version(&self) -> &str {
        &self.resource_version
    }

    fn born(&mut self, now: Duration) {
        self.record_seen = now;
    }

    fn age_with(&mut self, known: &Self, now: Duration) {
        self.record_seen = if self.record == known.record { known.record_seen } else { now };
    }
}

impl View for WorkerView {
    fn key(&self) -> &str {
        &self.name
    }

    fn version(&self) -> &str {
        &self.resource_version
    }

    fn born(&mut self, now: Duration) {
        self.first_seen = now;
    }

    fn age_with(&mut self, known: &Self, now: Duration) {
        self.first_seen = if self.uid == known.uid { known.first_seen } else { now };
    }
}

impl View for GateView {
    fn key(&self) -> &str {
        &self.name
    }

    fn version(&self) -> &'static str {
        // Nobody writes gates but people: there are no answers to put in order.
        ""
    }
}

/// Versions are numbers on every server that we claim. One that is not is never newer than another.
fn number(version: &str) -> u64 {
    version.parse().unwrap_or(0)
}

/// One collection.
#[derive(Debug)]
pub struct Store<V> {
    views: BTreeMap<String, V>,
    /// How far the watch has come.
    seen: u64,
    synced: bool,
}

impl<V: View> Store<V> {
    fn new() -> Self {
        Self { views: BTreeMap::new(), seen: 0, synced: false }
    }

    /// Takes in what the watch says, and returns what was touched: as it was, or as it is.
    pub fn take(&mut self, event: Event<V>, now: Duration) -> Vec<V> {
        match event {
            Event::All(all, version) => self.take_all(all, &version, now),
            Event::Is(view) => {
                self.seen = self.seen.max(number(view.version()));
                if self.is_ahead_of(view.key(), view.version()) {
                    return Vec::new();
                }
                vec![self.put(view, now)]
            }
            Event::Gone(key, version) => {
                self.seen = self.seen.max(number(&version));
                // A namesake may have been made since, and we may have read it.
                if self.is_ahead_of(&key, &version) {
                    return Vec::new();
                }
                self.views.remove(&key).into_iter().collect()
            }
            Event::UpTo(version) => {
                self.seen = self.seen.max(number(&version));
                Vec::new()
            }
        }
    }

    fn take_all(&mut self, all: Vec<V>, version: &str, now: Duration) -> Vec<V> {
        let mut before = std::mem::take(&mut self.views);
        // Versions that go back mean that the cluster was restored from a backup: nothing we knew holds.
        let restored = number(version) < self.seen;
        self.seen = number(version);
        self.synced = true;
        for mut view in all {
            if let Some(known) = before.get(view.key()) {
                view.age_with(known, now);
            } else {
                view.born(now);
            }
            self.views.insert(view.key().to_owned(), view);
        }
        // An answer to a write of ours may be ahead of the list.
        before.retain(|key, view| {
            let ahead = !restored && number(view.version()) > self.seen;
            if ahead {
                self.views.insert(key.clone(), view.clone());
            }
            !ahead && !self.views.contains_key(key)
        });
        before.into_values().chain(self.views.values().cloned()).collect()
    }

    fn put(&mut self, mut view: V, now: Duration) -> V {
        match self.views.get(view.key()) {
            Some(known) => view.age_with(known, now),
            None => view.born(now),
        }
        self.views.insert(view.key().to_owned(), view.clone());
        view
    }

    /// Whether an answer of the server brought us further than the watch is.
    fn is_ahead_of(&self, key: &str, version: &str) -> bool {
        self.views.get(key).is_some_and(|known| number(known.version()) > number(version))
    }

    /// Takes in an answer of the server. Where the watch is further already, it has seen this and what came of it.
    pub fn learn(&mut self, view: V, now: Duration) {
        let known = self.views.get(view.key()).map_or(0, |known| number(known.version()));
        if number(view.version()) > self.seen.max(known) {
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

    /// All views, by key.
    pub fn all(&self) -> impl Iterator<Item = &V> {
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
    /// Names of workers that the watch does not show: somebody took the label by which it selects.
    pub unwatched: BTreeSet<String>,
}

impl Views {
    /// Nothing is known yet.
    pub fn new() -> Self {
        Self { nodes: Store::new(), workers: Store::new(), gates: Store::new(), unwatched: BTreeSet::new() }
    }

    /// Whether everything was listed: before, what is missing means nothing.
    pub fn synced(&self) -> bool {
        self.nodes.synced && self.workers.synced && self.gates.synced
    }

    /// What was not listed yet.
    pub fn missing(&self) -> Vec<&'static str> {
        let all =
            [("nodes", self.nodes.synced), ("workers", self.workers.synced), ("gates", self.gates.synced)];
        all.into_iter().filter(|(_, synced)| !synced).map(|(name, _)| name).collect()
    }

    /// The workers made for a node.
    pub fn workers_of(&self, node_uid: &str) -> Vec<WorkerView> {
        let prefix = worker::name_prefix(node_uid);
        let from = self.workers.views.range(prefix.clone()..);
        from.take_while(|(name, _)| name.starts_with(&prefix)).map(|(_, view)| view.clone()).collect()
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
    use super::*;

    const NOW: Duration = Duration::ZERO;

    fn node(version: u64, uid: &str) -> NodeView {
        NodeView {
            name: "n".into(),
            uid: uid.into(),
            resource_version: version.to_string(),
            ..NodeView::default()
        }
    }

    fn known(store: &Store<NodeView>) -> Option<(&str, &str)> {
        store.get("n").map(|node| (node.uid.as_str(), node.version()))
    }

    #[test]
    fn a_watch_that_is_behind_takes_nothing_back() {
        let mut store = Store::new();
        store.take(Event::All(vec![node(5, "a")], "6".into()), NOW);
        store.learn(node(9, "a"), NOW);
        assert!(store.take(Event::Is(node(7, "a")), NOW).is_empty());
        assert_eq!(known(&store), Some(("a", "9")));
        store.take(Event::Is(node(11, "a")), NOW);
        assert_eq!(known(&store), Some(("a", "11")));
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
        assert_eq!(known(&store), Some(("b", "9")));
    }

    #[test]
    fn a_list_that_is_behind_takes_nothing_back() {
        let mut store = Store::new();
        store.take(Event::All(vec![node(5, "a")], "6".into()), NOW);
        store.learn(node(9, "a"), NOW);
        store.take(Event::All(vec![node(5, "a")], "7".into()), NOW);
        assert_eq!(known(&store), Some(("a", "9")));
        let touched = store.take(Event::All(vec![], "12".into()), NOW);
        assert_eq!((known(&store), touched.len()), (None, 1), "and what is gone is told");
    }

    #[test]
    fn a_cluster_that_was_restored_is_believed() {
        let mut store = Store::new();
        store.take(Event::All(vec![node(500, "a")], "600".into()), NOW);
        store.learn(node(900, "a"), NOW);
        store.take(Event::All(vec![node(5, "b")], "7".into()), NOW);
        assert_eq!(known(&store), Some(("b", "5")));
        store.learn(node(8, "b"), NOW);
        assert_eq!(known(&store), Some(("b", "8")));
    }
}
