//! What a controller is: a [`Reconciler`] with a queue, a concurrency, a backoff and metrics of its own.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use futures::stream::{FuturesUnordered, StreamExt as _};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tracing::{debug, info, warn};

use super::cache::AnyObject;
use super::manager::Leadership;
use super::workqueue::{Priority, WorkQueue};

/// So many keys at once go to the backlog of a queue.
const BULK: usize = 64;
/// How often the metrics of a queue are written.
const STATS_PERIOD: Duration = Duration::from_secs(5);

/// What follows a successful reconcile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    AwaitChange,
    RequeueAfter(Duration),
}

/// Why a reconcile failed. Its key is retried with backoff.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ReconcileError(pub String);

/// A change of one object in a cache, or of a figure that a controller derives from caches.
pub struct Change {
    pub kind: &'static str,
    pub key: Arc<str>,
    before: Option<AnyObject>,
    after: Option<AnyObject>,
}

impl Change {
    pub fn new<V: Send + 'static>(
        kind: &'static str,
        key: Arc<str>,
        before: Option<V>,
        after: Option<V>,
    ) -> Self {
        let boxed = |object: Option<V>| object.map(|object| Box::new(object) as AnyObject);
        Self { kind, key, before: boxed(before), after: boxed(after) }
    }

    /// A change of a derived figure.
    #[must_use]
    pub fn derived(kind: &'static str, key: Arc<str>) -> Self {
        Self { kind, key, before: None, after: None }
    }

    /// The cache of a whole kind became current during a term.
    #[must_use]
    pub fn became_current(kind: &'static str) -> Self {
        Self::derived(kind, "".into())
    }

    #[must_use]
    pub fn is_whole_kind(&self) -> bool {
        self.key.is_empty()
    }

    /// The object before and after the change.
    #[must_use]
    pub fn states<V: 'static>(&self) -> (Option<&V>, Option<&V>) {
        let before = self.before.as_ref().and_then(|object| object.downcast_ref());
        (before, self.after.as_ref().and_then(|object| object.downcast_ref()))
    }

    /// The object after the change, or before its deletion.
    #[must_use]
    pub fn latest<V: 'static>(&self) -> Option<&V> {
        let (before, after) = self.states();
        after.or(before)
    }
}

/// How a controller works through its queue.
#[derive(Clone, Copy, Debug)]
pub struct ControllerOptions {
    /// How many keys are reconciled at once.
    pub concurrency: usize,
    /// How long a changed key waits for more changes before it is reconciled.
    pub debounce: Duration,
    /// How often all keys are reconciled although nothing changed.
    pub resync: Option<Duration>,
}

impl Default for ControllerOptions {
    fn default() -> Self {
        Self { concurrency: 1, debounce: Duration::ZERO, resync: None }
    }
}

/// The logic of one controller: observes, lets `core` decide, applies the effects. One value lives for one term of
/// leadership.
pub trait Reconciler: Send + Sync + 'static {
    /// The name of the controller in logs and in the label `controller` of metrics.
    const NAME: &'static str;
    type Key: Ord + Clone + fmt::Display + Send + Sync + 'static;

    /// The kinds whose caches must be current before anything is reconciled.
    fn needs(&self) -> Vec<&'static str>;

    /// The keys that a change concerns.
    fn keys(&self, change: &Change) -> Vec<Self::Key>;

    /// How soon the keys of a change are reconciled, compared with others.
    fn priority(&self, _change: &Change) -> Priority {
        Priority::Normal
    }

    /// All keys. They are reconciled at the beginning of a term and at each resync.
    fn all_keys(&self) -> Vec<Self::Key>;

    fn reconcile(&self, key: &Self::Key) -> impl Future<Output = Result<Action, ReconcileError>> + Send;

    fn options(&self) -> ControllerOptions {
        ControllerOptions::default()
    }

    /// Keys that became due though no object changed, for example because a limit has room again.
    fn due_keys(&self) -> Vec<Self::Key> {
        Vec::new()
    }

    /// When [`Reconciler::due_keys`] has to be asked next though no object changed.
    fn next_wakeup(&self) -> Option<Duration> {
        None
    }
}

/// A reconciler with its queue, whatever its key type is.
pub trait Controller: Send + Sync {
    fn enqueue(&self, change: &Change, now: Duration);
    /// Looks at the queue and at the caches again.
    fn wake(&self);
    /// Works until the term is asked to stop, and then until the reconciles that have begun are done.
    fn run(self: Arc<Self>, term: Arc<Leadership>) -> BoxFuture<'static, ()>;
}

/// Makes a controller of a reconciler.
pub fn controller<R: Reconciler>(reconciler: R) -> Arc<dyn Controller> {
    let options = reconciler.options();
    let queue = Mutex::new(WorkQueue::new());
    Arc::new(QueuedController { reconciler, options, queue, wake: Notify::new() })
}

struct QueuedController<R: Reconciler> {
    reconciler: R,
    options: ControllerOptions,
    queue: Mutex<WorkQueue<R::Key>>,
    wake: Notify,
}

impl<R: Reconciler> QueuedController<R> {
    fn queue(&self) -> MutexGuard<'_, WorkQueue<R::Key>> {
        self.queue.lock()
    }

    fn add_all(&self, keys: Vec<R::Key>, at: Duration, priority: Priority) {
        if keys.is_empty() {
            return;
        }
        if keys.len() > BULK {
            self.queue().add_backlog(keys);
        } else {
            let mut queue = self.queue();
            for key in keys {
                queue.add(key, at, priority);
            }
        }
        self.wake.notify_one();
    }

    async fn reconcile(&self, key: R::Key, term: &Leadership) -> (R::Key, Result<Action, ()>) {
        let started = term.clock.elapsed();
        term.first_reconcile(R::NAME);
        let result = self.reconciler.reconcile(&key).await;
        let took = term.clock.elapsed().saturating_sub(started);
        term.metrics.observe_reconcile(R::NAME, (&result).into(), took);
        let result = result.map_err(|error| {
            warn!(controller = R::NAME, key = %key, %error, "reconcile failed; retrying with backoff");
        });
        (key, result)
    }

    async fn work(&self, term: &Leadership) {
        let (clock, metrics) = (&term.clock, &term.metrics);
        let needs = self.reconciler.needs();
        let most = self.options.concurrency.max(1);
        let mut stop = pin!(term.stop.clone().fuse());
        let mut running = FuturesUnordered::new();
        let (mut started, mut stopping) = (false, false);
        let mut resync_at = self.options.resync.map(|period| clock.elapsed() + period);
        let mut stats_at = Duration::ZERO;
        metrics.register_controller(R::NAME, most);
        while !(stopping && running.is_empty()) {
            // The lease is renewed in the same task, however busy this queue is.
            tokio::task::yield_now().await;
            let now = clock.elapsed();
            let ready = !stopping && term.is_current(&needs);
            if ready && !std::mem::replace(&mut started, true) {
                debug!(controller = R::NAME, "caches current");
                self.queue().add_backlog(self.reconciler.all_keys());
            }
            if started && resync_at.is_some_and(|at| at <= now) {
                resync_at = self.options.resync.map(|period| now + period);
                self.queue().add_backlog(self.reconciler.all_keys());
            }
            if ready {
                let due = self.reconciler.due_keys();
                for key in due {
                    self.queue().add(key, now, Priority::Normal);
                }
            }
            while ready && running.len() < most {
                let Some((key, due)) = self.queue().take(now) else { break };
                metrics.observe_queue_time(R::NAME, now.saturating_sub(due));
                running.push(self.reconcile(key, term));
            }
            metrics.set_active_reconciles(R::NAME, running.len());
            if stats_at <= now {
                stats_at = now + STATS_PERIOD;
                metrics.set_queue_stats(R::NAME, &self.queue().stats(now));
            }
            let due = self.queue().next_due().filter(|_| ready && running.len() < most);
            let wakeup = self.reconciler.next_wakeup().filter(|_| ready);
            let wake_at =
                [due, wakeup, resync_at.filter(|_| started), Some(stats_at)].into_iter().flatten().min();
            tokio::select! {
                biased;
                () = &mut stop, if !stopping => {
                    info!(controller = R::NAME, unfinished = running.len(), "stopping");
                    stopping = true;
                }
                Some((key, result)) = running.next(), if !running.is_empty() => {
                    self.queue().done(key, result, clock.elapsed());
                }
                () = self.wake.notified() => {}
                () = clock.reach(wake_at.unwrap_or_default()), if wake_at.is_some() => {}
            }
        }
    }
}

impl<R: Reconciler> Controller for QueuedController<R> {
    fn enqueue(&self, change: &Change, now: Duration) {
        let keys = self.reconciler.keys(change);
        self.add_all(keys, now + self.options.debounce, self.reconciler.priority(change));
    }

    fn wake(&self) {
        self.wake.notify_one();
    }

    fn run(self: Arc<Self>, term: Arc<Leadership>) -> BoxFuture<'static, ()> {
        async move { self.work(&term).await }.boxed()
    }
}
