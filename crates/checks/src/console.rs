//! A report as text: one line per check, and a summary.

use std::fmt::Write as _;

use nodekeeper_core::report::{CheckResult, Outcome, Report, Verdict};

const GREEN: &str = "\x1b[32m";
const RED: &str = "\x1b[31m";
const YELLOW: &str = "\x1b[33m";
const PLAIN: &str = "\x1b[0m";

/// Returns text that ends with a newline.
#[must_use]
pub fn render(report: &Report, node: Option<&str>, colours: bool) -> String {
    let width = |of: fn(&CheckResult) -> usize| report.checks.iter().map(of).max().unwrap_or(0);
    let (names, targets) = (width(|c| c.name.len()), width(|c| c.target.chars().count()));
    let paint = |colour: &str, word: &str| {
        if colours { format!("{colour}{word}{PLAIN}") } else { word.to_owned() }
    };
    let mut text = node.map(|node| format!("node {node}\n")).unwrap_or_default();
    for check in &report.checks {
        let (colour, word) = match check.outcome {
            Outcome::Passed => (GREEN, "ok  "),
            Outcome::Failed => (RED, "FAIL"),
            Outcome::Inconclusive => (YELLOW, "?   "),
            Outcome::Skipped => (YELLOW, "SKIP"),
            Outcome::Warned => (YELLOW, "warn"),
        };
        let why = match (check.reason.as_str(), check.message.as_str()) {
            ("", message) => message.to_owned(),
            (reason, "") => reason.to_owned(),
            (reason, message) => format!("{reason}: {message}"),
        };
        let line = format!(
            "{}  {:names$}  {:targets$}  {:>6} ms  {why}",
            paint(colour, word),
            check.name,
            check.target,
            check.ms
        );
        // Control characters may come from the network.
        let line: String =
            line.chars().map(|c| if c.is_control() && c != '\x1b' { ' ' } else { c }).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    let colour = match report.verdict {
        Verdict::Passed => GREEN,
        Verdict::Failed => RED,
        Verdict::Inconclusive => YELLOW,
    };
    let _ = writeln!(text, "{}: {}", paint(colour, &report.verdict.to_string()), report.summary());
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodekeeper_core::checks::WorkerIdentity;

    #[test]
    fn columns_are_aligned() {
        let results = vec![
            CheckResult::new("dns", "kubernetes.default.", Outcome::Passed, "", "10.96.0.1"),
            CheckResult::new("services", "a/b", Outcome::Failed, "NoReadyEndpoints", "none is ready"),
            CheckResult::new("api", "", Outcome::Skipped, "NotInCluster", ""),
        ];
        let report = Report::judge(WorkerIdentity::default(), results, 5);
        assert_eq!(
            render(&report, Some("node-1"), false),
            "node node-1\n\
             ok    dns       kubernetes.default.       0 ms  10.96.0.1\n\
             FAIL  services  a/b                       0 ms  NoReadyEndpoints: none is ready\n\
             SKIP  api                                 0 ms  NotInCluster\n\
             Failed: services a/b: NoReadyEndpoints (none is ready)\n"
        );
        assert!(render(&report, None, true).contains("\x1b[31mFAIL\x1b[0m"));
    }
}
