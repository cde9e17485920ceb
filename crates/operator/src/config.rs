//! The configuration file of kube-node-ready, read as it is: text in, a gate and settings out, or all that is wrong.
//!
//! Nothing here reads a file, the environment or a cluster, so `nodekeeper config check` says what a controller will.

mod containers;
mod gate;
mod section;
mod tree;
mod words;
mod worker;

use std::cell::RefCell;
use std::time::Duration;

use nodekeeper_core::api::{NodeGateSpec, RemediationPolicySpec};

use section::{Field, Findings, Section};
pub use section::{File, Problem};

/// The seed's image: it has none of our workers in it.
const OLD_IMAGE: &str = "ghcr.io/imunhatep/kube-node-ready";

/// What the files say. What they leave out is none, or the default of the gate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// The gate named `config`.
    pub gate: NodeGateSpec,
    /// The policy by which its nodes are replaced, if that is asked for and nobody made one.
    pub policy: Option<RemediationPolicySpec>,
    /// How often all nodes are gone over.
    pub sweep: Option<Duration>,
    /// Where workers run.
    pub namespace: Option<String>,
    /// As whom.
    pub service_account: Option<String>,
    /// Name of the lease.
    pub lease_name: Option<String>,
    /// Where the lease is, if not where workers run.
    pub lease_namespace: Option<String>,
    /// Where metrics are served, as `--metrics-bind-address` has it: `:8080`, or `0` for nowhere.
    pub metrics: Option<String>,
    /// Where probes are served, as `--health-probe-bind-address` has it.
    pub health: Option<String>,
    /// What is logged.
    pub log_level: Option<String>,
    /// How.
    pub log_format: Option<LogFormat>,
    /// How the cluster is reached.
    pub kubeconfig: Option<String>,
    /// What a person should look at.
    pub warnings: Vec<String>,
    /// What a person may like to know.
    pub hints: Vec<String>,
}

/// How logs are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// For people.
    Console,
}

/// Reads the controller's file and, if there is one, the worker's.
///
/// # Errors
/// All that is wrong with both.
pub fn load(config: &str, worker: Option<&str>) -> Result<Loaded, Vec<Problem>> {
    let findings = RefCell::default();
    let trees = (parse(config, File::Config), worker.map(|text| parse(text, File::Worker)).transpose());
    let (config, worker) = match trees {
        (Ok(config), Ok(worker)) => (config, worker),
        (config, worker) => return Err([config.err(), worker.err()].into_iter().flatten().collect()),
    };
    let config = Field::root(&findings, File::Config, &config);
    let worker = worker.as_ref().map(|worker| Field::root(&findings, File::Worker, worker));
    let mut loaded = read(&config, worker);
    let Findings { mut problems, idle, warnings } = findings.into_inner();
    problems.sort_by_key(|problem| (problem.file, problem.line));
    if !problems.is_empty() {
        return Err(problems);
    }
    loaded.warnings = warnings;
    if !idle.is_empty() {
        loaded.warnings.push(format!("these keys change nothing here: {}", idle.join(", ")));
    }
    Ok(loaded)
}

fn parse(text: &str, file: File) -> Result<tree::Node, Problem> {
    let wrong = |line, message| Problem { file, line, key: String::new(), message };
    let node = tree::parse(text).map_err(|(line, why)| wrong(line, format!("this is no YAML: {why}")))?;
    match node.value {
        tree::Value::Map(_) => Ok(node),
        _ => Err(wrong(node.line, "the file has to be keys and values, such as `worker:`".into())),
    }
}

fn read<'a>(config: &Field<'a>, worker_file: Option<Field<'a>>) -> Loaded {
    let mut root = config.section();
    let (mut loaded, beside) = (Loaded::default(), unwrap_values(&mut root));
    if beside.is_values {
        loaded.hints.push(
            "these are values of a Helm chart: `controller.config` and `worker.config` are read and the rest is not; \
             a controller is given what stands below `config`"
                .into(),
        );
    }
    let worker_file = worker_file.or(beside.worker_config);
    worker::read(&mut root, worker_file, &mut loaded);
    gate::read(&mut root, &mut loaded);
    processes(&mut root, &mut loaded);
    root.end();
    loaded
}

/// What stood around the configuration.
#[derive(Default)]
struct Beside<'a> {
    is_values: bool,
    worker_config: Option<Field<'a>>,
}

/// The values of the seed's chart hold the file below `controller.config`: people paste what its README shows.
fn unwrap_values<'a>(root: &mut Section<'a>) -> Beside<'a> {
    let inner = root.peek("controller").and_then(|controller| controller.section().take("config"));
    let Some(inner) = inner else { return Beside::default() };
    let worker = root.peek("worker").filter(Field::is_map);
    let worker_config = worker.and_then(|worker| worker.section().take("config"));
    *root = inner.section();
    Beside { is_values: true, worker_config }
}

/// What concerns the process and no node.
fn processes(root: &mut Section, loaded: &mut Loaded) {
    let mut election = root.section("leaderElection");
    if let Some(enabled) = election.take("enabled")
        && enabled.bool() == Some(false)
    {
        enabled.idle("a lease is always held: two controllers must never both write");
    }
    let id = election.take("id").and_then(words::optional);
    loaded.lease_name = id.and_then(|id| id.checked(words::is_name, words::NAME));
    let namespace = election.take("namespace").and_then(words::optional);
    loaded.lease_namespace = namespace.and_then(|field| field.checked(words::is_label, words::LABEL));
    election.end();

    let mut metrics = root.section("metrics");
    let enabled = metrics.take("enabled").and_then(|enabled| enabled.bool());
    let port = metrics.take("port").and_then(|port| port.int(1..=65_535));
    loaded.metrics = match (enabled, port) {
        (Some(false), _) => Some("0".into()),
        (_, port) => port.map(|port| format!(":{port}")),
    };
    metrics.end();

    let mut health = root.section("health");
    loaded.health = health.take("port").and_then(|port| port.int(1..=65_535)).map(|port| format!(":{port}"));
    health.end();

    let mut logging = root.section("logging");
    let levels = ["error", "warn", "info", "debug", "trace"].map(|level| (level, level));
    let level = logging.take("level").and_then(words::optional);
    loaded.log_level = level.and_then(|level| level.choice(&levels)).map(str::to_owned);
    let formats = [("json", LogFormat::Json), ("console", LogFormat::Console)];
    let format = logging.take("format").and_then(words::optional);
    loaded.log_format = format.and_then(|format| format.choice(&formats));
    logging.end();

    let mut kubernetes = root.section("kubernetes");
    loaded.kubeconfig =
        kubernetes.take("kubeconfigPath").and_then(words::optional).and_then(|path| path.text());
    for (key, default) in [("qps", 50), ("burst", 100)] {
        if let Some(field) = kubernetes.take(key)
            && field.int(0..=1_000_000).is_some_and(|told| told != default)
        {
            field.idle("requests are not throttled here: the API server does that");
        }
    }
    kubernetes.end();
}

#[cfg(test)]
mod tests;
