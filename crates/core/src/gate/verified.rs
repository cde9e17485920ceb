//! Verified nodes: when one is verified again, and when its taint is put back.

use std::time::Duration;

use jiff::SignedDuration;

use super::enforce::{ManagedNode, action};
use super::{Decision, Effect, EventSpec, State, remove_workers, scope};
use crate::api::{Mode, OnReboot};
use crate::jitter::{in_period, jitter};
use crate::reasons;
use crate::record::{InconclusiveReason, Record, WorkerResult};
use crate::report::{Report, Verdict};
use crate::worker::WorkerView;

/// How soon a new leader looks again whether it has counted all nodes.
const COUNT_PERIOD: Duration = Duration::from_secs(2);

/// Why a verified node is verified again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecheckReason {
    /// The node has the annotation `nodekeeper.dev/verify`.
    Requested,
    LabelRemoved,
    Rebooted,
    /// The last worker failed or was inconclusive.
    NotPassed,
    /// The period of a continuous gate has passed.
    Periodic,
}

impl RecheckReason {
    pub(super) fn describe(self) -> &'static str {
        match self {
            Self::Requested => "the annotation nodekeeper.dev/verify requests it",
            Self::LabelRemoved => "the verified label was removed",
            Self::Rebooted => "the node was rebooted",
            Self::NotPassed => "the last worker did not pass",
            Self::Periodic => "the verification period has passed",
        }
    }
}

impl ManagedNode<'_> {
    pub(super) fn verified_node_failed(&self, worker: &WorkerView, report: &Report) -> Decision {
        let record = self.record_after(worker, Verdict::Failed, None, &report.summary());
        let threshold = match self.gate.spec.mode {
            Mode::Bootstrap => 1,
            Mode::Continuous => self.gate.spec.continuous.failure_threshold.unsigned_abs(),
        };
        let count = record.attempts;
        let failed = format!("failure {count} of {threshold} of a verified node: {}", report.summary());
        if count < threshold {
            let event = EventSpec::new(true, reasons::NODE_CHECK_FAILED, &action(report), &*failed);
            return Decision::new(State::Verified, failed)
                .with([Effect::PatchRecord(record), Effect::EmitEvent(event)]);
        }
        if self.observed.fleet.is_partial {
            let why = format!("{failed}; it is tainted once the other nodes of the gate are counted");
            return Decision { recheck_in: Some(COUNT_PERIOD), ..Decision::new(State::Verified, why) };
        }
        if !self.observed.fleet.may_retaint() {
            let retainted = self.observed.fleet.retainted;
            let note = format!(
                "{failed}; it is not tainted, because {retainted} nodes of gate {} are tainted again already: the cause is probably shared",
                self.gate.name
            );
            let event = EventSpec::new(true, reasons::NODE_RETAINT_SKIPPED, "SkipTaint", &*note);
            return Decision::new(State::Verified, note)
                .with([Effect::PatchRecord(record), Effect::EmitEvent(event)]);
        }
        self.retaint(record, format!("{failed}; tainted again"))
    }

    fn retaint(&self, record: Record, note: String) -> Decision {
        let event = EventSpec::new(true, reasons::NODE_GATED, "AddTaint", &*note);
        let record = record.retaint().with_label_set(&self.gate.spec.verified_label.key, false);
        Decision::new(State::Unverified, note).with([
            Effect::Retaint(Record { taint: self.gate.taint_key().into(), ..record }),
            Effect::EmitEvent(event),
        ])
    }

    /// Decides about a verified node without an unrecorded worker.
    pub(super) fn reconcile_verified(&self) -> Decision {
        if self.must_retaint_after_reboot() {
            return self.retaint_after_reboot(self.record.number);
        }
        if self.recheck_reason().is_some() {
            return self.schedule();
        }
        if self.is_label_due() {
            let why = "the label was withheld for another gate, which does not hold the node any more";
            let record = self.labelled(self.record.clone());
            return Decision::new(State::Verified, why).with([Effect::RemoveTaint(record)]);
        }
        let verified = Decision::new(State::Verified, "the node is verified")
            .with(remove_workers(self.observed.own_workers(self.gate)));
        match self.gate.spec.mode {
            Mode::Bootstrap => verified,
            Mode::Continuous => verified.requeue_after(self.until_periodic()),
        }
    }

    /// Whether the label can be set that was withheld because another gate with the same label held the node.
    fn is_label_due(&self) -> bool {
        let label = &self.gate.spec.verified_label.key;
        self.record.unlabelled
            && *self.record.label == **label
            && self.observed.node.labels.get(label).is_none()
            && !self.observed.is_label_withheld(self.gate)
    }

    pub(super) fn must_retaint_after_reboot(&self) -> bool {
        !self.gated && self.was_rebooted() && self.gate.spec.on_reboot == OnReboot::Regate
    }

    pub(super) fn retaint_after_reboot(&self, number: u32) -> Decision {
        let why = "the node was rebooted";
        let result = WorkerResult {
            uid: self.observed.node.uid.clone(),
            scope: scope(self.observed.node, self.gate),
            number,
            verdict: Verdict::Inconclusive,
            why,
            failed: Vec::new(),
            cause: Some(InconclusiveReason::Other),
            elapsed_seconds: 0,
            restart: true,
            at: self.observed.now,
        };
        let record = self.answered(self.record.after(result));
        let note = format!("{why}; gate {} taints it until it is verified", self.gate.name);
        self.retaint(record, note)
    }

    /// Why the verified node needs another worker, if it does.
    pub(super) fn recheck_reason(&self) -> Option<RecheckReason> {
        if self.is_requested() {
            Some(RecheckReason::Requested)
        } else if self.is_label_removed() {
            Some(RecheckReason::LabelRemoved)
        } else if self.was_rebooted() && self.gate.spec.on_reboot != OnReboot::Ignore {
            Some(RecheckReason::Rebooted)
        } else if self.record.verdict != Some(Verdict::Passed) {
            Some(RecheckReason::NotPassed)
        } else if self.gate.spec.mode == Mode::Continuous && !self.until_periodic().is_positive() {
            Some(RecheckReason::Periodic)
        } else {
            None
        }
    }

    fn is_label_removed(&self) -> bool {
        let label = &self.gate.spec.verified_label.key;
        *self.record.label == **label
            && !self.record.unlabelled
            && self.observed.node.labels.get(label).is_none()
    }

    /// Whether a user or a reboot asks for another verdict about a node that is not tainted.
    pub(super) fn is_asked_again(&self) -> bool {
        let is_ignored = self.gate.spec.on_reboot == OnReboot::Ignore;
        self.is_requested() || (self.was_rebooted() && !is_ignored)
    }

    fn was_rebooted(&self) -> bool {
        !self.observed.node.boot_id.is_empty() && self.record.scope.boot_id != self.observed.node.boot_id
    }

    /// The time until the next periodic worker. The period is at least one second for each verified node, so that at
    /// most one periodic worker a second is due.
    fn until_periodic(&self) -> SignedDuration {
        let configured = i64::from(self.gate.spec.continuous.period_seconds);
        let period = SignedDuration::from_secs(configured.max(self.observed.fleet.open.into()));
        let since_recorded = self.since_recorded();
        match self.since_confirmed().filter(|since| *since < since_recorded) {
            Some(since_confirmed) => jitter(period, self.record) - since_confirmed,
            None => in_period(period, self.record) - since_recorded,
        }
    }

    /// The time since a worker confirmed the record without being recorded.
    fn since_confirmed(&self) -> Option<SignedDuration> {
        let since = self.observed.elapsed.saturating_sub(self.observed.confirmed_at?);
        Some(since.try_into().unwrap_or(SignedDuration::MAX))
    }
}
