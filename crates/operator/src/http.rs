//! Two small doors: `/metrics` for those who count, `/healthz` and `/readyz` for the kubelet.
//!
//! One request a connection, ten seconds for all of it, and when too many are open the oldest goes: whoever is slow
//! keeps nobody else out.

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

/// A kubelet and two Prometheus need three.
const CONNECTIONS: usize = 64;
/// For a whole connection. A scrape has as much by default.
const LASTS: Duration = Duration::from_secs(10);
/// For the head of the request.
const HEAD: Duration = Duration::from_secs(5);
/// The least that hyper takes.
const LARGEST_HEAD: usize = 8192;

/// Where to listen, as a flag says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bind {
    /// Nowhere: `0`.
    Off,
    /// On every address of the machine: `:8080`.
    Everywhere(u16),
    /// On this one: `127.0.0.1:8080`.
    At(SocketAddr),
}

impl FromStr for Bind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "0" {
            return Ok(Self::Off);
        }
        let port = text.strip_prefix(':').map(str::parse);
        match (port, text.parse()) {
            (Some(Ok(port)), _) => Ok(Self::Everywhere(port)),
            (_, Ok(address)) => Ok(Self::At(address)),
            _ => Err("give a port such as :8080, an address such as 127.0.0.1:8080, or 0 for none".into()),
        }
    }
}

/// A door that cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("{flag} {address}: cannot listen there: {source}; name another port, or 0 for none")]
pub struct CannotListen {
    flag: &'static str,
    address: SocketAddr,
    source: io::Error,
}

/// Opens a door. None if the flag says so.
///
/// # Errors
/// Where the address is taken or is not ours.
pub async fn listen(flag: &'static str, bind: Bind) -> Result<Option<TcpListener>, CannotListen> {
    let (first, second) = match bind {
        Bind::Off => return Ok(None),
        Bind::At(address) => (address, None),
        // Both families at once, unless the machine has only the older one.
        Bind::Everywhere(port) => {
            let any = |ip: IpAddr| SocketAddr::new(ip, port);
            (any(Ipv6Addr::UNSPECIFIED.into()), Some(any(Ipv4Addr::UNSPECIFIED.into())))
        }
    };
    let no_ipv6 = |error: &io::Error| {
        error.kind() == io::ErrorKind::AddrNotAvailable || error.kind() == io::ErrorKind::Unsupported
    };
    let (address, opened) = match (TcpListener::bind(first).await, second) {
        (Err(error), Some(second)) if no_ipv6(&error) || error.raw_os_error() == Some(NO_SUCH_FAMILY) => {
            (second, TcpListener::bind(second).await)
        }
        (opened, _) => (first, opened),
    };
    opened.map(Some).map_err(|source| CannotListen { flag, address, source })
}

/// EAFNOSUPPORT on Linux: the standard library has no name for it.
const NO_SUCH_FAMILY: i32 = 97;

/// What is behind the doors.
#[derive(Clone, Debug)]
pub struct Pages {
    /// For `/metrics`.
    pub metrics: Arc<Metrics>,
    /// For the probes.
    pub health: Arc<Health>,
    /// The controller's own, on which its heart beats.
    pub clock: Clock,
}

/// Which door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// `/metrics`.
    Metrics,
    /// `/healthz` and `/readyz`.
    Probes,
}

impl Door {
    fn pages(self) -> &'static str {
        match self {
            Self::Metrics => "/metrics",
            Self::Probes => "/healthz and /readyz",
        }
    }
}

/// Answers for ever.
pub async fn serve(listener: TcpListener, door: Door, pages: Pages) {
    if let Ok(address) = listener.local_addr() {
        info!(%address, pages = door.pages(), "Serving");
    }
    // Owned here, so that connections end with the listener.
    let mut connections = JoinSet::new();
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        // A failed accept is the client's (it went away) or the system's (too many files): both pass.
        let Ok((stream, _)) = listener.accept().await else {
            sleep(Duration::from_millis(50)).await;
            continue;
        };
        while connections.try_join_next().is_some() {}
        open.retain(|connection| !connection.is_finished());
        if open.len() >= CONNECTIONS
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        open.push_back(connections.spawn(converse(stream, door, pages.clone())));
    }
}

async fn converse(stream: TcpStream, door: Door, pages: Pages) {
    let service = service_fn(move |request| {
        let answer = pages.answer(door, &request);
        async move { Ok::<_, Infallible>(answer) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(LARGEST_HEAD)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    // A connection that breaks off concerns nobody but its client.
    let _ = timeout(LASTS, connection).await;
}

impl Pages {
    fn answer<B>(&self, door: Door, request: &Request<B>) -> Response<Full<Bytes>> {
        if ![Method::GET, Method::HEAD].contains(request.method()) {
            let mut refused = plain(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD");
            refused.headers_mut().insert(header::ALLOW, header::HeaderValue::from_static("GET, HEAD"));
            return refused;
        }
        let now = self.clock.elapsed();
        match (door, request.uri().path()) {
            (Door::Metrics, "/metrics") => self.numbers(request, now),
            (Door::Probes, "/healthz") => told(self.health.alive(now).map(|()| "ok")),
            (Door::Probes, "/readyz") => told(self.health.ready(now)),
            _ => plain(StatusCode::NOT_FOUND, &format!("there is only {} here", door.pages())),
        }
    }

    fn numbers<B>(&self, request: &Request<B>, now: Duration) -> Response<Full<Bytes>> {
        let accept = request.headers().get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
        let format = Format::accepted(accept.unwrap_or_default());
        self.metrics.healthy(self.health.ready(now).is_ok());
        match self.metrics.render(format) {
            Ok(text) => answer(StatusCode::OK, format.content_type(), text),
            Err(_) => plain(StatusCode::INTERNAL_SERVER_ERROR, "the metrics cannot be written"),
        }
    }
}

fn told(said: Result<&str, String>) -> Response<Full<Bytes>> {
    match said {
        Ok(word) => plain(StatusCode::OK, word),
        Err(missing) => plain(StatusCode::SERVICE_UNAVAILABLE, &missing),
    }
}

fn plain(status: StatusCode, line: &str) -> Response<Full<Bytes>> {
    answer(status, "text/plain; charset=utf-8", format!("{line}\n"))
}

fn answer(status: StatusCode, content_type: &'static str, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    let content_type = header::HeaderValue::from_static(content_type);
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}
