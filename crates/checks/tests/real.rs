//! The real network, on loopback.

mod servers;

use nodekeeper_checks::net::NetError;
use nodekeeper_checks::real::{Options, Real};
use nodekeeper_checks::{Net as _, Server, run};
use nodekeeper_core::checks::{
    Api, Assignment, Checks, Clock, Dns, Http, HttpTarget, Mtu, Peers, Services, StatusRange,
};
use nodekeeper_core::report::{Outcome, Report, Verdict, reason};
use servers::Certificate::{Good, OtherAuthority, OtherName};
use servers::Dns as Way;

const NAME: &str = "kubernetes.default.svc.cluster.local.";

async fn resolve(way: Way) -> Result<Vec<String>, NetError> {
    let options = Options { dns_servers: vec![servers::dns(way).await], ..Options::default() };
    let found = Real::new(&options).resolve(NAME).await?;
    Ok(found.iter().map(ToString::to_string).collect())
}

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
async fn a_name_resolves_to_its_addresses() {
    assert_eq!(resolve(Way::Answers).await, Ok(vec!["10.96.0.1".to_owned()]));
}

#[tokio::test]
async fn dns_response_codes_map_to_errors() {
    assert_eq!(resolve(Way::Code(3)).await, Err(NetError::NxDomain));
    assert_eq!(resolve(Way::Code(2)).await, Err(NetError::ServFail));
    assert_eq!(resolve(Way::Code(5)).await, Err(NetError::Declined));
    assert_eq!(resolve(Way::Code(0)).await, Err(NetError::NoAddress));
}

#[tokio::test]
async fn a_silent_dns_server_is_a_timeout() {
    let options = Options { dns_servers: vec![servers::dns(Way::Silent).await], ..Options::default() };
    let checks = Checks { dns: Some(Dns::default()), ..Checks::default() };
    assert_eq!(first(&check(&options, checks).await), (Outcome::Failed, reason::TIMEOUT));
}

/// Runs on a paused clock.
#[tokio::test(start_paused = true)]
async fn lost_aaaa_responses_are_a_timeout() {
    let options = Options { dns_servers: vec![servers::dns(Way::OnlyA).await], ..Options::default() };
    let checks = Checks { dns: Some(Dns::default()), ..Checks::default() };
    let assignment =
        Assignment { check_timeout_seconds: 60, deadline_seconds: 90, checks, ..Assignment::default() };
    let report = run(&Real::new(&options), &assignment).await;
    assert_eq!(first(&report), (Outcome::Failed, reason::TIMEOUT), "{report:?}");
}

#[tokio::test]
async fn a_closed_dns_port_is_refused() {
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
async fn a_closed_api_port_is_refused() {
    let mut api = servers::api(200, Good).await;
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    api.options.api_server = Some(("127.0.0.1".into(), closed));
    assert_eq!(first(&check(&api.options, only_api()).await), (Outcome::Failed, reason::REFUSED));
    assert_eq!(Real::new(&api.options).connect("127.0.0.1", closed).await, Err(NetError::Refused));
}

#[tokio::test]
async fn a_silent_api_server_is_a_timeout() {
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
async fn g10_an_unknown_token_is_inconclusive() {
    let api = servers::api(200, Good).await;
    std::fs::write(api.options.token_file.as_ref().unwrap(), "another").unwrap();
    assert_eq!(first(&check(&api.options, only_api()).await), (Outcome::Inconclusive, reason::UNAUTHORIZED));
}

#[tokio::test]
async fn a_missing_token_or_authority_is_inconclusive() {
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
async fn an_invalid_authority_is_inconclusive() {
    let api = servers::api(200, Good).await;
    std::fs::write(api.options.ca_file.as_ref().unwrap(), "not a certificate").unwrap();
    let report = check(&api.options, only_api()).await;
    assert_eq!(first(&report), (Outcome::Inconclusive, reason::NO_CLIENT));
}

#[tokio::test]
async fn server_errors_and_missing_rights_are_inconclusive() {
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

fn http(url: String, ca_file: Option<String>) -> Checks {
    let target = HttpTarget { url, expect_status: StatusRange::default(), ca: None, ca_file };
    Checks { http: Some(Http { targets: vec![target] }), ..Checks::default() }
}

#[tokio::test]
async fn http_status_codes_are_checked() {
    let server = servers::http().await;
    let options = Options::default();
    let found = check(&options, http(format!("http://{server}/"), None)).await;
    assert_eq!((first(&found), found.checks[0].message.as_str()), ((Outcome::Passed, ""), "status 204"));
    let missing = check(&options, http(format!("http://{server}/missing"), None)).await;
    assert_eq!(first(&missing), (Outcome::Failed, reason::UNEXPECTED_STATUS));
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let refused = check(&options, http(format!("http://{closed}/"), None)).await;
    assert_eq!(first(&refused), (Outcome::Failed, reason::REFUSED));
    let options = Options { dns_servers: vec![servers::dns(Way::Code(3)).await], ..options };
    let name = check(&options, http("http://a.test/".into(), None));
    assert_eq!(first(&name.await), (Outcome::Failed, reason::NX_DOMAIN));
}

#[tokio::test]
async fn https_trusts_the_cluster_authority_or_a_file() {
    let api = servers::api(200, Good).await;
    let port = api.options.api_server.as_ref().unwrap().1;
    let url = || format!("https://127.0.0.1:{port}/");
    let any = |ca_file: Option<String>| {
        let mut checks = http(url(), ca_file);
        checks.http.as_mut().unwrap().targets[0].expect_status = StatusRange { min: 401, max: 401 };
        checks
    };
    assert_eq!(first(&check(&api.options, any(None)).await), (Outcome::Passed, ""));
    let file = api.options.ca_file.clone().unwrap().display().to_string();
    let outside = Options::default();
    assert_eq!(first(&check(&outside, any(Some(file))).await), (Outcome::Passed, ""));
    let none = check(&outside, any(None)).await;
    assert_eq!(first(&none), (Outcome::Inconclusive, reason::NO_CLIENT), "no authority is trusted");
    let missing = check(&outside, any(Some("/nowhere/ca".into()))).await;
    assert_eq!(first(&missing), (Outcome::Inconclusive, reason::NO_CLIENT));
    assert!(missing.summary().contains("/nowhere/ca"), "{}", missing.summary());
    let other = servers::api(200, OtherAuthority).await;
    let stranger = http(format!("https://127.0.0.1:{}/", other.options.api_server.as_ref().unwrap().1), None);
    assert_eq!(first(&check(&api.options, stranger).await), (Outcome::Failed, reason::TLS_ERROR));
}

#[tokio::test]
async fn f23_clocks_are_compared() {
    let api = servers::api(200, Good).await;
    let checks = Checks { clock: Some(Clock::default()), ..Checks::default() };
    let report = check(&api.options, checks).await;
    assert_eq!(first(&report), (Outcome::Passed, ""), "{report:?}");
}

#[tokio::test]
async fn f23_an_mtu_black_hole_differs_from_a_silent_server() {
    let mut api = servers::api(200, Good).await;
    let mtu = || Checks { mtu: Some(Mtu::default()), ..Checks::default() };
    assert_eq!(first(&check(&api.options, mtu()).await), (Outcome::Passed, ""));
    let port = api.options.api_server.as_ref().unwrap().1;
    let hole = servers::black_hole(std::net::SocketAddr::from(([127, 0, 0, 1], port))).await;
    api.options.api_server = Some(("127.0.0.1".into(), hole.port()));
    let report = check(&api.options, mtu()).await;
    assert_eq!(first(&report), (Outcome::Failed, reason::MTU_BLACK_HOLE), "{report:?}");
    assert!(report.summary().contains("small packets pass, 32768 bytes"), "{}", report.summary());
    let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    api.options.api_server = Some(("127.0.0.1".into(), mute.local_addr().unwrap().port()));
    assert_eq!(first(&check(&api.options, mtu()).await), (Outcome::Inconclusive, reason::TIMEOUT));
}

#[tokio::test]
async fn f23_peers_accept_connections() {
    let mut api = servers::api(200, Good).await;
    let peers = || Checks {
        peers: Some(Peers { name: "kube-peers".into(), ..Peers::default() }),
        ..Checks::default()
    };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    api.options.pods_at = Some(listener.local_addr().unwrap());
    let report = check(&api.options, peers()).await;
    assert_eq!(first(&report), (Outcome::Passed, ""), "{report:?}");
    assert_eq!(report.checks[0].message, "10.0.0.7:5353 on node-2 in zone-a");
    drop(listener);
    let report = check(&api.options, peers()).await;
    assert_eq!(first(&report), (Outcome::Failed, reason::REFUSED), "{report:?}");
    api.options.node = "node-2".into();
    assert_eq!(first(&check(&api.options, peers()).await), (Outcome::Skipped, reason::NO_PEERS));
}

#[tokio::test]
async fn one_dns_server_is_queried_by_address() {
    let server = servers::dns(Way::Code(3)).await;
    let net = Real::new(&Options::default());
    assert_eq!(net.resolve_at(Server::At(server), NAME).await, Err(NetError::NxDomain));
    let answering = servers::dns(Way::Answers).await;
    let pods = Real::new(&Options { pods_at: Some(answering), ..Options::default() });
    assert!(pods.resolve_at(Server::Pod(server), NAME).await.is_ok(), "it is asked where the pods are");
}

/// Names that end with a dot skip the search list.
#[tokio::test]
async fn f22_a_fully_qualified_name_is_one_query() {
    let (server, asked) = servers::counting_dns().await;
    let options = Options { dns_servers: vec![server], ..Options::default() };
    Real::new(&options).resolve("google.com.").await.unwrap();
    assert_eq!(
        asked.lock().iter().collect::<std::collections::BTreeSet<_>>(),
        [&"google.com".to_owned()].into()
    );
}
