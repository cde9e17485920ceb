//! The watches, and what follows from what they say.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{Stream, StreamExt as _, abortable};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, ResourceExt as _};
use nodekeeper_core::api::{NodeGate, NodeRemediation, RemediationPolicy};
use nodekeeper_core::gate::{GateView, wanted_labels};
use nodekeeper_core::node::NodeView;
use nodekeeper_core::remediate::{Policy, Remediation};
use nodekeeper_core::worker::{CONTROLS, Progress, SELECTOR, WorkerView};
use tracing::{info, warn};

use super::{Key, REPORT, Term};
use crate::views::{DaemonView, Views};
use crate::watch::{self, Event, Keep, Part};

/// So many nodes at most have their pods watched at once; others wait for their turn.
const MOST_POD_WATCHES: usize = 100;

/// What one of the watches said.
pub(super) enum Heard {
    Node(Event<NodeView>),
    Worker(Event<WorkerView>),
    Gate(Box<Event<GateView>>),
    Control(Event<WorkerView>),
    Remediation(Box<Event<Remediation>>),
    Policy(Box<Event<Policy>>),
    /// About a pod of a `DaemonSet` on this node.
    Daemon(String, Event<DaemonView>),
}

impl Term {
    /// Takes in what a watch said, and queues what it touches.
    pub(super) fn hear(&mut self, heard: Heard) {
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
            Heard::Remediation(event) => {
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
        let acts = |policy: &Option<Policy>| policy.as_ref().map(Policy::decision_state);
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
            let pending = views.requests.all().filter(|request| !request.is_complete());
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
            let is_for = |request: &&Remediation| nodes.iter().any(|node| **node == *request.spec.node.name);
            let pending = views.requests.all().filter(|request| !request.is_complete()).filter(is_for);
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
        let gate = views.gates.all().find(|gate| gate.uid == worker.identity.gate_uid);
        if let (Some(gate), true, false) = (gate, has_not(known), has_not(worker)) {
            self.settings.metrics.worker_runs(&gate.name, now.saturating_sub(known.first_seen));
        }
    }

    /// Watches gates and workers. Nodes follow when the gates are known: they say which labels are needed.
    pub(super) fn listen(&mut self) {
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
        self.heard.push(requests.map(|event| Heard::Remediation(Box::new(event))).boxed());
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
    pub(super) fn follow_daemons(&mut self) {
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

fn read_request(object: &DynamicObject) -> Option<Remediation> {
    let read = serde_json::to_value(object).and_then(serde_json::from_value::<NodeRemediation>);
    let unread = |error| warn!(remediation = object.name_any(), %error, "cannot be read, and is left alone");
    read.map_err(unread).ok().map(|request| Remediation::new(&request))
}

/// One that cannot be read is none, and without one nothing destructive happens.
fn read_policy(object: &DynamicObject) -> Option<Policy> {
    let read = serde_json::to_value(object).and_then(serde_json::from_value::<RemediationPolicy>);
    let unread = |error| warn!(%error, "the RemediationPolicy cannot be read: nothing destructive is done");
    read.map_err(unread).ok().and_then(|policy| Policy::new(&policy))
}
