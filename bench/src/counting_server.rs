//! An API server on a TLS port that records requests: the embedded one, except for the Nodes of a fleet, which are too
//! many to store. They can be listed, watched and read, and change at the rate of real heartbeats.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use futures::stream::{self, Stream, StreamExt as _};
use http::{Request, Response, header};
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use nodekeeper_sim::{Cluster, server};
use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until};
use tokio_rustls::TlsAcceptor;

use crate::fleet::{Change, Fleet, HEARTBEAT};

const CA_FILE: &str = "ca.crt";

/// The number of requests by verb and resource: `PATCH nodes`, `WATCH pods`.
pub type Counts = BTreeMap<String, u64>;

pub fn count(requests: &[RecordedRequest]) -> Counts {
    let mut counts = Counts::new();
    for request in requests {
        *counts.entry(request.what.clone()).or_default() += 1;
    }
    counts
}

/// A request, as it arrived.
#[derive(Clone)]
pub struct RecordedRequest {
    pub at: Instant,
    /// The token of the client's kubeconfig.
    pub client: String,
    /// Verb and resource, as in [`Counts`].
    pub what: String,
    /// After the `?` of its address.
    pub query: String,
    pub body: Bytes,
    /// How many bytes of response bodies the client had been sent before.
    pub received: u64,
}

/// Stops when dropped.
pub struct CountingServer {
    address: SocketAddr,
    folder: PathBuf,
    inside: Arc<ServerState>,
    serving: JoinHandle<()>,
}

struct ServerState {
    cluster: Cluster,
    fleet: Option<Arc<Fleet>>,
    requests: Mutex<Vec<RecordedRequest>>,
    /// Bytes of response bodies by client.
    sent: Mutex<BTreeMap<String, Arc<AtomicU64>>>,
    /// How often every node was sent to a client.
    lists: Arc<AtomicU64>,
}

impl CountingServer {
    /// Listens on a loopback port and writes its certificate authority into the folder.
    pub async fn start(cluster: &Cluster, fleet: Option<Fleet>, folder: &Path) -> Result<Self> {
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
        let address = listener.local_addr()?;
        let (acceptor, authority) = identity(address)?;
        std::fs::write(folder.join(CA_FILE), authority)?;
        let fleet = fleet.map(Arc::new);
        let inside = Arc::new(ServerState {
            cluster: cluster.clone(),
            fleet,
            requests: Mutex::default(),
            sent: Mutex::default(),
            lists: Arc::default(),
        });
        let serving = tokio::spawn(accept(inside.clone(), listener, acceptor));
        Ok(Self { address, folder: folder.to_owned(), inside, serving })
    }

    /// Writes a kubeconfig whose token identifies the client in [`RecordedRequest::client`].
    pub fn kubeconfig(&self, client: &str) -> Result<PathBuf> {
        let cluster = json!({"server": format!("https://{}", self.address), "certificate-authority": self.folder.join(CA_FILE)});
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "bench",
            "clusters": [{"name": "bench", "cluster": cluster}],
            "users": [{"name": client, "user": {"token": client}}],
            "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": client}}],
        });
        let file = self.folder.join(format!("{client}.kubeconfig"));
        std::fs::write(&file, text.to_string())?;
        Ok(file)
    }

    pub fn fleet(&self) -> Option<&Fleet> {
        self.inside.fleet.as_deref()
    }

    /// How often every node was sent to a client.
    pub fn lists(&self) -> u64 {
        self.inside.lists.load(Ordering::Relaxed)
    }

    pub fn requests(&self) -> Vec<RecordedRequest> {
        self.inside.requests.lock().clone()
    }

    /// The bytes of response bodies that a client has been sent.
    pub fn sent_to(&self, client: &str) -> u64 {
        self.inside.sent_to(client).load(Ordering::Relaxed)
    }

    pub fn counts(&self) -> Counts {
        count(&self.requests())
    }
}

impl Drop for CountingServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

fn identity(address: SocketAddr) -> Result<(TlsAcceptor, String)> {
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
    let key = KeyPair::generate()?;
    let certificate = CertificateParams::new(vec![address.ip().to_string()])?.signed_by(&key, &authority)?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config =
        rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)?;
    Ok((TlsAcceptor::from(Arc::new(config)), authority.pem()))
}

async fn accept(inside: Arc<ServerState>, listener: TcpListener, acceptor: TlsAcceptor) {
    // Owned here, so that connections end with the listener.
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        if let Ok((stream, _)) = listener.accept().await {
            connections.spawn(serve_connection(inside.clone(), stream, acceptor.clone()));
        }
    }
}

async fn serve_connection(inside: Arc<ServerState>, stream: TcpStream, acceptor: TlsAcceptor) {
    let _ = stream.set_nodelay(true);
    let Ok(stream) = acceptor.accept(stream).await else { return };
    let service = service_fn(move |request| {
        let inside = inside.clone();
        async move { inside.serve(request).await }
    });
    // Errors of a connection concern only its client.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

impl ServerState {
    async fn serve(&self, request: Request<Incoming>) -> Result<Response<server::Body>> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.context("the request is incomplete")?.to_bytes();
        let request = Request::from_parts(parts, body);
        let sent = self.record(&request);
        let of_fleet = self.fleet.as_ref().and_then(|fleet| nodes(fleet, &self.lists, &request));
        let response = of_fleet.unwrap_or_else(|| {
            let answer = server::answer(&self.cluster, "bench", &request, None);
            server::respond(&self.cluster, answer)
        });
        Ok(response.map(|body| {
            let counted = body.map_frame(move |frame| {
                let bytes = frame.data_ref().map_or(0, Bytes::len);
                sent.fetch_add(u64::try_from(bytes).unwrap_or_default(), Ordering::Relaxed);
                frame
            });
            counted.boxed_unsync()
        }))
    }

    /// Records the request, and returns the counter of the client's bytes.
    fn record(&self, request: &Request<Bytes>) -> Arc<AtomicU64> {
        let token = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let client = token.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default().to_owned();
        let sent = self.sent_to(&client);
        let received = sent.load(Ordering::Relaxed);
        let recorded = RecordedRequest {
            at: Instant::now(),
            client,
            what: what(request),
            query: request.uri().query().unwrap_or_default().to_owned(),
            body: request.body().clone(),
            received,
        };
        self.requests.lock().push(recorded);
        sent
    }

    fn sent_to(&self, client: &str) -> Arc<AtomicU64> {
        let mut sent = self.sent.lock();
        sent.entry(client.to_owned()).or_default().clone()
    }
}

fn what<B>(request: &Request<B>) -> String {
    let parts: Vec<&str> = request.uri().path().trim_matches('/').split('/').collect();
    let rest = match parts.as_slice() {
        ["api", _, rest @ ..] | ["apis", _, _, rest @ ..] => rest,
        other => other,
    };
    let (resource, name) = match rest {
        ["namespaces", _, resource, name @ ..] | [resource, name @ ..] => (*resource, name),
        [] => ("", rest),
    };
    let verb = match request.method().as_str() {
        "GET" if query(request, "watch").is_some() => "WATCH",
        "GET" if name.is_empty() => "LIST",
        verb => verb,
    };
    match name {
        [_, subresource] => format!("{verb} {resource}/{subresource}"),
        _ => format!("{verb} {resource}"),
    }
}

/// The value of a query parameter; values are not decoded.
fn query<'a, B>(request: &'a Request<B>, key: &str) -> Option<&'a str> {
    let pairs = request.uri().query().unwrap_or_default().split('&');
    pairs.filter_map(|pair| pair.split_once('=')).find(|(name, _)| *name == key).map(|(_, value)| value)
}

/// The response of the fleet; `None` if the request is not for it.
fn nodes(
    fleet: &Arc<Fleet>,
    lists: &Arc<AtomicU64>,
    request: &Request<Bytes>,
) -> Option<Response<server::Body>> {
    let rest = request.uri().path().strip_prefix("/api/v1/nodes")?;
    if request.method() != http::Method::GET {
        return None;
    }
    if let Some(name) = rest.strip_prefix('/') {
        let index = fleet.find(name)?;
        return Some(json_response(Full::new(fleet.node(index, fleet.version()).into()).boxed_unsync()));
    }
    if query(request, "watch").is_none() {
        return Some(json_response(Full::new(page(fleet, lists, request).into()).boxed_unsync()));
    }
    let seconds = query(request, "timeoutSeconds").and_then(|text| text.parse().ok()).unwrap_or(300);
    let lines = heartbeats(fleet.clone(), Instant::now() + Duration::from_secs(seconds));
    let lines = match query(request, "sendInitialEvents") {
        Some(_) => all(fleet.clone(), lists.clone()).chain(lines).boxed(),
        None => lines.boxed(),
    };
    let frames = lines.map(|line| Ok::<_, Infallible>(Frame::data(Bytes::from(line))));
    Some(json_response(StreamBody::new(frames).boxed_unsync()))
}

fn json_response(body: server::Body) -> Response<server::Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}

fn page<B>(fleet: &Fleet, lists: &AtomicU64, request: &Request<B>) -> String {
    let number = |key| query(request, key).and_then(|text| text.parse::<usize>().ok());
    let from = number("continue").unwrap_or(0);
    let end = number("limit").map_or(fleet.nodes, |limit| fleet.nodes.min(from + limit));
    let token = if end < fleet.nodes { end.to_string() } else { String::new() };
    lists.fetch_add(token.is_empty().into(), Ordering::Relaxed);
    let items: Vec<String> = (from..end).map(|index| fleet.node(index, fleet.version())).collect();
    let version = fleet.version();
    format!(
        r#"{{"kind":"NodeList","apiVersion":"v1","metadata":{{"resourceVersion":"{version}","continue":"{token}"}},"items":[{}]}}"#,
        items.join(",")
    )
}

fn event(kind: &str, object: &str) -> String {
    format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n")
}

/// All nodes, followed by the bookmark.
fn all(fleet: Arc<Fleet>, lists: Arc<AtomicU64>) -> impl Stream<Item = String> {
    stream::iter(0..=fleet.nodes).map(move |index| {
        let version = fleet.version();
        if index < fleet.nodes {
            return event("ADDED", &fleet.node(index, version));
        }
        lists.fetch_add(1, Ordering::Relaxed);
        let annotations = r#"{"k8s.io/initial-events-end":"true"}"#;
        event("BOOKMARK", &format!(
            r#"{{"kind":"Node","apiVersion":"v1","metadata":{{"resourceVersion":"{version}","annotations":{annotations},"creationTimestamp":null}}}}"#
        ))
    })
}

/// What a watch of the fleet sends next.
struct Heartbeats {
    fleet: Arc<Fleet>,
    changes: broadcast::Receiver<Change>,
    pace: Duration,
    /// The node whose heartbeat is next, and when.
    next: (usize, Instant),
    /// The next node of a [`Change::Round`].
    round: Option<usize>,
    end: Instant,
}

/// Each node once in five minutes, evenly spread, and changes at once.
fn heartbeats(fleet: Arc<Fleet>, end: Instant) -> impl Stream<Item = String> {
    let pace = HEARTBEAT / u32::try_from(fleet.nodes.max(1)).unwrap_or(u32::MAX);
    let (changes, next) = (fleet.changes(), (0, Instant::now() + pace));
    let all = Heartbeats { fleet, changes, pace, next, round: None, end };
    stream::unfold(all, |mut all| async move { all.line().await.map(|line| (line, all)) })
}

impl Heartbeats {
    async fn line(&mut self) -> Option<String> {
        let node = loop {
            if let Some(index) = self.round {
                if index < self.fleet.nodes {
                    self.round = Some(index + 1);
                    break index;
                }
                self.fleet.round_ended();
                (self.round, self.next.1) = (None, Instant::now() + self.pace);
            }
            let (index, at) = self.next;
            let is_over = at >= self.end || self.fleet.nodes == 0;
            tokio::select! {
                biased;
                change = next_change(&mut self.changes) => match change {
                    Change::Node(index) => break index,
                    Change::Round => self.round = Some(0),
                    Change::Expired => {
                        self.end = Instant::now();
                        return Some(event("ERROR", EXPIRED));
                    }
                },
                () = sleep_until(at.min(self.end)), if !is_over => {
                    self.next = ((index + 1) % self.fleet.nodes, at + self.pace);
                    break index;
                }
                () = sleep_until(self.end), if is_over => return None,
            }
        };
        Some(event("MODIFIED", &self.fleet.node(node, self.fleet.next_version())))
    }
}

const EXPIRED: &str = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"too old resource version","reason":"Expired","code":410}"#;

async fn next_change(changes: &mut broadcast::Receiver<Change>) -> Change {
    loop {
        match changes.recv().await {
            Ok(change) => return change,
            Err(broadcast::error::RecvError::Lagged(_)) => {}
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(method: &str, uri: &str) -> String {
        what(&Request::builder().method(method).uri(uri).body(()).expect("it is well formed"))
    }

    #[test]
    fn requests_are_classified() {
        assert_eq!(asked("PATCH", "/api/v1/nodes/a"), "PATCH nodes");
        assert_eq!(asked("GET", "/api/v1/nodes?watch=true&x=y"), "WATCH nodes");
        assert_eq!(asked("GET", "/api/v1/nodes?limit=1"), "LIST nodes");
        assert_eq!(asked("POST", "/api/v1/namespaces/ns/pods"), "POST pods");
        assert_eq!(asked("PATCH", "/apis/g/v1/gates/a/status"), "PATCH gates/status");
        assert_eq!(asked("PUT", "/apis/coordination.k8s.io/v1/namespaces/ns/leases/l"), "PUT leases");
    }

    #[tokio::test]
    async fn pages_and_initial_events_contain_all_nodes() {
        let fleet = Arc::new(Fleet::new(25, "gate"));
        let (mut found, mut token) = (0, String::new());
        loop {
            let uri = format!("/api/v1/nodes?limit=10&continue={token}");
            let request = Request::builder().uri(uri).body(()).expect("it is well formed");
            let list: serde_json::Value =
                serde_json::from_str(&page(&fleet, &AtomicU64::default(), &request)).expect("it is JSON");
            found += list["items"].as_array().expect("it is a list").len();
            token = list["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
            if token.is_empty() {
                break;
            }
        }
        assert_eq!(found, 25);
        let lines: Vec<String> = all(fleet, Arc::default()).collect().await;
        assert_eq!(lines.len(), 26);
        assert!(lines[25].contains("initial-events-end"));
    }
}
