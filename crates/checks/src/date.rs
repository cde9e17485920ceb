//! Dates of HTTP headers and log lines.

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const DAY: u64 = 86_400;

/// Parses a date such as `Sun, 06 Nov 1994 08:49:37 GMT`, the only form that servers may send, to Unix seconds.
pub(crate) fn read_http(text: &str) -> Option<u64> {
    let (_, rest) = text.trim().split_once(", ")?;
    let words: Vec<&str> = rest.split(' ').collect();
    let [day, month, year, time, "GMT"] = words[..] else { return None };
    let month = MONTHS.iter().position(|name| *name == month)?;
    let mut clock = time.split(':').map(|part| part.parse::<u64>().ok());
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    let (year, day): (u64, u64) = (year.parse().ok()?, day.parse().ok()?);
    let is_date = (1970..=9999).contains(&year) && (1..=31).contains(&day);
    let is_time = hour < 24 && minute < 60 && second <= 60 && clock.next().is_none();
    let days = days_before(year, month)? + day.checked_sub(1)?;
    (is_date && is_time).then(|| days * DAY + hour * 3600 + minute * 60 + second)
}

/// Formats Unix seconds as in `1994-11-06T08:49:37Z`.
#[must_use]
pub fn rfc3339(seconds: u64) -> String {
    let (mut days, clock) = (seconds / DAY, seconds % DAY);
    let mut year = 1970;
    while days >= days_in_year(year) {
        days -= days_in_year(year);
        year += 1;
    }
    let mut month = 0;
    while days >= days_in_month(year, month) {
        days -= days_in_month(year, month);
        month += 1;
    }
    let (hour, minute, second) = (clock / 3600, clock / 60 % 60, clock % 60);
    format!("{year:04}-{:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", month + 1, days + 1)
}

fn days_before(year: u64, month: usize) -> Option<u64> {
    let years = (1970..=9999).contains(&year).then_some(1970..year)?;
    let of_years: u64 = years.map(days_in_year).sum();
    Some(of_years + (0..month).map(|month| days_in_month(year, month)).sum::<u64>())
}

fn days_in_year(year: u64) -> u64 {
    if is_leap(year) { 366 } else { 365 }
}

/// January is 0.
fn days_in_month(year: u64, month: usize) -> u64 {
    match month {
        1 if is_leap(year) => 29,
        1 => 28,
        3 | 5 | 8 | 10 => 30,
        _ => 31,
    }
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_parsed_and_formatted() {
        for (http, seconds, log) in [
            ("Thu, 01 Jan 1970 00:00:00 GMT", 0, "1970-01-01T00:00:00Z"),
            ("Sun, 06 Nov 1994 08:49:37 GMT", 784_111_777, "1994-11-06T08:49:37Z"),
            ("Thu, 29 Feb 2024 23:59:59 GMT", 1_709_251_199, "2024-02-29T23:59:59Z"),
            ("Sun, 15 Nov 2026 17:24:23 GMT", 1_794_763_463, "2026-11-15T17:24:23Z"),
            ("Mon, 01 Mar 2100 00:00:00 GMT", 4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(read_http(http), Some(seconds), "{http}");
            assert_eq!(rfc3339(seconds), log);
        }
    }

    #[test]
    fn invalid_dates_are_refused() {
        for bad in [
            "",
            "yesterday",
            "Sun, 06 Nov 1994 08:49:37 CET",
            "Sun, 06 Nov 94 08:49:37 GMT",
            "Sun, 00 Nov 1994 08:49:37 GMT",
            "Sun, 06 Foo 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 24:49:37 GMT",
            "Sun, 06 Nov 1994 08:49 GMT",
            "Sun, 06 Nov 99999999999 08:49:37 GMT",
        ] {
            assert_eq!(read_http(bad), None, "{bad}");
        }
    }
}
