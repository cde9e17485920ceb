//! Deterministic jitter, so that decisions stay pure functions.

use jiff::SignedDuration;

use crate::record::Record;

/// Lengthens the duration by up to a fifth, depending on the record's uid and number.
pub(crate) fn jitter(duration: SignedDuration, record: &Record) -> SignedDuration {
    let share = i32::try_from(stable_hash(&record.uid.to_string(), record.number) % 200).unwrap_or_default();
    duration + duration / 1000 * share
}

/// The time from the record to the next periodic verification, between a half and one and a half of the period. Each node has
/// a place of its own in the period, by its uid, so that nodes that were verified together are spread evenly over it.
pub(crate) fn in_period(period: SignedDuration, record: &Record) -> SignedDuration {
    let seconds = period.as_secs().max(1);
    let hash = stable_hash(&record.uid.to_string(), 0) % seconds.unsigned_abs();
    let place = i64::try_from(hash).unwrap_or_default();
    let recorded = record.at.map_or(0, jiff::Timestamp::as_second);
    let earliest = recorded.saturating_add(seconds / 2);
    let next = earliest.saturating_add(place.saturating_sub(earliest).rem_euclid(seconds));
    SignedDuration::from_secs(next.saturating_sub(recorded))
}

/// A hash (FNV-1a) that is the same in every process and release.
pub(crate) fn stable_hash(uid: &str, number: u32) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    uid.bytes().chain(number.to_le_bytes()).fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    const HOUR: i64 = 3600;

    fn record(node: usize, at: i64) -> Record {
        Record {
            uid: format!("0b5e7f3a-1c2d-4e5f-8a9b-{node:012x}").as_str().into(),
            at: Timestamp::from_second(at).ok(),
            ..Record::default()
        }
    }

    fn due(node: usize, at: i64) -> i64 {
        at + in_period(SignedDuration::from_hours(6), &record(node, at)).as_secs()
    }

    #[test]
    fn nodes_that_were_verified_together_are_spread_evenly_over_the_period() {
        let began = 1_800_000_000;
        let mut tenths = [0; 10];
        for node in 0..2000 {
            let wait = due(node, began) - began;
            assert!((3 * HOUR..9 * HOUR).contains(&wait), "{wait}");
            tenths[usize::try_from((wait - 3 * HOUR) * 10 / (6 * HOUR)).unwrap()] += 1;
        }
        assert!(tenths.iter().all(|count| (140..=260).contains(count)), "{tenths:?}");
    }

    #[test]
    fn a_node_keeps_its_place_in_the_period() {
        for node in 0..100 {
            let first = due(node, 1_800_000_000);
            // Its worker takes a while.
            let second = due(node, first + 5);
            let third = due(node, second + 90);
            assert_eq!([second - first, third - second], [6 * HOUR, 6 * HOUR]);
        }
    }

    #[test]
    fn a_record_without_a_time_and_a_period_of_nothing_are_no_panic() {
        let never = Record::default();
        assert!(in_period(SignedDuration::ZERO, &never) <= SignedDuration::from_secs(1));
        assert!(in_period(SignedDuration::MAX, &record(1, i64::from(i32::MAX))).is_positive());
    }
}
