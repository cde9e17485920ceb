//! Applies the effects of a decision about a remediation, and puts the responses into the caches.

use std::time::Duration;

use nodekeeper_core::api::NodeRemediationStatus;
use nodekeeper_core::gate::EventSpec;
use nodekeeper_core::reasons::remediation::SUCCEEDED;
use nodekeeper_core::remediate::decision::{Decision, Effect};
use nodekeeper_core::remediate::drain::PodView;
use nodekeeper_core::remediate::{Policy, Remediation};
use tracing::{debug, info, warn};

use super::super::Shared;
use super::{LIVE_FOR, Reading, RemediationReconciler, SOON, STATUS};
use crate::apply::{Eviction, WriteError};
use crate::providers;

/// An effect that failed.
pub(super) struct Failed {
    pub error: WriteError,
    /// What failed, for messages.
    pub what: &'static str,
    /// The object has not changed, so that the same write would fail again.
    pub is_refused: bool,
}

impl RemediationReconciler {
    /// Applies all effects in order. Returns how long to wait, where evictions were refused or the reading is too old.
    pub(super) async fn apply(
        &self,
        remediation: &Remediation,
        reading: Option<&Reading>,
        decision: &Decision,
    ) -> Result<Option<Duration>, Failed> {
        let mut wait = None;
        for effect in &decision.effects {
            match effect {
                Effect::UpdateStatus(status) => {
                    let updated = self.update_status(remediation, status, decision.act_ended).await;
                    if let Err(error) = updated {
                        let is_refused = self.is_status_refused(remediation, &error).await;
                        return Err(Failed { error, what: STATUS, is_refused });
                    }
                }
                Effect::EmitEvent(event) => self.emit_event(remediation, event).await,
                effect => {
                    let Some(reading) = reading else { continue };
                    let disrupts =
                        matches!(effect, Effect::Cordon | Effect::EvictPods(_) | Effect::Replace(_));
                    if disrupts && !self.is_live(reading) {
                        return Ok(Some(SOON));
                    }
                    match self.apply_act(reading, effect).await {
                        Ok(next) => wait = next,
                        Err(error) => return Err(self.failed(reading, effect, error).await),
                    }
                }
            }
        }
        Ok(wait)
    }

    /// Whether the write of a status that failed would fail again.
    pub(super) async fn is_status_refused(&self, remediation: &Remediation, error: &WriteError) -> bool {
        match error {
            WriteError::Refused(_) => true,
            // It may be deleted, and the watch does not say so.
            WriteError::Conflict(_) | WriteError::Gone(_) => {
                self.shared.is_remediation_unchanged(remediation).await
            }
            WriteError::NotLeader | WriteError::OutcomeUnknown(_) => false,
        }
    }

    /// Whether an act may rely on what was read.
    fn is_live(&self, reading: &Reading) -> bool {
        self.shared.clock.elapsed() < reading.at + LIVE_FOR
    }

    /// Finds out whether the write met a change or was refused.
    async fn failed(&self, reading: &Reading, effect: &Effect, error: WriteError) -> Failed {
        let Reading { live, .. } = reading;
        let what = match effect {
            Effect::ReserveAct(_) | Effect::ReleaseAct(_) => "writing the reservation to the policy's status",
            Effect::Cordon => "cordoning the node",
            Effect::Uncordon => "uncordoning the node",
            Effect::Replace(_) => "deleting the NodeClaim or Node",
            Effect::EvictPods(_) | Effect::UpdateStatus(_) | Effect::EmitEvent(_) => "a request",
        };
        let is_refused = match (effect, &live.policy, &live.target) {
            _ if !matches!(error, WriteError::Conflict(_)) => false,
            (Effect::ReserveAct(_) | Effect::ReleaseAct(_), Some(policy), _) => {
                self.shared.is_policy_unchanged(policy).await
            }
            (Effect::Cordon | Effect::Uncordon, _, Some(target)) => {
                self.shared.is_node_unchanged(target).await
            }
            (effect, ..) => matches!(effect, Effect::Replace(_)),
        };
        Failed { error, what, is_refused }
    }

    async fn apply_act(&self, reading: &Reading, effect: &Effect) -> Result<Option<Duration>, WriteError> {
        let Shared { caches, writer, .. } = &*self.shared;
        let Reading { remediation, live, .. } = reading;
        let node = &remediation.spec.node.name;
        if let Effect::ReserveAct(status) | Effect::ReleaseAct(status) = effect {
            // Guarded by the policy that this was decided from, and no newer one.
            let Some(policy) = &live.policy else {
                return Err(WriteError::Conflict("there is no policy".into()));
            };
            let written = writer.update_policy_status(policy, status).await?;
            if let Some(policy) = Policy::new(&written) {
                self.shared.apply_response(&caches.policies, policy);
            }
            let is_reserved = matches!(effect, Effect::ReserveAct(_));
            debug!(node, reserved = is_reserved, "reservation written");
            return Ok(None);
        }
        let Some(target) = &live.target else { return Ok(None) };
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
            Effect::EvictPods(pods) => return self.evict_pods(reading, pods).await,
            Effect::Replace(replacement) => {
                providers::replace(writer, replacement, target).await?;
                None
            }
            _ => None,
        };
        if let Some(patched) = patched {
            self.shared.apply_node(&patched);
        }
        Ok(None)
    }

    /// Evicts pods for as long as the reading permits it. Refused evictions are tried again after a growing time.
    async fn evict_pods(&self, reading: &Reading, pods: &[PodView]) -> Result<Option<Duration>, WriteError> {
        let Remediation { name, spec, .. } = &reading.remediation;
        let elapsed = || self.shared.clock.elapsed();
        let before = self.evictions.lock().get(name).cloned().unwrap_or_default();
        let is_due = before.until <= elapsed();
        let (mut refused, others): (Vec<_>, Vec<_>) =
            pods.iter().partition(|pod| before.tried_at.contains_key(&pod.uid));
        // An answer may take so long that not all have their turn.
        refused.sort_by_key(|pod| before.tried_at.get(&pod.uid));
        let (mut left, mut blocked) = (others.len(), None);
        for pod in others.into_iter().chain(refused.into_iter().filter(|_| is_due)) {
            if !self.is_live(reading) {
                break;
            }
            left = left.saturating_sub(1);
            match self.shared.writer.evict_pod(pod).await? {
                Eviction::Accepted => {
                    debug!(pod = pod.name, namespace = pod.namespace, "pod evicted");
                    if let Some(refused) = self.evictions.lock().get_mut(name) {
                        refused.tried_at.remove(&pod.uid);
                    }
                }
                Eviction::Blocked(message) => {
                    info!(node = spec.node.name, message, "eviction refused");
                    let mut evictions = self.evictions.lock();
                    let refused = evictions.entry(name.clone()).or_default();
                    refused.tried_at.insert(pod.uid.clone(), elapsed());
                    blocked = Some(message);
                }
            }
        }
        let mut evictions = self.evictions.lock();
        let refused = evictions.entry(name.clone()).or_default();
        refused.tried_at.retain(|uid, _| pods.iter().any(|pod| pod.uid == *uid));
        let now = elapsed();
        if let Some(message) = blocked.filter(|_| is_due) {
            refused.until = now + refused.backoff.refused(message);
        }
        let wait = refused.until.saturating_sub(now).max(SOON);
        let are_refused = !refused.tried_at.is_empty();
        if !are_refused {
            evictions.remove(name);
        }
        Ok(if left > 0 { Some(SOON) } else { are_refused.then_some(wait) })
    }

    pub(super) async fn update_status(
        &self,
        remediation: &Remediation,
        status: &NodeRemediationStatus,
        act_ended: Option<bool>,
    ) -> Result<(), WriteError> {
        let Shared { caches, writer, metrics, .. } = &*self.shared;
        let written = writer.update_remediation_status(remediation, status).await?;
        let after = Remediation::new(&written);
        if after.is_approved() && !remediation.is_approved() {
            info!(node = remediation.spec.node.name, "remediation approved");
        }
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
