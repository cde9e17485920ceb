//! Deterministic jitter, so that decisions stay pure functions.

use jiff::SignedDuration;

use crate::record::Record;

/// Lengthens the duration by up to a fifth, depending on the record's uid and number.
pub(crate) fn jitter(duration: SignedDuration, record: &Record) -> SignedDuration {
    let share = i32::try_from(stable_hash(&record.uid.to_string(), record.number) % 200).unwrap_or_default();
    duration + duration / 1000 * share
}

/// A hash (FNV-1a) that is the same in every process and release.
pub(crate) fn stable_hash(uid: &str, number: u32) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    uid.bytes().chain(number.to_le_bytes()).fold(0xcbf2_9ce4_8422_2325, step)
}
