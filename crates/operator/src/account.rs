//! What an effect comes to, in numbers and in the words of the log. Told when it is done, not when it is decided.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use nodekeeper_core::fleet::FleetIndex;
use nodekeeper_core::gate::Effect;
use nodekeeper_core::node::NodeView;
use nodekeeper_core::record::Record;
use nodekeeper_core::report::Verdict;
use nodekeeper_core::worker::{Progress, WorkerView};
use tracing::{info, warn};

use crate::apply::Trouble;
use crate::metrics::{FinishedWorker, Metrics, NodeError};

/// One effect on a node, and how it went.
pub struct Account<'a> {
    /// As it was when the effect was decided.
    pub node: &'a NodeView,
    /// Its gate; empty if none.
    pub gate: &'a str,
    /// It bore the gate's taint.
    pub held: bool,
    /// Its workers, as they were then.
    pub workers: &'a [WorkerView],
    /// The time of day now.
    pub now: Timestamp,
    /// The time by the clock on which workers are first seen.
    pub elapsed: Duration,
    /// How long the effect took.
    pub took: Duration,
    /// Keeps the duration of the worker that gave the node its verdict.
    pub fleet: &'a Mutex<FleetIndex>,
}

impl Account<'_> {
    /// Tells what became of an effect.
    pub fn tell(&self, metrics: &Metrics, effect: &Effect, result: &Result<(), Trouble>) {
        // What another leader may do, or what is decided again at once, did not happen.
        if matches!(result, Err(Trouble::NotLeader | Trouble::Conflict(_))) {
            return;
        }
        let (node, done) = (&*self.node.name, result.is_ok());
        match (effect, result) {
            (Effect::StartWorker(_), Ok(())) => {
                metrics.inc_workers_created(node, self.gate, self.last_word());
            }
            (Effect::StartWorker(_), Err(trouble)) => metrics.inc_worker_create_errors(node, word(trouble)),
            (Effect::RemoveTaint(record), _) => {
                // A node that works and passed again loses no taint.
                if self.held {
                    metrics.observe_taint_removal(node, done, self.took);
                }
                if done {
                    self.ended(metrics, record);
                }
                // One that was tainted again came long ago.
                if done && self.held && !self.before().retainted {
                    metrics.observe_node_verified(self.gate, self.since_it_came());
                }
            }
            (Effect::PatchRecord(record), Ok(())) => self.ended(metrics, record),
            (Effect::Retaint(record), Ok(())) => {
                self.ended(metrics, record);
                metrics.inc_taint_additions(true);
            }
            (Effect::Retaint(_), Err(_)) => metrics.inc_taint_additions(false),
            (Effect::PatchRecord(_) | Effect::SetNodeCondition(_), Err(_)) => {
                metrics.inc_node_errors(node, NodeError::PatchNode);
            }
            (Effect::EmitEvent(event), _) if event.reason == "NodeVerificationFailed" => {
                metrics.observe_node_failed(node, self.gate, self.since_it_came());
            }
            _ => {}
        }
    }

    fn before(&self) -> Record {
        Record::read(self.node.record.as_deref(), &self.node.uid).unwrap_or_default()
    }

    /// What the worker before said; none if this is the first.
    fn last_word(&self) -> Option<&'static str> {
        let before = self.before();
        let failed = before.inconclusive_streak == 0 && before.verdict == Some(Verdict::Failed);
        (before.workers > 0).then_some(if failed { "failed" } else { "inconclusive" })
    }

    fn since_it_came(&self) -> Duration {
        Duration::try_from(self.now.duration_since(self.node.created)).unwrap_or_default()
    }

    /// A record that counts one more worker than the one before it is the end of that worker.
    fn ended(&self, metrics: &Metrics, record: &Record) {
        let before = self.before();
        if record.number <= before.number {
            return;
        }
        let counted = record.attempts > if record.round == before.round { before.attempts } else { 0 };
        let verdict = record.verdict.filter(|_| counted).unwrap_or(Verdict::Inconclusive);
        let worker = self.workers.iter().find(|worker| worker.identity.number == record.number);
        let took = worker.map_or(Duration::ZERO, |worker| self.elapsed.saturating_sub(worker.first_seen));
        let checks = match worker.map(|worker| &worker.progress) {
            Some(Progress::Reported(report)) => report.checks.as_slice(),
            _ => &[],
        };
        let (node, duration) = (&*self.node.name, format!("{:.1}s", took.as_secs_f64()));
        match verdict {
            Verdict::Passed => info!(node, duration, "Worker completed successfully"),
            Verdict::Failed => warn!(node, duration, why = record.why, "Worker completed: checks failed"),
            Verdict::Inconclusive => warn!(node, duration, why = record.why, "Worker could not tell"),
        }
        if verdict != Verdict::Inconclusive
            && let Ok(milliseconds) = u32::try_from(took.as_millis())
        {
            self.fleet.lock().unwrap_or_else(PoisonError::into_inner).took(node, milliseconds);
        }
        metrics.observe_worker(&FinishedWorker { node, gate: self.gate, verdict, duration: took, checks });
    }
}

fn word(trouble: &Trouble) -> &'static str {
    match trouble {
        Trouble::NotLeader => "not_leader",
        Trouble::Conflict(_) => "conflict",
        Trouble::Gone(_) => "gone",
        Trouble::Doubtful(_) => "no_answer",
        Trouble::Refused(_) => "refused",
    }
}
