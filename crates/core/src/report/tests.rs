use super::*;
use proptest::prelude::*;

fn result(name: &str, target: &str, outcome: Outcome, reason: &str) -> CheckResult {
    CheckResult::new(name, target, outcome, reason, "")
}

fn judged(results: Vec<CheckResult>) -> Report {
    Report::judge(WorkerIdentity::default(), results, 7)
}

#[test]
fn verdicts() {
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
fn a_node_is_not_blamed_for_cluster_dns_that_does_not_run() {
    let report = judged(vec![
        result("dns", "a.", Outcome::Failed, reason::TIMEOUT),
        result("dns", "b.", Outcome::Passed, ""),
        result("services", CLUSTER_DNS, Outcome::Failed, reason::NO_READY_ENDPOINTS),
    ]);
    assert_eq!(report.verdict, Verdict::Inconclusive);
    let reasons: Vec<_> = report.checks.iter().map(|c| (c.outcome, c.reason.as_str())).collect();
    let excused = (Outcome::Inconclusive, reason::CLUSTER_DNS_NOT_RUNNING);
    assert_eq!(reasons, [excused, (Outcome::Passed, ""), excused]);
    assert_eq!(report.checks[0].message, reason::TIMEOUT, "what was seen is still told");
}

#[test]
fn other_failures_are_not_excused_by_it() {
    let report = judged(vec![
        result("tcp", "10.96.0.1:443", Outcome::Failed, reason::TIMEOUT),
        result("services", CLUSTER_DNS, Outcome::Failed, reason::NO_READY_ENDPOINTS),
    ]);
    assert_eq!(report.verdict, Verdict::Failed);
}

#[test]
fn a_node_is_not_blamed_where_nobody_knows_whether_cluster_dns_runs() {
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
        let told: Vec<_> = report.checks.iter().map(|c| (c.outcome, c.reason.as_str())).collect();
        assert_eq!((told, report.verdict), (vec![(Inconclusive, reason::TIMEOUT), (stays, why)], verdict));
        assert!(report.checks[0].message.ends_with(why), "{report:?}");
    }
}

#[test]
fn too_few_endpoints_of_cluster_dns_are_no_nodes_fault() {
    let few =
        |target| judged(vec![result("services", target, Outcome::Failed, reason::TOO_FEW_READY_ENDPOINTS)]);
    assert_eq!(few(CLUSTER_DNS).verdict, Verdict::Inconclusive);
    assert_eq!(few("ns/db").verdict, Verdict::Failed);
}

#[test]
fn a_connection_to_a_host_name_is_excused_as_a_name_is() {
    let verdict = |target, why| {
        let down = result("services", CLUSTER_DNS, Outcome::Failed, reason::NO_READY_ENDPOINTS);
        judged(vec![result("tcp", target, Outcome::Failed, why), down]).verdict
    };
    for why in NAME_FAILS {
        assert_eq!(verdict("db.example.com:5432", why), Verdict::Inconclusive, "{why}");
    }
    assert_eq!(verdict("db.example.com:5432", reason::REFUSED), Verdict::Failed, "it had an address");
    assert_eq!(verdict("[fd00::1]:443", reason::TIMEOUT), Verdict::Failed);
    assert_eq!(verdict("10.0.0.1:443", reason::TIMEOUT), Verdict::Failed);
}

#[test]
fn a_url_with_a_host_name_is_excused_as_a_name_is() {
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
fn peers_are_not_missed_where_cluster_dns_does_not_run() {
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
    assert_eq!(others.verdict, Verdict::Failed, "other pods are no excuse");
    let runs = judged(vec![
        peers(CLUSTER_DNS, Outcome::Failed, reason::TIMEOUT),
        result("services", CLUSTER_DNS, Outcome::Passed, ""),
    ]);
    assert_eq!(runs.verdict, Verdict::Failed);
}

#[test]
fn f22_an_optional_name_is_reported_and_never_fails() {
    let report = judged(vec![
        result("dns", "kubernetes.default.svc.cluster.local.", Outcome::Passed, ""),
        result("dns", "google.com.", Outcome::Warned, reason::NX_DOMAIN),
    ]);
    assert_eq!((report.verdict, report.exit_code()), (Verdict::Passed, 0));
    assert_eq!(report.summary(), "1 check passed in 7 ms; warning: dns google.com.: NxDomain");
    let dns = crate::checks::Checks::default().resolve().dns.expect("dns is in the default set");
    assert_eq!(
        (dns.names.len(), dns.optional.len()),
        (0, 0),
        "the default needs no name outside the cluster"
    );
}

#[test]
fn an_outcome_of_a_newer_worker_counts_for_nobody() {
    let passed = judged(vec![result("dns", "a.", Outcome::Passed, "")]).to_message(MESSAGE_LIMIT);
    let newer = passed.replace("\"o\":\"Passed\"", "\"o\":\"Splendid\"");
    assert!(matches!(parse(&newer), Err(ParseError::Contradiction { .. })), "it opens nothing");
    let unsure = newer.replace("\"verdict\":\"Passed\"", "\"verdict\":\"Inconclusive\"");
    assert_eq!(parse(&unsure).expect("it can be read").checks[0].outcome, Outcome::Inconclusive);
    let more = passed.replacen('{', "{\"mood\":\"good\",", 1);
    assert_eq!(parse(&more).expect("what is new is passed over").verdict, Verdict::Passed);
}

#[test]
fn names_fail_the_node_where_cluster_dns_runs() {
    let report = judged(vec![
        result("dns", "a.", Outcome::Failed, reason::TIMEOUT),
        result("services", CLUSTER_DNS, Outcome::Passed, ""),
    ]);
    assert_eq!(report.verdict, Verdict::Failed);
}

#[test]
fn cluster_dns_by_another_name_is_none_of_the_nodes_business() {
    let missing = || result("services", CLUSTER_DNS, Outcome::Failed, reason::NOT_FOUND);
    let resolves = judged(vec![result("dns", "a.", Outcome::Passed, ""), missing()]);
    assert_eq!((resolves.verdict, resolves.checks[1].outcome), (Verdict::Passed, Outcome::Skipped));
    let fails = judged(vec![result("dns", "a.", Outcome::Failed, reason::TIMEOUT), missing()]);
    assert_eq!(fails.verdict, Verdict::Inconclusive);
    let alone = Report::judge(WorkerIdentity::default(), vec![missing()], 1);
    assert_eq!(alone.verdict, Verdict::Inconclusive, "no name was asked for, so nobody knows");
    let api = result("api", "", Outcome::Passed, "");
    assert_eq!(
        Report::judge(WorkerIdentity::default(), vec![api, missing()], 1).verdict,
        Verdict::Inconclusive
    );
}

#[test]
fn the_summary_names_the_first_failure() {
    let mut dns = result("dns", "kubernetes.default.svc.cluster.local.", Outcome::Failed, reason::TIMEOUT);
    dns.message = "no answer within 10 s".into();
    let told = "dns kubernetes.default.svc.cluster.local.: Timeout (no answer within 10 s)";
    let passed = result("api", "", Outcome::Passed, "");
    assert_eq!(judged(vec![passed.clone(), dns.clone()]).summary(), told);
    assert_eq!(judged(vec![dns.clone(), dns]).summary(), format!("{told}; and 1 more"));
    assert_eq!(judged(vec![passed]).summary(), "1 check passed in 7 ms");
    assert_eq!(judged(vec![]).summary(), "nothing was checked");
}

#[test]
fn the_summary_moves_no_cursor_and_stays_short() {
    let mut wild = result("dns", "x", Outcome::Failed, "Timeout");
    wild.message = format!("\u{1b}[2J\n{}", "ä".repeat(999));
    let line = judged(vec![wild]).summary();
    assert!(line.chars().count() <= SUMMARY_LIMIT && !line.contains(char::is_control), "{line}");
}

#[test]
fn what_passed_goes_before_what_failed() {
    let mut results: Vec<_> =
        (0..60).map(|i| result("dns", &format!("name-{i}.example.test."), Outcome::Passed, "")).collect();
    results.push(result("api", "10.96.0.1:443", Outcome::Failed, reason::TLS_ERROR));
    let report = parse(&judged(results).to_message(2048)).expect("it is a report");
    assert_eq!(report.checks.last().map(|c| c.name.as_str()), Some("api"));
    assert_eq!(report.left_out as usize + report.checks.len(), 61);
    assert!(report.left_out > 0);
}

#[test]
fn what_is_no_report() {
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

fn subjects() -> impl Strategy<Value = WorkerIdentity> {
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
    fn a_message_fits_and_keeps_verdict_and_subject(
        identity in subjects(), results in results(), limit in 1536_usize..=MESSAGE_LIMIT
    ) {
        let report = Report::judge(identity, results, 1);
        let message = report.to_message(limit);
        prop_assert!(message.len() <= limit);
        let back = parse(&message).expect("what we write we can read");
        prop_assert_eq!(back.verdict, report.verdict);
        prop_assert_eq!(&back.identity, &report.identity);
        prop_assert_eq!(back.checks.len() + back.left_out as usize, report.checks.len());
    }

    #[test]
    fn a_message_fits_any_limit(results in results(), limit in 0_usize..2048) {
        prop_assert!(judged(results).to_message(limit).len() <= limit);
    }

    #[test]
    fn anything_can_be_read_without_a_panic(text in ".{0,200}") {
        let _ = parse(&text);
    }

    #[test]
    fn a_report_with_a_wound_can_be_read_without_a_panic(
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
