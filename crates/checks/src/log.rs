//! The JSON log of a worker, one object per line.

use std::time::{Duration, UNIX_EPOCH};

use httpdate::fmt_http_date;
use nodekeeper_checks::Progress;
use nodekeeper_core::report::{CheckResult, Outcome, Report, Verdict, reason};
use serde_json::{Value, json};

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
/// The end of the year 9999: `httpdate` panics on later dates.
const LAST_DATE: Duration = Duration::from_secs(253_402_300_799);

/// Returns the line for a progress event.
pub fn step(progress: &Progress<'_>, clock: Duration) -> String {
    match progress {
        Progress::Started { name, target } => {
            let (title, key) = words(name);
            line("info", clock, &format!("Starting {title} check"), vec![(key, json!(target))])
        }
        Progress::Ended { result, addresses } => ended(result, addresses, clock),
    }
}

/// Returns the last line, which has the whole report.
pub fn verdict(report: &Report, node: Option<&str>, clock: Duration) -> String {
    let is_misconfigured = report.checks.iter().any(|check| check.reason == reason::BAD_CONFIGURATION);
    let (level, said) = match report.verdict {
        Verdict::Passed => ("info", "All checks passed"),
        Verdict::Failed => ("error", "Checks failed"),
        Verdict::Inconclusive if is_misconfigured => ("error", "Bad configuration"),
        Verdict::Inconclusive => ("warn", "Checks are inconclusive"),
    };
    let mut fields = Vec::new();
    if let Some(node) = node {
        fields.push(("node", json!(node)));
    }
    fields.push(("total_duration", seconds(report.ms)));
    if report.verdict != Verdict::Passed {
        fields.push(("error", json!(report.summary())));
    }
    fields.push(("report", json!(report)));
    line(level, clock, said, fields)
}

fn ended(result: &CheckResult, addresses: &[std::net::IpAddr], clock: Duration) -> String {
    let (title, key) = words(&result.name);
    let (level, end) = match result.outcome {
        Outcome::Passed => ("info", "passed"),
        Outcome::Failed => ("error", "failed"),
        Outcome::Inconclusive => ("warn", "is inconclusive"),
        Outcome::Skipped => ("warn", "skipped"),
        Outcome::Warned => ("warn", "failed, which holds no node"),
    };
    let mut fields = vec![(key, json!(result.target))];
    if !addresses.is_empty() {
        fields.push(("addresses", json!(addresses)));
    } else if result.outcome == Outcome::Passed && !result.message.is_empty() {
        fields.push(("result", json!(result.message)));
    }
    if result.outcome != Outcome::Passed {
        fields.push(("reason", json!(result.reason)));
        fields.push(("error", json!(result.message)));
    }
    fields.push(("duration", seconds(result.ms)));
    line(level, clock, &format!("{title} check {end}"), fields)
}

/// What a check is called, and what its target is.
fn words(check: &str) -> (&'static str, &'static str) {
    match check {
        "dns" => ("DNS", "domain"),
        "api" => ("API", "server"),
        "tcp" => ("TCP", "address"),
        "services" => ("Service", "service"),
        "peers" => ("Peer", "service"),
        "http" => ("HTTP", "url"),
        "clock" => ("Clock", "server"),
        "mtu" => ("MTU", "server"),
        _ => ("Unknown", "target"),
    }
}

fn seconds(ms: u64) -> Value {
    json!(format!("{}.{:03}s", ms / 1000, ms % 1000))
}

/// Formats Unix time as in `1994-11-06T08:49:37Z`.
fn rfc3339(clock: Duration) -> String {
    let date = fmt_http_date(UNIX_EPOCH + clock.min(LAST_DATE));
    let words: Vec<&str> = date.split(' ').collect();
    let [_, day, month, year, time, _] = words[..] else { return date };
    let month = MONTHS.iter().position(|name| *name == month).unwrap_or_default() + 1;
    format!("{year}-{month:02}-{day}T{time}Z")
}

/// In this order, which is what people look for first.
fn line(level: &str, clock: Duration, said: &str, fields: Vec<(&str, Value)>) -> String {
    let head = [("level", json!(level)), ("timestamp", json!(rfc3339(clock))), ("msg", json!(said))];
    let pairs: Vec<String> =
        head.into_iter().chain(fields).map(|(key, value)| format!("{}:{value}", json!(key))).collect();
    format!("{{{}}}\n", pairs.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodekeeper_core::checks::WorkerIdentity;

    const CLOCK: Duration = Duration::from_hours(473_890);

    #[test]
    fn lines_are_those_that_the_seed_documents() {
        let started = Progress::Started { name: "dns", target: "a." };
        let expected =
            r#"{"level":"info","timestamp":"2024-01-23T10:00:00Z","msg":"Starting DNS check","domain":"a."}"#;
        assert_eq!(step(&started, CLOCK), format!("{expected}\n"));
        let mut result = CheckResult::new("dns", "a.", Outcome::Passed, "", "10.96.0.1");
        result.ms = 123;
        let addresses = [[10, 96, 0, 1].into()];
        let passed = step(&Progress::Ended { result: &result, addresses: &addresses }, CLOCK);
        let expected = r#"{"level":"info","timestamp":"2024-01-23T10:00:00Z","msg":"DNS check passed","domain":"a.","addresses":["10.96.0.1"],"duration":"0.123s"}"#;
        assert_eq!(passed, format!("{expected}\n"));
        let last =
            verdict(&Report::judge(WorkerIdentity::default(), vec![result], 45_200), Some("node-1"), CLOCK);
        let expected = r#"{"level":"info","timestamp":"2024-01-23T10:00:00Z","msg":"All checks passed","node":"node-1","total_duration":"45.200s","report":{"#;
        assert!(last.starts_with(expected), "{last}");
    }

    #[test]
    fn times_are_formatted() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_794_763_463, "2026-11-15T17:24:23Z"),
            (u64::MAX, "9999-12-31T23:59:59Z"),
        ] {
            assert_eq!(rfc3339(Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn failures_say_why_and_stay_one_line() {
        let result = CheckResult::new("tcp", "10.0.0.1:443", Outcome::Failed, "Timeout", "no\n\"answer\"");
        let told = step(&Progress::Ended { result: &result, addresses: &[] }, CLOCK);
        assert_eq!(told.lines().count(), 1, "{told}");
        let read: Value = serde_json::from_str(&told).expect("it is JSON");
        assert_eq!((&read["msg"], &read["level"]), (&json!("TCP check failed"), &json!("error")));
        assert_eq!((&read["reason"], &read["error"]), (&json!("Timeout"), &json!("no\n\"answer\"")));
        let last = verdict(&Report::judge(WorkerIdentity::default(), vec![result], 1), None, CLOCK);
        let read: Value = serde_json::from_str(&last).expect("it is JSON");
        assert_eq!(read["msg"], "Checks failed");
    }
}
