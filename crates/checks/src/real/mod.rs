//! The network of the pod: sockets, resolver, clock and token.

#![expect(clippy::disallowed_methods, reason = "the clock of the machine")]

mod access;
mod api;
mod dns;
pub mod environment;
mod http;
mod tls;
mod udp;
mod yaml;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::pki_types::ServerName;
use serde_json::Value;
use socket2::SockRef;
use tokio::net::{TcpSocket, TcpStream};
use url::Url;

use self::access::Access;
pub use self::dns::cluster_domain;
use crate::http::host_and_port;
use crate::net::{Answer, Environment, Net, NetError, Packets, Server};

/// The default maximum segment size of RFC 9293, which every path accepts.
const SMALL_SEGMENT: u32 = 536;

/// Addresses and credentials. The defaults are those of a pod.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// DNS servers to use instead of those in `/etc/resolv.conf`, without a search list.
    pub dns_servers: Vec<SocketAddr>,
    /// Host and port of the API server inside a cluster.
    pub api_server: Option<(String, u16)>,
    /// The kubeconfig to use outside a cluster.
    pub kubeconfig: Option<PathBuf>,
    /// Token file; by default that of the pod or the kubeconfig.
    pub token_file: Option<PathBuf>,
    /// Certificate authority of the API server; by default that of the pod or the kubeconfig.
    pub ca_file: Option<PathBuf>,
    /// Certificate authorities of the system, for http checks.
    pub trusted_file: Option<PathBuf>,
    pub node: String,
    /// An address that replaces all pod addresses, for tests on one machine.
    pub pods_at: Option<SocketAddr>,
}

/// The service account files of a pod.
struct Credentials {
    token_file: PathBuf,
    ca_file: PathBuf,
}

impl Credentials {
    fn of_pod() -> Self {
        let secrets = PathBuf::from("/var/run/secrets/kubernetes.io/serviceaccount");
        Self { token_file: secrets.join("token"), ca_file: secrets.join("ca.crt") }
    }
}

/// The real network. Setup errors are reported by the checks that need the part, so that the others still run.
pub struct Real {
    resolver: Result<dns::Resolver, NetError>,
    client: Result<api::Client, NetError>,
    environment: Environment,
    authority: Option<Vec<u8>>,
    trusted_file: Option<PathBuf>,
    pods_at: Option<SocketAddr>,
}

impl Real {
    /// Reads `/etc/resolv.conf`, the token and the certificate authority. To be called inside a tokio runtime.
    #[must_use]
    pub fn new(options: &Options) -> Self {
        let access = Access::find(options);
        let environment = Environment {
            api_server: access.as_ref().map(|it| (it.host.clone(), it.port)).map_err(Clone::clone),
            node: options.node.clone(),
            inside: options.api_server.is_some() || !options.dns_servers.is_empty(),
            cluster_domain: cluster_domain(),
        };
        Self {
            resolver: dns::Resolver::new(&options.dns_servers),
            authority: access.as_ref().ok().and_then(|it| it.authority.clone().ok()),
            client: access.and_then(api::Client::new).map_err(NetError::NoClient),
            environment,
            trusted_file: options.trusted_file.clone(),
            pods_at: options.pods_at,
        }
    }

    async fn addresses(&self, host: &str) -> Result<Vec<IpAddr>, NetError> {
        match host.parse() {
            Ok(address) => Ok(vec![address]),
            Err(_) => self.resolve(host).await,
        }
    }

    /// Trusts the authorities of the cluster, of the system and of a file. They are read on use: most workers have no http
    /// check.
    fn trusting(&self, ca_file: Option<&str>) -> Result<tokio_rustls::TlsConnector, NetError> {
        let named = ca_file.map(|file| tls::read(file.as_ref(), "the authorities", "caFile")).transpose();
        let named = named.map_err(NetError::NoClient)?;
        let trusted = self.trusted_file.as_ref().and_then(|file| std::fs::read(file).ok());
        let all: Vec<&[u8]> =
            [&self.authority, &trusted, &named].into_iter().flatten().map(Vec::as_slice).collect();
        tls::connector(&all, None).map_err(NetError::NoClient)
    }
}

impl Net for Real {
    fn environment(&self) -> Environment {
        self.environment.clone()
    }

    fn clock(&self) -> Duration {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }

    async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, NetError> {
        self.resolver.as_ref().map_err(Clone::clone)?.resolve(name).await
    }

    async fn resolve_at(&self, server: Server, name: &str) -> Result<Vec<IpAddr>, NetError> {
        let server = match server {
            Server::At(server) => server,
            Server::Pod(pod) => self.pods_at.unwrap_or(pod),
        };
        dns::Resolver::new(&[server])?.resolve(name).await
    }

    async fn connect(&self, host: &str, port: u16) -> Result<(), NetError> {
        let addresses = self.addresses(host).await?;
        dial(&addresses, port, Packets::Full).await.map(drop)
    }

    async fn connect_pod(&self, pod: SocketAddr) -> Result<(), NetError> {
        let pod = self.pods_at.unwrap_or(pod);
        dial(&[pod.ip()], pod.port(), Packets::Full).await.map(drop)
    }

    async fn api(&self, path: &str, body: Option<&Value>) -> Result<Answer, NetError> {
        let client = self.client.as_ref().map_err(Clone::clone)?;
        client.send(path, body, || async { self.addresses(client.host()).await }).await
    }

    async fn bulk(&self, packets: Packets, bytes: usize) -> Result<(), NetError> {
        let client = self.client.as_ref().map_err(Clone::clone)?;
        let addresses = self.addresses(client.host()).await?;
        client.bulk(&addresses, packets, bytes).await
    }

    async fn get(&self, url: &Url, ca_file: Option<&str>) -> Result<u16, NetError> {
        let tls = if url.scheme() == "https" { Some(self.trusting(ca_file)?) } else { None };
        let (host, port) = host_and_port(url);
        let addresses = self.addresses(&host).await?;
        let stream = dial(&addresses, port, Packets::Full).await?;
        let connection = match tls {
            Some(tls) => {
                let name = ServerName::try_from(host.clone());
                let name = name.map_err(|e| NetError::Tls(format!("{host:?}: {e}")))?;
                http::over_tls(stream, &tls, name).await?
            }
            None => http::speak(stream).await?,
        };
        http::get(connection, url).await
    }
}

/// Connects to the first address that accepts the connection.
async fn dial(addresses: &[IpAddr], port: u16, packets: Packets) -> Result<TcpStream, NetError> {
    let mut last = NetError::NoAddress;
    for address in addresses {
        match open(SocketAddr::new(*address, port), packets).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = net_error(&error),
        }
    }
    Err(last)
}

async fn open(address: SocketAddr, packets: Packets) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    if packets == Packets::Small {
        // The handshake announces it, so it limits both directions.
        SockRef::from(&socket).set_tcp_mss(SMALL_SEGMENT)?;
    }
    // Requests are small; without it Nagle's algorithm may delay them.
    socket.set_nodelay(true)?;
    socket.connect(address).await
}

fn net_error(error: &io::Error) -> NetError {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => NetError::Refused,
        io::ErrorKind::TimedOut => NetError::Timeout,
        _ => NetError::Unreachable(error.to_string()),
    }
}
