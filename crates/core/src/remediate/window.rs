//! Maintenance windows restrict remediations of recyclers and persons to some times of the week.

use std::time::Duration;

use jiff::civil::{Time, Weekday};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan as _};

use super::{BlockReason, Blocked};
use crate::api::{Day, Window};

/// Whether the time is within a window, or there are no windows.
pub(super) fn check(windows: &[Window], now: Timestamp) -> Result<(), Blocked> {
    if windows.is_empty() || windows.iter().any(|window| contains(window, now).unwrap_or_default()) {
        return Ok(());
    }
    let message =
        invalid(windows).unwrap_or_else(|| "the time is outside of all `spec.windows` of the policy".into());
    let blocked = Blocked::new(BlockReason::OutsideWindow, message);
    Err(Blocked { requeue_after: Some(Duration::from_mins(1)), ..blocked })
}

/// What is wrong with the windows.
pub(super) fn invalid(windows: &[Window]) -> Option<String> {
    windows.iter().enumerate().find_map(|(index, window)| {
        let zone = TimeZone::get(&window.time_zone).err().map(|_| ("timeZone", &window.time_zone));
        let start = time(&window.start).is_none().then_some(("start", &window.start));
        let end = time(&window.end).is_none().then_some(("end", &window.end));
        let (field, value) = zone.or(start).or(end)?;
        Some(format!(
            "`spec.windows[{index}].{field}` of the policy cannot be read: '{value}'; use a name such as 'Europe/Berlin', and times such as '22:30'"
        ))
    })
}

fn time(text: &str) -> Option<Time> {
    let (hour, minute) = text.split_once(':')?;
    Time::new(hour.parse().ok()?, minute.parse().ok()?, 0, 0).ok()
}

fn contains(window: &Window, now: Timestamp) -> Option<bool> {
    let local = now.to_zoned(TimeZone::get(&window.time_zone).ok()?);
    let (start, end) = (time(&window.start)?, time(&window.end)?);
    let (today, at) = (local.date(), local.time());
    let starts_on =
        |weekday| window.days.is_empty() || window.days.iter().any(|day| weekday_of(*day) == weekday);
    if start < end {
        return Some(starts_on(today.weekday()) && start <= at && at < end);
    }
    let yesterday = today.checked_sub(1.day()).ok()?;
    Some((starts_on(today.weekday()) && start <= at) || (starts_on(yesterday.weekday()) && at < end))
}

fn weekday_of(day: Day) -> Weekday {
    match day {
        Day::Monday => Weekday::Monday,
        Day::Tuesday => Weekday::Tuesday,
        Day::Wednesday => Weekday::Wednesday,
        Day::Thursday => Weekday::Thursday,
        Day::Friday => Weekday::Friday,
        Day::Saturday => Weekday::Saturday,
        Day::Sunday => Weekday::Sunday,
    }
}
