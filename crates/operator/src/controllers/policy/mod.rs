//! The policy controller: keeps the status of the RemediationPolicy, control workers, cordons and history.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt as _;
use nodekeeper_core::api::NodeRemediation;
use nodekeeper_core::configured::ObjectKind;
use nodekeeper_core::remediate::housekeeping::{
    PolicyEffect, PolicyFindings, cordons_to_remove, decide_policy, needs_cordon,
};
use nodekeeper_core::remediate::{Policy, Remediation, Target};
use nodekeeper_core::worker::WorkerView;
use tracing::{info, warn};

use super::caches::ControlView;
use super::remediation::acts_changed;
use super::{Shared, TermState, kinds};
use crate::apply::WriteError;
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
}

impl PolicyReconciler {
    pub fn new(shared: Arc<Shared>, term: Arc<TermState>) -> Self {
        Self { shared, term }
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

    /// What the API server has not accepted, for the policy's condition, if that is to be reported.
    fn failed_write(&self) -> Option<String> {
        self.term.policy_writes.lock().summary(Policy::NAME).map(|summary| summary.message)
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
                if let Some(view) = created.and_then(|pod| WorkerView::control(&pod)) {
                    let name = view.name.clone();
                    self.shared.apply_response(&caches.controls, ControlView(view));
                    // The watch does not know when the run began.
                    caches.controls.lock().update(&name, |known| known.0.first_seen = began);
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

    /// One effect that fails does not keep the others from being applied.
    async fn reconcile(&self, _key: &PolicyKey) -> Result<Action, ReconcileError> {
        let (mut errors, mut has_changed) = (Vec::new(), false);
        let mut failed = None;
        let Shared { caches, clock, .. } = &*self.shared;
        if !caches.remediations.lock().is_served() {
            // Their watch is forbidden or not served: they only seem to be gone.
            return Ok(Action::RequeueAfter(UNSERVED_PERIOD));
        }
        let known = caches.with_cluster(clock, |cluster| cluster.policy.cloned());
        let missing_rights = self.shared.missing_rights(known.as_ref()).await;
        let cordoned = self.read_cordoned(&mut errors).await;
        let (policy, decision) = caches.with_cluster(clock, |cluster| {
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
        for effect in &decision.effects {
            match self.apply(policy.as_ref(), effect).await {
                Ok(()) => {}
                Err(error @ WriteError::NotLeader) => return Err(ReconcileError(error.to_string())),
                Err(WriteError::Conflict(message) | WriteError::Gone(message))
                    if self.is_refused(policy.as_ref(), effect).await =>
                {
                    failed = failed.or_else(|| Some((format!("{}: {message}", describe(effect)), true)));
                    errors.push(format!("the API server refuses the write: {message}"));
                }
                Err(WriteError::Conflict(_) | WriteError::Gone(_)) => has_changed = true,
                Err(error) => {
                    let is_refused = matches!(error, WriteError::Refused(_));
                    let message = format!("{}: {}", describe(effect), error.message());
                    failed = failed.or(Some((message, is_refused)));
                    errors.push(error.to_string());
                }
            }
        }
        // The first of them.
        self.term.remember_policy_write(&self.shared, Policy::NAME, failed);
        if !errors.is_empty() {
            let message = join(&errors);
            warn!(message, "policy not reconciled");
            return Err(ReconcileError(message));
        }
        Ok(Action::RequeueAfter(if has_changed { SOON } else { decision.requeue_after }))
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
