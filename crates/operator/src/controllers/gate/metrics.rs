//! Metrics and log lines of effects, recorded when an effect was applied.

use std::time::Duration;

use jiff::Timestamp;
use nodekeeper_core::fleet::FleetIndex;
use nodekeeper_core::gate::Effect;
use nodekeeper_core::node::NodeView;
use nodekeeper_core::reasons::NODE_VERIFICATION_FAILED;
use nodekeeper_core::record::Record;
use nodekeeper_core::report::Verdict;
use nodekeeper_core::worker::{Progress, WorkerView};
use parking_lot::Mutex;
use tracing::{info, warn};

use crate::apply::WriteError;
use crate::metrics::{FinishedWorker, Metrics, NodeError};

/// One effect on a node, as its metrics need it.
pub(super) struct EffectMetrics<'a> {
    /// The node when the effect was decided.
    pub node: &'a NodeView,
    /// The name of the gate that decided; empty if none.
    pub gate: &'a str,
    /// The record before the effect, with the section of that gate first.
    pub before: &'a Record,
    /// The node carried the gate's taint.
    pub gated: bool,
    pub workers: &'a [WorkerView],
    pub now: Timestamp,
    /// The time by the clock of [`WorkerView::first_seen`].
    pub elapsed: Duration,
    /// How long the effect took.
    pub took: Duration,
}

impl EffectMetrics<'_> {
    pub fn record(
        &self,
        metrics: &Metrics,
        fleet: &Mutex<FleetIndex>,
        effect: &Effect,
        result: &Result<(), WriteError>,
    ) {
        // These are decided again, by this or by another leader.
        if matches!(result, Err(WriteError::NotLeader | WriteError::Conflict(_))) {
            return;
        }
        let (node, done) = (&*self.node.name, result.is_ok());
        match (effect, result) {
            (Effect::StartWorker(_), Ok(())) => {
                metrics.inc_workers_created(node, self.gate, self.previous_result());
            }
            (Effect::StartWorker(_), Err(error)) => metrics.inc_worker_create_errors(node, label(error)),
            (Effect::RemoveTaint(record), _) => {
                // A verified node that passed again had no taint.
                if self.gated {
                    metrics.observe_taint_removal(node, done, self.took);
                }
                if done {
                    self.worker_ended(metrics, fleet, record);
                }
                // A node that the gate served before was created long ago.
                if done && self.gated && !self.served_before() {
                    metrics.observe_node_verified(self.gate, self.age());
                }
            }
            (Effect::Admit(record), _) => {
                metrics.observe_taint_removal(node, done, self.took);
                // An audit also admits nodes on which no worker started. The record has its number all the same.
                if done && self.worker(record.number).is_some() {
                    self.worker_ended(metrics, fleet, record);
                }
            }
            (Effect::PatchRecord(record), Ok(())) => self.worker_ended(metrics, fleet, record),
            (Effect::Retaint(record), Ok(())) => {
                self.worker_ended(metrics, fleet, record);
                metrics.inc_taint_additions(true);
            }
            (Effect::Retaint(_), Err(_)) => metrics.inc_taint_additions(false),
            (Effect::PatchRecord(_) | Effect::SetNodeCondition(_), Err(_)) => {
                metrics.inc_node_errors(node, NodeError::PatchNode);
            }
            (Effect::EmitEvent(event), _) if event.reason == NODE_VERIFICATION_FAILED => {
                metrics.observe_node_failed(node, self.gate, self.age());
            }
            _ => {}
        }
    }

    /// Whether the gate admitted the node before.
    fn served_before(&self) -> bool {
        self.before.is_open() || self.before.retainted || !self.before.label.is_empty()
    }

    /// The result of the previous worker; none if this is the first.
    fn previous_result(&self) -> Option<&'static str> {
        let before = self.before;
        let failed = before.inconclusive_streak == 0 && before.verdict == Some(Verdict::Failed);
        (before.workers > 0).then_some(if failed { "failed" } else { "inconclusive" })
    }

    fn worker(&self, number: u32) -> Option<&WorkerView> {
        self.workers.iter().find(|worker| worker.identity.number == number)
    }

    fn age(&self) -> Duration {
        Duration::try_from(self.now.duration_since(self.node.created)).unwrap_or_default()
    }

    /// A record with a higher worker number and a later verdict than the one before records the end of that worker. Without
    /// a verdict of its own it notes that the number was used by a worker that says nothing for this gate.
    fn worker_ended(&self, metrics: &Metrics, fleet: &Mutex<FleetIndex>, record: &Record) {
        if record.number <= self.before.number || record.at == self.before.at {
            return;
        }
        let verdict = record.verdict.unwrap_or(Verdict::Inconclusive);
        let worker = self.worker(record.number);
        let took = worker.map_or(Duration::ZERO, |worker| self.elapsed.saturating_sub(worker.first_seen));
        let checks = match worker.map(|worker| &worker.progress) {
            Some(Progress::Reported(report)) => report.checks.as_slice(),
            _ => &[],
        };
        let (node, duration) = (&*self.node.name, format!("{:.1}s", took.as_secs_f64()));
        match verdict {
            Verdict::Passed => info!(node, duration, "Worker completed successfully"),
            Verdict::Failed => warn!(node, duration, why = &*record.why, "Worker completed: checks failed"),
            Verdict::Inconclusive => warn!(node, duration, why = &*record.why, "worker inconclusive"),
        }
        if verdict != Verdict::Inconclusive
            && let Ok(milliseconds) = u32::try_from(took.as_millis())
        {
            fleet.lock().set_worker_ms(node, milliseconds);
        }
        metrics.observe_worker(&FinishedWorker { node, gate: self.gate, verdict, duration: took, checks });
    }
}

/// The class of an error, as a metric label.
fn label(error: &WriteError) -> &'static str {
    match error {
        WriteError::NotLeader => "not_leader",
        WriteError::Conflict(_) => "conflict",
        WriteError::Gone(_) => "gone",
        WriteError::OutcomeUnknown(_) => "no_answer",
        WriteError::Refused(_) => "refused",
    }
}

#[cfg(test)]
mod tests {
    use nodekeeper_core::record::{VerificationScope, WorkerResult};

    use super::*;
    use crate::metrics::{Format, Options};

    /// The record after worker `number` passed on a node with the record `before`.
    fn passed(before: &Record, number: u32) -> Record {
        before.after(WorkerResult {
            uid: "a".into(),
            scope: VerificationScope::default(),
            number,
            verdict: Verdict::Passed,
            why: "5 checks passed",
            failed: Vec::new(),
            cause: None,
            elapsed_seconds: 1,
            restart: false,
            at: Timestamp::from_second(number.into()).expect("a time"),
        })
    }

    /// Applies the record of a worker to the metrics.
    fn apply(metrics: &Metrics, before: &Record, next: &Record, gated: bool) {
        let effect = EffectMetrics {
            node: &NodeView::default(),
            gate: "default",
            before,
            gated,
            workers: &[],
            now: Timestamp::UNIX_EPOCH,
            elapsed: Duration::ZERO,
            took: Duration::ZERO,
        };
        effect.record(metrics, &Mutex::default(), &Effect::RemoveTaint(next.clone()), &Ok(()));
    }

    #[test]
    fn g11_a_worker_that_says_nothing_for_the_gate_is_not_counted() {
        let metrics = Metrics::new(Options::default());
        let record = passed(&Record::default(), 1);
        let skipped = Record { number: 2, ..record.clone() };
        apply(&metrics, &record, &skipped, false);
        let text = metrics.render(Format::Prometheus).expect("it can be rendered");
        assert!(!text.contains("nodekeeper_verifications_total{"), "{text}");
    }

    #[test]
    fn g11_a_verified_node_that_passes_again_is_counted_as_passed() {
        let metrics = Metrics::new(Options::default());
        let mut record = Record::default();
        for number in [1, 2] {
            let next = passed(&record, number);
            apply(&metrics, &record, &next, number == 1);
            record = next.opened("label");
        }
        let text = metrics.render(Format::Prometheus).expect("it can be rendered");
        let line = r#"nodekeeper_verifications_total{gate="default",result="passed"} 2"#;
        assert!(text.contains(line), "{text}");
    }
}
