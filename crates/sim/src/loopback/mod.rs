//! Real sockets. Each node has its own DNS server and its own proxies to the API server and to pods, so that
//! they can fail for one node alone.

mod api;
mod dns;
mod pods;

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::bind;

/// The behaviour of a node's DNS server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dns {
    /// It resolves the API server and cluster DNS.
    #[default]
    Healthy,
    /// Queries are dropped.
    Drop,
    ServFail,
    NxDomain,
}

/// The behaviour of a node's proxy to the API server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Api {
    #[default]
    Healthy,
    Refuse,
    /// Connections are accepted and never answered.
    Blackhole,
    /// TLS is served with a certificate of another CA.
    WrongCertificate,
}

/// The behaviour of a node's path to pods of other nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pods {
    #[default]
    Healthy,
    Refuse,
}

/// The network of one node, until it is dropped.
#[derive(Debug)]
pub struct Endpoints {
    /// The DNS server, by UDP and TCP.
    pub dns: SocketAddr,
    /// The proxy to the API server, which passes TLS through.
    pub api: SocketAddr,
    /// An address that stands for all pods of other nodes.
    pub pods: SocketAddr,
    pods_switch: pods::Switch,
    switches: Arc<Switches>,
    _tasks: JoinSet<()>,
}

#[derive(Debug, Default)]
struct Switches {
    now: Mutex<(Dns, Api)>,
    changed: Notify,
}

impl Switches {
    fn now(&self) -> (Dns, Api) {
        *self.now.lock()
    }
}

impl Endpoints {
    pub async fn open(api_server: SocketAddr) -> Result<Self, bind::Error> {
        let switches = Arc::new(Switches::default());
        let mut tasks = JoinSet::new();
        let dns = dns::serve(&switches, &mut tasks).await?;
        let api = api::serve(&switches, &mut tasks, api_server)?;
        let (pods, pods_switch) = pods::serve(&mut tasks)?;
        Ok(Self { dns, api, pods, pods_switch, switches, _tasks: tasks })
    }

    pub fn set_dns(&self, dns: Dns) {
        self.switches.now.lock().0 = dns;
    }

    /// Closes the open connections.
    pub fn set_api(&self, api: Api) {
        self.switches.now.lock().1 = api;
        self.switches.changed.notify_one();
    }
}

impl Endpoints {
    pub fn set_pods(&self, pods: Pods) {
        self.pods_switch.set(pods);
    }
}

fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}
