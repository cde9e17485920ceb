//! Names, asked of the DNS servers themselves: no hosts file, no cache, nothing that could answer in their place.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{
    ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig,
};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::ResponseCode;

use crate::net::Trouble;

/// A lost packet is asked for again after this long, and so often; whoever waits has patience of its own.
const PATIENCE: Duration = Duration::from_secs(2);
const RETRIES: usize = 5;

/// Asks the DNS servers of the pod, or others.
pub(super) struct Resolver(TokioResolver);

impl Resolver {
    pub(super) fn new(servers: &[SocketAddr]) -> Result<Self, Trouble> {
        let no_servers = |error: NetError| Trouble::NoServers(error.to_string());
        let mut builder = if servers.is_empty() {
            TokioResolver::builder_tokio().map_err(no_servers)?
        } else {
            let servers = servers.iter().map(|server| both_ways(*server)).collect();
            let config = ResolverConfig::from_parts(None, Vec::new(), servers);
            TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
        };
        let options = builder.options_mut();
        options.timeout = PATIENCE;
        options.attempts = RETRIES;
        options.cache_size = 0;
        // A pod's hosts file is written by its kubelet and proves nothing.
        options.use_hosts_file = ResolveHosts::Never;
        // As every program in a pod asks; it also finds out where only one of the two is lost.
        options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
        builder.build().map(Self).map_err(no_servers)
    }

    pub(super) async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, Trouble> {
        match self.0.lookup_ip(name).await {
            Ok(found) => Ok(found.iter().collect()),
            Err(error) => Err(trouble(&error)),
        }
    }
}

fn both_ways(server: SocketAddr) -> NameServerConfig {
    let mut ways = vec![ConnectionConfig::udp(), ConnectionConfig::tcp()];
    for way in &mut ways {
        way.port = server.port();
    }
    NameServerConfig::new(server.ip(), true, ways)
}

fn trouble(error: &NetError) -> Trouble {
    match error {
        NetError::Dns(DnsError::ResponseCode(code)) => of_code(*code),
        NetError::Dns(DnsError::NoRecordsFound(none)) => match none.response_code {
            ResponseCode::NoError => Trouble::NoAddress,
            code => of_code(code),
        },
        NetError::Timeout => Trouble::Timeout,
        NetError::Io(error) => super::trouble(error),
        NetError::NoConnections => Trouble::NoServers(error.to_string()),
        other => Trouble::BadAnswer(other.to_string()),
    }
}

fn of_code(code: ResponseCode) -> Trouble {
    match code {
        ResponseCode::NXDomain => Trouble::NxDomain,
        ResponseCode::ServFail => Trouble::ServFail,
        ResponseCode::Refused => Trouble::Refused,
        other => Trouble::BadAnswer(format!("the DNS server answers {other}")),
    }
}
