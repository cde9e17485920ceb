//! Stops everything destructive while too many nodes fail, and for a while after.

use jiff::{SignedDuration, Timestamp};

use super::{BlockReason, Blocked, VerdictCounts};
use crate::api::{Breaker, BreakerState};

fn is_over(verdicts: VerdictCounts, percent: i32) -> bool {
    u64::from(verdicts.failed) * 100 > u64::from(percent.unsigned_abs()) * u64::from(verdicts.all)
}

fn opens(spec: &Breaker, verdicts: VerdictCounts) -> bool {
    verdicts.all >= spec.min_verdicts.unsigned_abs() && is_over(verdicts, spec.open_percent)
}

/// Where it stands now.
pub(super) fn state(
    spec: &Breaker,
    before: &BreakerState,
    verdicts: VerdictCounts,
    now: Timestamp,
) -> BreakerState {
    if opens(spec, verdicts) {
        return BreakerState { open: true, below_threshold_since: None };
    }
    if !before.open {
        return BreakerState::default();
    }
    if is_over(verdicts, spec.close_percent) {
        return BreakerState { open: true, below_threshold_since: None };
    }
    let since = before.below_threshold_since.unwrap_or(now);
    let needed = SignedDuration::from_secs(spec.close_after_seconds.into());
    if now.duration_since(since) >= needed {
        return BreakerState::default();
    }
    BreakerState { open: true, below_threshold_since: Some(since) }
}

/// Whether it is closed: by what was written, and by what is seen now.
pub(super) fn check(spec: &Breaker, state: &BreakerState, verdicts: VerdictCounts) -> Result<(), Blocked> {
    let VerdictCounts { all, failed } = verdicts;
    if opens(spec, verdicts) || state.open {
        let seen = match all {
            0 => "too many nodes failed lately".to_owned(),
            _ => format!("{failed} of {all} nodes that had a verdict lately failed"),
        };
        let message = format!(
            "{seen}: nothing destructive is done until it has been no more than {} % for {} s (`spec.breaker` of the policy)",
            spec.close_percent, spec.close_after_seconds
        );
        return Err(Blocked::new(BlockReason::BreakerOpen, message));
    }
    Ok(())
}
