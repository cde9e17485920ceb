//! How long a node waits for its next worker.

use jiff::SignedDuration;

use crate::api::{Backoff, Retry};
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
    spread(SignedDuration::from_secs(seconds.clamp(1, LONGEST_PAUSE)), record)
}

/// Up to a fifth longer; how much looks like chance and is none.
pub(super) fn spread(pause: SignedDuration, record: &Record) -> SignedDuration {
    let share = i32::try_from(scatter(&record.uid, record.number) % 200).unwrap_or_default();
    pause + pause / 1000 * share
}

/// A number that looks like chance and is none (FNV-1a): decisions are pure.
pub(crate) fn scatter(uid: &str, number: u32) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    uid.bytes().chain(number.to_le_bytes()).fold(0xcbf2_9ce4_8422_2325, step)
}
