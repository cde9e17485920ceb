//! The time in which we lead: the watches, the queue and the loop that joins them.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _, Shared};
use futures::stream::{
    AbortHandle, BoxStream, FuturesUnordered, SelectAll, Stream, StreamExt as _, abortable,
};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client, ResourceExt as _};
use nodekeeper_core::api::{NodeGate, NodeRemediation, RemediationPolicy};
use nodekeeper_core::gate::{GateView, wanted_labels};
use nodekeeper_core::node::NodeView;
use nodekeeper_core::remediate::{Policy, Request};
use nodekeeper_core::worker::{CONTROLS, Progress, SELECTOR, WorkerView};
use tracing::{info, warn};

use crate::apply::Writer;
use crate::clock::Clock;
use crate::gate::Gate;
use crate::leader::Leader;
use crate::queue::{Outcome, Queue};
use crate::remediate::Remediator;
use crate::run::Settings;
use crate::views::{DaemonView, Views};
use crate::watch::{self, Event, Keep, Part};

/// How long work that has begun may take when we are asked to stop.
const DRAIN: Duration = Duration::from_secs(10);
/// How often the loop says that it turns, whatever happens, and counts what only it can see.
const BEAT: Duration = Duration::from_secs(5);
/// Changes of a gate's figures are gathered for so long before they are written.
const REPORT: Duration = Duration::from_secs(2);
/// So many nodes at most have their pods watched at once; others wait for their turn.
const MOST_POD_WATCHES: usize = 100;

/// Comes true when we are asked to stop.
pub type Stop = Shared<BoxFuture<'static, ()>>;

/// What one of the watches said.
enum Heard {
    Node(Event<NodeView>),
    Worker(Event<WorkerView>),
    Gate(Box<Event<GateView>>),
    Control(Event<WorkerView>),
    Request(Box<Event<Request>>),
    Policy(Box<Event<Policy>>),
    /// About a pod of a `DaemonSet` on this node.
    Daemon(String, Event<DaemonView>),
}

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
            self.settings.metrics.looking_at(looks.len());
            let wake = last_call.or([due, self.gate.wakes(), self.next_sweep].into_iter().flatten().min());
            tokio::select! {
                biased;
                () = &mut stop, if !stopping => {
                    info!(unfinished = looks.len(), "asked to stop");
                    self.settings.health.stops();
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
        self.settings.health.beat(now);
        self.settings.health.leads(self.locked().missing());
        self.settings.metrics.queue_has(&self.queue.numbers(now));
        self.follow_daemons();
    }

    fn next(&mut self) -> Option<Key> {
        if !self.synced() {
            return None;
        }
        let (now, due) = (self.clock.elapsed(), self.queue.next());
        let key = self.queue.take(now)?;
        self.settings.metrics.taken(now.saturating_sub(due.unwrap_or(now)));
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
            let node = if let Key::Node(name) = &key { Some(&**name) } else { None };
            metrics.reconciled(node, outcome, clock.elapsed().saturating_sub(started));
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

    /// Takes in what a watch said, and queues what it touches.
    fn hear(&mut self, heard: Heard) {
        let now = self.clock.elapsed();
        let was_synced = self.synced();
        let mut names = match heard {
            Heard::Node(event) => {
                let names = self.locked().nodes.take(event, now);
                self.look_at_requests_for(&names, now);
                names
            }
            Heard::Worker(event) => {
                self.time_the_start(&event, now);
                self.locked().workers.take(event, now)
            }
            Heard::Gate(event) => self.hear_gate(*event, now),
            Heard::Control(event) => {
                // When a run began is known only of our own: others were before anything that we know.
                self.locked().controls.take(event, Duration::ZERO);
                self.look_at_requests(now);
                Vec::new()
            }
            Heard::Request(event) => {
                let touched = self.locked().requests.take(*event, now);
                for request in touched {
                    self.queue.add(Key::Remediation(request), now);
                }
                self.queue.add(Key::Policy, now);
                Vec::new()
            }
            Heard::Policy(event) => self.hear_policy(*event, now),
            Heard::Daemon(node, event) => {
                self.locked().take_daemon(&node, event, now);
                vec![node.into()]
            }
        };
        let missing = self.locked().missing();
        if !was_synced && missing.is_empty() {
            let views = self.locked();
            info!(nodes = views.nodes.all().count(), gates = views.gates.all().count(), "synced");
            drop(views);
            names = self.all_nodes();
            self.look_at_requests(now);
        }
        self.settings.health.leads(missing);
        self.glance_at(names, now);
        self.follow_daemons();
    }

    /// Returns the nodes that it concerns.
    fn hear_gate(&mut self, event: Event<GateView>, now: Duration) -> Vec<Arc<str>> {
        let mut views = self.locked();
        let before = identities(&views);
        let gates = views.gates.take(event, now);
        // What a gate says about itself concerns no node.
        let changed = identities(&views) != before;
        let enforcement = |gate: &Arc<str>| views.gates.get(gate).map(|gate| gate.spec.enforcement.as_str());
        for gate in &gates {
            match enforcement(gate) {
                Some(word) => self.settings.metrics.gate_is(gate, word),
                None => self.settings.metrics.forget_gate(gate),
            }
        }
        let wanted = wanted_labels(views.gates.all());
        let needs_more =
            views.gates.is_synced() && (self.nodes.is_none() || !wanted.is_subset(&views.labels));
        drop(views);
        for gate in gates {
            self.queue.add(Key::Status(gate), now + REPORT);
            if self.settings.gate.is_some() {
                self.queue.add(Key::Config, now);
            }
        }
        if needs_more {
            self.follow_nodes(wanted);
        }
        if changed { self.all_nodes() } else { Vec::new() }
    }

    /// Returns the nodes that it concerns.
    fn hear_policy(&mut self, event: Event<Policy>, now: Duration) -> Vec<Arc<str>> {
        let before = self.locked().the_policy().cloned();
        let mut views = self.locked();
        views.policy.take(event, now);
        let after = views.the_policy().cloned();
        drop(views);
        let acts = |policy: &Option<Policy>| policy.as_ref().map(Policy::brakes);
        if acts(&before) == acts(&after) {
            return Vec::new();
        }
        self.look_at_requests(now);
        let down = |policy: Option<Policy>| policy.map(|policy| policy.status.down).unwrap_or_default();
        // What was down for all works again, or no longer: nodes stand still for it.
        if down(before) == down(after) { Vec::new() } else { self.all_nodes() }
    }

    /// All requests that are not history, and the policy.
    fn look_at_requests(&mut self, now: Duration) {
        let pending: Vec<Arc<str>> = {
            let views = self.locked();
            let pending = views.requests.all().filter(|request| !request.is_history());
            pending.map(|request| request.name.as_str().into()).collect()
        };
        for request in pending {
            self.queue.add(Key::Remediation(request), now);
        }
        self.queue.add(Key::Policy, now);
    }

    /// The requests for these nodes.
    fn look_at_requests_for(&mut self, nodes: &[Arc<str>], now: Duration) {
        let concerned: Vec<Arc<str>> = {
            let views = self.locked();
            let is_for = |request: &&Request| nodes.iter().any(|node| **node == *request.spec.node.name);
            let pending = views.requests.all().filter(|request| !request.is_history()).filter(is_for);
            pending.map(|request| request.name.as_str().into()).collect()
        };
        for request in concerned {
            self.queue.add(Key::Remediation(request), now);
        }
    }

    /// A worker runs that was known not to.
    fn time_the_start(&self, event: &Event<WorkerView>, now: Duration) {
        let Event::Is(worker) = event else { return };
        let views = self.locked();
        let Some(known) = views.workers.get(&worker.name) else { return };
        let has_not =
            |worker: &WorkerView| matches!(worker.progress, Progress::Waiting(..) | Progress::Unscheduled(_));
        let gate = views.gates.all().find(|gate| gate.uid == worker.subject.gate_uid);
        if let (Some(gate), true, false) = (gate, has_not(known), has_not(worker)) {
            self.settings.metrics.worker_runs(&gate.name, now.saturating_sub(known.first_seen));
        }
    }

    /// Watches gates and workers. Nodes follow when the gates are known: they say which labels are needed.
    fn listen(&mut self) {
        let workers = Api::<Pod>::namespaced(self.client.clone(), &self.settings.template.namespace);
        let part = Part { labels: Some(SELECTOR.into()), ..Part::default() };
        let workers = self.follow(workers, "workers", part, Arc::new(WorkerView::new), 1);
        self.heard.push(workers.map(Heard::Worker).boxed());
        // Not as the type itself: one gate that a newer release wrote must not keep us from reading the others.
        let gates = Api::<DynamicObject>::all_with(self.client.clone(), &ApiResource::erase::<NodeGate>(&()));
        let gates = self.follow(gates, "gates", Part::default(), Arc::new(read_gate), 2);
        self.heard.push(gates.map(|event| Heard::Gate(Box::new(event))).boxed());
        self.listen_to_remediation();
    }

    /// A cluster without these kinds, or that does not let us read them, has none of them: gates go on.
    fn listen_to_remediation(&mut self) {
        let part = || Part { optional: true, ..Part::default() };
        let controls = Api::<Pod>::namespaced(self.client.clone(), &self.settings.template.namespace);
        let selected = Part { labels: Some(CONTROLS.into()), ..part() };
        let controls = self.follow(controls, "controls", selected, Arc::new(WorkerView::control), 4);
        self.heard.push(controls.map(Heard::Control).boxed());
        let requests = ApiResource::erase::<NodeRemediation>(&());
        let requests = Api::<DynamicObject>::all_with(self.client.clone(), &requests);
        let requests = self.follow(requests, "remediations", part(), Arc::new(read_request), 5);
        self.heard.push(requests.map(|event| Heard::Request(Box::new(event))).boxed());
        let policies = ApiResource::erase::<RemediationPolicy>(&());
        let policies = Api::<DynamicObject>::all_with(self.client.clone(), &policies);
        let policies = self.follow(policies, "policy", part(), Arc::new(read_policy), 6);
        self.heard.push(policies.map(|event| Heard::Policy(Box::new(event))).boxed());
    }

    /// Watches nodes, and keeps these of their labels. Until all of them were listed, nothing is decided.
    fn follow_nodes(&mut self, labels: BTreeSet<Arc<str>>) {
        let mut views = self.locked();
        views.labels.clone_from(&labels);
        views.nodes.unsync();
        drop(views);
        if let Some(watch) = self.nodes.take() {
            watch.abort();
        }
        let keep = Arc::new(move |node: &Node| Some(NodeView::new(node).with_labels(&labels)));
        let nodes = self.follow(Api::<Node>::all(self.client.clone()), "nodes", Part::default(), keep, 0);
        let (nodes, watch) = abortable(nodes.map(Heard::Node));
        self.heard.push(nodes.boxed());
        self.nodes = Some(watch);
    }

    /// Watches the pods of the nodes that wait for some, and of no others.
    fn follow_daemons(&mut self) {
        let now = self.clock.elapsed();
        let (wanted, unwanted) = self.locked().wanting_pods(MOST_POD_WATCHES, now);
        self.daemons.retain(|node, watch| {
            // What was unwanted for a moment has to be listed anew.
            let keep = wanted.contains(node) && !unwanted.contains(node);
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
            let pods = Api::<Pod>::all(self.client.clone());
            let pods = self.follow(pods, "pods of a node", part, Arc::new(DaemonView::new), 3);
            let name = node.clone();
            let (pods, watch) = abortable(pods.map(move |event| Heard::Daemon(name.clone(), event)));
            self.heard.push(pods.boxed());
            self.daemons.insert(node, watch);
        }
    }

    fn follow<K, V>(
        &self,
        api: Api<K>,
        kind: &'static str,
        part: Part,
        keep: Keep<K, V>,
        which: u64,
    ) -> impl Stream<Item = Event<V>> + Send + use<K, V>
    where
        K: kube::Resource + Clone + serde::de::DeserializeOwned + std::fmt::Debug + Send + 'static,
        V: Send + 'static,
    {
        watch::follow(api, kind, part, keep, self.clock.clone(), self.settings.seed.wrapping_add(which))
    }
}

/// What about the gates concerns nodes.
fn identities(views: &Views) -> Vec<(String, i64, bool)> {
    views.gates.all().map(|gate| (gate.uid.clone(), gate.generation, gate.deleting)).collect()
}

fn read_gate(object: &DynamicObject) -> Option<GateView> {
    let read = serde_json::to_value(object).and_then(serde_json::from_value::<NodeGate>);
    read.map_err(
        |error| warn!(gate = object.name_any(), %error, "this gate cannot be read, and holds nobody"),
    )
    .ok()
    .map(|gate| GateView::new(&gate))
}

fn read_request(object: &DynamicObject) -> Option<Request> {
    let read = serde_json::to_value(object).and_then(serde_json::from_value::<NodeRemediation>);
    let unread = |error| warn!(remediation = object.name_any(), %error, "cannot be read, and is left alone");
    read.map_err(unread).ok().map(|request| Request::new(&request))
}

/// One that cannot be read is none, and without one nothing destructive happens.
fn read_policy(object: &DynamicObject) -> Option<Policy> {
    let read = serde_json::to_value(object).and_then(serde_json::from_value::<RemediationPolicy>);
    let unread = |error| warn!(%error, "the RemediationPolicy cannot be read: nothing destructive is done");
    read.map_err(unread).ok().and_then(|policy| Policy::new(&policy))
}
