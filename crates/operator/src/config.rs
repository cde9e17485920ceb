//! Converts the configuration files of kube-node-ready to a gate and settings, or to a list of problems.
//!
//! Nothing here reads files, the environment or a cluster, so `nodekeeper config check` and the controller agree.

mod containers;
mod gate;
mod section;
mod spanned_yaml;
mod validators;
mod worker;

use std::cell::RefCell;
use std::time::Duration;

use nodekeeper_core::api::{NodeGateSpec, RemediationPolicySpec};
use nodekeeper_core::checks::Dns;

use section::{Field, Findings, Section};
pub use section::{File, Problem};

/// The image of kube-node-ready, which does not contain our worker.
const OLD_IMAGE: &str = "ghcr.io/imunhatep/kube-node-ready";

/// kube-node-ready resolves this name by default. Clusters without a way to the internet cannot, so it only warns.
const OPTIONAL_NAME: &str = "google.com.";

/// The settings of both files. A setting that is left out is none, or the default of the gate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LegacyConfig {
    /// The spec of the gate `config`.
    pub gate: NodeGateSpec,
    /// The RemediationPolicy to create if the file asks for replacement and the cluster has none.
    pub policy: Option<RemediationPolicySpec>,
    /// The interval at which all nodes are reconciled.
    pub resync: Option<Duration>,
    /// The namespace of the workers.
    pub namespace: Option<String>,
    /// The ServiceAccount of the workers.
    pub service_account: Option<String>,
    pub lease_name: Option<String>,
    /// The namespace of the Lease, if it is not that of the workers.
    pub lease_namespace: Option<String>,
    /// The value of `--metrics-bind-address`: `:8080`, or `0` to serve no metrics.
    pub metrics: Option<String>,
    /// The value of `--health-probe-bind-address`.
    pub health: Option<String>,
    pub log_level: Option<String>,
    pub log_format: Option<LogFormat>,
    /// The path of the kubeconfig.
    pub kubeconfig: Option<String>,
    /// What a user has to look at.
    pub warnings: Vec<String>,
    /// What a user may want to know.
    pub hints: Vec<String>,
}

/// The format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// One JSON object per line.
    Json,
    /// Text for a terminal.
    Console,
}

/// Reads the controller's file and, if there is one, the worker's.
///
/// # Errors
/// All problems of both files.
pub fn load(config: &str, worker: Option<&str>) -> Result<LegacyConfig, Vec<Problem>> {
    let findings = RefCell::default();
    let trees = (parse(config, File::Config), worker.map(|text| parse(text, File::Worker)).transpose());
    let (config, worker) = match trees {
        (Ok(config), Ok(worker)) => (config, worker),
        (config, worker) => return Err([config.err(), worker.err()].into_iter().flatten().collect()),
    };
    let config = Field::root(&findings, File::Config, &config);
    let worker = worker.as_ref().map(|worker| Field::root(&findings, File::Worker, worker));
    let mut legacy = read(&config, worker);
    let Findings { mut problems, idle, warnings } = findings.into_inner();
    problems.sort_by_key(|problem| (problem.file, problem.line));
    if !problems.is_empty() {
        return Err(problems);
    }
    legacy.warnings = warnings;
    if !idle.is_empty() {
        legacy.warnings.push(format!("these keys have no effect: {}", idle.join(", ")));
    }
    Ok(legacy)
}

fn parse(text: &str, file: File) -> Result<spanned_yaml::Node, Problem> {
    let wrong = |line, message| Problem { file, line, key: String::new(), message };
    let node = spanned_yaml::parse(text)
        .map_err(|(line, why)| wrong(line, format!("this is not valid YAML: {why}")))?;
    match node.value {
        spanned_yaml::Value::Map(_) => Ok(node),
        _ => Err(wrong(node.line, "the file must be a mapping of keys and values, such as `worker:`".into())),
    }
}

fn read<'a>(config: &Field<'a>, worker_file: Option<Field<'a>>) -> LegacyConfig {
    let mut root = config.section();
    let (mut legacy, beside) = (LegacyConfig::default(), unwrap_values(&mut root));
    legacy.gate.checks.dns = Some(Dns { optional: vec![OPTIONAL_NAME.into()], ..Dns::default() });
    if beside.is_values {
        legacy.hints.push(
            "these are values of a Helm chart: only `controller.config` and `worker.config` are read; \
             pass the controller what is below `config`"
                .into(),
        );
    }
    let worker_file = worker_file.or(beside.worker_config);
    worker::read(&mut root, worker_file, &mut legacy);
    gate::read(&mut root, &mut legacy);
    processes(&mut root, &mut legacy);
    root.end();
    legacy
}

/// The parts of Helm values around the configuration.
#[derive(Default)]
struct Beside<'a> {
    is_values: bool,
    worker_config: Option<Field<'a>>,
}

/// The values of kube-node-ready's chart hold the file below `controller.config`, and its README shows it that way.
fn unwrap_values<'a>(root: &mut Section<'a>) -> Beside<'a> {
    let inner = root.peek("controller").and_then(|controller| controller.section().take("config"));
    let Some(inner) = inner else { return Beside::default() };
    let worker = root.peek("worker").filter(Field::is_map);
    let worker_config = worker.and_then(|worker| worker.section().take("config"));
    *root = inner.section();
    Beside { is_values: true, worker_config }
}

/// Reads the settings of the controller process.
fn processes(root: &mut Section, legacy: &mut LegacyConfig) {
    let mut election = root.section("leaderElection");
    if let Some(enabled) = election.take("enabled")
        && enabled.bool() == Some(false)
    {
        enabled.idle("leader election is always on: two controllers must never both write");
    }
    let id = election.take("id").and_then(validators::optional);
    legacy.lease_name = id.and_then(|id| id.checked(validators::is_name, validators::NAME));
    let namespace = election.take("namespace").and_then(validators::optional);
    legacy.lease_namespace =
        namespace.and_then(|field| field.checked(validators::is_label, validators::LABEL));
    election.end();

    let mut metrics = root.section("metrics");
    let enabled = metrics.take("enabled").and_then(|enabled| enabled.bool());
    let port = metrics.take("port").and_then(|port| port.int(1..=65_535));
    legacy.metrics = match (enabled, port) {
        (Some(false), _) => Some("0".into()),
        (_, port) => port.map(|port| format!(":{port}")),
    };
    metrics.end();

    let mut health = root.section("health");
    legacy.health = health.take("port").and_then(|port| port.int(1..=65_535)).map(|port| format!(":{port}"));
    health.end();

    let mut logging = root.section("logging");
    let levels = ["error", "warn", "info", "debug", "trace"].map(|level| (level, level));
    let level = logging.take("level").and_then(validators::optional);
    legacy.log_level = level.and_then(|level| level.choice(&levels)).map(str::to_owned);
    let formats = [("json", LogFormat::Json), ("console", LogFormat::Console)];
    let format = logging.take("format").and_then(validators::optional);
    legacy.log_format = format.and_then(|format| format.choice(&formats));
    logging.end();

    let mut kubernetes = root.section("kubernetes");
    legacy.kubeconfig =
        kubernetes.take("kubeconfigPath").and_then(validators::optional).and_then(|path| path.text());
    for (key, default) in [("qps", 50), ("burst", 100)] {
        if let Some(field) = kubernetes.take(key)
            && field.int(0..=1_000_000).is_some_and(|value| value != default)
        {
            field.idle("requests are not throttled by the client: the API server limits them");
        }
    }
    kubernetes.end();
}

#[cfg(test)]
mod tests;
