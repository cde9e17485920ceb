//! Failed checks in the short form that records keep and that is compared with shared outages.

use crate::api::{FailedCheck, SharedOutage};
use crate::report::CheckResult;
use crate::text::clean;

/// Shortens a failed check to what a record and the CRD schemas can hold.
pub(crate) fn to_failed_check(result: &CheckResult) -> FailedCheck {
    FailedCheck {
        name: clean(&result.name, 64),
        target: clean(&result.target, 128),
        reason: clean(&result.reason, 64),
    }
}

/// Whether the outage is of this check and target. An empty target matches every target.
#[must_use]
pub fn matches_outage(down: &SharedOutage, check: &str, target: &str) -> bool {
    down.check == check && (down.target == target || target.is_empty() || down.target.is_empty())
}
