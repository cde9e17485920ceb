//! What can be typed.

#[cfg(feature = "sim")]
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::LazyLock;

use clap::{Parser, Subcommand, ValueEnum};
use nodekeeper_operator::http::Bind;

/// The commit that this was built from.
pub const COMMIT: &str = match option_env!("NODEKEEPER_COMMIT") {
    Some(commit) => commit,
    None => "unknown",
};
/// The day of that commit: two builds of it are the same.
pub const DATE: &str = match option_env!("NODEKEEPER_DATE") {
    Some(date) => date,
    None => "unknown",
};

fn version() -> &'static str {
    static VERSION: LazyLock<String> =
        LazyLock::new(|| format!("{} ({COMMIT}, {DATE})", env!("CARGO_PKG_VERSION")));
    &VERSION
}

/// Nodekeeper looks after the nodes of a Kubernetes cluster from birth to burial.
#[derive(Debug, Parser)]
#[command(version = version(), propagate_version = true)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the controller: verify new nodes and open their gates
    ///
    /// Reads the node gates, starts worker pods on the nodes that bear a gate's taint, and takes the taint from those that
    /// pass. Any number of controllers can run: one of them leads. Reaches the cluster as kubectl does: KUBECONFIG, or
    /// the service account of its pod.
    Controller(Box<Controller>),
    /// Check a configuration file without a cluster
    #[command(subcommand)]
    Config(Config),
    /// Print the custom resource definitions, ready for `kubectl apply -f -`
    Crds {
        /// Only this one
        #[arg(value_enum)]
        kind: Option<Definition>,
    },
    /// Print a page of the documentation
    #[command(hide = true)]
    Reference {
        /// Which: all that `--help` says, or all that `/metrics` serves
        #[arg(value_enum, default_value_t = Page::Cli)]
        page: Page,
    },
    /// Show the gate at work: 24 machines join a cluster in memory, on this machine, in half a minute
    ///
    /// Starts an embedded cluster, puts the real controller into it, and lets 24 machines join. Each registers with the
    /// taint node-ready/unverified. On each the controller runs a worker, the real one, as a process of its own, which
    /// asks a real DNS server and a real TLS endpoint on loopback. Then:
    ///
    ///   20 machines are in order: they are verified, lose the taint and get the label node-ready/verified=true.
    ///    3 are broken, each in its own way: they stay tainted and say why. One of them is healed, and let in.
    ///    1 is booted again while its worker looks: what the boot before left behind does not count, and it is
    ///      verified once more.
    ///
    /// On a terminal it is a table that is drawn anew, without colours where `NO_COLOR` is set; elsewhere it is a line
    /// a change. Nothing is installed, and nothing outside of this process, its workers and one temporary folder is
    /// touched.
    ///
    /// Exit code 0 means that all ended as it should: the objects in the cluster are looked at, not the table.
    ///
    /// Examples:
    ///   nodekeeper demo
    ///   nodekeeper demo --keep                 and then look around with kubectl
    ///   nodekeeper demo --keep --listen 127.0.0.1:6443 --kubeconfig demo.kubeconfig
    #[command(verbatim_doc_comment)]
    #[cfg(feature = "sim")]
    Demo(Demo),
}

/// Flags of `nodekeeper controller`.
#[derive(Debug, clap::Args)]
pub struct Controller {
    /// Configuration file, as kube-node-ready has it: becomes the node gate named `config`
    ///
    /// Flags win over the environment, the environment over the file. `nodekeeper config check` says what a file means.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The worker's configuration file, as kube-node-ready has it
    #[arg(long, value_name = "FILE", requires = "config")]
    pub worker_config: Option<PathBuf>,
    /// Where worker pods run, and where the lease is [default: nodekeeper-system]
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAME")]
    pub namespace: Option<String>,
    /// Who this controller is in the lease; a part that never repeats is added [default: the host's name]
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    pub identity: Option<String>,
    /// Image of the workers, where a gate names no other
    #[arg(long, env = "WORKER_IMAGE", value_name = "IMAGE")]
    pub worker_image: String,
    /// Service account of the workers [default: nodekeeper-worker]
    #[arg(long, env = "WORKER_SERVICE_ACCOUNT", value_name = "NAME")]
    pub worker_service_account: Option<String>,
    /// Priority class of the workers; none if empty
    #[arg(long, env = "WORKER_PRIORITY_CLASS", value_name = "NAME", default_value = "")]
    pub worker_priority_class: String,
    /// Secrets to pull the workers' images with, in their namespace; may be repeated
    #[arg(long = "worker-pull-secret", value_name = "NAME")]
    pub worker_pull_secrets: Vec<String>,
    /// Another service account that gates may name for their workers; may be repeated
    #[arg(long = "worker-allow-service-account", value_name = "NAME")]
    pub allow_service_accounts: Vec<String>,
    /// A Secret in the workers' namespace that containers of gates may read; may be repeated
    #[arg(long = "worker-allow-secret", value_name = "NAME")]
    pub allow_secrets: Vec<String>,
    /// A path of the nodes that gates may mount into init containers, with all that is below it; may be repeated
    ///
    /// Whoever can write gates can then read and write there, as root if --worker-allow-privileged is given too.
    #[arg(long = "worker-allow-host-path", value_name = "PATH")]
    pub allow_host_paths: Vec<String>,
    /// Let gates have init containers that are root, privileged, or can become it
    ///
    /// Whoever can write gates is then root on every node.
    #[arg(long = "worker-allow-privileged")]
    pub allow_privileged: bool,
    /// Name of the lease [default: kube-node-ready-leader]
    #[arg(long, value_name = "NAME")]
    pub lease_name: Option<String>,
    /// How many workers may run at once
    #[arg(long, value_name = "N", default_value = "100", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub max_workers: u32,
    /// Where /metrics is served: a port of every address, one address, or 0 for nowhere [default: :8080]
    #[arg(long, value_name = "ADDRESS")]
    pub metrics_bind_address: Option<Bind>,
    /// Where /healthz and /readyz are served: a port of every address, one address, or 0 for nowhere [default: :8081]
    #[arg(long, value_name = "ADDRESS")]
    pub health_probe_bind_address: Option<Bind>,
    /// Serve the metrics of kube-node-ready too, under its names [default: with --config]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub metrics_seed_names: Option<bool>,
    /// Serve metrics that have a series for each node [default: as --metrics-seed-names]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub metrics_per_node: Option<bool>,
    /// How logs are written [default: json]
    #[arg(long, value_enum)]
    pub log_format: Option<LogFormat>,
    /// What is logged: error, warn, info, debug, or a filter such as `info,nodekeeper_operator=debug` [default: info]
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<String>,
}

/// What can be done with a configuration file.
#[derive(Debug, Subcommand)]
pub enum Config {
    /// Say what a configuration file of kube-node-ready means here, and all that is wrong with it
    ///
    /// Needs no cluster. Warnings go to standard error: what does nothing here, what is done otherwise. Exit code 0: a
    /// controller takes the file; 2: it does not, and each line says where, what and how to mend it.
    ///
    /// Examples:
    ///   nodekeeper config check config.yaml
    ///   nodekeeper config check config.yaml --worker-config worker-config.yaml
    ///   nodekeeper config check config.yaml --print | kubectl apply -f -
    ///   kubectl get configmap X -o jsonpath='{.data.config\.yaml}' | nodekeeper config check -
    #[command(verbatim_doc_comment)]
    Check(Check),
}

/// Flags of `nodekeeper config check`.
#[derive(Debug, clap::Args)]
pub struct Check {
    /// The controller's file; `-` is standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The worker's file
    #[arg(long, value_name = "FILE")]
    pub worker_config: Option<PathBuf>,
    /// Print the node gate that comes of it, and the remediation policy if nodes are replaced, ready for `kubectl apply -f -`
    #[arg(long)]
    pub print: bool,
}

/// How logs are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One JSON object a line
    Json,
    /// For people
    Console,
}

/// The custom resource definitions, by the names that the API server serves them under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Definition {
    /// Gates before new nodes
    Nodegates,
    /// Wishes to have nodes replaced, and what became of them
    Noderemediations,
    /// The brakes on every destructive act
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

/// Flags of `nodekeeper demo`.
#[cfg(feature = "sim")]
#[derive(Debug, clap::Args)]
pub struct Demo {
    /// Leave the cluster up until ctrl-c, and print how to reach it with kubectl
    #[arg(long)]
    pub keep: bool,
    /// Where the API server of the demo listens; port 0 is any that is free
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// Where to write the kubeconfig [default: a temporary file, removed at the end]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The worker's binary [default: nodekeeper-worker, in the folder of this binary]
    #[arg(long, value_name = "FILE")]
    pub worker: Option<PathBuf>,
}
