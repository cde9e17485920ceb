//! The benchmarks, one per file. A benchmark fails if it cannot measure; a figure over its budget is no failure.

mod baseline;
pub mod failover;
pub mod idle;
pub mod latency;
pub mod requests;
pub mod rss;
pub mod thousand;
pub mod worker;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use kube::CustomResourceExt as _;
use nodekeeper_core::api::NodeGate;
use nodekeeper_sim::{Cluster, Options};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::counting_server::CountingServer;
use crate::fleet::Fleet;
use crate::process::{Controller, NAMESPACE};

/// An embedded cluster with a gate, and the gate's uid, without running components.
fn embedded() -> Result<(Cluster, String)> {
    let cluster = Cluster::new(Options::real(1));
    nodekeeper_sim::network::install(&cluster)?;
    let admin = cluster.local("setup");
    let definition = serde_json::to_value(NodeGate::crd())?;
    admin.create("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", definition)?;
    admin.create("v1", "Namespace", "", json!({"metadata": {"name": NAMESPACE}}))?;
    let account = json!({"metadata": {"name": "nodekeeper-worker"}});
    admin.create("v1", "ServiceAccount", NAMESPACE, account)?;
    let (version, kind) = ("nodekeeper.dev/v1alpha1", "NodeGate");
    let gate = json!({"apiVersion": version, "kind": kind, "metadata": {"name": "default"}, "spec": {}});
    let made = admin.create(version, kind, "", gate)?;
    let uid = made["metadata"]["uid"].as_str().context("a gate has a uid")?.to_owned();
    Ok((cluster, uid))
}

/// An API server with a fleet of nodes.
async fn fleet_server(nodes: usize, folder: &Path) -> Result<CountingServer> {
    let (cluster, gate) = embedded()?;
    CountingServer::start(&cluster, Some(Fleet::new(nodes, &gate)), folder).await
}

/// A controller that has cached a fleet and is idle, and its API server.
async fn with_fleet(binary: &Path, nodes: usize, folder: &Path) -> Result<(Controller, CountingServer)> {
    const PATIENCE: Duration = Duration::from_mins(3);
    let server = fleet_server(nodes, folder).await?;
    let controller = Controller::start(binary, &server.kubeconfig("controller")?, folder, "controller")?;
    let end = Instant::now() + PATIENCE;
    while !server.has_listed_nodes() {
        controller.memory()?;
        anyhow::ensure!(Instant::now() < end, "the nodes were never listed: {}", controller.log_tail());
        sleep(Duration::from_millis(50)).await;
    }
    controller.settle(PATIENCE).await?;
    Ok((controller, server))
}
