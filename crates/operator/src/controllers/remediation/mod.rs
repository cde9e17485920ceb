//! The remediation controller: decides about `NodeRemediations`, and carries out those that were approved.

mod effects;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{try_join_all, try_join3};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::ListParams;
use nodekeeper_core::api::{NodeGate, NodeRemediation};
use nodekeeper_core::gate::GateView;
use nodekeeper_core::remediate::decision::{Decision, LiveState, RefusalBackoff, decide, decide_cached};
use nodekeeper_core::remediate::drain::PodView;
use nodekeeper_core::remediate::provider::{NodeClaims, Replacement, find};
use nodekeeper_core::remediate::{GroupStats, Policy, Remediation, Target};
use parking_lot::Mutex;
use tracing::{debug, info, warn};

use self::effects::Failed;
use super::{Shared, TermState, kinds};
use crate::apply::WriteError;
use crate::providers;
use crate::runtime::call::{CallError, READ_TIMEOUT, call};
use crate::runtime::{Action, Change, ControllerOptions, ReconcileError, Reconciler};

/// The objects of a remediation are read again after so long: each of many events may concern all remediations.
const READ_PERIOD: Duration = Duration::from_secs(1);
/// For so long the counts of all nodes are used again.
const STATS_PERIOD: Duration = Duration::from_secs(1);
/// After a write that met a change.
const CONFLICT_WAIT: Duration = Duration::from_secs(5);
/// After an act or an approval that met a change.
const SOON: Duration = Duration::from_millis(100);
/// For so long an act may rely on what was read. Then everything is read again.
const LIVE_FOR: Duration = Duration::from_secs(5);
/// What a failed write of the remediation's status is called.
const STATUS: &str = "the status";

/// The evictions of one remediation that were refused.
#[derive(Clone, Default)]
struct RefusedEvictions {
    backoff: RefusalBackoff,
    /// When each pod was tried last, by uid.
    tried_at: BTreeMap<String, Duration>,
    /// When they are tried again. What else happens to the remediation meanwhile is no reason to.
    until: Duration,
}

/// What was read from the API server for one decision.
struct Reading {
    remediation: Remediation,
    live: LiveState,
    /// When the reads of what permits an act began.
    at: Duration,
}

/// Reconciles remediations.
pub struct RemediationReconciler {
    shared: Arc<Shared>,
    term: Arc<TermState>,
    /// Refused evictions, by remediation.
    evictions: Mutex<BTreeMap<String, RefusedEvictions>>,
    /// When the objects of a remediation were read last.
    read_at: Mutex<BTreeMap<String, Duration>>,
    /// Other refused requests, by remediation, and when the next may be sent.
    refusals: Mutex<BTreeMap<String, (RefusalBackoff, Duration)>>,
    stats: Mutex<Option<(Duration, Arc<GroupStats>)>>,
}

impl RemediationReconciler {
    pub fn new(shared: Arc<Shared>, term: Arc<TermState>) -> Self {
        Self {
            shared,
            term,
            evictions: Mutex::default(),
            read_at: Mutex::default(),
            refusals: Mutex::default(),
            stats: Mutex::default(),
        }
    }

    fn forget(&self, name: &str) {
        self.evictions.lock().remove(name);
        self.refusals.lock().remove(name);
        self.term.remember_policy_write(&self.shared, name, None);
    }

    /// The policy's condition has to say it: the remediation's own status cannot.
    fn report_failed_status(&self, known: &Remediation, error: &WriteError, is_refused: bool) {
        let message = format!("the status of NodeRemediation {}: {}", known.name, error.message());
        self.term.remember_policy_write(&self.shared, &known.name, Some((message, is_refused)));
    }

    /// How long to wait before the objects of a remediation are read again. Now, if there is nothing to wait for.
    fn read_wait(&self, name: &str) -> Option<Duration> {
        let elapsed = self.shared.clock.elapsed();
        let mut read_at = self.read_at.lock();
        let left = read_at.get(name).and_then(|at| (*at + READ_PERIOD).checked_sub(elapsed));
        let left = left.filter(|left| !left.is_zero());
        if left.is_none() {
            read_at.insert(name.to_owned(), elapsed);
        }
        left
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

    /// Reads all that a decision about a remediation depends on from the API server, past the caches. None if the
    /// remediation is gone. What can permit or forbid an act is read last, because the other reads may take long.
    async fn read(&self, known: &Remediation) -> Result<Option<Reading>, ReconcileError> {
        let Shared { client, clock, .. } = &*self.shared;
        let (node, uid) = (&known.spec.node.name, &known.spec.node.uid);
        let not_read = |error: CallError| ReconcileError(format!("objects not read: {error}"));
        let view = |node: Option<Node>| node.map(|node| Target::new(&node));
        let first = view(self.shared.get_node(node).await.map_err(not_read)?);
        let first = first.filter(|target| target.identity.uid == *uid);
        let (mut pods, mut claims) = (Vec::new(), NodeClaims::NotServed);
        if let Some(target) = &first {
            let params = ListParams::default().fields(&format!("spec.nodeName={node}"));
            let all = call(READ_TIMEOUT, Api::<Pod>::all(client.clone()).list(&params)).await;
            pods = all.map_err(not_read)?.items.iter().map(PodView::new).collect();
            claims = providers::read(client, target).await;
        }
        let at = clock.elapsed();
        let remediation = self.shared.get::<NodeRemediation>(&known.name).await.map_err(not_read)?;
        let remediation = remediation.map(|read| Remediation::new(&read));
        let Some(remediation) = remediation.filter(|read| read.uid == known.uid) else { return Ok(None) };
        let reads = try_join3(
            self.shared.get_policy(),
            try_join_all(remediation.gate_names().map(|name| self.shared.get::<NodeGate>(name))),
            self.shared.get_node(node),
        );
        let (policy, gates, last) = reads.await.map_err(not_read)?;
        let target = view(last).filter(|target| target.identity.uid == *uid);
        let machine = |target: &Target| (target.identity.clone(), target.owner.clone());
        if first.as_ref().map(machine) != target.as_ref().map(machine) {
            return Err(ReconcileError("the node changed while its pods were read".into()));
        }
        let may_delete_node = policy.as_ref().is_some_and(|one| one.deletes_node_object_for(&remediation));
        let replacement = target.as_ref().map(|target| find(target, &claims, may_delete_node));
        let gates = gates.iter().flatten().map(GateView::new).collect();
        let replacement = replacement.unwrap_or(Replacement::None);
        let missing_rights = self.shared.missing_rights(policy.as_ref()).await;
        let live = LiveState { policy, gates, target, pods, replacement, missing_rights };
        Ok(Some(Reading { remediation, live, at }))
    }

    /// How long requests of this remediation have to wait, because the API server refused one.
    fn backoff_left(&self, name: &str) -> Option<Duration> {
        let until = self.refusals.lock().get(name).map(|(_, until)| *until)?;
        until.checked_sub(self.shared.clock.elapsed()).filter(|left| !left.is_zero())
    }

    /// Counts one more refusal. Returns how long to wait, and whether it is the first in a row.
    fn back_off(&self, known: &Remediation, message: String) -> (Duration, bool) {
        let elapsed = self.shared.clock.elapsed();
        let mut refusals = self.refusals.lock();
        let (backoff, until) = refusals.entry(known.name.clone()).or_default();
        let is_first = backoff.message.is_empty();
        let wait = backoff.refused(message);
        *until = elapsed + wait;
        (wait, is_first)
    }

    /// The next request may be sent at once: a single lost answer says nothing.
    fn forget_backoff(&self, name: &str) {
        self.refusals.lock().entry(name.to_owned()).or_default().1 = Duration::ZERO;
    }

    /// What follows a write that failed.
    /// One that the API server refuses is named in the status, and tried again after a growing time.
    async fn handle_failure(&self, known: &Remediation, failed: Failed) -> Result<Action, ReconcileError> {
        let Failed { error, what, is_refused } = failed;
        let message = match &error {
            WriteError::Conflict(message) | WriteError::Gone(message) if !is_refused => {
                debug!(remediation = known.name, message, "changed meanwhile");
                return Ok(Action::RequeueAfter(if what == STATUS { CONFLICT_WAIT } else { SOON }));
            }
            WriteError::NotLeader => return Err(ReconcileError(error.to_string())),
            _ if what == STATUS => {
                self.report_failed_status(known, &error, is_refused);
                // The controller's own backoff would begin anew with each reconcile that waits for its turn to read.
                let (wait, is_first) = self.back_off(known, error.to_string());
                if is_first && !is_refused {
                    self.forget_backoff(&known.name);
                    return Err(ReconcileError(error.to_string()));
                }
                warn!(node = known.spec.node.name, %error, "status not written");
                return Ok(Action::RequeueAfter(wait));
            }
            _ => format!("{what} failed: {error}"),
        };
        let (wait, is_first) = self.back_off(known, message.clone());
        if is_first && matches!(error, WriteError::OutcomeUnknown(_)) {
            self.forget_backoff(&known.name);
            return Err(ReconcileError(message));
        }
        warn!(node = known.spec.node.name, message, "request refused");
        if known.is_complete() {
            // Its end is recorded. Only the cordon is left, and the policy's condition says so.
            self.term.remember_policy_write(&self.shared, &known.name, Some((message, true)));
            return Ok(Action::RequeueAfter(wait));
        }
        let status = known.refused_status(&message, self.shared.clock.now());
        if status != known.status
            && let Err(error) = self.update_status(known, &status, None).await
        {
            debug!(remediation = known.name, %error, "refusal not reported");
            if self.is_status_refused(known, &error).await {
                self.report_failed_status(known, &error, true);
            }
        }
        Ok(Action::RequeueAfter(wait))
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
        let gate = remediation.newest_gate().unwrap_or_default();
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
            kinds::GATES if gate_changed(change) => {
                self.pending(|one| one.gate_names().any(|name| *name == *change.key))
            }
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
        let Some(known) = known else {
            self.forget(name);
            self.read_at.lock().remove(&**name);
            return Ok(Action::AwaitChange);
        };
        if let Some(left) = self.backoff_left(name) {
            return Ok(Action::RequeueAfter(left));
        }
        let stats = self.group_stats();
        let cached = caches.with_cluster(clock, |cluster| decide_cached(&known, cluster, &stats));
        let (decision, reading) = if let Some(decision) = cached {
            (decision, None)
        } else {
            if let Some(left) = self.read_wait(name) {
                return Ok(Action::RequeueAfter(left));
            }
            // Its deletion is on its way to the cache.
            let Some(reading) = self.read(&known).await? else { return Ok(Action::AwaitChange) };
            let refused = self.evictions.lock().get(&**name).map(|refused| refused.backoff.message.clone());
            let decision = caches.with_cluster(clock, |cluster| {
                decide(&reading.remediation, cluster, &stats, &reading.live, refused.as_deref())
            });
            (decision, Some(reading))
        };
        let remediation = reading.as_ref().map_or(&known, |reading| &reading.remediation);
        self.report_block(remediation, &decision);
        match self.apply(remediation, reading.as_ref(), &decision).await {
            Ok(wait) => {
                self.refusals.lock().remove(&**name);
                self.term.remember_policy_write(&self.shared, name, None);
                let wait = wait.or(decision.requeue_after);
                if wait.is_none() {
                    self.forget(name);
                }
                Ok(wait.map_or(Action::AwaitChange, Action::RequeueAfter))
            }
            Err(failed) => self.handle_failure(remediation, failed).await,
        }
    }
}

/// Whether a gate was created, changed or deleted. Its status does not matter here.
fn gate_changed(change: &Change) -> bool {
    let (before, after) = change.states::<GateView>();
    let state = |gate: &GateView| (gate.uid.clone(), gate.generation, gate.deleting);
    before.map(state) != after.map(state)
}

/// Whether a policy changed in what remediations are decided by.
pub(super) fn acts_changed(change: &Change) -> bool {
    let (before, after) = change.states::<Policy>();
    before.map(Policy::decision_state) != after.map(Policy::decision_state)
}
