//! Resolves names with the DNS servers directly, without hosts file and cache.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures::future::join;
use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig};
use hickory_resolver::lookup_ip::LookupIp;
use hickory_resolver::net::{DnsError, NetError as HickoryError};
use hickory_resolver::proto::op::ResponseCode;
use hickory_resolver::proto::rr::RecordType;

use nodekeeper_core::checks::CLUSTER_DOMAIN;

use super::udp::Sockets;
use crate::net::NetError;

/// Timeout and number of attempts for each name of the search list.
const PATIENCE: Duration = Duration::from_secs(2);
const RETRIES: usize = 5;

/// The DNS domain of the cluster as `/etc/resolv.conf` has it; the usual one if it has none.
#[must_use]
pub fn cluster_domain() -> String {
    let text = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    search_domain(&text).unwrap_or(CLUSTER_DOMAIN).to_owned()
}

/// The kubelet gives every pod the search list `NAMESPACE.svc.DOMAIN svc.DOMAIN DOMAIN`.
fn search_domain(resolv_conf: &str) -> Option<&str> {
    let lists = resolv_conf.lines().filter_map(|line| line.trim_start().strip_prefix("search"));
    let mut domains = lists.flat_map(str::split_whitespace).filter_map(|word| word.strip_prefix("svc."));
    domains.next().map(|domain| domain.trim_end_matches('.'))
}

/// Asks the DNS servers of the pod, or others.
pub(super) struct Resolver {
    resolver: hickory_resolver::Resolver<Sockets>,
    sockets: Sockets,
}

impl Resolver {
    pub(super) fn new(servers: &[SocketAddr]) -> Result<Self, NetError> {
        let no_servers = |error: HickoryError| NetError::NoServers(error.to_string());
        let sockets = Sockets::default();
        let mut builder = if servers.is_empty() {
            hickory_resolver::Resolver::builder(sockets.clone()).map_err(no_servers)?
        } else {
            let servers = servers.iter().map(|server| both_ways(*server)).collect();
            let config = ResolverConfig::from_parts(None, Vec::new(), servers);
            hickory_resolver::Resolver::builder_with_config(config, sockets.clone())
        };
        let options = builder.options_mut();
        options.timeout = PATIENCE;
        options.attempts = RETRIES;
        options.cache_size = 0;
        // The kubelet writes the hosts file of a pod, so it says nothing about DNS.
        options.use_hosts_file = ResolveHosts::Never;
        let resolver = builder.build().map_err(no_servers)?;
        Ok(Self { resolver, sockets })
    }

    /// Queries A and AAAA at once, as programs in a pod do, and waits for both responses; if one is lost, the caller's
    /// timeout ends it. An address of either family is enough.
    pub(super) async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, NetError> {
        match join(self.ask(name, RecordType::A), self.ask(name, RecordType::AAAA)).await {
            (Ok(four), Ok(six)) => Ok([four, six].concat()),
            (Ok(found), Err(_)) | (Err(_), Ok(found)) => Ok(found),
            (Err(error), Err(_)) => Err(error),
        }
    }

    async fn ask(&self, name: &str, kind: RecordType) -> Result<Vec<IpAddr>, NetError> {
        loop {
            match self.resolver.lookup(name, kind).await {
                Ok(found) => return Ok(LookupIp::from(found).iter().collect()),
                Err(HickoryError::Timeout) => {}
                // The resolver returns this if no server could be reached or one refused the packet.
                Err(error @ HickoryError::NoConnections) => {
                    return Err(self.sockets.last().unwrap_or_else(|| net_error(&error)));
                }
                Err(error) => return Err(net_error(&error)),
            }
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

fn net_error(error: &HickoryError) -> NetError {
    match error {
        HickoryError::Dns(DnsError::ResponseCode(code)) => of_code(*code),
        HickoryError::Dns(DnsError::NoRecordsFound(none)) => match none.response_code {
            ResponseCode::NoError => NetError::NoAddress,
            code => of_code(code),
        },
        HickoryError::Timeout => NetError::Timeout,
        HickoryError::Io(error) => super::net_error(error),
        HickoryError::NoConnections => NetError::NoServers(error.to_string()),
        other => NetError::BadAnswer(other.to_string()),
    }
}

fn of_code(code: ResponseCode) -> NetError {
    match code {
        ResponseCode::NXDomain => NetError::NxDomain,
        ResponseCode::ServFail => NetError::ServFail,
        ResponseCode::Refused => NetError::Declined,
        other => NetError::BadAnswer(format!("the DNS server answers {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g10_the_cluster_domain_is_read_from_the_search_list() {
        let pod =
            "nameserver 10.96.0.10\nsearch a.svc.example.org svc.example.org. example.org\noptions ndots:5\n";
        assert_eq!(search_domain(pod), Some("example.org"));
        assert_eq!(search_domain("nameserver 1.1.1.1\nsearch lan\n"), None);
    }
}
