//! The time in which we lead: the watches, the queue and the loop that joins them.

mod hearing;

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _, Shared};
use futures::stream::{AbortHandle, BoxStream, FuturesUnordered, SelectAll, StreamExt as _};
use kube::Client;
use tracing::info;

use crate::apply::Writer;
use crate::clock::Clock;
use crate::gate::Gate;
use crate::leader::Leader;
use crate::metrics::GATE;
use crate::queue::{Outcome, Queue};
use crate::remediate::Remediator;
use crate::run::Settings;
use crate::views::Views;

use hearing::Heard;

/// How long work that has begun may take when we are asked to stop.
const DRAIN: Duration = Duration::from_secs(10);
/// How often the loop says that it turns, whatever happens, and counts what only it can see.
const BEAT: Duration = Duration::from_secs(5);
/// Changes of a gate's figures are gathered for so long before they are written.
const REPORT: Duration = Duration::from_secs(2);
/// Comes true when we are asked to stop.
pub type Stop = Shared<BoxFuture<'static, ()>>;

/// What is looked at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    /// A node.
    Node(Arc<str>),
    /// The status of a gate.
    Status(Arc<str>),
    /// The gate of the configuration file.
    Config,
    /// A `NodeRemediation`.
    Remediation(Arc<str>),
    /// The `RemediationPolicy`.
    Policy,
}

/// The time in which we lead.
pub struct Term {
    client: Client,
    clock: Clock,
    gate: Arc<Gate>,
    remediator: Arc<Remediator>,
    views: Arc<Mutex<Views>>,
    heard: SelectAll<BoxStream<'static, Heard>>,
    /// The watch of nodes, which is begun anew where more of their labels is needed.
    nodes: Option<AbortHandle>,
    /// The watches of single nodes' pods.
    daemons: BTreeMap<String, AbortHandle>,
    queue: Queue<Key>,
    /// Their last write may have landed or not.
    doubtful: BTreeSet<Key>,
    settings: Settings,
    next_sweep: Option<Duration>,
    /// When the loop says next that it turns.
    beat: Duration,
}

impl Term {
    /// A term that begins now and knows nothing.
    pub fn new(client: &Client, settings: &Settings, clock: &Clock, leader: &Leader) -> Self {
        let views = Arc::new(Mutex::new(Views::new()));
        let template = settings.template.clone();
        let writer = Writer::new(client.clone(), clock.clone(), leader.candidate(), template, views.clone());
        let metrics = settings.metrics.clone();
        let writer = Arc::new(writer);
        let remediator = Remediator::new(
            client.clone(),
            clock.clone(),
            views.clone(),
            writer.clone(),
            metrics.clone(),
            settings.policy.clone(),
        );
        let gate =
            Gate::new(client.clone(), clock.clone(), views.clone(), writer, settings.most_workers, metrics);
        let mut queue = Queue::new();
        if settings.gate.is_some() {
            queue.add(Key::Config, clock.elapsed());
        }
        let mut term = Self {
            client: client.clone(),
            clock: clock.clone(),
            gate: Arc::new(gate),
            remediator: Arc::new(remediator),
            views,
            heard: SelectAll::new(),
            nodes: None,
            daemons: BTreeMap::new(),
            queue,
            doubtful: BTreeSet::new(),
            settings: settings.clone(),
            next_sweep: settings.sweep.map(|every| clock.elapsed() + every),
            beat: Duration::ZERO,
        };
        term.listen();
        term
    }

    /// Works until `stop`, and then until what has begun is done.
    pub async fn work(&mut self, stop: Stop) {
        let mut looks = FuturesUnordered::new();
        let mut stop = pin!(stop.fuse());
        let mut stopping = false;
        let mut last_call = None;
        let most = self.settings.concurrency;
        while !(stopping && looks.is_empty()) {
            // However busy the loop is, the lease is renewed beside it.
            tokio::task::yield_now().await;
            self.beat();
            self.admit();
            while !stopping
                && looks.len() < most
                && let Some(key) = self.next()
            {
                looks.push(self.look(key));
            }
            let due = self.queue.next().filter(|_| !stopping && looks.len() < most && self.synced());
            self.settings.metrics.set_active_reconciles(GATE, looks.len());
            let wake = last_call.or([due, self.gate.wakes(), self.next_sweep].into_iter().flatten().min());
            tokio::select! {
                biased;
                () = &mut stop, if !stopping => {
                    info!(unfinished = looks.len(), "asked to stop");
                    self.settings.health.set_stopping();
                    stopping = true;
                    last_call = Some(self.clock.elapsed() + DRAIN);
                }
                Some(heard) = self.heard.next() => self.hear(heard),
                Some((key, outcome, doubtful)) = looks.next(), if !looks.is_empty() => {
                    self.done(key, outcome, doubtful);
                }
                () = self.clock.reach(wake.unwrap_or_default()), if wake.is_some() => {
                    if stopping {
                        return;
                    }
                    self.sweep();
                }
                () = self.clock.reach(self.beat) => {}
            }
        }
    }

    /// Says that the loop turns, and how it stands.
    fn beat(&mut self) {
        let now = self.clock.elapsed();
        if now < self.beat {
            return;
        }
        self.beat = now + BEAT;
        self.settings.health.heartbeat(now);
        self.settings.health.set_leading(self.locked().missing());
        self.settings.metrics.set_queue_stats(GATE, &self.queue.numbers(now));
        self.follow_daemons();
    }

    fn next(&mut self) -> Option<Key> {
        if !self.synced() {
            return None;
        }
        let (now, due) = (self.clock.elapsed(), self.queue.next());
        let key = self.queue.take(now)?;
        self.settings.metrics.observe_queue_time(GATE, now.saturating_sub(due.unwrap_or(now)));
        Some(key)
    }

    /// Queues those for whom there is a slot now.
    fn admit(&mut self) {
        let now = self.clock.elapsed();
        for name in self.gate.admitted() {
            self.queue.add(Key::Node(name.into()), now);
        }
    }

    /// Goes over all nodes, if somebody wants that.
    fn sweep(&mut self) {
        let now = self.clock.elapsed();
        let due = self.next_sweep.is_some_and(|at| at <= now);
        let Some(every) = self.settings.sweep.filter(|_| due) else { return };
        self.next_sweep = Some(now + every);
        let all = self.all_nodes();
        self.glance_at(all, now);
    }

    fn all_nodes(&self) -> Vec<Arc<str>> {
        self.locked().nodes.all().map(|node| node.name.clone()).collect()
    }

    /// Queues the nodes that need more than a glance.
    fn glance_at(&mut self, names: Vec<Arc<str>>, now: Duration) {
        if !self.synced() {
            // They are all looked at when everything was listed.
            return;
        }
        for name in names {
            let key = Key::Node(name.clone());
            if self.queue.knows(&key) || !self.gate.is_settled(&name) {
                self.queue.add(key, now);
            }
        }
        self.report_touched(now);
    }

    fn locked(&self) -> MutexGuard<'_, Views> {
        self.views.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Before everything was listed, nothing is decided: what is missing then means nothing.
    fn synced(&self) -> bool {
        self.locked().synced()
    }

    fn look(&self, key: Key) -> impl Future<Output = (Key, Outcome, bool)> + Send + use<> {
        let (gate, doubtful) = (self.gate.clone(), self.doubtful.contains(&key));
        let remediator = self.remediator.clone();
        let file = self.settings.gate.clone().filter(|_| key == Key::Config);
        let (clock, metrics) = (self.clock.clone(), self.settings.metrics.clone());
        async move {
            let started = clock.elapsed();
            let (outcome, doubtful) = match &key {
                Key::Node(name) => gate.look_at(name, doubtful).await,
                Key::Status(name) => (gate.report(name).await, false),
                Key::Config => (gate.keep_file(file.as_ref()).await, false),
                Key::Remediation(name) => (remediator.look_at(name).await, false),
                Key::Policy => (remediator.keep_policy().await, false),
            };
            let took = clock.elapsed().saturating_sub(started);
            metrics.observe_reconcile(GATE, outcome.into(), took);
            if let Key::Node(name) = &key {
                metrics.observe_node_reconcile(name, outcome.into(), took);
            }
            (key, outcome, doubtful)
        }
    }

    fn done(&mut self, key: Key, outcome: Outcome, doubtful: bool) {
        if doubtful {
            self.doubtful.insert(key.clone());
        } else {
            self.doubtful.remove(&key);
        }
        let now = self.clock.elapsed();
        self.queue.done(key, outcome, now);
        self.report_touched(now);
        self.follow_daemons();
    }

    /// The figures of gates changed. Many nodes that change together make one write.
    fn report_touched(&mut self, now: Duration) {
        for gate in self.gate.touched() {
            self.queue.add(Key::Status(gate), now + REPORT);
        }
    }
}
