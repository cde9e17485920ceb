//! Term after term: wait for the lease, watch, work, hand over.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _, Shared};
use futures::stream::{BoxStream, FuturesUnordered, StreamExt as _};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client, ResourceExt as _};
use nodekeeper_core::api::NodeGate;
use nodekeeper_core::gate::GateView;
use nodekeeper_core::lease::{Candidate, Timing};
use nodekeeper_core::node::NodeView;
use nodekeeper_core::worker::{Progress, SELECTOR, Template, WorkerView};
use tracing::{info, warn};

use crate::apply::Writer;
use crate::clock::Clock;
use crate::gate::Gate;
use crate::health::Health;
use crate::leader::Leader;
use crate::metrics::Metrics;
use crate::queue::{Outcome, Queue};
use crate::views::Views;
use crate::watch::{self, Event};

/// How long work that has begun may take when we are asked to stop.
const DRAIN: Duration = Duration::from_secs(10);
/// How often the loop says that it turns, whatever happens, and counts what only it can see.
const BEAT: Duration = Duration::from_secs(5);

/// What a controller is told.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What every worker gets; its namespace is also the lease's.
    pub template: Template,
    /// Name of the Lease.
    pub lease: String,
    /// Who we are in the lease. Never used twice: a restarted process is another.
    pub identity: String,
    /// How long the lease lasts.
    pub timing: Timing,
    /// How many workers may run at once.
    pub most_workers: usize,
    /// How many nodes are looked at at once.
    pub concurrency: usize,
    /// For pauses that should not meet.
    pub seed: u64,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// What is said to probes.
    pub health: Arc<Health>,
}

impl Settings {
    /// The defaults of the documentation.
    #[must_use]
    pub fn new(template: Template, identity: String, seed: u64) -> Self {
        Self {
            template,
            lease: "kube-node-ready-leader".into(),
            identity,
            timing: Timing::default(),
            most_workers: 100,
            concurrency: 32,
            seed,
            metrics: Arc::default(),
            health: Arc::default(),
        }
    }
}

type Stop = Shared<BoxFuture<'static, ()>>;

/// Runs until `stop`, then finishes what has begun and gives the lease back.
pub async fn run(
    client: Client,
    settings: Settings,
    clock: Clock,
    stop: impl Future<Output = ()> + Send + 'static,
) {
    let stop: Stop = stop.boxed().shared();
    let candidate = Candidate::new(settings.identity.clone(), settings.timing);
    let namespace = &settings.template.namespace;
    let Settings { metrics, health, lease, .. } = &settings;
    metrics.starts(clock.now(), lease, settings.timing.lease, settings.concurrency);
    let leader = Leader::new(client.clone(), namespace, lease, clock.clone(), candidate)
        .observed_by(metrics.clone(), health.clone());
    loop {
        tokio::select! {
            biased;
            () = stop.clone() => break,
            () = leader.acquire() => {}
        }
        // What was known in an earlier term is forgotten: somebody else may have written since.
        metrics.lead(lease);
        let mut term = Term::new(&client, &settings, &clock, &leader);
        tokio::select! {
            biased;
            () = leader.keep() => warn!("no longer leading"),
            () = term.work(stop.clone()) => break,
        }
        metrics.step_down(lease);
        health.stepped_down();
    }
    health.stops();
    leader.release().await;
    metrics.step_down(lease);
    info!("stopped");
}

/// What one of the watches said.
enum Heard {
    Node(Event<NodeView>),
    Worker(Event<WorkerView>),
    Gate(Event<GateView>),
}

/// The time in which we lead.
struct Term {
    clock: Clock,
    gate: Arc<Gate>,
    views: Arc<Mutex<Views>>,
    heard: BoxStream<'static, Heard>,
    queue: Queue<String>,
    /// Their last write may have landed or not.
    doubtful: BTreeSet<String>,
    concurrency: usize,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    /// When the loop says next that it turns.
    beat: Duration,
}

impl Term {
    fn new(client: &Client, settings: &Settings, clock: &Clock, leader: &Leader) -> Self {
        let views = Arc::new(Mutex::new(Views::new()));
        let template = settings.template.clone();
        let writer = Writer::new(client.clone(), clock.clone(), leader.candidate(), template, views.clone());
        let metrics = settings.metrics.clone();
        let gate =
            Gate::new(client.clone(), clock.clone(), views.clone(), writer, settings.most_workers, metrics);
        Self {
            clock: clock.clone(),
            gate: Arc::new(gate),
            views,
            heard: listen(client, settings, clock),
            queue: Queue::new(),
            doubtful: BTreeSet::new(),
            concurrency: settings.concurrency,
            metrics: settings.metrics.clone(),
            health: settings.health.clone(),
            beat: Duration::ZERO,
        }
    }

    /// Works until `stop`, and then until what has begun is done.
    async fn work(&mut self, stop: Stop) {
        let mut looks = FuturesUnordered::new();
        let mut stop = pin!(stop.fuse());
        let mut stopping = false;
        let mut last_call = None;
        while !(stopping && looks.is_empty()) {
            self.beat();
            self.admit();
            while !stopping
                && looks.len() < self.concurrency
                && let Some(name) = self.next()
            {
                looks.push(self.look(name));
            }
            let due =
                self.queue.next().filter(|_| !stopping && looks.len() < self.concurrency && self.synced());
            self.metrics.looking_at(looks.len());
            let wake = last_call.or(due);
            tokio::select! {
                biased;
                () = &mut stop, if !stopping => {
                    info!(unfinished = looks.len(), "asked to stop");
                    self.health.stops();
                    stopping = true;
                    last_call = Some(self.clock.elapsed() + DRAIN);
                }
                Some((name, outcome, doubtful)) = looks.next(), if !looks.is_empty() => {
                    self.done(name, outcome, doubtful);
                }
                Some(heard) = self.heard.next() => self.hear(heard),
                () = self.clock.reach(wake.unwrap_or_default()), if wake.is_some() => {
                    if stopping {
                        return;
                    }
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
        self.health.beat(now);
        self.health.leads(self.views.lock().unwrap_or_else(PoisonError::into_inner).missing());
        self.metrics.queue_has(&self.queue.numbers(now));
    }

    fn next(&mut self) -> Option<String> {
        if !self.synced() {
            return None;
        }
        let (now, due) = (self.clock.elapsed(), self.queue.next());
        let name = self.queue.take(now)?;
        self.metrics.taken(now.saturating_sub(due.unwrap_or(now)));
        Some(name)
    }

    /// Queues those for whom there is a slot now.
    fn admit(&mut self) {
        let now = self.clock.elapsed();
        for name in self.gate.admitted() {
            self.queue.add(name, now);
        }
    }

    /// Before everything was listed, nothing is decided: what is missing then means nothing.
    fn synced(&self) -> bool {
        self.views.lock().unwrap_or_else(PoisonError::into_inner).synced()
    }

    fn look(&self, name: String) -> impl Future<Output = (String, Outcome, bool)> + Send + use<> {
        let (gate, doubtful) = (self.gate.clone(), self.doubtful.contains(&name));
        let (clock, metrics) = (self.clock.clone(), self.metrics.clone());
        async move {
            let started = clock.elapsed();
            let (outcome, doubtful) = gate.look_at(&name, doubtful).await;
            metrics.reconciled(Some(&name), outcome, clock.elapsed().saturating_sub(started));
            (name, outcome, doubtful)
        }
    }

    fn done(&mut self, name: String, outcome: Outcome, doubtful: bool) {
        if doubtful {
            self.doubtful.insert(name.clone());
        } else {
            self.doubtful.remove(&name);
        }
        self.queue.done(name, outcome, self.clock.elapsed());
    }

    /// Takes in what a watch said, and queues the nodes that it touches.
    fn hear(&mut self, heard: Heard) {
        let now = self.clock.elapsed();
        let mut views = self.views.lock().unwrap_or_else(PoisonError::into_inner);
        let was_synced = views.synced();
        let names: Vec<String> = match heard {
            Heard::Node(event) => views.nodes.take(event, now).into_iter().map(|node| node.name).collect(),
            Heard::Worker(event) => {
                let starts = starts(&views, &event);
                let touched = views.workers.take(event, now);
                if let [worker] = touched.as_slice()
                    && starts
                {
                    let gate = views.gates.all().find(|gate| gate.uid == worker.subject.gate_uid);
                    let after = now.saturating_sub(worker.first_seen);
                    gate.inspect(|gate| self.metrics.worker_runs(&gate.name, after));
                }
                touched.into_iter().map(|worker| worker.node_name).collect()
            }
            Heard::Gate(event) => {
                let gates = views.gates.take(event, now);
                for gate in &gates {
                    match views.gates.get(&gate.name) {
                        Some(_) => self.metrics.gate_is(&gate.name, "Enforce"),
                        None => self.metrics.forget_gate(&gate.name),
                    }
                }
                let touched = !gates.is_empty();
                views.nodes.all().filter(|_| touched).map(|node| node.name.clone()).collect()
            }
        };
        if !was_synced && views.synced() {
            info!(nodes = views.nodes.all().count(), gates = views.gates.all().count(), "synced");
        }
        self.health.leads(views.missing());
        drop(views);
        for name in names {
            self.queue.add(name, now);
        }
    }
}

/// Whether a worker runs that was known not to.
fn starts(views: &Views, event: &Event<WorkerView>) -> bool {
    let Event::Is(worker) = event else { return false };
    let known = views.workers.get(&worker.name).map(|known| &known.progress);
    !matches!(worker.progress, Progress::Waiting(_) | Progress::Unscheduled(_))
        && matches!(known, Some(Progress::Waiting(_) | Progress::Unscheduled(_)))
}

fn listen(client: &Client, settings: &Settings, clock: &Clock) -> BoxStream<'static, Heard> {
    let seed = settings.seed;
    let nodes = Api::<Node>::all(client.clone());
    let nodes = watch::follow(nodes, "nodes", None, |node| Some(NodeView::new(node)), clock.clone(), seed);
    let workers = Api::<Pod>::namespaced(client.clone(), &settings.template.namespace);
    let workers = watch::follow(
        workers,
        "workers",
        Some(SELECTOR),
        WorkerView::new,
        clock.clone(),
        seed.wrapping_add(1),
    );
    // Not as the type itself: one gate that a newer release wrote must not keep us from reading the others.
    let gates = Api::<DynamicObject>::all_with(client.clone(), &ApiResource::erase::<NodeGate>(&()));
    let gates = watch::follow(gates, "gates", None, read_gate, clock.clone(), seed.wrapping_add(2));
    let all =
        [nodes.map(Heard::Node).boxed(), workers.map(Heard::Worker).boxed(), gates.map(Heard::Gate).boxed()];
    futures::stream::select_all(all).boxed()
}

fn read_gate(object: &DynamicObject) -> Option<GateView> {
    let read = serde_json::to_value(object).and_then(serde_json::from_value::<NodeGate>);
    read.map_err(
        |error| warn!(gate = object.name_any(), %error, "this gate cannot be read, and holds nobody"),
    )
    .ok()
    .map(|gate| GateView::new(&gate))
}
