//! The remediation controller: decides about `NodeRemediations`, and carries out those that were approved.

mod effects;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use nodekeeper_core::remediate::decision::{Decision, EvictionBackoff, LiveState, decide, decide_cached};
use nodekeeper_core::remediate::drain::PodView;
use nodekeeper_core::remediate::provider::Replacement;
use nodekeeper_core::remediate::{GroupStats, Policy, Remediation, Target};
use parking_lot::Mutex;
use tracing::{debug, info};

use super::{Shared, kinds};
use crate::apply::WriteError;
use crate::providers;
use crate::runtime::call::{CallError, READ_TIMEOUT, call};
use crate::runtime::{Action, Change, ControllerOptions, ReconcileError, Reconciler};

/// For so long the counts of all nodes are used again.
const STATS_PERIOD: Duration = Duration::from_secs(1);
/// After a write that met a change.
const CONFLICT_WAIT: Duration = Duration::from_secs(5);
/// After an act or an approval that met a change.
const SOON: Duration = Duration::from_millis(100);

/// Reconciles remediations.
pub struct RemediationReconciler {
    shared: Arc<Shared>,
    /// Refused evictions, by remediation.
    evictions: Mutex<BTreeMap<String, EvictionBackoff>>,
    stats: Mutex<Option<(Duration, Arc<GroupStats>)>>,
}

impl RemediationReconciler {
    pub fn new(shared: Arc<Shared>) -> Self {
        Self { shared, evictions: Mutex::default(), stats: Mutex::default() }
    }

    /// Counts all nodes. Many remediations are reconciled in the same moment, so the counts are kept for a second.
    fn group_stats(&self) -> Arc<GroupStats> {
        let elapsed = self.shared.clock.elapsed();
        let mut last = self.stats.lock();
        if let Some((_, stats)) = last.as_ref().filter(|(at, _)| elapsed < *at + STATS_PERIOD) {
            return stats.clone();
        }
        let stats =
            self.shared.caches.with_cluster(&self.shared.clock, |cluster| Arc::new(cluster.group_stats()));
        *last = Some((elapsed, stats.clone()));
        stats
    }

    /// Reads the node, its pods and who would replace it from the API server, past the caches.
    async fn read(&self, remediation: &Remediation) -> Result<LiveState, CallError> {
        let name = &remediation.spec.node.name;
        let node = self.shared.get_node(name).await?;
        let target = node.map(|node| Target::new(&node));
        let Some(target) = target.filter(|target| target.identity.uid == remediation.spec.node.uid) else {
            return Ok(LiveState { target: None, pods: Vec::new(), replacement: Replacement::None });
        };
        let pods: Api<Pod> = Api::all(self.shared.client.clone());
        let params = ListParams::default().fields(&format!("spec.nodeName={name}"));
        let pods = call(READ_TIMEOUT, pods.list(&params)).await?;
        let policy = self.shared.caches.policy();
        let may_delete_node = policy.is_some_and(|policy| policy.deletes_node_object_for(remediation));
        let replacement = providers::find(&self.shared.client, &target, may_delete_node).await;
        let pods = pods.items.iter().map(PodView::new).collect();
        Ok(LiveState { target: Some(target), pods, replacement })
    }

    fn pending(&self, is_concerned: impl Fn(&Remediation) -> bool) -> Vec<Arc<str>> {
        let remediations = self.shared.caches.remediations.lock();
        let pending = remediations.iter().filter(|one| !one.is_complete() && is_concerned(one));
        pending.map(|one| one.name.as_str().into()).collect()
    }

    fn report_block(&self, remediation: &Remediation, decision: &Decision) {
        let Some(blocked) = &decision.newly_blocked else { return };
        let (node, reason) = (&remediation.spec.node.name, blocked.reason.as_str());
        info!(node, reason, why = blocked.message, "remediation blocked");
        let gate = remediation.gate_cause().map_or("", |(gate, _)| gate);
        self.shared.metrics.inc_remediations_blocked(gate, reason);
    }
}

impl Reconciler for RemediationReconciler {
    const NAME: &'static str = "remediation";
    type Key = Arc<str>;

    fn needs(&self) -> Vec<&'static str> {
        vec![kinds::NODES, kinds::GATES, kinds::CONTROLS, kinds::REMEDIATIONS, kinds::POLICIES]
    }

    fn keys(&self, change: &Change) -> Vec<Arc<str>> {
        match change.kind {
            _ if change.is_whole_kind() => Vec::new(),
            kinds::REMEDIATIONS => vec![change.key.clone()],
            kinds::NODES => self.pending(|one| *one.spec.node.name == *change.key),
            kinds::CONTROLS => self.pending(|_| true),
            kinds::POLICIES if acts_changed(change) => self.pending(|_| true),
            _ => Vec::new(),
        }
    }

    fn all_keys(&self) -> Vec<Arc<str>> {
        self.shared.caches.remediations.lock().keys().cloned().collect()
    }

    fn options(&self) -> ControllerOptions {
        ControllerOptions { concurrency: 8, ..ControllerOptions::default() }
    }

    async fn reconcile(&self, name: &Arc<str>) -> Result<Action, ReconcileError> {
        let Shared { caches, clock, .. } = &*self.shared;
        let known = caches.remediations.lock().get(name).cloned();
        let Some(remediation) = known else {
            self.evictions.lock().remove(&**name);
            return Ok(Action::AwaitChange);
        };
        let stats = self.group_stats();
        let cached = caches.with_cluster(clock, |cluster| decide_cached(&remediation, cluster, &stats));
        let (decision, policy, target) = if let Some(decision) = cached {
            (decision, None, None)
        } else {
            let live = self.read(&remediation).await;
            let live = live.map_err(|error| ReconcileError(format!("node not read: {error}")))?;
            let refused = self.evictions.lock().get(&**name).map(|backoff| backoff.message.clone());
            let (decision, policy) = caches.with_cluster(clock, |cluster| {
                let decision = decide(&remediation, cluster, &stats, &live, refused.as_deref());
                (decision, cluster.policy.cloned())
            });
            (decision, policy, live.target)
        };
        self.report_block(&remediation, &decision);
        match self.apply(&remediation, policy.as_ref(), target.as_ref(), &decision).await {
            Ok(wait) => {
                let wait = wait.or(decision.requeue_after);
                if wait.is_none() {
                    self.evictions.lock().remove(&**name);
                }
                Ok(wait.map_or(Action::AwaitChange, Action::RequeueAfter))
            }
            Err(effects::Failed {
                error: WriteError::Conflict(message) | WriteError::Gone(message),
                of_status,
            }) => {
                debug!(remediation = &**name, message, "changed meanwhile");
                Ok(Action::RequeueAfter(if of_status { CONFLICT_WAIT } else { SOON }))
            }
            Err(failed) => Err(ReconcileError(failed.error.to_string())),
        }
    }
}

/// Whether a policy changed in what remediations are decided by.
pub(super) fn acts_changed(change: &Change) -> bool {
    let (before, after) = change.states::<Policy>();
    before.map(Policy::decision_state) != after.map(Policy::decision_state)
}
