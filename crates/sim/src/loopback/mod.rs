//! Edge: real sockets. A DNS server, a upstream to the API server and one to the pods of other nodes on loopback, for each
//! node its own, so that they can be broken for one node and work for the next.

mod api;
mod dns;
mod pods;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::bind;

/// What a node's DNS does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dns {
    /// It knows the names of the API server and of cluster DNS, and no others.
    #[default]
    Healthy,
    /// Nothing comes back.
    Drop,
    /// It cannot answer.
    ServFail,
    /// It knows no name at all.
    NxDomain,
}

/// What a node's upstream to the API server does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Api {
    /// It leads there.
    #[default]
    Healthy,
    /// Nobody listens.
    Refuse,
    /// Connections are taken, and nothing comes back.
    Blackhole,
    /// Somebody else answers, with a certificate of its own making.
    WrongCertificate,
}

/// What a node's upstream to the pods of other nodes does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pods {
    /// It leads there.
    #[default]
    Healthy,
    /// Connections are refused, as by a firewall that says so.
    Refuse,
}

/// The network of one node, until it is dropped.
#[derive(Debug)]
pub struct Endpoints {
    /// Its DNS server, by UDP and TCP.
    pub dns: SocketAddr,
    /// Its upstream to the API server. TLS goes through it unopened.
    pub api: SocketAddr,
    /// Where the pods of other nodes are, all of them.
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
        *self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Endpoints {
    /// Opens all, with nothing wrong; the API server is at this address.
    pub async fn open(api_server: SocketAddr) -> Result<Self, bind::Error> {
        let switches = Arc::new(Switches::default());
        let mut tasks = JoinSet::new();
        let dns = dns::serve(&switches, &mut tasks).await?;
        let api = api::serve(&switches, &mut tasks, api_server)?;
        let (pods, pods_switch) = pods::serve(&mut tasks)?;
        Ok(Self { dns, api, pods, pods_switch, switches, _tasks: tasks })
    }

    /// Breaks or heals DNS.
    pub fn set_dns(&self, dns: Dns) {
        self.switches.now.lock().unwrap_or_else(PoisonError::into_inner).0 = dns;
    }

    /// Breaks or heals the upstream to the API server. Connections there are end.
    pub fn set_api(&self, api: Api) {
        self.switches.now.lock().unwrap_or_else(PoisonError::into_inner).1 = api;
        self.switches.changed.notify_one();
    }
}

impl Endpoints {
    /// Breaks or heals the upstream to the pods of other nodes.
    pub fn set_pods(&self, pods: Pods) {
        self.pods_switch.set(pods);
    }
}

/// Any port of loopback.
fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}
