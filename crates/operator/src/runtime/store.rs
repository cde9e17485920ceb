//! The objects of one kind as a watch and our own writes show them: an ordered map of small projections.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use super::reconciler::Change;
use super::watcher::WatchEvent;

/// A projection of an object that a [`Store`] holds.
pub trait Cached: Clone + Send + 'static {
    fn key(&self) -> Arc<str>;
    fn resource_version(&self) -> u64;
    /// Called when the object was not in the cache before.
    fn on_insert(&mut self, _now: Duration) {}
    /// Called when the object replaces another state of itself, or another object of its name.
    fn on_update(&mut self, _before: &Self, _now: Duration) {}
}

/// Every server that we support counts resourceVersions. One that is no number is never newer than another.
#[must_use]
pub fn parse_version(version: &str) -> u64 {
    version.parse().unwrap_or(0)
}

/// The objects of one kind, and how far their watch has come.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a state of its own")]
pub struct Store<V> {
    objects: BTreeMap<Arc<str>, V>,
    listing: Listing<V>,
    /// The resourceVersion that the watch has reached, with events that were dropped.
    pub(super) position: u64,
    /// How many complete lists were received.
    pub(super) lists: u64,
    pub(super) synced: bool,
    pub(super) not_served: bool,
    /// Nothing that another leader wrote is missing.
    pub(super) current: bool,
    pub(super) relist_requested: bool,
}

/// The list that is being received.
#[derive(Debug)]
struct Listing<V> {
    /// The keys of its objects.
    keys: Vec<Arc<str>>,
    /// Its objects that are older than what is known.
    older: Vec<V>,
    /// Its objects that were not known.
    new: Vec<(Arc<str>, V)>,
}

impl<V> Default for Listing<V> {
    fn default() -> Self {
        Self { keys: Vec::new(), older: Vec::new(), new: Vec::new() }
    }
}

impl<V> Default for Store<V> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            listing: Listing::default(),
            position: 0,
            lists: 0,
            synced: false,
            not_served: false,
            current: false,
            relist_requested: false,
        }
    }
}

impl<V: Cached> Store<V> {
    /// Applies an event of the watch, and returns the changes if there is a controller to tell.
    pub fn handle_event(
        &mut self,
        kind: &'static str,
        event: WatchEvent<V>,
        now: Duration,
        wanted: bool,
    ) -> Vec<Change> {
        if self.relist_requested {
            // The stream that this event comes from is about to be replaced.
            return Vec::new();
        }
        match event {
            WatchEvent::ListStarted => {
                self.listing = Listing::default();
                Vec::new()
            }
            WatchEvent::Listed(object) => self.take_listed(kind, object, now, wanted),
            WatchEvent::ListEnded(version) => self.end_list(kind, &version, now, wanted),
            WatchEvent::NotServed => {
                self.listing = Listing::default();
                let changes = self.end_list(kind, "0", now, wanted);
                self.not_served = true;
                changes
            }
            WatchEvent::Applied(object, version) => {
                self.advance(&version);
                let known = self.objects.get(&object.key()).map(V::resource_version);
                // The response to a write of ours may have brought us here or further already.
                if known.is_some_and(|known| known >= object.resource_version().max(1)) {
                    return Vec::new();
                }
                let key = object.key();
                let before = self.put(object, now);
                let after = self.objects.get(&key).filter(|_| wanted).cloned();
                vec![Change::new(kind, key, before, after)]
            }
            WatchEvent::Deleted(key, version) => {
                self.advance(&version);
                // An object of the same name may have been created since, and we may have read it.
                if self
                    .objects
                    .get(&*key)
                    .is_some_and(|known| known.resource_version() > parse_version(&version))
                {
                    return Vec::new();
                }
                let removed = self.objects.remove_entry(&*key);
                removed.map(|(key, before)| Change::new(kind, key, Some(before), None)).into_iter().collect()
            }
            WatchEvent::Bookmark(version) => {
                self.advance(&version);
                Vec::new()
            }
        }
    }

    /// The number of objects.
    #[must_use]
    pub fn count(&self) -> usize {
        self.objects.len()
    }

    fn advance(&mut self, version: &str) {
        self.position = self.position.max(parse_version(version));
    }

    /// Takes in an object of a list. It replaces at once what was known of it, so that a list needs no second copy of
    /// everything. Objects that were not known are put in at the end.
    fn take_listed(&mut self, kind: &'static str, object: V, now: Duration, wanted: bool) -> Vec<Change> {
        let Some((key, known)) = self.objects.get_key_value(&object.key()) else {
            let key = object.key();
            self.listing.keys.push(key.clone());
            self.listing.new.push((key, object));
            return Vec::new();
        };
        let (key, version) = (key.clone(), known.resource_version());
        self.listing.keys.push(key.clone());
        match object.resource_version().cmp(&version) {
            // The response to a write of ours may be newer than the list, or the cluster was restored from a backup.
            // The end of the list tells.
            Ordering::Less => {
                self.listing.older.push(object);
                Vec::new()
            }
            // The projection may be another.
            Ordering::Equal => {
                self.put(object, now);
                Vec::new()
            }
            Ordering::Greater => self.put_changed(kind, key, object, now, wanted),
        }
    }

    fn put_changed(
        &mut self,
        kind: &'static str,
        key: Arc<str>,
        object: V,
        now: Duration,
        wanted: bool,
    ) -> Vec<Change> {
        let before = self.put(object, now);
        // All keys are reconciled after the first list.
        if !wanted || self.lists == 0 {
            return Vec::new();
        }
        let after = self.objects.get(&key).cloned();
        vec![Change::new(kind, key, before, after)]
    }

    /// The list is complete.
    fn end_list(&mut self, kind: &'static str, version: &str, now: Duration, wanted: bool) -> Vec<Change> {
        let Listing { mut keys, older, mut new } = std::mem::take(&mut self.listing);
        // A lower resourceVersion means that the cluster was restored from a backup: nothing we knew holds.
        let restored = parse_version(version) < self.position;
        self.position = parse_version(version);
        let mut changes = Vec::new();
        // The response to a write of ours may be newer than the list.
        let position = self.position;
        let is_replaced = |known: &V| restored || known.resource_version() <= position;
        keys.sort_unstable();
        let is_gone = |key: &Arc<str>, known: &V| keys.binary_search(key).is_err() && is_replaced(known);
        let all = self.objects.iter();
        let gone: Vec<Arc<str>> =
            all.filter(|(key, known)| is_gone(key, known)).map(|(key, _)| key.clone()).collect();
        for key in gone {
            let before = self.objects.remove(&key);
            if wanted {
                changes.push(Change::new(kind, key, before, None));
            }
        }
        if self.objects.is_empty() {
            // Collecting packs a map twice as densely as inserting one by one.
            for (_, object) in &mut new {
                object.on_insert(now);
            }
            self.objects = new.into_iter().collect();
            if wanted && self.lists > 0 {
                let all = self.objects.iter();
                changes.extend(
                    all.map(|(key, object)| Change::new(kind, key.clone(), None, Some(object.clone()))),
                );
            }
        } else {
            let older = older.into_iter().map(|object| (object.key(), object));
            for (key, object) in older.chain(new) {
                if self.objects.get(&key).is_none_or(is_replaced) {
                    changes.extend(self.put_changed(kind, key, object, now, wanted));
                }
            }
        }
        self.lists += 1;
        (self.synced, self.not_served) = (true, false);
        changes
    }

    fn put(&mut self, mut object: V, now: Duration) -> Option<V> {
        let key = object.key();
        match self.objects.get(&key) {
            Some(known) => object.on_update(known, now),
            None => object.on_insert(now),
        }
        self.objects.insert(key, object)
    }

    /// Whether a complete list was received.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.synced
    }

    /// Whether the API server serves the kind and lets us read it.
    #[must_use]
    pub fn is_served(&self) -> bool {
        !self.not_served
    }

    /// Whether the cache holds at least what the API server held when this replica became leader.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.synced && self.current
    }

    /// A list with other projections is about to be made.
    pub fn mark_unsynced(&mut self) {
        self.synced = false;
    }

    /// Takes in the response to a request of ours, unless the watch has seen the same or more already. Returns the
    /// object before it. The event of the watch that follows is no change any more.
    pub fn apply_response(&mut self, object: V, now: Duration) -> Option<Option<V>> {
        let known = self.objects.get(&object.key()).map_or(0, V::resource_version);
        (object.resource_version() > self.position.max(known)).then(|| self.put(object, now))
    }

    /// Takes in an object that the watch does not show, unless a newer one is known.
    pub fn force_insert(&mut self, object: V, now: Duration) {
        let known = self.objects.get(&*object.key()).map(Cached::resource_version);
        if known.is_none_or(|known| known <= object.resource_version()) {
            self.put(object, now);
        }
    }

    /// Removes an object whose deletion the watch does not show.
    pub fn remove(&mut self, key: &str) {
        self.objects.remove(key);
    }

    /// Removes an object that was not found on the API server. One of its name that the watch has shown since is kept.
    pub fn remove_until(&mut self, key: &str, resource_version: &str) {
        let position = parse_version(resource_version);
        if self.objects.get(key).is_some_and(|known| known.resource_version() <= position) {
            self.objects.remove(key);
        }
    }

    #[must_use]
    pub fn get(&self, key: &str) -> Option<&V> {
        self.objects.get(key)
    }

    /// Changes what we keep of an object besides its state in the cluster.
    pub fn update(&mut self, key: &str, change: impl FnOnce(&mut V)) {
        if let Some(object) = self.objects.get_mut(key) {
            change(object);
        }
    }

    /// All objects, in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = &V> + Clone {
        self.objects.values()
    }

    /// The objects whose keys begin with `prefix`.
    pub fn with_prefix<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a V> {
        let from = self.objects.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
        from.take_while(move |(key, _)| key.starts_with(prefix)).map(|(_, object)| object)
    }

    pub fn keys(&self) -> impl Iterator<Item = &Arc<str>> {
        self.objects.keys()
    }
}
#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;

    #[derive(Clone, Debug)]
    struct Object {
        uid: &'static str,
        version: u64,
        first_seen: Duration,
    }

    impl Cached for Object {
        fn key(&self) -> Arc<str> {
            "n".into()
        }

        fn resource_version(&self) -> u64 {
            self.version
        }

        fn on_insert(&mut self, now: Duration) {
            self.first_seen = now;
        }

        fn on_update(&mut self, before: &Self, now: Duration) {
            self.first_seen = if self.uid == before.uid { before.first_seen } else { now };
        }
    }

    fn object(version: u64, uid: &'static str) -> Object {
        Object { uid, version, first_seen: NOW }
    }

    fn list(store: &mut Store<Object>, objects: Vec<Object>, version: &str) -> usize {
        let mut events = vec![WatchEvent::ListStarted];
        events.extend(objects.into_iter().map(WatchEvent::Listed));
        events.push(WatchEvent::ListEnded(version.into()));
        events.into_iter().map(|event| store.handle_event("objects", event, NOW, true).len()).sum()
    }

    fn applied(store: &mut Store<Object>, object: Object) -> usize {
        let version = object.version.to_string();
        store.handle_event("objects", WatchEvent::Applied(object, version), NOW, true).len()
    }

    fn deleted(store: &mut Store<Object>, version: &str) -> usize {
        store.handle_event("objects", WatchEvent::Deleted("n".into(), version.into()), NOW, true).len()
    }

    fn known(store: &Store<Object>) -> Option<(&str, u64)> {
        store.get("n").map(|object| (object.uid, object.version))
    }

    #[test]
    fn an_event_older_than_our_own_write_changes_nothing() {
        let mut store = Store::default();
        list(&mut store, vec![object(5, "a")], "6");
        store.apply_response(object(9, "a"), NOW);
        assert_eq!(applied(&mut store, object(7, "a")), 0);
        assert_eq!(applied(&mut store, object(9, "a")), 0, "the echo of our write is no change");
        assert_eq!(known(&store), Some(("a", 9)));
        assert_eq!(applied(&mut store, object(11, "a")), 1);
        assert_eq!(known(&store), Some(("a", 11)));
    }

    #[test]
    fn a_response_older_than_the_watch_is_dropped() {
        let mut store = Store::default();
        list(&mut store, vec![], "6");
        deleted(&mut store, "9");
        store.apply_response(object(8, "a"), NOW);
        assert_eq!(known(&store), None, "it was created and deleted before the response arrived");
    }

    #[test]
    fn g10_an_object_that_was_read_replaces_no_newer_one() {
        let mut store = Store::default();
        list(&mut store, vec![object(5, "a")], "6");
        store.force_insert(object(8, "a"), NOW);
        assert_eq!(known(&store), Some(("a", 8)), "the watch does not show it");
        applied(&mut store, object(9, "a"));
        store.force_insert(object(8, "a"), NOW);
        assert_eq!(known(&store), Some(("a", 9)), "the watch was faster than the answer");
    }

    #[test]
    fn an_object_that_was_not_found_is_removed_but_not_its_successor() {
        let mut store = Store::default();
        list(&mut store, vec![object(5, "a")], "6");
        applied(&mut store, object(8, "b"));
        store.remove_until("n", "5");
        assert_eq!(known(&store), Some(("b", 8)), "it was created after the read");
        store.remove_until("n", "8");
        assert_eq!(known(&store), None);
    }

    #[test]
    fn the_deletion_of_an_older_object_keeps_its_successor() {
        let mut store = Store::default();
        list(&mut store, vec![object(5, "a")], "6");
        store.apply_response(object(9, "b"), NOW);
        assert_eq!(deleted(&mut store, "7"), 0);
        applied(&mut store, object(8, "b"));
        assert_eq!(known(&store), Some(("b", 9)));
    }

    #[test]
    fn a_list_older_than_our_own_write_takes_nothing_back() {
        let mut store = Store::default();
        list(&mut store, vec![object(5, "a")], "6");
        store.apply_response(object(9, "a"), NOW);
        list(&mut store, vec![object(5, "a")], "7");
        assert_eq!(known(&store), Some(("a", 9)));
        assert_eq!(list(&mut store, vec![], "12"), 1, "the deletion is a change");
        assert_eq!(known(&store), None);
    }

    #[test]
    fn a_list_reports_only_what_changed() {
        let mut store = Store::default();
        assert_eq!(list(&mut store, vec![object(5, "a")], "6"), 0, "after the first all keys are reconciled");
        assert_eq!(list(&mut store, vec![object(5, "a")], "9"), 0);
        assert_eq!(list(&mut store, vec![object(10, "a")], "11"), 1);
    }

    #[test]
    fn a_list_that_breaks_off_deletes_nothing_and_is_no_part_of_the_next() {
        let mut store = Store::default();
        list(&mut store, vec![object(5, "a")], "6");
        for event in [WatchEvent::ListStarted, WatchEvent::Listed(object(7, "a"))] {
            store.handle_event("objects", event, NOW, true);
        }
        assert_eq!(known(&store), Some(("a", 7)), "what it brought is newer than what was known");
        assert_eq!(list(&mut store, vec![], "9"), 1);
        assert_eq!(known(&store), None);
    }

    #[test]
    fn an_object_that_we_created_during_a_list_is_kept() {
        let mut store = Store::default();
        list(&mut store, vec![], "6");
        store.handle_event("objects", WatchEvent::ListStarted, NOW, true);
        store.handle_event("objects", WatchEvent::Listed(object(7, "a")), NOW, true);
        store.apply_response(object(9, "a"), NOW);
        assert_eq!(store.handle_event("objects", WatchEvent::ListEnded("8".into()), NOW, true).len(), 0);
        assert_eq!(known(&store), Some(("a", 9)));
    }

    #[test]
    fn a_restored_cluster_replaces_all_that_was_known() {
        let mut store = Store::default();
        list(&mut store, vec![object(500, "a")], "600");
        store.apply_response(object(900, "a"), NOW);
        list(&mut store, vec![object(5, "b")], "7");
        assert_eq!(known(&store), Some(("b", 5)));
        store.apply_response(object(8, "b"), NOW);
        assert_eq!(known(&store), Some(("b", 8)));
    }

    #[test]
    fn events_of_a_stream_that_is_replaced_are_dropped() {
        use crate::runtime::cache::{Cache, CacheState as _, Signal};

        let cache = Cache::new("objects", Signal::default());
        let handle = |event| cache.handle_event(event, NOW, false);
        for event in
            [WatchEvent::ListStarted, WatchEvent::Listed(object(5, "a")), WatchEvent::ListEnded("6".into())]
        {
            handle(event);
        }
        cache.request_relist();
        handle(WatchEvent::ListStarted);
        handle(WatchEvent::ListEnded("7".into()));
        assert_eq!(cache.lists(), 1);
        assert_eq!(known(&cache.lock()), Some(("a", 5)));
        assert!(cache.take_relist_request() && !cache.take_relist_request());
    }
}
