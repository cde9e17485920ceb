//! The HTTP endpoints of the controller: `/metrics`, and `/healthz` and `/readyz` for the kubelet.
//!
//! A connection serves one request within 10 s. If too many are open, the oldest is closed, so that slow clients do not
//! keep others out.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tracing::info;

use crate::clock::Clock;
use crate::health::Health;
use crate::metrics::{Format, Metrics};

/// Largest number of open connections; a kubelet and two Prometheus servers need three.
const MAX_CONNECTIONS: usize = 64;
/// For a whole connection; the default timeout of a Prometheus scrape is the same.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// For the head of the request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Largest head of a request in bytes; hyper accepts no smaller limit.
const MAX_HEAD_BYTES: usize = 8192;

/// The value of a `--*-bind-address` flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bind {
    /// `0`: do not listen.
    Disabled,
    /// `:8080`: listen on all addresses.
    AllAddresses(u16),
    /// `127.0.0.1:8080`: listen on one address.
    Address(SocketAddr),
}

impl FromStr for Bind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "0" {
            return Ok(Self::Disabled);
        }
        let port = text.strip_prefix(':').map(str::parse);
        match (port, text.parse()) {
            (Some(Ok(port)), _) => Ok(Self::AllAddresses(port)),
            (_, Ok(address)) => Ok(Self::Address(address)),
            _ => Err("use a port such as :8080, an address such as 127.0.0.1:8080, or 0 to disable".into()),
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{flag} {address}: cannot listen: {source}; use another port, or 0 to disable")]
pub struct ListenError {
    flag: &'static str,
    address: SocketAddr,
    source: io::Error,
}

/// Listens on an address; returns none if the flag is `0`.
///
/// # Errors
/// If the address is in use, or is not an address of this machine.
pub async fn listen(flag: &'static str, bind: Bind) -> Result<Option<TcpListener>, ListenError> {
    let (first, fallback) = match bind {
        Bind::Disabled => return Ok(None),
        Bind::Address(address) => (address, None),
        // `::` accepts IPv4 too; `0.0.0.0` is for machines without IPv6.
        Bind::AllAddresses(port) => {
            let any = |ip: IpAddr| SocketAddr::new(ip, port);
            (any(Ipv6Addr::UNSPECIFIED.into()), Some(any(Ipv4Addr::UNSPECIFIED.into())))
        }
    };
    let no_ipv6 = |error: &io::Error| {
        error.kind() == io::ErrorKind::AddrNotAvailable || error.kind() == io::ErrorKind::Unsupported
    };
    let (address, opened) = match (TcpListener::bind(first).await, fallback) {
        (Err(error), Some(fallback)) if no_ipv6(&error) || error.raw_os_error() == Some(EAFNOSUPPORT) => {
            (fallback, TcpListener::bind(fallback).await)
        }
        (opened, _) => (first, opened),
    };
    opened.map(Some).map_err(|source| ListenError { flag, address, source })
}

/// The error number on Linux, for which the standard library has no `ErrorKind`.
const EAFNOSUPPORT: i32 = 97;

/// What the endpoints serve.
#[derive(Clone, Debug)]
pub struct AdminState {
    pub metrics: Arc<Metrics>,
    pub health: Arc<Health>,
    /// The clock that heartbeats are measured on.
    pub clock: Clock,
}

/// The paths that one listener serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// `/metrics`.
    Metrics,
    /// `/healthz` and `/readyz`.
    Probes,
}

impl Endpoint {
    fn paths(self) -> &'static str {
        match self {
            Self::Metrics => "/metrics",
            Self::Probes => "/healthz and /readyz",
        }
    }
}

/// Serves an endpoint until the future is dropped.
pub async fn serve(listener: TcpListener, endpoint: Endpoint, state: AdminState) {
    if let Ok(address) = listener.local_addr() {
        info!(%address, paths = endpoint.paths(), "listening");
    }
    // Dropped with this future, so that connections end with the listener.
    let mut connections = JoinSet::new();
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        // Both causes pass: the client closed the connection, or too many files are open.
        let Ok((stream, _)) = listener.accept().await else {
            sleep(Duration::from_millis(50)).await;
            continue;
        };
        while connections.try_join_next().is_some() {}
        open.retain(|connection| !connection.is_finished());
        if open.len() >= MAX_CONNECTIONS
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        open.push_back(connections.spawn(serve_connection(stream, endpoint, state.clone())));
    }
}

async fn serve_connection(stream: TcpStream, endpoint: Endpoint, state: AdminState) {
    let service = service_fn(move |request| {
        let response = state.respond(endpoint, &request);
        async move { Ok::<_, Infallible>(response) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    // An error on a connection concerns its client only.
    let _ = timeout(CONNECTION_TIMEOUT, connection).await;
}

impl AdminState {
    fn respond<B>(&self, endpoint: Endpoint, request: &Request<B>) -> Response<Full<Bytes>> {
        if ![Method::GET, Method::HEAD].contains(request.method()) {
            let mut refused = plain(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are allowed");
            refused.headers_mut().insert(header::ALLOW, header::HeaderValue::from_static("GET, HEAD"));
            return refused;
        }
        let now = self.clock.elapsed();
        match (endpoint, request.uri().path()) {
            (Endpoint::Metrics, "/metrics") => self.scrape(request, now),
            (Endpoint::Probes, "/healthz") => probe(self.health.alive(now).map(|()| "ok")),
            (Endpoint::Probes, "/readyz") => probe(self.health.ready(now)),
            _ => plain(StatusCode::NOT_FOUND, &format!("not found; this port serves {}", endpoint.paths())),
        }
    }

    fn scrape<B>(&self, request: &Request<B>, now: Duration) -> Response<Full<Bytes>> {
        let accept = request.headers().get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
        let format = Format::from_accept(accept.unwrap_or_default());
        self.metrics.set_ready(self.health.ready(now).is_ok());
        match self.metrics.render(format) {
            Ok(text) => response(StatusCode::OK, format.content_type(), text),
            Err(_) => plain(StatusCode::INTERNAL_SERVER_ERROR, "cannot encode the metrics"),
        }
    }
}

fn probe(result: Result<&str, String>) -> Response<Full<Bytes>> {
    match result {
        Ok(message) => plain(StatusCode::OK, message),
        Err(message) => plain(StatusCode::SERVICE_UNAVAILABLE, &message),
    }
}

fn plain(status: StatusCode, line: &str) -> Response<Full<Bytes>> {
    response(status, "text/plain; charset=utf-8", format!("{line}\n"))
}

fn response(status: StatusCode, content_type: &'static str, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    let content_type = header::HeaderValue::from_static(content_type);
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}
