//! On real sockets: what a client may do to a server is done to it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nodekeeper_operator::clock::Clock;
use nodekeeper_operator::http::{Bind, Door, Pages, listen, serve};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// As the server has them.
const CONNECTIONS: usize = 64;
const LASTS: Duration = Duration::from_secs(10);
const HEAD: Duration = Duration::from_secs(5);
const LARGEST_HEAD: usize = 8192;

struct Served {
    address: SocketAddr,
    pages: Pages,
    // Ends the server with the test.
    _task: JoinSet<()>,
}

async fn served(door: Door) -> Served {
    let loopback = "127.0.0.1:0".parse().expect("it is an address");
    let listener = listen("--test", loopback).await.expect("any port will do").expect("it is not off");
    let address = listener.local_addr().expect("it listens");
    let pages = Pages { metrics: Arc::default(), health: Arc::default(), clock: Clock::real() };
    let mut task = JoinSet::new();
    task.spawn(serve(listener, door, pages.clone()));
    Served { address, pages, _task: task }
}

impl Served {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("it listens")
    }

    /// Sends bytes and reads until the server closes.
    async fn send(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect().await;
        // A server that has seen enough may close before all is sent.
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
    // Longer than a connection may last: a server that never closes is found out, and the test ends.
    let _ = timeout(LASTS * 2, reading).await.expect("the server never closed");
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn flags_say_where_in_the_usual_ways() {
    assert_eq!("0".parse(), Ok(Bind::Off));
    assert_eq!(":8080".parse(), Ok(Bind::Everywhere(8080)));
    assert_eq!("127.0.0.1:0".parse(), Ok(Bind::At(SocketAddr::from(([127, 0, 0, 1], 0)))));
    assert!(matches!("[::1]:8080".parse(), Ok(Bind::At(_))));
    for wrong in ["", "8080", ":", ":99999", "localhost:8080", "10.0.0.1"] {
        let error = wrong.parse::<Bind>().unwrap_err();
        assert!(error.contains(":8080") && error.contains("0 for none"), "{wrong}: {error}");
    }
}

#[tokio::test]
async fn f02_what_is_counted_is_what_is_served() {
    let served = served(Door::Metrics).await;
    served.pages.metrics.worker_runs("default", Duration::from_secs(1));
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
async fn openmetrics_is_for_those_who_ask() {
    let served = served(Door::Metrics).await;
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
async fn f21_probes_say_what_is_missing() {
    let served = served(Door::Probes).await;
    assert!(served.get("/healthz", "").await.starts_with("HTTP/1.1 200"));
    let answer = served.get("/readyz", "").await;
    assert!(
        answer.starts_with("HTTP/1.1 503") && answer.ends_with("the lease was not read yet\n"),
        "{answer}"
    );
    served.pages.health.leads();
    served.pages.health.caches(vec!["nodes"]);
    assert!(served.get("/readyz?verbose", "").await.ends_with("these caches are not synced: nodes\n"));
    served.pages.health.caches(Vec::new());
    let answer = served.get("/readyz", "").await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("leading\n"), "{answer}");
}

#[tokio::test]
async fn what_is_not_there_is_refused_in_words() {
    let probes = served(Door::Probes).await;
    let answer = probes.get("/metrics", "").await;
    assert!(answer.starts_with("HTTP/1.1 404") && answer.contains("/healthz and /readyz"), "{answer}");
    let served = served(Door::Metrics).await;
    let answer = served.send(b"POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 405") && answer.contains("allow: GET, HEAD"), "{answer}");
    let answer = served.send(b"HEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("\r\n\r\n"), "{answer}");
}

#[tokio::test]
async fn nonsense_and_endless_heads_do_no_harm() {
    let served = served(Door::Probes).await;
    assert!(served.send(b"\x16\x03\x01 what is this\r\n\r\n").await.starts_with("HTTP/1.1 400"));
    let endless = format!("GET /healthz HTTP/1.1\r\nX: {}\r\n", "a".repeat(4 * LARGEST_HEAD));
    let answer = served.send(endless.as_bytes()).await;
    assert!(!answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(served.get("/healthz", "").await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn one_who_says_nothing_is_let_go() {
    let served = served(Door::Probes).await;
    let mut silent = served.connect().await;
    silent.write_all(b"GET /healthz HT").await.unwrap();
    let answer = read(silent).await;
    assert!(!answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn many_who_say_nothing_keep_nobody_out() {
    let served = served(Door::Probes).await;
    let mut silent = Vec::new();
    for _ in 0..CONNECTIONS + 20 {
        silent.push(served.connect().await);
    }
    // The oldest of them was closed by the server at once, without an answer and before its time was over.
    assert!(served.get("/healthz", "").await.starts_with("HTTP/1.1 200"));
    let oldest = silent.remove(0);
    assert_eq!(timeout(HEAD / 2, read(oldest)).await.expect("the oldest is still open"), "");
}

#[tokio::test]
async fn an_address_that_is_taken_is_named_with_its_fix() {
    let served = served(Door::Probes).await;
    let error =
        listen("--health-probe-bind-address", Bind::At(served.address)).await.unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("--health-probe-bind-address {}: cannot listen", served.address)),
        "{error}"
    );
    assert!(error.contains("another port, or 0 for none"), "{error}");
    assert!(listen("--test", Bind::Off).await.unwrap().is_none());
    assert!(listen("--test", Bind::Everywhere(0)).await.unwrap().is_some());
}
