//! Observes a node and what surrounds it, and lets `core::gate` decide.

use jiff::Timestamp;
use nodekeeper_core::api::{CauseSource, Enforcement, FailureAction};
use nodekeeper_core::fleet::NodeStatus;
use nodekeeper_core::gate::{
    AgentPod, Counted, Decision, Effect, Evaluated, Fleet, GateView, NodeInputs, Ownership, Slots, State,
    Surroundings, confirms, evaluate, ownership,
};
use nodekeeper_core::node::NodeView;
use nodekeeper_core::record::Record;
use nodekeeper_core::remediate::{evidence_ttl, reported_elsewhere};
use nodekeeper_core::worker::WorkerView;
use std::sync::Arc;
use tracing::info;

use super::super::Shared;
use super::{GateReconciler, started_worker};
use crate::metrics::compat_state;

/// A node, what was seen with it, and what is to be done.
pub(super) struct Evaluation {
    pub node: NodeView,
    /// The gate that decided, if one serves the node.
    pub gate: Option<GateView>,
    /// The node's record, with the section of that gate first.
    pub record: Record,
    /// The node carries the gate's taint.
    pub gated: bool,
    pub workers: Vec<WorkerView>,
    pub decision: Decision,
}

impl Surroundings for GateReconciler {
    fn slots(&self, gate: &str) -> Slots {
        let (workers, now) = (self.shared.caches.workers.lock(), self.shared.clock.elapsed());
        self.term.limiter.lock().free(gate, workers.iter(), now)
    }

    fn fleet(&self, gate: &GateView, node: &NodeView, gated: bool) -> Fleet {
        let refused = self.term.limiter.lock().refusal(&gate.name, self.shared.clock.elapsed()).is_some();
        let fleet = self.term.fleet.lock();
        let (decided, fleet) = (fleet.len(), fleet.fleet(&gate.name, refused));
        // Walks over all nodes, so it is found out only where something depends on it.
        let ran_elsewhere = gated && gate.spec.on_stuck == FailureAction::Replace && {
            let within = evidence_ttl(self.shared.caches.policy().as_ref());
            let nodes = self.shared.caches.nodes.lock();
            reported_elsewhere(nodes.iter(), gate, &node.uid.to_string(), within, self.shared.clock.now())
        };
        let is_partial = decided < self.shared.caches.nodes.lock().count();
        Fleet { ran_elsewhere, is_partial, ..fleet }
    }

    fn requested_at(&self, gate: &str, node: &NodeView) -> Option<Timestamp> {
        let remediations = self.shared.caches.remediations.lock();
        let remediation = remediations.get(&node.uid.to_string())?;
        let mut causes = remediation.spec.causes.iter();
        let cause = causes.find(|cause| cause.source == CauseSource::Gate && cause.name == gate)?;
        Some(cause.observed_at.unwrap_or(remediation.created))
    }

    fn agent(&self, gate: &str, node: &NodeView) -> AgentPod {
        let Shared { caches, clock, settings, .. } = &*self.shared;
        if settings.agents.as_deref() != Some(gate) {
            return AgentPod::NotExpected;
        }
        let mut agentless = self.agentless_since.lock();
        if caches.has_ready_agent(&node.name) {
            agentless.remove(&node.name);
            return AgentPod::Ready;
        }
        AgentPod::MissingSince(*agentless.entry(node.name.clone()).or_insert_with(|| clock.elapsed()))
    }
}

impl GateReconciler {
    /// In an agent, drops the worker whose result says only what the record of the node says already.
    pub(super) fn take_confirmations(&self, name: &str) {
        let Shared { caches, clock, .. } = &*self.shared;
        let Some(agent) = &self.shared.agent else { return };
        let Some(node) = caches.nodes.lock().get(name).cloned() else { return };
        let gates = caches.gates.lock();
        let all: Vec<&GateView> = gates.iter().collect();
        let Some(gate) = ownership(all.iter().copied(), &node).gate() else { return };
        for worker in caches.workers_of(&node.uid) {
            if confirms(&node, gate, &all, &worker) {
                agent.workers.confirm(&worker, gate, clock.elapsed());
            }
        }
    }

    /// Decides about a node once, and reserves the slot of a worker that is to start.
    pub(super) fn evaluate(&self, name: &str) -> Option<Evaluation> {
        let caches = &self.shared.caches;
        let node = caches.nodes.lock().get(name)?.clone();
        let workers = caches.workers_of(&node.uid);
        let daemons = caches.daemon_pods.of(name);
        let (now, elapsed) = (self.shared.clock.now(), self.shared.clock.elapsed());
        let policy = caches.policy();
        let is_known = caches.policies.lock().is_current() && caches.remediations.lock().is_current();
        let outages = policy.as_ref().map_or(&[][..], |policy| &policy.status.down);
        let gates = caches.gates.lock();
        let ready_since = self.ready_since.lock().get(name).copied().unwrap_or(elapsed);
        let inputs = NodeInputs {
            ready_since,
            confirmed_at: self.shared.agent.as_ref().and_then(|agent| agent.workers.confirmed_at()),
            node: &node,
            workers: &workers,
            daemons: daemons.as_deref(),
            outages: is_known.then_some(outages),
            now,
            elapsed,
        };
        let Evaluated { ownership, record, mut decision, counted } = evaluate(inputs, gates.iter(), self);
        if let Some(agent) = &self.shared.agent {
            if !agent.gates.is_own(ownership.gate()) {
                // The controller decides about nodes of other gates, and about those that have none.
                decision.effects.retain(|effect| matches!(effect, Effect::RemoveWorker { .. }));
            }
            self.shared.metrics.set_agent_gave_up(matches!(decision.state, State::Failed | State::Stuck));
        }
        let (gate, record) = (ownership.gate().cloned(), record.into_owned());
        let gated = matches!(ownership, Ownership::Gated(_));
        let gate_name = gate.as_ref().map_or("", |gate| gate.name.as_str());
        if let Some(number) = started_worker(&decision.effects) {
            self.term.limiter.lock().reserve(gate_name, number, decision.periodic, elapsed);
        }
        let audits = gate.as_ref().is_some_and(|gate| gate.spec.enforcement == Enforcement::Audit);
        if gated && audits && node.ready {
            self.ready_since.lock().entry(node.name.clone()).or_insert(elapsed);
        } else {
            self.ready_since.lock().remove(name);
        }
        self.drop_emitted_events(&node, &mut decision);
        if self.refused_conditions.lock().get(gate_name).is_some_and(|until| elapsed < *until) {
            decision.effects.retain(|effect| !matches!(effect, Effect::SetNodeCondition(_)));
        }
        self.update_fleet(&node, &counted, &decision, gates.iter());
        drop(gates);
        caches.daemon_pods.want(name, decision.wants_pods, elapsed);
        Some(Evaluation { node, gate, record, gated, workers, decision })
    }

    /// Enters the state of a node into the fleet index.
    fn update_fleet<'a>(
        &self,
        node: &NodeView,
        counted: &Counted<'_>,
        decision: &Decision,
        gates: impl Iterator<Item = &'a GateView>,
    ) {
        let Counted { ownership, record, state, also_verified_by } = counted;
        let gated = matches!(ownership, Ownership::Gated(_));
        let index = match ownership {
            Ownership::Gated(gate) | Ownership::Verified(gate) => &gate.name,
            Ownership::Unserved(taint, _) => *taint,
            Ownership::Released | Ownership::Unmanaged => "",
        };
        let mut fleet = self.term.fleet.lock();
        let status = NodeStatus {
            at: fleet.name(index),
            state: *state,
            // A node on which no worker can be started says nothing about others.
            cause: record.cause.filter(|_| gated && *state != State::Waiting),
            // Nodes that are about to be tainted count already: others are decided meanwhile.
            retainted: record.retainted
                || decision.effects.iter().any(|one| matches!(one, Effect::Retaint(_))),
            also_verified_by: also_verified_by.iter().map(|gate| fleet.name(&gate.name)).collect(),
            created_at: node.created.as_second(),
            retries: record.attempts.saturating_sub(1),
            worker_ms: None,
        };
        if gated && is_new(fleet.get(&node.name)) {
            info!(node = &*node.name, state = compat_state(*state), "Node added to queue");
        }
        let mut changed = fleet.set(&node.name, Some(status));
        drop(fleet);
        if changed.is_empty() {
            return;
        }
        // Which nodes one gate serves concerns the status of the others.
        changed.extend(gates.map(|gate| Arc::from(gate.name.as_str())));
        if *state == State::Waiting {
            info!(node = &*node.name, why = decision.why, "node waits");
        }
        changed.sort();
        changed.dedup();
        self.counts_changed(changed);
    }
}

/// Whether no gate had the node so far. A node may come before its gate.
fn is_new(status: Option<&NodeStatus>) -> bool {
    status.is_none_or(|status| matches!(status.state, State::Ungated | State::Unserved))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_comes_before_its_gate_is_new_to_it() {
        let status = |state| NodeStatus {
            at: "default".into(),
            state,
            cause: None,
            retainted: false,
            also_verified_by: Box::default(),
            created_at: 0,
            retries: 0,
            worker_ms: None,
        };
        assert!(is_new(None));
        for state in [State::Ungated, State::Unserved] {
            assert!(is_new(Some(&status(state))), "{state:?}");
        }
        for state in [State::Verified, State::Waiting, State::Unverified, State::Pending, State::Failed] {
            assert!(!is_new(Some(&status(state))), "{state:?}");
        }
    }
}
