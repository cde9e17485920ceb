//! A node that was let in: it works, and is looked at again where somebody asks for it, it was booted, or its time has
//! come.

use jiff::SignedDuration;

use super::enforce::{GatedNode, action};
use super::{Decision, Effect, EventSpec, State, remove, round};
use crate::api::{Mode, OnReboot};
use crate::jitter::jitter;
use crate::record::{InconclusiveReason, Record, WorkerResult};
use crate::report::{Report, Verdict};
use crate::worker::WorkerView;

/// What is looked at because its time has come, and nobody asked.
pub(super) const PERIODIC: &str = "its time has come";

impl GatedNode<'_> {
    /// A node that was let in does not pass any more.
    pub(super) fn failed_in_place(&self, worker: &WorkerView, report: &Report) -> Decision {
        let record = self.record_after(worker, Verdict::Failed, None, &report.summary());
        let needed = match self.gate.spec.mode {
            Mode::Bootstrap => 1,
            Mode::Continuous => self.gate.spec.continuous.failure_threshold.unsigned_abs(),
        };
        let count = record.attempts;
        let failed = format!("failure {count} of {needed} of a verified node: {}", report.summary());
        if count < needed {
            let told = EventSpec::new(true, "NodeCheckFailed", &action(report), &*failed);
            return Decision::new(State::Verified, failed)
                .with([Effect::PatchRecord(record), Effect::EmitEvent(told)]);
        }
        if !self.seen.fleet.may_retaint() {
            let retainted = self.seen.fleet.retainted;
            let note = format!(
                "{failed}; it is not tainted: {retainted} nodes of gate {} are tainted again already, so it is hardly the node",
                self.gate.name
            );
            let told = EventSpec::new(true, "NodeRegateHeld", "Hold", &*note);
            return Decision::new(State::Verified, note)
                .with([Effect::PatchRecord(record), Effect::EmitEvent(told)]);
        }
        self.regate(record, format!("{failed}; tainted again"))
    }

    fn regate(&self, record: Record, note: String) -> Decision {
        let told = EventSpec::new(true, "NodeGated", "AddTaint", &*note);
        Decision::new(State::Unverified, note).with([
            Effect::Retaint(Record { taint: self.taint(), ..record.held_again() }),
            Effect::EmitEvent(told),
        ])
    }

    /// A node that was let in: is there anything to look at?
    pub(super) fn tend(&self) -> Decision {
        if self.is_held_for_boot() {
            return self.hold_for_boot(self.record.number);
        }
        if let Some(wish) = self.wish() {
            return self.next(wish);
        }
        let settled = Decision::new(State::Verified, "the node was verified").with(remove(self.seen.workers));
        match self.gate.spec.mode {
            Mode::Bootstrap => settled,
            Mode::Continuous => settled.again_in(self.until_periodic()),
        }
    }

    /// The gate holds what was booted, and this was.
    pub(super) fn is_held_for_boot(&self) -> bool {
        !self.held
            && self.was_booted()
            && self.gate.spec.on_reboot == OnReboot::Regate
            && self.seen.node.ready
    }

    pub(super) fn hold_for_boot(&self, number: u32) -> Decision {
        let why = "the node was booted again";
        let ending = WorkerResult {
            uid: &self.seen.node.uid,
            round: round(self.seen.node, self.gate),
            number,
            verdict: Verdict::Inconclusive,
            why,
            failed: Vec::new(),
            cause: Some(InconclusiveReason::Other),
            elapsed_seconds: 0,
            anew: true,
            at: self.seen.now,
        };
        let record = Record { workers: 0, inconclusive_streak: 0, ..self.record.after(ending) };
        let note = format!("{why}; gate {} holds it until it is verified", self.gate.name);
        self.regate(record, note)
    }

    /// Why a node that was let in has to be looked at.
    pub(super) fn wish(&self) -> Option<&'static str> {
        let label = &self.gate.spec.verified_label.key;
        if self.seen.node.verify.is_some() {
            Some("somebody asked for it")
        } else if self.record.label == *label && self.seen.node.labels.get(label).is_none() {
            Some("its label was removed")
        } else if self.was_booted() && self.gate.spec.on_reboot != OnReboot::Ignore {
            Some("it was booted again")
        } else if self.record.verdict != Some(Verdict::Passed) {
            Some("the last worker did not pass")
        } else if self.gate.spec.mode == Mode::Continuous && !self.until_periodic().is_positive() {
            Some(PERIODIC)
        } else {
            None
        }
    }

    fn was_booted(&self) -> bool {
        !self.seen.node.boot_id.is_empty() && *self.record.round.boot_id != *self.seen.node.boot_id
    }

    /// When a verified node is looked at again: so that no more than one worker a second is started for it.
    fn until_periodic(&self) -> SignedDuration {
        let asked = i64::from(self.gate.spec.continuous.period_seconds);
        let period = SignedDuration::from_secs(asked.max(self.seen.fleet.open.into()));
        jitter(period, &self.record) - self.since_recorded()
    }
}
