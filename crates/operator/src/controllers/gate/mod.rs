//! The gate controller: keeps a taint on each new node until a worker pod has verified it.

mod effects;
mod live_reads;
mod metrics;
mod observe;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use nodekeeper_core::gate::{Effect, GateView};
use nodekeeper_core::id::Id;
use nodekeeper_core::limits::{PendingNode, VanishedWorkers};
use nodekeeper_core::node::NodeView;
use nodekeeper_core::remediate::Policy;
use nodekeeper_core::worker::{AgentView, Progress, WorkerView};
use parking_lot::Mutex;
use tracing::{debug, info};

use super::{Shared, TermState, kinds};
use crate::apply::WriteError;
use crate::runtime::{Action, Change, ControllerOptions, Priority, ReconcileError, Reconciler};

use effects::FailedEffect;
use observe::Evaluation;

/// The shortest time until a node is reconciled again though nothing changed.
const MIN_REQUEUE: Duration = Duration::from_millis(10);

/// So many decisions with effects in a row are made without a pause; then the node is retried with backoff.
const MAX_STREAK: u32 = 6;

/// Events about a node that are remembered by no write.
#[derive(Debug, Default)]
struct EmittedEvents {
    uid: String,
    events: BTreeSet<(&'static str, u32)>,
}

/// Reconciles nodes.
pub struct GateReconciler {
    shared: Arc<Shared>,
    term: Arc<TermState>,
    emitted: Mutex<BTreeMap<String, EmittedEvents>>,
    /// Gates whose node conditions the API server refuses, and until when they are not tried again.
    refused_conditions: Mutex<BTreeMap<String, Duration>>,
    /// Nodes whose last write may or may not have landed: they are read before the next decision.
    needs_live_read: Mutex<BTreeSet<Arc<str>>>,
    /// By node: since when it is Ready and has the taint of a gate that audits.
    ready_since: Mutex<BTreeMap<Arc<str>, Duration>>,
    /// By uid of a gate: when it was last read from the API server.
    gates_read: Mutex<BTreeMap<String, Duration>>,
    /// By node: decisions with effects since the last one without.
    streaks: Mutex<BTreeMap<Arc<str>, u32>>,
    vanished: Mutex<VanishedWorkers>,
    /// Nodes that the API server does not have any more, with their uid. Events of a watch that is behind are still about
    /// them.
    gone: Mutex<BTreeMap<Arc<str>, Id>>,
    /// By node: since when it has had no Ready agent, where agents are expected.
    agentless_since: Mutex<BTreeMap<Arc<str>, Duration>>,
}

impl GateReconciler {
    pub fn new(shared: Arc<Shared>, term: Arc<TermState>) -> Self {
        Self {
            shared,
            term,
            emitted: Mutex::default(),
            refused_conditions: Mutex::default(),
            needs_live_read: Mutex::default(),
            ready_since: Mutex::default(),
            gates_read: Mutex::default(),
            streaks: Mutex::default(),
            vanished: Mutex::default(),
            gone: Mutex::default(),
            agentless_since: Mutex::default(),
        }
    }

    fn all_nodes(&self) -> Vec<Arc<str>> {
        self.shared.caches.nodes.lock().keys().cloned().collect()
    }

    /// The node was deleted.
    fn forget(&self, name: &str) {
        let Shared { caches, metrics, clock, .. } = &*self.shared;
        let changed = self.term.fleet.lock().set(&name.into(), None);
        self.emitted.lock().remove(name);
        self.streaks.lock().remove(name);
        self.vanished.lock().remove(name);
        self.ready_since.lock().remove(name);
        self.agentless_since.lock().remove(name);
        self.forget_failed_write(name);
        metrics.remove_node(name);
        caches.daemon_pods.want(name, false, clock.elapsed());
        self.counts_changed(changed);
    }

    fn counts_changed(&self, gates: impl IntoIterator<Item = Arc<str>>) {
        for gate in gates {
            self.shared.dispatcher.dispatch(&Change::derived(kinds::GATE_COUNTS, gate));
        }
    }

    /// The node is decided about again at once, but not without end.
    fn again(&self, name: &Arc<str>) -> Result<Action, ReconcileError> {
        let mut streaks = self.streaks.lock();
        let streak = streaks.entry(name.clone()).or_default();
        *streak += 1;
        if *streak < MAX_STREAK {
            return Ok(Action::RequeueAfter(Duration::ZERO));
        }
        streaks.remove(name);
        self.needs_live_read.lock().insert(name.clone());
        Err(ReconcileError(format!("{MAX_STREAK} decisions in a row had effects")))
    }

    /// Nothing is to be done until something changes or a time has come.
    fn settle(&self, evaluation: &Evaluation) -> Action {
        let Evaluation { node, gate, decision, .. } = evaluation;
        debug!(node = &*node.name, state = ?decision.state, why = decision.why, "nothing to do");
        self.streaks.lock().remove(&node.name);
        self.forget_landed_write(evaluation);
        if let (Some(gate), Some(workers)) = (gate.as_ref(), decision.wants_slot) {
            self.term.limiter.lock().wait(PendingNode {
                workers,
                created: node.created,
                node: node.name.to_string(),
                gate: gate.name.clone(),
            });
        }
        decision.recheck_in.map_or(Action::AwaitChange, |wait| Action::RequeueAfter(wait.max(MIN_REQUEUE)))
    }

    /// What follows a write that failed.
    async fn recover(&self, evaluation: &Evaluation, failed: FailedEffect) -> Result<Action, ReconcileError> {
        let name = &evaluation.node.name;
        let (write, FailedEffect { error, effect }) = (failed.write(), failed);
        let report = async |error: &WriteError, is_refused| {
            if let Some(write) = write {
                self.report_failed_write(evaluation, write, error, is_refused).await;
            }
        };
        match error {
            WriteError::Conflict(_) | WriteError::Gone(_) => {
                debug!(node = &**name, %error, "conflict; reading the node and the object again");
                if !self.read_node(name).await? {
                    // If another node of this name comes, the watch shows it.
                    self.forget(name);
                    return Ok(Action::AwaitChange);
                }
                if self.is_unchanged(&evaluation.node, &effect).await? {
                    // This was no conflict: the write would be refused again.
                    self.needs_live_read.lock().insert(name.clone());
                    report(&error, true).await;
                    return Err(ReconcileError(format!("refused: {}", error.message())));
                }
                self.again(name)
            }
            WriteError::NotLeader => Err(ReconcileError(error.to_string())),
            WriteError::Refused(_) => {
                report(&error, true).await;
                Err(ReconcileError(error.to_string()))
            }
            WriteError::OutcomeUnknown(_) => {
                self.needs_live_read.lock().insert(name.clone());
                report(&error, false).await;
                Err(ReconcileError(error.to_string()))
            }
        }
    }

    /// Notes that a worker ended, or that it was deleted before. Then its Node may be gone too, and the watch of nodes may be
    /// behind.
    fn observe_end(&self, change: &Change) {
        let goes_on = |worker: &WorkerView| !worker.has_ended() && !worker.deleting;
        match change.states::<WorkerView>() {
            (_, Some(worker)) if worker.has_ended() && !worker.deleting => {
                self.vanished.lock().remove(&worker.node_name);
            }
            // A kubelet ends what is deleted, with the phase Failed.
            (Some(worker), after) if goes_on(worker) && after.is_none_or(|after| after.deleting) => {
                let Shared { caches, clock, .. } = &*self.shared;
                let is_known = caches
                    .nodes
                    .lock()
                    .get(&worker.node_name)
                    .is_some_and(|node| node.uid == worker.identity.node_uid);
                if is_known {
                    self.vanished.lock().insert(&worker.node_name, clock.elapsed());
                    self.needs_live_read.lock().insert(worker.node_name.as_str().into());
                }
            }
            _ => {}
        }
    }

    /// Reports how long a worker pod took to start.
    fn observe_start(&self, change: &Change) {
        let (Some(before), Some(after)) = change.states::<WorkerView>() else { return };
        let has_not_started =
            |worker: &WorkerView| matches!(worker.progress, Progress::Waiting(..) | Progress::Unscheduled(_));
        if before.uid != after.uid || !has_not_started(before) || has_not_started(after) {
            return;
        }
        let gates = self.shared.caches.gates.lock();
        if let Some(gate) = gate_of(after, gates.iter()) {
            let took = self.shared.clock.elapsed().saturating_sub(after.first_seen);
            self.shared.metrics.observe_worker_start(gate, took);
        }
    }
}

impl Reconciler for GateReconciler {
    const NAME: &'static str = "gate";
    type Key = Arc<str>;

    /// A policy or remediations that cannot be read never keep a node from being verified.
    fn needs(&self) -> Vec<&'static str> {
        vec![kinds::NODES, kinds::WORKERS, kinds::GATES]
    }

    fn keys(&self, change: &Change) -> Vec<Arc<str>> {
        match change.kind {
            kinds::NODES if is_heartbeat(change) => Vec::new(),
            kinds::NODES | kinds::DAEMON_PODS if !change.is_whole_kind() => vec![change.key.clone()],
            kinds::WORKERS => {
                self.observe_start(change);
                self.observe_end(change);
                change
                    .latest::<WorkerView>()
                    .map(|worker| worker.node_name.as_str().into())
                    .into_iter()
                    .collect()
            }
            kinds::AGENTS => {
                let agents = change.states::<AgentView>();
                let node = |agent: Option<&AgentView>| agent.map(|agent| Arc::from(agent.node_name.as_str()));
                let mut nodes: Vec<Arc<str>> =
                    [node(agents.0), node(agents.1)].into_iter().flatten().collect();
                nodes.retain(|node| !node.is_empty());
                nodes.dedup();
                nodes
            }
            kinds::GATES => {
                let (before, after) = change.states::<GateView>();
                let identity = |gate: &GateView| (gate.uid.clone(), gate.generation, gate.deleting);
                // What a gate's status says concerns no node.
                if before.map(identity) == after.map(identity) { Vec::new() } else { self.all_nodes() }
            }
            kinds::POLICIES | kinds::REMEDIATIONS if change.is_whole_kind() => self.all_nodes(),
            kinds::POLICIES => {
                let (before, after) = change.states::<Policy>();
                let outages = |policy: Option<&Policy>| policy.map(|policy| policy.status.down.clone());
                let changed = outages(before).unwrap_or_default() != outages(after).unwrap_or_default();
                if changed { self.all_nodes() } else { Vec::new() }
            }
            _ => Vec::new(),
        }
    }

    /// A node whose worker has ended goes before nodes whose worker can start: it can be used now, and it frees a slot.
    fn priority(&self, change: &Change) -> Priority {
        let (_, after) = change.states::<WorkerView>();
        if after.is_some_and(WorkerView::has_ended) { Priority::Urgent } else { Priority::Normal }
    }

    fn all_keys(&self) -> Vec<Arc<str>> {
        self.all_nodes()
    }

    fn options(&self) -> ControllerOptions {
        let settings = &self.shared.settings;
        ControllerOptions { concurrency: settings.concurrency, resync: settings.resync, ..Default::default() }
    }

    async fn reconcile(&self, name: &Arc<str>) -> Result<Action, ReconcileError> {
        let started = self.shared.clock.elapsed();
        let result = self.reconcile_node(name).await;
        let took = self.shared.clock.elapsed().saturating_sub(started);
        self.shared.metrics.observe_node_reconcile(name, (&result).into(), took);
        result
    }

    /// The nodes for which there are slots now.
    fn due_keys(&self) -> Vec<Arc<str>> {
        let workers = self.shared.caches.workers.lock();
        let (mut limiter, now) = (self.term.limiter.lock(), self.shared.clock.elapsed());
        self.shared.metrics.set_active_workers(limiter.taken(workers.iter(), now));
        limiter.admit(workers.iter(), now).into_iter().map(Into::into).collect()
    }

    fn next_wakeup(&self) -> Option<Duration> {
        let workers = self.shared.caches.workers.lock();
        self.term.limiter.lock().next_wakeup(workers.iter(), self.shared.clock.elapsed())
    }
}

impl GateReconciler {
    /// Reads what the watches do not show, decides once and applies the effects.
    async fn reconcile_node(&self, name: &Arc<str>) -> Result<Action, ReconcileError> {
        let needs_live_read = self.needs_live_read.lock().remove(name);
        if self.is_gone(name) || (needs_live_read && !self.read_node(name).await?) {
            self.forget(name);
            return Ok(Action::AwaitChange);
        }
        self.read_unwatched_workers(name).await?;
        self.take_confirmations(name);
        let mut evaluation = self.evaluate(name);
        if let Some(pod) = evaluation.as_ref().and_then(|found| found.decision.gives_up_on.as_ref()) {
            self.read_worker(pod).await?;
            evaluation = self.evaluate(name);
        }
        let Some(evaluation) = evaluation else {
            self.forget(name);
            return Ok(Action::AwaitChange);
        };
        let decision = &evaluation.decision;
        if decision.effects.is_empty() {
            return Ok(self.settle(&evaluation));
        }
        if let (Some(number), Some(gate)) = (started_worker(&decision.effects), &evaluation.gate)
            && let Some(wait) = self.vanished.lock().wait(name, self.shared.clock.elapsed())
        {
            self.term.limiter.lock().cancel(&gate.name, number);
            self.streaks.lock().remove(name);
            let seconds = wait.as_secs_f64();
            info!(node = &**name, seconds, "workers of the node were removed before they ended; waiting");
            return Ok(Action::RequeueAfter(wait));
        }
        if let Some(gate) = &evaluation.gate {
            let is_current = self.is_gate_current(gate, &decision.effects).await;
            if !matches!(is_current, Ok(true)) {
                if let Some(number) = started_worker(&decision.effects) {
                    self.term.limiter.lock().cancel(&gate.name, number);
                }
                is_current?;
                return self.again(name);
            }
        }
        info!(node = &**name, state = ?decision.state, why = decision.why, "decided");
        match self.apply(&evaluation).await {
            // The responses are in the cache: what follows from them is decided next.
            Ok(()) => {
                self.forget_landed_write(&evaluation);
                self.again(name)
            }
            Err(failed) => self.recover(&evaluation, failed).await,
        }
    }
}

/// Whether nothing changed that a decision of the gate depends on. Kubelets write their status every five minutes.
fn is_heartbeat(change: &Change) -> bool {
    let (Some(before), Some(after)) = change.states::<NodeView>() else { return false };
    before.is_same_state(after)
}

/// The name of the gate for which a worker was created.
fn gate_of<'a>(worker: &WorkerView, mut gates: impl Iterator<Item = &'a GateView>) -> Option<&'a str> {
    gates.find(|gate| gate.uid == worker.identity.gate_uid).map(|gate| gate.name.as_str())
}

/// The number of the worker that a decision starts.
fn started_worker(effects: &[Effect]) -> Option<u32> {
    effects.iter().find_map(|effect| match effect {
        Effect::StartWorker(identity) => Some(identity.number),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use nodekeeper_core::api::NodeGate;
    use nodekeeper_core::checks::WorkerIdentity;
    use nodekeeper_core::worker::PartialPod;

    use super::*;

    #[test]
    fn t06_the_start_of_a_worker_counts_for_its_own_gate() {
        let gate = |name: &str| {
            let mut gate = NodeGate::new(name, nodekeeper_core::api::NodeGateSpec::default());
            gate.metadata.uid = Some(format!("uid-of-{name}"));
            GateView::new(&gate)
        };
        let gates = [gate("a"), gate("b")];
        let identity = WorkerIdentity { gate_uid: "uid-of-b".into(), ..WorkerIdentity::default() };
        let mut worker = WorkerView::unreadable(&PartialPod::default(), &NodeView::default(), &identity);
        assert_eq!(gate_of(&worker, gates.iter()), Some("b"));
        worker.identity.gate_uid = "gone".into();
        assert_eq!(gate_of(&worker, gates.iter()), None);
    }
}
