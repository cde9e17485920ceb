//! The gate status controller: writes the status of each NodeGate.

mod autoscalers;

use std::sync::Arc;
use std::time::Duration;

use nodekeeper_core::api::NodeGateStatus;
use nodekeeper_core::autoscaler::{Autoscalers, judge};
use nodekeeper_core::configured::ObjectKind;
use nodekeeper_core::fleet::{GateStatusInput, Unserved, audit, gated_nodes, shadowing_gate, status};
use nodekeeper_core::gate::{GateView, State};
use nodekeeper_core::reasons;
use parking_lot::Mutex;

use super::{Shared, TermState, kinds};
use crate::apply::WriteError;
use crate::runtime::{Action, Change, ControllerOptions, ReconcileError, Reconciler};

/// Changes of a gate's counts are gathered for so long before they are written.
const DEBOUNCE: Duration = Duration::from_secs(2);
/// How often autoscalers are looked for.
const AUTOSCALER_PERIOD: Duration = Duration::from_mins(10);

/// Reconciles the status of gates.
pub struct GateStatusReconciler {
    shared: Arc<Shared>,
    term: Arc<TermState>,
    autoscalers: Mutex<Option<(Duration, Autoscalers)>>,
}

impl GateStatusReconciler {
    pub fn new(shared: Arc<Shared>, term: Arc<TermState>) -> Self {
        Self { shared, term, autoscalers: Mutex::default() }
    }

    async fn read_autoscalers(&self) {
        let now = self.shared.clock.elapsed();
        let read_at = self.autoscalers.lock().as_ref().map(|(at, _)| *at);
        if read_at.is_none_or(|at| now >= at + AUTOSCALER_PERIOD) {
            let found = autoscalers::read(&self.shared.client).await;
            *self.autoscalers.lock() = Some((now, found));
        }
    }

    fn next_status(&self, name: &str) -> Option<(GateView, NodeGateStatus)> {
        let Shared { caches, clock, metrics, .. } = &*self.shared;
        let (gates, nodes) = (caches.gates.lock(), caches.nodes.lock());
        let gate = gates.get(name)?.clone();
        let fleet = self.term.fleet.lock();
        let refused = self.term.limiter.lock().refusal(name, clock.elapsed());
        let all: Vec<&GateView> = gates.iter().collect();
        let shadowed_by = shadowing_gate(&gate, &all, nodes.iter());
        let unserved = gate.spec.taints.iter().find_map(|taint| {
            let count = fleet.counts(&taint.key).count(State::Unserved);
            let node = fleet.example(&taint.key, State::Unserved)?;
            (count > 0).then_some(Unserved { taint: &taint.key, node, count })
        });
        let taints: Vec<&str> = gate.spec.taints.iter().map(|taint| taint.key.as_str()).collect();
        let autoscalers = self.autoscalers.lock();
        let nothing = Autoscalers { pools: Ok(Vec::new()), cluster_autoscaler: false };
        let there = autoscalers.as_ref().map_or(&nothing, |(_, found)| found);
        let counts = fleet.counts(name);
        let found = judge(there, &taints, !counts.is_empty());
        if there.pools.as_ref().is_ok_and(|pools| !pools.is_empty()) {
            metrics.set_autoscaler_compatible("karpenter", found.reason != reasons::TAINT_IS_PERMANENT);
        }
        if there.cluster_autoscaler {
            metrics.set_autoscaler_compatible("cluster-autoscaler", found.status == "True");
        }
        let input = GateStatusInput {
            gate: &gate,
            counts: &counts,
            gated_nodes: gated_nodes(&fleet, &gate, nodes.iter()),
            audit: audit(&gate, nodes.iter()),
            refused: refused.as_deref(),
            pods_forbidden: caches.daemon_pods.is_forbidden(),
            failed_writes: self.term.failed_writes.lock().summary(name),
            shadowed_by: shadowed_by.as_ref().map(|(other, count)| (other.as_str(), *count)),
            unserved,
            autoscalers: found,
            configuration: self.shared.configuration_finding(
                ObjectKind::NodeGate,
                name,
                gate.last_applied.as_deref(),
                &gate.spec,
            ),
        };
        let now = clock.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let next = status(&input, &gate.status, &now);
        Some((gate, next))
    }
}

impl Reconciler for GateStatusReconciler {
    const NAME: &'static str = "gate_status";
    type Key = Arc<str>;

    fn needs(&self) -> Vec<&'static str> {
        vec![kinds::NODES, kinds::WORKERS, kinds::GATES]
    }

    fn keys(&self, change: &Change) -> Vec<Arc<str>> {
        match change.kind {
            kinds::GATES if !change.is_whole_kind() => {
                let (_, after) = change.states::<GateView>();
                match after {
                    Some(gate) => self.shared.metrics.set_gate(&gate.name, gate.spec.enforcement.as_str()),
                    None => self.shared.metrics.remove_gate(&change.key),
                }
                vec![change.key.clone()]
            }
            kinds::GATE_COUNTS => vec![change.key.clone()],
            kinds::CONFIGURATION => {
                change.key.strip_prefix("NodeGate/").map(Into::into).into_iter().collect()
            }
            kinds::DAEMON_PODS if self.shared.caches.daemon_pods.is_forbidden() => {
                self.shared.caches.gates.lock().keys().cloned().collect()
            }
            _ => Vec::new(),
        }
    }

    fn all_keys(&self) -> Vec<Arc<str>> {
        let gates = self.shared.caches.gates.lock();
        for gate in gates.iter() {
            self.shared.metrics.set_gate(&gate.name, gate.spec.enforcement.as_str());
        }
        gates.keys().cloned().collect()
    }

    fn options(&self) -> ControllerOptions {
        ControllerOptions { concurrency: 4, debounce: DEBOUNCE, ..ControllerOptions::default() }
    }

    async fn reconcile(&self, name: &Arc<str>) -> Result<Action, ReconcileError> {
        self.read_autoscalers().await;
        let Some((gate, next)) = self.next_status(name) else {
            self.term.limiter.lock().forget(name);
            return Ok(Action::AwaitChange);
        };
        if next == gate.status {
            return Ok(Action::RequeueAfter(AUTOSCALER_PERIOD));
        }
        match self.shared.writer.patch_gate_status(&gate, &next).await {
            Ok(written) => {
                self.shared.apply_response(&self.shared.caches.gates, GateView::new(&written));
                Ok(Action::RequeueAfter(AUTOSCALER_PERIOD))
            }
            // The gate was deleted or created again, which the watch shows.
            Err(error @ (WriteError::Conflict(_) | WriteError::Gone(_))) => {
                Err(ReconcileError(format!("status of a gate that changed: {error}")))
            }
            Err(error) => Err(ReconcileError(format!("status not written: {error}"))),
        }
    }
}
