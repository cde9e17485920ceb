//! What an assignment asks for, one target at a time, and whether it makes sense.

use std::net::IpAddr;

use nodekeeper_core::checks::{Assignment, Checks, ServiceTarget};

/// A target longer than any name or address can be.
const LONGEST: usize = 260;

/// Why an assignment makes no sense, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A name that is none.
    #[error(
        "checks.dns.names: {0:?} is an IP address, which needs no DNS: list names, or move it to checks.tcp.targets with a port"
    )]
    AddressForName(String),
    /// Something that cannot be a name.
    #[error(
        "checks.dns.names: {0:?} is no DNS name: 1 to 253 characters, labels of 1 to 63 letters, digits, `-` or `_`, with dots between"
    )]
    BadName(String),
    /// Something that cannot be connected to.
    #[error("checks.tcp.targets: {0:?} is not host:port, as in registry.example.com:443 or [fd00::1]:443")]
    BadTarget(String),
    /// A Service that cannot exist.
    #[error(
        "checks.services.targets: {0:?} is no Service: a namespace and a name are needed, and minReady of 1 or more"
    )]
    BadService(String),
    /// A list that is there and says nothing.
    #[error("checks.{0} is an empty list: leave it out for the default, or leave the check out")]
    Empty(&'static str),
    /// No time to do it in.
    #[error("{0} is 0: give it at least 1 second")]
    NoTime(&'static str),
    /// A check that nobody knows.
    #[error("there is no check {0:?}; there are: dns, api, tcp, services")]
    UnknownCheck(String),
    /// A check that is known and not assigned.
    #[error("check {0:?} is not in the assignment: add it there, or leave it out of --only")]
    NotAssigned(String),
}

/// One thing to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Resolve a name.
    Dns(String),
    /// Ask the API server who we are.
    Api,
    /// Connect to host and port; none is the API server's.
    Tcp(Option<(String, u16)>),
    /// Count the ready endpoints of a Service.
    Service(ServiceTarget),
}

impl Target {
    /// The check that it belongs to.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Dns(_) => "dns",
            Self::Api => "api",
            Self::Tcp(_) => "tcp",
            Self::Service(_) => "services",
        }
    }

    /// What is looked at, as the report says it, with the API server where it is.
    #[must_use]
    pub fn describe(&self, api_server: Option<&(String, u16)>) -> String {
        match self {
            Self::Dns(name) => name.clone(),
            Self::Tcp(Some((host, port))) => join(host, *port),
            Self::Api | Self::Tcp(None) => {
                api_server.map_or("the API server".into(), |(host, port)| join(host, *port))
            }
            Self::Service(service) => format!("{}/{}", service.namespace, service.name),
        }
    }

    /// Whether it makes no sense outside a cluster.
    #[must_use]
    pub fn needs_cluster(&self) -> bool {
        !matches!(self, Self::Dns(_) | Self::Tcp(Some(_)))
    }
}

/// `host:port`, with brackets where the host has colons.
pub(crate) fn join(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// All that an assignment asks for, or why it cannot be done.
pub fn list(assignment: &Assignment) -> Result<Vec<Target>, ConfigError> {
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
        not_empty(&dns.names, "dns.names")?;
        for name in &dns.names {
            targets.push(Target::Dns(read_name(name)?));
        }
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
    Ok(targets)
}

/// Takes all checks out of an assignment but these.
pub fn only(assignment: &mut Assignment, names: &[String]) -> Result<(), ConfigError> {
    let all = std::mem::take(&mut assignment.checks);
    let mut kept = Checks::default();
    for name in names {
        let is_assigned = match name.as_str() {
            "dns" => {
                kept.dns.clone_from(&all.dns);
                kept.dns.is_some()
            }
            "api" => {
                kept.api.clone_from(&all.api);
                kept.api.is_some()
            }
            "tcp" => {
                kept.tcp.clone_from(&all.tcp);
                kept.tcp.is_some()
            }
            "services" => {
                kept.services.clone_from(&all.services);
                kept.services.is_some()
            }
            other => return Err(ConfigError::UnknownCheck(other.to_owned())),
        };
        if !is_assigned {
            return Err(ConfigError::NotAssigned(name.clone()));
        }
    }
    assignment.checks = kept;
    Ok(())
}

fn not_empty<T>(list: &[T], what: &'static str) -> Result<(), ConfigError> {
    if list.is_empty() { Err(ConfigError::Empty(what)) } else { Ok(()) }
}

fn read_name(name: &str) -> Result<String, ConfigError> {
    if name.trim_end_matches('.').parse::<IpAddr>().is_ok() {
        return Err(ConfigError::AddressForName(name.to_owned()));
    }
    let bare = name.strip_suffix('.').unwrap_or(name);
    let fits = |label: &str| {
        (1..=63).contains(&label.len())
            && label.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'))
    };
    if bare.len() > 253 || !bare.split('.').all(fits) {
        return Err(ConfigError::BadName(name.to_owned()));
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
    if host.is_empty() || host.len() > LONGEST || port == 0 {
        return Err(bad());
    }
    Ok((host, port))
}

fn read_service(service: &ServiceTarget) -> Result<ServiceTarget, ConfigError> {
    // They become part of a URL, so nothing may be in them that means something there.
    let fits = |part: &str| {
        (1..=63).contains(&part.len()) && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
    };
    if !fits(&service.namespace) || !fits(&service.name) || service.min_ready < 1 {
        return Err(ConfigError::BadService(format!("{}/{}", service.namespace, service.name)));
    }
    Ok(service.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodekeeper_core::checks::{Dns, Tcp};

    #[test]
    fn the_default_asks_for_five_things() {
        let targets = list(&Assignment::default()).expect("it is valid");
        let told: Vec<_> = targets.iter().map(|t| format!("{} {}", t.name(), t.describe(None))).collect();
        assert_eq!(
            told,
            [
                "dns kubernetes.default.svc.cluster.local.",
                "api the API server",
                "tcp the API server",
                "services default/kubernetes",
                "services kube-system/kube-dns"
            ]
        );
    }

    #[test]
    fn names() {
        for good in ["a", "a.b.", "_sip.example.com", "kubernetes.default.svc.cluster.local."] {
            assert_eq!(read_name(good).as_deref(), Ok(good));
        }
        for address in ["10.0.0.1", "10.0.0.1.", "fd00::1"] {
            assert!(matches!(read_name(address), Err(ConfigError::AddressForName(_))), "{address}");
        }
        for bad in ["", ".", "a..b", "a b", "a/b", &"x".repeat(64), &"a.".repeat(128)] {
            assert!(matches!(read_name(bad), Err(ConfigError::BadName(_))), "{bad}");
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
    fn what_makes_no_sense_is_an_error() {
        let with = |change: fn(&mut Assignment)| {
            let mut assignment = Assignment::default();
            change(&mut assignment);
            list(&assignment).expect_err("it makes no sense")
        };
        assert_eq!(with(|a| a.deadline_seconds = 0), ConfigError::NoTime("deadlineSeconds"));
        assert_eq!(with(|a| a.checks.dns = Some(Dns { names: vec![] })), ConfigError::Empty("dns.names"));
        let bad_port = |a: &mut Assignment| a.checks.tcp = Some(Tcp { targets: vec!["x".into()] });
        assert_eq!(with(bad_port), ConfigError::BadTarget("x".into()));
        let sly = |a: &mut Assignment| {
            a.checks.services.as_mut().expect("it is there").targets[0].name = "../x".into();
        };
        assert!(matches!(with(sly), ConfigError::BadService(_)));
    }

    #[test]
    fn only_what_is_asked_for_stays() {
        let mut assignment = Assignment::default();
        only(&mut assignment, &["tcp".into(), "dns".into()]).expect("both are assigned");
        let names: Vec<_> = list(&assignment).expect("it is valid").iter().map(super::Target::name).collect();
        assert_eq!(names, ["dns", "tcp"]);
        let missing = only(&mut assignment, &["api".into()]);
        assert_eq!(missing, Err(ConfigError::NotAssigned("api".into())));
        let unknown = only(&mut Assignment::default(), &["ping".into()]);
        assert_eq!(unknown, Err(ConfigError::UnknownCheck("ping".into())));
    }
}
