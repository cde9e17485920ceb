//! Reads the objects that the installation brings, and converts the configuration files of kube-node-ready to such objects
//! and settings; or returns a list of problems.
//!
//! Nothing here reads files, the environment or a cluster, so `nodekeeper config check` and the controller agree.

mod cel;
mod containers;
mod crd;
mod daemon_set;
mod gate;
mod manifest;
mod objects;
mod section;
mod source;
mod spanned_yaml;
mod validators;
mod worker;

use std::cell::RefCell;
use std::time::Duration;

use nodekeeper_core::api::{NodeGateSpec, RemediationPolicySpec};
use nodekeeper_core::checks::Dns;

use daemon_set::DaemonSet;
pub use manifest::check_manifest;
pub use objects::load_objects;
use section::{Field, Findings, Section};
pub use section::{File, Problem};
use source::Source;
pub use validators::duration_seconds;

/// The name of kube-node-ready's image, which does not contain our worker, in every registry.
const OLD_IMAGE: &str = "kube-node-ready";

/// kube-node-ready resolves this name by default. Clusters without a way to the internet cannot, so it only warns.
const OPTIONAL_NAME: &str = "google.com.";

/// The settings of both files. A setting that is left out is none, or the default of the gate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LegacyConfig {
    /// The spec of the gate `config`.
    pub gate: NodeGateSpec,
    /// The spec of the policy `default`, if the file asks for replacement.
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
    /// The keys whose settings are neither in the gate nor in the policy, each with where it is set without a file.
    pub outside_objects: Vec<String>,
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

impl LegacyConfig {
    /// Remembers that neither the gate nor the policy has this setting.
    fn outside_objects(&mut self, field: &Field, place: &str) {
        self.outside_objects.push(format!("`{}`: {place}", field.path));
    }
}

/// Reads the controller's file and, if there is one, the worker's.
///
/// # Errors
/// All problems of both files.
pub fn load(config: &str, worker: Option<&str>) -> Result<LegacyConfig, Vec<Problem>> {
    let findings = RefCell::default();
    let (source, worker) = match (source::config(config), worker.map(source::worker).transpose()) {
        (Ok(source), Ok(worker)) => (source, worker),
        (source, worker) => return Err([source.err(), worker.err()].into_iter().flatten().collect()),
    };
    let Source { config, worker: beside, warnings, hints } = source;
    let worker = worker.or(beside);
    let mut legacy =
        read(&Field::root(&findings, &config), worker.as_ref().map(|worker| Field::root(&findings, worker)));
    let Findings { mut problems, idle, warnings: found } = findings.into_inner();
    if problems.is_empty() {
        problems = manifest::refused(&legacy.gate, &config, worker.as_ref());
    }
    problems.sort_by_key(|problem| (problem.file, problem.line));
    if !problems.is_empty() {
        return Err(problems);
    }
    (legacy.warnings, legacy.hints) = (warnings, hints);
    legacy.warnings.extend(found);
    if !idle.is_empty() {
        legacy.warnings.push(format!("these keys have no effect: {}", idle.join(", ")));
    }
    Ok(legacy)
}

fn read<'a>(config: &Field<'a>, worker_file: Option<Field<'a>>) -> LegacyConfig {
    let mut root = config.section();
    let mut legacy = LegacyConfig::default();
    legacy.gate.checks.dns = Some(Dns { optional: vec![OPTIONAL_NAME.into()], ..Dns::default() });
    let daemon_set = DaemonSet::take(&mut root);
    worker::read(&mut root, worker_file, &mut legacy);
    gate::read(&mut root, &mut legacy);
    processes(&mut root, &mut legacy);
    daemon_set.read(&mut root, &mut legacy);
    root.end();
    legacy
}

/// Reads the settings of the controller process.
fn processes(root: &mut Section, legacy: &mut LegacyConfig) {
    let mut election = root.section("leaderElection");
    if let Some(enabled) = election.take("enabled")
        && enabled.bool() == Some(false)
    {
        enabled.idle("leader election is always on: two controllers must never both write");
    }
    if let Some(id) = election.take("id").and_then(validators::optional) {
        legacy.lease_name = id.checked(validators::is_name, validators::NAME);
        legacy.outside_objects(&id, "the flag --lease-name; `controller.leaseName` in the chart");
    }
    if let Some(namespace) = election.take("namespace").and_then(validators::optional) {
        legacy.lease_namespace = namespace.checked(validators::is_label, validators::LABEL);
        legacy
            .outside_objects(&namespace, "only a file has it; the Lease is where the workers are otherwise");
    }
    election.end();

    let mut section = root.section("metrics");
    metrics(section.take("enabled"), section.take("port"), legacy);
    section.end();

    let mut health = root.section("health");
    if let Some(port) = health.take("port") {
        legacy.health = port.int(1..=65_535).map(|port| format!(":{port}"));
        legacy.outside_objects(&port, "the flag --health-probe-bind-address; `health.port` in the chart");
    }
    health.end();

    let mut logging = root.section("logging");
    log_level(logging.take("level").and_then(validators::optional), legacy);
    log_format(logging.take("format").and_then(validators::optional), legacy);
    logging.end();

    let mut kubernetes = root.section("kubernetes");
    if let Some(path) = kubernetes.take("kubeconfigPath").and_then(validators::optional) {
        legacy.kubeconfig = path.text();
        legacy.outside_objects(&path, "the environment variable KUBECONFIG");
    }
    for (key, default) in [("qps", 50), ("burst", 100)] {
        if let Some(field) = kubernetes.take(key)
            && field.int(0..=1_000_000).is_some_and(|value| value != default)
        {
            field.idle("requests are not throttled by the client: the API server limits them");
        }
    }
    kubernetes.end();
}

/// Reads where metrics are served.
fn metrics(enabled: Option<Field>, port: Option<Field>, legacy: &mut LegacyConfig) {
    let read_port = port.as_ref().and_then(|port| port.int(1..=65_535));
    if enabled.as_ref().and_then(Field::bool) == Some(false) {
        legacy.metrics = Some("0".into());
    } else if let Some(port) = read_port {
        legacy.metrics = Some(format!(":{port}"));
    }
    for (field, value) in [(enabled, "metrics.enabled"), (port, "metrics.port")] {
        if let Some(field) = field {
            legacy
                .outside_objects(&field, &format!("the flag --metrics-bind-address; `{value}` in the chart"));
        }
    }
}

fn log_level(level: Option<Field>, legacy: &mut LegacyConfig) {
    let Some(level) = level else { return };
    let levels = ["error", "warn", "info", "debug", "trace"].map(|level| (level, level));
    legacy.log_level = level.choice(&levels).map(str::to_owned);
    legacy.outside_objects(&level, "the flag --log-level; `controller.logLevel` in the chart");
}

fn log_format(format: Option<Field>, legacy: &mut LegacyConfig) {
    let Some(format) = format else { return };
    legacy.log_format = format.choice(&[("json", LogFormat::Json), ("console", LogFormat::Console)]);
    legacy.outside_objects(&format, "the flag --log-format; `controller.logFormat` in the chart");
}

#[cfg(test)]
mod tests;
