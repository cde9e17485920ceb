//! What an object says about itself: findings become conditions, and keep their times where nothing changed.

use crate::api::Condition;

/// What holds, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Type of the condition.
    pub type_: &'static str,
    /// `True`, `False` or `Unknown`.
    pub status: &'static str,
    /// In one word.
    pub reason: &'static str,
    /// For people, with what to do.
    pub message: String,
}

impl Finding {
    /// A finding.
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

/// The findings as conditions. Those that are not among them stay as they were.
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
            Some(place) => *place = condition,
            None => all.push(condition),
        }
    }
    all
}
