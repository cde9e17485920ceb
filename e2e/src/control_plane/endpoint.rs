//! How the API server is reached: from this process, and from the cluster's components.

use std::{ffi::OsString, net::TcpListener, os::fd::OwnedFd, path::Path};

use anyhow::Context as _;
use tokio::net::TcpSocket;

use super::run::Run;
use crate::nodes::network::{self, API_PORT, CONTROL_PLANE, Namespace};

pub(super) enum Endpoint {
    /// On this machine's loopback.
    Loopback(ReservedPort),
    /// In the cluster's own network, reached through a forwarded port on loopback.
    Forwarded { port: u16, namespace: Namespace },
}

impl Endpoint {
    pub(super) fn loopback() -> anyhow::Result<Self> {
        Ok(Self::Loopback(ReservedPort::new()?))
    }

    /// Creates the network and starts the forwarder. `testtool` forwards: it inherits a listening socket of this
    /// network as its stdin and runs in the other network.
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

    /// The URL for this process.
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

    /// The command prefix that runs a program in the network of the components.
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
                // This process holds the port, see `ReservedPort`.
                "--permit-port-sharing=true".into(),
                "--bind-address=127.0.0.1".into(),
                "--advertise-address=127.0.0.1".into(),
                // A loopback address is not valid as an endpoint of the `kubernetes` Service.
                "--endpoint-reconciler-type=none".into(),
            ],
            Self::Forwarded { .. } => vec![
                format!("--secure-port={API_PORT}"),
                format!("--bind-address={CONTROL_PLANE}"),
                format!("--advertise-address={CONTROL_PLANE}"),
                // No kube-proxy runs next to the API server: it connects to webhooks by pod address.
                "--enable-aggregator-routing=true".into(),
            ],
        }
    }
}

/// A port that stays reserved from before the server starts until after it has exited, which avoids a race: this
/// process keeps it bound without listening, and the server is allowed to share it.
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
