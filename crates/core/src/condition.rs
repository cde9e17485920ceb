//! Updates the conditions in the status of an object.

use crate::api::Condition;

/// One condition to set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub type_: &'static str,
    /// `True`, `False` or `Unknown`.
    pub status: &'static str,
    pub reason: &'static str,
    /// Explanation for people, with what to do.
    pub message: String,
}

impl Finding {
    #[must_use]
    pub fn new(
        type_: &'static str,
        status: &'static str,
        reason: &'static str,
        message: impl Into<String>,
    ) -> Self {
        Self { type_, status, reason, message: message.into() }
    }
}

/// The conditions without those of a type that no longer applies.
#[must_use]
pub fn without(conditions: &[Condition], type_: &str) -> Vec<Condition> {
    conditions.iter().filter(|condition| condition.type_ != type_).cloned().collect()
}

/// Sets the findings in the conditions. The transition time changes only with the status; other conditions stay.
#[must_use]
pub fn conditions(
    findings: Vec<Finding>,
    before: &[Condition],
    generation: i64,
    now: &str,
) -> Vec<Condition> {
    let mut all = before.to_vec();
    for finding in findings {
        let known = before.iter().find(|known| known.type_ == finding.type_);
        let since =
            known.filter(|known| known.status == finding.status).map(|known| &known.last_transition_time);
        let condition = Condition {
            type_: finding.type_.into(),
            status: finding.status.into(),
            observed_generation: generation,
            last_transition_time: since.map_or(now, String::as_str).into(),
            reason: finding.reason.into(),
            message: finding.message,
        };
        match all.iter_mut().find(|known| known.type_ == condition.type_) {
            Some(known) => *known = condition,
            None => all.push(condition),
        }
    }
    all
}
