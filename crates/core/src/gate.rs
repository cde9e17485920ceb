//! What happens to a node at the gate: one pure decision from what is seen now.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::api::{Backoff, NodeGate, NodeGateSpec, Retry};
use crate::checks::Subject;
use crate::node::NodeView;
use crate::record::{Record, Round};
use crate::report::{Report, Verdict};
use crate::worker::{Progress, WorkerView};

/// No pause between attempts is longer.
const LONGEST_PAUSE: i64 = 30;
/// So many workers in a row without a verdict, and the next comes as rarely as to a node that failed.
const TOO_MANY_SILENT: u32 = 20;
/// How long a worker may wait for a kubelet to start it, and for its end to be seen.
const WAITING_GRACE: Duration = Duration::from_mins(1);
/// How long the scheduler may refuse a worker. The next one tolerates what the node bears then.
const UNSCHEDULED_GRACE: Duration = Duration::from_secs(20);
/// How often a worker that does not go away is looked at.
const GOING: SignedDuration = SignedDuration::from_mins(1);

/// A gate, as far as anything here is decided by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateView {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Changes with its spec.
    pub generation: i64,
    /// The older one wins.
    pub created: Timestamp,
    /// Somebody deleted it: it serves no more.
    pub deleting: bool,
    /// What it asks for.
    pub spec: NodeGateSpec,
}

impl GateView {
    /// Keeps what is needed of a gate.
    #[must_use]
    pub fn new(gate: &NodeGate) -> Self {
        let metadata = &gate.metadata;
        Self {
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            generation: metadata.generation.unwrap_or_default(),
            created: metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            deleting: metadata.deletion_timestamp.is_some(),
            spec: gate.spec.clone(),
        }
    }
}

/// The gate that a node stands before: it selects the node, and the node bears a taint of it. The oldest of them, then
/// the first by name.
#[must_use]
pub fn serving<'a>(gates: impl IntoIterator<Item = &'a GateView>, node: &NodeView) -> Option<&'a GateView> {
    gates
        .into_iter()
        .filter(|gate| !gate.deleting && gate.spec.selects(&node.labels))
        .filter(|gate| !node.positions(&gate.spec.taints).is_empty())
        .min_by(|a, b| (a.created, &a.name).cmp(&(b.created, &b.name)))
}

/// All that a decision is made from.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// The node.
    pub node: &'a NodeView,
    /// The gate that it stands before, if any.
    pub gate: Option<&'a GateView>,
    /// The workers made for this uid, in any order.
    pub workers: &'a [WorkerView],
    /// Whether one more worker may run in the cluster.
    pub slot_free: bool,
    /// The time of day.
    pub now: Timestamp,
    /// The time by the clock on which [`WorkerView::first_seen`] is.
    pub elapsed: Duration,
}

/// Where a node stands. Derived each time, never stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// It bears no taint of a gate and never did: left alone.
    Ungated,
    /// It was before a gate that no longer serves it, and may still bear its taint.
    Unserved,
    /// It was let in.
    Verified,
    /// It is being deleted.
    Leaving,
    /// Nothing can be looked at yet: not Ready, or cordoned.
    Waiting,
    /// It waits for a worker: for the end of a pause, or for a free slot.
    Unverified,
    /// Its worker has not started.
    Pending,
    /// Its worker looks.
    InProgress,
    /// Its last worker could not tell.
    Inconclusive,
    /// Its attempts are used up; it is looked at again, but rarely.
    Failed,
}

/// One thing to do. Effects are done in their order; one that fails ends the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Make this worker.
    StartWorker(Subject),
    /// Delete this pod.
    RemoveWorker {
        /// Its name.
        name: String,
        /// Its uid: a namesake is left alone.
        uid: String,
    },
    /// Take our taints, give the label, write the record: all in one guarded patch.
    Open(Record),
    /// Write the record.
    Remember(Record),
    /// Say it in an Event on the node.
    Tell(Notice),
}

/// An Event to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Whether it is a warning.
    pub warning: bool,
    /// In one word.
    pub reason: &'static str,
    /// What was done.
    pub action: &'static str,
    /// For people.
    pub note: String,
}

/// What to do about a node now, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Where it stands.
    pub state: State,
    /// What to do.
    pub effects: Vec<Effect>,
    /// When to look again though nothing changed.
    pub recheck_in: Option<Duration>,
    /// A worker is due, and there is no slot for it.
    pub wants_slot: bool,
    /// For people.
    pub why: String,
}

impl Decision {
    fn new(state: State, why: impl Into<String>) -> Self {
        Self { state, effects: Vec::new(), recheck_in: None, wants_slot: false, why: why.into() }
    }

    fn with(mut self, effects: impl IntoIterator<Item = Effect>) -> Self {
        self.effects.extend(effects);
        self
    }

    fn again_in(self, wait: SignedDuration) -> Self {
        Self { recheck_in: Some(Duration::try_from(wait).unwrap_or_default()), ..self }
    }
}

/// Decides what happens to a node now.
#[must_use]
pub fn decide(seen: &Observed<'_>) -> Decision {
    let record = Record::read(seen.node.record.as_deref(), &seen.node.uid);
    match (seen.gate, record) {
        _ if seen.node.leaving => {
            Decision::new(State::Leaving, "the node is being deleted").with(remove(seen.workers))
        }
        (Some(gate), record) => AtGate { seen, gate, record: record.unwrap_or_default() }.decide(),
        (None, Some(record)) if record.verdict == Some(Verdict::Passed) => {
            Decision::new(State::Verified, "the node was verified").with(remove(seen.workers))
        }
        (None, Some(_)) => Decision::new(
            State::Unserved,
            "the gate that held the node is gone, or no longer for it; if it bears the taint, somebody has to remove it",
        )
        .with(remove(seen.workers)),
        (None, None) => {
            Decision::new(State::Ungated, "the node bears no taint of a gate").with(remove(seen.workers))
        }
    }
}

/// Deletes these workers, but for those that somebody deleted already.
fn remove<'a>(workers: impl IntoIterator<Item = &'a WorkerView>) -> Vec<Effect> {
    let doomed = workers.into_iter().filter(|worker| !worker.deleting);
    doomed.map(|worker| Effect::RemoveWorker { name: worker.name.clone(), uid: worker.uid.clone() }).collect()
}

/// A node before its gate.
struct AtGate<'a> {
    seen: &'a Observed<'a>,
    gate: &'a GateView,
    record: Record,
}

impl AtGate<'_> {
    fn decide(&self) -> Decision {
        let newest = self.seen.workers.iter().max_by_key(|worker| worker.subject.number);
        match newest {
            Some(worker) if worker.subject.number > self.record.number => self.look_at(worker),
            _ => self.next(),
        }
    }

    /// What a verdict has to be about to count now.
    fn round(&self) -> Round {
        Round {
            boot_id: self.seen.node.boot_id.clone(),
            gate_uid: self.gate.uid.clone(),
            gate_generation: self.gate.generation,
        }
    }

    /// A worker whose end is not recorded yet.
    fn look_at(&self, worker: &WorkerView) -> Decision {
        let number = worker.subject.number;
        if worker.node_name != self.seen.node.name {
            return self.inconclusive(number, "the worker was made for a node of another name");
        }
        let (looked_at, now) = (round_of(&worker.subject), self.round());
        if looked_at.boot_id != now.boot_id {
            return self.inconclusive(number, "the node was booted again since the worker was made");
        }
        if looked_at != now {
            return self.inconclusive(number, "the gate was changed since the worker was made");
        }
        match &worker.progress {
            Progress::Reported(report) => self.judge(number, report),
            Progress::Silent(why) => self.inconclusive(number, why),
            _ if worker.deleting => self.inconclusive(number, "the worker was deleted before it ended"),
            Progress::Running => self.await_end(worker, State::InProgress, "runs", self.allowed()),
            Progress::Waiting(why) if why.is_empty() => {
                self.await_end(worker, State::Pending, "has not started", self.allowed())
            }
            Progress::Waiting(why) => {
                self.await_end(worker, State::Pending, &format!("has not started: {why}"), self.allowed())
            }
            Progress::Unscheduled(why) => {
                self.await_end(worker, State::Pending, &format!("is not scheduled: {why}"), UNSCHEDULED_GRACE)
            }
        }
    }

    /// How long a worker may take from when we first saw it.
    fn allowed(&self) -> Duration {
        Duration::from_secs(self.gate.spec.deadlines.worker_seconds.unsigned_abs().into()) + WAITING_GRACE
    }

    /// Waits for the end of a worker, but not for ever.
    fn await_end(&self, worker: &WorkerView, state: State, doing: &str, allowed: Duration) -> Decision {
        let number = worker.subject.number;
        let age = self.seen.elapsed.saturating_sub(worker.first_seen);
        match allowed.checked_sub(age).filter(|left| !left.is_zero()) {
            Some(left) => {
                let decision = Decision::new(state, format!("worker {number} {doing}"));
                Decision { recheck_in: Some(left), ..decision }
            }
            None => self.inconclusive(number, &format!("the worker {doing}, and is overdue")),
        }
    }

    fn judge(&self, number: u32, report: &Report) -> Decision {
        match report.verdict {
            Verdict::Inconclusive => self.inconclusive(number, &report.summary()),
            Verdict::Passed if !self.seen.node.ready => {
                self.inconclusive(number, "the node was no longer Ready when its worker had passed")
            }
            Verdict::Passed => self.open(number, report),
            Verdict::Failed => self.failed(number, report),
        }
    }

    fn record_after(&self, number: u32, verdict: Verdict, why: &str) -> Record {
        self.record.after(&self.seen.node.uid, self.round(), number, verdict, why, self.seen.now)
    }

    fn open(&self, number: u32, report: &Report) -> Decision {
        let record = self.record_after(number, Verdict::Passed, &report.summary());
        let attempt = record.attempts;
        let note = format!("attempt {attempt} passed: {}; gate {} is open", report.summary(), self.gate.name);
        let told =
            Notice { warning: false, reason: "NodeVerified", action: "RemoveTaint", note: note.clone() };
        Decision::new(State::Verified, note)
            .with([Effect::Open(record), Effect::Tell(told)])
            .with(remove(self.seen.workers))
    }

    fn failed(&self, number: u32, report: &Report) -> Decision {
        let record = self.record_after(number, Verdict::Failed, &report.summary());
        let (attempts, allowed) = (record.attempts, self.attempts_allowed());
        let which = if attempts > allowed {
            "one more attempt".to_owned()
        } else {
            format!("attempt {attempts} of {allowed}")
        };
        let note = format!("{which} failed: {}", report.summary());
        let mut effects = vec![
            Effect::Remember(record),
            Effect::Tell(Notice {
                warning: true,
                reason: "NodeCheckFailed",
                action: "Check",
                note: note.clone(),
            }),
        ];
        if attempts == allowed {
            let pause = self.gate.spec.retry.recheck_seconds;
            let note =
                format!("{allowed} attempts failed; the node stays tainted and is looked at every {pause} s");
            let reason = "NodeVerificationFailed";
            effects.push(Effect::Tell(Notice { warning: true, reason, action: "GiveUp", note }));
        }
        let state = if attempts < allowed { State::Unverified } else { State::Failed };
        Decision::new(state, note).with(effects)
    }

    fn inconclusive(&self, number: u32, why: &str) -> Decision {
        let record = self.record_after(number, Verdict::Inconclusive, why);
        let note = format!("worker {number} could not tell: {why}");
        let reason = "NodeVerificationInconclusive";
        let told = Notice { warning: true, reason, action: "RunWorker", note: note.clone() };
        Decision::new(State::Inconclusive, note).with([Effect::Remember(record), Effect::Tell(told)])
    }

    /// All that ended is recorded. Is it time for the next worker?
    fn next(&self) -> Decision {
        let node = self.seen.node;
        if !node.ready || node.boot_id.is_empty() {
            return Decision::new(State::Waiting, "the node is not Ready").with(remove(self.unended()));
        }
        if node.unschedulable {
            return Decision::new(State::Waiting, "the node is cordoned").with(remove(self.unended()));
        }
        // Never two at once: one that was given up has to be gone before the next starts.
        if self.unended().next().is_some() {
            return Decision::new(State::Unverified, "an earlier worker is being removed")
                .with(remove(self.unended()))
                .again_in(GOING);
        }
        let (state, why) = self.standing();
        let wait = self.wait();
        if wait.is_positive() {
            let seconds = wait.as_secs() + i64::from(wait.subsec_nanos() > 0);
            return Decision::new(state, format!("{why}; next worker in {seconds} s")).again_in(wait);
        }
        if !self.seen.slot_free {
            return Decision {
                wants_slot: true,
                ..Decision::new(state, format!("{why}; waits for a free slot"))
            };
        }
        let number = self.record.number.saturating_add(1);
        let Round { boot_id, gate_uid, gate_generation } = self.round();
        let subject = Subject { node_uid: node.uid.clone(), boot_id, gate_uid, gate_generation, number };
        // The last worker's logs could be read until now.
        Decision::new(State::Pending, format!("worker {number} starts"))
            .with([Effect::StartWorker(subject)])
            .with(remove(self.seen.workers))
    }

    fn unended(&self) -> impl Iterator<Item = &WorkerView> {
        self.seen.workers.iter().filter(|worker| !worker.has_ended())
    }

    fn attempts_allowed(&self) -> u32 {
        self.gate.spec.retry.max_retries.unsigned_abs().saturating_add(1)
    }

    /// Whether the record is about what is looked at now. A verdict that opened the gate ended its round.
    fn same_round(&self) -> bool {
        self.record.round == self.round() && self.record.verdict != Some(Verdict::Passed)
    }

    fn is_slow(&self) -> bool {
        self.record.attempts >= self.attempts_allowed() || self.record.silent >= TOO_MANY_SILENT
    }

    fn standing(&self) -> (State, String) {
        if !self.same_round() {
            return (State::Unverified, "no worker has looked at it yet".to_owned());
        }
        match self.record.verdict {
            Some(Verdict::Failed) if self.record.attempts >= self.attempts_allowed() => (
                State::Failed,
                format!("all {} attempts failed: {}", self.attempts_allowed(), self.record.why),
            ),
            Some(Verdict::Failed) => {
                let (attempts, allowed) = (self.record.attempts, self.attempts_allowed());
                (State::Unverified, format!("attempt {attempts} of {allowed} failed: {}", self.record.why))
            }
            _ => (
                State::Inconclusive,
                format!("worker {} could not tell: {}", self.record.number, self.record.why),
            ),
        }
    }

    /// How long the next worker has to wait.
    fn wait(&self) -> SignedDuration {
        let Some(at) = self.record.at.filter(|_| self.same_round()) else { return SignedDuration::ZERO };
        let pause = if self.is_slow() {
            SignedDuration::from_secs(self.gate.spec.retry.recheck_seconds.into())
        } else {
            pause(&self.gate.spec.retry, &self.record)
        };
        // Whoever wrote it may have a clock that is ahead of ours: no node waits longer than the pause since we saw it.
        let since_seen = self.seen.elapsed.saturating_sub(self.seen.node.record_seen);
        let since_seen = SignedDuration::try_from(since_seen).unwrap_or(SignedDuration::MAX);
        pause - self.seen.now.duration_since(at).max(since_seen)
    }
}

fn round_of(subject: &Subject) -> Round {
    Round {
        boot_id: subject.boot_id.clone(),
        gate_uid: subject.gate_uid.clone(),
        gate_generation: subject.gate_generation,
    }
}

/// The pause after so many workers, up to a fifth longer, so that nodes that came together do not come back together.
fn pause(retry: &Retry, record: &Record) -> SignedDuration {
    let ended = i64::from(record.workers.max(1));
    let seconds = match retry.backoff {
        Backoff::Exponential => 1_i64.checked_shl(record.workers.max(1) - 1).unwrap_or(i64::MAX),
        Backoff::Linear => ended.saturating_mul(5),
    };
    let millis = seconds.clamp(1, LONGEST_PAUSE) * 1000;
    let spread = i64::try_from(scatter(&record.uid, record.number) % 200).unwrap_or_default();
    SignedDuration::from_millis(millis + millis * spread / 1000)
}

/// A number that looks like chance and is none (FNV-1a): decisions are pure.
fn scatter(uid: &str, number: u32) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    uid.bytes().chain(number.to_le_bytes()).fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests;
