//! `nodekeeper agent` sets up the checks, signals, logging and HTTP, and runs the agent.

#![expect(clippy::disallowed_methods, reason = "this is where the environment is read")]

mod checks;
mod dry_run;
mod settings;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow};
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig};
use nodekeeper_operator::agent::{AgentSettings, GateSource, run as run_agent};
use nodekeeper_operator::clock::Clock;
use nodekeeper_operator::http::{AdminState, Bind, Endpoint, listen, serve};
use nodekeeper_operator::metrics::{Build, Metrics, Options};
use nodekeeper_operator::{client_with_metrics, telemetry};
use tracing::{info, warn};

use super::controller::{host_name, log_format, stop_signal};
use crate::args::{Agent, COMMIT, DATE};
use checks::NodeChecks;
use settings::Resolved;

/// The exit code of an invalid command line, as clap has it.
const INVALID: u8 = 2;

/// Runs the agent until SIGTERM or Ctrl-C.
pub fn run(flags: Agent) -> ExitCode {
    let resolved = match settings::resolve(&flags) {
        Ok(resolved) => resolved,
        Err(lines) => {
            for line in lines {
                eprintln!("error: {line}");
            }
            return ExitCode::from(INVALID);
        }
    };
    match start(flags, resolved) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(flags: Agent, resolved: Resolved) -> Result<ExitCode> {
    telemetry::init(log_format(flags.log_format), &resolved.log_level)?;
    for warning in &resolved.warnings {
        warn!(warning, "setting of the agent");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    if flags.dry_run {
        return runtime.block_on(dry_run::run(&flags, resolved));
    }
    runtime.block_on(serve_node(flags, resolved))?;
    Ok(ExitCode::SUCCESS)
}

/// Verifies the node until the process is asked to stop.
async fn serve_node(flags: Agent, resolved: Resolved) -> Result<()> {
    let Resolved { spec, timing, options, .. } = resolved;
    let (node, mode) = (flags.node_name.as_str(), flags.mode);
    info!(node, ?mode, gate = flags.gate, namespace = flags.namespace, "starting");
    let metrics = Arc::new(Metrics::new(Options { agent: true, ..Options::default() }));
    metrics.set_build_info(Build { version: env!("CARGO_PKG_VERSION"), revision: COMMIT, date: DATE });
    let client = client_with_metrics(cluster_config(&flags).await?, metrics.clone())
        .context("cannot create a client for the cluster")?;
    let seed = fastrand::u64(..);
    let settings = AgentSettings {
        node: flags.node_name.clone(),
        gate: flags.gate.map_or_else(|| GateSource::Flags(Box::new(spec)), GateSource::NodeGate),
        timing,
        identity: flags.identity.unwrap_or_else(host_name),
        seed,
        metrics: metrics.clone(),
        health: Arc::default(),
    };
    let state = AdminState { metrics, health: settings.health.clone(), clock: Clock::real() };
    let port = |enabled: bool, port: u16| {
        if enabled && port > 0 { Bind::AllAddresses(port) } else { Bind::Disabled }
    };
    let probes = listen("--health-port", port(true, flags.health_port)).await?;
    let served = listen("--metrics-port", port(flags.enable_metrics, flags.metrics_port)).await?;
    for (endpoint, listener) in [(Endpoint::Probes, probes), (Endpoint::Metrics, served)] {
        listener.map(|listener| tokio::spawn(serve(listener, endpoint, state.clone())));
    }
    let stop = stop_signal()?;
    run_agent(client, settings, Arc::new(NodeChecks::new(options)), state.clock, stop).await;
    Ok(())
}

/// Finds the API server: the kubeconfig, or the service account of the pod.
async fn cluster_config(flags: &Agent) -> Result<Config> {
    if let Some(path) = &flags.kubeconfig {
        let context = || format!("cannot use --kubeconfig {}", path.display());
        let read = Kubeconfig::read_from(path).with_context(context)?;
        return Config::from_custom_kubeconfig(read, &KubeConfigOptions::default())
            .await
            .with_context(context);
    }
    let mut config = Config::incluster().context(
        "no cluster found: set --kubeconfig, run in a pod with a service account, or try --dry-run",
    )?;
    // The flag may name another address than the environment of the pod.
    if let Some(host) = &flags.service_host {
        let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        let url = format!("https://{host}:{}", flags.service_port);
        config.cluster_url =
            url.parse().map_err(|error| anyhow!("--k8s-service-host {host:?} is no host: {error}"))?;
    }
    Ok(config)
}
