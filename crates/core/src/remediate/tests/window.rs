//! Maintenance windows.

use super::*;
use crate::api::{Day, Window};
use crate::remediate::window::{check, invalid};

pub(super) fn between(start: &str, end: &str) -> Window {
    Window { days: vec![], start: start.into(), end: end.into(), time_zone: "UTC".into() }
}

fn is_in(window: &Window, time: &str) -> bool {
    check(std::slice::from_ref(window), time.parse().expect("a time")).is_ok()
}

#[test]
fn a_window_includes_its_start_and_not_its_end() {
    let window = between("10:00", "12:30");
    for (time, inside) in [("09:59:59", false), ("10:00:00", true), ("12:29:59", true), ("12:30:00", false)] {
        assert_eq!(is_in(&window, &format!("2026-11-16T{time}Z")), inside, "{time}");
    }
    assert!(check(&[], at(0)).is_ok(), "none: at any time");
    let two = [between("01:00", "02:00"), between("12:00", "13:00")];
    assert!(check(&two, at(30)).is_ok() && check(&two, at(60)).is_err());
}

#[test]
fn a_window_over_midnight_belongs_to_its_first_day() {
    let window = Window { days: vec![Day::Friday], ..between("22:00", "04:00") };
    // 2026-11-20 is a Friday.
    for (time, inside) in [
        ("2026-11-20T21:59:59Z", false),
        ("2026-11-20T22:00:00Z", true),
        ("2026-11-21T03:59:59Z", true),
        ("2026-11-21T04:00:00Z", false),
        ("2026-11-20T03:00:00Z", false),
        ("2026-11-21T23:00:00Z", false),
    ] {
        assert_eq!(is_in(&window, time), inside, "{time}");
    }
    let whole = Window { days: vec![Day::Sunday], ..between("06:00", "06:00") };
    assert!(is_in(&whole, "2026-11-23T05:59:00Z") && !is_in(&whole, "2026-11-23T06:00:00Z"));
}

#[test]
fn t04_each_day_of_a_window_is_that_day_of_the_week() {
    // 2026-11-16 is a Monday.
    let days =
        [Day::Monday, Day::Tuesday, Day::Wednesday, Day::Thursday, Day::Friday, Day::Saturday, Day::Sunday];
    for (offset, day) in (16..).zip(days) {
        let by_day = Window { days: vec![day], ..between("10:00", "12:00") };
        let over_midnight = Window { days: vec![day], ..between("22:00", "04:00") };
        for date in 16..23 {
            assert_eq!(is_in(&by_day, &format!("2026-11-{date}T11:00:00Z")), date == offset, "{day:?}");
            assert_eq!(
                is_in(&over_midnight, &format!("2026-11-{date}T23:00:00Z")),
                date == offset,
                "{day:?}"
            );
        }
        assert!(is_in(&over_midnight, &format!("2026-11-{}T03:00:00Z", offset + 1)), "{day:?}");
    }
}

#[test]
fn a_window_follows_daylight_saving_time() {
    let berlin = Window { time_zone: "Europe/Berlin".into(), ..between("02:00", "04:00") };
    // Summer: two hours ahead of UTC; winter: one.
    assert!(is_in(&berlin, "2026-07-01T00:30:00Z") && !is_in(&berlin, "2026-07-01T02:30:00Z"));
    assert!(is_in(&berlin, "2026-12-01T02:30:00Z") && !is_in(&berlin, "2026-12-01T00:30:00Z"));
    // On 2026-03-29 there is no time from 02:00 to 03:00; on 2026-10-25 it is there twice.
    assert!(!is_in(&berlin, "2026-03-29T00:59:59Z") && is_in(&berlin, "2026-03-29T01:00:00Z"));
    assert!(is_in(&berlin, "2026-10-25T00:30:00Z") && is_in(&berlin, "2026-10-25T01:30:00Z"));
    assert!(!is_in(&berlin, "2026-10-25T03:00:00Z"));
    let kolkata = Window { time_zone: "Asia/Kolkata".into(), ..between("05:30", "06:00") };
    assert!(is_in(&kolkata, "2026-11-16T00:00:00Z"));
}

#[test]
fn an_invalid_window_never_opens_and_is_reported() {
    let unknown = Window { time_zone: "Europe/Atlantis".into(), ..between("00:00", "23:59") };
    let blocked = check(std::slice::from_ref(&unknown), at(0)).expect_err("it is never in it");
    assert!(blocked.message.contains("`spec.windows[0].timeZone`"), "{}", blocked.message);
    assert!(blocked.message.contains("'Europe/Atlantis'") && blocked.message.contains("'Europe/Berlin'"));
    let good = between("00:00", "23:59");
    assert_eq!(invalid(std::slice::from_ref(&good)), None);
    let said = invalid(&[good.clone(), between("10:00", "25:00")]).expect("a problem");
    assert!(said.contains("`spec.windows[1].end`") && said.contains("'25:00'"), "{said}");
    assert!(check(&[unknown.clone(), good], at(0)).is_ok(), "the others still count");
    let mut policy = policy();
    policy.spec.windows = vec![unknown];
    let ready = policy::status_of(&policy, &[]).conditions.remove(0);
    assert_eq!((&*ready.type_, &*ready.status, &*ready.reason), ("Ready", "False", "InvalidWindow"));
    assert!(ready.message.contains("Atlantis"));
}

#[test]
fn causes_of_gates_ignore_windows() {
    let closed: Change = |world| world.policy().spec.windows = vec![between("22:00", "23:00")];
    assert_eq!(World::with(closed).block_reason(), None);
    let passed = World::with(|world| {
        closed(world);
        world.request.spec.causes.push(cause(CauseSource::Recycler, at(0)));
        world.target().record = Some(failed_record("n1", at(0)).opened("label"));
    });
    assert_eq!(
        passed.block_reason(),
        Some(BlockReason::OutsideWindow),
        "the gate's cause is void, the recycler's is not"
    );
}
