//! `--dry-run`: runs the checks, says what would be done, and changes nothing. It needs no cluster.

use std::process::ExitCode;

use anyhow::Result;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client};
use nodekeeper_checks::real::Real;
use nodekeeper_checks::{console, run_with_progress};
use nodekeeper_core::api::NodeGateSpec;
use nodekeeper_core::checks::{Assignment, WorkerIdentity};
use nodekeeper_core::report::{Report, Verdict};
use nodekeeper_core::worker::assignment;
use tokio::time::sleep;
use tracing::{info, warn};

use super::settings::Resolved;
use super::{checks, cluster_config};
use crate::args::{Agent, AgentMode, LogFormat};
use crate::commands::controller::stop_signal;

/// Runs the checks once, or at each interval in mode continuous. In a pod it idles afterwards.
pub async fn run(flags: &Agent, resolved: Resolved) -> Result<ExitCode> {
    let stop = stop_signal()?;
    tokio::select! {
        biased;
        () = stop => Ok(ExitCode::SUCCESS),
        code = run_checks(flags, &resolved) => Ok(code),
    }
}

async fn run_checks(flags: &Agent, resolved: &Resolved) -> ExitCode {
    let is_in_pod = resolved.options.api_server.is_some();
    loop {
        let code = run_once(flags, resolved).await;
        match flags.mode {
            AgentMode::Continuous => sleep(resolved.timing.interval).await,
            AgentMode::Once if is_in_pod => {
                info!("dry run ended; idle, because a DaemonSet would restart a pod that ends");
                std::future::pending::<()>().await;
            }
            AgentMode::Once => return code,
        }
    }
}

async fn run_once(flags: &Agent, resolved: &Resolved) -> ExitCode {
    let Resolved { spec, options, .. } = resolved;
    // Without an identity what cannot run here is skipped.
    let work: Assignment = assignment(spec, &WorkerIdentity::default());
    let net = Real::new(options);
    // A person gets the report as a table.
    let report = match flags.log_format {
        LogFormat::Json => run_with_progress(&net, &work, &checks::log).await,
        LogFormat::Console => {
            let report = nodekeeper_checks::run(&net, &work).await;
            print!("{}", console::render(&report, Some(&flags.node_name), false));
            report
        }
    };
    let would = match node(flags).await {
        Ok(Some(node)) => would_do(&node, spec, &report),
        Ok(None) => format!("nothing would be done: there is no Node {}", flags.node_name),
        Err(why) => format!("the Node is not read: {why}; {}", in_general(spec, &report)),
    };
    info!(node = flags.node_name, verdict = %report.verdict, result = report.summary(), "dry run: {would}");
    ExitCode::from(report.exit_code())
}

/// The Node, if a cluster can be reached.
async fn node(flags: &Agent) -> Result<Option<Node>, String> {
    if flags.kubeconfig.is_none() && flags.service_host.is_none() {
        return Err("no cluster is known here".into());
    }
    let config = cluster_config(flags).await.map_err(|error| format!("{error:#}"))?;
    let client = Client::try_from(config).map_err(|error| error.to_string())?;
    let nodes: Api<Node> = Api::all(client);
    let read = nodes.get_opt(&flags.node_name).await;
    read.inspect_err(|error| warn!(%error, "node not read")).map_err(|error| error.to_string())
}

/// What an agent would do with a node after this report.
fn would_do(node: &Node, spec: &NodeGateSpec, report: &Report) -> String {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let is_gated = taints.into_iter().any(|taint| {
        spec.taints.iter().any(|own| own.key == taint.key && own.effect.as_str() == taint.effect)
    });
    let record =
        node.metadata.annotations.iter().flatten().any(|(key, _)| key == nodekeeper_core::record::ANNOTATION);
    if is_gated {
        in_general(spec, report)
    } else if record {
        "the node is verified already".into()
    } else {
        "nothing would be done: the node never had the taint".into()
    }
}

fn in_general(spec: &NodeGateSpec, report: &Report) -> String {
    let taints: Vec<String> =
        spec.taints.iter().map(|taint| format!("{}:{}", taint.key, taint.effect.as_str())).collect();
    let (taints, label) = (taints.join(", "), &spec.verified_label);
    match report.verdict {
        Verdict::Passed => {
            format!("would remove the taint {taints} and set the label {}={}", label.key, label.value)
        }
        Verdict::Failed | Verdict::Inconclusive => format!("would keep the taint {taints} and try again"),
    }
}
