//! Runs all checks of an assignment at once, within a timeout for each and a deadline for all.

use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::join_all;
use nodekeeper_core::checks::{Assignment, WorkerIdentity};
use nodekeeper_core::report::{CheckResult, Outcome, Report, Verdict, reason};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout_at};

use crate::net::remembered::Remembered;
use crate::net::{Answers, Environment, Net, NetError};
use crate::plan::{self, Need, Target};
use crate::{api, clock, dns, http, mtu, peers, services, tcp};

/// How long optional targets may take after all required ones are done; longer if the worker runs by hand.
const GRACE: Duration = Duration::from_millis(200);
const GRACE_BY_HAND: Duration = Duration::from_secs(2);

/// The result of one check without its duration.
pub(crate) struct Finding {
    pub(crate) outcome: Outcome,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    /// The addresses that a name resolved to.
    pub(crate) addresses: Vec<IpAddr>,
}

impl Finding {
    pub(crate) fn new(outcome: Outcome, reason: &'static str, message: impl Into<String>) -> Self {
        Self { outcome, reason, message: message.into(), addresses: Vec::new() }
    }

    pub(crate) fn passed(message: String) -> Self {
        Self::new(Outcome::Passed, "", message)
    }

    pub(crate) fn from_error(error: &NetError) -> Self {
        Self::new(error.outcome(), error.reason(), error.to_string())
    }

    /// Makes the result inconclusive.
    pub(crate) fn inconclusive(self) -> Self {
        Self { outcome: Outcome::Inconclusive, ..self }
    }
}

/// An event while checks run.
#[derive(Debug)]
pub enum Progress<'a> {
    Started {
        name: &'a str,
        target: &'a str,
    },
    Ended {
        result: &'a CheckResult,
        /// The addresses that a name resolved to.
        addresses: &'a [IpAddr],
    },
}

/// Runs all checks of an assignment at once. A check that exceeds its timeout has failed; one that is cut off by the
/// overall deadline is inconclusive, and so is an invalid assignment. Outside a cluster, checks that need one are
/// skipped if the worker runs by hand; if it runs for a node they are inconclusive.
pub async fn run(net: &impl Net, assignment: &Assignment) -> Report {
    run_with_progress(net, assignment, &|_| {}).await
}

/// Like [`run`], and reports each event.
pub async fn run_with_progress(
    net: &impl Net,
    assignment: &Assignment,
    progress: &(impl Fn(Progress<'_>) + Sync),
) -> Report {
    let identity = assignment.identity.clone();
    let targets = match plan::list(assignment, &net.environment().cluster_domain) {
        Ok(targets) => targets,
        Err(error) => return misconfigured(identity, &error),
    };
    let limits = Limits {
        check: Duration::from_secs(assignment.check_timeout_seconds.into()),
        all: Duration::from_secs(assignment.deadline_seconds.into()),
        start: Instant::now(),
        by_hand: identity == WorkerIdentity::default(),
    };
    let required = Required::new(targets.iter().filter(|target| !target.is_optional()).count());
    let results =
        join_all(targets.iter().map(|target| run_check(net, target, &limits, &required, progress))).await;
    Report::judge(identity, results, millis(limits.start))
}

/// Like [`run_with_progress`], and uses answers about Services again that an earlier run got. A run that does not pass with
/// them is made once more without them.
pub async fn run_again(
    net: &impl Net,
    assignment: &Assignment,
    answers: &Answers,
    progress: &(impl Fn(Progress<'_>) + Sync),
) -> Report {
    answers.take_used();
    let report = run_with_progress(&Remembered { net, answers }, assignment, progress).await;
    if report.verdict == Verdict::Passed || !answers.take_used() {
        return report;
    }
    answers.clear();
    run_with_progress(&Remembered { net, answers }, assignment, progress).await
}

/// Returns the report for an invalid assignment or command line.
#[must_use]
pub fn misconfigured(identity: WorkerIdentity, error: &impl ToString) -> Report {
    let message = error.to_string();
    let result =
        CheckResult::new("configuration", "", Outcome::Inconclusive, reason::BAD_CONFIGURATION, &message);
    Report::judge(identity, vec![result], 0)
}

#[derive(Clone, Copy)]
struct Limits {
    check: Duration,
    all: Duration,
    start: Instant,
    by_hand: bool,
}

/// The number of required targets that are not done.
struct Required {
    left: AtomicUsize,
    done: Notify,
}

impl Required {
    fn new(count: usize) -> Self {
        Self { left: AtomicUsize::new(count), done: Notify::new() }
    }

    fn finish_one(&self) {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.done.notify_waiters();
        }
    }

    async fn wait(&self) {
        let done = self.done.notified();
        if self.left.load(Ordering::Relaxed) > 0 {
            done.await;
        }
    }
}

async fn run_check(
    net: &impl Net,
    target: &Target,
    limits: &Limits,
    required: &Required,
    progress: &(impl Fn(Progress<'_>) + Sync),
) -> CheckResult {
    let environment = net.environment();
    let described = target.describe(environment.api_server.as_ref().ok());
    progress(Progress::Started { name: target.name(), target: &described });
    let mut finding = if let Some(finding) = unavailable(target, &environment, limits.by_hand) {
        finding
    } else {
        tokio::select! {
            biased;
            finding = limits.bound(target, dispatch(net, target, environment, limits.end())) => finding,
            finding = optional_timeout(target, required, limits.grace()) => finding,
        }
    };
    if target.is_optional() && matches!(finding.outcome, Outcome::Failed | Outcome::Inconclusive) {
        finding.outcome = Outcome::Warned;
    }
    let result = CheckResult {
        ms: millis(limits.start),
        ..CheckResult::new(target.name(), &described, finding.outcome, finding.reason, &finding.message)
    };
    progress(Progress::Ended { result: &result, addresses: &finding.addresses });
    if !target.is_optional() {
        required.finish_one();
    }
    result
}

/// Returns the result of a check that cannot run here.
fn unavailable(target: &Target, environment: &Environment, by_hand: bool) -> Option<Finding> {
    let why = match (&environment.api_server, target.need()) {
        (Err(why), _) if target.asks_api() => why.clone(),
        (_, Need::Inside) if by_hand && !environment.inside => {
            "not inside a cluster, so its names and pods are not reachable; use --dns-server to name one of its DNS servers".into()
        }
        _ => return None,
    };
    let (outcome, reason) = if by_hand {
        (Outcome::Skipped, reason::NOT_IN_CLUSTER)
    } else {
        (Outcome::Inconclusive, reason::NO_CLIENT)
    };
    Some(Finding::new(outcome, reason, why))
}

/// Ends an optional target some time after all required ones are done.
async fn optional_timeout(target: &Target, required: &Required, grace: Duration) -> Finding {
    if !target.is_optional() {
        std::future::pending::<()>().await;
    }
    required.wait().await;
    sleep(grace).await;
    Finding::new(Outcome::Failed, reason::TIMEOUT, "no answer before all required checks were done")
}

impl Limits {
    fn end(&self) -> Instant {
        self.start + self.check.min(self.all)
    }

    fn grace(&self) -> Duration {
        if self.by_hand { GRACE_BY_HAND } else { GRACE }
    }

    async fn bound(&self, target: &Target, finding: impl Future<Output = Finding>) -> Finding {
        timeout_at(self.end(), finding).await.unwrap_or_else(|_| self.cut_off(target))
    }

    fn cut_off(&self, target: &Target) -> Finding {
        if self.all < self.check {
            let message = format!("not done within the {} s of the worker", self.all.as_secs());
            return Finding::new(Outcome::Inconclusive, reason::DEADLINE_EXCEEDED, message);
        }
        let message = format!("no answer within {} s", self.check.as_secs());
        let finding = Finding::new(Outcome::Failed, reason::TIMEOUT, message);
        if target.timeout_is_failure() { finding } else { finding.inconclusive() }
    }
}

async fn dispatch(net: &impl Net, target: &Target, environment: Environment, end: Instant) -> Finding {
    match (target, environment.api_server) {
        (Target::Dns(name) | Target::ClusterDns(name) | Target::OptionalDns(name), _) => {
            dns::check(net, name).await
        }
        (Target::DnsServer(server, name), _) => dns::check_server(net, *server, name).await,
        (Target::EachDns(name), _) => dns::check_each(net, name, end).await,
        (Target::Api, _) => api::check(net).await,
        (Target::Tcp(Some((host, port))), _) => tcp::check(net, host, *port).await,
        (Target::Tcp(None), Ok((host, port))) => tcp::check(net, &host, port).await,
        (Target::Tcp(None), Err(why)) => Finding::from_error(&NetError::NoClient(why)),
        (Target::Service(service), _) => services::check(net, service).await,
        (Target::Peers(peers), _) => peers::check(net, peers, end).await,
        (Target::Http(url, expected, ca_file), _) => {
            http::check(net, url, *expected, ca_file.as_deref()).await
        }
        (Target::Clock(max_skew), _) => clock::check(net, *max_skew).await,
        (Target::Mtu(bytes), _) => mtu::check(net, *bytes, end).await,
    }
}

fn millis(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
