//! How long a node waits for its next worker.

use jiff::SignedDuration;

use crate::api::{Backoff, Retry};
use crate::jitter::jitter;
use crate::record::Record;

/// No pause between attempts is longer.
const LONGEST_PAUSE: i64 = 30;

/// The pause after so many workers, up to a fifth longer, so that nodes that came together do not come back together.
pub(super) fn pause(retry: &Retry, record: &Record) -> SignedDuration {
    let ended = i64::from(record.workers.max(1));
    let seconds = match retry.backoff {
        Backoff::Exponential => 1_i64.checked_shl(record.workers.max(1) - 1).unwrap_or(i64::MAX),
        Backoff::Linear => ended.saturating_mul(5),
    };
    jitter(SignedDuration::from_secs(seconds.clamp(1, LONGEST_PAUSE)), record)
}
