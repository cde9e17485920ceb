//! Edge: `nodekeeper controller` joins the machine to the controller: signals, clock, environment, logs.

use anyhow::{Context as _, Result};
use nodekeeper_core::worker::{Allowed, Template};
use nodekeeper_operator::clock::Clock;
use nodekeeper_operator::{Settings, client, run as run_controller};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::args::{Controller, LogFormat};

/// Runs until it is told to stop.
pub fn run(told: Controller) -> Result<()> {
    log(&told)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(control(told))
}

async fn control(told: Controller) -> Result<()> {
    let config = kube::Config::infer()
        .await
        .context("no cluster to talk to: set KUBECONFIG, or run in a pod with a service account")?;
    let client = client(config).context("cannot make a client for the cluster")?;
    let mut terminate = signal(SignalKind::terminate())?;
    let stop = async move {
        tokio::select! {
            biased;
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    };
    let seed = fastrand::u64(..);
    let name = told.identity.unwrap_or_else(host_name);
    let template = Template {
        namespace: told.namespace,
        image: told.worker_image,
        service_account: told.worker_service_account,
        priority_class: told.worker_priority_class,
        pull_secrets: told.worker_pull_secrets,
        allowed: Allowed {
            service_accounts: told.allow_service_accounts,
            host_paths: told.allow_host_paths,
            privileged: told.allow_privileged,
        },
    };
    let settings = Settings {
        lease: told.lease_name,
        most_workers: told.max_workers.try_into()?,
        ..Settings::new(template, format!("{name}_{seed:016x}"), seed)
    };
    run_controller(client, settings, Clock::real(), stop).await;
    Ok(())
}

fn host_name() -> String {
    let read = std::fs::read_to_string("/proc/sys/kernel/hostname");
    read.map_or_else(|_| "nodekeeper".into(), |name| name.trim().to_owned())
}

fn log(told: &Controller) -> Result<()> {
    let wrong = || {
        let level = &told.log_level;
        format!(
            "--log-level {level}: give error, warn, info, debug or trace, or a filter such as info,nodekeeper_operator=debug"
        )
    };
    // A filter takes any single word for the name of a module, and would log nothing at all.
    if !told.log_level.contains(['=', ',']) {
        told.log_level.parse::<LevelFilter>().with_context(wrong)?;
    }
    let filter = EnvFilter::try_new(&told.log_level).with_context(wrong)?;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match told.log_format {
        LogFormat::Json => lines.json().flatten_event(true).with_target(false).init(),
        LogFormat::Console => lines.with_target(false).init(),
    }
    Ok(())
}
