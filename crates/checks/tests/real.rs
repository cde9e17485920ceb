//! The real network, on loopback.

mod servers;

use nodekeeper_checks::net::Trouble;
use nodekeeper_checks::real::{Options, Real};
use nodekeeper_checks::{Net as _, run};
use nodekeeper_core::checks::{Api, Assignment, Checks, Dns, Services};
use nodekeeper_core::report::{Outcome, Report, Verdict, reason};
use servers::Certificate::{Good, OtherAuthority, OtherName};
use servers::Dns as Way;

const NAME: &str = "kubernetes.default.svc.cluster.local.";

async fn resolve(way: Way) -> Result<Vec<String>, Trouble> {
    let options = Options { dns_servers: vec![servers::dns(way).await], ..Options::default() };
    let found = Real::new(&options).resolve(NAME).await?;
    Ok(found.iter().map(ToString::to_string).collect())
}

/// The check of this assignment whose name this is.
async fn check(options: &Options, checks: Checks) -> Report {
    let assignment = Assignment { check_timeout_seconds: 1, checks, ..Assignment::default() };
    run(&Real::new(options), &assignment).await
}

fn only_api() -> Checks {
    Checks { api: Some(Api {}), ..Checks::default() }
}

fn first(report: &Report) -> (Outcome, &str) {
    (report.checks[0].outcome, &report.checks[0].reason)
}

#[tokio::test]
async fn a_name_has_its_addresses() {
    assert_eq!(resolve(Way::Answers).await, Ok(vec!["10.96.0.1".to_owned()]));
}

#[tokio::test]
async fn what_dns_servers_answer_is_told_apart() {
    assert_eq!(resolve(Way::Code(3)).await, Err(Trouble::NxDomain));
    assert_eq!(resolve(Way::Code(2)).await, Err(Trouble::ServFail));
    assert_eq!(resolve(Way::Code(5)).await, Err(Trouble::Refused));
    assert_eq!(resolve(Way::Code(0)).await, Err(Trouble::NoAddress));
}

#[tokio::test]
async fn a_silent_dns_server_is_a_timeout() {
    let options = Options { dns_servers: vec![servers::dns(Way::Silent).await], ..Options::default() };
    let checks = Checks { dns: Some(Dns::default()), ..Checks::default() };
    assert_eq!(first(&check(&options, checks).await), (Outcome::Failed, reason::TIMEOUT));
}

/// On a clock that jumps to the next timer where nothing else is to do.
#[tokio::test(start_paused = true)]
async fn lost_answers_of_one_kind_are_a_timeout_however_long_a_check_may_take() {
    let options = Options { dns_servers: vec![servers::dns(Way::OnlyA).await], ..Options::default() };
    let checks = Checks { dns: Some(Dns::default()), ..Checks::default() };
    let assignment =
        Assignment { check_timeout_seconds: 60, deadline_seconds: 90, checks, ..Assignment::default() };
    let report = run(&Real::new(&options), &assignment).await;
    assert_eq!(first(&report), (Outcome::Failed, reason::TIMEOUT), "{report:?}");
}

#[tokio::test]
async fn a_dns_port_where_nobody_listens_is_no_timeout() {
    let closed = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let options = Options { dns_servers: vec![closed], ..Options::default() };
    let checks = Checks { dns: Some(Dns::default()), ..Checks::default() };
    assert_eq!(first(&check(&options, checks).await), (Outcome::Failed, reason::REFUSED));
}

#[tokio::test]
async fn the_default_assignment_passes() {
    let api = servers::api(200, Good).await;
    let report = run(&Real::new(&api.options), &Assignment::default()).await;
    assert_eq!(report.verdict, Verdict::Passed, "{report:?}");
    assert_eq!(report.checks[1].message, "system:serviceaccount:ns:worker");
}

#[tokio::test]
async fn nobody_listens() {
    let mut api = servers::api(200, Good).await;
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    api.options.api_server = Some(("127.0.0.1".into(), closed));
    assert_eq!(first(&check(&api.options, only_api()).await), (Outcome::Failed, reason::REFUSED));
    assert_eq!(Real::new(&api.options).connect("127.0.0.1", closed).await, Err(Trouble::Refused));
}

#[tokio::test]
async fn somebody_listens_and_says_nothing() {
    let mut api = servers::api(200, Good).await;
    let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    api.options.api_server = Some(("127.0.0.1".into(), mute.local_addr().unwrap().port()));
    assert_eq!(first(&check(&api.options, only_api()).await), (Outcome::Failed, reason::TIMEOUT));
}

#[tokio::test]
async fn a_certificate_of_another_authority_is_not_trusted() {
    let api = servers::api(200, OtherAuthority).await;
    assert_eq!(first(&check(&api.options, only_api()).await), (Outcome::Failed, reason::TLS_ERROR));
}

#[tokio::test]
async fn a_certificate_for_another_name_is_not_trusted() {
    let api = servers::api(200, OtherName).await;
    assert_eq!(first(&check(&api.options, only_api()).await), (Outcome::Failed, reason::TLS_ERROR));
}

#[tokio::test]
async fn a_token_that_nobody_knows() {
    let api = servers::api(200, Good).await;
    std::fs::write(&api.options.token_file, "another").unwrap();
    assert_eq!(first(&check(&api.options, only_api()).await), (Outcome::Failed, reason::UNAUTHORIZED));
}

#[tokio::test]
async fn no_token_and_no_authority_blame_nobody() {
    for file in ["token", "ca.crt"] {
        let api = servers::api(200, Good).await;
        std::fs::remove_file(api.folder.path().join(file)).unwrap();
        let report = check(&api.options, only_api()).await;
        assert_eq!(first(&report), (Outcome::Inconclusive, reason::NO_CLIENT));
        assert!(
            report.summary().contains(file) && report.summary().contains("-file"),
            "{}",
            report.summary()
        );
    }
}

#[tokio::test]
async fn an_authority_that_is_none_blames_nobody() {
    let api = servers::api(200, Good).await;
    std::fs::write(&api.options.ca_file, "not a certificate").unwrap();
    let report = check(&api.options, only_api()).await;
    assert_eq!(first(&report), (Outcome::Inconclusive, reason::NO_CLIENT));
}

#[tokio::test]
async fn an_api_server_in_trouble_and_missing_rights_blame_nobody() {
    for (status, reason) in [(500, reason::SERVER_ERROR), (403, reason::FORBIDDEN)] {
        let api = servers::api(status, Good).await;
        let checks = Checks { services: Some(Services::default()), ..only_api() };
        let report = check(&api.options, checks).await;
        assert_eq!(report.verdict, Verdict::Inconclusive);
        assert!(report.checks.iter().all(|c| c.reason == reason), "{report:?}");
    }
}

#[tokio::test]
async fn one_connection_serves_many_requests() {
    let api = servers::api(200, Good).await;
    let net = Real::new(&api.options);
    for _ in 0..50 {
        let answer = net.api("/api/v1/namespaces/default/services/kubernetes", None).await.unwrap();
        assert_eq!(answer.status, 200);
    }
}
