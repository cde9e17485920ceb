//! Turns an assignment into a list of targets, and validates it.

use std::net::IpAddr;

use nodekeeper_core::checks::{
    Assignment, Checks, Dns, HttpTarget, Peers, Replicas, ServiceTarget, StatusRange,
};
use nodekeeper_core::report::CLUSTER_DNS;
use url::Url;

use crate::http::parse_url;

/// No host name or address is longer.
const MAX_HOST: usize = 260;

/// An invalid assignment, with the fix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A list of names contains an IP address.
    #[error(
        "checks.dns.{0}: {1:?} is an IP address, which needs no DNS: list names here, DNS servers in checks.dns.servers and other addresses with a port in checks.tcp.targets"
    )]
    AddressForName(&'static str, String),
    /// A name that DNS does not allow.
    #[error(
        "checks.dns.{0}: {1:?} is not a DNS name: 1 to 253 characters, labels of 1 to 63 letters, digits, `-` or `_`, with dots between"
    )]
    BadName(&'static str, String),
    /// A DNS server that is not an IP address.
    #[error("checks.dns.servers: {0:?} is not an IP address such as 10.96.0.10 or fd00::a")]
    BadServer(String),
    /// A TCP target that is not `host:port`.
    #[error("checks.tcp.targets: {0:?} is not host:port, such as registry.example.com:443 or [fd00::1]:443")]
    BadTarget(String),
    /// A Service without a valid namespace, name or minReady.
    #[error(
        "checks.services.targets: {0:?} is not a Service: it needs a namespace, a name, and a minReady of 1 or more"
    )]
    BadService(String),
    /// A Service without a valid namespace, name or perZone.
    #[error("checks.peers: {0:?} is not a Service: it needs a namespace, a name, and a perZone of 1 to 5")]
    BadPeers(String),
    /// A URL that the worker cannot request.
    #[error(
        "checks.http.targets: {0:?} is not a URL such as https://registry.example.com/v2/: it needs http or https, a host, and no credentials"
    )]
    BadUrl(String),
    /// An empty or invalid range of status codes.
    #[error(
        "checks.http.targets: expectStatus of {0:?} goes from {1} to {2}: give it 100 to 599, the lower first"
    )]
    BadStatus(String, i32, i32),
    /// A number outside its range.
    #[error("{0} is {1}: give it {2}")]
    BadNumber(&'static str, i32, &'static str),
    /// An empty list where at least one item is needed.
    #[error("checks.{0} is an empty list: leave it out for the default, or leave the check out")]
    Empty(&'static str),
    /// A timeout of 0 seconds.
    #[error("{0} is 0: give it at least 1 second")]
    NoTime(&'static str),
    /// A check that does not exist.
    #[error("there is no check {0:?}; there are: {all}", all = Checks::OF_WORKER.join(", "))]
    UnknownCheck(String),
    /// A check that is not in the assignment.
    #[error("check {0:?} is not in the assignment: add it there, or leave it out of --only")]
    NotAssigned(String),
}

/// One thing that a check verifies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Resolve a name.
    Dns(String),
    /// Resolve a name that only the cluster DNS knows.
    ClusterDns(String),
    /// Resolve a name, and only warn if that fails.
    OptionalDns(String),
    /// Send a query for a name to the DNS server at an address.
    DnsServer(IpAddr, String),
    /// Resolve a name at every endpoint of the cluster DNS.
    EachDns(String),
    /// Send a self subject review to the API server.
    Api,
    /// Connect to host and port, or to the API server if there are none.
    Tcp(Option<(String, u16)>),
    /// Count the ready endpoints of a Service.
    Service(ServiceTarget),
    /// Connect to pods of a Service on other nodes.
    Peers(Peers),
    /// Request a URL, with the expected status and a file of CA certificates.
    Http(Url, StatusRange, Option<String>),
    /// Compare clocks that may differ by this many seconds.
    Clock(u32),
    /// Send this many bytes at once.
    Mtu(usize),
}

/// What a target needs around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Nothing.
    Nothing,
    /// The API server.
    ApiServer,
    /// The DNS names and pods of a cluster.
    Inside,
}

impl Target {
    /// The name of the check that the target belongs to.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Dns(_)
            | Self::ClusterDns(_)
            | Self::OptionalDns(_)
            | Self::DnsServer(..)
            | Self::EachDns(_) => "dns",
            Self::Api => "api",
            Self::Tcp(_) => "tcp",
            Self::Service(_) => "services",
            Self::Peers(_) => "peers",
            Self::Http(..) => "http",
            Self::Clock(_) => "clock",
            Self::Mtu(_) => "mtu",
        }
    }

    /// The target as the report names it.
    #[must_use]
    pub fn describe(&self, api_server: Option<&(String, u16)>) -> String {
        match self {
            Self::Dns(name) | Self::ClusterDns(name) | Self::OptionalDns(name) => name.clone(),
            Self::DnsServer(server, name) => format!("{name} @{server}"),
            Self::EachDns(name) => format!("{name} @{CLUSTER_DNS}"),
            Self::Tcp(Some((host, port))) => join(host, *port),
            Self::Api | Self::Tcp(None) | Self::Clock(_) | Self::Mtu(_) => {
                api_server.map_or("the API server".into(), |(host, port)| join(host, *port))
            }
            Self::Service(service) => format!("{}/{}", service.namespace, service.name),
            Self::Peers(peers) => format!("{}/{}", peers.namespace, peers.name),
            Self::Http(url, ..) => url.to_string(),
        }
    }

    /// What has to be there for the target to be verified.
    #[must_use]
    pub fn need(&self) -> Need {
        match self {
            Self::ClusterDns(_) | Self::EachDns(_) | Self::Peers(_) => Need::Inside,
            Self::Api | Self::Tcp(None) | Self::Service(_) | Self::Clock(_) | Self::Mtu(_) => Need::ApiServer,
            Self::Dns(_)
            | Self::OptionalDns(_)
            | Self::DnsServer(..)
            | Self::Tcp(Some(_))
            | Self::Http(..) => Need::Nothing,
        }
    }

    /// Whether the first step is a request to the API server.
    pub(crate) fn asks_api(&self) -> bool {
        self.need() == Need::ApiServer || matches!(self, Self::EachDns(_) | Self::Peers(_))
    }

    /// Returns whether a timeout is a failure of the node. It is not if the check starts with a request to the API server,
    /// which the check `api` covers.
    pub(crate) fn timeout_is_failure(&self) -> bool {
        !matches!(self, Self::EachDns(_) | Self::Peers(_) | Self::Clock(_) | Self::Mtu(_))
    }

    /// Whether a failure is only a warning.
    pub(crate) fn is_optional(&self) -> bool {
        matches!(self, Self::OptionalDns(_))
    }
}

/// Whether a name is in the domain of the cluster.
fn is_of_cluster(name: &str, domain: &str) -> bool {
    name.trim_end_matches('.').strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'))
}

/// Returns `host:port`, with brackets around an IPv6 address.
pub(crate) fn join(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Lists the targets of an assignment. `cluster_domain` is used where the assignment names no domain.
pub fn list(assignment: &Assignment, cluster_domain: &str) -> Result<Vec<Target>, ConfigError> {
    for (seconds, what) in [
        (assignment.check_timeout_seconds, "checkTimeoutSeconds"),
        (assignment.deadline_seconds, "deadlineSeconds"),
    ] {
        if seconds == 0 {
            return Err(ConfigError::NoTime(what));
        }
    }
    let checks = &assignment.checks;
    let mut targets = Vec::new();
    if let Some(dns) = &checks.dns {
        targets.extend(list_dns(dns, cluster_domain)?);
    }
    if checks.api.is_some() {
        targets.push(Target::Api);
    }
    match &checks.tcp {
        Some(tcp) if tcp.targets.is_empty() => targets.push(Target::Tcp(None)),
        Some(tcp) => {
            for target in &tcp.targets {
                targets.push(Target::Tcp(Some(read_target(target)?)));
            }
        }
        None => {}
    }
    if let Some(services) = &checks.services {
        not_empty(&services.targets, "services.targets")?;
        for service in &services.targets {
            targets.push(Target::Service(read_service(service)?));
        }
    }
    if let Some(peers) = &checks.peers {
        targets.push(Target::Peers(read_peers(peers)?));
    }
    if let Some(http) = &checks.http {
        not_empty(&http.targets, "http.targets")?;
        for target in &http.targets {
            targets.push(read_http(target)?);
        }
    }
    if let Some(clock) = &checks.clock {
        let wrong =
            ConfigError::BadNumber("checks.clock.maxSkewSeconds", clock.max_skew_seconds, "1 or more");
        let skew = u32::try_from(clock.max_skew_seconds).ok().filter(|skew| *skew > 0);
        targets.push(Target::Clock(skew.ok_or(wrong)?));
    }
    if let Some(mtu) = &checks.mtu {
        let wrong = ConfigError::BadNumber("checks.mtu.payloadBytes", mtu.payload_bytes, "1500 to 262144");
        let bytes = usize::try_from(mtu.payload_bytes).ok().filter(|bytes| (1_500..=262_144).contains(bytes));
        targets.push(Target::Mtu(bytes.ok_or(wrong)?));
    }
    // Optional names come last.
    for name in checks.dns.iter().flat_map(|dns| &dns.optional) {
        targets.push(Target::OptionalDns(read_name("optional", name)?));
    }
    Ok(targets)
}

/// Removes all checks but these from an assignment.
pub fn only(assignment: &mut Assignment, names: &[String]) -> Result<(), ConfigError> {
    let assigned = assignment.checks.assigned();
    for name in names {
        if !Checks::OF_WORKER.contains(&name.as_str()) {
            return Err(ConfigError::UnknownCheck(name.clone()));
        }
        if !assigned.contains(&name.as_str()) {
            return Err(ConfigError::NotAssigned(name.clone()));
        }
    }
    let all = std::mem::take(&mut assignment.checks);
    assignment.checks = all.only(|check| names.iter().any(|name| name == check));
    Ok(())
}

fn list_dns(dns: &Dns, cluster_domain: &str) -> Result<Vec<Target>, ConfigError> {
    let domain = dns.cluster_domain.as_deref().unwrap_or(cluster_domain);
    // The dot at its end keeps the resolver from trying its search list.
    let api_server = [format!("kubernetes.default.svc.{domain}.")];
    let names = if dns.names.is_empty() { &api_server[..] } else { &dns.names };
    let mut targets = Vec::new();
    for name in names {
        let name = read_name("names", name)?;
        targets.push(if is_of_cluster(&name, domain) { Target::ClusterDns(name) } else { Target::Dns(name) });
    }
    let Some(first) = names.first() else { return Ok(targets) };
    for server in &dns.servers {
        let address = server.parse().map_err(|_| ConfigError::BadServer(server.clone()))?;
        targets.push(Target::DnsServer(address, first.to_owned()));
    }
    if dns.replicas == Replicas::Each {
        targets.push(Target::EachDns(first.to_owned()));
    }
    Ok(targets)
}

fn not_empty<T>(list: &[T], what: &'static str) -> Result<(), ConfigError> {
    if list.is_empty() { Err(ConfigError::Empty(what)) } else { Ok(()) }
}

fn read_name(list: &'static str, name: &str) -> Result<String, ConfigError> {
    if name.trim_end_matches('.').parse::<IpAddr>().is_ok() {
        return Err(ConfigError::AddressForName(list, name.to_owned()));
    }
    let bare = name.strip_suffix('.').unwrap_or(name);
    let fits = |label: &str| {
        (1..=63).contains(&label.len())
            && label.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'))
    };
    if bare.len() > 253 || !bare.split('.').all(fits) {
        return Err(ConfigError::BadName(list, name.to_owned()));
    }
    Ok(name.to_owned())
}

fn read_target(target: &str) -> Result<(String, u16), ConfigError> {
    let bad = || ConfigError::BadTarget(target.to_owned());
    let (host, port) = target.rsplit_once(':').ok_or_else(bad)?;
    let port: u16 = port.parse().map_err(|_| bad())?;
    let host = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(inner) => inner.parse::<IpAddr>().map(|ip| ip.to_string()).map_err(|_| bad())?,
        None if host.contains([':', '/', ' ']) => return Err(bad()),
        None => host.to_owned(),
    };
    if host.is_empty() || host.len() > MAX_HOST || port == 0 {
        return Err(bad());
    }
    Ok((host, port))
}

fn read_service(service: &ServiceTarget) -> Result<ServiceTarget, ConfigError> {
    if !fits(&service.namespace) || !fits(&service.name) || service.min_ready < 1 {
        return Err(ConfigError::BadService(format!("{}/{}", service.namespace, service.name)));
    }
    Ok(service.clone())
}

fn read_peers(peers: &Peers) -> Result<Peers, ConfigError> {
    if !fits(&peers.namespace) || !fits(&peers.name) || !(1..=5).contains(&peers.per_zone) {
        return Err(ConfigError::BadPeers(format!("{}/{}", peers.namespace, peers.name)));
    }
    Ok(peers.clone())
}

/// Namespaces and names become part of a URL, so they must not contain a separator.
fn fits(part: &str) -> bool {
    (1..=63).contains(&part.len()) && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
}

fn read_http(target: &HttpTarget) -> Result<Target, ConfigError> {
    let HttpTarget { url, expect_status, ca: _, ca_file } = target;
    let read = parse_url(url).ok_or_else(|| ConfigError::BadUrl(url.clone()))?;
    let StatusRange { min, max } = *expect_status;
    if min < 100 || max > 599 || max < min {
        return Err(ConfigError::BadStatus(url.clone(), min, max));
    }
    Ok(Target::Http(read, *expect_status, ca_file.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodekeeper_core::checks::{CLUSTER_DOMAIN, Clock, Http, Mtu, Tcp};

    #[test]
    fn the_default_set_has_six_targets() {
        let targets = list(&Assignment::default(), CLUSTER_DOMAIN).expect("it is valid");
        let told: Vec<_> = targets.iter().map(|t| format!("{} {}", t.name(), t.describe(None))).collect();
        assert_eq!(
            told,
            [
                "dns kubernetes.default.svc.cluster.local.",
                "api the API server",
                "tcp the API server",
                "services default/kubernetes",
                "services kube-system/kube-dns",
                "peers kube-system/kube-dns"
            ]
        );
    }

    #[test]
    fn names() {
        for good in ["a", "a.b.", "_sip.example.com", "kubernetes.default.svc.cluster.local."] {
            assert_eq!(read_name("names", good).as_deref(), Ok(good));
        }
        for address in ["10.0.0.1", "10.0.0.1.", "fd00::1"] {
            assert!(matches!(read_name("names", address), Err(ConfigError::AddressForName(..))), "{address}");
        }
        for bad in ["", ".", "a..b", "a b", "a/b", &"x".repeat(64), &"a.".repeat(128)] {
            assert!(matches!(read_name("names", bad), Err(ConfigError::BadName(..))), "{bad}");
        }
    }

    #[test]
    fn connection_targets() {
        assert_eq!(read_target("db.example.com:5432"), Ok(("db.example.com".into(), 5432)));
        assert_eq!(read_target("[fd00::1]:443"), Ok(("fd00::1".into(), 443)));
        for bad in
            ["", "host", "host:", "host:0", "host:99999", "fd00::1:443", ":443", "http://x:80", "[x]:1"]
        {
            assert!(read_target(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_invalid_assignment_is_an_error() {
        let with = |change: fn(&mut Assignment)| {
            let mut assignment = Assignment::default();
            change(&mut assignment);
            list(&assignment, CLUSTER_DOMAIN).expect_err("it is invalid")
        };
        assert_eq!(with(|a| a.deadline_seconds = 0), ConfigError::NoTime("deadlineSeconds"));
        let bad_port = |a: &mut Assignment| a.checks.tcp = Some(Tcp { targets: vec!["x".into()] });
        assert_eq!(with(bad_port), ConfigError::BadTarget("x".into()));
        let sly = |a: &mut Assignment| {
            a.checks.services.as_mut().expect("it is there").targets[0].name = "../x".into();
        };
        assert!(matches!(with(sly), ConfigError::BadService(_)));
        let sly = |a: &mut Assignment| a.checks.peers.as_mut().expect("it is there").namespace = "a/b".into();
        assert!(matches!(with(sly), ConfigError::BadPeers(_)));
        let named =
            |a: &mut Assignment| a.checks.dns.as_mut().expect("it is there").servers = vec!["dns.".into()];
        assert_eq!(with(named), ConfigError::BadServer("dns.".into()));
        let literal = |a: &mut Assignment| {
            a.checks.dns.as_mut().expect("it is there").optional = vec!["8.8.8.8".into()];
        };
        assert!(with(literal).to_string().contains("checks.dns.optional: \"8.8.8.8\""));
        let late = |a: &mut Assignment| a.checks.clock = Some(Clock { max_skew_seconds: 0 });
        assert!(with(late).to_string().contains("maxSkewSeconds is 0"));
        let tiny = |a: &mut Assignment| a.checks.mtu = Some(Mtu { payload_bytes: 10 });
        assert!(with(tiny).to_string().contains("payloadBytes is 10"));
    }

    #[test]
    fn urls_and_their_statuses() {
        let list_of = |url: &str, min, max| {
            let target = HttpTarget {
                url: url.into(),
                expect_status: StatusRange { min, max },
                ca: None,
                ca_file: None,
            };
            let checks = Checks { http: Some(Http { targets: vec![target] }), ..Checks::default() };
            list(&Assignment { checks, ..Assignment::default() }, CLUSTER_DOMAIN)
        };
        assert_eq!(list_of("http://a.example/x", 200, 399).expect("it is valid")[0].name(), "http");
        assert!(matches!(list_of("a.example", 200, 399), Err(ConfigError::BadUrl(_))));
        for (min, max) in [(99, 200), (200, 600), (300, 200)] {
            assert!(matches!(list_of("http://a.example/x", min, max), Err(ConfigError::BadStatus(..))));
        }
    }

    #[test]
    fn names_of_the_cluster_follow_its_domain() {
        let listed = |dns: Dns, domain: &str| {
            let checks = Checks { dns: Some(dns), ..Checks::default() };
            let targets = list(&Assignment { checks, ..Assignment::default() }, domain).expect("valid");
            targets.iter().map(|target| (target.describe(None), target.need())).collect::<Vec<_>>()
        };
        let name = "kubernetes.default.svc.example.org.".to_owned();
        let server = Dns { servers: vec!["10.96.0.10".into()], ..Dns::default() };
        let asked = (format!("{name} @10.96.0.10"), Need::Nothing);
        assert_eq!(listed(server.clone(), "example.org"), [(name.clone(), Need::Inside), asked]);
        let named = Dns { cluster_domain: Some("example.org".into()), ..server };
        assert_eq!(listed(named, CLUSTER_DOMAIN)[0].0, name);
        let outside = Dns { names: vec!["cluster.local.".into(), "a.example.org".into()], ..Dns::default() };
        let needs: Vec<_> = listed(outside, CLUSTER_DOMAIN).into_iter().map(|(_, need)| need).collect();
        assert_eq!(needs, [Need::Nothing, Need::Nothing]);
    }

    #[test]
    fn only_keeps_the_named_checks() {
        let mut assignment = Assignment::default();
        only(&mut assignment, &["tcp".into(), "dns".into()]).expect("both are assigned");
        let names: Vec<_> =
            list(&assignment, CLUSTER_DOMAIN).expect("it is valid").iter().map(super::Target::name).collect();
        assert_eq!(names, ["dns", "tcp"]);
        let missing = only(&mut assignment, &["api".into()]);
        assert_eq!(missing, Err(ConfigError::NotAssigned("api".into())));
        let unknown = only(&mut Assignment::default(), &["ping".into()]);
        assert_eq!(unknown, Err(ConfigError::UnknownCheck("ping".into())));
    }
}
