//! Checks that failed, in the short form in which they are remembered and compared with known shared outages.

use crate::api::{FailedCheck, SharedOutage};
use crate::report::CheckResult;
use crate::text::clean;

/// What is remembered of a check that failed: short enough for a record and for every schema.
pub(crate) fn brief(result: &CheckResult) -> FailedCheck {
    FailedCheck {
        name: clean(&result.name, 64),
        target: clean(&result.target, 128),
        reason: clean(&result.reason, 64),
    }
}

/// Whether this is that check of that target.
#[must_use]
pub fn matches_outage(down: &SharedOutage, check: &str, target: &str) -> bool {
    down.check == check && (down.target == target || target.is_empty() || down.target.is_empty())
}
