//! The HTTP endpoints on real sockets, with slow and malformed clients.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nodekeeper_operator::clock::Clock;
use nodekeeper_operator::http::{AdminState, Bind, Endpoint, listen, serve};
use nodekeeper_operator::metrics::GATE;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// The limits of the server.
const MAX_CONNECTIONS: usize = 64;
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_HEAD_BYTES: usize = 8192;

struct Served {
    address: SocketAddr,
    state: AdminState,
    // Ends the server with the test.
    _task: JoinSet<()>,
}

async fn served(endpoint: Endpoint) -> Served {
    let loopback = "127.0.0.1:0".parse().expect("it is an address");
    let listener = listen("--test", loopback).await.expect("any port will do").expect("it is enabled");
    let address = listener.local_addr().expect("it listens");
    let state = AdminState { metrics: Arc::default(), health: Arc::default(), clock: Clock::real() };
    let mut task = JoinSet::new();
    task.spawn(serve(listener, endpoint, state.clone()));
    state.metrics.register_controller(GATE, 32);
    Served { address, state, _task: task }
}

impl Served {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("it listens")
    }

    /// Sends bytes and reads until the server closes.
    async fn send(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect().await;
        // The server may close the connection before everything is sent.
        let _ = stream.write_all(bytes).await;
        read(stream).await
    }

    async fn get(&self, path: &str, headers: &str) -> String {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: test\r\n{headers}\r\n").as_bytes()).await
    }
}

async fn read(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    let reading = stream.read_to_end(&mut answer);
    // Longer than the connection timeout of the server.
    let _ = timeout(CONNECTION_TIMEOUT * 2, reading).await.expect("the server never closed");
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn bind_addresses_are_parsed() {
    assert_eq!("0".parse(), Ok(Bind::Disabled));
    assert_eq!(":8080".parse(), Ok(Bind::AllAddresses(8080)));
    assert_eq!("127.0.0.1:0".parse(), Ok(Bind::Address(SocketAddr::from(([127, 0, 0, 1], 0)))));
    assert!(matches!("[::1]:8080".parse(), Ok(Bind::Address(_))));
    for wrong in ["", "8080", ":", ":99999", "localhost:8080", "10.0.0.1"] {
        let error = wrong.parse::<Bind>().unwrap_err();
        assert!(error.contains(":8080") && error.contains("0 to disable"), "{wrong}: {error}");
    }
}

#[tokio::test]
async fn f02_metrics_are_served() {
    let served = served(Endpoint::Metrics).await;
    served.state.metrics.observe_worker_start("default", Duration::from_secs(1));
    let answer = served.get("/metrics", "").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains("content-type: text/plain; version=0.0.4"), "{answer}");
    assert!(
        answer.contains("nodekeeper_worker_start_duration_seconds_count{gate=\"default\"} 1\n"),
        "{answer}"
    );
    assert!(answer.contains("# TYPE workqueue_adds_total counter\n"), "{answer}");
    assert!(!answer.contains("# EOF"), "{answer}");
}

#[tokio::test]
async fn openmetrics_is_served_on_request() {
    let served = served(Endpoint::Metrics).await;
    let prometheus = "Accept: application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.1\r\n";
    let answer = served.get("/metrics", prometheus).await;
    assert!(answer.contains("content-type: application/openmetrics-text; version=1.0.0"), "{answer}");
    assert!(answer.contains("# TYPE workqueue_adds counter\n") && answer.ends_with("# EOF\n"), "{answer}");
    for other in ["Accept: */*\r\n", "Accept: application/openmetrics-text;q=0\r\n"] {
        let answer = served.get("/metrics", other).await;
        assert!(answer.contains("content-type: text/plain; version=0.0.4"), "{other}{answer}");
    }
}

#[tokio::test]
async fn f21_probes_say_why_they_fail() {
    let served = served(Endpoint::Probes).await;
    assert!(served.get("/healthz", "").await.starts_with("HTTP/1.1 200"));
    let answer = served.get("/readyz", "").await;
    assert!(
        answer.starts_with("HTTP/1.1 503") && answer.ends_with("the lease was not read yet\n"),
        "{answer}"
    );
    served.state.health.leads();
    served.state.health.caches(vec!["nodes"]);
    assert!(served.get("/readyz?verbose", "").await.ends_with("these caches are not synced: nodes\n"));
    served.state.health.caches(Vec::new());
    let answer = served.get("/readyz", "").await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("leading\n"), "{answer}");
}

#[tokio::test]
async fn other_paths_and_methods_are_refused() {
    let probes = served(Endpoint::Probes).await;
    let answer = probes.get("/metrics", "").await;
    assert!(answer.starts_with("HTTP/1.1 404") && answer.contains("/healthz and /readyz"), "{answer}");
    let served = served(Endpoint::Metrics).await;
    let answer = served.send(b"POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 405") && answer.contains("allow: GET, HEAD"), "{answer}");
    let answer = served.send(b"HEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("\r\n\r\n"), "{answer}");
}

#[tokio::test]
async fn malformed_and_oversized_requests_are_refused() {
    let served = served(Endpoint::Probes).await;
    assert!(served.send(b"\x16\x03\x01 what is this\r\n\r\n").await.starts_with("HTTP/1.1 400"));
    let endless = format!("GET /healthz HTTP/1.1\r\nX: {}\r\n", "a".repeat(4 * MAX_HEAD_BYTES));
    let answer = served.send(endless.as_bytes()).await;
    assert!(!answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(served.get("/healthz", "").await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn a_client_that_sends_half_a_request_is_closed() {
    let served = served(Endpoint::Probes).await;
    let mut silent = served.connect().await;
    silent.write_all(b"GET /healthz HT").await.unwrap();
    let answer = read(silent).await;
    assert!(!answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn idle_connections_do_not_keep_others_out() {
    let served = served(Endpoint::Probes).await;
    let mut silent = Vec::new();
    for _ in 0..MAX_CONNECTIONS + 20 {
        silent.push(served.connect().await);
    }
    // The server closed the oldest connection at once, without a response and before its timeout.
    assert!(served.get("/healthz", "").await.starts_with("HTTP/1.1 200"));
    let oldest = silent.remove(0);
    assert_eq!(timeout(HEAD_TIMEOUT / 2, read(oldest)).await.expect("the oldest is still open"), "");
}

#[tokio::test]
async fn an_address_in_use_is_reported_with_a_fix() {
    let served = served(Endpoint::Probes).await;
    let error =
        listen("--health-probe-bind-address", Bind::Address(served.address)).await.unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("--health-probe-bind-address {}: cannot listen", served.address)),
        "{error}"
    );
    assert!(error.contains("another port, or 0 to disable"), "{error}");
    assert!(listen("--test", Bind::Disabled).await.unwrap().is_none());
    assert!(listen("--test", Bind::AllAddresses(0)).await.unwrap().is_some());
}
