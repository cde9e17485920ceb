//! The verdict as a condition of the Node (`spec.nodeCondition`), for tools that do not read the record.

use super::{Decision, Effect, GateView, Observed, State};
use crate::api::NodeCondition;
use crate::reasons;
use crate::record::Record;
use crate::report::Verdict;
use crate::text::clean;

const MESSAGE_LIMIT: usize = 512;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionUpdate {
    /// `True`, `False` or `Unknown`.
    pub status: &'static str,
    pub reason: &'static str,
    pub message: String,
}

/// Adds the condition to a decision without other effects than repeated Events, if the gate wants it and the node does not
/// have it yet.
pub(super) fn with(
    decision: Decision,
    observed: &Observed<'_>,
    gate: &GateView,
    record: &Record,
) -> Decision {
    if gate.spec.node_condition == NodeCondition::None || !decision.effects.iter().all(Effect::is_repeated) {
        return decision;
    }
    // Without a record there is nothing to say yet.
    if observed.node.record.is_none() {
        return decision;
    }
    let is_held = || observed.gates.iter().any(|other| other.gates(observed.node));
    let (status, reason) = match record.verdict {
        _ if decision.state == State::Verified && is_held() => return decision,
        _ if decision.state == State::Verified => ("True", reasons::VERIFIED),
        Some(Verdict::Failed) => ("False", reasons::CHECKS_FAILED),
        _ => ("Unknown", reasons::NOT_VERIFIED),
    };
    let current =
        observed.node.network_verified.as_ref().map(|current| (current.0.as_str(), current.1.as_str()));
    if current == Some((status, reason)) {
        return decision;
    }
    let message = clean(&decision.why, MESSAGE_LIMIT);
    decision.with([Effect::SetNodeCondition(ConditionUpdate { status, reason, message })])
}
