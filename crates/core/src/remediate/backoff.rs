//! The pause of a node whose replacement failed because of the node itself. Without it a node that cannot be drained would
//! use up the budget of its group again and again.

use jiff::{SignedDuration, Timestamp};

use super::{BlockReason, Blocked, Remediation, format_time, whole_second};
use crate::api::RemediationBackoff;
use crate::reasons::remediation::{DRAIN_TIMED_OUT, POD_NOT_EVICTABLE, POD_STUCK, TIMED_OUT};

/// Not less than the budget's hour: other nodes of the group have the first turn in the next one.
const FIRST_PAUSE: SignedDuration = SignedDuration::from_hours(1);
const LONGEST_PAUSE: SignedDuration = SignedDuration::from_hours(24);

/// The backoff after an attempt that failed for this reason. What the policy or a user stopped does not count.
pub(super) fn after_failure(
    before: Option<&RemediationBackoff>,
    reason: &str,
    now: Timestamp,
) -> Option<RemediationBackoff> {
    if ![DRAIN_TIMED_OUT, POD_STUCK, POD_NOT_EVICTABLE, TIMED_OUT].contains(&reason) {
        return before.cloned();
    }
    // A failure of long ago says little about the pods of today.
    let recent = before.filter(|before| now.duration_since(before.until) < LONGEST_PAUSE);
    let earlier = recent.map_or(0, |before| before.failures.max(0));
    let pause = (FIRST_PAUSE * 2_i32.pow(earlier.unsigned_abs().min(5))).min(LONGEST_PAUSE);
    let until = whole_second(now + pause);
    Some(RemediationBackoff { failures: earlier.saturating_add(1), reason: reason.to_owned(), until })
}

/// Whether the pause of the node is over.
pub(super) fn check(request: &Remediation, now: Timestamp) -> Result<(), Blocked> {
    let Some(backoff) = request.status.backoff.as_ref().filter(|backoff| now < backoff.until) else {
        return Ok(());
    };
    let message = format!(
        "{} attempts to replace the node failed, the last with {}: the next one is not before {}. Delete the NodeRemediation to have it requested and tried again earlier",
        backoff.failures,
        backoff.reason,
        format_time(backoff.until)
    );
    Err(Blocked::new(BlockReason::BackOff, message).until(backoff.until, now))
}
