//! How the API server is reached: from here, and from the cluster's other components.

use std::{ffi::OsString, net::TcpListener, os::fd::OwnedFd, path::Path};

use anyhow::Context as _;
use tokio::net::TcpSocket;

use super::run::Run;
use crate::nodes::network::{self, API_PORT, CONTROL_PLANE, Namespace};

/// Where the API server listens.
pub(super) enum Endpoint {
    /// On this machine's loopback, where everybody is.
    Loopback(ReservedPort),
    /// In a network of the cluster's own; we get there through a port on loopback.
    Forwarded { port: u16, namespace: Namespace },
}

impl Endpoint {
    pub(super) fn loopback() -> anyhow::Result<Self> {
        Ok(Self::Loopback(ReservedPort::new()?))
    }

    /// Makes the network, and starts what forwards connections into it. `testtool` does that: it has a listening
    /// socket of our network, which it keeps, as its stdin, and runs in the other.
    pub(super) fn forwarded(run: &mut Run, testtool: &Path) -> anyhow::Result<Self> {
        let namespace = Namespace::create(run.launcher(), "control-plane")?;
        network::build_control_plane(&namespace)?;
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("no free port on loopback")?;
        let port = listener.local_addr()?.port();
        let mut words = namespace.prefix();
        let target = format!("{CONTROL_PLANE}:{API_PORT}");
        words.extend([testtool.into(), OsString::from("forward"), target.into()]);
        run.spawn("forwarder", &words, OwnedFd::from(listener).into())?;
        Ok(Self::Forwarded { port, namespace })
    }

    /// The URL for us.
    pub(super) fn outside(&self) -> String {
        match self {
            Self::Loopback(ReservedPort { number: port, .. }) | Self::Forwarded { port, .. } => {
                format!("https://127.0.0.1:{port}")
            }
        }
    }

    /// The URL for the cluster's components.
    pub(super) fn inside(&self) -> String {
        match self {
            Self::Loopback(_) => self.outside(),
            Self::Forwarded { .. } => format!("https://{CONTROL_PLANE}:{API_PORT}"),
        }
    }

    /// What to write before a command so that it runs where the components do.
    pub(super) fn prefix(&self) -> Vec<OsString> {
        self.namespace().map(Namespace::prefix).unwrap_or_default()
    }

    pub(super) fn namespace(&self) -> Option<&Namespace> {
        match self {
            Self::Loopback(_) => None,
            Self::Forwarded { namespace, .. } => Some(namespace),
        }
    }

    pub(super) fn api_server_flags(&self) -> Vec<String> {
        match self {
            Self::Loopback(port) => vec![
                format!("--secure-port={}", port.number),
                // We hold the port, see `ReservedPort`.
                "--permit-port-sharing=true".into(),
                "--bind-address=127.0.0.1".into(),
                "--advertise-address=127.0.0.1".into(),
                // A loopback address is refused as an endpoint of the `kubernetes` service.
                "--endpoint-reconciler-type=none".into(),
            ],
            Self::Forwarded { .. } => vec![
                format!("--secure-port={API_PORT}"),
                format!("--bind-address={CONTROL_PLANE}"),
                format!("--advertise-address={CONTROL_PLANE}"),
                // No kube-proxy runs beside it: webhooks are reached at their pods.
                "--enable-aggregator-routing=true".into(),
            ],
        }
    }
}

/// A port that is ours from before the server starts until after it ended, so that there is no race for it:
/// we hold it bound, but do not listen, and the server is told that it may share it.
pub(super) struct ReservedPort {
    number: u16,
    _socket: TcpSocket,
}

impl ReservedPort {
    fn new() -> anyhow::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseport(true)?;
        socket.bind(([127, 0, 0, 1], 0).into()).context("no free port on loopback")?;
        Ok(Self { number: socket.local_addr()?.port(), _socket: socket })
    }
}
