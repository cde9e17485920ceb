//! How long a node waits for its next worker.

use jiff::SignedDuration;

use super::enforce::ManagedNode;
use super::scope;
use super::verified::RecheckReason;
use crate::api::{Backoff, Retry};
use crate::jitter::jitter;
use crate::record::Record;
use crate::report::Verdict;

/// Seconds; the longest backoff between attempts.
const MAX_BACKOFF: i64 = 30;
/// After so many inconclusive workers in a row the next one comes after `recheckPeriodSeconds`.
const MAX_INCONCLUSIVE_STREAK: u32 = 20;
/// The same for a verified node.
const MAX_INCONCLUSIVE_STREAK_VERIFIED: u32 = 3;

/// What somebody reverts within this time after the node was verified is taken for the work of another controller, if it
/// happens again and again.
const REVERTED_WITHIN: SignedDuration = SignedDuration::from_hours(1);
/// So often a user may do it without a delay, besides the first time.
const FREE_REVERTS: u32 = 2;
/// Seconds; the backoff after that. It doubles each time.
const FIRST_REVERTED_BACKOFF: i64 = 20;
/// Seconds. Less than [`REVERTED_WITHIN`], or the backoff would end itself.
const LONGEST_REVERTED_BACKOFF: i64 = 30 * 60;

impl ManagedNode<'_> {
    /// Whether somebody put the taint back or removed the label soon after the gate had admitted the node.
    pub(super) fn is_reverted(&self) -> bool {
        let is_back = self.gated || self.recheck_reason() == Some(RecheckReason::LabelRemoved);
        is_back
            && (self.record.verdict == Some(Verdict::Passed) || self.record.audited)
            && self.record.is_open()
            && !self.is_requested()
            && self.since_recorded() < REVERTED_WITHIN
    }

    /// How often in a row that has happened, if the node is admitted now.
    pub(super) fn times_reverted(&self) -> u32 {
        if self.is_reverted() { self.record.reverted.saturating_add(1) } else { 0 }
    }

    /// The backoff of a node that another controller keeps reverting; none for the first times.
    pub(super) fn reverted_backoff(&self) -> Option<SignedDuration> {
        let times = self.record.reverted.checked_sub(FREE_REVERTS).filter(|_| self.is_reverted())?;
        let seconds = FIRST_REVERTED_BACKOFF.saturating_mul(2_i64.saturating_pow(times));
        Some(jitter(SignedDuration::from_secs(seconds.min(LONGEST_REVERTED_BACKOFF)), self.record))
    }

    pub(super) fn attempts_allowed(&self) -> u32 {
        self.gate.attempts_allowed()
    }

    /// Whether the next worker continues the record's counts.
    pub(super) fn continues_scope(&self) -> bool {
        self.record.continues(&scope(self.observed.node, self.gate))
            && !self.is_requested()
            && !self.has_resumed()
    }

    /// Whether the gate's deadline has passed and the last worker was inconclusive.
    pub(super) fn is_stuck(&self, record: &Record) -> bool {
        self.gated && self.gate.is_stuck(record)
    }

    /// Whether the next worker comes after `recheckPeriodSeconds` instead of the backoff between attempts.
    fn is_rechecked_slowly(&self) -> bool {
        let record = self.record;
        let is_slow_if_verified = record.verdict == Some(Verdict::Failed)
            || record.inconclusive_streak >= MAX_INCONCLUSIVE_STREAK_VERIFIED;
        record.attempts >= self.attempts_allowed()
            || record.inconclusive_streak >= MAX_INCONCLUSIVE_STREAK
            || self.is_stuck(record)
            || self.is_suspended()
            || (!self.gated && is_slow_if_verified)
    }

    /// The time between the end of the last worker and the start of the next one.
    pub(super) fn backoff(&self) -> SignedDuration {
        if let Some(backoff) = self.reverted_backoff() {
            backoff
        } else if !self.continues_scope() || self.record.workers == 0 {
            SignedDuration::ZERO
        } else if self.is_rechecked_slowly() {
            SignedDuration::from_secs(self.gate.spec.retry.recheck_period_seconds.into())
        } else {
            attempt_backoff(&self.gate.spec.retry, self.record)
        }
    }

    /// The time since the record was written. The writer's clock may be ahead: the time since this process observed the
    /// record is the lower bound.
    pub(super) fn since_recorded(&self) -> SignedDuration {
        let observed = self.observed.elapsed.saturating_sub(self.observed.node.record_seen_at);
        let observed = SignedDuration::try_from(observed).unwrap_or(SignedDuration::MAX);
        self.record.at.map_or(observed, |at| self.observed.now.duration_since(at).max(observed))
    }
}

/// The backoff after the workers that the record counts, with jitter, so that nodes created together do not retry
/// together.
pub(super) fn attempt_backoff(retry: &Retry, record: &Record) -> SignedDuration {
    let ended = i64::from(record.workers.max(1));
    let seconds = match retry.backoff {
        Backoff::Exponential => 2_i64.saturating_pow(record.workers.max(1) - 1),
        Backoff::Linear => ended.saturating_mul(5),
    };
    jitter(SignedDuration::from_secs(seconds.clamp(1, MAX_BACKOFF)), record)
}
