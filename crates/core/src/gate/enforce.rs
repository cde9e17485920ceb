//! A node that a gate acts on: one that it holds, or one that it let in and looks at again.

use std::time::Duration;

use jiff::SignedDuration;

use super::backoff::pause;
use super::outage::failed;
use super::prerequisites::{Unmet, unmet};
use super::verified::PERIODIC;
use super::{Decision, Effect, EventSpec, GateView, Observed, State, identity, remove, round, round_of};
use crate::api::FailureAction;
use crate::jitter::stable_hash;
use crate::record::{InconclusiveReason, MOST_WORKERS, Record, WorkerResult};
use crate::report::{CheckResult, Outcome, Report, Verdict, reason};
use crate::worker::{Progress, WorkerView};

/// So many workers in a row without a verdict, and the next comes as rarely as to a node that failed.
const TOO_MANY_SILENT: u32 = 20;
/// The same of a node that works.
const FEW_SILENT: u32 = 3;
/// How long a worker may wait for a kubelet to start it, and for its end to be seen.
const WAITING_GRACE: Duration = Duration::from_mins(1);
/// How long the scheduler may refuse a worker. The next one tolerates what the node bears then.
const UNSCHEDULED_GRACE: Duration = Duration::from_secs(20);
/// How often a worker that does not go away is looked at.
const GOING: SignedDuration = SignedDuration::from_mins(1);

pub(super) struct GatedNode<'a> {
    pub seen: &'a Observed<'a>,
    pub gate: &'a GateView,
    pub record: Record,
    /// The node bears the gate's taint. Else it was let in, and works.
    pub held: bool,
}

impl GatedNode<'_> {
    pub fn decide(&self) -> Decision {
        let newest = self.seen.workers.iter().max_by_key(|worker| worker.identity.number);
        let mut decision = match newest {
            Some(worker) if worker.identity.number > self.record.number => self.look_at(worker),
            _ if self.held => self.next("it is held"),
            _ => self.tend(),
        };
        // A node that works is verified, whatever is looked at on it; only what is written about it can change that.
        let retainted = decision.effects.iter().any(|effect| matches!(effect, Effect::Retaint(_)));
        if !self.held && !retainted {
            decision.state = State::Verified;
        }
        decision
    }

    /// A worker whose end is not recorded yet.
    fn look_at(&self, worker: &WorkerView) -> Decision {
        let node = self.seen.node;
        let other = |why| self.inconclusive(worker, InconclusiveReason::Other, why);
        if *worker.node_name != *node.name {
            return other("the worker was made for a node of another name");
        }
        let (looked_at, now) = (round_of(&worker.identity), round(node, self.gate));
        if looked_at.boot_id != now.boot_id {
            if self.is_held_for_boot() {
                return self.hold_for_boot(worker.identity.number);
            }
            return other("the node was booted again since the worker was made");
        }
        if looked_at != now {
            return other("the gate was changed since the worker was made");
        }
        match &worker.progress {
            // A container that is told to end may well end with 0.
            Progress::Reported(_) if worker.deleting && !self.gate.spec.checks.exec.is_empty() => {
                other("the worker was deleted before all of its checks were read")
            }
            Progress::Reported(report) => self.judge(worker, report),
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

    /// Waits for the end of a worker, but not for ever.
    fn await_end(
        &self,
        worker: &WorkerView,
        state: State,
        doing: &str,
        cause: InconclusiveReason,
    ) -> Decision {
        let allowed = match cause {
            InconclusiveReason::Unscheduled => UNSCHEDULED_GRACE,
            // Its pod's own deadline would end it before ours, and take along why.
            InconclusiveReason::ImagePull => WAITING_GRACE,
            _ => {
                Duration::from_secs(self.gate.spec.deadlines.worker_seconds.unsigned_abs().into())
                    + WAITING_GRACE
            }
        };
        match allowed.checked_sub(self.age(worker)).filter(|left| !left.is_zero()) {
            Some(left) => {
                let decision = Decision::new(state, format!("worker {} {doing}", worker.identity.number));
                Decision { recheck_in: Some(left), ..decision }
            }
            None => self.inconclusive(worker, cause, &format!("the worker {doing}, and is overdue")),
        }
    }

    fn age(&self, worker: &WorkerView) -> Duration {
        self.seen.elapsed.saturating_sub(worker.first_seen)
    }

    fn judge(&self, worker: &WorkerView, report: &Report) -> Decision {
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
            Verdict::Passed if !self.seen.node.ready => {
                let why = "the node was no longer Ready when its worker had passed";
                self.inconclusive(worker, InconclusiveReason::Other, why)
            }
            Verdict::Passed => self.passed(worker, report),
            Verdict::Failed if self.shares(&failed(report)) => {
                let why = format!("nodes that work fail alike: {}", report.summary());
                self.inconclusive(worker, InconclusiveReason::SharedDependency, &why)
            }
            Verdict::Failed if self.held => self.failed(worker, report),
            Verdict::Failed => self.failed_in_place(worker, report),
        }
    }

    pub(super) fn record_after(
        &self,
        worker: &WorkerView,
        verdict: Verdict,
        cause: Option<InconclusiveReason>,
        why: &str,
    ) -> Record {
        let mut failed_now = match &worker.progress {
            Progress::Reported(report) => failed(report),
            _ => Vec::new(),
        };
        let mut cause = cause;
        // A worker that cannot tell does not thaw what is frozen: the node is to begin anew, when it is time.
        if verdict == Verdict::Inconclusive && self.is_frozen() && !self.shares(&failed_now) {
            (cause, failed_now) = (Some(InconclusiveReason::SharedDependency), self.record.failed.clone());
        }
        // Where nothing can run, or what all nodes need does not work, the node's clock stands still.
        let shared =
            matches!(cause, Some(InconclusiveReason::ClusterDns | InconclusiveReason::SharedDependency));
        let stands = self.seen.fleet.cannot_run || shared || !self.held;
        let elapsed_seconds = self.age(worker) + Duration::try_from(self.pause()).unwrap_or_default();
        let record = self.record.after(WorkerResult {
            uid: &self.seen.node.uid,
            round: round(self.seen.node, self.gate),
            number: worker.identity.number,
            verdict,
            why,
            failed: failed_now,
            cause,
            elapsed_seconds: if stands {
                0
            } else {
                u32::try_from(elapsed_seconds.as_secs()).unwrap_or(u32::MAX)
            },
            anew: self.seen.node.verify.is_some() || self.has_thawed(),
            at: self.seen.now,
        });
        // One that somebody tainted is not open any more, whatever let it in.
        let taint = if self.held { self.taint() } else { String::new() };
        Record { open: record.open && !self.held, taint, ..record }
    }

    /// The taint by which the gate holds a node.
    pub(super) fn taint(&self) -> String {
        self.gate.spec.taints.first().map(|taint| taint.key.clone()).unwrap_or_default()
    }

    fn passed(&self, worker: &WorkerView, report: &Report) -> Decision {
        let record = self.record_after(worker, Verdict::Passed, None, &report.summary());
        let (attempt, gate) = (record.attempts, &self.gate.name);
        let note = if self.held {
            format!("attempt {attempt} passed: {}; gate {gate} is open", report.summary())
        } else {
            format!("verified again: {}", report.summary())
        };
        let told =
            EventSpec::new(false, "NodeVerified", if self.held { "RemoveTaint" } else { "Verify" }, &*note);
        let record = record.opened(&self.gate.spec.verified_label.key);
        // What is looked at every few hours needs no Event each time.
        let asked = self.held || self.wish().is_some_and(|wish| wish != PERIODIC);
        Decision::new(State::Verified, note)
            .with([Effect::RemoveTaint(record)])
            .with(asked.then_some(Effect::EmitEvent(told)))
            .with(remove(self.seen.workers))
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
        let told = EventSpec::new(true, "NodeCheckFailed", &action(report), &*note);
        let mut effects = vec![Effect::PatchRecord(record), Effect::EmitEvent(told)];
        if attempts == allowed {
            let pause = self.gate.spec.retry.recheck_period_seconds;
            let then = match self.gate.spec.on_failure {
                FailureAction::KeepTainted => "",
                FailureAction::Replace => "; its replacement is asked for",
            };
            let note = format!(
                "{allowed} attempts failed; the node stays tainted and is looked at every {pause} s{then}"
            );
            effects.push(Effect::EmitEvent(EventSpec::new(true, "NodeVerificationFailed", "GiveUp", note)));
        }
        let state = if attempts < allowed { State::Unverified } else { State::Failed };
        Decision::new(state, note).with(effects)
    }

    fn inconclusive(&self, worker: &WorkerView, cause: InconclusiveReason, why: &str) -> Decision {
        let record = self.record_after(worker, Verdict::Inconclusive, Some(cause), why);
        let note = format!("worker {} could not tell: {why}", worker.identity.number);
        let told = EventSpec::new(true, "NodeVerificationInconclusive", "RunWorker", &*note);
        let deadline = self.gate.spec.deadlines.gate_seconds;
        let stuck = (self.is_stuck(&record) && !self.is_stuck(&self.record)).then(|| {
            let pause = self.gate.spec.retry.recheck_period_seconds;
            let note = format!(
                "no worker could tell within {deadline} s; the node stays tainted and is looked at every {pause} s; the last one: {why}"
            );
            Effect::EmitEvent(EventSpec::new(true, "NodeVerificationStuck", "GiveUp", note))
        });
        let state = if self.is_stuck(&record) { State::Stuck } else { State::Inconclusive };
        Decision::new(state, note).with([Effect::PatchRecord(record), Effect::EmitEvent(told)]).with(stuck)
    }

    /// All that ended is recorded. Is it time for the next worker?
    pub(super) fn next(&self, wish: &str) -> Decision {
        let node = self.seen.node;
        let waiting = |why: String| Decision::new(State::Waiting, why).with(remove(self.unended()));
        if !node.ready || node.boot_id.is_empty() {
            return waiting("the node is not Ready".into());
        }
        if node.unschedulable {
            return waiting("the node is cordoned".into());
        }
        if let Some(decision) = self.freeze() {
            return decision;
        }
        let decision = self.next_worker(wish);
        let Some(cause) = self.ask() else { return decision };
        // Last: where nobody can be asked, the node is looked at all the same, and let in if it heals.
        let why = format!("{}; its replacement is asked for", decision.why);
        Decision { why, ..decision.with([Effect::RequestRemediation(cause)]) }
    }

    fn next_worker(&self, wish: &str) -> Decision {
        let waiting = |why: String| Decision::new(State::Waiting, why).with(remove(self.unended()));
        // Never two at dedup_key: one that was given up has to be gone before the next starts.
        if self.unended().next().is_some() {
            return Decision::new(State::Unverified, "an earlier worker is being removed")
                .with(remove(self.unended()))
                .again_in(GOING);
        }
        let (state, why) = self.standing(wish);
        let wait = self.pause() - self.since_recorded();
        if wait.is_positive() {
            let seconds = wait.as_secs() + i64::from(wait.subsec_nanos() > 0);
            return Decision::new(state, format!("{why}; next worker in {seconds} s")).again_in(wait);
        }
        match unmet(self.seen, &self.gate.spec.wait_for).filter(|_| self.held) {
            Some(Unmet::OnNode(why)) => return waiting(why),
            Some(Unmet::OnPods(why)) => {
                let note = format!("{why}; no worker is sent before, however long it takes");
                let told =
                    EventSpec { dedup_key: Some(0), ..EventSpec::new(false, "NodeWaiting", "Wait", note) };
                return Decision { wants_pods: true, ..waiting(why).with([Effect::EmitEvent(told)]) };
            }
            None => {}
        }
        self.start(state, &why)
    }

    fn start(&self, state: State, why: &str) -> Decision {
        let slots = self.seen.slots;
        if !(if self.record.number == 0 { slots.first } else { slots.another }) {
            return Decision {
                wants_slot: Some(self.record.number),
                ..Decision::new(state, format!("{why}; waits for a free slot"))
            };
        }
        let number = self.record.number.saturating_add(1);
        if number >= MOST_WORKERS {
            let why = "its record counts more workers than it can have had: remove the annotation nodekeeper.dev/record";
            return Decision::new(State::Stuck, why);
        }
        let periodic = !self.held && self.wish() == Some(PERIODIC);
        if periodic && !slots.periodic {
            // One a second, wherever the clock stands: those that are due together share the time that all of them need.
            let now = u32::try_from(self.seen.elapsed.as_secs()).unwrap_or_default();
            let share = stable_hash(&self.record.uid, now) % u64::from(self.seen.fleet.open.max(1)) + 1;
            let wait = SignedDuration::from_secs(i64::try_from(share).unwrap_or(i64::MAX));
            let why = format!("{why}; others are looked at first");
            return Decision::new(State::Verified, why).with(remove(self.seen.workers)).again_in(wait);
        }
        let told = (!self.held && !periodic).then(|| {
            let note = format!("worker {number} looks at the verified node: {why}");
            Effect::EmitEvent(EventSpec::new(false, "NodeVerificationStarted", "CreateWorker", note))
        });
        let starts = Decision::new(State::Pending, format!("worker {number} starts"));
        // The last worker's logs could be read until now.
        Decision { periodic, ..starts }
            .with([Effect::StartWorker(identity(self.seen.node, self.gate, number))])
            .with(told)
            .with(remove(self.seen.workers))
    }

    fn unended(&self) -> impl Iterator<Item = &WorkerView> {
        self.seen.workers.iter().filter(|worker| !worker.has_ended())
    }

    pub(super) fn attempts_allowed(&self) -> u32 {
        self.gate.spec.retry.max_retries.unsigned_abs().saturating_add(1)
    }

    pub(super) fn same_round(&self) -> bool {
        self.record.goes_on(&round(self.seen.node, self.gate))
            && self.seen.node.verify.is_none()
            && !self.has_thawed()
    }

    /// The gate's deadline is past, and the last worker could not tell either.
    pub(super) fn is_stuck(&self, record: &Record) -> bool {
        self.held
            && record.attempts < self.attempts_allowed()
            && record.verdict == Some(Verdict::Inconclusive)
            && record.cause != Some(InconclusiveReason::SharedDependency)
            && record.elapsed_seconds >= self.gate.spec.deadlines.gate_seconds.unsigned_abs()
    }

    fn is_slow(&self) -> bool {
        self.record.attempts >= self.attempts_allowed()
            || self.record.inconclusive_streak >= TOO_MANY_SILENT
            || self.is_stuck(&self.record)
            || self.is_frozen()
            // A node that works is not looked at more often than it needs.
            || (!self.held && (self.record.verdict == Some(Verdict::Failed) || self.record.inconclusive_streak >= FEW_SILENT))
    }

    pub(super) fn standing(&self, wish: &str) -> (State, String) {
        if !self.held {
            return (State::Verified, wish.to_owned());
        }
        if !self.same_round() {
            return (State::Unverified, "no worker has looked at it yet".to_owned());
        }
        let (attempts, allowed, last) = (self.record.attempts, self.attempts_allowed(), &self.record.why);
        match self.record.verdict {
            _ if self.is_frozen() => (State::Inconclusive, last.clone()),
            _ if attempts >= allowed => (State::Failed, format!("all {allowed} attempts failed: {last}")),
            Some(Verdict::Failed) => {
                (State::Unverified, format!("attempt {attempts} of {allowed} failed: {last}"))
            }
            _ if self.is_stuck(&self.record) => {
                (State::Stuck, format!("no worker could tell in time; worker {}: {last}", self.record.number))
            }
            _ => (State::Inconclusive, format!("worker {} could not tell: {last}", self.record.number)),
        }
    }

    /// How long after the last worker's end the next one comes.
    fn pause(&self) -> SignedDuration {
        if !self.same_round() || self.record.workers == 0 {
            SignedDuration::ZERO
        } else if self.is_slow() {
            SignedDuration::from_secs(self.gate.spec.retry.recheck_period_seconds.into())
        } else {
            pause(&self.gate.spec.retry, &self.record)
        }
    }

    /// Whoever wrote the record may have a clock that is ahead of ours: no node waits longer than the pause since we
    /// saw it.
    pub(super) fn since_recorded(&self) -> SignedDuration {
        let since_seen = self.seen.elapsed.saturating_sub(self.seen.node.record_seen_at);
        let since_seen = SignedDuration::try_from(since_seen).unwrap_or(SignedDuration::MAX);
        self.record.at.map_or(since_seen, |at| self.seen.now.duration_since(at).max(since_seen))
    }
}

/// Which check failed first: an Event is told from another by its action.
pub(super) fn action(report: &Report) -> String {
    let failed = report.checks.iter().find(|check| check.outcome == Outcome::Failed);
    failed.map_or_else(|| "Check".to_owned(), |check| format!("Check-{}", check.name))
}
