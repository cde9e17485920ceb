//! Edge: `nodekeeper controller` joins the machine to the controller: signals, clock, environment, logs.

use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig};
use nodekeeper_core::worker::{Allowed, Template};
use nodekeeper_operator::clock::Clock;
use nodekeeper_operator::config::{self, LegacyConfig};
use nodekeeper_operator::http::{Bind, Door, Pages, listen, serve};
use nodekeeper_operator::metrics::{Build, Metrics, Options};
use nodekeeper_operator::{Settings, counted_client, run as run_controller, telemetry};
use tokio::signal::unix::{SignalKind, signal};
use tracing::{info, warn};

use super::config::{Unusable, read};
use crate::args::{COMMIT, Controller, DATE, LogFormat};

/// Runs until it is told to stop.
pub fn run(told: Controller) -> Result<()> {
    let file = match &told.config {
        None => None,
        Some(config) => Some(match read(config, told.worker_config.as_deref()) {
            Ok(loaded) => loaded,
            Err(Unusable::Unread(error)) => return Err(error),
            Err(Unusable::Wrong(lines)) => bail!("--config is not taken:\n{}", lines.join("\n")),
        }),
    };
    let settled = settle(told, file)?;
    telemetry::start(settled.log_format, &settled.log_level)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(control(settled))
}

/// Flags and environment, then the file, then what the documentation says.
struct Settled {
    settings: Settings,
    kubeconfig: Option<String>,
    log_level: String,
    log_format: telemetry::Format,
    metrics: Bind,
    probes: Bind,
    warnings: Vec<String>,
}

fn settle(told: Controller, file: Option<LegacyConfig>) -> Result<Settled> {
    let has_file = file.is_some();
    let file = file.unwrap_or_default();
    let template = Template {
        namespace: told.namespace.or(file.namespace).unwrap_or_else(|| "nodekeeper-system".into()),
        image: told.worker_image,
        service_account: told
            .worker_service_account
            .or(file.service_account)
            .unwrap_or_else(|| "nodekeeper-worker".into()),
        priority_class: told.worker_priority_class,
        pull_secrets: told.worker_pull_secrets,
        allowed: Allowed {
            service_accounts: told.allow_service_accounts,
            secrets: told.allow_secrets,
            host_paths: told.allow_host_paths,
            privileged: told.allow_privileged,
        },
    };
    let seed = fastrand::u64(..);
    let name = told.identity.unwrap_or_else(host_name);
    let defaults = Settings::new(template, format!("{name}_{seed:016x}"), seed);
    let seed_names = told.metrics_seed_names.unwrap_or(has_file);
    let settings = Settings {
        lease: told.lease_name.or(file.lease_name).unwrap_or(defaults.lease),
        lease_namespace: file.lease_namespace,
        most_workers: told.max_workers.try_into()?,
        metrics: Arc::new(metrics(seed_names, told.metrics_per_node.unwrap_or(seed_names))),
        gate: has_file.then_some(file.gate),
        policy: file.policy,
        sweep: file.resync,
        ..defaults
    };
    let told_format = told.log_format.map(|format| match format {
        LogFormat::Json => telemetry::Format::Json,
        LogFormat::Console => telemetry::Format::Console,
    });
    let of_file = file.log_format.map(|format| match format {
        config::LogFormat::Json => telemetry::Format::Json,
        config::LogFormat::Console => telemetry::Format::Console,
    });
    Ok(Settled {
        settings,
        kubeconfig: file.kubeconfig,
        log_level: told.log_level.or(file.log_level).unwrap_or_else(|| "info".into()),
        log_format: told_format.or(of_file).unwrap_or(telemetry::Format::Json),
        metrics: address(told.metrics_bind_address, file.metrics.as_deref(), ":8080")?,
        probes: address(told.health_probe_bind_address, file.health.as_deref(), ":8081")?,
        warnings: file.warnings,
    })
}

/// What was typed, what the file says, or what the documentation says.
fn address(told: Option<Bind>, file: Option<&str>, usual: &str) -> Result<Bind> {
    match told {
        Some(told) => Ok(told),
        None => file.unwrap_or(usual).parse().map_err(anyhow::Error::msg),
    }
}

async fn control(settled: Settled) -> Result<()> {
    for warning in &settled.warnings {
        warn!(warning, "configuration file");
    }
    let Settings { template, lease, .. } = &settled.settings;
    let Template { namespace, image, service_account, .. } = template;
    info!(namespace, worker_image = image, worker_service_account = service_account, lease, "starting");
    let metrics = settled.settings.metrics.clone();
    let client = counted_client(cluster(settled.kubeconfig).await?, metrics.clone())
        .context("cannot make a client for the cluster")?;
    let pages = Pages { metrics, health: settled.settings.health.clone(), clock: Clock::real() };
    let probes = listen("--health-probe-bind-address", settled.probes).await?;
    let numbers = listen("--metrics-bind-address", settled.metrics).await?;
    for (door, listener) in [(Door::Probes, probes), (Door::Metrics, numbers)] {
        listener.map(|listener| tokio::spawn(serve(listener, door, pages.clone())));
    }
    let mut terminate = signal(SignalKind::terminate())?;
    let stop = async move {
        tokio::select! {
            biased;
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    };
    run_controller(client, settled.settings, pages.clock, stop).await;
    Ok(())
}

/// How the cluster is reached: as the environment says, else as the file does, else from inside a pod.
async fn cluster(kubeconfig: Option<String>) -> Result<Config> {
    match kubeconfig.filter(|_| std::env::var_os("KUBECONFIG").is_none()) {
        None => Config::infer()
            .await
            .context("no cluster to talk to: set KUBECONFIG, or run in a pod with a service account"),
        Some(path) => {
            let wrong = || format!("`kubernetes.kubeconfigPath` of the configuration file is {path}");
            let read = Kubeconfig::read_from(&path).with_context(wrong)?;
            Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await.with_context(wrong)
        }
    }
}

fn host_name() -> String {
    let read = std::fs::read_to_string("/proc/sys/kernel/hostname");
    read.map_or_else(|_| "nodekeeper".into(), |name| name.trim().to_owned())
}

fn metrics(seed_names: bool, per_node: bool) -> Metrics {
    let metrics = Metrics::new(Options { seed_names, per_node });
    metrics.build(Build { version: env!("CARGO_PKG_VERSION"), revision: COMMIT, date: DATE });
    metrics
}
