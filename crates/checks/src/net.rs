//! The network interface of the checks.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use nodekeeper_core::report::{Outcome, reason};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};
use url::Url;

#[cfg(test)]
pub(crate) mod fake;
pub(crate) mod remembered;

pub use remembered::Answers;

/// A failed network operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetError {
    #[error("the DNS server says that there is no such name")]
    NxDomain,
    #[error("the name has no address")]
    NoAddress,
    #[error("the DNS server answers SERVFAIL")]
    ServFail,
    /// The DNS server answered REFUSED.
    #[error("the DNS server answers REFUSED")]
    Declined,
    #[error("connection refused")]
    Refused,
    #[error("no answer")]
    Timeout,
    #[error("there is no DNS server to ask: {0}")]
    NoServers(String),
    #[error("cannot be reached: {0}")]
    Unreachable(String),
    #[error("{0}")]
    Tls(String),
    #[error("{0}")]
    BadAnswer(String),
    /// The worker has no token or certificate authority to send the request with.
    #[error("{0}")]
    NoClient(String),
}

impl NetError {
    /// Returns the reason for a report.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NxDomain => reason::NX_DOMAIN,
            Self::NoAddress => reason::NO_ADDRESS,
            Self::ServFail => reason::SERV_FAIL,
            Self::Declined | Self::Refused => reason::REFUSED,
            Self::Timeout => reason::TIMEOUT,
            Self::NoServers(_) => reason::NO_SERVERS,
            Self::Unreachable(_) => reason::UNREACHABLE,
            Self::Tls(_) => reason::TLS_ERROR,
            Self::BadAnswer(_) => reason::BAD_ANSWER,
            Self::NoClient(_) => reason::NO_CLIENT,
        }
    }

    /// Returns `Failed`, or `Inconclusive` if the cause is the worker itself.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        if matches!(self, Self::NoClient(_)) { Outcome::Inconclusive } else { Outcome::Failed }
    }
}

/// A response of the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    /// The `Date` header.
    pub date: Option<String>,
    /// The raw body: it may be large, and only a part of it is decoded.
    pub body: Vec<u8>,
}

impl Answer {
    /// Decodes the body; returns none if it does not match.
    pub(crate) fn decode<'a, T: Deserialize<'a>>(&'a self) -> Option<T> {
        serde_json::from_slice(&self.body).ok()
    }
}

/// What the worker knows of its surroundings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    /// Host and port of the API server, or why it is unknown.
    pub api_server: Result<(String, u16), String>,
    /// The name of the node; empty if unknown.
    pub node: String,
    /// Whether names and pods of the cluster are reachable: true in a pod, false on a laptop.
    pub inside: bool,
    /// The DNS domain of the cluster.
    pub cluster_domain: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    At(SocketAddr),
    Pod(SocketAddr),
}

/// The size of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packets {
    /// Small enough for every path.
    Small,
    /// The MTU of the path.
    Full,
}

/// Waits for the answer to an operation until `end`.
pub(crate) async fn answer_by<T>(
    end: Instant,
    operation: impl Future<Output = Result<T, NetError>>,
) -> Result<T, NetError> {
    timeout_at(end, operation).await.unwrap_or(Err(NetError::Timeout))
}

/// Network operations. They need no timeout of their own: the caller sets one.
pub trait Net: Send + Sync {
    fn environment(&self) -> Environment;

    /// Returns the wall-clock time of the node since 1970.
    fn clock(&self) -> Duration;

    /// Resolves a name with the DNS servers of the pod.
    fn resolve(&self, name: &str) -> impl Future<Output = Result<Vec<IpAddr>, NetError>> + Send;

    /// Resolves a name with one DNS server, without a search list.
    fn resolve_at(
        &self,
        server: Server,
        name: &str,
    ) -> impl Future<Output = Result<Vec<IpAddr>, NetError>> + Send;

    /// Opens a TCP connection and closes it.
    fn connect(&self, host: &str, port: u16) -> impl Future<Output = Result<(), NetError>> + Send;

    /// Opens a TCP connection to a pod address, without a Service.
    fn connect_pod(&self, pod: SocketAddr) -> impl Future<Output = Result<(), NetError>> + Send;

    /// Sends a request to the API server with the token of the worker: a POST if there is a body, otherwise a GET.
    fn api(&self, path: &str, body: Option<&Value>) -> impl Future<Output = Result<Answer, NetError>> + Send;

    /// Sends this many bytes to the API server over a separate connection, and reads a response of several kilobytes.
    fn bulk(&self, packets: Packets, bytes: usize) -> impl Future<Output = Result<(), NetError>> + Send;

    /// Returns the status code of a GET request.
    fn get(&self, url: &Url, ca_file: Option<&str>) -> impl Future<Output = Result<u16, NetError>> + Send;
}
