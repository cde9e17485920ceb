//! The policy controller: keeps the status of the RemediationPolicy, control workers, cordons and history.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt as _;
use nodekeeper_core::api::NodeRemediation;
use nodekeeper_core::configured::ObjectKind;
use nodekeeper_core::remediate::decision::RefusalBackoff;
use nodekeeper_core::remediate::housekeeping::{
    PolicyEffect, PolicyFindings, cordons_to_remove, decide_policy, needs_cordon,
};
use nodekeeper_core::remediate::{Policy, Remediation, Target};
use nodekeeper_core::worker::WorkerView;
use parking_lot::Mutex;
use tracing::{info, warn};

use super::caches::ControlView;
use super::remediation::acts_changed;
use super::{Shared, TermState, kinds};
use crate::apply::{CreatedWorker, WriteError};
use crate::runtime::call::CallError;
use crate::runtime::{Action, Change, ReconcileError, Reconciler};

/// After a write that met a change.
const SOON: Duration = Duration::from_millis(100);
/// While the remediations cannot be watched.
const UNSERVED_PERIOD: Duration = Duration::from_secs(10);

/// There is one policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PolicyKey;

impl fmt::Display for PolicyKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(Policy::NAME)
    }
}

/// Reconciles the policy.
pub struct PolicyReconciler {
    shared: Arc<Shared>,
    term: Arc<TermState>,
    /// Refused writes of the policy's status in a row, and when the next may be sent.
    refusals: Mutex<(RefusalBackoff, Duration)>,
}

/// What became of the effects of one reconcile.
#[derive(Default)]
struct Results {
    errors: Vec<String>,
    /// The first write that failed, and whether it was refused.
    failed: Option<(String, bool)>,
    /// A write met a change, and is decided about again.
    has_changed: bool,
}

impl PolicyReconciler {
    pub fn new(shared: Arc<Shared>, term: Arc<TermState>) -> Self {
        Self { shared, term, refusals: Mutex::default() }
    }

    /// Reads the nodes whose cordon of ours has to go. Those that cannot be read keep it until the next time. A watch that
    /// is forbidden empties its cache, so policy and remediation are read too.
    async fn read_cordoned(&self, errors: &mut Vec<String>) -> Vec<Target> {
        let names: Vec<Arc<str>> = self.shared.caches.with_cluster(&self.shared.clock, |cluster| {
            cordons_to_remove(cluster).into_iter().map(|node| node.name.clone()).collect()
        });
        let mut targets = Vec::new();
        for name in names {
            match self.read_one_cordoned(&name).await {
                Ok(target) => targets.extend(target),
                Err(error) => errors.push(format!("node {name} not read: {error}")),
            }
        }
        targets
    }

    /// None if the cordon stays.
    async fn read_one_cordoned(&self, name: &str) -> Result<Option<Target>, CallError> {
        let Some(node) = self.shared.get_node(name).await? else { return Ok(None) };
        let target = Target::new(&node);
        let remediation = self.shared.get::<NodeRemediation>(&target.identity.uid).await?;
        let policy = self.shared.get_policy().await?;
        let remediation = remediation.map(|read| Remediation::new(&read));
        Ok((!needs_cordon(policy.as_ref(), remediation.as_ref())).then_some(target))
    }

    /// Whether the object of an effect that met a conflict has not changed: then trying again soon would not help.
    async fn is_refused(&self, policy: Option<&Policy>, effect: &PolicyEffect) -> bool {
        let Shared { writer, pods, .. } = &*self.shared;
        match (effect, policy) {
            (PolicyEffect::UpdateStatus(_), Some(policy)) => self.shared.is_policy_unchanged(policy).await,
            (PolicyEffect::UpdateStatus(_), None) => false,
            (PolicyEffect::Uncordon(target), _) => self.shared.is_node_unchanged(target).await,
            // Their uid is the only precondition.
            (PolicyEffect::DeleteRemediation(remediation), _) => {
                let live = self.shared.get::<NodeRemediation>(&remediation.name).await.ok().flatten();
                live.is_some_and(|live| live.uid().as_ref() == Some(&remediation.uid))
            }
            (PolicyEffect::DeleteControlWorker(control), _) => {
                let live = pods.get(writer, &control.name).await.ok().flatten();
                live.is_some_and(|live| live.uid().as_ref() == Some(&control.uid))
            }
            // A creation has no precondition, and its namespace may be missing.
            (PolicyEffect::CreateControlWorker { .. }, _) => true,
        }
    }

    /// How long the policy's status is not written, because the API server refused it. Other effects go on.
    fn status_wait(&self) -> Option<Duration> {
        let until = self.refusals.lock().1;
        until.checked_sub(self.shared.clock.elapsed()).filter(|left| !left.is_zero())
    }

    /// Counts the refusals of the policy's status in a row.
    fn status_answered(&self, refused: Option<&WriteError>) {
        let mut refusals = self.refusals.lock();
        match refused {
            Some(error) => {
                let wait = refusals.0.refused(error.message());
                refusals.1 = self.shared.clock.elapsed() + wait;
            }
            None => *refusals = (RefusalBackoff::default(), Duration::ZERO),
        }
    }

    /// What the API server has not accepted, for the policy's condition, if that is to be reported.
    fn failed_write(&self) -> Option<String> {
        self.term.policy_writes.lock().summary(Policy::NAME).map(|summary| summary.message)
    }

    /// Applies one effect. One that fails does not keep the others from being applied.
    async fn apply_one(
        &self,
        policy: Option<&Policy>,
        effect: &PolicyEffect,
        results: &mut Results,
    ) -> Result<(), ReconcileError> {
        let applied = self.apply(policy, effect).await;
        let is_refused = match &applied {
            Err(WriteError::NotLeader) => return Err(ReconcileError(WriteError::NotLeader.to_string())),
            Err(WriteError::Conflict(_) | WriteError::Gone(_)) => self.is_refused(policy, effect).await,
            Err(error) => matches!(error, WriteError::Refused(_)),
            Ok(()) => false,
        };
        if matches!(effect, PolicyEffect::UpdateStatus(_)) {
            self.status_answered(applied.as_ref().err().filter(|_| is_refused));
        }
        match applied {
            Ok(()) => {}
            Err(WriteError::Conflict(_) | WriteError::Gone(_)) if !is_refused => results.has_changed = true,
            Err(error) => {
                let message = error.message();
                // The first of them is reported.
                let failed = || (format!("{}: {message}", describe(effect)), is_refused);
                results.failed.get_or_insert_with(failed);
                results.errors.push(match error {
                    WriteError::Conflict(_) | WriteError::Gone(_) => {
                        format!("the API server refuses the write: {message}")
                    }
                    error => error.to_string(),
                });
            }
        }
        Ok(())
    }

    async fn apply(&self, policy: Option<&Policy>, effect: &PolicyEffect) -> Result<(), WriteError> {
        let Shared { caches, writer, pods, clock, .. } = &*self.shared;
        match effect {
            PolicyEffect::DeleteRemediation(remediation) => writer.delete_remediation(remediation).await,
            PolicyEffect::Uncordon(target) => {
                if let Some(patched) = writer.uncordon_node(target).await? {
                    info!(node = target.identity.name, "node uncordoned");
                    self.shared.apply_node(&patched);
                }
                Ok(())
            }
            PolicyEffect::DeleteControlWorker(control) => {
                pods.delete_worker(writer, &control.name, &control.uid).await?;
                caches.controls.lock().update(&control.name, |known| known.0.deleting = true);
                Ok(())
            }
            PolicyEffect::UpdateStatus(status) => {
                // Guarded by the policy that this was decided from, and no newer one.
                let Some(policy) = policy else {
                    return Err(WriteError::Conflict("there is no policy".into()));
                };
                let written = writer.update_policy_status(policy, status).await?;
                if let Some(policy) = Policy::new(&written) {
                    self.shared.apply_response(&caches.policies, policy);
                }
                Ok(())
            }
            PolicyEffect::CreateControlWorker { node, gate, identity } => {
                info!(node = &*node.name, gate = gate.name, "creating control worker pod");
                let began = clock.elapsed();
                let created = pods.create_control_worker(writer, node, gate, identity).await?;
                // When one began that was there already is not known. Its results may be older than the failure of the node.
                let (pod, began) = match &created {
                    CreatedWorker::New(pod) => (pod, Some(began)),
                    CreatedWorker::Adopted(pod) => (pod, None),
                };
                if let Some(view) = WorkerView::control(pod) {
                    let name = view.name.clone();
                    let mut controls = caches.controls.lock();
                    // It may be older than what the watch has reached.
                    controls.force_insert(ControlView(view), clock.elapsed());
                    if let Some(began) = began {
                        controls.update(&name, |known| known.0.first_seen = began);
                    }
                }
                Ok(())
            }
        }
    }
}

impl Reconciler for PolicyReconciler {
    const NAME: &'static str = "policy";
    type Key = PolicyKey;

    fn needs(&self) -> Vec<&'static str> {
        vec![kinds::NODES, kinds::GATES, kinds::CONTROLS, kinds::REMEDIATIONS, kinds::POLICIES]
    }

    fn keys(&self, change: &Change) -> Vec<PolicyKey> {
        let concerns = match change.kind {
            kinds::REMEDIATIONS | kinds::CONTROLS | kinds::CONFIGURATION => true,
            kinds::POLICIES => acts_changed(change),
            _ => false,
        };
        concerns.then_some(PolicyKey).into_iter().collect()
    }

    fn all_keys(&self) -> Vec<PolicyKey> {
        vec![PolicyKey]
    }

    async fn reconcile(&self, _key: &PolicyKey) -> Result<Action, ReconcileError> {
        let Shared { caches, clock, .. } = &*self.shared;
        if !caches.remediations.lock().is_served() {
            // Their watch is forbidden or not served: they only seem to be gone.
            return Ok(Action::RequeueAfter(UNSERVED_PERIOD));
        }
        let mut results = Results::default();
        let known = caches.with_cluster(clock, |cluster| cluster.policy.cloned());
        let missing_rights = self.shared.missing_rights(known.as_ref()).await;
        let cordoned = self.read_cordoned(&mut results.errors).await;
        let (policy, mut decision) = caches.with_cluster(clock, |cluster| {
            let configuration = cluster.policy.and_then(|policy| {
                let last_applied = policy.annotations.last_applied.as_deref();
                let kind = ObjectKind::RemediationPolicy;
                self.shared.configuration_finding(kind, Policy::NAME, last_applied, &policy.spec)
            });
            let stats = cluster.group_stats();
            let failed_write = self.failed_write();
            let found = PolicyFindings {
                missing_rights: &missing_rights,
                configuration: configuration.as_ref(),
                failed_write: failed_write.as_deref(),
            };
            let decision = decide_policy(cluster, &stats, cordoned, &found);
            (cluster.policy.cloned(), decision)
        });
        let status_wait = self.status_wait();
        if status_wait.is_some() {
            decision.effects.retain(|effect| !matches!(effect, PolicyEffect::UpdateStatus(_)));
        }
        for effect in &decision.effects {
            self.apply_one(policy.as_ref(), effect, &mut results).await?;
        }
        let Results { errors, failed, has_changed } = results;
        // While the status is not written, nothing shows that it would be accepted: the cached one may say already that it is
        // refused.
        if failed.is_some() || status_wait.is_none() {
            self.term.remember_policy_write(&self.shared, Policy::NAME, failed);
        }
        if !errors.is_empty() {
            let message = join(&errors);
            warn!(message, "policy not reconciled");
            return Err(ReconcileError(message));
        }
        let next = if has_changed { SOON } else { decision.requeue_after };
        Ok(Action::RequeueAfter(status_wait.map_or(next, |wait| wait.min(next))))
    }
}

/// What an effect writes. Completes "the API server does not accept ".
fn describe(effect: &PolicyEffect) -> String {
    match effect {
        PolicyEffect::DeleteRemediation(_) => "the deletion of old NodeRemediations".into(),
        PolicyEffect::Uncordon(target) => {
            format!("the removal of the controller's cordon from node {}", target.identity.name)
        }
        PolicyEffect::DeleteControlWorker(_) => "the deletion of a control worker pod".into(),
        PolicyEffect::UpdateStatus(_) => "the status of the RemediationPolicy".into(),
        PolicyEffect::CreateControlWorker { .. } => "a control worker pod".into(),
    }
}

/// The first errors, and how many more there are: fifty writes may fail alike.
fn join(errors: &[String]) -> String {
    const MAX_SHOWN: usize = 3;
    let mut text = errors.iter().take(MAX_SHOWN).cloned().collect::<Vec<_>>().join("; ");
    if let Some(more) = errors.len().checked_sub(MAX_SHOWN).filter(|more| *more > 0) {
        text = format!("{text}; and {more} more");
    }
    text
}
