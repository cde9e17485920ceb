//! A real control plane with what the chart installs, and nodes without a machine.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, ServiceAccount};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client, CustomResourceExt as _};
use nodekeeper_core::api::{NodeGate, NodeGateSpec};
use nodekeeper_e2e::Cluster;
use nodekeeper_e2e::control_plane::Options;
use nodekeeper_e2e::nodes::{self, NodeOptions};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use crate::fake_kubelet::{self, WORKERS};
use crate::process::{NAMESPACE, Process};
use crate::watch::watch;

/// The timeout of all expectations.
pub const PATIENCE: Duration = Duration::from_mins(2);
const LOOK: Duration = Duration::from_millis(100);
const GATE: &str = "default";

pub struct RealCluster {
    pub client: Client,
    cluster: Cluster,
}

impl RealCluster {
    pub async fn start() -> Result<Self> {
        Self::start_with(None).await
    }

    /// Starts a control plane, and real nodes if there are options for them.
    pub async fn start_with(nodes: Option<NodeOptions>) -> Result<Self> {
        let mut options = Options::from_env()?;
        if let Some(nodes) = nodes {
            options = options.with_nodes(nodes);
        }
        // The leases of these nodes are not renewed.
        options.controller_manager_flags.push("--node-monitor-grace-period=1h".into());
        let cluster = Cluster::start(options).await?;
        let client = cluster.client()?;
        let real = Self { client, cluster };
        real.install().await?;
        Ok(real)
    }

    async fn install(&self) -> Result<()> {
        let params = PostParams::default();
        let namespace = serde_json::from_value(json!({"metadata": {"name": NAMESPACE}}))?;
        Api::<Namespace>::all(self.client.clone()).create(&params, &namespace).await?;
        let account = serde_json::from_value(json!({"metadata": {"name": "nodekeeper-worker"}}))?;
        Api::<ServiceAccount>::namespaced(self.client.clone(), NAMESPACE).create(&params, &account).await?;
        Api::<CustomResourceDefinition>::all(self.client.clone()).create(&params, &NodeGate::crd()).await?;
        self.until("the CRD is served", async || Ok(self.gates().list(&ListParams::default()).await.is_ok()))
            .await
    }

    /// The machines of real nodes.
    pub fn machines(&self) -> &[nodes::Node] {
        self.cluster.nodes()
    }

    fn gates(&self) -> Api<NodeGate> {
        Api::all(self.client.clone())
    }

    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    pub fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    /// Creates a gate with default settings.
    pub async fn make_gate(&self) -> Result<()> {
        let gate = NodeGate::new(GATE, NodeGateSpec::default());
        self.gates().create(&PostParams::default(), &gate).await?;
        Ok(())
    }

    pub async fn delete_gate(&self) -> Result<()> {
        self.gates().delete(GATE, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Starts a controller, and returns when it holds the lease and is idle.
    pub async fn lead(&self, binary: &std::path::Path, name: &str) -> Result<Process> {
        let controller = self.start_controller(binary, name)?;
        let leads = async || Ok(self.holder().await?.starts_with(name));
        let led = self.until(&format!("{name} holds the lease"), leads).await;
        led.with_context(|| controller.log_tail())?;
        controller.settle(PATIENCE).await?;
        Ok(controller)
    }

    pub fn start_controller(&self, binary: &std::path::Path, name: &str) -> Result<Process> {
        Process::controller(binary, &self.cluster.kubeconfig_path(), self.cluster.folder(), name)
    }

    /// The holder of the lease; empty if there is none.
    pub async fn holder(&self) -> Result<String> {
        let leases: Api<k8s_openapi::api::coordination::v1::Lease> =
            Api::namespaced(self.client.clone(), NAMESPACE);
        let lease = leases.get_opt("kube-node-ready-leader").await?;
        Ok(lease.and_then(|lease| lease.spec?.holder_identity).unwrap_or_default())
    }

    /// Creates nodes, and returns when the controller manager has removed their not-ready taints.
    pub async fn join(&self, names: &[String]) -> Result<()> {
        fake_kubelet::join(&self.client, names).await?;
        self.until("the new nodes have only the gate's taint", async || {
            let all = self.nodes().list(&ListParams::default()).await?.items;
            Ok(all.iter().all(fake_kubelet::has_no_other_taint))
        })
        .await
    }

    /// Waits for the worker of a node to be bound.
    pub async fn worker_of(&self, node: &str) -> Result<Pod> {
        let mut bound = watch(self.pods(), WORKERS, &format!("spec.nodeName={node}"));
        let pod = timeout(PATIENCE, bound.next()).await;
        pod.ok().flatten().with_context(|| format!("{node} has no worker"))
    }

    /// Polls until `so` returns true.
    pub async fn until(&self, what: &str, so: impl AsyncFn() -> Result<bool>) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        while !so().await? {
            ensure!(Instant::now() < end, "timed out after {PATIENCE:?}: {what}");
            sleep(LOOK).await;
        }
        Ok(())
    }

    pub async fn no_workers(&self) -> Result<()> {
        let selected = ListParams::default().labels(WORKERS);
        self.until("no worker is left", async || Ok(self.pods().list(&selected).await?.items.is_empty()))
            .await
    }

    /// Deletes all nodes and workers.
    pub async fn clear(&self) -> Result<()> {
        let now = DeleteParams::default().grace_period(0);
        self.pods().delete_collection(&now, &ListParams::default().labels(WORKERS)).await?;
        self.nodes().delete_collection(&now, &ListParams::default()).await?;
        self.no_workers().await?;
        self.until("no node is left", async || {
            Ok(self.nodes().list(&ListParams::default()).await?.items.is_empty())
        })
        .await
    }
}

pub fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|n| format!("{prefix}-{n:04}")).collect()
}
