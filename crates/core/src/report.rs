//! What a worker found: the JSON it leaves in its termination message, and how much of it is believed.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::checks::WorkerIdentity;

/// The only version there is.
const VERSION: u32 = 1;
/// The kubelet cuts the message of a container here.
pub const MESSAGE_LIMIT: usize = 4096;
/// How much of a message is kept when all of them do not fit, in characters, and then how much less.
const SHORTER: [usize; 4] = [160, 80, 32, 0];
/// A target past this is only a burden to the reader.
const TARGET_SHORT: usize = 64;
/// The summary stands in Events and conditions.
const SUMMARY_LIMIT: usize = 256;

/// Reasons that are more than words: somebody decides by them. Checks may give others.
pub mod reason {
    /// No answer in the time that one check has.
    pub const TIMEOUT: &str = "Timeout";
    /// The overall deadline came first.
    pub const DEADLINE_EXCEEDED: &str = "DeadlineExceeded";
    /// The name does not exist.
    pub const NX_DOMAIN: &str = "NxDomain";
    /// The DNS server answers that it cannot.
    pub const SERV_FAIL: &str = "ServFail";
    /// Nobody takes the connection, or a server refuses to answer.
    pub const REFUSED: &str = "Refused";
    /// The address cannot be reached.
    pub const UNREACHABLE: &str = "Unreachable";
    /// The name exists and has no address.
    pub const NO_ADDRESS: &str = "NoAddress";
    /// There is no DNS server to ask.
    pub const NO_SERVERS: &str = "NoServers";
    /// The certificate or the handshake is wrong.
    pub const TLS_ERROR: &str = "TlsError";
    /// The API server does not know who asks.
    pub const UNAUTHORIZED: &str = "Unauthorized";
    /// The worker may not ask that: its rights are wrong, not its node.
    pub const FORBIDDEN: &str = "Forbidden";
    /// There is no such object.
    pub const NOT_FOUND: &str = "NotFound";
    /// The API server has troubles of its own.
    pub const SERVER_ERROR: &str = "ServerError";
    /// The answer is none that such a server gives.
    pub const BAD_ANSWER: &str = "BadAnswer";
    /// A Service without a single ready endpoint.
    pub const NO_READY_ENDPOINTS: &str = "NoReadyEndpoints";
    /// A Service with fewer ready endpoints than are asked for.
    pub const TOO_FEW_READY_ENDPOINTS: &str = "TooFewReadyEndpoints";
    /// There is no pod on another node to connect to.
    pub const NO_PEERS: &str = "NoPeers";
    /// The node's clock and the API server's are too far apart.
    pub const CLOCK_SKEW: &str = "ClockSkew";
    /// Small packets get through and large ones do not.
    pub const MTU_BLACK_HOLE: &str = "MtuBlackHole";
    /// An HTTP status that was not expected.
    pub const UNEXPECTED_STATUS: &str = "UnexpectedStatus";
    /// It needs a cluster, and there is none.
    pub const NOT_IN_CLUSTER: &str = "NotInCluster";
    /// Cluster DNS does not run, so nothing can be said about a node's way to it.
    pub const CLUSTER_DNS_NOT_RUNNING: &str = "ClusterDNSNotRunning";
    /// The worker was told something that makes no sense.
    pub const BAD_CONFIGURATION: &str = "BadConfiguration";
    /// The worker lacks what it needs to ask.
    pub const NO_CLIENT: &str = "NoClient";
}

/// The Service of the cluster's DNS, as the target of a `services` or `peers` check.
pub const CLUSTER_DNS: &str = "kube-system/kube-dns";

/// What a connection to a host that has to be resolved first fails for when it is not resolved.
const NAME_FAILS: [&str; 5] =
    [reason::TIMEOUT, reason::NX_DOMAIN, reason::SERV_FAIL, reason::NO_ADDRESS, reason::NO_SERVERS];

/// How one check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "String")]
pub enum Outcome {
    /// What should work does.
    Passed,
    /// It does not, and the node may be why.
    Failed,
    /// It could not be found out.
    Inconclusive,
    /// It was not tried.
    Skipped,
    /// It does not work, and no node is held for it.
    Warned,
}

/// What a newer worker calls by a name that we do not know cannot count for the node.
impl From<String> for Outcome {
    fn from(name: String) -> Self {
        let known = [Self::Passed, Self::Failed, Self::Skipped, Self::Warned];
        known.into_iter().find(|outcome| outcome.as_str() == name).unwrap_or(Self::Inconclusive)
    }
}

impl Outcome {
    fn as_str(self) -> &'static str {
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

/// What one check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckResult {
    /// Which check: `dns`, `api`, …
    #[serde(rename = "n")]
    pub name: String,
    /// What it looked at.
    #[serde(rename = "t", default, skip_serializing_if = "String::is_empty")]
    pub target: String,
    /// How it ended.
    #[serde(rename = "o")]
    pub outcome: Outcome,
    /// How long it took, in milliseconds.
    #[serde(default)]
    pub ms: u64,
    /// Why, in one word; see [`reason`]. Empty when it passed.
    #[serde(rename = "r", default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Why, for people.
    #[serde(rename = "m", default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

impl CheckResult {
    /// A result that took no time.
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

    /// Makes it inconclusive for another reason; what was seen is still told.
    fn excuse_by(&mut self, reason: &str) {
        self.outcome = Outcome::Inconclusive;
        self.message = match self.message.as_str() {
            "" => self.reason.clone(),
            message => format!("{}: {message}", self.reason),
        };
        reason.clone_into(&mut self.reason);
    }

    fn describe(&self) -> String {
        let mut line = self.name.clone();
        if !self.target.is_empty() {
            line = format!("{line} {}", self.target);
        }
        match (self.reason.as_str(), self.message.as_str()) {
            ("", "") => line,
            (reason, "") => format!("{line}: {reason}"),
            ("", message) => format!("{line}: {message}"),
            (reason, message) => format!("{line}: {reason} ({message})"),
        }
    }
}

/// What all checks of a worker say together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// The node works.
    Passed,
    /// It does not.
    Failed,
    /// Nobody knows: it opens nothing and blames nobody.
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

/// All that a worker has to say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Version of the format.
    pub v: u32,
    /// For whom it worked.
    #[serde(rename = "s")]
    pub identity: WorkerIdentity,
    /// What it comes to.
    pub verdict: Verdict,
    /// How long all of it took, in milliseconds.
    #[serde(default)]
    pub ms: u64,
    /// The single results.
    pub checks: Vec<CheckResult>,
    /// How many results were dropped so that the rest fits.
    #[serde(rename = "left", default, skip_serializing_if = "is_zero")]
    pub left_out: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// Why a message is no report.
#[derive(Debug, thiserror::Error)]
pub enum ParseError {
    /// The worker said nothing.
    #[error("the worker left no report")]
    Empty,
    /// Longer than a termination message can be.
    #[error("the report has {0} bytes, more than a termination message can hold")]
    TooLong(usize),
    /// Not a report.
    #[error("the report cannot be read: {0}")]
    Malformed(#[from] serde_json::Error),
    /// A worker of another age.
    #[error(
        "the report has version {0}; this controller reads version 1: use a worker image of its own release"
    )]
    UnknownVersion(u64),
    /// Its verdict does not follow from its results.
    #[error("the report says {said}, and its checks say {is}")]
    Contradiction {
        /// What it claims.
        said: Verdict,
        /// What its checks come to.
        is: Verdict,
    },
}

impl Report {
    /// Comes to a verdict: one failure is enough to fail; something that could not be found out, or nothing at all,
    /// is inconclusive. A node is not blamed for cluster DNS that does not run.
    #[must_use]
    pub fn judge(identity: WorkerIdentity, mut results: Vec<CheckResult>, ms: u64) -> Self {
        excuse(&mut results);
        let verdict = Verdict::of(&results);
        Self { v: VERSION, identity, verdict, ms, checks: results, left_out: 0 }
    }

    /// What a worker that has this to say exits with.
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

    /// Compact JSON of at most `limit` bytes. What passed loses its detail first, then messages get shorter, then the
    /// least grave results go; verdict and identity never do. Where not even they fit it is empty: no report is
    /// inconclusive, half of one would be worse.
    #[must_use]
    pub fn to_message(&self, limit: usize) -> String {
        if let Some(whole) = self.fitting(limit) {
            return whole;
        }
        let mut report = self.clone();
        for check in &mut report.checks {
            if matches!(check.outcome, Outcome::Passed | Outcome::Skipped) {
                check.message.clear();
            }
        }
        for length in SHORTER {
            if let Some(message) = report.fitting(limit) {
                return message;
            }
            for check in &mut report.checks {
                cut(&mut check.message, length);
            }
        }
        while let Some(least) = report.least_grave() {
            if let Some(message) = report.fitting(limit) {
                return message;
            }
            report.checks.remove(least);
            report.left_out += 1;
        }
        for check in &mut report.checks {
            cut(&mut check.target, TARGET_SHORT);
            cut(&mut check.name, TARGET_SHORT);
            cut(&mut check.reason, TARGET_SHORT);
        }
        report.fitting(limit).unwrap_or_default()
    }

    fn fitting(&self, limit: usize) -> Option<String> {
        let json = serde_json::to_string(self).ok()?;
        (json.len() <= limit).then_some(json)
    }

    /// The result that is missed least; none when only one is left, because the verdict rests on it.
    fn least_grave(&self) -> Option<usize> {
        let rank = |check: &CheckResult| match check.outcome {
            Outcome::Skipped => 0,
            // Less than what passed: a verdict rests on that.
            Outcome::Warned => 1,
            Outcome::Passed => 2,
            Outcome::Inconclusive => 3,
            Outcome::Failed => 4,
        };
        // The last of them, so that the first failures are what a reader gets to see.
        let least = self.checks.iter().enumerate().rev().min_by_key(|(_, check)| rank(check))?;
        (self.checks.len() > 1).then_some(least.0)
    }

    /// One line for people: what failed, or else what could not be found out, or how much passed.
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
                let unsure = self.first_of(Outcome::Inconclusive, "").or_else(nothing);
                unsure.unwrap_or_else(|| "nothing was checked".to_owned())
            }
        }
    }

    /// The results that failed.
    pub fn failed(&self) -> impl Iterator<Item = &CheckResult> {
        self.checks.iter().filter(|check| check.is(Outcome::Failed))
    }

    /// The first result that ended so, and how many more there are.
    fn first_of(&self, outcome: Outcome, lead: &str) -> Option<String> {
        let mut all = self.checks.iter().filter(|check| check.is(outcome)).map(CheckResult::describe);
        let first = lead.to_owned() + &all.next()?;
        let more = match all.count() {
            0 => String::new(),
            n => format!("; and {n} more"),
        };
        // What a worker wrote goes into Events and terminals: nothing in it may move a cursor.
        let mut line: String = first.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        cut(&mut line, SUMMARY_LIMIT - more.len());
        Some(line + &more)
    }

    fn count_passed(&self) -> String {
        let kept = self.checks.iter().filter(|check| check.is(Outcome::Passed)).count();
        match kept + self.left_out as usize {
            1 => "1 check".to_owned(),
            n => format!("{n} checks"),
        }
    }
}

/// Reads what a worker left. A node that is not to be trusted may have written it, so it is believed only if it is
/// whole and says the same thing twice: in its verdict and in its checks.
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

/// A node answers for names, and for its way to the pods of cluster DNS, only where cluster DNS is known to run. Where
/// that was asked and not affirmed, what failed for want of a name is inconclusive; and no node is to blame for how many
/// endpoints cluster DNS has.
fn excuse(results: &mut [CheckResult]) {
    let is_cluster_dns = |check: &CheckResult| check.name == "services" && check.target == CLUSTER_DNS;
    // A server that was asked by its address says nothing about the pod's resolver.
    let is_resolved =
        |check: &CheckResult| check.name == "dns" && check.is(Outcome::Passed) && !check.target.contains('@');
    let names_resolve = results.iter().any(is_resolved) && !results.iter().any(is_failed_name);
    excuse_peers(results);
    let Some(service) = results.iter_mut().find(|check| is_cluster_dns(check)) else { return };
    if matches!(service.outcome, Outcome::Passed | Outcome::Skipped) {
        return;
    }
    let why = service.reason.clone();
    match why.as_str() {
        // Names resolve, so there is one; it is only called something else here.
        reason::NOT_FOUND if names_resolve => service.outcome = Outcome::Skipped,
        reason::NOT_FOUND | reason::TOO_FEW_READY_ENDPOINTS => service.outcome = Outcome::Inconclusive,
        reason::NO_READY_ENDPOINTS => service.excuse_by(reason::CLUSTER_DNS_NOT_RUNNING),
        _ => {}
    }
    for check in results.iter_mut().filter(|check| is_failed_name(check)) {
        if why == reason::NO_READY_ENDPOINTS {
            check.excuse_by(reason::CLUSTER_DNS_NOT_RUNNING);
        } else {
            check.outcome = Outcome::Inconclusive;
            let seen = if check.message.is_empty() { "failed" } else { &check.message };
            check.message = format!("{seen}; and whether cluster DNS runs well could not be told: {why}");
        }
    }
}

/// Its pods are the usual peers. Where none of them is ready nobody can be connected to, whatever one that was ready a
/// moment ago did.
fn excuse_peers(results: &mut [CheckResult]) {
    let none_ready = |check: &CheckResult| {
        check.target == CLUSTER_DNS
            && [reason::NO_READY_ENDPOINTS, reason::CLUSTER_DNS_NOT_RUNNING].contains(&check.reason.as_str())
    };
    if !results.iter().any(none_ready) {
        return;
    }
    let peers = results.iter_mut().filter(|check| check.name == "peers" && check.target == CLUSTER_DNS);
    for check in peers.filter(|check| matches!(check.outcome, Outcome::Failed | Outcome::Inconclusive)) {
        if check.reason != reason::CLUSTER_DNS_NOT_RUNNING {
            check.excuse_by(reason::CLUSTER_DNS_NOT_RUNNING);
        }
    }
}

/// Whether a check failed in a way that cluster DNS can be the cause of.
fn is_failed_name(check: &CheckResult) -> bool {
    let needs_name = match check.name.as_str() {
        "dns" => true,
        "tcp" | "http" => {
            host_of(&check.target).parse::<IpAddr>().is_err() && NAME_FAILS.contains(&check.reason.as_str())
        }
        _ => false,
    };
    needs_name && check.is(Outcome::Failed)
}

/// The host of `host:port` or of a URL, without brackets.
fn host_of(target: &str) -> &str {
    let place = target.split_once("://").map_or(target, |(_, rest)| rest.split('/').next().unwrap_or(rest));
    if let Some(inner) = place.strip_prefix('[') {
        return inner.split(']').next().unwrap_or(inner);
    }
    place.rsplit_once(':').map_or(place, |(host, _)| host)
}

/// Keeps so many characters.
fn cut(text: &mut String, characters: usize) {
    if let Some((end, _)) = text.char_indices().nth(characters) {
        text.truncate(end);
    }
}

#[cfg(test)]
mod tests;
