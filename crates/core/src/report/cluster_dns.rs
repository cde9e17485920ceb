//! Failures that cluster DNS causes do not count against a node.

use std::net::IpAddr;

use super::{CLUSTER_DNS, CheckResult, Outcome, reason};

/// The reasons of a connection check whose host name could not be resolved.
pub(super) const UNRESOLVED: [&str; 5] =
    [reason::TIMEOUT, reason::NX_DOMAIN, reason::SERV_FAIL, reason::NO_ADDRESS, reason::NO_SERVERS];

/// Makes failures inconclusive that a cluster DNS without ready endpoints can cause. A node is responsible for name
/// resolution, and for connections to the pods of cluster DNS, only if cluster DNS is known to run. The number of its
/// endpoints is never the node's fault.
pub(super) fn excuse_cluster_dns(results: &mut [CheckResult]) {
    let is_cluster_dns = |check: &CheckResult| check.name == "services" && check.target == CLUSTER_DNS;
    // A query to an explicit server does not use the pod's resolver.
    let is_resolved =
        |check: &CheckResult| check.name == "dns" && check.is(Outcome::Passed) && !check.target.contains('@');
    let names_resolve = results.iter().any(is_resolved) && !results.iter().any(is_failed_name);
    excuse_peers(results);
    let Some(service) = results.iter_mut().find(|check| is_cluster_dns(check)) else { return };
    if matches!(service.outcome, Outcome::Passed | Outcome::Skipped) {
        return;
    }
    let why = service.reason.clone();
    match why.as_str() {
        // Names resolve, so cluster DNS runs under another Service name.
        reason::NOT_FOUND if names_resolve => service.outcome = Outcome::Skipped,
        reason::NOT_FOUND | reason::TOO_FEW_READY_ENDPOINTS => service.outcome = Outcome::Inconclusive,
        reason::NO_READY_ENDPOINTS => service.excuse(reason::CLUSTER_DNS_NOT_RUNNING),
        _ => {}
    }
    for check in results.iter_mut().filter(|check| is_failed_name(check)) {
        if why == reason::NO_READY_ENDPOINTS {
            check.excuse(reason::CLUSTER_DNS_NOT_RUNNING);
        } else {
            check.outcome = Outcome::Inconclusive;
            let message = if check.message.is_empty() { "failed" } else { &check.message };
            check.message = format!("{message}; the state of cluster DNS is unknown: {why}");
        }
    }
}

/// The pods of cluster DNS are the default peers. A failed connection to them is inconclusive if none of them is ready.
fn excuse_peers(results: &mut [CheckResult]) {
    let none_ready = |check: &CheckResult| {
        check.target == CLUSTER_DNS
            && [reason::NO_READY_ENDPOINTS, reason::CLUSTER_DNS_NOT_RUNNING].contains(&check.reason.as_str())
    };
    if !results.iter().any(none_ready) {
        return;
    }
    let peers = results.iter_mut().filter(|check| check.name == "peers" && check.target == CLUSTER_DNS);
    for check in peers.filter(|check| matches!(check.outcome, Outcome::Failed | Outcome::Inconclusive)) {
        if check.reason != reason::CLUSTER_DNS_NOT_RUNNING {
            check.excuse(reason::CLUSTER_DNS_NOT_RUNNING);
        }
    }
}

/// Whether a check failed in a way that cluster DNS can cause.
fn is_failed_name(check: &CheckResult) -> bool {
    let needs_name = match check.name.as_str() {
        "dns" => true,
        "tcp" | "http" => {
            host_of(&check.target).parse::<IpAddr>().is_err() && UNRESOLVED.contains(&check.reason.as_str())
        }
        _ => false,
    };
    needs_name && check.is(Outcome::Failed)
}

/// The host of `host:port` or of a URL, without brackets.
fn host_of(target: &str) -> &str {
    let authority =
        target.split_once("://").map_or(target, |(_, rest)| rest.split('/').next().unwrap_or(rest));
    if let Some(inner) = authority.strip_prefix('[') {
        return inner.split(']').next().unwrap_or(inner);
    }
    authority.rsplit_once(':').map_or(authority, |(host, _)| host)
}
