//! `Audit`: the checks run, and the node is admitted whatever they find. The record says what the gate would have done.

use std::time::Duration;

use jiff::SignedDuration;

use super::enforce::ManagedNode;
use super::outage::failed_checks;
use super::prerequisites::{Unmet, unmet};
use super::{Decision, Effect, EventSpec, State, identity, remove_workers, scope, scope_of};
use crate::api::FailedCheck;
use crate::reasons;
use crate::record::{InconclusiveReason, Record, WorkerResult};
use crate::report::Verdict;
use crate::worker::{Progress, WorkerView};

/// A node is admitted at the latest so long after it became Ready, whatever keeps its worker from ending.
const ADMITTED_AFTER: Duration = Duration::from_mins(2);

impl ManagedNode<'_> {
    /// Decides about a tainted node of a gate that audits.
    pub(super) fn audit(&self) -> Decision {
        let newest = self.observed.workers.iter().max_by_key(|worker| worker.identity.number);
        let unrecorded = newest.filter(|worker| worker.identity.number > self.record.number);
        let last = unrecorded.map_or(self.record.number, |worker| worker.identity.number);
        if !self.observed.node.ready {
            return Decision::new(State::Waiting, "audit: the node is not Ready");
        }
        let current = unrecorded.filter(|worker| {
            scope_of(&worker.identity) == scope(self.observed.node, self.gate)
                && *worker.node_name == *self.observed.node.name
        });
        match current {
            Some(worker) if worker.has_ended() => self.admit_after(worker),
            _ if self.audited_for() >= ADMITTED_AFTER => {
                let seconds = ADMITTED_AFTER.as_secs();
                let why = format!("no worker ended within {seconds} s after the node became Ready");
                // Without a worker its number counts as used: records have ever higher ones.
                let number = if unrecorded.is_some() { last } else { last.saturating_add(1) };
                self.admit(number, Verdict::Inconclusive, &why, Vec::new())
            }
            Some(worker) if !worker.deleting => {
                self.wait(State::InProgress, &format!("worker {} runs", worker.identity.number))
            }
            _ => self.start_audit(last),
        }
    }

    fn audited_for(&self) -> Duration {
        self.observed.elapsed.saturating_sub(self.observed.ready_since)
    }

    fn wait(&self, state: State, why: &str) -> Decision {
        let left = ADMITTED_AFTER.saturating_sub(self.audited_for());
        let left = SignedDuration::try_from(left).unwrap_or_default();
        Decision::new(state, format!("audit: {why}")).requeue_after(left)
    }

    fn start_audit(&self, last: u32) -> Decision {
        let (node, slots) = (self.observed.node, self.observed.slots);
        // Never two workers at once: one for an earlier boot or state of the gate must be gone before the next starts.
        if self.unfinished_workers().next().is_some() {
            let waits = self.wait(State::Unverified, "an earlier worker is being removed");
            return waits.with(remove_workers(self.unfinished_workers()));
        }
        if node.unschedulable {
            return self.wait(State::Waiting, "the node is cordoned");
        }
        match unmet(self.observed, &self.gate.spec.wait_for) {
            Some(Unmet::OnNode(why)) => return self.wait(State::Waiting, &why),
            Some(Unmet::OnPods(why)) => {
                return Decision { wants_pods: true, ..self.wait(State::Waiting, &why) };
            }
            None => {}
        }
        if !(if last == 0 { slots.first } else { slots.another }) {
            let waits = self.wait(State::Unverified, "the node waits for a free worker slot");
            return Decision { wants_slot: Some(last), ..waits };
        }
        let number = last.saturating_add(1);
        Decision::new(State::Pending, format!("audit: worker {number} starts"))
            .with([Effect::StartWorker(identity(node, self.gate, number))])
            .with(remove_workers(self.observed.own_workers(self.gate)))
    }

    fn admit_after(&self, worker: &WorkerView) -> Decision {
        let number = worker.identity.number;
        match &worker.progress {
            Progress::Reported(report) if report.verdict == Verdict::Passed => self.passed(worker, report),
            Progress::Reported(report) => {
                self.admit(number, report.verdict, &report.summary(), failed_checks(report))
            }
            Progress::Inconclusive(_, why) => self.admit(number, Verdict::Inconclusive, why, Vec::new()),
            _ => self.wait(State::InProgress, "the worker runs"),
        }
    }

    /// Removes the taint although the node did not pass, without the verified label.
    fn admit(&self, number: u32, verdict: Verdict, why: &str, failed: Vec<FailedCheck>) -> Decision {
        let record = self.record.after(WorkerResult {
            uid: self.observed.node.uid.clone(),
            scope: scope(self.observed.node, self.gate),
            number,
            verdict,
            why,
            failed,
            cause: (verdict == Verdict::Inconclusive).then_some(InconclusiveReason::Other),
            elapsed_seconds: 0,
            restart: false,
            at: self.observed.now,
        });
        let record = self.answered(record);
        let note =
            format!("gate {} audits and admits the node, which it would have held: {why}", self.gate.name);
        let event = EventSpec::new(true, reasons::NODE_AUDITED, "RemoveTaint", &*note);
        Decision::new(State::InProgress, note)
            .with([
                Effect::Admit(Record { audited: true, ..self.opened(record, "") }),
                Effect::EmitEvent(event),
            ])
            .with(remove_workers(self.observed.own_workers(self.gate)))
    }
}
