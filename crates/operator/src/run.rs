//! Term after term: wait for the lease, watch, work, hand over.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _, Shared};
use futures::stream::{
    AbortHandle, BoxStream, FuturesUnordered, SelectAll, StreamExt as _, abortable, select_all,
};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client, ResourceExt as _};
use nodekeeper_core::api::{NodeGate, NodeGateSpec};
use nodekeeper_core::gate::GateView;
use nodekeeper_core::lease::{Candidate, Timing};
use nodekeeper_core::node::NodeView;
use nodekeeper_core::worker::{SELECTOR, Template, WorkerView};
use tracing::{info, warn};

use crate::apply::Writer;
use crate::clock::Clock;
use crate::gate::Gate;
use crate::leader::Leader;
use crate::queue::{Outcome, Queue};
use crate::views::{DaemonView, Views};
use crate::watch::{self, Event, Part};

/// How long work that has begun may take when we are asked to stop.
const DRAIN: Duration = Duration::from_secs(10);

/// Changes of a gate's figures are gathered for so long before they are written.
const REPORT: Duration = Duration::from_secs(2);
/// So many nodes at most have their pods watched at once; others wait for their turn.
const MOST_POD_WATCHES: usize = 100;

/// What a controller is told.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What every worker gets.
    pub template: Template,
    /// Name of the Lease.
    pub lease: String,
    /// Where the Lease is; where workers run if none.
    pub lease_namespace: Option<String>,
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
    /// The gate of a configuration file, which is kept as the file says.
    pub gate: Option<NodeGateSpec>,
    /// How often all nodes are gone over though nothing changed; never if none.
    pub sweep: Option<Duration>,
}

impl Settings {
    /// The defaults of the documentation.
    #[must_use]
    pub fn new(template: Template, identity: String, seed: u64) -> Self {
        Self {
            template,
            lease: "kube-node-ready-leader".into(),
            lease_namespace: None,
            identity,
            timing: Timing::default(),
            most_workers: 100,
            concurrency: 32,
            seed,
            gate: None,
            sweep: None,
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
    let namespace = settings.lease_namespace.as_ref().unwrap_or(&settings.template.namespace);
    let leader = Leader::new(client.clone(), namespace, &settings.lease, clock.clone(), candidate);
    loop {
        tokio::select! {
            biased;
            () = stop.clone() => break,
            () = leader.acquire() => {}
        }
        // What was known in an earlier term is forgotten: somebody else may have written since.
        let mut term = Term::new(&client, &settings, &clock, &leader);
        tokio::select! {
            biased;
            () = leader.keep() => warn!("no longer leading"),
            () = term.work(stop.clone()) => break,
        }
    }
    leader.release().await;
    info!("stopped");
}

/// What one of the watches said.
enum Heard {
    Node(Event<NodeView>),
    Worker(Event<WorkerView>),
    Gate(Event<GateView>),
    /// About a pod of a DaemonSet on this node.
    Daemon(String, Event<DaemonView>),
}

/// What is looked at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    /// A node.
    Node(String),
    /// The status of a gate.
    Status(String),
    /// The gate of the configuration file.
    Config,
}

/// The time in which we lead.
struct Term {
    client: Client,
    clock: Clock,
    gate: Arc<Gate>,
    views: Arc<Mutex<Views>>,
    heard: SelectAll<BoxStream<'static, Heard>>,
    /// The watches of single nodes' pods.
    daemons: BTreeMap<String, AbortHandle>,
    queue: Queue<Key>,
    /// Their last write may have landed or not.
    doubtful: BTreeSet<Key>,
    settings: Settings,
    next_sweep: Option<Duration>,
}

impl Term {
    fn new(client: &Client, settings: &Settings, clock: &Clock, leader: &Leader) -> Self {
        let views = Arc::new(Mutex::new(Views::new()));
        let template = settings.template.clone();
        let writer = Writer::new(client.clone(), clock.clone(), leader.candidate(), template, views.clone());
        let gate = Gate::new(client.clone(), clock.clone(), views.clone(), writer, settings.most_workers);
        let mut queue = Queue::new();
        if settings.gate.is_some() {
            queue.add(Key::Config, clock.elapsed());
        }
        Self {
            client: client.clone(),
            clock: clock.clone(),
            gate: Arc::new(gate),
            views,
            heard: listen(client, settings, clock),
            daemons: BTreeMap::new(),
            queue,
            doubtful: BTreeSet::new(),
            settings: settings.clone(),
            next_sweep: settings.sweep.map(|every| clock.elapsed() + every),
        }
    }

    /// Works until `stop`, and then until what has begun is done.
    async fn work(&mut self, stop: Stop) {
        let mut looks = FuturesUnordered::new();
        let mut stop = pin!(stop.fuse());
        let mut stopping = false;
        let mut last_call = None;
        let most = self.settings.concurrency;
        while !(stopping && looks.is_empty()) {
            self.admit();
            while !stopping
                && looks.len() < most
                && let Some(key) = self.next()
            {
                looks.push(self.look(key));
            }
            let due = self.queue.next().filter(|_| !stopping && looks.len() < most && self.synced());
            let wake = last_call.or([due, self.gate.wakes(), self.next_sweep].into_iter().flatten().min());
            tokio::select! {
                biased;
                () = &mut stop, if !stopping => {
                    info!(unfinished = looks.len(), "asked to stop");
                    stopping = true;
                    last_call = Some(self.clock.elapsed() + DRAIN);
                }
                Some((key, outcome, doubtful)) = looks.next(), if !looks.is_empty() => {
                    self.done(key, outcome, doubtful);
                }
                Some(heard) = self.heard.next() => self.hear(heard),
                () = self.clock.reach(wake.unwrap_or_default()), if wake.is_some() => {
                    if stopping {
                        return;
                    }
                    self.sweep();
                }
            }
        }
    }

    fn next(&mut self) -> Option<Key> {
        if self.synced() { self.queue.take(self.clock.elapsed()) } else { None }
    }

    /// Queues those for whom there is a slot now.
    fn admit(&mut self) {
        let now = self.clock.elapsed();
        for name in self.gate.admitted() {
            self.queue.add(Key::Node(name), now);
        }
    }

    /// Goes over all nodes, if somebody wants that.
    fn sweep(&mut self) {
        let now = self.clock.elapsed();
        let Some(every) = self.settings.sweep.filter(|_| self.next_sweep.is_some_and(|at| at <= now)) else {
            return;
        };
        self.next_sweep = Some(now + every);
        let names: Vec<String> = self.locked().nodes.all().map(|node| node.name.clone()).collect();
        for name in names {
            self.queue.add(Key::Node(name), now);
        }
    }

    fn locked(&self) -> MutexGuard<'_, Views> {
        self.views.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Before everything was listed, nothing is decided: what is missing then means nothing.
    fn synced(&self) -> bool {
        self.locked().synced()
    }

    fn look(&self, key: Key) -> impl Future<Output = (Key, Outcome, bool)> + Send + use<> {
        let (gate, doubtful, file) =
            (self.gate.clone(), self.doubtful.contains(&key), self.settings.gate.clone());
        async move {
            let (outcome, doubtful) = match &key {
                Key::Node(name) => gate.look_at(name, doubtful).await,
                Key::Status(name) => (gate.report(name).await, false),
                Key::Config => (gate.keep_file(file.as_ref()).await, false),
            };
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
        for gate in self.gate.touched() {
            self.report_soon(gate, now);
        }
        self.follow_daemons();
    }

    /// The figures of a gate changed. Many nodes that change together make one write.
    fn report_soon(&mut self, gate: String, now: Duration) {
        self.queue.add(Key::Status(gate), now + REPORT);
    }

    /// Watches the pods of the nodes that wait for some, and of no others.
    fn follow_daemons(&mut self) {
        let wanted: BTreeSet<String> =
            self.locked().wanting_pods().take(MOST_POD_WATCHES).map(str::to_owned).collect();
        self.daemons.retain(|node, watch| {
            let keep = wanted.contains(node);
            if !keep {
                watch.abort();
            }
            keep
        });
        for node in wanted {
            if self.daemons.contains_key(&node) {
                continue;
            }
            let part = Part { fields: Some(format!("spec.nodeName={node}")), ..Part::default() };
            let seed = self.settings.seed.wrapping_add(3);
            let pods = Api::<Pod>::all(self.client.clone());
            let pods = watch::follow(pods, "pods of a node", part, DaemonView::new, self.clock.clone(), seed);
            let name = node.clone();
            let (pods, handle) = abortable(pods.map(move |event| Heard::Daemon(name.clone(), event)));
            self.heard.push(pods.boxed());
            self.daemons.insert(node, handle);
        }
    }

    /// Takes in what a watch said, and queues what it touches.
    fn hear(&mut self, heard: Heard) {
        let now = self.clock.elapsed();
        let mut gates = Vec::new();
        let mut views = self.locked();
        let was_synced = views.synced();
        let names: Vec<String> = match heard {
            Heard::Node(event) => views.nodes.take(event, now).into_iter().map(|node| node.name).collect(),
            Heard::Worker(event) => {
                views.workers.take(event, now).into_iter().map(|worker| worker.node_name).collect()
            }
            Heard::Gate(event) => {
                let before = identities(&views);
                gates = views.gates.take(event, now).into_iter().map(|gate| gate.name).collect();
                // What a gate says about itself concerns no node.
                let changed = identities(&views) != before;
                views.nodes.all().filter(|_| changed).map(|node| node.name.clone()).collect()
            }
            Heard::Daemon(node, event) => {
                views.take_daemon(&node, event, now);
                vec![node]
            }
        };
        if !was_synced && views.synced() {
            info!(nodes = views.nodes.all().count(), gates = views.gates.all().count(), "synced");
        }
        drop(views);
        for name in names {
            self.queue.add(Key::Node(name), now);
        }
        if !gates.is_empty() && self.settings.gate.is_some() {
            self.queue.add(Key::Config, now);
        }
        for gate in gates {
            self.report_soon(gate, now);
        }
    }
}

/// What about the gates concerns nodes.
fn identities(views: &Views) -> Vec<(String, i64, bool)> {
    views.gates.all().map(|gate| (gate.uid.clone(), gate.generation, gate.deleting)).collect()
}

fn listen(client: &Client, settings: &Settings, clock: &Clock) -> SelectAll<BoxStream<'static, Heard>> {
    let seed = settings.seed;
    let nodes = Api::<Node>::all(client.clone());
    let keep = |node: &Node| Some(NodeView::new(node));
    let nodes = watch::follow(nodes, "nodes", Part::default(), keep, clock.clone(), seed);
    let workers = Api::<Pod>::namespaced(client.clone(), &settings.template.namespace);
    let part = Part { labels: Some(SELECTOR.into()), ..Part::default() };
    let workers =
        watch::follow(workers, "workers", part, WorkerView::new, clock.clone(), seed.wrapping_add(1));
    // Not as the type itself: one gate that a newer release wrote must not keep us from reading the others.
    let gates = Api::<DynamicObject>::all_with(client.clone(), &ApiResource::erase::<NodeGate>(&()));
    let gates =
        watch::follow(gates, "gates", Part::default(), read_gate, clock.clone(), seed.wrapping_add(2));
    select_all([
        nodes.map(Heard::Node).boxed(),
        workers.map(Heard::Worker).boxed(),
        gates.map(Heard::Gate).boxed(),
    ])
}

fn read_gate(object: &DynamicObject) -> Option<GateView> {
    let read = serde_json::to_value(object).and_then(serde_json::from_value::<NodeGate>);
    read.map_err(
        |error| warn!(gate = object.name_any(), %error, "this gate cannot be read, and holds nobody"),
    )
    .ok()
    .map(|gate| GateView::new(&gate))
}
