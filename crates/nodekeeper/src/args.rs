//! The command line of `nodekeeper`.

mod agent;

use std::path::PathBuf;
use std::sync::LazyLock;

use clap::{Parser, Subcommand, ValueEnum};
use nodekeeper_operator::http::Bind;

pub use agent::{Agent, AgentMode, CheckNode};

/// The commit of this build.
pub const COMMIT: &str = match option_env!("NODEKEEPER_COMMIT") {
    Some(commit) => commit,
    None => "unknown",
};
/// The date of that commit, so that builds are reproducible.
pub const DATE: &str = match option_env!("NODEKEEPER_DATE") {
    Some(date) => date,
    None => "unknown",
};

fn version() -> &'static str {
    static VERSION: LazyLock<String> =
        LazyLock::new(|| format!("{} ({COMMIT}, {DATE})", env!("CARGO_PKG_VERSION")));
    &VERSION
}

/// Nodekeeper verifies new nodes of a Kubernetes cluster before pods run on them, and replaces nodes that fail
#[derive(Debug, Parser)]
#[command(version = version(), propagate_version = true)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the controller
    ///
    /// The controller runs a worker pod on each node that has the taint of a NodeGate, removes the taint from nodes that
    /// pass, and replaces nodes as the RemediationPolicy allows. Several replicas may run: one of them leads, elected with a
    /// Lease. It finds the API server with KUBECONFIG, or with the service account of its pod.
    ///
    /// Examples:
    ///   nodekeeper controller --worker-image registry.example.com/nodekeeper-worker:v1
    ///   nodekeeper controller --worker-image ... --config config.yaml --worker-config worker-config.yaml
    #[command(verbatim_doc_comment)]
    Controller(Box<Controller>),
    /// Run the agent on a node, as the pod of a DaemonSet
    ///
    /// The agent runs the checks of a worker pod on its own node, in its own process. When they pass, it removes the taint of
    /// the gate and sets the verified label; a node that fails stays tainted, is retried, and is verified again at an
    /// interval after that. The agent watches only its own Node and needs no leader.
    ///
    /// Mode once: it idles after the node has passed. The DaemonSet of the chart then removes its pod, because the node has
    /// the label. Mode continuous: it goes on, warns at a failure, taints the node again after the third in a row, and
    /// removes the taint when the checks pass.
    ///
    /// Flags win over environment variables, which win over defaults.
    ///
    /// Examples:
    ///   nodekeeper agent --node-name node-1 --mode continuous
    ///   nodekeeper agent --node-name "$(hostname)" --dry-run --log-format console      needs no cluster
    #[command(verbatim_doc_comment)]
    Agent(Box<Agent>),
    /// Run checks by hand on the machine or in the pod that this command runs in
    ///
    /// The images have no shell: this is what to run in the pod of an agent.
    ///
    /// Exit codes: 0 passed; 1 a check failed; 2 the command line is invalid; 3 inconclusive.
    ///
    /// Examples:
    ///   nodekeeper check
    ///   nodekeeper check --only dns kubernetes.default.svc.cluster.local.
    ///   kubectl exec -n nodekeeper-system ds/nodekeeper-agent -- nodekeeper check --only dns,api
    #[command(verbatim_doc_comment)]
    Check(CheckNode),
    /// Check a configuration file without a cluster
    #[command(subcommand)]
    Config(Config),
    /// Print the CustomResourceDefinitions, for `kubectl apply -f -`
    Crds {
        /// Print only this CustomResourceDefinition
        #[arg(value_enum)]
        kind: Option<Definition>,
    },
    /// Print a generated page of the documentation
    #[command(hide = true)]
    Reference {
        /// The command line, or the metrics
        #[arg(value_enum, default_value_t = Page::Cli)]
        page: Page,
    },
    /// Show the gate and remediation on an embedded cluster on this machine; takes about a minute
    ///
    /// Starts an embedded cluster in this process with the real controller, and 24 machines join it. Each registers with
    /// the taint node-ready/unverified. On each the controller runs the real worker as a process, which queries a real DNS
    /// server and a real TLS endpoint on loopback.
    ///
    /// First act, about 20 s:
    ///   20 machines are healthy: they are verified, lose the taint and get the label node-ready/verified=true.
    ///    3 machines are broken in different ways: they stay tainted and report why. One is repaired and verified.
    ///    1 machine reboots while its worker runs: the result of the boot before is discarded, and it is verified again.
    /// Second act, about 35 s:
    ///   A RemediationPolicy is created: one broken machine is replaced, one is protected by an annotation.
    ///   The DNS of all machines fails while two more join: no machine is replaced for it.
    ///
    /// On a terminal the demo shows a live table, without colours if `NO_COLOR` is set; otherwise it prints a line for each
    /// change. It installs nothing and uses only this process, its workers and a temporary folder.
    ///
    /// Exit code 0: the objects in the cluster are as expected at the end. Exit code 1: they are not.
    ///
    /// Examples:
    ///   nodekeeper demo
    ///   nodekeeper demo --keep                 prints kubectl commands to try
    ///   nodekeeper demo --keep --listen 127.0.0.1:6443 --kubeconfig demo.kubeconfig
    #[command(verbatim_doc_comment)]
    #[cfg(feature = "demo")]
    Demo(nodekeeper_demo::Demo),
}

/// Flags of `nodekeeper controller`.
#[derive(Debug, clap::Args)]
pub struct Controller {
    /// Configuration file of kube-node-ready; the controller applies it as the NodeGate `config`
    ///
    /// Flags win over environment variables, which win over the file. Validate a file with `nodekeeper config check`.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Worker configuration file of kube-node-ready
    #[arg(long, value_name = "FILE", requires = "config")]
    pub worker_config: Option<PathBuf>,
    /// File with a List of NodeGate and RemediationPolicy objects that the controller applies
    ///
    /// Objects that are missing are created. Later only fields that the file changes are patched, so edits of other fields
    /// stay, and `spec.pause` is never patched. Objects that the file no longer has stay. The condition
    /// `ConfigurationApplied` of each object says so.
    #[arg(long, value_name = "FILE")]
    pub objects: Option<PathBuf>,
    /// Namespace of the worker pods and of the Lease [default: nodekeeper-system]
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAME")]
    pub namespace: Option<String>,
    /// Identity of this replica in the Lease; a random suffix is appended [default: the host name]
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    pub identity: Option<String>,
    /// Image of the worker pods of gates that set no other; required unless the configuration file has one
    #[arg(long, env = "WORKER_IMAGE", value_name = "IMAGE")]
    pub worker_image: Option<String>,
    /// Service account of the worker pods [default: nodekeeper-worker]
    #[arg(long, env = "WORKER_SERVICE_ACCOUNT", value_name = "NAME")]
    pub worker_service_account: Option<String>,
    /// Priority class of the worker pods; empty for none
    #[arg(long, env = "WORKER_PRIORITY_CLASS", value_name = "NAME", default_value = "")]
    pub worker_priority_class: String,
    /// Image pull secret of the worker pods, in their namespace; may be repeated
    #[arg(long = "worker-pull-secret", value_name = "NAME")]
    pub worker_pull_secrets: Vec<String>,
    /// Further image that a NodeGate may set for its workers, with its tags and all images below it; may be repeated
    ///
    /// The image gets the token of the workers. That of the configuration file is always allowed.
    #[arg(long = "worker-allow-image", value_name = "IMAGE")]
    pub allow_images: Vec<String>,
    /// Priority class beginning with `system-` that a NodeGate may set for its workers; may be repeated
    ///
    /// Pods of such a class preempt others. That of the configuration file is always allowed.
    #[arg(long = "worker-allow-priority-class", value_name = "NAME")]
    pub allow_priority_classes: Vec<String>,
    /// Further service account that a NodeGate may set for its workers; may be repeated
    #[arg(long = "worker-allow-service-account", value_name = "NAME")]
    pub allow_service_accounts: Vec<String>,
    /// Allow the containers of gates to read this Secret of the workers' namespace; may be repeated
    #[arg(long = "worker-allow-secret", value_name = "NAME")]
    pub allow_secrets: Vec<String>,
    /// Host path that a NodeGate may mount into init containers, with all paths below it; may be repeated
    ///
    /// Users who can write a NodeGate can then read and write there, as root if --worker-allow-privileged is set too.
    #[arg(long = "worker-allow-host-path", value_name = "PATH")]
    pub allow_host_paths: Vec<String>,
    /// Allow a NodeGate to have init containers that run as root, are privileged or may escalate privileges
    ///
    /// Users who can write a NodeGate can then become root on every node.
    #[arg(long = "worker-allow-privileged")]
    pub allow_privileged: bool,
    /// Name of the Lease [default: kube-node-ready-leader]
    #[arg(long, value_name = "NAME")]
    pub lease_name: Option<String>,
    /// NodeGate whose nodes are left to agents: `nodekeeper agent --gate` runs on them, as a DaemonSet
    ///
    /// The controller starts no worker on a node of this gate while the agent's pod there is Ready, and waits 60 seconds for
    /// one that is not.
    #[arg(long, value_name = "NAME")]
    pub agents: Option<String>,
    /// Namespace of the agents [default: that of the worker pods]
    #[arg(long, value_name = "NAME", requires = "agents")]
    pub agents_namespace: Option<String>,
    /// Largest number of worker pods that run at once, 1 to 10000
    #[arg(long, value_name = "N", default_value = "100", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub max_workers: u32,
    /// Address of /metrics: a port such as :8080, an address such as 127.0.0.1:8080, or 0 to disable [default: :8080]
    #[arg(long, value_name = "ADDRESS")]
    pub metrics_bind_address: Option<Bind>,
    /// Address of /healthz and /readyz: a port such as :8081, an address, or 0 to disable [default: :8081]
    #[arg(long, value_name = "ADDRESS")]
    pub health_probe_bind_address: Option<Bind>,
    /// Also serve metrics under the names of kube-node-ready [default: true with --config, otherwise false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub metrics_compat_names: Option<bool>,
    /// Also serve metrics that have series for each node [default: the value of --metrics-compat-names]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub metrics_per_node: Option<bool>,
    /// Format of log lines [default: json]
    #[arg(long, value_enum)]
    pub log_format: Option<LogFormat>,
    /// Log level: error, warn, info, debug, trace, or a filter such as `info,nodekeeper_operator=debug` [default: info]
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum Config {
    /// Validate a configuration file of kube-node-ready, a NodeGate, a RemediationPolicy or a List of these
    ///
    /// Needs no cluster. Prints all errors with file and line, and warnings about fields that have no effect or another
    /// effect here, to standard error. A configuration may also be in a ConfigMap or in the values of a chart. Gates are
    /// checked by the rules of the API server.
    ///
    /// Exit code 0: the file is valid. Exit code 1: a file cannot be read. Exit code 2: the file is invalid.
    ///
    /// Examples:
    ///   nodekeeper config check config.yaml
    ///   nodekeeper config check config.yaml --worker-config worker-config.yaml
    ///   nodekeeper config check config.yaml --print | kubectl apply -f -
    ///   nodekeeper config check values.yaml
    ///   nodekeeper config check my-gate.yaml
    ///   kubectl get configmap X -o yaml | nodekeeper config check -
    #[command(verbatim_doc_comment)]
    Check(Check),
}

/// Flags of `nodekeeper config check`.
#[derive(Debug, clap::Args)]
pub struct Check {
    /// Controller configuration file, ConfigMap, chart values, NodeGate, RemediationPolicy or a List of these; `-` for
    /// standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Worker configuration file
    #[arg(long, value_name = "FILE")]
    pub worker_config: Option<PathBuf>,
    /// Print the resulting NodeGate, and the RemediationPolicy if nodes are replaced, for `kubectl apply -f -`
    ///
    /// Standard error lists the keys whose settings these objects do not have, and where they belong.
    #[arg(long)]
    pub print: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One JSON object per line
    Json,
    /// Human-readable text
    Console,
}

/// The CustomResourceDefinitions by their plural names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Definition {
    /// How new nodes are verified
    Nodegates,
    /// Requests to replace a node, and their progress
    Noderemediations,
    /// Limits of remediation
    Remediationpolicies,
}

/// Pages of the documentation that `make generate` writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Page {
    /// `docs/cli.md`
    Cli,
    /// `docs/metrics.md`
    Metrics,
}
