//! The report of a worker: the JSON in its termination message.

mod cluster_dns;
pub mod reason;

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::checks::WorkerIdentity;

use cluster_dns::excuse_cluster_dns;

/// The version of the format.
const VERSION: u32 = 1;
/// Bytes; the kubelet truncates longer termination messages.
pub const MESSAGE_LIMIT: usize = 4096;
/// Characters to which check messages are cut, in turn, until the report fits.
const MESSAGE_CUTS: [usize; 4] = [160, 80, 32, 0];
/// Characters to which names, targets and reasons are cut, as the last step.
const FIELD_CUT: usize = 64;
/// Characters; the summary is written to Events and conditions.
const SUMMARY_LIMIT: usize = 256;

/// The Service of cluster DNS, as the target of a `services` or `peers` check.
pub const CLUSTER_DNS: &str = "kube-system/kube-dns";

/// The outcome of one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "String")]
pub enum Outcome {
    Passed,
    /// The check failed, and the node may be the cause.
    Failed,
    /// The check came to no result.
    Inconclusive,
    /// The check did not run.
    Skipped,
    /// The check failed, and it does not affect the verdict.
    Warned,
}

/// An unknown outcome of a newer worker is inconclusive.
impl From<String> for Outcome {
    fn from(name: String) -> Self {
        let known = [Self::Passed, Self::Failed, Self::Skipped, Self::Warned];
        known.into_iter().find(|outcome| outcome.as_str() == name).unwrap_or(Self::Inconclusive)
    }
}

impl Outcome {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Passed => "Passed",
            Self::Failed => "Failed",
            Self::Inconclusive => "Inconclusive",
            Self::Skipped => "Skipped",
            Self::Warned => "Warned",
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.as_str())
    }
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckResult {
    /// The check's name, such as `dns` or `api`.
    #[serde(rename = "n")]
    pub name: String,
    #[serde(rename = "t", default, skip_serializing_if = "String::is_empty")]
    pub target: String,
    #[serde(rename = "o")]
    pub outcome: Outcome,
    /// The check's duration, in milliseconds.
    #[serde(default)]
    pub ms: u64,
    /// See [`reason`]. Empty if the check passed.
    #[serde(rename = "r", default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    #[serde(rename = "m", default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

impl CheckResult {
    #[must_use]
    pub fn new(name: &str, target: &str, outcome: Outcome, reason: &str, message: &str) -> Self {
        Self {
            name: name.to_owned(),
            target: target.to_owned(),
            outcome,
            ms: 0,
            reason: reason.to_owned(),
            message: message.to_owned(),
        }
    }

    fn is(&self, outcome: Outcome) -> bool {
        self.outcome == outcome
    }

    /// Makes the result inconclusive for another reason. The original reason moves into the message.
    fn excuse(&mut self, reason: &str) {
        self.outcome = Outcome::Inconclusive;
        self.message = match self.message.as_str() {
            "" => self.reason.clone(),
            message => format!("{}: {message}", self.reason),
        };
        reason.clone_into(&mut self.reason);
    }

    fn describe(&self) -> String {
        let mut text = self.name.clone();
        if !self.target.is_empty() {
            text = format!("{text} {}", self.target);
        }
        match (self.reason.as_str(), self.message.as_str()) {
            ("", "") => text,
            (reason, "") => format!("{text}: {reason}"),
            ("", message) => format!("{text}: {message}"),
            (reason, message) => format!("{text}: {reason} ({message})"),
        }
    }
}

/// The verdict about a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    Passed,
    Failed,
    /// The node stays as it is, and it costs no attempt.
    Inconclusive,
}

impl Verdict {
    fn of(checks: &[CheckResult]) -> Self {
        let any = |outcome| checks.iter().any(|check| check.is(outcome));
        if any(Outcome::Failed) {
            Self::Failed
        } else if any(Outcome::Inconclusive) || !any(Outcome::Passed) {
            Self::Inconclusive
        } else {
            Self::Passed
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(match self {
            Self::Passed => "Passed",
            Self::Failed => "Failed",
            Self::Inconclusive => "Inconclusive",
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    pub v: u32,
    #[serde(rename = "s")]
    pub identity: WorkerIdentity,
    pub verdict: Verdict,
    /// The duration of all checks, in milliseconds.
    #[serde(default)]
    pub ms: u64,
    pub checks: Vec<CheckResult>,
    /// The number of results that were dropped so that the rest fits into the message.
    #[serde(rename = "left", default, skip_serializing_if = "is_zero")]
    pub left_out: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// Why a termination message is no valid report.
#[derive(Debug, thiserror::Error)]
pub enum ParseError {
    #[error("the worker left no report")]
    Empty,
    #[error("the report has {0} bytes, more than a termination message can hold")]
    TooLong(usize),
    #[error("the report cannot be read: {0}")]
    Malformed(#[from] serde_json::Error),
    #[error(
        "the report has version {0}; this controller reads version 1: use a worker image of its own release"
    )]
    UnknownVersion(u64),
    /// The verdict does not follow from the results.
    #[error("the report's verdict is {said}, and its checks mean {is}")]
    Contradiction { said: Verdict, is: Verdict },
}

impl Report {
    /// Creates a report from the results. One failed check makes the verdict Failed; otherwise an inconclusive check, or no
    /// passed check at all, makes it Inconclusive.
    #[must_use]
    pub fn judge(identity: WorkerIdentity, mut results: Vec<CheckResult>, ms: u64) -> Self {
        excuse_cluster_dns(&mut results);
        let verdict = Verdict::of(&results);
        Self { v: VERSION, identity, verdict, ms, checks: results, left_out: 0 }
    }

    /// The exit code of a worker with this report.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        let is_misconfigured = self.checks.iter().any(|check| check.reason == reason::BAD_CONFIGURATION);
        match self.verdict {
            Verdict::Passed => 0,
            Verdict::Failed => 1,
            Verdict::Inconclusive if is_misconfigured => 2,
            Verdict::Inconclusive => 3,
        }
    }

    /// Compact JSON of at most `limit` bytes. Messages of passed checks are dropped first, then messages are cut, then the
    /// least severe results are dropped. Verdict and identity always stay; if they do not fit, the message is empty, which
    /// counts as inconclusive.
    #[must_use]
    pub fn to_message(&self, limit: usize) -> String {
        if let Some(whole) = self.to_json_within(limit) {
            return whole;
        }
        let mut report = self.clone();
        for check in &mut report.checks {
            if matches!(check.outcome, Outcome::Passed | Outcome::Skipped) {
                check.message.clear();
            }
        }
        for length in MESSAGE_CUTS {
            if let Some(message) = report.to_json_within(limit) {
                return message;
            }
            for check in &mut report.checks {
                cut(&mut check.message, length);
            }
        }
        while let Some(least) = report.least_severe() {
            if let Some(message) = report.to_json_within(limit) {
                return message;
            }
            report.checks.remove(least);
            report.left_out += 1;
        }
        for check in &mut report.checks {
            cut(&mut check.target, FIELD_CUT);
            cut(&mut check.name, FIELD_CUT);
            cut(&mut check.reason, FIELD_CUT);
        }
        report.to_json_within(limit).unwrap_or_default()
    }

    fn to_json_within(&self, limit: usize) -> Option<String> {
        let json = serde_json::to_string(self).ok()?;
        (json.len() <= limit).then_some(json)
    }

    /// The index of the least severe result; none if only one is left, because the verdict depends on it.
    fn least_severe(&self) -> Option<usize> {
        let rank = |check: &CheckResult| match check.outcome {
            Outcome::Skipped => 0,
            // Below Passed, because a Passed verdict needs a passed check.
            Outcome::Warned => 1,
            Outcome::Passed => 2,
            Outcome::Inconclusive => 3,
            Outcome::Failed => 4,
        };
        // The last of equals, so that the first failures are kept.
        let least = self.checks.iter().enumerate().rev().min_by_key(|(_, check)| rank(check))?;
        (self.checks.len() > 1).then_some(least.0)
    }

    /// One line: the first failed check, or else the first inconclusive one, or the number of passed checks.
    #[must_use]
    pub fn summary(&self) -> String {
        match self.verdict {
            Verdict::Passed => {
                let passed = format!("{} passed in {} ms", self.count_passed(), self.ms);
                self.first_of(Outcome::Warned, &format!("{passed}; warning: ")).unwrap_or(passed)
            }
            Verdict::Failed => self.first_of(Outcome::Failed, "").unwrap_or_default(),
            Verdict::Inconclusive => {
                let nothing = || self.first_of(Outcome::Skipped, "nothing was checked: ");
                let inconclusive = self.first_of(Outcome::Inconclusive, "").or_else(nothing);
                inconclusive.unwrap_or_else(|| "nothing was checked".to_owned())
            }
        }
    }

    pub fn failed(&self) -> impl Iterator<Item = &CheckResult> {
        self.checks.iter().filter(|check| check.is(Outcome::Failed))
    }

    /// The first result with this outcome, and the number of further ones.
    fn first_of(&self, outcome: Outcome, lead: &str) -> Option<String> {
        let mut all = self.checks.iter().filter(|check| check.is(outcome)).map(CheckResult::describe);
        let first = lead.to_owned() + &all.next()?;
        let more = match all.count() {
            0 => String::new(),
            n => format!("; and {n} more"),
        };
        // The text is untrusted and is written to Events and terminals.
        let mut line: String = first.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        cut(&mut line, SUMMARY_LIMIT - more.len());
        Some(line + &more)
    }

    /// How many checks passed. A check has one result for each of its targets.
    fn count_passed(&self) -> String {
        let passed = self.checks.iter().filter(|check| check.is(Outcome::Passed));
        let names: BTreeSet<&str> = passed.map(|check| check.name.as_str()).collect();
        match names.len() {
            // What was left out may be all results of a check.
            _ if self.left_out > 0 => "all checks".to_owned(),
            1 => "1 check".to_owned(),
            n => format!("{n} checks"),
        }
    }
}

/// Parses the termination message of a worker. An untrusted node may have written it, so it is accepted only if it is
/// complete and its verdict follows from its checks.
pub fn parse(message: &str) -> Result<Report, ParseError> {
    #[derive(Deserialize)]
    struct Version {
        v: u64,
    }
    if message.trim().is_empty() {
        return Err(ParseError::Empty);
    }
    if message.len() > MESSAGE_LIMIT {
        return Err(ParseError::TooLong(message.len()));
    }
    let Version { v } = serde_json::from_str(message)?;
    if v != u64::from(VERSION) {
        return Err(ParseError::UnknownVersion(v));
    }
    let report: Report = serde_json::from_str(message)?;
    let is = Verdict::of(&report.checks);
    if is != report.verdict {
        return Err(ParseError::Contradiction { said: report.verdict, is });
    }
    Ok(report)
}

/// Truncates the text to so many characters.
fn cut(text: &mut String, characters: usize) {
    if let Some((end, _)) = text.char_indices().nth(characters) {
        text.truncate(end);
    }
}

#[cfg(test)]
mod tests;
