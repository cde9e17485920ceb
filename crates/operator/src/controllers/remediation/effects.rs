//! Applies the effects of a decision about a remediation, and puts the responses into the caches.

use std::time::Duration;

use nodekeeper_core::api::NodeRemediationStatus;
use nodekeeper_core::gate::EventSpec;
use nodekeeper_core::reasons::remediation::SUCCEEDED;
use nodekeeper_core::remediate::decision::{Decision, Effect};
use nodekeeper_core::remediate::drain::PodView;
use nodekeeper_core::remediate::{Policy, Remediation, Target};
use tracing::{debug, info, warn};

use super::super::Shared;
use super::RemediationReconciler;
use crate::apply::{Eviction, WriteError};
use crate::providers;

/// An effect that failed.
pub(super) struct Failed {
    pub error: WriteError,
    /// It was the status of the remediation, which the watch shows anew.
    pub of_status: bool,
}

impl From<WriteError> for Failed {
    fn from(error: WriteError) -> Self {
        Self { error, of_status: false }
    }
}

impl RemediationReconciler {
    /// Applies all effects in order. Returns how long to wait, where evictions were refused.
    pub(super) async fn apply(
        &self,
        remediation: &Remediation,
        policy: Option<&Policy>,
        target: Option<&Target>,
        decision: &Decision,
    ) -> Result<Option<Duration>, Failed> {
        let mut wait = None;
        for effect in &decision.effects {
            match effect {
                Effect::UpdateStatus(status) => {
                    let updated = self.update_status(remediation, status, decision.act_ended).await;
                    updated.map_err(|error| Failed { error, of_status: true })?;
                }
                Effect::EmitEvent(event) => self.emit_event(remediation, event).await,
                Effect::EvictPods(pods) => wait = self.evict_pods(remediation, pods).await?,
                effect => self.apply_act(remediation, policy, target, effect).await?,
            }
        }
        Ok(wait)
    }

    async fn apply_act(
        &self,
        remediation: &Remediation,
        policy: Option<&Policy>,
        target: Option<&Target>,
        effect: &Effect,
    ) -> Result<(), WriteError> {
        let Shared { caches, writer, .. } = &*self.shared;
        let node = &remediation.spec.node.name;
        if let Effect::ReserveAct(status) = effect {
            // Guarded by the policy that this was decided from, and no newer one.
            let Some(policy) = policy else {
                return Err(WriteError::Conflict("there is no policy".into()));
            };
            let written = writer.update_policy_status(policy, status).await?;
            if let Some(policy) = Policy::new(&written) {
                self.shared.apply_response(&caches.policies, policy);
            }
            info!(node, "remediation approved");
            return Ok(());
        }
        let Some(target) = target else { return Ok(()) };
        let patched = match effect {
            Effect::Cordon => {
                let patched = writer.cordon_node(target, &remediation.name).await?;
                info!(node, "node cordoned");
                Some(patched)
            }
            Effect::Uncordon => {
                let patched = writer.uncordon_node(target).await?;
                info!(node, "node uncordoned");
                patched
            }
            Effect::Replace(replacement) => {
                providers::replace(writer, replacement, target).await?;
                None
            }
            _ => None,
        };
        if let Some(patched) = patched {
            self.shared.apply_node(&patched);
        }
        Ok(())
    }

    /// Evicts pods. Where a PodDisruptionBudget refuses one, it is tried again after a growing time.
    async fn evict_pods(
        &self,
        remediation: &Remediation,
        pods: &[PodView],
    ) -> Result<Option<Duration>, WriteError> {
        let mut blocked = None;
        for pod in pods {
            match self.shared.writer.evict_pod(pod).await? {
                Eviction::Accepted => debug!(pod = pod.name, namespace = pod.namespace, "pod evicted"),
                Eviction::Blocked(message) => blocked = Some(message),
            }
        }
        let mut evictions = self.evictions.lock();
        let Some(message) = blocked else {
            evictions.remove(&remediation.name);
            return Ok(None);
        };
        info!(node = remediation.spec.node.name, message, "eviction refused");
        Ok(Some(evictions.entry(remediation.name.clone()).or_default().refused(message)))
    }

    async fn update_status(
        &self,
        remediation: &Remediation,
        status: &NodeRemediationStatus,
        act_ended: Option<bool>,
    ) -> Result<(), WriteError> {
        let Shared { caches, writer, metrics, .. } = &*self.shared;
        let written = writer.update_remediation_status(remediation, status).await?;
        let after = Remediation::new(&written);
        if let Some(succeeded) = act_ended {
            let result = if succeeded { "succeeded" } else { "given_up" };
            let provider = if status.provider.is_empty() { "none" } else { &status.provider };
            metrics.inc_remediations(provider, "replace", result);
            let why = after.condition(SUCCEEDED).map(|one| one.message.clone()).unwrap_or_default();
            info!(node = remediation.spec.node.name, result, why, "remediation ended");
        }
        self.shared.apply_response(&caches.remediations, after);
        Ok(())
    }

    /// A condition holds what this Event says, so it is not tried again.
    async fn emit_event(&self, remediation: &Remediation, event: &EventSpec) {
        let node = &remediation.spec.node;
        if let Err(error) = self.shared.writer.emit_event(&node.name, &node.uid, event).await {
            warn!(node = node.name, reason = event.reason, %error, "event not created");
        }
    }
}
