//! Edge: `nodekeeper controller` joins the machine to the controller: signals, clock, environment, logs.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use nodekeeper_core::worker::{Allowed, Template};
use nodekeeper_operator::clock::Clock;
use nodekeeper_operator::http::{Door, Pages, listen, serve};
use nodekeeper_operator::metrics::{Build, Metrics, Options};
use nodekeeper_operator::{Settings, counted_client, run as run_controller, telemetry};
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{Controller, LogFormat};

/// Runs until it is told to stop.
pub fn run(told: Controller) -> Result<()> {
    let format = match told.log_format {
        LogFormat::Json => telemetry::Format::Json,
        LogFormat::Console => telemetry::Format::Console,
    };
    telemetry::start(format, &told.log_level)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(control(told))
}

async fn control(told: Controller) -> Result<()> {
    let config = kube::Config::infer()
        .await
        .context("no cluster to talk to: set KUBECONFIG, or run in a pod with a service account")?;
    let metrics = Arc::new(metrics(&told));
    let client = counted_client(config, metrics.clone()).context("cannot make a client for the cluster")?;
    let pages = Pages { metrics, health: Arc::default(), clock: Clock::real() };
    let probes = listen("--health-probe-bind-address", told.health_probe_bind_address).await?;
    let numbers = listen("--metrics-bind-address", told.metrics_bind_address).await?;
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
        metrics: pages.metrics,
        health: pages.health,
        ..Settings::new(template, format!("{name}_{seed:016x}"), seed)
    };
    run_controller(client, settings, pages.clock, stop).await;
    Ok(())
}

fn host_name() -> String {
    let read = std::fs::read_to_string("/proc/sys/kernel/hostname");
    read.map_or_else(|_| "nodekeeper".into(), |name| name.trim().to_owned())
}

fn metrics(told: &Controller) -> Metrics {
    let seed_names = told.metrics_seed_names;
    let metrics = Metrics::new(Options { seed_names, per_node: told.metrics_per_node.unwrap_or(seed_names) });
    metrics.build(Build {
        version: env!("CARGO_PKG_VERSION"),
        revision: option_env!("NODEKEEPER_REVISION").unwrap_or("unknown"),
        date: option_env!("NODEKEEPER_BUILD_DATE").unwrap_or("unknown"),
    });
    metrics
}
