//! The caches of the controllers: which kinds are watched, and what is kept of each object.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client, Resource, ResourceExt as _};
use nodekeeper_core::api::{NodeGate, NodeRemediation, RemediationPolicy};
use nodekeeper_core::gate::{GateView, wanted_labels};
use nodekeeper_core::id::Id;
use nodekeeper_core::labels::NodeTexts;
use nodekeeper_core::node::{NodeView, PartialNode};
use nodekeeper_core::remediate::{ClusterView, Policy, Remediation};
use nodekeeper_core::worker::{self, AGENTS, AgentView, CONTROLS, PartialPod, SELECTOR, WorkerView};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tracing::warn;

use super::daemon_pods::{DaemonPodSource, DaemonPods};
use super::kinds;
use crate::clock::Clock;
use crate::run::Settings;
use crate::runtime::cache::{CacheState as _, Signal};
use crate::runtime::manager::Manager;
use crate::runtime::source::Start;
use crate::runtime::store::{Store, parse_version};
use crate::runtime::watcher::{Selector, WatchEvent};
use crate::runtime::{Cache, Cached};

impl Cached for NodeView {
    fn key(&self) -> Arc<str> {
        self.name.clone()
    }

    fn resource_version(&self) -> u64 {
        self.resource_version
    }

    fn on_insert(&mut self, now: Duration) {
        (self.record_seen_at, self.failing_since) = (now, now);
    }

    fn on_update(&mut self, before: &Self, now: Duration) {
        // The key of the cache is this text too.
        self.name = before.name.clone();
        let is_same = self.record == before.record;
        self.record_seen_at = if is_same { before.record_seen_at } else { now };
        let failed_before = |scope| before.failing_scopes().any(|known| known == scope);
        let goes_on = || self.failing_scopes().next().is_some() && self.failing_scopes().all(failed_before);
        self.failing_since = if is_same || goes_on() { before.failing_since } else { now };
    }
}

impl Cached for WorkerView {
    fn key(&self) -> Arc<str> {
        self.name.as_str().into()
    }

    fn resource_version(&self) -> u64 {
        parse_version(&self.resource_version)
    }

    fn on_insert(&mut self, now: Duration) {
        self.observe(None, now);
    }

    fn on_update(&mut self, before: &Self, now: Duration) {
        self.observe(Some(before), now);
    }
}

/// A control worker. When it began is known only of those that this replica created: others count as older than
/// anything that it knows.
#[derive(Clone, Debug)]
pub struct ControlView(pub WorkerView);

impl Cached for ControlView {
    fn key(&self) -> Arc<str> {
        self.0.key()
    }

    fn resource_version(&self) -> u64 {
        self.0.resource_version()
    }

    fn on_insert(&mut self, _now: Duration) {}

    fn on_update(&mut self, before: &Self, _now: Duration) {
        self.0.first_seen = if self.0.uid == before.0.uid { before.0.first_seen } else { Duration::ZERO };
    }
}

impl Cached for AgentView {
    fn key(&self) -> Arc<str> {
        self.name.as_str().into()
    }

    fn resource_version(&self) -> u64 {
        parse_version(&self.resource_version)
    }
}

impl Cached for GateView {
    fn key(&self) -> Arc<str> {
        self.name.as_str().into()
    }

    fn resource_version(&self) -> u64 {
        parse_version(&self.resource_version)
    }
}

impl Cached for Remediation {
    fn key(&self) -> Arc<str> {
        self.name.as_str().into()
    }

    fn resource_version(&self) -> u64 {
        parse_version(&self.resource_version)
    }
}

impl Cached for Policy {
    fn key(&self) -> Arc<str> {
        Self::NAME.into()
    }

    fn resource_version(&self) -> u64 {
        parse_version(&self.resource_version)
    }
}

/// The caches, which every replica keeps.
pub struct Caches {
    pub nodes: Cache<NodeView>,
    pub workers: Cache<WorkerView>,
    pub gates: Cache<GateView>,
    pub controls: Cache<ControlView>,
    pub remediations: Cache<Remediation>,
    pub policies: Cache<Policy>,
    /// The pods of agents; none are watched unless the nodes of a gate are left to agents.
    pub agents: Cache<AgentView>,
    pub daemon_pods: DaemonPods,
    /// The labels that are kept of nodes, and what nodes have in common.
    texts: Arc<Mutex<NodeTexts>>,
    /// Names of worker pods that the watch does not show, because the label by which it selects was removed.
    unwatched: Mutex<BTreeSet<String>>,
}

impl Caches {
    /// Starts the watches of all kinds.
    pub fn watch(manager: &mut Manager, client: &Client, settings: &Settings) -> Self {
        let namespace = &settings.template.namespace;
        let pods = || Api::<PartialPod>::namespaced(client.clone(), namespace);
        let labelled = |labels: &str| Selector { labels: Some(labels.into()), ..Selector::default() };
        let optional = Selector { optional: true, ..Selector::default() };
        let workers = manager.watch(kinds::WORKERS, pods(), labelled(SELECTOR), Arc::new(WorkerView::new));
        // As untyped objects: one that a newer release wrote must not keep us from reading the others.
        let gates = manager.watch(
            kinds::GATES,
            untyped::<NodeGate>(client),
            Selector::default(),
            Arc::new(|object: &DynamicObject| parse::<NodeGate>(object).map(|gate| GateView::new(&gate))),
        );
        let controls = manager.watch(
            kinds::CONTROLS,
            pods(),
            Selector { optional: true, ..labelled(CONTROLS) },
            Arc::new(|pod: &PartialPod| WorkerView::control(pod).map(ControlView)),
        );
        let remediations = manager.watch(
            kinds::REMEDIATIONS,
            untyped::<NodeRemediation>(client),
            optional.clone(),
            Arc::new(|object: &DynamicObject| parse(object).map(|read| Remediation::new(&read))),
        );
        let policies = manager.watch(
            kinds::POLICIES,
            untyped::<RemediationPolicy>(client),
            optional,
            Arc::new(|object: &DynamicObject| parse(object).and_then(|read| Policy::new(&read))),
        );
        let texts: Arc<Mutex<NodeTexts>> = Arc::default();
        let shared = texts.clone();
        let nodes = manager.watch_when(
            kinds::NODES,
            Api::<PartialNode>::all(client.clone()),
            // Each node's heartbeat is a change.
            Selector { gathers: true, ..Selector::default() },
            Arc::new(move |node: &PartialNode| Some(NodeView::trimmed(node, &mut shared.lock()))),
            Some(Box::new(label_condition(gates.clone(), texts.clone()))),
        );
        let agents = watch_agents(manager, client, settings);
        let daemon_pods = DaemonPods::new(manager.signal());
        let (clock, seed) = (manager.clock().clone(), manager.next_seed());
        manager.add_source(DaemonPodSource::new(client.clone(), daemon_pods.clone(), clock, seed));
        let unwatched = Mutex::default();
        Self {
            nodes,
            workers,
            gates,
            controls,
            remediations,
            policies,
            agents,
            daemon_pods,
            texts,
            unwatched,
        }
    }

    /// The caches of an agent: its node is watched, gates and workers come from the agent itself, and the rest is empty.
    pub fn of_node(manager: &mut Manager, client: &Client, node: &str) -> Self {
        let texts: Arc<Mutex<NodeTexts>> = Arc::default();
        let (shared, signal) = (texts.clone(), manager.signal());
        let gates: Cache<GateView> = Cache::new(kinds::GATES, signal.clone());
        let nodes = manager.watch_when(
            kinds::NODES,
            Api::<PartialNode>::all(client.clone()),
            Selector { fields: Some(format!("metadata.name={node}")), ..Selector::default() },
            Arc::new(move |node: &PartialNode| Some(NodeView::trimmed(node, &mut shared.lock()))),
            Some(Box::new(label_condition(gates.clone(), texts.clone()))),
        );
        Self {
            nodes,
            gates,
            workers: empty(kinds::WORKERS, &signal),
            controls: empty(kinds::CONTROLS, &signal),
            remediations: empty(kinds::REMEDIATIONS, &signal),
            policies: empty(kinds::POLICIES, &signal),
            agents: empty(kinds::AGENTS, &signal),
            daemon_pods: DaemonPods::new(signal),
            texts,
            unwatched: Mutex::default(),
        }
    }

    /// Whether a Ready agent runs on the node.
    pub fn has_ready_agent(&self, node: &str) -> bool {
        self.agents.lock().iter().any(|agent| agent.ready && agent.node_name == node)
    }

    /// What is kept of a node.
    pub fn view_node(&self, node: &PartialNode) -> NodeView {
        NodeView::trimmed(node, &mut self.texts.lock())
    }

    /// The workers of a node uid.
    pub fn workers_of(&self, node_uid: &Id) -> Vec<WorkerView> {
        self.workers.lock().with_prefix(&worker::name_prefix(&node_uid.to_string())).cloned().collect()
    }

    pub fn policy(&self) -> Option<Policy> {
        self.policies.lock().get(Policy::NAME).cloned()
    }

    /// Takes in a worker pod that the watch does not show.
    pub fn insert_unwatched_worker(&self, view: WorkerView, now: Duration) {
        self.unwatched.lock().insert(view.name.clone());
        self.workers.lock().force_insert(view, now);
    }

    /// The names of a node's worker pods that the watch does not show.
    pub fn unwatched_workers_of(&self, node_uid: &Id) -> Vec<String> {
        let prefix = worker::name_prefix(&node_uid.to_string());
        let unwatched = self.unwatched.lock();
        unwatched.range(prefix.clone()..).take_while(|name| name.starts_with(&prefix)).cloned().collect()
    }

    pub fn remove_unwatched_worker(&self, name: &str) {
        self.unwatched.lock().remove(name);
        self.workers.lock().remove(name);
    }

    /// Another replica led since these were read. The watch may have shown some of them later, so that only a new list brings
    /// them back.
    pub fn forget_unwatched_workers(&self) {
        let unwatched = std::mem::take(&mut *self.unwatched.lock());
        if unwatched.is_empty() {
            return;
        }
        for name in unwatched {
            self.workers.lock().remove(&name);
        }
        self.workers.request_relist();
    }

    /// Gives the cached objects to a decision about remediations.
    pub fn with_cluster<T>(&self, clock: &Clock, decide: impl FnOnce(&ClusterView<'_>) -> T) -> T {
        let (nodes, gates, controls) = (self.nodes.lock(), self.gates.lock(), self.controls.lock());
        let (remediations, policies) = (self.remediations.lock(), self.policies.lock());
        decide(&ClusterView {
            nodes: nodes.iter().collect(),
            gates: gates.iter().collect(),
            controls: controls.iter().map(|control| &control.0).collect(),
            remediations: remediations.iter().collect(),
            policy: policies.get(Policy::NAME),
            now: clock.now(),
            elapsed: clock.elapsed(),
        })
    }
}

/// Nodes are listed when the gates are known, which say which labels to keep; and again when a gate needs more labels.
fn label_condition(gates: Cache<GateView>, texts: Arc<Mutex<NodeTexts>>) -> impl FnMut(bool) -> Start + Send {
    let mut known = (0, 0);
    move |is_running| {
        // Asked at each event of any watch.
        let state = (gates.lists(), gates.position());
        if is_running && state == known {
            return Start::Keep;
        }
        let gates = gates.lock();
        if !gates.is_synced() {
            return if is_running { Start::Keep } else { Start::Wait };
        }
        known = state;
        let wanted = wanted_labels(Store::iter(&gates));
        let mut texts = texts.lock();
        if is_running && wanted.is_subset(&texts.wanted) {
            return Start::Keep;
        }
        texts.wanted = wanted;
        Start::Restart
    }
}

/// Watches the pods of agents, if nodes are left to them.
fn watch_agents(manager: &mut Manager, client: &Client, settings: &Settings) -> Cache<AgentView> {
    if settings.agents.is_none() {
        return empty(kinds::AGENTS, &manager.signal());
    }
    let namespace = settings.agents_namespace.as_ref().unwrap_or(&settings.template.namespace);
    let pods = Api::<PartialPod>::namespaced(client.clone(), namespace);
    let selector = Selector { labels: Some(AGENTS.into()), optional: true, ..Selector::default() };
    manager.watch(kinds::AGENTS, pods, selector, Arc::new(|pod: &PartialPod| Some(AgentView::new(pod))))
}

/// A cache of a kind that is not watched and counts as known.
fn empty<V: Cached>(kind: &'static str, signal: &Signal) -> Cache<V> {
    let cache = Cache::new(kind, signal.clone());
    for event in [WatchEvent::ListStarted, WatchEvent::ListEnded("0".into())] {
        cache.handle_event(event, Duration::ZERO, false);
    }
    cache.set_current(true);
    cache
}

pub(crate) fn untyped<K: Resource<DynamicType = ()>>(client: &Client) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &ApiResource::erase::<K>(&()))
}

/// Parses an object; one that cannot be parsed is treated as if it were not there.
pub(crate) fn parse<K: Resource<DynamicType = ()> + DeserializeOwned>(object: &DynamicObject) -> Option<K> {
    let parsed = serde_json::to_value(object).and_then(serde_json::from_value);
    let name = object.name_any();
    parsed
        .map_err(|error| warn!(kind = %K::kind(&()), name, %error, "object ignored: it cannot be parsed"))
        .ok()
}

#[cfg(test)]
mod tests {
    use nodekeeper_core::record::Record;
    use nodekeeper_core::report::Verdict;

    use super::*;

    #[test]
    fn a_node_that_fails_again_is_failing_since_its_first_failure() {
        let mut store: Store<NodeView> = Store::default();
        let mut version = 0;
        let mut since = |record: Record, at: u64| {
            version += 1;
            let record = Some(Box::new(Record { uid: "a".into(), ..record }));
            let node = NodeView {
                name: "n".into(),
                uid: "a".into(),
                resource_version: version,
                record,
                ..NodeView::default()
            };
            let event = WatchEvent::Applied(node, version.to_string());
            store.handle_event(kinds::NODES, event, Duration::from_secs(at), false);
            store.get("n").map(|node| (node.failing_since.as_secs(), node.record_seen_at.as_secs()))
        };
        let failed = |number| Record { number, verdict: Some(Verdict::Failed), ..Record::default() };
        assert_eq!(since(failed(1), 10), Some((10, 10)));
        assert_eq!(since(failed(2), 20), Some((10, 20)), "control runs between the two failures count");
        let inconclusive = Record { verdict: Some(Verdict::Inconclusive), ..failed(3) };
        assert_eq!((since(inconclusive, 30), since(failed(4), 40)), (Some((30, 30)), Some((40, 40))));
        let mut rebooted = failed(5);
        rebooted.scope.boot_id = "other".into();
        assert_eq!(since(rebooted, 50), Some((50, 50)));
    }
}
