//! The decision about a node of an enforcing gate, and how the result of a worker is recorded.

use std::time::Duration;

use jiff::SignedDuration;

use super::outage::failed_checks;
use super::verified::RecheckReason;
use super::{
    Decision, Effect, EventSpec, GateView, Observed, State, is_requested, remove_workers, scope, scope_of,
};
use crate::api::{Enforcement, FailureAction};
use crate::reasons;
use crate::record::{InconclusiveReason, Record, WorkerResult};
use crate::report::{CheckResult, Outcome, Report, Verdict, reason};
use crate::worker::{Progress, WorkerView};

/// How long a worker may take beyond its deadline, for the kubelet to start it and for its end to be observed.
const WAITING_GRACE: Duration = Duration::from_mins(1);
/// How long a worker may stay unschedulable. The next worker tolerates the taints that the node has then.
const UNSCHEDULED_GRACE: Duration = Duration::from_secs(20);

pub(super) struct ManagedNode<'a> {
    pub observed: &'a Observed<'a>,
    pub gate: &'a GateView,
    pub record: &'a Record,
    /// The node has the gate's taint. Otherwise the gate verified it, and pods run on it.
    pub gated: bool,
}

impl ManagedNode<'_> {
    pub fn decide(&self) -> Decision {
        let newest = self.observed.workers.iter().max_by_key(|worker| worker.identity.number);
        let mut decision = match newest {
            Some(worker) if worker.identity.number > self.record.number => self.evaluate_worker(worker),
            _ if self.gated => self.schedule(),
            _ => self.reconcile_verified(),
        };
        // A verified node stays verified while workers run on it; only a new taint changes that.
        let retainted = decision.effects.iter().any(|effect| matches!(effect, Effect::Retaint(_)));
        if !self.gated && !retainted {
            decision.state = State::Verified;
        }
        decision
    }

    /// Evaluates a worker whose result is not recorded yet.
    fn evaluate_worker(&self, worker: &WorkerView) -> Decision {
        let node = self.observed.node;
        let other = |why| self.inconclusive(worker, InconclusiveReason::Other, why);
        if *worker.node_name != *node.name {
            return other("the worker was created for a node of another name");
        }
        if self.is_foreign(worker) {
            let number = worker.identity.number;
            return self.skip(
                worker,
                format!("worker {number} belongs to another gate, which does not use it any more"),
            );
        }
        let (verified, current) = (scope_of(&worker.identity), scope(node, self.gate));
        if verified.boot_id != current.boot_id {
            if self.must_retaint_after_reboot() {
                return self.retaint_after_reboot(worker.identity.number);
            }
            return other("the node was rebooted after the worker was created");
        }
        if verified != current {
            return other("the gate was changed after the worker was created");
        }
        match &worker.progress {
            // A container that is terminated may exit with 0.
            Progress::Reported(_) if worker.deleting && !self.gate.spec.checks.exec.is_empty() => {
                other("the worker was deleted before the results of all checks were read")
            }
            Progress::Reported(report) => self.evaluate_report(worker, report),
            Progress::Inconclusive(cause, why) => self.inconclusive(worker, *cause, why),
            _ if worker.deleting => other("the worker was deleted before it ended"),
            Progress::Running => {
                self.await_end(worker, State::InProgress, "runs", InconclusiveReason::Overdue)
            }
            Progress::Waiting(cause, why) if why.is_empty() => {
                self.await_end(worker, State::Pending, "has not started", *cause)
            }
            Progress::Waiting(cause, why) => {
                self.await_end(worker, State::Pending, &format!("has not started: {why}"), *cause)
            }
            Progress::Unscheduled(why) => self.await_end(
                worker,
                State::Pending,
                &format!("is not scheduled: {why}"),
                InconclusiveReason::Unscheduled,
            ),
        }
    }

    /// Waits for the end of a worker until it is overdue.
    fn await_end(
        &self,
        worker: &WorkerView,
        state: State,
        doing: &str,
        cause: InconclusiveReason,
    ) -> Decision {
        let (since, allowed) = match cause {
            InconclusiveReason::Unscheduled => (worker.unscheduled_since, UNSCHEDULED_GRACE),
            // Earlier than the pod's own deadline, which would end the pod without the reason.
            InconclusiveReason::ImagePull => (worker.first_seen, WAITING_GRACE),
            _ => {
                let deadline = self.gate.spec.deadlines.worker_seconds.unsigned_abs();
                (worker.first_seen, Duration::from_secs(deadline.into()) + WAITING_GRACE)
            }
        };
        let passed = self.observed.elapsed.saturating_sub(since);
        if let Some(left) = allowed.checked_sub(passed).filter(|left| !left.is_zero()) {
            let decision = Decision::new(state, format!("worker {} {doing}", worker.identity.number));
            return Decision { recheck_in: Some(left), ..decision };
        }
        let decision = self.inconclusive(worker, cause, &format!("the worker {doing}, and is overdue"));
        Decision { gives_up_on: Some(worker.name.clone()), ..decision }
    }

    fn age(&self, worker: &WorkerView) -> Duration {
        self.observed.elapsed.saturating_sub(worker.first_seen)
    }

    fn evaluate_report(&self, worker: &WorkerView, report: &Report) -> Decision {
        match report.verdict {
            Verdict::Inconclusive => {
                let dns = |check: &CheckResult| check.reason == reason::CLUSTER_DNS_NOT_RUNNING;
                let cause = if report.checks.iter().any(dns) {
                    InconclusiveReason::ClusterDns
                } else {
                    InconclusiveReason::Other
                };
                self.inconclusive(worker, cause, &report.summary())
            }
            Verdict::Passed if !self.observed.node.ready => {
                let why = "the worker passed, but the node is no longer Ready";
                self.inconclusive(worker, InconclusiveReason::Other, why)
            }
            Verdict::Passed => self.passed(worker, report),
            Verdict::Failed if !self.observed.policy_known => {
                let why = "checks failed; this counts once the RemediationPolicy was read";
                Decision::new(State::InProgress, why)
            }
            Verdict::Failed if self.is_shared_outage(&failed_checks(report)) => {
                let why = format!("the same check fails on control nodes: {}", report.summary());
                self.inconclusive(worker, InconclusiveReason::SharedDependency, &why)
            }
            Verdict::Failed if self.gated => self.failed(worker, report),
            Verdict::Failed => self.verified_node_failed(worker, report),
        }
    }

    pub(super) fn record_after(
        &self,
        worker: &WorkerView,
        verdict: Verdict,
        cause: Option<InconclusiveReason>,
        why: &str,
    ) -> Record {
        let mut failed = match &worker.progress {
            Progress::Reported(report) => failed_checks(report),
            _ => Vec::new(),
        };
        let mut cause = cause;
        // An inconclusive worker does not end the suspension: only the end of the shared outage does.
        if verdict == Verdict::Inconclusive && self.is_suspended() && !self.is_shared_outage(&failed) {
            (cause, failed) = (Some(InconclusiveReason::SharedDependency), self.record.failed.clone());
        }
        // The deadline does not run while no worker can run or a shared dependency is down.
        let shared =
            matches!(cause, Some(InconclusiveReason::ClusterDns | InconclusiveReason::SharedDependency));
        let is_paused = self.observed.fleet.cannot_run || shared || !self.gated;
        // Nor while a node waits that another controller keeps reverting: that says nothing about the node.
        let waited = if self.reverted_backoff().is_some() { SignedDuration::ZERO } else { self.backoff() };
        let elapsed = self.age(worker) + Duration::try_from(waited).unwrap_or_default();
        let elapsed_seconds = u32::try_from(elapsed.as_secs()).unwrap_or(u32::MAX);
        let record = self.record.after(WorkerResult {
            uid: self.observed.node.uid.clone(),
            scope: scope(self.observed.node, self.gate),
            number: worker.identity.number,
            verdict,
            why,
            failed,
            cause,
            elapsed_seconds: if is_paused { 0 } else { elapsed_seconds },
            restart: self.is_requested() || self.has_resumed(),
            at: self.observed.now,
        });
        let taint = if self.gated || self.has_other_gates() { self.gate.taint_key() } else { "" };
        // A user or another controller may have tainted a verified node.
        self.answered(Record { open: record.open && !self.gated, taint: taint.into(), ..record })
    }

    pub(super) fn is_requested(&self) -> bool {
        is_requested(self.observed.node, self.record)
    }

    /// The record of a worker that answers the request for a verification, if there is one. The annotation is removed with
    /// it, and the other gates have not answered yet.
    pub(super) fn answered(&self, record: Record) -> Record {
        if self.observed.node.verify.is_some() { record.with_others_requested() } else { record }
    }

    /// Whether the worker was created by another gate, which does not evaluate it any more.
    fn is_foreign(&self, worker: &WorkerView) -> bool {
        let uid = &worker.identity.gate_uid;
        *uid != self.gate.uid && self.observed.gates.iter().any(|gate| gate.uid == *uid)
    }

    /// Notes the number of a worker as used that says nothing for this gate.
    pub(super) fn skip(&self, worker: &WorkerView, why: String) -> Decision {
        let number = worker.identity.number;
        let record = Record { uid: self.observed.node.uid.clone(), number, ..self.record.clone() };
        // The record is written without an answer to a request.
        let record = Record { requested: self.is_requested(), ..self.answered(record) };
        let (state, _) = self.status();
        Decision::new(state, why).with([Effect::PatchRecord(record)])
    }

    pub(super) fn passed(&self, worker: &WorkerView, report: &Report) -> Decision {
        let record = self.record_after(worker, Verdict::Passed, None, &report.summary());
        let (attempt, gate) = (record.attempts, &self.gate.name);
        let (action, note) = if self.gated {
            let note =
                format!("attempt {attempt} passed: {}; gate {gate} removes its taint", report.summary());
            ("RemoveTaint", note)
        } else {
            ("Verify", format!("verified again: {}", report.summary()))
        };
        let (audited, reverted) = (self.gate.spec.enforcement == Enforcement::Audit, self.times_reverted());
        let record = Record { audited, reverted, ..self.labelled(record) };
        // A periodic worker that passes emits no Event.
        let is_event =
            self.gated || self.recheck_reason().is_some_and(|reason| reason != RecheckReason::Periodic);
        let event = EventSpec::new(false, reasons::NODE_VERIFIED, action, &*note);
        // Verified once the taint is removed, which the API server may refuse.
        Decision::new(State::InProgress, note)
            .with([Effect::RemoveTaint(record)])
            .with(is_event.then_some(Effect::EmitEvent(event)))
            .with(remove_workers(self.observed.own_workers(self.gate)))
    }

    /// The record once the gate removed its taint. Where there are other gates, the taint tells whose section it is.
    pub(super) fn opened(&self, record: Record, label: &str) -> Record {
        let taint = if self.has_other_gates() { self.gate.taint_key() } else { "" };
        Record { taint: taint.into(), ..record.opened(label) }
    }

    fn has_other_gates(&self) -> bool {
        !self.record.others.is_empty() || self.observed.other_gates(self.gate).next().is_some()
    }

    /// The record once the gate removed its taint and set its label. Of gates with the same label the last one sets it.
    pub(super) fn labelled(&self, record: Record) -> Record {
        let key = &self.gate.spec.verified_label.key;
        let opened = self.opened(record, key);
        if self.observed.is_label_withheld(self.gate) {
            Record { unlabelled: true, ..opened }
        } else {
            opened.with_label_set(key, true)
        }
    }

    fn failed(&self, worker: &WorkerView, report: &Report) -> Decision {
        let record = self.record_after(worker, Verdict::Failed, None, &report.summary());
        let (attempts, allowed) = (record.attempts, self.attempts_allowed());
        let which = if attempts > allowed {
            "one more attempt".to_owned()
        } else {
            format!("attempt {attempts} of {allowed}")
        };
        let note = format!("{which} failed: {}", report.summary());
        let event = EventSpec::new(true, reasons::NODE_CHECK_FAILED, &action(report), &*note);
        let mut effects = vec![Effect::PatchRecord(record), Effect::EmitEvent(event)];
        if attempts == allowed {
            let period = self.gate.spec.retry.recheck_period_seconds;
            let then = match self.gate.spec.on_failure {
                FailureAction::KeepTainted => "",
                FailureAction::Replace => "; its replacement is requested",
            };
            let note = format!(
                "{allowed} attempts failed; the node stays tainted and is verified again every {period} s{then}"
            );
            let event = EventSpec::new(true, reasons::NODE_VERIFICATION_FAILED, "KeepTaint", note);
            effects.push(Effect::EmitEvent(event));
        }
        let state = if attempts < allowed { State::Unverified } else { State::Failed };
        Decision::new(state, note).with(effects)
    }

    fn inconclusive(&self, worker: &WorkerView, cause: InconclusiveReason, why: &str) -> Decision {
        let record = self.record_after(worker, Verdict::Inconclusive, Some(cause), why);
        let note = format!("worker {} was inconclusive: {why}", worker.identity.number);
        let event = EventSpec::new(true, reasons::NODE_VERIFICATION_INCONCLUSIVE, "RunWorker", &*note);
        let deadline = self.gate.spec.deadlines.gate_seconds;
        let stuck = (self.is_stuck(&record) && !self.is_stuck(self.record)).then(|| {
            let period = self.gate.spec.retry.recheck_period_seconds;
            let note = format!(
                "no worker came to a verdict within {deadline} s; the node stays tainted and is verified again every {period} s; the last worker: {why}"
            );
            Effect::EmitEvent(EventSpec::new(true, reasons::NODE_VERIFICATION_STUCK, "KeepTaint", note))
        });
        let state = if self.is_stuck(&record) { State::Stuck } else { State::Inconclusive };
        Decision::new(state, note).with([Effect::PatchRecord(record), Effect::EmitEvent(event)]).with(stuck)
    }
}

/// The action of a failure Event. It names the first failed check, because Events with the same action are aggregated.
pub(super) fn action(report: &Report) -> String {
    let failed = report.checks.iter().find(|check| check.outcome == Outcome::Failed);
    failed.map_or_else(|| "Check".to_owned(), |check| format!("Check-{}", check.name))
}
