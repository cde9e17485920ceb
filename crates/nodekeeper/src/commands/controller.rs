//! `nodekeeper controller` sets up signals, clock, logging and HTTP, and runs the controller.

#![expect(clippy::disallowed_methods, reason = "this is where the environment is read")]

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, bail};
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig};
use nodekeeper_core::configured::ConfiguredObject;
use nodekeeper_core::worker::{Allowed, Template};
use nodekeeper_operator::clock::Clock;
use nodekeeper_operator::config::{self, LegacyConfig, load_objects};
use nodekeeper_operator::http::{AdminState, Bind, Endpoint, listen, serve};
use nodekeeper_operator::metrics::{Build, Metrics, Options};
use nodekeeper_operator::{Settings, client_with_metrics, run as run_controller, telemetry};
use tokio::signal::unix::{SignalKind, signal};
use tracing::{info, warn};

use super::config::{ConfigError, read};
use crate::args::{COMMIT, Controller, DATE, LogFormat};

/// Runs the controller until SIGTERM or Ctrl-C.
pub fn run(flags: Controller) -> Result<()> {
    let file = match &flags.config {
        None => None,
        Some(config) => Some(match read(config, flags.worker_config.as_deref()) {
            Ok(loaded) => loaded,
            Err(ConfigError::Unreadable(error)) => return Err(error),
            Err(ConfigError::Invalid(lines)) => bail!("invalid --config:\n{}", lines.join("\n")),
        }),
    };
    let objects = flags.objects.as_deref().map(read_objects).transpose()?.unwrap_or_default();
    let resolved = resolve(flags, file, objects)?;
    telemetry::init(resolved.log_format, &resolved.log_level)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(control(resolved))
}

/// The effective configuration: flags and environment first, then the file, then defaults.
struct Resolved {
    settings: Settings,
    kubeconfig: Option<String>,
    log_level: String,
    log_format: telemetry::Format,
    metrics: Bind,
    probes: Bind,
    warnings: Vec<String>,
}

/// Reads the objects of `--objects`.
fn read_objects(path: &Path) -> Result<Vec<ConfiguredObject>> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read --objects {}", path.display()))?;
    load_objects(&text).map_err(|problems| {
        let lines = problems.iter().map(|problem| format!("{}:{}: {problem}", path.display(), problem.line));
        anyhow!("invalid --objects:\n{}", lines.collect::<Vec<_>>().join("\n"))
    })
}

/// The objects of both files. None can be in both.
fn all_objects(file: Option<&LegacyConfig>, objects: Vec<ConfiguredObject>) -> Result<Vec<ConfiguredObject>> {
    let mut all = file.map(LegacyConfig::objects).unwrap_or_default();
    if let Some(both) = objects.iter().find(|object| all.iter().any(|other| other.key == object.key)) {
        bail!("{} is in --objects, and --config creates it too: remove it from --objects", both.key);
    }
    all.extend(objects);
    Ok(all)
}

fn resolve(
    flags: Controller,
    file: Option<LegacyConfig>,
    objects: Vec<ConfiguredObject>,
) -> Result<Resolved> {
    let has_file = file.is_some();
    let objects = all_objects(file.as_ref(), objects)?;
    let file = file.unwrap_or_default();
    let of_file = &file.gate.worker;
    let image = flags.worker_image.or_else(|| of_file.image.clone());
    let template = Template {
        namespace: flags.namespace.or(file.namespace).unwrap_or_else(|| "nodekeeper-system".into()),
        image: image.context(
            "no worker image: set --worker-image <IMAGE>, WORKER_IMAGE, or `worker.image` of the configuration file",
        )?,
        service_account: flags
            .worker_service_account
            .or(file.service_account)
            .unwrap_or_else(|| "nodekeeper-worker".into()),
        priority_class: flags.worker_priority_class,
        pull_secrets: flags.worker_pull_secrets,
        allowed: Allowed {
            images: flags.allow_images.into_iter().chain(of_file.image.clone()).collect(),
            priority_classes: flags
                .allow_priority_classes
                .into_iter()
                .chain(of_file.priority_class_name.clone())
                .collect(),
            service_accounts: flags.allow_service_accounts,
            secrets: flags.allow_secrets,
            host_paths: flags.allow_host_paths,
            privileged: flags.allow_privileged,
        },
    };
    let seed = fastrand::u64(..);
    let name = flags.identity.unwrap_or_else(host_name);
    let defaults = Settings::new(template, format!("{name}_{seed:016x}"), seed);
    let compat_names = flags.metrics_compat_names.unwrap_or(has_file);
    let settings = Settings {
        lease: flags.lease_name.or(file.lease_name).unwrap_or(defaults.lease),
        lease_namespace: file.lease_namespace,
        most_workers: flags.max_workers.try_into()?,
        metrics: Arc::new(metrics(compat_names, flags.metrics_per_node.unwrap_or(compat_names))),
        objects,
        resync: file.resync,
        agents: flags.agents,
        agents_namespace: flags.agents_namespace,
        ..defaults
    };
    let flag_format = flags.log_format.map(log_format);
    let file_format = file.log_format.map(|format| match format {
        config::LogFormat::Json => telemetry::Format::Json,
        config::LogFormat::Console => telemetry::Format::Console,
    });
    Ok(Resolved {
        settings,
        kubeconfig: file.kubeconfig,
        log_level: flags.log_level.or(file.log_level).unwrap_or_else(|| "info".into()),
        log_format: flag_format.or(file_format).unwrap_or(telemetry::Format::Json),
        metrics: address(flags.metrics_bind_address, file.metrics.as_deref(), ":8080")?,
        probes: address(flags.health_probe_bind_address, file.health.as_deref(), ":8081")?,
        warnings: file.warnings,
    })
}

pub fn log_format(format: LogFormat) -> telemetry::Format {
    match format {
        LogFormat::Json => telemetry::Format::Json,
        LogFormat::Console => telemetry::Format::Console,
    }
}

/// The flag wins over the file, the file over the default.
fn address(flag: Option<Bind>, file: Option<&str>, default: &str) -> Result<Bind> {
    match flag {
        Some(bind) => Ok(bind),
        None => file.unwrap_or(default).parse().map_err(anyhow::Error::msg),
    }
}

async fn control(resolved: Resolved) -> Result<()> {
    for warning in &resolved.warnings {
        warn!(warning, "configuration file has a problem");
    }
    let Settings { template, lease, .. } = &resolved.settings;
    let Template { namespace, image, service_account, .. } = template;
    info!(namespace, worker_image = image, worker_service_account = service_account, lease, "starting");
    let metrics = resolved.settings.metrics.clone();
    let client = client_with_metrics(cluster_config(resolved.kubeconfig).await?, metrics.clone())
        .context("cannot create a client for the cluster")?;
    let state = AdminState { metrics, health: resolved.settings.health.clone(), clock: Clock::real() };
    let probes = listen("--health-probe-bind-address", resolved.probes).await?;
    let metrics = listen("--metrics-bind-address", resolved.metrics).await?;
    for (endpoint, listener) in [(Endpoint::Probes, probes), (Endpoint::Metrics, metrics)] {
        listener.map(|listener| tokio::spawn(serve(listener, endpoint, state.clone())));
    }
    run_controller(client, resolved.settings, state.clock, stop_signal()?).await;
    Ok(())
}

/// Completes at SIGTERM or Ctrl-C.
pub fn stop_signal() -> Result<impl Future<Output = ()> + Send + 'static> {
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            biased;
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    })
}

/// Finds the API server: `KUBECONFIG`, then the configuration file, then the service account of the pod.
async fn cluster_config(kubeconfig: Option<String>) -> Result<Config> {
    match kubeconfig.filter(|_| std::env::var_os("KUBECONFIG").is_none()) {
        None => Config::infer()
            .await
            .context("no cluster found: set KUBECONFIG, or run in a pod with a service account"),
        Some(path) => {
            let context =
                || format!("cannot use `kubernetes.kubeconfigPath` of the configuration file: {path}");
            let read = Kubeconfig::read_from(&path).with_context(context)?;
            Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await.with_context(context)
        }
    }
}

pub fn host_name() -> String {
    let read = std::fs::read_to_string("/proc/sys/kernel/hostname");
    read.map_or_else(|_| "nodekeeper".into(), |name| name.trim().to_owned())
}

fn metrics(compat_names: bool, per_node: bool) -> Metrics {
    let metrics = Metrics::new(Options { compat_names, per_node, agent: false });
    metrics.set_build_info(Build { version: env!("CARGO_PKG_VERSION"), revision: COMMIT, date: DATE });
    metrics
}
