//! The network as the checks see it.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use nodekeeper_core::report::{Outcome, reason};
use serde::Deserialize;
use serde_json::Value;

use crate::url::Url;

#[cfg(test)]
pub(crate) mod fake;

/// Why something on the network did not work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetError {
    /// No such name.
    #[error("the DNS server says that there is no such name")]
    NxDomain,
    /// The name is there, an address is not.
    #[error("the name has no address")]
    NoAddress,
    /// The DNS server cannot answer.
    #[error("the DNS server answers SERVFAIL")]
    ServFail,
    /// The DNS server does not answer to us.
    #[error("the DNS server answers REFUSED")]
    Declined,
    /// Nobody listens there.
    #[error("nobody listens there")]
    Refused,
    /// No answer.
    #[error("no answer")]
    Timeout,
    /// No DNS server to ask.
    #[error("there is no DNS server to ask: {0}")]
    NoServers(String),
    /// No way there.
    #[error("cannot be reached: {0}")]
    Unreachable(String),
    /// The other side is not who it should be, or does not speak TLS.
    #[error("{0}")]
    Tls(String),
    /// An answer that makes no sense.
    #[error("{0}")]
    BadAnswer(String),
    /// We lack what it takes to ask: a token, an authority.
    #[error("{0}")]
    NoClient(String),
}

impl NetError {
    /// Its name in a report.
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

    /// What it says about the node: what we lack ourselves says nothing.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        if matches!(self, Self::NoClient(_)) { Outcome::Inconclusive } else { Outcome::Failed }
    }
}

/// What the API server said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// When it says that it said so: the `Date` of the answer.
    pub date: Option<String>,
    /// The document, as it came: it may be large, and little of it is wanted.
    pub body: Vec<u8>,
}

impl Answer {
    /// What is wanted of the document; none where it is another.
    pub(crate) fn decode<'a, T: Deserialize<'a>>(&'a self) -> Option<T> {
        serde_json::from_slice(&self.body).ok()
    }
}

/// Where a worker finds itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    /// Host and port of the API server, or why there is none.
    pub api_server: Result<(String, u16), String>,
    /// The node that it runs on; empty where nobody said.
    pub node: String,
    /// Whether names and pods of a cluster can be expected to be there: in a pod they can, on a laptop they cannot.
    pub inside: bool,
    /// The DNS domain of the cluster.
    pub cluster_domain: String,
}

/// A DNS server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// At this address.
    At(SocketAddr),
    /// A pod at this address.
    Pod(SocketAddr),
}

/// How large packets may get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packets {
    /// So small that every path takes them.
    Small,
    /// As large as the path is said to take.
    Full,
}

/// The way into the network. Nothing here needs a timeout of its own: whoever asks stops waiting.
pub trait Net: Send + Sync {
    /// Where we are.
    fn environment(&self) -> Environment;

    /// The time of day by the node's clock, since 1970.
    fn clock(&self) -> Duration;

    /// Asks the DNS servers of the pod for the addresses of a name.
    fn resolve(&self, name: &str) -> impl Future<Output = Result<Vec<IpAddr>, NetError>> + Send;

    /// Asks one DNS server for the addresses of a name, as it is.
    fn resolve_at(
        &self,
        server: Server,
        name: &str,
    ) -> impl Future<Output = Result<Vec<IpAddr>, NetError>> + Send;

    /// Makes a TCP connection, and gives it up at once.
    fn connect(&self, host: &str, port: u16) -> impl Future<Output = Result<(), NetError>> + Send;

    /// The same to a pod, past every Service.
    fn connect_pod(&self, pod: SocketAddr) -> impl Future<Output = Result<(), NetError>> + Send;

    /// Sends a request to the API server with the worker's own token; with a body it is a POST, else a GET.
    fn api(&self, path: &str, body: Option<&Value>) -> impl Future<Output = Result<Answer, NetError>> + Send;

    /// Sends so many bytes to the API server over a connection of its own, and takes an answer of several kilobytes.
    fn bulk(&self, packets: Packets, bytes: usize) -> impl Future<Output = Result<(), NetError>> + Send;

    /// The status that a URL answers a GET with.
    fn get(&self, url: &Url, ca_file: Option<&str>) -> impl Future<Output = Result<u16, NetError>> + Send;
}
