//! The verdict as a condition of the Node, for those who cannot read ours.

use super::{Decision, Effect, GateView, Observed, State};
use crate::api::NodeCondition;
use crate::reasons;
use crate::report::Verdict;
use crate::text::clean;

const MESSAGE_LIMIT: usize = 512;

/// What the condition says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionUpdate {
    /// `True`, `False` or `Unknown`.
    pub status: &'static str,
    /// In one word.
    pub reason: &'static str,
    /// For people.
    pub message: String,
}

/// Adds the condition to a decision that writes nothing else, if the gate wants it and it is not there yet.
pub(super) fn with(decision: Decision, seen: &Observed<'_>, gate: &GateView) -> Decision {
    if gate.spec.node_condition == NodeCondition::None || !decision.effects.is_empty() {
        return decision;
    }
    // Before anything is known there is nothing worth a write.
    let Some(record) = seen.node.record.as_deref() else { return decision };
    let (status, reason) = match record.verdict {
        _ if decision.state == State::Verified => ("True", reasons::VERIFIED),
        Some(Verdict::Failed) => ("False", reasons::CHECKS_FAILED),
        _ => ("Unknown", reasons::NOT_VERIFIED),
    };
    let there = seen.node.published.as_ref().map(|there| (there.0.as_str(), there.1.as_str()));
    if there == Some((status, reason)) {
        return decision;
    }
    let message = clean(&decision.why, MESSAGE_LIMIT);
    decision.with([Effect::SetNodeCondition(ConditionUpdate { status, reason, message })])
}
