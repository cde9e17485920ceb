//! The storage: all objects and the log of their changes under one revision counter, as in etcd.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, OnceLock};

use crate::value::{Value, json};
use bytes::Bytes;
use jiff::Timestamp;
use tokio::sync::Notify;

use crate::object;
use crate::resource::Resource;
use crate::server;

/// A committed change.
#[derive(Debug)]
pub struct Change {
    /// Revisions have no gaps.
    pub revision: u64,
    /// Such as `pods` or `coordination.k8s.io/leases`.
    pub collection: String,
    /// `name` or `namespace/name`.
    pub key: String,
    /// None if the object was created.
    pub before: Option<Arc<Value>>,
    /// None if the object was removed.
    pub after: Option<Arc<Value>>,
    /// The user of the write.
    pub user: String,
    /// When it was committed.
    pub at: Timestamp,
    /// When its client sent it.
    pub sent: Timestamp,
    /// Whether it was under way for longer than its client waited.
    pub is_delayed: bool,
    encoded: OnceLock<(Arc<Resource>, Bytes)>,
}

/// Where a write comes from.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    pub user: &'a str,
    pub sent: Timestamp,
    pub is_delayed: bool,
}

impl Change {
    /// The new object as JSON of a resource. It is encoded once for all watches of that resource.
    pub(crate) fn encoded(&self, resource: &Arc<Resource>) -> Option<Bytes> {
        let object = self.after.as_ref()?;
        let encode = || server::bytes_of(&resource.shown(object));
        let (of, bytes) = self.encoded.get_or_init(|| (resource.clone(), encode()));
        Some(if Arc::ptr_eq(of, resource) { bytes.clone() } else { encode() })
    }

    /// The object, if this change begins its deletion. The later removal is not counted again.
    #[must_use]
    pub fn deleted(&self) -> Option<&Arc<Value>> {
        let before = self.before.as_ref().filter(|before| !object::is_deleting(before))?;
        self.after.as_ref().is_none_or(|after| object::is_deleting(after)).then_some(before)
    }

    /// The user of the write.
    #[must_use]
    pub fn writer(&self) -> &str {
        &self.user
    }

    #[must_use]
    pub fn is_eviction(&self) -> bool {
        let mark = |pod: &Arc<Value>| {
            object::condition(pod, "DisruptionTarget")
                .is_some_and(|c| object::text(c, "reason") == "EvictionByEvictionAPI")
        };
        self.collection == "pods" && self.deleted().is_some_and(mark)
    }
}

/// Called for each change at its commit.
pub type Observer = Box<dyn FnMut(&Change) + Send>;

/// A backup of the store, as `etcdctl snapshot save` makes one.
#[derive(Clone)]
pub struct Snapshot {
    revision: u64,
    objects: BTreeMap<String, BTreeMap<String, Arc<Value>>>,
}

/// Objects by collection and key, and the log of their changes.
#[derive(Default)]
pub struct Store {
    revision: u64,
    compacted: u64,
    objects: BTreeMap<String, BTreeMap<String, Arc<Value>>>,
    log: VecDeque<Arc<Change>>,
    /// The same changes by collection, since a watch wants those of one.
    logs: BTreeMap<String, VecDeque<Arc<Change>>>,
    waiting: BTreeMap<String, Arc<Notify>>,
    observers: Vec<Observer>,
    /// How often the store was restored. A watch that began in an earlier epoch has ended.
    epoch: u64,
    /// The difference that the last restore made, for the controllers of the cluster.
    restored: Vec<Arc<Change>>,
}

/// Matches all collections, including later ones.
pub const ANY: &str = "*";

/// A longer log is halved, so that a long-running cluster does not grow.
const MAX_LOG: usize = 50_000;

impl Store {
    /// Starts at a revision above 1, so that very old resource versions are too old, as on a real server.
    #[must_use]
    pub fn new() -> Self {
        Self { revision: 100, compacted: 100, ..Self::default() }
    }

    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The oldest revision that a client may start from.
    #[must_use]
    pub fn compacted(&self) -> u64 {
        self.compacted
    }

    /// Whether the log has every change after this revision.
    #[must_use]
    pub fn has_changes_since(&self, revision: u64) -> bool {
        self.log.front().is_none_or(|first| first.revision <= revision.saturating_add(1))
    }

    #[must_use]
    pub fn get(&self, collection: &str, key: &str) -> Option<&Arc<Value>> {
        self.objects.get(collection)?.get(key)
    }

    /// Sorted by key.
    pub fn all(&self, collection: &str) -> impl Iterator<Item = (&String, &Arc<Value>)> {
        self.objects.get(collection).into_iter().flatten()
    }

    /// The collections that have objects.
    pub fn collections(&self) -> impl Iterator<Item = &String> {
        self.objects.iter().filter(|(_, o)| !o.is_empty()).map(|(name, _)| name)
    }

    /// The objects of a collection at a revision that is not compacted.
    #[must_use]
    pub fn at(&self, collection: &str, revision: u64) -> BTreeMap<String, Arc<Value>> {
        let mut objects = self.objects.get(collection).cloned().unwrap_or_default();
        for change in self.log.iter().rev().take_while(|c| c.revision > revision) {
            if change.collection == collection {
                match &change.before {
                    Some(before) => drop(objects.insert(change.key.clone(), before.clone())),
                    None => drop(objects.remove(&change.key)),
                }
            }
        }
        objects
    }

    /// Oldest first.
    pub fn since(&self, revision: u64) -> impl Iterator<Item = &Arc<Change>> {
        let first = self.log.front().map_or(self.revision + 1, |c| c.revision);
        let skip = usize::try_from(revision.saturating_add(1).saturating_sub(first)).unwrap_or(usize::MAX);
        self.log.range(skip.min(self.log.len())..)
    }

    /// The changes of one collection, oldest first.
    pub fn since_in(&self, collection: &str, revision: u64) -> impl Iterator<Item = &Arc<Change>> {
        let log = self.logs.get(collection);
        let skip = log.map_or(0, |log| log.partition_point(|change| change.revision <= revision));
        log.into_iter().flat_map(move |log| log.range(skip..))
    }

    /// The change that wrote this state of a stored object, if the log still has it.
    #[must_use]
    pub fn change_of(&self, object: &Value) -> Option<&Arc<Change>> {
        let revision: u64 = object::text(object, "metadata.resourceVersion").parse().ok()?;
        let change = self.since(revision.checked_sub(1)?).next()?;
        (change.revision == revision && change.after.is_some()).then_some(change)
    }

    /// Stores an object under a new revision.
    pub fn put(
        &mut self,
        collection: &str,
        key: &str,
        mut new: Value,
        origin: Origin<'_>,
        at: Timestamp,
    ) -> Arc<Value> {
        self.revision += 1;
        object::set(&mut new, "metadata.resourceVersion", json!(self.revision.to_string()));
        let new = Arc::new(new);
        let objects = self.objects.entry(collection.to_owned()).or_default();
        let before = objects.insert(key.to_owned(), new.clone());
        self.record(collection, key, before, Some(new.clone()), origin, at);
        new
    }

    /// Removes an object and returns its last state with the revision of the removal.
    pub fn remove(
        &mut self,
        collection: &str,
        key: &str,
        origin: Origin<'_>,
        at: Timestamp,
    ) -> Option<Arc<Value>> {
        let before = self.objects.get_mut(collection)?.remove(key)?;
        self.revision += 1;
        let mut last = (*before).clone();
        object::set(&mut last, "metadata.resourceVersion", json!(self.revision.to_string()));
        self.record(collection, key, Some(before), None, origin, at);
        Some(Arc::new(last))
    }

    fn record(
        &mut self,
        collection: &str,
        key: &str,
        before: Option<Arc<Value>>,
        after: Option<Arc<Value>>,
        origin: Origin<'_>,
        at: Timestamp,
    ) {
        let change = Change {
            revision: self.revision,
            collection: collection.to_owned(),
            key: key.to_owned(),
            before,
            after,
            user: origin.user.to_owned(),
            at,
            sent: origin.sent,
            is_delayed: origin.is_delayed,
            encoded: OnceLock::new(),
        };
        for observer in &mut self.observers {
            observer(&change);
        }
        let change = Arc::new(change);
        if !self.logs.contains_key(collection) {
            self.logs.insert(collection.to_owned(), VecDeque::new());
        }
        if let Some(log) = self.logs.get_mut(collection) {
            log.push_back(change.clone());
        }
        self.log.push_back(change);
        if self.log.len() > MAX_LOG {
            self.compact(self.revision - (MAX_LOG as u64) / 2);
            let compacted = self.compacted;
            for log in self.logs.values_mut().chain([&mut self.log]) {
                let old = log.partition_point(|change| change.revision <= compacted);
                log.drain(..old);
            }
        }
        for name in [collection, ANY] {
            if let Some(waiting) = self.waiting.get(name) {
                waiting.notify_waiters();
            }
        }
    }

    /// Makes revisions unavailable to clients. Components of the cluster, which never list again, still get their
    /// changes.
    pub fn compact(&mut self, revision: u64) {
        self.compacted = revision.clamp(self.compacted, self.revision);
        // Watches that are behind must end.
        for waiting in self.waiting.values() {
            waiting.notify_waiters();
        }
    }

    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The changes that the last restore made to objects.
    #[must_use]
    pub fn restored(&self) -> &[Arc<Change>] {
        &self.restored
    }

    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot { revision: self.revision, objects: self.objects.clone() }
    }

    /// Replaces all objects by those of a backup. The revision goes back to the backup's, and open watches end.
    pub fn restore(&mut self, snapshot: Snapshot, user: &str, at: Timestamp) {
        let mut restored = Vec::new();
        let old = std::mem::replace(&mut self.objects, snapshot.objects);
        let collections: BTreeSet<&String> = old.keys().chain(self.objects.keys()).collect();
        for collection in collections {
            let (before, after) = (old.get(collection), self.objects.get(collection));
            let keys: BTreeSet<&String> = before.into_iter().chain(after).flat_map(BTreeMap::keys).collect();
            for key in keys {
                let object = |objects: Option<&BTreeMap<String, Arc<Value>>>| objects?.get(key).cloned();
                let (before, after) = (object(before), object(after));
                if before != after {
                    restored.push(Arc::new(Change {
                        revision: snapshot.revision,
                        collection: collection.clone(),
                        key: key.clone(),
                        before,
                        after,
                        user: user.to_owned(),
                        at,
                        sent: at,
                        is_delayed: false,
                        encoded: OnceLock::new(),
                    }));
                }
            }
        }
        self.restored = restored;
        self.epoch += 1;
        self.log.clear();
        self.logs.clear();
        (self.revision, self.compacted) = (snapshot.revision, snapshot.revision);
        for waiting in self.waiting.values() {
            waiting.notify_waiters();
        }
    }

    /// Notified at each change of a collection, or of [`ANY`]. Register, read the log, then wait: no change is
    /// missed.
    pub fn changes_of(&mut self, collection: &str) -> Arc<Notify> {
        self.waiting.entry(collection.to_owned()).or_default().clone()
    }

    /// Calls the observer for each later change.
    pub fn observe(&mut self, observer: Observer) {
        self.observers.push(observer);
    }
}
