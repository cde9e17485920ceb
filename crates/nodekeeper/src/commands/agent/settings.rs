//! Turns the flags of the agent into the spec of a gate. They are read as the keys of kube-node-ready's DaemonSet mode, so
//! that a flag and a file mean the same.

use std::time::Duration;

use nodekeeper_checks::real;
use nodekeeper_core::api::{Mode, NodeGateSpec};
use nodekeeper_core::gate::AgentTiming;
use nodekeeper_operator::config::{duration_seconds, load};
use serde_json::{Value, json};

use crate::args::{Agent, AgentMode};

/// The keys of the file, each with its flag and its environment variable.
const FLAGS: [(&str, &str, &str); 10] = [
    ("taintKey", "--taint-key", "TAINT_KEY"),
    ("taintValue", "--taint-value", "TAINT_VALUE"),
    ("taintEffect", "--taint-effect", "TAINT_EFFECT"),
    ("verifiedLabel", "--verified-label", "VERIFIED_LABEL"),
    ("verifiedLabelValue", "--verified-label-value", "VERIFIED_LABEL_VALUE"),
    ("dnsTestDomains", "--dns-test-domains", "DNS_TEST_DOMAINS"),
    ("checkTimeout", "--check-timeout", "CHECK_TIMEOUT"),
    ("initialTimeout", "--initial-timeout", "INITIAL_TIMEOUT"),
    ("retryBackoff", "--retry-backoff", "RETRY_BACKOFF"),
    ("maxRetries", "--max-retries", "MAX_RETRIES"),
];
/// What `--check-interval` may be, in seconds.
const INTERVALS: std::ops::RangeInclusive<i32> = 10..=86_400;
/// From here on the log of client-go has what ours has at the level debug.
const VERBOSE: u8 = 4;

/// The effective settings.
pub struct Resolved {
    /// The gate of the flags.
    pub spec: NodeGateSpec,
    pub timing: AgentTiming,
    /// Addresses and credentials of the checks.
    pub options: real::Options,
    pub log_level: String,
    pub warnings: Vec<String>,
}

/// Validates all flags together.
///
/// # Errors
/// One line for each flag that is wrong, with the fix.
pub fn resolve(flags: &Agent) -> Result<Resolved, Vec<String>> {
    let mut wrong = Vec::new();
    if flags.node_name.is_empty() {
        wrong.push("--node-name (NODE_NAME) is empty: name the Node that the agent runs on".to_owned());
    }
    let interval = seconds(&flags.check_interval).filter(|seconds| INTERVALS.contains(seconds));
    if interval.is_none() {
        wrong.push(format!(
            "--check-interval (CHECK_INTERVAL) is {:?}: write a duration from 10s to 24h, such as 60s",
            flags.check_interval
        ));
    }
    let options = options(flags).map_err(|error| wrong.push(error)).ok();
    let (Some((spec, mut warnings)), Some(seconds), Some(options)) =
        (gate(flags, &mut wrong), interval, options)
    else {
        return Err(wrong);
    };
    if !wrong.is_empty() {
        return Err(wrong);
    }
    if flags.delete_failed_node {
        warnings.push(
            "--delete-failed-node (DELETE_FAILED_NODE): an agent never deletes its node. Let a controller run too, with a NodeGate \
             that has `onFailure: Replace`"
                .into(),
        );
    }
    let mode = match flags.mode {
        AgentMode::Once => Mode::Bootstrap,
        AgentMode::Continuous => Mode::Continuous,
    };
    let interval = Duration::from_secs(seconds.unsigned_abs().into());
    let is_verbose = flags.klog_verbosity >= VERBOSE && flags.log_level == "info";
    let log_level = if is_verbose { "debug".into() } else { flags.log_level.clone() };
    Ok(Resolved { spec, timing: AgentTiming { mode, interval }, options, log_level, warnings })
}

/// A duration such as `1m30s`, or a number of seconds.
fn seconds(text: &str) -> Option<i32> {
    text.parse().ok().or_else(|| duration_seconds(text))
}

/// The gate of the flags, and warnings.
fn gate(flags: &Agent, wrong: &mut Vec<String>) -> Option<(NodeGateSpec, Vec<String>)> {
    let duration =
        |text: &str| if text.parse::<u32>().is_ok() { format!("{text}s") } else { text.to_owned() };
    let mut keys = json!({
        "taintKey": flags.taint_key,
        "taintValue": flags.taint_value,
        "taintEffect": flags.taint_effect,
        "verifiedLabel": flags.verified_label,
        "verifiedLabelValue": flags.verified_label_value,
        "checkTimeout": duration(&flags.check_timeout),
        "initialTimeout": duration(&flags.initial_timeout),
        "retryBackoff": flags.retry_backoff,
        "maxRetries": flags.max_retries,
    });
    let names: Vec<&str> =
        flags.dns_test_domains.iter().map(|name| name.trim()).filter(|name| !name.is_empty()).collect();
    if !names.is_empty() {
        keys["dnsTestDomains"] = json!(names);
    }
    // JSON is YAML.
    match load(&keys.to_string(), None) {
        Ok(mut file) => {
            file.gate.continuous.failure_threshold = flags.failure_threshold;
            if flags.mode == AgentMode::Continuous
                && file.gate.taints.iter().any(|taint| taint.effect.as_str() == "NoExecute")
            {
                wrong.push(
                    "--taint-effect (TAINT_EFFECT) is NoExecute: in mode continuous a check that fails for some time would evict \
                     all pods of the node; use NoSchedule"
                        .into(),
                );
            }
            Some((file.gate, file.warnings.iter().map(|warning| in_flags(warning)).collect()))
        }
        Err(problems) => {
            wrong.extend(problems.iter().map(|problem| {
                let key = problem.key.split(['[', '.']).next().unwrap_or_default();
                let value = keys.get(key).unwrap_or(&Value::Null);
                let flag = FLAGS.iter().find(|(known, ..)| *known == key);
                let flag =
                    flag.map_or_else(|| key.to_owned(), |(_, flag, variable)| format!("{flag} ({variable})"));
                format!("{flag} {value}: {}", in_flags(&problem.message))
            }));
            None
        }
    }
}

/// The text with the names of flags for those of keys.
fn in_flags(text: &str) -> String {
    FLAGS.iter().fold(text.to_owned(), |text, (key, flag, _)| {
        // An item of a list is named as `key[0]`.
        let Some((before, after)) = text.split_once(&format!("`{key}")) else { return text };
        let after = after.split_once('`').map_or(after, |(_, after)| after);
        format!("{before}{flag}{after}")
    })
}

/// Where the checks find the cluster.
#[expect(clippy::disallowed_methods, reason = "the token of the pod is where its environment says")]
fn options(flags: &Agent) -> Result<real::Options, String> {
    let read = real::Options::from_environment(|name| std::env::var_os(name))?;
    let in_pod = flags.service_host.clone().map(|host| (host, flags.service_port));
    Ok(real::Options {
        node: flags.node_name.clone(),
        // An explicit kubeconfig overrides the cluster of the pod.
        api_server: if flags.kubeconfig.is_some() { None } else { in_pod },
        kubeconfig: flags.kubeconfig.clone(),
        dns_servers: dns_servers(flags, read.dns_servers)?,
        pods_at: flags.pods_at,
        ..read
    })
}

/// The address of the cluster DNS serves a dry run on a laptop; a pod has it in its resolv.conf.
fn dns_servers(flags: &Agent, read: Vec<std::net::SocketAddr>) -> Result<Vec<std::net::SocketAddr>, String> {
    if let Some(server) = flags.dns_server {
        return Ok(vec![server]);
    }
    match flags
        .cluster_dns_ip
        .as_deref()
        .filter(|address| !address.is_empty() && flags.dry_run && flags.service_host.is_none())
    {
        Some(address) => {
            let server = real::environment::read_server(address);
            server.map(|server| vec![server]).map_err(|_| {
                format!(
                    "--cluster-dns-ip (CLUSTER_DNS_IP) is {address:?}: write an IP address such as 10.96.0.10"
                )
            })
        }
        None => Ok(read),
    }
}
