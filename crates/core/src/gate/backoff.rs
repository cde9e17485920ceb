//! How long a node waits for its next worker.

use jiff::SignedDuration;

use super::enforce::ManagedNode;
use super::scope;
use crate::api::{Backoff, Retry};
use crate::jitter::jitter;
use crate::record::{InconclusiveReason, Record};
use crate::report::Verdict;

/// Seconds; the longest backoff between attempts.
const MAX_BACKOFF: i64 = 30;
/// After so many inconclusive workers in a row the next one comes after `recheckPeriodSeconds`.
const MAX_INCONCLUSIVE_STREAK: u32 = 20;
/// The same for a verified node.
const MAX_INCONCLUSIVE_STREAK_VERIFIED: u32 = 3;

impl ManagedNode<'_> {
    pub(super) fn attempts_allowed(&self) -> u32 {
        self.gate.spec.retry.max_retries.unsigned_abs().saturating_add(1)
    }

    /// Whether the next worker continues the record's counts.
    pub(super) fn continues_scope(&self) -> bool {
        self.record.continues(&scope(self.observed.node, self.gate))
            && self.observed.node.verify.is_none()
            && !self.has_resumed()
    }

    /// Whether the gate's deadline has passed and the last worker was inconclusive.
    pub(super) fn is_stuck(&self, record: &Record) -> bool {
        self.gated
            && record.attempts < self.attempts_allowed()
            && record.verdict == Some(Verdict::Inconclusive)
            && record.cause != Some(InconclusiveReason::SharedDependency)
            && record.elapsed_seconds >= self.gate.spec.deadlines.gate_seconds.unsigned_abs()
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
        if !self.continues_scope() || self.record.workers == 0 {
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
        Backoff::Exponential => 1_i64.checked_shl(record.workers.max(1) - 1).unwrap_or(i64::MAX),
        Backoff::Linear => ended.saturating_mul(5),
    };
    jitter(SignedDuration::from_secs(seconds.clamp(1, MAX_BACKOFF)), record)
}
