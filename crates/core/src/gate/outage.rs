//! Shared outages: a check that fails on control nodes too does not count against a node. A node that failed by itself
//! may be remediated.

use super::enforce::ManagedNode;
use super::{Decision, Effect, EventSpec, State};
use crate::api::{CauseSource, CauseVerdict, FailedCheck, FailureAction, RemediationCause};
use crate::outage::{matches_outage, to_failed_check};
use crate::reasons;
use crate::record::{InconclusiveReason, Record};
use crate::report::{Report, Verdict};
use crate::topology::zone;

/// How many failed checks a record keeps.
const MAX_FAILED_CHECKS: usize = 8;

impl ManagedNode<'_> {
    /// Whether one of the checks also fails on control nodes of this node's zone.
    pub(super) fn is_shared_outage(&self, failed: &[FailedCheck]) -> bool {
        let node_zone = zone(self.observed.node);
        let in_zone = || self.observed.shared_outages.iter().filter(|down| down.zone == node_zone);
        failed.iter().any(|check| in_zone().any(|down| matches_outage(down, &check.name, &check.target)))
    }

    /// Whether the record's verdict is suspended by a shared outage that continues.
    pub(super) fn is_suspended(&self) -> bool {
        self.record.cause == Some(InconclusiveReason::SharedDependency)
            && (!self.observed.policy_known || self.is_shared_outage(&self.record.failed))
    }

    /// Whether the shared outage that suspended the verdict is over. The node's counts restart.
    pub(super) fn has_resumed(&self) -> bool {
        self.record.cause == Some(InconclusiveReason::SharedDependency) && !self.is_suspended()
    }

    /// Suspends a Failed verdict that was recorded before the shared outage was known.
    pub(super) fn suspend(&self) -> Option<Decision> {
        let is_suspended = self.gated
            && self.continues_scope()
            && self.record.verdict == Some(Verdict::Failed)
            && self.is_shared_outage(&self.record.failed);
        is_suspended.then(|| {
            let why = format!("the same check fails on control nodes: {}", self.record.why);
            let record = Record {
                verdict: Some(Verdict::Inconclusive),
                cause: Some(InconclusiveReason::SharedDependency),
                why: why.as_str().into(),
                ..self.record.clone()
            };
            let event = EventSpec::new(true, reasons::NODE_VERIFICATION_INCONCLUSIVE, "Compare", &*why);
            Decision::new(State::Inconclusive, why)
                .with([Effect::PatchRecord(record), Effect::EmitEvent(event)])
        })
    }

    /// The cause of a remediation request, once for each verdict.
    pub(super) fn remediation_cause(&self) -> Option<RemediationCause> {
        let (record, spec) = (self.record, &self.gate.spec);
        let is_new = record.at > self.observed.remediation_requested_at;
        if !self.observed.policy_known || !self.gated || !self.continues_scope() || !is_new {
            return None;
        }
        let verdict = if self.gate.has_failed(record) && spec.on_failure == FailureAction::Replace {
            CauseVerdict::Failed
        } else if self.is_stuck(record)
            && spec.on_stuck == FailureAction::Replace
            && self.observed.fleet.ran_elsewhere
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

/// The failed checks of a report, as a record keeps them.
pub(super) fn failed_checks(report: &Report) -> Vec<FailedCheck> {
    report.failed().take(MAX_FAILED_CHECKS).map(to_failed_check).collect()
}
