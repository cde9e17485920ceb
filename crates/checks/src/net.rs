//! The network as the checks see it.

use std::future::Future;
use std::net::IpAddr;

use nodekeeper_core::report::{Outcome, reason};
use serde::Deserialize;
use serde_json::Value;

/// Why something on the network did not work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// No such name.
    #[error("the DNS server says that there is no such name")]
    NxDomain,
    /// The name is there, an address is not.
    #[error("the name has no address")]
    NoAddress,
    /// The DNS server cannot answer.
    #[error("the DNS server answers SERVFAIL")]
    ServFail,
    /// Nobody listens there, or a DNS server does not answer to us.
    #[error("nobody listens there, or does not answer to us")]
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

impl Trouble {
    /// Its name in a report.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NxDomain => reason::NX_DOMAIN,
            Self::NoAddress => reason::NO_ADDRESS,
            Self::ServFail => reason::SERV_FAIL,
            Self::Refused => reason::REFUSED,
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// The document, as it came: it may be large, and little of it is wanted.
    pub body: Vec<u8>,
}

impl Answer {
    /// What is wanted of the document; none where it is another.
    pub(crate) fn decode<'a, T: Deserialize<'a>>(&'a self) -> Option<T> {
        serde_json::from_slice(&self.body).ok()
    }
}

/// The way into the network. Nothing here needs a timeout of its own: whoever asks stops waiting.
pub trait Net: Send + Sync {
    /// Asks the DNS servers of the pod for the addresses of a name.
    fn resolve(&self, name: &str) -> impl Future<Output = Result<Vec<IpAddr>, Trouble>> + Send;

    /// Makes a TCP connection, and gives it up at once.
    fn connect(&self, host: &str, port: u16) -> impl Future<Output = Result<(), Trouble>> + Send;

    /// Sends a request to the API server with the worker's own token; with a body it is a POST, else a GET.
    fn api(&self, path: &str, body: Option<&Value>) -> impl Future<Output = Result<Answer, Trouble>> + Send;

    /// Where pods find the API server; nowhere outside a cluster.
    fn api_server(&self) -> Option<(String, u16)>;
}
