//! The command lines of `nodekeeper agent` and `nodekeeper check`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::ValueEnum;

use super::LogFormat;

/// Flags of `nodekeeper agent`. Those that the gate has too are passed on as text: they are validated together.
#[derive(Debug, clap::Args)]
pub struct Agent {
    /// Name of the Node that the agent runs on
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    pub node_name: String,
    /// Whether the agent verifies its node again after the node has passed
    #[arg(long, env = "AGENT_MODE", value_enum, default_value_t = AgentMode::Once)]
    pub mode: AgentMode,
    /// NodeGate to enforce; its settings replace the flags about taints, label, attempts and checks
    ///
    /// Name the gate of a controller that runs in the same cluster with --agents: both then keep one record of the node.
    /// Without it the agent needs no NodeGate, and no CustomResourceDefinition.
    #[arg(long, env = "GATE", value_name = "NAME")]
    pub gate: Option<String>,
    /// How often the checks run in mode continuous, and after the attempts are used up, 10s to 24h
    #[arg(long, env = "CHECK_INTERVAL", value_name = "DURATION", default_value = "60s")]
    pub check_interval: String,
    /// Failures in a row after which a node that had passed is tainted again, 1 to 100
    #[arg(long, env = "FAILURE_THRESHOLD", value_name = "N", default_value = "3", value_parser = clap::value_parser!(i32).range(1..=100))]
    pub failure_threshold: i32,
    /// Attempts after the first one, 0 to 100
    #[arg(long, env = "MAX_RETRIES", value_name = "N", default_value = "5", value_parser = clap::value_parser!(i32).range(0..=100))]
    pub max_retries: i32,
    /// How the delay between attempts grows: exponential (1, 2, 4, 8, 16, 30 s) or linear (5, 10, 15 … 30 s)
    #[arg(long, env = "RETRY_BACKOFF", value_name = "BACKOFF", default_value = "exponential")]
    pub retry_backoff: String,
    /// Time that the attempts of a new node may take together without a verdict, 30s to 24h
    #[arg(long, env = "INITIAL_TIMEOUT", value_name = "DURATION", default_value = "300s")]
    pub initial_timeout: String,
    /// Time that one check may take, 1s to 10m
    #[arg(long, env = "CHECK_TIMEOUT", value_name = "DURATION", default_value = "10s")]
    pub check_timeout: String,
    /// Names that have to resolve, with commas between them; an IP address is a DNS server that has to answer
    /// [default: the name of the API server, and google.com, which only warns]
    #[arg(long, env = "DNS_TEST_DOMAINS", value_name = "NAMES", value_delimiter = ',')]
    pub dns_test_domains: Vec<String>,
    /// Address of the cluster DNS; used only by --dry-run outside of a cluster
    #[arg(long, env = "CLUSTER_DNS_IP", value_name = "IP")]
    pub cluster_dns_ip: Option<String>,
    /// Key of the taint that the agent removes
    #[arg(long, env = "TAINT_KEY", value_name = "KEY", default_value = "node-ready/unverified")]
    pub taint_key: String,
    /// Value that the taint gets when the agent puts it back
    #[arg(long, env = "TAINT_VALUE", value_name = "VALUE", default_value = "true")]
    pub taint_value: String,
    /// Effect of the taint: `NoSchedule`, `PreferNoSchedule` or, in mode once, `NoExecute`
    #[arg(long, env = "TAINT_EFFECT", value_name = "EFFECT", default_value = "NoSchedule")]
    pub taint_effect: String,
    /// Key of the label of a verified node
    #[arg(long, env = "VERIFIED_LABEL", value_name = "KEY", default_value = "node-ready/verified")]
    pub verified_label: String,
    /// Value of that label
    #[arg(long, env = "VERIFIED_LABEL_VALUE", value_name = "VALUE", default_value = "true")]
    pub verified_label_value: String,
    /// Host of the API server for the checks [default: that of the pod]
    #[arg(long = "k8s-service-host", env = "KUBERNETES_SERVICE_HOST", value_name = "HOST")]
    pub service_host: Option<String>,
    /// Port of the API server for the checks
    #[arg(
        long = "k8s-service-port",
        env = "KUBERNETES_SERVICE_PORT",
        value_name = "PORT",
        default_value = "443"
    )]
    pub service_port: u16,
    /// Kubeconfig for use outside of a cluster
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Namespace of the agent; for log lines only
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAME", default_value = "kube-system")]
    pub namespace: String,
    /// Name of the agent's pod, in Events [default: the host name]
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    pub identity: Option<String>,
    /// Serve /metrics
    #[arg(long, env = "ENABLE_METRICS", value_name = "BOOL", default_value = "true", num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub enable_metrics: bool,
    /// Port of /metrics
    #[arg(long, env = "METRICS_PORT", value_name = "PORT", default_value = "8080")]
    pub metrics_port: u16,
    /// Port of /healthz and /readyz; 0 to disable
    #[arg(long, env = "HEALTH_PORT", value_name = "PORT", default_value = "8081")]
    pub health_port: u16,
    /// Log level: error, warn, info, debug, trace, or a filter such as `info,nodekeeper_operator=debug`
    #[arg(long, env = "LOG_LEVEL", value_name = "LEVEL", default_value = "info")]
    pub log_level: String,
    /// Format of log lines
    #[arg(long, env = "LOG_FORMAT", value_enum, default_value_t = LogFormat::Json)]
    pub log_format: LogFormat,
    /// Verbosity of kube-node-ready's client library, which the agent does not have: 4 and more mean --log-level debug
    #[arg(long, env = "KLOG_VERBOSITY", value_name = "N", default_value = "0")]
    pub klog_verbosity: u8,
    /// Run the checks, say what would be done, and change nothing
    ///
    /// Outside of a cluster, without --kubeconfig, what needs a cluster is skipped. The exit code is that of the checks that
    /// ran: 0 passed, 1 a check failed, 3 inconclusive. In a pod the agent does not end, because a DaemonSet would restart it.
    #[arg(long, env = "DRY_RUN", value_name = "BOOL", default_value = "false", num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub dry_run: bool,
    /// Accepted for kube-node-ready, with a warning: an agent never deletes its node; a NodeGate with `onFailure: Replace` does
    #[arg(long, env = "DELETE_FAILED_NODE", value_name = "BOOL", default_value = "false", num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub delete_failed_node: bool,
    /// DNS server to ask instead of those in /etc/resolv.conf; for tests on one machine
    #[arg(long, value_name = "IP:PORT", hide = true)]
    pub dns_server: Option<std::net::SocketAddr>,
    /// Address that replaces all pod addresses; for tests on one machine
    #[arg(long, value_name = "IP:PORT", hide = true)]
    pub pods_at: Option<std::net::SocketAddr>,
}

/// Whether the agent goes on after its node has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AgentMode {
    /// Verify the node until it has passed, then idle
    Once,
    /// Go on verifying the node, and taint it again when it fails
    Continuous,
}

/// Flags of `nodekeeper check`.
#[derive(Debug, clap::Args)]
pub struct CheckNode {
    /// Names to resolve, instead of the name of the API server
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    /// Run only these checks, with commas between them: dns, api, tcp, services, peers, http, clock, mtu
    #[arg(long, value_name = "CHECKS", value_delimiter = ',')]
    pub only: Vec<String>,
    /// DNS server to ask instead of those in /etc/resolv.conf; may be repeated
    #[arg(long = "dns-server", value_name = "IP")]
    pub dns_servers: Vec<IpAddr>,
    /// Time in seconds that one check may take, 1 to 600
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = clap::value_parser!(u32).range(1..=600))]
    pub timeout: u32,
    /// Kubeconfig for use outside of a cluster; credential plugins are not run
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Name of the node, for the output
    #[arg(long, env = "NODE_NAME", value_name = "NAME", hide_env_values = true)]
    pub node_name: Option<String>,
}
