//! Applies the effects of a decision about a node, and puts the responses into the caches.

use std::time::Duration;

use nodekeeper_core::checks::WorkerIdentity;
use nodekeeper_core::gate::{Decision, Effect, EventSpec, GateView};
use nodekeeper_core::limits::Creation;
use nodekeeper_core::node::{NodeView, taints_manager};
use nodekeeper_core::reasons;
use nodekeeper_core::remediate::Remediation;
use nodekeeper_core::worker::{self, WorkerView};
use tracing::{info, warn};

use super::super::Shared;
use super::metrics::EffectMetrics;
use super::observe::Evaluation;
use super::{EmittedEvents, GateReconciler, started_worker};
use crate::apply::{CreatedWorker, WriteError};

/// An effect that was not applied.
pub(super) struct FailedEffect {
    pub error: WriteError,
    pub effect: Effect,
}

impl FailedEffect {
    /// What the effect writes. Completes "the API server did not accept ". None for an effect whose failure is reported
    /// elsewhere.
    pub fn write(&self) -> Option<&'static str> {
        match self.effect {
            Effect::RemoveTaint(_) | Effect::Admit(_) => Some("the removal of the taint"),
            Effect::Retaint(_) => Some("the taint"),
            Effect::PatchRecord(_) => Some("the record of the verification"),
            Effect::SetNodeCondition(_) => Some("the condition of the node"),
            Effect::RemoveWorker { .. } => Some("the deletion of a worker pod"),
            Effect::RequestRemediation(_) => Some("the NodeRemediation"),
            // The limiter of workers reports what keeps them from starting, and an Event is only a report itself.
            Effect::StartWorker(_) | Effect::EmitEvent(_) => None,
        }
    }
}

/// How long no condition is written for a gate after the API server refused one.
const CONDITION_BACKOFF: Duration = Duration::from_mins(10);

impl GateReconciler {
    /// Applies all effects in order. One that fails ends the rest, except for an Event.
    pub(super) async fn apply(&self, evaluation: &Evaluation) -> Result<(), FailedEffect> {
        let Evaluation { node, gate, record, gated, workers, decision } = evaluation;
        let Shared { clock, metrics, .. } = &*self.shared;
        let gate_name = gate.as_ref().map_or("", |gate| gate.name.as_str());
        let mut failed_event = Ok(());
        for effect in &decision.effects {
            let started = clock.elapsed();
            let result = self.apply_effect(node, gate.as_ref(), effect).await;
            let (now, elapsed) = (clock.now(), clock.elapsed());
            let took = elapsed.saturating_sub(started);
            let gate = gate_name;
            EffectMetrics { node, gate, before: record, gated: *gated, workers, now, elapsed, took }.record(
                metrics,
                &self.term.fleet,
                effect,
                &result,
            );
            match (effect, result) {
                (Effect::EmitEvent(_), Err(error)) => {
                    failed_event = Err(FailedEffect { error, effect: effect.clone() });
                }
                (Effect::SetNodeCondition(_), Err(WriteError::Refused(why))) => {
                    // The condition is for others to read; nothing waits for it.
                    warn!(
                        gate = gate_name,
                        why, "node condition refused; the chart allows it with rbac.nodeConditions"
                    );
                    self.refused_conditions.lock().insert(gate_name.to_owned(), elapsed + CONDITION_BACKOFF);
                }
                (effect, Err(error)) => return Err(FailedEffect { error, effect: effect.clone() }),
                (effect, Ok(())) => self.remember_event(node, effect),
            }
        }
        failed_event
    }

    /// Reports a write that the API server does not accept, in the status of the gate and in an Event.
    pub(super) async fn report_failed_write(
        &self,
        evaluation: &Evaluation,
        write: &str,
        error: &WriteError,
        is_refused: bool,
    ) {
        let Evaluation { node, gate, .. } = evaluation;
        let gate = gate.as_ref().map_or("", |gate| gate.name.as_str());
        let message = format!("{write}: {}", error.message());
        let now = self.shared.clock.elapsed();
        if !self.term.failed_writes.lock().insert(&node.name, gate, &message, is_refused, now) {
            return;
        }
        self.counts_changed([gate.into()]);
        let note = format!("the API server did not accept {message}; the gate retries");
        let number = node.record.as_deref().map_or(0, |record| record.number);
        let event = EventSpec {
            dedup_key: Some(number),
            ..EventSpec::new(true, reasons::NODE_WRITE_REFUSED, "Retry", note)
        };
        // The status of the gate says it too.
        if let Err(error) = self.shared.writer.emit_event(&node.name, &node.uid.to_string(), &event).await {
            warn!(node = &*node.name, reason = event.reason, %error, "event not created");
        }
    }

    /// The writes about a node landed, or it needs none. While a worker verifies it, what its verdict has to write is not
    /// known: a write that failed is not forgotten then, or its condition would change with each worker.
    pub(super) fn forget_landed_write(&self, evaluation: &Evaluation) {
        let Evaluation { node, gate, record, workers, decision, .. } = evaluation;
        let is_unrecorded = |worker: &WorkerView| worker.identity.number > record.number;
        let is_left = gate.as_ref().is_some_and(|gate| has_superseded_worker(workers, gate));
        if started_worker(&decision.effects).is_none() && !workers.iter().any(is_unrecorded) && !is_left {
            self.forget_failed_write(&node.name);
        }
    }

    pub(super) fn forget_failed_write(&self, node: &str) {
        let gate = self.term.failed_writes.lock().remove(node);
        self.counts_changed(gate.map(|gate| gate.as_str().into()));
    }

    async fn apply_effect(
        &self,
        node: &NodeView,
        gate: Option<&GateView>,
        effect: &Effect,
    ) -> Result<(), WriteError> {
        let Shared { caches, writer, .. } = &*self.shared;
        let gate = || gate.ok_or_else(|| WriteError::Conflict("the gate was deleted".into()));
        let patched = match effect {
            Effect::StartWorker(identity) => return self.start_worker(node, gate()?, identity).await,
            Effect::RemoveWorker { name, uid } => return self.remove_worker(name, uid).await,
            Effect::RequestRemediation(cause) => {
                let known = caches.remediations.lock().get(&node.uid.to_string()).cloned();
                let written = writer.upsert_remediation(node, known.as_ref(), cause).await?;
                info!(node = &*node.name, gate = cause.name, why = cause.message, "replacement requested");
                self.shared.apply_response(&caches.remediations, Remediation::new(&written));
                return Ok(());
            }
            Effect::EmitEvent(event) => {
                let event = &self.with_field_manager(node, event).await;
                return match writer.emit_event(&node.name, &node.uid.to_string(), event).await {
                    // The record holds what this Event says.
                    Err(error) if event.dedup_key.is_none() => {
                        warn!(node = &*node.name, reason = event.reason, %error, "event not created");
                        Ok(())
                    }
                    emitted => emitted,
                };
            }
            Effect::RemoveTaint(record) => {
                let gate = gate()?;
                let patched = writer.remove_taint(node, gate, record).await?;
                let label = &gate.spec.verified_label;
                let label = format!("{}={}", label.key, label.value);
                info!(
                    node = &*node.name,
                    label,
                    gate = gate.name,
                    attempts = record.attempts,
                    "Node verified"
                );
                patched
            }
            Effect::Admit(record) => {
                let gate = gate()?;
                let patched = writer.admit(node, gate, record).await?;
                info!(node = &*node.name, gate = gate.name, why = &*record.why, "node admitted by audit");
                patched
            }
            Effect::Retaint(record) => {
                let gate = gate()?;
                let patched = writer.retaint(node, gate, record).await?;
                info!(node = &*node.name, gate = gate.name, why = &*record.why, "node tainted again");
                patched
            }
            Effect::PatchRecord(record) => writer.patch_record(node, record).await?,
            Effect::SetNodeCondition(update) => writer.set_node_condition(node, update).await?,
        };
        self.shared.apply_node(&patched);
        Ok(())
    }

    /// Adds to an Event about a node that somebody keeps reverting who wrote its taints.
    async fn with_field_manager(&self, node: &NodeView, event: &EventSpec) -> EventSpec {
        let mut event = event.clone();
        if event.reason == reasons::NODE_REVERTED
            && let Ok(Some(read)) = self.shared.get_node(&node.name).await
            && let Some(manager) = taints_manager(read.metadata.managed_fields.as_deref().unwrap_or_default())
        {
            event.note =
                format!("{}. The field manager {manager} wrote the taints of the node last", event.note);
        }
        event
    }

    async fn remove_worker(&self, name: &str, uid: &str) -> Result<(), WriteError> {
        let Shared { caches, writer, pods, agent, .. } = &*self.shared;
        if let Some(agent) = agent {
            agent.workers.remove(name);
            return Ok(());
        }
        pods.delete_worker(writer, name, uid).await?;
        let is_same = |view: &mut WorkerView| view.deleting |= view.uid == *uid;
        caches.workers.lock().update(name, is_same);
        Ok(())
    }

    async fn start_worker(
        &self,
        node: &NodeView,
        gate: &GateView,
        identity: &WorkerIdentity,
    ) -> Result<(), WriteError> {
        let Shared { caches, writer, pods, clock, .. } = &*self.shared;
        let (number, pod) = (identity.number, worker::name(&identity.node_uid, identity.number));
        if let Some(agent) = &self.shared.agent {
            agent.workers.start(node, gate, identity);
            self.term.limiter.lock().finish(&gate.name, number, Creation::Created, clock.elapsed());
            return Ok(());
        }
        info!(node = &*node.name, pod, gate = gate.name, worker = number, "Creating worker pod");
        let created = pods.create_worker(writer, node, gate, identity).await;
        let creation = match &created {
            Ok(_) => Creation::Created,
            Err(WriteError::Refused(message)) => Creation::Refused(message.clone()),
            Err(error) => Creation::Failed(error.message()),
        };
        let created = created.map(|created| match created {
            CreatedWorker::New(pod) => {
                if let Some(view) = WorkerView::new(&pod) {
                    self.shared.apply_response(&caches.workers, view);
                }
            }
            CreatedWorker::Adopted(pod) => {
                let view =
                    WorkerView::new(&pod).unwrap_or_else(|| WorkerView::unreadable(&pod, node, identity));
                caches.insert_unwatched_worker(view, clock.elapsed());
            }
        });
        // The cache counts the worker from here on.
        let changed = self.term.limiter.lock().finish(&gate.name, number, creation, clock.elapsed());
        if changed {
            self.counts_changed([gate.name.as_str().into()]);
        }
        created
    }

    /// Drops Events that no write remembers and that were emitted already.
    pub(super) fn drop_emitted_events(&self, node: &NodeView, decision: &mut Decision) {
        let is_repeated =
            |effect: &Effect| matches!(effect, Effect::EmitEvent(event) if event.dedup_key.is_some());
        let mut all = self.emitted.lock();
        if !decision.effects.iter().any(is_repeated) {
            all.remove(&*node.name);
            return;
        }
        let Some(emitted) = all.get(&*node.name).filter(|emitted| emitted.uid == node.uid) else { return };
        decision.effects.retain(|effect| match effect {
            Effect::EmitEvent(event) => {
                event.dedup_key.is_none_or(|key| !emitted.events.contains(&(event.reason, key)))
            }
            _ => true,
        });
    }

    fn remember_event(&self, node: &NodeView, effect: &Effect) {
        let Effect::EmitEvent(event) = effect else { return };
        let Some(key) = event.dedup_key else { return };
        let mut all = self.emitted.lock();
        let emitted = all.entry(node.name.to_string()).or_default();
        if emitted.uid != node.uid {
            *emitted = EmittedEvents { uid: node.uid.to_string(), ..EmittedEvents::default() };
        }
        emitted.events.insert((event.reason, key));
    }
}

/// Whether a worker of a gate is there that a newer one has followed: the API server did not accept its deletion. The last
/// one stays until the next one starts.
fn has_superseded_worker(workers: &[WorkerView], gate: &GateView) -> bool {
    let own = || workers.iter().filter(|worker| worker.identity.gate_uid == gate.uid);
    let last = own().map(|worker| worker.identity.number).max();
    own().any(|worker| !worker.deleting && Some(worker.identity.number) < last)
}
