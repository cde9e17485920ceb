//! Whether the next worker of a node starts now, and what the node waits for otherwise.

use jiff::SignedDuration;

use super::enforce::ManagedNode;
use super::prerequisites::{Unmet, network_missing, unmet};
use super::verified::RecheckReason;
use super::{Decision, Effect, EventSpec, State, identity, remove_workers};
use crate::jitter::stable_hash;
use crate::reasons;
use crate::record::MAX_WORKER_NUMBER;
use crate::report::Verdict;
use crate::worker::WorkerView;

/// How often the removal of a worker is checked.
const REMOVAL_RECHECK: SignedDuration = SignedDuration::from_mins(1);

impl ManagedNode<'_> {
    /// Decides about the next worker, once the results of all earlier workers are recorded.
    pub(super) fn schedule(&self) -> Decision {
        let node = self.observed.node;
        if !node.ready {
            return self.waiting("the node is not Ready".into());
        }
        if node.unschedulable {
            return self.waiting("the node is cordoned".into());
        }
        if let Some(decision) = self.suspend() {
            return decision;
        }
        let decision = self.next_worker();
        let Some(cause) = self.remediation_cause() else { return decision };
        // The request comes last: if it fails, the node is verified again all the same.
        let why = format!("{}; its replacement is requested", decision.why);
        Decision { why, ..decision.with([Effect::RequestRemediation(cause)]) }
    }

    fn next_worker(&self) -> Decision {
        // Never two workers at once: an abandoned one must be gone before the next starts.
        if self.unfinished_workers().next().is_some() {
            return Decision::new(State::Unverified, "an earlier worker is being removed")
                .with(remove_workers(self.unfinished_workers()))
                .requeue_after(REMOVAL_RECHECK);
        }
        let (state, why) = self.status();
        let wait = self.backoff() - self.since_recorded();
        if wait.is_positive() {
            let seconds = wait.as_secs() + i64::from(wait.subsec_nanos() > 0);
            let waits =
                Decision::new(state, format!("{why}; next worker in {seconds} s")).requeue_after(wait);
            return waits.with(self.reverted_backoff().map(|_| self.reverted_event()));
        }
        let unmet = if self.gated {
            unmet(self.observed, &self.gate.spec.wait_for)
        } else {
            network_missing(self.observed.node)
        };
        match unmet {
            Some(Unmet::OnNode(why)) => return self.waiting(why),
            Some(Unmet::OnPods(why)) => {
                let note = format!("{why}; no worker starts before that");
                let event = EventSpec {
                    dedup_key: Some(0),
                    ..EventSpec::new(false, reasons::NODE_WAITING, "Wait", note)
                };
                return Decision { wants_pods: true, ..self.waiting(why).with([Effect::EmitEvent(event)]) };
            }
            None => {}
        }
        self.start(state, &why)
    }

    /// Emitted once, because two controllers that undo each other's work do so for ever.
    pub(super) fn reverted_event(&self) -> Effect {
        let (gate, times) = (&self.gate.name, self.record.reverted);
        let what = if self.gated { "put the taint back" } else { "removed the verified label" };
        let note = format!(
            "somebody {what} {times} times soon after gate {gate} had admitted the node; it is verified again after a growing time. Stop the controller that does it, or use another taint or label for the gate"
        );
        let event = EventSpec::new(true, reasons::NODE_REVERTED, "Wait", note);
        Effect::EmitEvent(EventSpec { dedup_key: Some(0), ..event })
    }

    fn start(&self, state: State, why: &str) -> Decision {
        if let Some(left) = self.observed.left_to_agent(self.gate) {
            return Decision::new(state, format!("{why}; {}", left.why)).left_to_agent(&left);
        }
        let slots = self.observed.slots;
        if !(if self.record.number == 0 { slots.first } else { slots.another }) {
            return Decision {
                wants_slot: Some(self.record.number),
                // What the node's pods show is needed again as soon as there is a slot.
                wants_pods: self.gated && !self.gate.spec.wait_for.daemon_sets.is_empty(),
                ..Decision::new(state, format!("{why}; waits for a free worker slot"))
            };
        }
        let number = self.record.number.saturating_add(1);
        if number >= MAX_WORKER_NUMBER {
            let why = "the record's worker number is too high: remove the annotation nodekeeper.dev/record";
            return Decision::new(State::Stuck, why);
        }
        let periodic = !self.gated && self.recheck_reason() == Some(RecheckReason::Periodic);
        if periodic && !slots.periodic {
            return self.postpone_periodic(why);
        }
        let event = (!self.gated && !periodic).then(|| {
            let note = format!("worker {number} starts on the verified node: {why}");
            let reason = reasons::NODE_VERIFICATION_STARTED;
            Effect::EmitEvent(EventSpec::new(false, reason, "CreateWorker", note))
        });
        let starts = Decision::new(State::Pending, format!("worker {number} starts"));
        // The last worker stays until the next one starts, so that its logs can be read.
        Decision { periodic, ..starts }
            .with([Effect::StartWorker(identity(self.observed.node, self.gate, number))])
            .with(event)
            .with(remove_workers(self.observed.own_workers(self.gate)))
    }

    /// One periodic worker starts each second: nodes that are due together are spread over the time that all of them
    /// need.
    fn postpone_periodic(&self, why: &str) -> Decision {
        let now = u32::try_from(self.observed.elapsed.as_secs()).unwrap_or_default();
        let share =
            stable_hash(&self.record.uid.to_string(), now) % u64::from(self.observed.fleet.open.max(1)) + 1;
        let wait = SignedDuration::from_secs(i64::try_from(share).unwrap_or(i64::MAX));
        Decision::new(State::Verified, format!("{why}; waits for other periodic workers"))
            .with(remove_workers(self.observed.own_workers(self.gate)))
            .requeue_after(wait)
    }

    fn waiting(&self, why: String) -> Decision {
        Decision::new(State::Waiting, why).with(remove_workers(self.unfinished_workers()))
    }

    pub(super) fn unfinished_workers(&self) -> impl Iterator<Item = &WorkerView> {
        self.observed.workers.iter().filter(|worker| !worker.has_ended())
    }

    /// The node's state between workers, and its explanation.
    pub(super) fn status(&self) -> (State, String) {
        if !self.gated {
            let reason = self.recheck_reason().map(RecheckReason::describe).unwrap_or_default();
            return (State::Verified, reason.to_owned());
        }
        if !self.continues_scope() {
            return (State::Unverified, "no worker has verified the node yet".to_owned());
        }
        let (attempts, allowed, last) = (self.record.attempts, self.attempts_allowed(), &self.record.why);
        let number = self.record.number;
        match self.record.verdict {
            _ if self.is_suspended() => (State::Inconclusive, last.to_string()),
            _ if attempts >= allowed => (State::Failed, format!("all {allowed} attempts failed: {last}")),
            Some(Verdict::Failed) if attempts == 0 => {
                (State::Unverified, format!("tainted again, because it failed while it was verified: {last}"))
            }
            Some(Verdict::Failed) => {
                (State::Unverified, format!("attempt {attempts} of {allowed} failed: {last}"))
            }
            _ if self.is_stuck(self.record) => {
                (State::Stuck, format!("no worker came to a verdict in time; worker {number}: {last}"))
            }
            _ => (State::Inconclusive, format!("worker {number} was inconclusive: {last}")),
        }
    }
}
