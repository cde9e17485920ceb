//! The benchmarks, one per file. A benchmark fails if it cannot measure; a figure over its budget is no failure.

pub mod agent;
mod baseline;
pub mod failover;
pub mod idle;
pub mod latency;
pub mod real_nodes;
pub mod requests;
pub mod rss;
pub mod thousand;
pub mod worker;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use kube::CustomResourceExt as _;
use nodekeeper_core::api::{NodeGate, NodeRemediation, RemediationPolicy};
use nodekeeper_e2e::product::Product;
use nodekeeper_sim::{Cluster, Options};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::counting_server::CountingServer;
use crate::fleet::Fleet;
use crate::process::{NAMESPACE, Process};

/// The timeout of all expectations.
const PATIENCE: Duration = Duration::from_mins(3);

/// What a controller does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Setup {
    /// One gate with default settings.
    Gate,
    /// The gate also replaces nodes, remediation is enforced, and metrics have series for each node.
    Everything,
}

/// An embedded cluster with a gate, and the gate's uid, without running components.
fn embedded(setup: Setup) -> Result<(Cluster, String)> {
    let cluster = Cluster::new(Options::real(1));
    nodekeeper_sim::network::install(&cluster)?;
    let admin = cluster.local("setup");
    for definition in [NodeGate::crd(), NodeRemediation::crd(), RemediationPolicy::crd()] {
        let definition = serde_json::to_value(definition)?;
        admin.create("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", definition)?;
    }
    admin.create("v1", "Namespace", "", json!({"metadata": {"name": NAMESPACE}}))?;
    let account = json!({"metadata": {"name": "nodekeeper-worker"}});
    admin.create("v1", "ServiceAccount", NAMESPACE, account)?;
    let version = "nodekeeper.dev/v1alpha1";
    let object = |kind: &str, spec| {
        let object =
            json!({"apiVersion": version, "kind": kind, "metadata": {"name": "default"}, "spec": spec});
        admin.create(version, kind, "", object)
    };
    let made = match setup {
        Setup::Gate => object("NodeGate", json!({}))?,
        Setup::Everything => {
            object("RemediationPolicy", json!({"enforcement": "Enforce"}))?;
            object("NodeGate", json!({"onFailure": "Replace", "onStuck": "Replace"}))?
        }
    };
    let uid = made["metadata"]["uid"].as_str().context("a gate has a uid")?.to_owned();
    Ok((cluster, uid))
}

/// An API server with a fleet of nodes.
async fn fleet_server(nodes: usize, folder: &Path, setup: Setup) -> Result<CountingServer> {
    let (cluster, gate) = embedded(setup)?;
    CountingServer::start(&cluster, Some(Fleet::new(nodes, &gate)), folder).await
}

/// A controller that has cached a fleet and is idle, and its API server.
async fn with_fleet(
    product: &Product,
    nodes: usize,
    folder: &Path,
    setup: Setup,
) -> Result<(Process, CountingServer)> {
    let server = fleet_server(nodes, folder, setup).await?;
    let flags: &[&str] = if setup == Setup::Everything { &["--metrics-compat-names"] } else { &[] };
    let kubeconfig = server.kubeconfig("controller")?;
    let controller = Process::controller_with(&product.controller, &kubeconfig, folder, "controller", flags)?;
    let end = Instant::now() + PATIENCE;
    while server.lists() == 0 {
        controller.memory()?;
        anyhow::ensure!(Instant::now() < end, "the nodes were never listed: {}", controller.log_tail());
        sleep(Duration::from_millis(50)).await;
    }
    controller.settle(PATIENCE).await?;
    Ok((controller, server))
}
