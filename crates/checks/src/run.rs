//! All checks at once, each with its own time and all with one.

use std::time::Duration;

use futures::future::join_all;
use nodekeeper_core::checks::{Assignment, Subject};
use nodekeeper_core::report::{CheckResult, Outcome, Report, reason};
use tokio::time::{Instant, timeout_at};

use crate::net::{Net, Trouble};
use crate::plan::{self, Target};
use crate::{api, dns, services, tcp};

/// What one check found, before it is known how long it took.
pub(crate) struct Finding {
    outcome: Outcome,
    reason: &'static str,
    message: String,
}

impl Finding {
    pub(crate) fn new(outcome: Outcome, reason: &'static str, message: impl Into<String>) -> Self {
        Self { outcome, reason, message: message.into() }
    }

    pub(crate) fn passed(message: String) -> Self {
        Self::new(Outcome::Passed, "", message)
    }

    pub(crate) fn trouble(trouble: &Trouble) -> Self {
        Self::new(trouble.outcome(), trouble.reason(), trouble.to_string())
    }
}

/// Does all checks of an assignment at once. One that takes longer than a check may has failed; one that the overall
/// deadline cuts off is inconclusive, and so is an assignment that makes no sense. What needs a cluster where there is
/// none is skipped when it is run by hand; somebody who is waiting for a verdict must not take it for one.
pub async fn run(net: &impl Net, assignment: &Assignment) -> Report {
    let subject = assignment.subject.clone();
    let targets = match plan::list(assignment) {
        Ok(targets) => targets,
        Err(error) => return misconfigured(subject, &error),
    };
    let start = Instant::now();
    let by_hand = subject == Subject::default();
    let limits = Limits {
        check: Duration::from_secs(assignment.check_timeout_seconds.into()),
        all: Duration::from_secs(assignment.deadline_seconds.into()),
        start,
    };
    let results = join_all(targets.iter().map(|target| look(net, target, &limits, by_hand))).await;
    Report::judge(subject, results, millis(start))
}

/// The report of a worker that was told something that makes no sense.
#[must_use]
pub fn misconfigured(subject: Subject, error: &impl ToString) -> Report {
    let told = error.to_string();
    let result =
        CheckResult::new("configuration", "", Outcome::Inconclusive, reason::BAD_CONFIGURATION, &told);
    Report::judge(subject, vec![result], 0)
}

struct Limits {
    check: Duration,
    all: Duration,
    start: Instant,
}

async fn look(net: &impl Net, target: &Target, limits: &Limits, by_hand: bool) -> CheckResult {
    let api_server = net.api_server();
    let described = target.describe(api_server.as_ref());
    let finding = if target.needs_cluster() && api_server.is_none() {
        let (outcome, reason) = if by_hand {
            (Outcome::Skipped, "NotInCluster")
        } else {
            (Outcome::Inconclusive, reason::NO_CLIENT)
        };
        Finding::new(outcome, reason, "KUBERNETES_SERVICE_HOST is not set: not inside a cluster")
    } else {
        let end = limits.start + limits.check.min(limits.all);
        match timeout_at(end, ask(net, target, api_server)).await {
            Ok(finding) => finding,
            Err(_) => limits.cut_off(),
        }
    };
    CheckResult {
        ms: millis(limits.start),
        ..CheckResult::new(target.name(), &described, finding.outcome, finding.reason, &finding.message)
    }
}

impl Limits {
    fn cut_off(&self) -> Finding {
        if self.all < self.check {
            let message = format!("not done when the {} s of the worker were over", self.all.as_secs());
            Finding::new(Outcome::Inconclusive, reason::DEADLINE_EXCEEDED, message)
        } else {
            let message = format!("no answer within {} s", self.check.as_secs());
            Finding::new(Outcome::Failed, reason::TIMEOUT, message)
        }
    }
}

async fn ask(net: &impl Net, target: &Target, api_server: Option<(String, u16)>) -> Finding {
    match (target, api_server) {
        (Target::Dns(name), _) => dns::check(net, name).await,
        (Target::Api, _) => api::check(net).await,
        (Target::Tcp(Some((host, port))), _) => tcp::check(net, host, *port).await,
        (Target::Tcp(None), Some((host, port))) => tcp::check(net, &host, port).await,
        (Target::Tcp(None), None) => Finding::trouble(&Trouble::Unreachable("no API server".into())),
        (Target::Service(service), _) => services::check(net, service).await,
    }
}

fn millis(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::Answer;
    use nodekeeper_core::checks::{Checks, Dns, Services, Tcp};
    use nodekeeper_core::report::Verdict;
    use serde_json::{Value, json};
    use std::net::{IpAddr, Ipv4Addr};
    use tokio::time::sleep;

    /// A network where everything takes a second, names that begin with `slow` a minute.
    struct Fake {
        in_cluster: bool,
        status: u16,
        ready: usize,
    }

    const GOOD: Fake = Fake { in_cluster: true, status: 200, ready: 1 };

    impl Net for Fake {
        async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, Trouble> {
            sleep(Duration::from_secs(if name.starts_with("slow") { 60 } else { 1 })).await;
            match name {
                "none." => Ok(vec![]),
                "missing." => Err(Trouble::NxDomain),
                _ => Ok(vec![Ipv4Addr::LOCALHOST.into()]),
            }
        }

        async fn connect(&self, _: &str, port: u16) -> Result<(), Trouble> {
            sleep(Duration::from_secs(1)).await;
            if port == 81 { Err(Trouble::Refused) } else { Ok(()) }
        }

        async fn api(&self, path: &str, body: Option<&Value>) -> Result<Answer, Trouble> {
            sleep(Duration::from_millis(500)).await;
            assert_eq!(body.is_some(), path.ends_with("selfsubjectreviews"), "{path}");
            let endpoints: Vec<_> = (0..self.ready).map(|n| json!({"addresses": [n.to_string()]})).collect();
            let body =
                json!({"status": {"userInfo": {"username": "worker"}}, "items": [{"endpoints": endpoints}]});
            Ok(Answer { status: self.status, body: body.to_string().into_bytes() })
        }

        fn api_server(&self) -> Option<(String, u16)> {
            self.in_cluster.then(|| ("10.96.0.1".into(), 443))
        }
    }

    fn dns(names: &[&str]) -> Assignment {
        let names = names.iter().map(ToString::to_string).collect();
        Assignment {
            checks: Checks { dns: Some(Dns { names }), ..Checks::default() },
            ..Assignment::default()
        }
    }

    fn told(report: &Report) -> Vec<(&str, Outcome, &str)> {
        report.checks.iter().map(|c| (c.target.as_str(), c.outcome, c.reason.as_str())).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn all_checks_run_at_once() {
        let names: Vec<String> = (0..16).map(|n| format!("name-{n}.")).collect();
        let report = run(&GOOD, &dns(&names.iter().map(String::as_str).collect::<Vec<_>>())).await;
        assert_eq!((report.verdict, report.checks.len()), (Verdict::Passed, 16));
        assert!(report.ms >= 1000 && report.ms < 1010, "16 checks of a second took {} ms", report.ms);
    }

    #[tokio::test(start_paused = true)]
    async fn the_default_assignment_passes_where_all_is_well() {
        let report = run(&GOOD, &Assignment::default()).await;
        assert_eq!(report.verdict, Verdict::Passed, "{report:?}");
        assert_eq!(report.checks[2].target, "10.96.0.1:443");
    }

    #[tokio::test(start_paused = true)]
    async fn a_check_that_takes_too_long_fails_and_holds_up_no_other() {
        let report = run(&GOOD, &dns(&["slow.", "fast."])).await;
        assert_eq!(
            told(&report),
            [("slow.", Outcome::Failed, reason::TIMEOUT), ("fast.", Outcome::Passed, "")]
        );
        assert_eq!((report.checks[0].ms / 1000, report.checks[1].ms / 1000), (10, 1));
        assert_eq!(report.summary(), "dns slow.: Timeout (no answer within 10 s)");
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_deadline_cuts_off_is_inconclusive() {
        let assignment = Assignment { deadline_seconds: 5, ..dns(&["slow.", "fast."]) };
        let report = run(&GOOD, &assignment).await;
        assert_eq!(told(&report)[0], ("slow.", Outcome::Inconclusive, reason::DEADLINE_EXCEEDED));
        assert_eq!((report.verdict, report.ms / 1000), (Verdict::Inconclusive, 5));
    }

    #[tokio::test(start_paused = true)]
    async fn names_without_addresses_fail() {
        let report = run(&GOOD, &dns(&["none.", "missing."])).await;
        let failed = |target, reason| (target, Outcome::Failed, reason);
        assert_eq!(
            told(&report),
            [failed("none.", reason::NO_ADDRESS), failed("missing.", reason::NX_DOMAIN)]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_connection_fails() {
        let tcp = Some(Tcp { targets: vec!["[fd00::1]:81".into(), "a.test:80".into()] });
        let assignment = Assignment { checks: Checks { tcp, ..Checks::default() }, ..Assignment::default() };
        let report = run(&GOOD, &assignment).await;
        assert_eq!(
            told(&report),
            [("[fd00::1]:81", Outcome::Failed, reason::REFUSED), ("a.test:80", Outcome::Passed, "")]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn outside_a_cluster_what_needs_one_is_skipped() {
        use Outcome::{Passed, Skipped};
        let report = run(&Fake { in_cluster: false, ..GOOD }, &Assignment::default()).await;
        let outcomes: Vec<_> = report.checks.iter().map(|c| c.outcome).collect();
        assert_eq!(outcomes, [Passed, Skipped, Skipped, Skipped, Skipped]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_does_not_pass_by_names_alone() {
        let mut assignment = Assignment::default();
        assignment.subject.node_uid = "a-uid".into();
        let report = run(&Fake { in_cluster: false, ..GOOD }, &assignment).await;
        assert_eq!(report.verdict, Verdict::Inconclusive);
        let told = report.checks[1..].iter().map(|c| (c.outcome, c.reason.as_str()));
        assert!(told.eq([(Outcome::Inconclusive, reason::NO_CLIENT); 4]), "{report:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_answers_of_the_api_server_mean() {
        use Outcome::{Failed, Inconclusive};
        let checks = Checks {
            api: Some(nodekeeper_core::checks::Api {}),
            services: Some(Services::default()),
            ..Checks::default()
        };
        let assignment = Assignment { checks, ..Assignment::default() };
        for (status, api, service, reason) in [
            (401, Failed, Failed, reason::UNAUTHORIZED),
            (403, Inconclusive, Inconclusive, reason::FORBIDDEN),
            (404, Inconclusive, Failed, reason::NOT_FOUND),
            (429, Inconclusive, Inconclusive, reason::SERVER_ERROR),
            (503, Inconclusive, Inconclusive, reason::SERVER_ERROR),
            (418, Inconclusive, Inconclusive, reason::BAD_ANSWER),
        ] {
            let report = run(&Fake { status, ..GOOD }, &assignment).await;
            assert_eq!(told(&report)[0], ("10.96.0.1:443", api, reason), "{status}");
            assert_eq!(told(&report)[1], ("default/kubernetes", service, reason), "{status}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn ready_endpoints_are_needed() {
        let mut services = Services::default();
        services.targets[0].min_ready = 2;
        let checks = Checks { services: Some(services), ..Checks::default() };
        let assignment = Assignment { checks, ..Assignment::default() };
        let one = run(&GOOD, &assignment).await;
        assert_eq!(
            told(&one),
            [
                ("default/kubernetes", Outcome::Failed, reason::TOO_FEW_READY_ENDPOINTS),
                ("kube-system/kube-dns", Outcome::Passed, "")
            ]
        );
        let none = run(&Fake { ready: 0, ..GOOD }, &assignment).await;
        assert_eq!(
            told(&none),
            [
                ("default/kubernetes", Outcome::Failed, reason::NO_READY_ENDPOINTS),
                ("kube-system/kube-dns", Outcome::Inconclusive, reason::CLUSTER_DNS_NOT_RUNNING)
            ]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_assignment_that_makes_no_sense_says_nothing_about_the_node() {
        let report = run(&GOOD, &dns(&["10.0.0.1"])).await;
        assert_eq!((report.verdict, report.exit_code()), (Verdict::Inconclusive, 2));
        assert!(report.summary().contains("10.0.0.1"), "{}", report.summary());
    }
}
