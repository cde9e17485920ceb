//! Numbers that look random and are not, so that decisions stay pure.

use jiff::SignedDuration;

use crate::record::Record;

/// Up to a fifth longer; how much looks like chance and is none.
pub(crate) fn jitter(pause: SignedDuration, record: &Record) -> SignedDuration {
    let share = i32::try_from(stable_hash(&record.uid, record.number) % 200).unwrap_or_default();
    pause + pause / 1000 * share
}

/// A number that looks like chance and is none (FNV-1a): decisions are pure.
pub(crate) fn stable_hash(uid: &str, number: u32) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    uid.bytes().chain(number.to_le_bytes()).fold(0xcbf2_9ce4_8422_2325, step)
}
