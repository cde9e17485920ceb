//! Edge: `nodekeeper controller` joins the machine to the controller: signals, clock, environment, logs.

use anyhow::{Context as _, Result, bail};
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig};
use nodekeeper_core::worker::{Allowed, Template};
use nodekeeper_operator::clock::Clock;
use nodekeeper_operator::config::{self, Loaded};
use nodekeeper_operator::{Settings, client, run as run_controller};
use tokio::signal::unix::{SignalKind, signal};
use tracing::{info, warn};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use super::config::{Unusable, read};
use crate::args::{Controller, LogFormat};

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
    log(settled.log_format, &settled.log_level)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(control(settled))
}

/// Flags and environment, then the file, then what the documentation says.
struct Settled {
    settings: Settings,
    kubeconfig: Option<String>,
    log_level: String,
    log_format: LogFormat,
    warnings: Vec<String>,
}

fn settle(told: Controller, file: Option<Loaded>) -> Result<Settled> {
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
            host_paths: told.allow_host_paths,
            privileged: told.allow_privileged,
        },
    };
    let seed = fastrand::u64(..);
    let name = told.identity.unwrap_or_else(host_name);
    let defaults = Settings::new(template, format!("{name}_{seed:016x}"), seed);
    let settings = Settings {
        lease: told.lease_name.or(file.lease_name).unwrap_or(defaults.lease),
        lease_namespace: file.lease_namespace,
        most_workers: told.max_workers.try_into()?,
        gate: has_file.then_some(file.gate),
        sweep: file.sweep,
        ..defaults
    };
    let of_file = file.log_format.map(|format| match format {
        config::LogFormat::Json => LogFormat::Json,
        config::LogFormat::Console => LogFormat::Console,
    });
    Ok(Settled {
        settings,
        kubeconfig: file.kubeconfig,
        log_level: told.log_level.or(file.log_level).unwrap_or_else(|| "info".into()),
        log_format: told.log_format.or(of_file).unwrap_or(LogFormat::Json),
        warnings: file.warnings,
    })
}

async fn control(settled: Settled) -> Result<()> {
    for warning in &settled.warnings {
        warn!(warning, "configuration file");
    }
    let Settings { template, lease, .. } = &settled.settings;
    let Template { namespace, image, service_account, .. } = template;
    info!(namespace, worker_image = image, worker_service_account = service_account, lease, "starting");
    let client =
        client(cluster(settled.kubeconfig).await?).context("cannot make a client for the cluster")?;
    let mut terminate = signal(SignalKind::terminate())?;
    let stop = async move {
        tokio::select! {
            biased;
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    };
    run_controller(client, settled.settings, Clock::real(), stop).await;
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

fn log(format: LogFormat, level: &str) -> Result<()> {
    let wrong = || {
        format!(
            "--log-level {level}: give error, warn, info, debug or trace, or a filter such as info,nodekeeper_operator=debug"
        )
    };
    // A filter takes any single word for the name of a module, and would log nothing at all.
    if !level.contains(['=', ',']) {
        level.parse::<LevelFilter>().with_context(wrong)?;
    }
    let filter = EnvFilter::try_new(level).with_context(wrong)?;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Json => lines.json().flatten_event(true).with_target(false).init(),
        LogFormat::Console => lines.with_target(false).init(),
    }
    Ok(())
}
