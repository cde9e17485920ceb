//! Who is to blame: a node that fails what nodes that work fail as well is not, and one that is hopeless is asked to be
//! replaced.

use super::enforce::GatedNode;
use super::{Decision, Effect, EventSpec, State};
use crate::api::{CauseSource, CauseVerdict, FailedCheck, FailureAction, RemediationCause};
use crate::outage::{brief, matches_outage};
use crate::reasons;
use crate::record::{InconclusiveReason, Record};
use crate::report::{Report, Verdict};
use crate::topology::zone;

/// So many checks that failed are remembered.
const MAX_FAILED_CHECKS: usize = 8;

impl GatedNode<'_> {
    /// Whether nodes that work fail one of these as well.
    pub(super) fn is_shared_outage(&self, failed: &[FailedCheck]) -> bool {
        let place = zone(self.seen.node);
        let here = || self.seen.down.iter().filter(|down| down.zone == place);
        failed.iter().any(|check| here().any(|down| matches_outage(down, &check.name, &check.target)))
    }

    /// What it failed is still down for all.
    pub(super) fn is_suspended(&self) -> bool {
        self.record.cause == Some(InconclusiveReason::SharedDependency)
            && (!self.seen.policy_known || self.is_shared_outage(&self.record.failed))
    }

    /// What it failed was down for all, and works again: it begins restart.
    pub(super) fn has_resumed(&self) -> bool {
        self.record.cause == Some(InconclusiveReason::SharedDependency) && !self.is_suspended()
    }

    /// A verdict that was recorded before it was known that nodes that work fail alike blames nobody any more.
    pub(super) fn suspend(&self) -> Option<Decision> {
        let is_blamed = self.gated
            && self.continues_scope()
            && self.record.verdict == Some(Verdict::Failed)
            && self.is_shared_outage(&self.record.failed);
        is_blamed.then(|| {
            let why = format!("nodes that work fail alike: {}", self.record.why);
            let record = Record {
                verdict: Some(Verdict::Inconclusive),
                cause: Some(InconclusiveReason::SharedDependency),
                why: why.clone(),
                ..self.record.clone()
            };
            let event = EventSpec::new(true, reasons::NODE_VERIFICATION_INCONCLUSIVE, "Compare", &*why);
            Decision::new(State::Inconclusive, why)
                .with([Effect::PatchRecord(record), Effect::EmitEvent(event)])
        })
    }

    /// The node is hopeless, and its gate wants it replaced: asked once for each verdict.
    pub(super) fn remediation_cause(&self) -> Option<RemediationCause> {
        let (record, spec) = (self.record, &self.gate.spec);
        if !self.seen.policy_known || !self.gated || !self.continues_scope() || record.at <= self.seen.asked {
            return None;
        }
        let has_failed =
            record.attempts >= self.attempts_allowed() && record.verdict == Some(Verdict::Failed);
        let verdict = if has_failed && spec.on_failure == FailureAction::Replace {
            CauseVerdict::Failed
        } else if self.is_stuck(record)
            && spec.on_stuck == FailureAction::Replace
            && self.seen.fleet.ran_elsewhere
        {
            CauseVerdict::Stuck
        } else {
            return None;
        };
        Some(RemediationCause {
            source: CauseSource::Gate,
            name: self.gate.name.clone(),
            verdict,
            checks: record.failed.clone(),
            message: self.status().1,
            observed_at: record.at,
        })
    }
}

/// The checks that failed, as they are remembered: few, and short.
pub(super) fn failed(report: &Report) -> Vec<FailedCheck> {
    report.failed().take(MAX_FAILED_CHECKS).map(brief).collect()
}
