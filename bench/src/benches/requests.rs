//! The API requests for one node, from its taint to its label.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use nodekeeper_e2e::product::Product;
use nodekeeper_sim::actors::kubelet::{Kubelets, NodeSpec};
use nodekeeper_sim::actors::{self, Timing};
use nodekeeper_sim::worker::Workers;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::{Setup, embedded};
use crate::counting_server::CountingServer;
use crate::fake_kubelet::TAINT;
use crate::process::Process;
use crate::table::Table;

const NODES: u32 = 50;
const PATIENCE: Duration = Duration::from_mins(3);
const STATUS: &str = "PATCH nodegates/status";

pub async fn run(product: Product) -> Result<Table> {
    let folder = tempfile::tempdir()?;
    let (cluster, _) = embedded(Setup::Gate)?;
    let _actors = actors::start(&cluster, Timing::default());
    let kubelets = Kubelets::start(&cluster, 1, Arc::new(Workers));
    let server = CountingServer::start(&cluster, None, folder.path()).await?;
    let controller = Process::controller(
        &product.controller,
        &server.kubeconfig("controller")?,
        folder.path(),
        "controller",
    )?;
    for n in 0..NODES {
        let taints =
            vec![nodekeeper_sim::value::json!({"key": TAINT, "value": "true", "effect": "NoSchedule"})];
        kubelets.join(NodeSpec { name: format!("node-{n}"), taints, ..NodeSpec::default() });
    }
    let inside = cluster.local("bench");
    let end = Instant::now() + PATIENCE;
    loop {
        let (nodes, pods) = (inside.all("nodes"), inside.all("pods"));
        let open = nodes.iter().filter(|node| !has_gate_taint(&(&***node).into())).count();
        if open == NODES as usize && pods.is_empty() {
            break;
        }
        ensure!(
            Instant::now() < end && kubelets.is_running(),
            "{open} of {NODES} nodes are untainted, {} workers are left: {}",
            pods.len(),
            controller.log_tail()
        );
        sleep(Duration::from_millis(200)).await;
    }
    controller.settle(PATIENCE).await?;
    let mut table = Table::new("API requests for one node that passes first time");
    let (mut writes, mut events) = (0, 0);
    for (what, n) in server.counts() {
        let about_lease = what.ends_with("leases");
        match what.split(' ').next() {
            _ if about_lease => continue,
            // Written for all nodes at once, however many there are.
            _ if what == STATUS => {}
            Some("POST") if what.ends_with("events") => events += n,
            Some("POST" | "PUT" | "PATCH" | "DELETE") => writes += n,
            _ => {}
        }
        table.figure(format!("{what}, {NODES} nodes"), n.to_string());
    }
    let each = |n: u64| Ok::<_, anyhow::Error>(f64::from(u32::try_from(n)?) / f64::from(NODES));
    table.budget("writes per node", each(writes)?, 3.0, "");
    table.budget("Events per node", each(events)?, 1.0, "");
    let requests = server.requests();
    let written: Vec<Instant> = requests.iter().filter(|one| one.what == STATUS).map(|one| one.at).collect();
    table.budget("writes of the gate's status", rate(&written), 0.5, "/s");
    table.note(
        "Counted by the embedded server, with its scheduler and kubelets and the real checks; the controller runs in its own \
         process. Requests for the lease are not counted; WATCH and LIST happen once per start. The gate's status is no write \
         per node: it is written at most every 2 s while counts change. Its rate is that from its first to its last write.",
    );
    Ok(table)
}

/// How often something happened per second, from the first time to the last.
fn rate(times: &[Instant]) -> f64 {
    match times {
        [first, rest @ .., last] => {
            let pauses = u32::try_from(rest.len()).unwrap_or(u32::MAX).saturating_add(1);
            f64::from(pauses) / (*last - *first).as_secs_f64()
        }
        _ => 0.0,
    }
}

fn has_gate_taint(node: &Value) -> bool {
    let taints = node["spec"]["taints"].as_array();
    taints.into_iter().flatten().any(|taint| taint["key"] == TAINT)
}
