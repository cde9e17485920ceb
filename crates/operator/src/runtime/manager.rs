//! Runs caches, leader election and controllers, and stops them in order.
//!
//! Caches live as long as the process: every replica keeps them. Controllers live for one term of leadership. A new
//! leader first makes each cache current, so that it decides from nothing that is older than its lease.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, Shared};
use futures::stream::{BoxStream, FuturesUnordered, SelectAll, StreamExt as _};
use kube::{Api, Resource};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use super::cache::{Cache, CacheState, Signal};
use super::leader::LeaderElector;
use super::reconciler::{Change, Controller};
use super::source::{CachedSource, Latest, Source, StartCondition, Update, latest};
use super::store::Cached;
use super::watcher::{Projection, Selector};
use crate::clock::Clock;
use crate::health::Health;
use crate::metrics::Metrics;

/// How long reconciles that have begun may take when the process is asked to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// How often the manager reports that it is alive.
const HEARTBEAT_PERIOD: Duration = Duration::from_secs(5);
/// A watch that has not reached the newest resourceVersion after this is replaced by a new list: a quiet watch gets a
/// bookmark only about once a minute.
const CATCH_UP: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_millis(500);
/// The longest time between two tries of a process without a lease.
const MAX_RETRY: Duration = Duration::from_secs(30);

/// Completes when the process is asked to stop.
pub type Stop = Shared<BoxFuture<'static, ()>>;

/// One term of leadership.
pub struct Leadership {
    pub clock: Clock,
    pub metrics: Arc<Metrics>,
    pub stop: Stop,
    states: Vec<Arc<dyn CacheState>>,
    began: Duration,
    reconciled: Mutex<bool>,
}

impl Leadership {
    /// Whether the caches of all these kinds are current.
    pub fn is_current(&self, kinds: &[&str]) -> bool {
        self.states.iter().filter(|state| kinds.contains(&state.kind())).all(|state| state.is_current())
    }

    /// Reports how long it took from the lease to the first reconcile.
    pub fn first_reconcile(&self, controller: &'static str) {
        let mut reconciled = self.reconciled.lock();
        if !std::mem::replace(&mut *reconciled, true) {
            let took = self.clock.elapsed().saturating_sub(self.began);
            info!(controller, seconds = took.as_secs_f64(), "first reconcile of this term");
            self.metrics.leader_ready(took);
        }
    }
}

/// Hands changes to the controllers of the current term.
#[derive(Clone)]
pub struct Dispatcher {
    controllers: Arc<Mutex<Vec<Arc<dyn Controller>>>>,
    clock: Clock,
}

impl Dispatcher {
    fn controllers(&self) -> Vec<Arc<dyn Controller>> {
        self.controllers.lock().clone()
    }

    fn set(&self, controllers: Vec<Arc<dyn Controller>>) {
        *self.controllers.lock() = controllers;
    }

    /// Must not be called while a cache is locked: controllers look into caches to find the keys of a change.
    pub fn dispatch(&self, change: &Change) {
        let now = self.clock.elapsed();
        self.controllers().iter().for_each(|controller| controller.enqueue(change, now));
    }

    fn wake_all(&self) {
        self.controllers().iter().for_each(|controller| controller.wake());
    }
}

struct WatchedKind {
    state: Arc<dyn CacheState>,
    latest: Latest,
    optional: bool,
}

/// Runs everything of one replica.
pub struct Manager {
    clock: Clock,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    seed: u64,
    signal: Signal,
    dispatcher: Dispatcher,
    sources: Vec<Box<dyn Source>>,
    kinds: Vec<WatchedKind>,
}

impl Manager {
    pub fn new(clock: Clock, seed: u64, metrics: Arc<Metrics>, health: Arc<Health>) -> Self {
        let dispatcher = Dispatcher { controllers: Arc::default(), clock: clock.clone() };
        let signal = Signal::default();
        Self { clock, metrics, health, seed, signal, dispatcher, sources: Vec::new(), kinds: Vec::new() }
    }

    #[must_use]
    pub fn dispatcher(&self) -> Dispatcher {
        self.dispatcher.clone()
    }

    #[must_use]
    pub fn signal(&self) -> Signal {
        self.signal.clone()
    }

    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// A number for the jitter of one more watch.
    pub fn next_seed(&mut self) -> u64 {
        self.seed = self.seed.wrapping_add(1);
        self.seed
    }

    /// Watches a kind into a cache.
    pub fn watch<K, V>(
        &mut self,
        kind: &'static str,
        api: Api<K>,
        selector: Selector,
        projection: Projection<K, V>,
    ) -> Cache<V>
    where
        K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
        V: Cached,
    {
        self.watch_when(kind, api, selector, projection, None)
    }

    /// Watches a kind into a cache once a condition allows it.
    pub fn watch_when<K, V>(
        &mut self,
        kind: &'static str,
        api: Api<K>,
        selector: Selector,
        projection: Projection<K, V>,
        condition: Option<StartCondition>,
    ) -> Cache<V>
    where
        K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
        V: Cached,
    {
        let cache = Cache::new(kind, self.signal.clone());
        let optional = selector.optional;
        self.kinds.push(WatchedKind {
            state: Arc::new(cache.clone()),
            latest: latest(api.clone(), &selector),
            optional,
        });
        let (clock, seed) = (self.clock.clone(), self.next_seed());
        let running = None;
        self.sources.push(Box::new(CachedSource {
            api,
            selector,
            projection,
            condition,
            cache: cache.clone(),
            clock,
            seed,
            running,
        }));
        cache
    }

    /// Adds watches that come and go.
    pub fn add_source(&mut self, source: impl Source + 'static) {
        self.sources.push(Box::new(source));
    }

    /// Runs until `stop` completes; then lets reconciles end, and releases the lease. Without an elector the controllers
    /// run from the start.
    pub async fn run(
        self,
        elector: Option<LeaderElector>,
        build: impl Fn() -> Vec<Arc<dyn Controller>> + Send,
        stop: Stop,
    ) {
        let Self { clock, metrics, health, signal, dispatcher, sources, kinds, .. } = self;
        let mut watches = Watches {
            clock: clock.clone(),
            health: health.clone(),
            signal: signal.clone(),
            dispatcher: dispatcher.clone(),
            sources,
            states: kinds.iter().map(|kind| kind.state.clone()).collect(),
        };
        let leading = Leading { clock, metrics, health, signal, dispatcher, kinds, elector, build, stop };
        tokio::select! {
            biased;
            () = leading.run() => {}
            () = watches.run() => {}
        }
    }
}

/// The part of a manager that fills caches, whether this replica leads or not.
struct Watches {
    clock: Clock,
    health: Arc<Health>,
    signal: Signal,
    dispatcher: Dispatcher,
    sources: Vec<Box<dyn Source>>,
    states: Vec<Arc<dyn CacheState>>,
}

impl Watches {
    async fn run(&mut self) {
        let mut updates: SelectAll<BoxStream<'static, Update>> = SelectAll::new();
        let mut changed = self.signal.subscribe();
        let mut heartbeat = Duration::ZERO;
        let mut leading = false;
        loop {
            // The lease is renewed in the same task, however many events there are. A yield at each event would look for
            // I/O half as often again.
            tokio::task::coop::consume_budget().await;
            let now = self.clock.elapsed();
            let leads = !self.dispatcher.controllers().is_empty();
            if std::mem::replace(&mut leading, leads) != leads {
                self.sources.iter_mut().for_each(|source| source.leadership_changed());
            }
            for source in &mut self.sources {
                source.sync().into_iter().for_each(|stream| updates.push(stream));
            }
            if heartbeat <= now {
                heartbeat = now + HEARTBEAT_PERIOD;
                self.health.heartbeat(now);
            }
            let unsynced = self.states.iter().filter(|state| !state.is_synced());
            self.health.caches(unsynced.map(|state| state.kind()).collect());
            tokio::select! {
                biased;
                () = changed.changed() => self.dispatcher.wake_all(),
                Some(update) = updates.next(), if !updates.is_empty() => {
                    let changes = update(self.clock.elapsed(), leading);
                    for change in &changes {
                        self.dispatcher.dispatch(change);
                    }
                }
                () = self.clock.reach(heartbeat) => {}
            }
        }
    }
}

/// The part of a manager that takes the lease and runs the controllers.
struct Leading<B> {
    clock: Clock,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    signal: Signal,
    dispatcher: Dispatcher,
    kinds: Vec<WatchedKind>,
    elector: Option<LeaderElector>,
    build: B,
    stop: Stop,
}

/// Controllers know the dispatcher: without this a manager that is dropped while it leads would never be freed.
impl<B> Drop for Leading<B> {
    fn drop(&mut self) {
        self.dispatcher.set(Vec::new());
    }
}

impl<B: Fn() -> Vec<Arc<dyn Controller>>> Leading<B> {
    async fn run(&self) {
        loop {
            tokio::select! {
                biased;
                () = self.stop.clone() => break,
                () = self.acquire() => {}
            }
            let stopped = tokio::select! {
                biased;
                () = self.renew() => {
                    warn!("leadership lost");
                    false
                }
                () = self.lead() => true,
            };
            self.dispatcher.set(Vec::new());
            self.signal.notify();
            if stopped {
                break;
            }
            self.stop_leading();
            self.health.follows();
        }
        self.health.stopping();
        if let Some(elector) = &self.elector {
            elector.release().await;
        }
        self.stop_leading();
        info!("stopped");
    }

    async fn acquire(&self) {
        match &self.elector {
            Some(elector) => {
                elector.acquire().await;
                self.metrics.start_leading(elector.name());
                self.health.leads();
            }
            None => self.health.runs_alone(),
        }
    }

    async fn renew(&self) {
        match &self.elector {
            Some(elector) => elector.renew().await,
            None => std::future::pending().await,
        }
    }

    fn stop_leading(&self) {
        if let Some(elector) = &self.elector {
            self.metrics.stop_leading(elector.name());
        }
    }

    /// Runs the controllers of one term until the process is asked to stop.
    async fn lead(&self) {
        self.kinds.iter().for_each(|kind| kind.state.set_current(false));
        let term = Arc::new(Leadership {
            clock: self.clock.clone(),
            metrics: self.metrics.clone(),
            stop: self.stop.clone(),
            states: self.kinds.iter().map(|kind| kind.state.clone()).collect(),
            began: self.clock.elapsed(),
            reconciled: Mutex::new(false),
        });
        let controllers = (self.build)();
        self.dispatcher.set(controllers.clone());
        self.signal.notify();
        let caches: FuturesUnordered<_> = self.kinds.iter().map(|kind| self.make_current(kind)).collect();
        let running: FuturesUnordered<_> =
            controllers.into_iter().map(|controller| controller.run(term.clone())).collect();
        let stopping = async {
            self.stop.clone().await;
            self.health.stopping();
            sleep(STOP_TIMEOUT).await;
            warn!("stopping although reconciles have not ended");
        };
        let work = async {
            let mut running = running;
            while running.next().await.is_some() {}
        };
        let caches = async {
            let mut caches = caches;
            while caches.next().await.is_some() {}
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            () = work => {}
            () = stopping => {}
            () = caches => {}
        }
    }

    /// Waits until the cache of a kind holds all that the API server held when this term began.
    async fn make_current(&self, kind: &WatchedKind) {
        let mut changed = self.signal.subscribe();
        let (state, clock) = (&kind.state, &self.clock);
        // Read before the request is sent: the answer of an unrestored server cannot be older.
        let known = state.position();
        let mut wait = RETRY;
        let latest = loop {
            match (kind.latest)().await {
                Ok(version) => break Some(version),
                Err(error) if kind.optional && matches!(error.code(), Some(403 | 404)) => break None,
                Err(error) => {
                    warn!(kind = state.kind(), %error, "newest resourceVersion not read; retrying");
                    sleep(wait).await;
                    // There is one leader, and as many agents as nodes: they must not load a server that refuses all of them.
                    if self.elector.is_none() {
                        wait = (wait * 2).min(MAX_RETRY);
                    }
                }
            }
        };
        // The list that counts is one that begins from here on.
        let mut lists = None;
        if latest.is_some_and(|latest| latest < known) {
            info!(kind = state.kind(), "resourceVersion went back; listing again");
            lists = Some(state.lists());
            state.request_relist();
        }
        let mut deadline = clock.elapsed() + CATCH_UP;
        loop {
            let reached = latest.is_none_or(|latest| state.is_not_served() || state.position() >= latest);
            let done = lists.map_or(state.is_synced() && reached, |lists| state.lists() > lists);
            if done {
                break;
            }
            if !state.is_synced() {
                // A list is under way.
                deadline = clock.elapsed() + CATCH_UP;
            }
            let left = deadline.saturating_sub(clock.elapsed());
            let waits = lists.is_some() || !state.is_synced();
            if waits {
                changed.changed().await;
            } else if timeout(left, changed.changed()).await.is_err() {
                debug!(kind = state.kind(), "watch is behind; listing again");
                lists = Some(state.lists());
                state.request_relist();
            }
        }
        state.set_current(true);
        self.dispatcher.dispatch(&Change::became_current(state.kind()));
    }
}
