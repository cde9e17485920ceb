use super::*;
use proptest::prelude::*;

fn result(name: &str, target: &str, outcome: Outcome, reason: &str) -> CheckResult {
    CheckResult::new(name, target, outcome, reason, "")
}

fn judged(results: Vec<CheckResult>) -> Report {
    Report::judge(WorkerIdentity::default(), results, 7)
}

#[test]
fn verdict_follows_from_outcomes() {
    use Outcome::{Failed, Inconclusive, Passed, Skipped, Warned};
    let table: [(&[Outcome], Verdict); 11] = [
        (&[], Verdict::Inconclusive),
        (&[Skipped], Verdict::Inconclusive),
        (&[Passed], Verdict::Passed),
        (&[Passed, Skipped], Verdict::Passed),
        (&[Passed, Inconclusive], Verdict::Inconclusive),
        (&[Inconclusive, Failed], Verdict::Failed),
        (&[Passed, Failed], Verdict::Failed),
        (&[Skipped, Inconclusive], Verdict::Inconclusive),
        (&[Warned, Passed], Verdict::Passed),
        (&[Warned], Verdict::Inconclusive),
        (&[Warned, Failed], Verdict::Failed),
    ];
    for (outcomes, verdict) in table {
        let results = outcomes.iter().map(|o| result("x", "y", *o, "")).collect();
        assert_eq!(judged(results).verdict, verdict, "{outcomes:?}");
    }
}

#[test]
fn cluster_dns_without_endpoints_is_inconclusive() {
    let report = judged(vec![
        result("dns", "a.", Outcome::Failed, reason::TIMEOUT),
        result("dns", "b.", Outcome::Passed, ""),
        result("services", CLUSTER_DNS, Outcome::Failed, reason::NO_READY_ENDPOINTS),
    ]);
    assert_eq!(report.verdict, Verdict::Inconclusive);
    let reasons: Vec<_> = report.checks.iter().map(|c| (c.outcome, c.reason.as_str())).collect();
    let excused = (Outcome::Inconclusive, reason::CLUSTER_DNS_NOT_RUNNING);
    assert_eq!(reasons, [excused, (Outcome::Passed, ""), excused]);
    assert_eq!(report.checks[0].message, reason::TIMEOUT, "the message keeps the original reason");
}

#[test]
fn cluster_dns_excuses_no_other_failures() {
    let report = judged(vec![
        result("tcp", "10.96.0.1:443", Outcome::Failed, reason::TIMEOUT),
        result("services", CLUSTER_DNS, Outcome::Failed, reason::NO_READY_ENDPOINTS),
    ]);
    assert_eq!(report.verdict, Verdict::Failed);
}

#[test]
fn unknown_cluster_dns_state_is_inconclusive() {
    use Outcome::{Failed, Inconclusive};
    for (outcome, why, stays, verdict) in [
        (Inconclusive, reason::FORBIDDEN, Inconclusive, Verdict::Inconclusive),
        (Inconclusive, reason::NO_CLIENT, Inconclusive, Verdict::Inconclusive),
        (Failed, reason::NOT_FOUND, Inconclusive, Verdict::Inconclusive),
        (Failed, reason::TOO_FEW_READY_ENDPOINTS, Inconclusive, Verdict::Inconclusive),
        (Failed, reason::UNAUTHORIZED, Failed, Verdict::Failed),
    ] {
        let names = result("dns", "a.", Failed, reason::TIMEOUT);
        let report = judged(vec![names, result("services", CLUSTER_DNS, outcome, why)]);
        let results: Vec<_> = report.checks.iter().map(|c| (c.outcome, c.reason.as_str())).collect();
        assert_eq!((results, report.verdict), (vec![(Inconclusive, reason::TIMEOUT), (stays, why)], verdict));
        assert!(report.checks[0].message.ends_with(why), "{report:?}");
    }
}

#[test]
fn too_few_cluster_dns_endpoints_are_inconclusive() {
    let few =
        |target| judged(vec![result("services", target, Outcome::Failed, reason::TOO_FEW_READY_ENDPOINTS)]);
    assert_eq!(few(CLUSTER_DNS).verdict, Verdict::Inconclusive);
    assert_eq!(few("ns/db").verdict, Verdict::Failed);
}

#[test]
fn unresolved_tcp_host_names_are_inconclusive() {
    let verdict = |target, why| {
        let down = result("services", CLUSTER_DNS, Outcome::Failed, reason::NO_READY_ENDPOINTS);
        judged(vec![result("tcp", target, Outcome::Failed, why), down]).verdict
    };
    for why in cluster_dns::UNRESOLVED {
        assert_eq!(verdict("db.example.com:5432", why), Verdict::Inconclusive, "{why}");
    }
    assert_eq!(verdict("db.example.com:5432", reason::REFUSED), Verdict::Failed, "it had an address");
    assert_eq!(verdict("[fd00::1]:443", reason::TIMEOUT), Verdict::Failed);
    assert_eq!(verdict("10.0.0.1:443", reason::TIMEOUT), Verdict::Failed);
}

#[test]
fn unresolved_url_host_names_are_inconclusive() {
    let verdict = |target| {
        let down = result("services", CLUSTER_DNS, Outcome::Failed, reason::NO_READY_ENDPOINTS);
        judged(vec![result("http", target, Outcome::Failed, reason::NX_DOMAIN), down]).verdict
    };
    for name in ["http://a.example/x:1", "https://a.example:8443/", "https://a.example"] {
        assert_eq!(verdict(name), Verdict::Inconclusive, "{name}");
    }
    for address in
        ["http://10.0.0.1/", "https://[fd00::1]/x", "https://[fd00::1]:8443/", "http://10.0.0.1:80"]
    {
        assert_eq!(verdict(address), Verdict::Failed, "{address}");
    }
}

#[test]
fn cluster_dns_peers_without_endpoints_are_inconclusive() {
    let down = || result("services", CLUSTER_DNS, Outcome::Failed, reason::NO_READY_ENDPOINTS);
    let peers = |target, outcome, why| result("peers", target, outcome, why);
    for peer in [
        peers(CLUSTER_DNS, Outcome::Failed, reason::TIMEOUT),
        peers(CLUSTER_DNS, Outcome::Inconclusive, reason::NO_READY_ENDPOINTS),
    ] {
        let report = judged(vec![peer, down()]);
        let excused = |c: &CheckResult| c.reason == reason::CLUSTER_DNS_NOT_RUNNING;
        assert_eq!(report.verdict, Verdict::Inconclusive);
        assert!(report.checks.iter().all(excused), "{report:?}");
    }
    let alone = judged(vec![peers(CLUSTER_DNS, Outcome::Inconclusive, reason::NO_READY_ENDPOINTS)]);
    assert_eq!(alone.checks[0].reason, reason::CLUSTER_DNS_NOT_RUNNING);
    let others = judged(vec![peers("ns/web", Outcome::Failed, reason::TIMEOUT), down()]);
    assert_eq!(others.verdict, Verdict::Failed, "only cluster DNS pods are excused");
    let runs = judged(vec![
        peers(CLUSTER_DNS, Outcome::Failed, reason::TIMEOUT),
        result("services", CLUSTER_DNS, Outcome::Passed, ""),
    ]);
    assert_eq!(runs.verdict, Verdict::Failed);
}

#[test]
fn f22_an_external_name_only_warns() {
    let report = judged(vec![
        result("dns", "kubernetes.default.svc.cluster.local.", Outcome::Passed, ""),
        result("dns", "google.com.", Outcome::Warned, reason::NX_DOMAIN),
    ]);
    assert_eq!((report.verdict, report.exit_code()), (Verdict::Passed, 0));
    assert_eq!(report.summary(), "1 check passed in 7 ms; warning: dns google.com.: NxDomain");
    let dns = crate::checks::Checks::default().resolve().dns.expect("dns is in the default set");
    assert_eq!((dns.names.len(), dns.optional.len()), (0, 0), "the default needs no external name");
}

#[test]
fn unknown_outcomes_of_newer_workers_are_inconclusive() {
    let passed = judged(vec![result("dns", "a.", Outcome::Passed, "")]).to_message(MESSAGE_LIMIT);
    let newer = passed.replace("\"o\":\"Passed\"", "\"o\":\"Splendid\"");
    assert!(matches!(parse(&newer), Err(ParseError::Contradiction { .. })), "it does not pass");
    let inconclusive = newer.replace("\"verdict\":\"Passed\"", "\"verdict\":\"Inconclusive\"");
    assert_eq!(parse(&inconclusive).expect("a report").checks[0].outcome, Outcome::Inconclusive);
    let more = passed.replacen('{', "{\"mood\":\"good\",", 1);
    assert_eq!(parse(&more).expect("unknown keys are ignored").verdict, Verdict::Passed);
}

#[test]
fn dns_failures_count_if_cluster_dns_runs() {
    let report = judged(vec![
        result("dns", "a.", Outcome::Failed, reason::TIMEOUT),
        result("services", CLUSTER_DNS, Outcome::Passed, ""),
    ]);
    assert_eq!(report.verdict, Verdict::Failed);
}

#[test]
fn a_missing_cluster_dns_service_never_fails_a_node() {
    let missing = || result("services", CLUSTER_DNS, Outcome::Failed, reason::NOT_FOUND);
    let resolves = judged(vec![result("dns", "a.", Outcome::Passed, ""), missing()]);
    assert_eq!((resolves.verdict, resolves.checks[1].outcome), (Verdict::Passed, Outcome::Skipped));
    let fails = judged(vec![result("dns", "a.", Outcome::Failed, reason::TIMEOUT), missing()]);
    assert_eq!(fails.verdict, Verdict::Inconclusive);
    let alone = Report::judge(WorkerIdentity::default(), vec![missing()], 1);
    assert_eq!(alone.verdict, Verdict::Inconclusive, "no name was resolved");
    let api = result("api", "", Outcome::Passed, "");
    assert_eq!(
        Report::judge(WorkerIdentity::default(), vec![api, missing()], 1).verdict,
        Verdict::Inconclusive
    );
}

#[test]
fn u09_the_summary_counts_checks_and_not_their_targets() {
    let passed = |name: &str, target: &str| result(name, target, Outcome::Passed, "");
    let services = || ["default/kubernetes", CLUSTER_DNS].map(|target| passed("services", target));
    let mut report =
        judged([passed("dns", "kubernetes."), passed("api", "")].into_iter().chain(services()).collect());
    assert_eq!(report.summary(), "3 checks passed in 7 ms");
    report.left_out = 2;
    assert_eq!(report.summary(), "all checks passed in 7 ms", "the report does not say of which checks");
}

#[test]
fn the_summary_names_the_first_failure() {
    let mut dns = result("dns", "kubernetes.default.svc.cluster.local.", Outcome::Failed, reason::TIMEOUT);
    dns.message = "no answer within 10 s".into();
    let summary = "dns kubernetes.default.svc.cluster.local.: Timeout (no answer within 10 s)";
    let passed = result("api", "", Outcome::Passed, "");
    assert_eq!(judged(vec![passed.clone(), dns.clone()]).summary(), summary);
    assert_eq!(judged(vec![dns.clone(), dns]).summary(), format!("{summary}; and 1 more"));
    assert_eq!(judged(vec![passed]).summary(), "1 check passed in 7 ms");
    assert_eq!(judged(vec![]).summary(), "nothing was checked");
}

#[test]
fn the_summary_is_short_and_has_no_control_codes() {
    let mut wild = result("dns", "x", Outcome::Failed, "Timeout");
    wild.message = format!("\u{1b}[2J\n{}", "ä".repeat(999));
    let line = judged(vec![wild]).summary();
    assert!(line.chars().count() <= SUMMARY_LIMIT && !line.contains(char::is_control), "{line}");
}

#[test]
fn passed_results_are_dropped_before_failed_ones() {
    let mut results: Vec<_> =
        (0..60).map(|i| result("dns", &format!("name-{i}.example.test."), Outcome::Passed, "")).collect();
    results.push(result("api", "10.96.0.1:443", Outcome::Failed, reason::TLS_ERROR));
    let report = parse(&judged(results).to_message(2048)).expect("a report");
    assert_eq!(report.checks.last().map(|c| c.name.as_str()), Some("api"));
    assert_eq!(report.left_out as usize + report.checks.len(), 61);
    assert!(report.left_out > 0);
}

#[test]
fn invalid_messages_are_rejected() {
    let passed = judged(vec![result("dns", "a.", Outcome::Passed, "")]).to_message(MESSAGE_LIMIT);
    assert!(parse(&passed).is_ok());
    let failed_check = passed.replace("\"o\":\"Passed\"", "\"o\":\"Failed\"");
    assert!(matches!(parse(&failed_check), Err(ParseError::Contradiction { .. })));
    let empty = judged(vec![]).to_message(MESSAGE_LIMIT).replace("Inconclusive", "Passed");
    assert!(matches!(parse(&empty), Err(ParseError::Contradiction { .. })));
    let newer = passed.replace("\"v\":1", "\"v\":2");
    assert!(matches!(parse(&newer), Err(ParseError::UnknownVersion(2))));
    assert!(matches!(parse(" \n"), Err(ParseError::Empty)));
    assert!(matches!(parse(&passed[..passed.len() - 1]), Err(ParseError::Malformed(_))));
    assert!(matches!(parse(&" ".repeat(5000).replace(' ', "x")), Err(ParseError::TooLong(5000))));
}

fn outcomes() -> impl Strategy<Value = Outcome> {
    use Outcome::{Failed, Inconclusive, Passed, Skipped, Warned};
    proptest::sample::select(vec![Passed, Failed, Inconclusive, Skipped, Warned])
}

fn results() -> impl Strategy<Value = Vec<CheckResult>> {
    let one = ("[a-z]{1,10}", ".{0,300}", outcomes(), any::<u64>(), "[A-Za-z]{0,20}", ".{0,600}").prop_map(
        |(name, target, outcome, ms, reason, message)| CheckResult {
            name,
            target,
            outcome,
            ms,
            reason,
            message,
        },
    );
    proptest::collection::vec(one, 0..60)
}

fn identities() -> impl Strategy<Value = WorkerIdentity> {
    (".{0,40}", ".{0,40}", "[0-9a-f-]{36}", any::<i64>(), any::<u32>()).prop_map(
        |(node_uid, boot_id, gate_uid, gate_generation, number)| WorkerIdentity {
            node_uid,
            boot_id,
            gate_uid,
            gate_generation,
            number,
        },
    )
}

proptest! {
    #[test]
    fn a_message_fits_and_keeps_verdict_and_identity(
        identity in identities(), results in results(), limit in 1536_usize..=MESSAGE_LIMIT
    ) {
        let report = Report::judge(identity, results, 1);
        let message = report.to_message(limit);
        prop_assert!(message.len() <= limit);
        let back = parse(&message).expect("a report");
        prop_assert_eq!(back.verdict, report.verdict);
        prop_assert_eq!(&back.identity, &report.identity);
        prop_assert_eq!(back.checks.len() + back.left_out as usize, report.checks.len());
    }

    #[test]
    fn a_message_fits_any_limit(results in results(), limit in 0_usize..2048) {
        prop_assert!(judged(results).to_message(limit).len() <= limit);
    }

    #[test]
    fn parsing_never_panics(text in ".{0,200}") {
        let _ = parse(&text);
    }

    #[test]
    fn parsing_a_corrupted_report_never_panics(
        results in results(), at in any::<prop::sample::Index>(), with in any::<char>()
    ) {
        let mut letters: Vec<char> = judged(results).to_message(MESSAGE_LIMIT).chars().collect();
        let at = at.index(letters.len());
        letters[at] = with;
        if let Ok(report) = parse(&letters.iter().collect::<String>()) {
            let _ = report.summary();
        }
    }
}

/// Reports with every key, exactly as commit 6b13452 writes them.
const WRITTEN_BY_6B13452: [&str; 2] = [
    r#"{"v":1,"s":{"nodeUid":"u","bootId":"b","gateUid":"g","gateGeneration":2,"number":7},"verdict":"Failed","ms":5012,"checks":[{"n":"dns","t":"kubernetes.","o":"Failed","ms":5000,"r":"Timeout","m":"no answer"},{"n":"api","o":"Passed","ms":12},{"n":"tcp","t":"example.com:443","o":"Warned","ms":0,"r":"Refused"},{"n":"clock","o":"Skipped","ms":0},{"n":"mtu","o":"Inconclusive","ms":3,"m":"no peer"}],"left":2}"#,
    r#"{"v":1,"s":{"nodeUid":"","bootId":"","gateUid":"","gateGeneration":0,"number":0},"verdict":"Inconclusive","ms":0,"checks":[]}"#,
];

#[test]
fn reports_of_6b13452_round_trip_byte_for_byte() {
    for text in WRITTEN_BY_6B13452 {
        assert_eq!(parse(text).expect("a report").to_message(MESSAGE_LIMIT), text);
    }
    let full = parse(WRITTEN_BY_6B13452[0]).expect("a report");
    assert_eq!((full.identity.number, full.left_out, full.checks.len()), (7, 2, 5));
}
