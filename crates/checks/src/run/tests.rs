use super::*;
use crate::net::fake::{Fake, answer};
use nodekeeper_core::checks::{Checks, Dns, Peers, Services, Tcp};
use nodekeeper_core::report::Verdict;
use serde_json::json;
use std::net::Ipv4Addr;

/// A network that never answers names that begin with `slow`.
fn good() -> Fake<'static> {
    Fake::new().on_resolve(|name| match name.as_str() {
        "none." => Some(Ok(vec![])),
        "missing." => Some(Err(NetError::NxDomain)),
        name => (!name.starts_with("slow")).then(|| Ok(vec![Ipv4Addr::LOCALHOST.into()])),
    })
}

fn dns(names: &[&str]) -> Assignment {
    let names = names.iter().map(ToString::to_string).collect();
    Assignment {
        checks: Checks { dns: Some(Dns { names, ..Dns::default() }), ..Checks::default() },
        ..Assignment::default()
    }
}

fn results(report: &Report) -> Vec<(&str, Outcome, &str)> {
    report.checks.iter().map(|c| (c.target.as_str(), c.outcome, c.reason.as_str())).collect()
}

#[tokio::test(start_paused = true)]
async fn all_checks_run_at_once() {
    let names: Vec<String> = (0..16).map(|n| format!("name-{n}.")).collect();
    let report = run(&good(), &dns(&names.iter().map(String::as_str).collect::<Vec<_>>())).await;
    assert_eq!((report.verdict, report.checks.len()), (Verdict::Passed, 16));
    assert!(report.ms >= 1000 && report.ms < 1010, "16 checks of a second took {} ms", report.ms);
}

#[tokio::test(start_paused = true)]
async fn the_default_assignment_passes_on_a_healthy_network() {
    let report = run(&good(), &Assignment::default()).await;
    assert_eq!(report.verdict, Verdict::Passed, "{report:?}");
    assert_eq!(report.checks[2].target, "10.96.0.1:443");
}

#[tokio::test(start_paused = true)]
async fn a_timeout_fails_one_check_and_delays_no_other() {
    let report = run(&good(), &dns(&["slow.", "fast."])).await;
    assert_eq!(
        results(&report),
        [("slow.", Outcome::Failed, reason::TIMEOUT), ("fast.", Outcome::Passed, "")]
    );
    assert_eq!((report.checks[0].ms / 1000, report.checks[1].ms / 1000), (10, 1));
    assert_eq!(report.summary(), "dns slow.: Timeout (no answer within 10 s)");
}

#[tokio::test(start_paused = true)]
async fn a_check_cut_off_by_the_deadline_is_inconclusive() {
    let assignment = Assignment { deadline_seconds: 5, ..dns(&["slow.", "fast."]) };
    let report = run(&good(), &assignment).await;
    assert_eq!(results(&report)[0], ("slow.", Outcome::Inconclusive, reason::DEADLINE_EXCEEDED));
    assert_eq!((report.verdict, report.ms / 1000), (Verdict::Inconclusive, 5));
}

#[tokio::test(start_paused = true)]
async fn names_without_addresses_fail() {
    let report = run(&good(), &dns(&["none.", "missing."])).await;
    let failed = |target, reason| (target, Outcome::Failed, reason);
    assert_eq!(
        results(&report),
        [failed("none.", reason::NO_ADDRESS), failed("missing.", reason::NX_DOMAIN)]
    );
}

#[tokio::test(start_paused = true)]
async fn a_refused_connection_fails() {
    let tcp = Some(Tcp { targets: vec!["[fd00::1]:81".into(), "a.test:80".into()] });
    let assignment = Assignment { checks: Checks { tcp, ..Checks::default() }, ..Assignment::default() };
    let net = good().on_connect(|(_, port)| Some(if port == 81 { Err(NetError::Refused) } else { Ok(()) }));
    let report = run(&net, &assignment).await;
    assert_eq!(
        results(&report),
        [("[fd00::1]:81", Outcome::Failed, reason::REFUSED), ("a.test:80", Outcome::Passed, "")]
    );
}

#[tokio::test(start_paused = true)]
async fn outside_a_cluster_what_needs_one_is_skipped() {
    use Outcome::Skipped;
    let report = run(&Fake::outside(), &Assignment::default()).await;
    let outcomes: Vec<_> = report.checks.iter().map(|c| c.outcome).collect();
    assert_eq!(outcomes, [Skipped; 6]);
    assert!(report.checks.iter().all(|c| c.reason == reason::NOT_IN_CLUSTER));
    assert_eq!(report.checks[1].message, "no cluster here", "it is said why");
}

#[tokio::test(start_paused = true)]
async fn a_kubeconfig_alone_does_not_make_pods_reachable() {
    use Outcome::{Passed, Skipped};
    let mut net = Fake::new();
    net.environment.inside = false;
    let report = run(&net, &Assignment::default()).await;
    let outcomes: Vec<_> = report.checks.iter().map(|c| c.outcome).collect();
    assert_eq!(outcomes, [Skipped, Passed, Passed, Passed, Passed, Skipped]);
}

#[tokio::test(start_paused = true)]
async fn a_node_does_not_pass_with_names_alone() {
    let mut assignment = Assignment::default();
    assignment.identity.node_uid = "a-uid".into();
    let report = run(&Fake::outside(), &assignment).await;
    assert_eq!(report.verdict, Verdict::Inconclusive);
    let told = report.checks[1..6].iter().map(|c| (c.outcome, c.reason.as_str()));
    assert!(told.eq([(Outcome::Inconclusive, reason::NO_CLIENT); 5]), "{report:?}");
}

#[tokio::test(start_paused = true)]
async fn f22_optional_names_warn_and_add_little_time() {
    let mut assignment = dns(&["fast."]);
    assignment.identity.node_uid = "a-uid".into();
    let names = assignment.checks.dns.as_mut().expect("it is there");
    names.optional = vec!["slow.".into(), "missing.".into(), "there.".into()];
    let report = run(&good(), &assignment).await;
    assert_eq!(
        results(&report),
        [
            ("fast.", Outcome::Passed, ""),
            ("slow.", Outcome::Warned, reason::TIMEOUT),
            ("missing.", Outcome::Warned, reason::NX_DOMAIN),
            ("there.", Outcome::Passed, "")
        ]
    );
    assert_eq!(report.verdict, Verdict::Passed);
    assert!((1200..1300).contains(&report.ms), "required checks took 1 s, all took {} ms", report.ms);
}

#[tokio::test(start_paused = true)]
async fn optional_names_end_with_the_check_timeout() {
    let mut assignment = dns(&["slow."]);
    assignment.checks.dns.as_mut().expect("it is there").optional = vec!["slow.too.".into()];
    let report = run(&good(), &assignment).await;
    assert_eq!(report.ms / 1000, 10, "no required check ended before");
    assert_eq!(results(&report)[1], ("slow.too.", Outcome::Warned, reason::TIMEOUT));
}

#[tokio::test(start_paused = true)]
async fn a_silent_api_server_makes_dependent_checks_inconclusive() {
    let checks = Checks {
        peers: Some(Peers::default()),
        clock: Some(nodekeeper_core::checks::Clock::default()),
        mtu: Some(nodekeeper_core::checks::Mtu::default()),
        dns: Some(Dns { replicas: nodekeeper_core::checks::Replicas::Each, ..Dns::default() }),
        ..Checks::default()
    };
    let assignment = Assignment { check_timeout_seconds: 1, checks, ..Assignment::default() };
    // An endless list, with half a second for each page.
    let net =
        good().on_api(|_, _| (200, json!({"metadata": {"continue": "x"}, "items": []}))).on_bulk(|_| None);
    let report = run(&net, &assignment).await;
    let inconclusive: Vec<_> = report
        .checks
        .iter()
        .filter(|c| c.outcome == Outcome::Inconclusive)
        .map(|c| c.name.as_str())
        .collect();
    assert_eq!(inconclusive, ["dns", "peers", "clock", "mtu"], "{report:?}");
}

#[tokio::test(start_paused = true)]
async fn progress_is_reported_while_checks_run() {
    let lines = parking_lot::Mutex::new(Vec::new());
    let report = |progress: Progress<'_>| {
        let line = match progress {
            Progress::Started { name, target } => format!("{name} {target}"),
            Progress::Ended { result, addresses } => format!("{} {addresses:?}", result.outcome),
        };
        lines.lock().push(line);
    };
    run_with_progress(&good(), &dns(&["a.", "missing."]), &report).await;
    let lines = lines.into_inner();
    assert_eq!(lines, ["dns a.", "dns missing.", "Passed [127.0.0.1]", "Failed []"]);
}

#[tokio::test(start_paused = true)]
async fn g10_api_server_status_codes_map_to_outcomes() {
    use Outcome::{Failed, Inconclusive};
    let checks = Checks {
        api: Some(nodekeeper_core::checks::Api {}),
        services: Some(Services::default()),
        ..Checks::default()
    };
    let assignment = Assignment { checks, ..Assignment::default() };
    for (status, api, service, reason) in [
        (401, Inconclusive, Inconclusive, reason::UNAUTHORIZED),
        (403, Inconclusive, Inconclusive, reason::FORBIDDEN),
        (404, Inconclusive, Failed, reason::NOT_FOUND),
        (429, Inconclusive, Inconclusive, reason::SERVER_ERROR),
        (503, Inconclusive, Inconclusive, reason::SERVER_ERROR),
        (418, Inconclusive, Inconclusive, reason::BAD_ANSWER),
    ] {
        let net = good().on_api(move |_, _| (status, answer(&[("10.0.0.1", "n1", "a")])));
        let report = run(&net, &assignment).await;
        assert_eq!(results(&report)[0], ("10.96.0.1:443", api, reason), "{status}");
        assert_eq!(results(&report)[1], ("default/kubernetes", service, reason), "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_needs_ready_endpoints() {
    let mut services = Services::default();
    services.targets[0].min_ready = 2;
    let checks = Checks { services: Some(services), ..Checks::default() };
    let assignment = Assignment { checks, ..Assignment::default() };
    let with = |ready: &'static [(&str, &str, &str)]| good().on_api(|_, _| (200, answer(ready)));
    let one = run(&with(&[("10.0.0.1", "n1", "a")]), &assignment).await;
    assert_eq!(
        results(&one),
        [
            ("default/kubernetes", Outcome::Failed, reason::TOO_FEW_READY_ENDPOINTS),
            ("kube-system/kube-dns", Outcome::Passed, "")
        ]
    );
    let none = run(&with(&[]), &assignment).await;
    assert_eq!(
        results(&none),
        [
            ("default/kubernetes", Outcome::Failed, reason::NO_READY_ENDPOINTS),
            ("kube-system/kube-dns", Outcome::Inconclusive, reason::CLUSTER_DNS_NOT_RUNNING)
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn an_invalid_assignment_is_inconclusive() {
    let report = run(&good(), &dns(&["10.0.0.1"])).await;
    assert_eq!((report.verdict, report.exit_code()), (Verdict::Inconclusive, 2));
    assert!(report.summary().contains("10.0.0.1"), "{}", report.summary());
}
