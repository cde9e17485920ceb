//! The parts of a `NodeRemediation` that decisions depend on.

use jiff::Timestamp;

use super::{format_time, whole_second};
use crate::api::{
    CauseSource, Condition, NodeRemediation, NodeRemediationSpec, NodeRemediationStatus, RemediationCause,
    Reservation,
};
use crate::condition::{Finding, conditions};
use crate::reasons::remediation::{
    APPROVED, IN_PROGRESS, REPLACED, REQUEST_REFUSED, SUCCEEDED, WITHIN_BUDGET,
};
use crate::text::clean;

/// How many causes a remediation keeps.
const MAX_CAUSES: usize = 8;
/// How many bytes of an answer of the API server a condition repeats.
const MAX_REFUSAL: usize = 1024;

/// How far the approval behind a reservation has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservationState {
    /// The remediation does not say yet that it is approved, so nothing may be done.
    Unconfirmed,
    /// The remediation says that it is approved by this reservation, and is carried out.
    Approved,
    /// The remediation has succeeded or failed, or says that it is no longer approved.
    Ended,
}

/// A `NodeRemediation`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remediation {
    /// The uid of the node.
    pub name: String,
    /// The uid of the `NodeRemediation` itself.
    pub uid: String,
    pub resource_version: String,
    pub generation: i64,
    pub created: Timestamp,
    pub spec: NodeRemediationSpec,
    pub status: NodeRemediationStatus,
}

impl Remediation {
    #[must_use]
    pub fn new(object: &NodeRemediation) -> Self {
        let metadata = &object.metadata;
        Self {
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            resource_version: metadata.resource_version.clone().unwrap_or_default(),
            generation: metadata.generation.unwrap_or_default(),
            created: metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            spec: object.spec.clone(),
            status: object.status.clone().unwrap_or_default(),
        }
    }

    #[must_use]
    pub fn condition(&self, type_: &str) -> Option<&Condition> {
        self.status.conditions.iter().find(|condition| condition.type_ == type_)
    }

    /// When the remediation last succeeded or failed.
    #[must_use]
    pub fn finished_at(&self) -> Option<Timestamp> {
        let ended = self.condition(SUCCEEDED).filter(|condition| condition.status != "Unknown")?;
        Some(ended.last_transition_time.parse().unwrap_or(self.created))
    }

    /// When the remediation was last approved, whatever its result.
    #[must_use]
    pub fn approved_at(&self) -> Option<Timestamp> {
        self.status.approved_at
    }

    /// Whether its condition Approved is True.
    #[must_use]
    pub fn is_approved(&self) -> bool {
        self.condition(APPROVED).is_some_and(|condition| condition.status == "True")
    }

    /// Whether it was approved and waits for the deletion of its node, which has no time limit.
    pub(super) fn awaits_deletion(&self) -> bool {
        let is_replaced = self.condition(REPLACED).is_some_and(|condition| condition.status == "True");
        self.is_approved() && self.finished_at().is_none() && is_replaced
    }

    /// The reservation of its last approval, as far as it remembers it. It counts, but it permits nothing.
    pub(super) fn restored_reservation(&self) -> Option<Reservation> {
        Some(Reservation {
            remediation: self.name.clone(),
            uid: String::new(),
            boot_id: String::new(),
            node: self.spec.node.name.clone(),
            group: String::new(),
            zone: String::new(),
            at: self.approved_at()?,
            ended: None,
        })
    }

    /// How far the approval behind one of its reservations has come.
    #[must_use]
    pub fn reservation_state(&self, reservation: &Reservation) -> ReservationState {
        let is_confirmed = self.approved_at() == Some(reservation.at);
        let is_finished = self.finished_at().is_some_and(|ended| ended >= reservation.at);
        match (is_confirmed, self.is_approved()) {
            _ if is_finished => ReservationState::Ended,
            (true, true) => ReservationState::Approved,
            (true, false) => ReservationState::Ended,
            (false, _) => ReservationState::Unconfirmed,
        }
    }

    /// The names of the gates among its causes.
    pub fn gate_names(&self) -> impl Iterator<Item = &str> {
        self.gate_causes().map(|cause| cause.name.as_str())
    }

    /// The causes that gates observed, newest first.
    pub(super) fn gate_causes(&self) -> impl DoubleEndedIterator<Item = &RemediationCause> {
        self.spec.causes.iter().filter(|cause| cause.source == CauseSource::Gate)
    }

    /// When its latest cause was observed.
    #[must_use]
    pub fn requested_at(&self) -> Timestamp {
        let observed = self.spec.causes.iter().map(|cause| cause.observed_at.unwrap_or(self.created));
        observed.max().unwrap_or(self.created)
    }

    /// Whether the remediation has ended and was not requested again. A replaced node is not replaced twice.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let succeeded = self.condition(SUCCEEDED).is_some_and(|condition| condition.status == "True");
        succeeded || self.finished_at().is_some_and(|at| self.requested_at() <= at)
    }

    /// The gate with the latest cause.
    #[must_use]
    pub fn newest_gate(&self) -> Option<&str> {
        let newest = self.gate_causes().rev().max_by_key(|cause| cause.observed_at);
        newest.map(|cause| cause.name.as_str())
    }

    /// Its causes with a new or refreshed one of this boot, newest first: one for each source and name. What was observed in
    /// another boot says nothing about this one.
    #[must_use]
    pub fn causes_with(&self, cause: &RemediationCause, boot_id: &str) -> Vec<RemediationCause> {
        let known_boot = &self.spec.node.boot_id;
        let is_other = |known: &&RemediationCause| {
            (known.source, &known.name) != (cause.source, &cause.name)
                && (known_boot.is_empty() || known_boot == boot_id)
        };
        let others = self.spec.causes.iter().filter(is_other).cloned();
        std::iter::once(cause.clone()).chain(others).take(MAX_CAUSES).collect()
    }

    /// The status with these conditions set.
    #[must_use]
    pub fn status_with(&self, findings: Vec<Finding>, now: Timestamp) -> NodeRemediationStatus {
        let mut before = self.status.conditions.clone();
        if !self.is_complete() && findings.iter().any(|finding| finding.type_ == SUCCEEDED) {
            // An end after another request is a new end, even if its status is the same.
            before.retain(|condition| condition.type_ != SUCCEEDED || condition.status == "Unknown");
        }
        // The end is not before the approval or the request, even if this clock is behind. Otherwise the remediation
        // would not be complete and would end again in each reconcile.
        let is_end = findings.iter().any(|one| one.type_ == SUCCEEDED && one.status != "Unknown");
        let least = self.status.approved_at.into_iter().chain([self.requested_at()]).max();
        let now = whole_second(least.filter(|_| is_end).map_or(now, |least| now.max(least)));
        let conditions = conditions(findings, &before, self.generation, &now.to_string());
        NodeRemediationStatus { observed_generation: self.generation, conditions, ..self.status.clone() }
    }

    /// The status that says that this reservation approves the remediation. Only with it anything may be done.
    #[must_use]
    pub fn approved_status(&self, reservation: &Reservation, now: Timestamp) -> NodeRemediationStatus {
        let findings = vec![
            Finding::new(APPROVED, "True", WITHIN_BUDGET, approval_message(reservation)),
            Finding::new(SUCCEEDED, "Unknown", IN_PROGRESS, "the node is being replaced"),
        ];
        // The leader that reserved it may have had a clock ahead of ours.
        let status = self.status_with(findings, now.max(reservation.at));
        NodeRemediationStatus { approved_at: Some(reservation.at), ..status }
    }

    /// The status that reports a request of the controller that the API server refuses.
    #[must_use]
    pub fn refused_status(&self, message: &str, now: Timestamp) -> NodeRemediationStatus {
        let message = clean(message, MAX_REFUSAL);
        self.status_with(vec![Finding::new(SUCCEEDED, "Unknown", REQUEST_REFUSED, message)], now)
    }
}

pub(super) fn approval_message(reservation: &Reservation) -> String {
    format!("approved at {}", format_time(reservation.at))
}
