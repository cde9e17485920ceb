//! Edge: the network of the pod, with sockets, its resolver and its token.

mod api;
mod dns;
mod udp;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use serde_json::Value;
use tokio::net::TcpStream;

use crate::net::{Answer, Net, Trouble};

/// Where things are. The defaults are a pod's.
#[derive(Clone, Debug)]
pub struct Options {
    /// DNS servers to ask instead of those in `/etc/resolv.conf`; names are then asked for as they are.
    pub dns_servers: Vec<SocketAddr>,
    /// Host and port of the API server; none outside a cluster.
    pub api_server: Option<(String, u16)>,
    /// The worker's token.
    pub token_file: PathBuf,
    /// The authority that signed the API server's certificate.
    pub ca_file: PathBuf,
}

impl Default for Options {
    fn default() -> Self {
        let secrets = PathBuf::from("/var/run/secrets/kubernetes.io/serviceaccount");
        Self {
            dns_servers: Vec::new(),
            api_server: None,
            token_file: secrets.join("token"),
            ca_file: secrets.join("ca.crt"),
        }
    }
}

/// The network as it is. What cannot be set up is told by the checks that need it, so that the others still run.
pub struct Real {
    resolver: Result<dns::Resolver, Trouble>,
    client: Result<api::Client, Trouble>,
    api_server: Option<(String, u16)>,
}

impl Real {
    /// Reads `/etc/resolv.conf`, token and authority. To be called inside a tokio runtime.
    #[must_use]
    pub fn new(options: &Options) -> Self {
        let client = match &options.api_server {
            Some((host, port)) => api::Client::new(host, *port, &options.token_file, &options.ca_file)
                .map_err(Trouble::NoClient),
            None => Err(Trouble::NoClient("there is no API server outside a cluster".into())),
        };
        Self {
            resolver: dns::Resolver::new(&options.dns_servers),
            client,
            api_server: options.api_server.clone(),
        }
    }

    async fn addresses(&self, host: &str) -> Result<Vec<IpAddr>, Trouble> {
        match host.parse() {
            Ok(address) => Ok(vec![address]),
            Err(_) => self.resolve(host).await,
        }
    }
}

impl Net for Real {
    async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, Trouble> {
        self.resolver.as_ref().map_err(Clone::clone)?.resolve(name).await
    }

    async fn connect(&self, host: &str, port: u16) -> Result<(), Trouble> {
        let addresses = self.addresses(host).await?;
        dial(&addresses, port).await.map(drop)
    }

    async fn api(&self, path: &str, body: Option<&Value>) -> Result<Answer, Trouble> {
        let client = self.client.as_ref().map_err(Clone::clone)?;
        client.send(path, body, || async { self.addresses(client.host()).await }).await
    }

    fn api_server(&self) -> Option<(String, u16)> {
        self.api_server.clone()
    }
}

/// Connects to the first address that takes it.
async fn dial(addresses: &[IpAddr], port: u16) -> Result<TcpStream, Trouble> {
    let mut last = Trouble::NoAddress;
    for address in addresses {
        match TcpStream::connect((*address, port)).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = trouble(&error),
        }
    }
    Err(last)
}

fn trouble(error: &io::Error) -> Trouble {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Trouble::Refused,
        io::ErrorKind::TimedOut => Trouble::Timeout,
        _ => Trouble::Unreachable(error.to_string()),
    }
}
