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
            // What a worker found before says nothing about the node afterwards, and one that runs would keep its slot.
            return Decision::new(State::Waiting, "audit: the node is not Ready")
                .with(remove_workers(self.observed.workers));
        }
        let current = unrecorded.filter(|worker| {
            scope_of(&worker.identity) == scope(self.observed.node, self.gate)
                && *worker.node_name == *self.observed.node.name
        });
        match current {
            Some(worker) if worker.has_ended() => self.admit_after(worker),
            None if self.reverted_wait().is_positive() => self.await_reverted(),
            _ if self.audited_for() >= ADMITTED_AFTER => {
                // Without a worker its number counts as used: records have ever higher ones.
                let number = if unrecorded.is_some() { last } else { last.saturating_add(1) };
                self.admit_without_verdict(number, current)
            }
            Some(worker) if !worker.deleting => {
                self.wait(State::InProgress, &format!("worker {} runs", worker.identity.number))
            }
            _ => self.start_audit(unrecorded),
        }
    }

    /// How long the node could have been verified: it is Ready, and no backoff runs.
    fn audited_for(&self) -> Duration {
        let since_ready = self.observed.elapsed.saturating_sub(self.observed.ready_since);
        let since_backoff = self.reverted_backoff().map(|_| Duration::try_from(-self.reverted_wait()));
        since_backoff.map_or(since_ready, |since| since_ready.min(since.unwrap_or_default()))
    }

    /// The rest of the backoff of a node that another controller keeps tainting; negative since its end.
    fn reverted_wait(&self) -> SignedDuration {
        self.reverted_backoff().map_or(SignedDuration::ZERO, |backoff| backoff - self.since_recorded())
    }

    fn await_reverted(&self) -> Decision {
        let why = "audit: somebody keeps putting the taint back";
        Decision::new(State::Unverified, why)
            .requeue_after(self.reverted_wait())
            .with(remove_workers(self.observed.workers))
            .with([self.reverted_event()])
    }

    fn wait(&self, state: State, why: &str) -> Decision {
        let left = ADMITTED_AFTER.saturating_sub(self.audited_for());
        let left = SignedDuration::try_from(left).unwrap_or_default();
        Decision::new(state, format!("audit: {why}")).requeue_after(left)
    }

    fn start_audit(&self, unrecorded: Option<&WorkerView>) -> Decision {
        let (node, slots) = (self.observed.node, self.observed.slots);
        // Never two workers at once: one for an earlier boot or state of the gate must be gone before the next starts.
        if self.unfinished_workers().next().is_some() {
            let waits = self.wait(State::Unverified, "an earlier worker is being removed");
            return waits.with(remove_workers(self.unfinished_workers()));
        }
        // The next number only after this one is in the record: once the pod is gone, nothing else says that it was used.
        if let Some(worker) = unrecorded {
            let number = worker.identity.number;
            return self.skip(
                worker,
                format!("audit: worker {number} verified another boot, or another state of the gate"),
            );
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
        if let Some(left) = self.observed.left_to_agent(self.gate) {
            return self.wait(State::Unverified, left.why);
        }
        let last = self.record.number;
        if !(if last == 0 { slots.first } else { slots.another }) {
            let waits = self.wait(State::Unverified, "the node waits for a free worker slot");
            let wants_pods = !self.gate.spec.wait_for.daemon_sets.is_empty();
            return Decision { wants_slot: Some(last), wants_pods, ..waits };
        }
        let number = last.saturating_add(1);
        Decision::new(State::Pending, format!("audit: worker {number} starts"))
            .with([Effect::StartWorker(identity(node, self.gate, number))])
            .with(remove_workers(self.observed.own_workers(self.gate)))
    }

    fn admit_after(&self, worker: &WorkerView) -> Decision {
        let number = worker.identity.number;
        match &worker.progress {
            // A container that is terminated may exit with 0.
            Progress::Reported(_) if worker.deleting && !self.gate.spec.checks.exec.is_empty() => {
                let why = "the worker was deleted before the results of all checks were read";
                self.admit(number, Verdict::Inconclusive, why, Vec::new(), Some(InconclusiveReason::Other))
            }
            Progress::Reported(report) if report.verdict == Verdict::Passed => self.passed(worker, report),
            Progress::Reported(report) => {
                let cause = (report.verdict == Verdict::Inconclusive).then_some(InconclusiveReason::Other);
                self.admit(number, report.verdict, &report.summary(), failed_checks(report), cause)
            }
            Progress::Inconclusive(cause, why) => {
                self.admit(number, Verdict::Inconclusive, why, Vec::new(), Some(*cause))
            }
            _ => self.wait(State::InProgress, "the worker runs"),
        }
    }

    /// Admits the node because its time is over. The watch may be behind, so that the worker is read once more before that.
    fn admit_without_verdict(&self, number: u32, current: Option<&WorkerView>) -> Decision {
        let (cause, what, detail) = match current.map(|worker| &worker.progress) {
            None => (InconclusiveReason::Other, "no worker started", ""),
            Some(Progress::Waiting(cause, why)) => (*cause, "the worker did not start", why.as_str()),
            Some(Progress::Unscheduled(why)) => {
                (InconclusiveReason::Unscheduled, "the worker was not scheduled", why.as_str())
            }
            Some(_) => (InconclusiveReason::Overdue, "the worker did not end", ""),
        };
        let separator = if detail.is_empty() { "" } else { ": " };
        let seconds = ADMITTED_AFTER.as_secs();
        let why = format!("{what} within {seconds} s after the node became Ready{separator}{detail}");
        let decision = self.admit(number, Verdict::Inconclusive, &why, Vec::new(), Some(cause));
        Decision { gives_up_on: current.map(|worker| worker.name.clone()), ..decision }
    }

    /// Removes the taint although the node did not pass, without the verified label.
    fn admit(
        &self,
        number: u32,
        verdict: Verdict,
        why: &str,
        failed: Vec<FailedCheck>,
        cause: Option<InconclusiveReason>,
    ) -> Decision {
        let record = self.record.after(WorkerResult {
            uid: self.observed.node.uid.clone(),
            scope: scope(self.observed.node, self.gate),
            number,
            verdict,
            why,
            failed,
            cause,
            elapsed_seconds: 0,
            restart: false,
            at: self.observed.now,
        });
        let record = self.answered(record);
        let note =
            format!("gate {} audits and admits the node, which it would have held: {why}", self.gate.name);
        let event = EventSpec::new(true, reasons::NODE_AUDITED, "RemoveTaint", &*note);
        let record = Record { audited: true, reverted: self.times_reverted(), ..self.opened(record, "") };
        Decision::new(State::InProgress, note)
            .with([Effect::Admit(record), Effect::EmitEvent(event)])
            .with(remove_workers(self.observed.own_workers(self.gate)))
    }
}
