//! The breaker blocks remediation while too large a share of the nodes fails.

use jiff::{SignedDuration, Timestamp};

use super::{BlockReason, Blocked, VerdictCounts, whole_second};
use crate::api::{Breaker, BreakerState};

fn is_above(verdicts: VerdictCounts, percent: i32) -> bool {
    u64::from(verdicts.failed) * 100 > u64::from(percent.unsigned_abs()) * u64::from(verdicts.total)
}

/// Whether enough nodes have a recent verdict to open the breaker, or to keep it open.
fn are_enough(spec: &Breaker, verdicts: VerdictCounts) -> bool {
    verdicts.total >= spec.min_verdicts.unsigned_abs()
}

fn opens(spec: &Breaker, verdicts: VerdictCounts) -> bool {
    are_enough(spec, verdicts) && is_above(verdicts, spec.open_percent)
}

pub(super) fn next_state(
    spec: &Breaker,
    before: &BreakerState,
    verdicts: VerdictCounts,
    now: Timestamp,
) -> BreakerState {
    if opens(spec, verdicts) {
        return BreakerState { open: true, below_threshold_since: None };
    }
    // At 100 % it never opens, so one that is open closes.
    if !before.open || spec.open_percent >= 100 {
        return BreakerState::default();
    }
    if are_enough(spec, verdicts) && is_above(verdicts, spec.close_percent) {
        return BreakerState { open: true, below_threshold_since: None };
    }
    let since = before.below_threshold_since.unwrap_or_else(|| whole_second(now));
    let needed = SignedDuration::from_secs(spec.close_after_seconds.into());
    if now.duration_since(since) >= needed {
        return BreakerState::default();
    }
    BreakerState { open: true, below_threshold_since: Some(since) }
}

/// Whether the breaker is closed, both in the policy's status and by the current verdicts.
pub(super) fn check(spec: &Breaker, state: &BreakerState, verdicts: VerdictCounts) -> Result<(), Blocked> {
    if !opens(spec, verdicts) && !state.open {
        return Ok(());
    }
    let VerdictCounts { total, failed } = verdicts;
    let share = match total {
        0 => "too many nodes failed recently".to_owned(),
        _ => format!("{failed} of {total} nodes with a recent verdict failed"),
    };
    let message = format!(
        "{share}: remediation is blocked until at most {} % fail for {} s (`spec.breaker` of the policy)",
        spec.close_percent, spec.close_after_seconds
    );
    Err(Blocked::new(BlockReason::BreakerOpen, message))
}
