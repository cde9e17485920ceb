//! Caches: stores that watches fill and controllers share.

use std::any::Any;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use super::reconciler::Change;
use super::store::{Cached, Store};
use super::watcher::WatchEvent;

/// Wakes everything that waits for a cache to change its state, in the order in which it began to wait.
#[derive(Clone, Debug, Default)]
pub struct Signal(Arc<(AtomicU64, Notify)>);

impl Signal {
    pub fn notify(&self) {
        self.0.0.fetch_add(1, Relaxed);
        self.0.1.notify_waiters();
    }

    #[must_use]
    pub fn subscribe(&self) -> Signals {
        Signals { signal: self.clone(), seen: self.0.0.load(Relaxed) }
    }
}

/// The signals since a subscription. None is missed between two waits.
pub struct Signals {
    signal: Signal,
    seen: u64,
}

impl Signals {
    pub async fn changed(&mut self) {
        let (count, notify) = &*self.signal.0;
        let mut notified = pin!(notify.notified());
        notified.as_mut().enable();
        if count.load(Relaxed) == self.seen {
            notified.await;
        }
        self.seen = count.load(Relaxed);
    }
}

/// A shared handle to the objects of one kind.
#[derive(Debug)]
pub struct Cache<V> {
    kind: &'static str,
    store: Arc<Mutex<Store<V>>>,
    signal: Signal,
}

impl<V> Clone for Cache<V> {
    fn clone(&self) -> Self {
        Self { kind: self.kind, store: self.store.clone(), signal: self.signal.clone() }
    }
}

impl<V: Cached> Cache<V> {
    #[must_use]
    pub fn new(kind: &'static str, signal: Signal) -> Self {
        Self { kind, store: Arc::default(), signal }
    }

    /// The name of the kind, by which controllers name what they need.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    pub fn lock(&self) -> MutexGuard<'_, Store<V>> {
        self.store.lock()
    }

    /// Takes in the response to a request of ours, and returns the change that it is.
    pub fn apply_response(&self, object: V, now: Duration) -> Option<Change> {
        let (key, after) = (object.key(), object.clone());
        let before = self.lock().apply_response(object, now)?;
        Some(Change::new(self.kind, key, before, Some(after)))
    }

    /// Applies an event of the watch, and returns the changes if there is a controller to tell.
    pub fn handle_event(&self, event: WatchEvent<V>, now: Duration, wanted: bool) -> Vec<Change> {
        let is_partial = matches!(event, WatchEvent::ListStarted | WatchEvent::Listed(_));
        let (changes, listed, current) = {
            let mut store = self.lock();
            let lists = store.lists;
            let changes = store.handle_event(self.kind, event, now, wanted);
            (changes, store.lists != lists, store.current)
        };
        // Also bookmarks move the position that a new leader waits for. Objects of a list do not.
        if listed || !(current || is_partial) {
            self.signal.notify();
        }
        changes
    }
}

/// The state of a cache, whatever it holds.
pub trait CacheState: Send + Sync {
    fn kind(&self) -> &'static str;
    fn is_synced(&self) -> bool;
    fn is_current(&self) -> bool;
    fn is_not_served(&self) -> bool;
    fn position(&self) -> u64;
    fn lists(&self) -> u64;
    fn set_current(&self, current: bool);
    fn request_relist(&self);
    /// Takes a request for a new list, if there is one.
    fn take_relist_request(&self) -> bool;
}

impl<V: Cached> CacheState for Cache<V> {
    fn kind(&self) -> &'static str {
        self.kind
    }

    fn is_synced(&self) -> bool {
        self.lock().synced
    }

    fn is_current(&self) -> bool {
        self.lock().is_current()
    }

    fn is_not_served(&self) -> bool {
        self.lock().not_served
    }

    fn position(&self) -> u64 {
        self.lock().position
    }

    fn lists(&self) -> u64 {
        self.lock().lists
    }

    fn set_current(&self, current: bool) {
        self.lock().current = current;
        self.signal.notify();
    }

    fn request_relist(&self) {
        self.lock().relist_requested = true;
        self.signal.notify();
    }

    fn take_relist_request(&self) -> bool {
        std::mem::take(&mut self.lock().relist_requested)
    }
}

/// A state of an object in a [`Change`], whatever its kind.
pub type AnyObject = Box<dyn Any + Send>;
