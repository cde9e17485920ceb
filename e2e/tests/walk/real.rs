//! Three real nodes, with the controller as a pod from the chart.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kube::Client;
use nodekeeper_core::api::NodeGateSpec;
use nodekeeper_e2e::Cluster;
use nodekeeper_e2e::assets::{self, Assets, NodeAssets, Settings};
use nodekeeper_e2e::control_plane::Options;
use nodekeeper_e2e::machine;
use nodekeeper_e2e::nodes::NodeOptions;
use nodekeeper_e2e::product::{CONTROLLER_IMAGE, Product, WORKER_IMAGE};
use serde_json::{Value, json};
use tokio::sync::OnceCell;
use tokio::task::spawn_blocking;

use crate::world::{Dns, NAMESPACE, TAINT, World};

pub struct Real {
    pub cluster: Cluster,
    client: Client,
    product: &'static Product,
}

impl Real {
    pub async fn start(dns: Dns) -> Result<Self> {
        static PRODUCT: OnceCell<Product> = OnceCell::const_new();
        // Checks dependencies first, because the builds take minutes.
        spawn_blocking(ensure_can_start).await??;
        let product = PRODUCT.get_or_try_init(async || spawn_blocking(Product::build).await?).await?;
        let mut nodes = NodeOptions::new(3).tainted(TAINT);
        for image in product.images() {
            nodes = nodes.with_image(image);
        }
        if let (Dns::NotYet, Some(servers)) = (dns, &mut nodes.dns) {
            servers.replicas = 0;
        }
        let cluster = Cluster::start(Options::from_env()?.with_nodes(nodes)).await?;
        let client = cluster.client()?;
        Ok(Self { cluster, client, product })
    }

    pub fn worker(&self) -> &Path {
        &self.product.worker
    }

    pub fn node(&self, name: &str) -> Result<&nodekeeper_e2e::nodes::Node> {
        self.cluster.nodes().iter().find(|node| node.name() == name).context("no such node")
    }

    /// Installs the chart with this gate, and with a policy from these values.
    pub async fn install(&mut self, gate: &NodeGateSpec, remediation: Value) -> Result<()> {
        let mut spec = serde_json::to_value(gate)?;
        // The chart has taints outside the spec, because the controller tolerates them too.
        spec.as_object_mut().context("a spec is an object")?.remove("taints");
        let values = json!({"gate": {"spec": spec}, "remediation": remediation});
        self.install_values(&values, &["nodegate/default", "remediationpolicy/default"]).await
    }

    /// Installs the chart with these values, and waits for these objects.
    pub async fn install_values(&mut self, values: &Value, objects: &[&str]) -> Result<()> {
        self.helm("install", values, objects).await
    }

    /// Changes the values of the chart.
    pub async fn upgrade_values(&mut self, values: &Value, objects: &[&str]) -> Result<()> {
        self.helm("upgrade", values, objects).await
    }

    async fn helm(&mut self, action: &'static str, values: &Value, objects: &[&str]) -> Result<()> {
        let helm = spawn_blocking(|| assets::helm(&Settings::from_env()?)).await??;
        let ((controller, tag), (worker, worker_tag)) = (split(CONTROLLER_IMAGE), split(WORKER_IMAGE));
        let mut values = values.clone();
        values["image"] = json!({"repository": controller, "tag": tag, "pullPolicy": "Never"});
        values["worker"] = json!({"image": {"repository": worker, "tag": worker_tag}});
        let file = self.cluster.folder().join("values.json");
        std::fs::write(&file, values.to_string())?;
        let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/nodekeeper");
        let kubeconfig = self.cluster.kubeconfig_path();
        let done = spawn_blocking(move || {
            Command::new(helm)
                .args([action, "nodekeeper"])
                .arg(chart)
                .args(["--namespace", NAMESPACE, "--create-namespace", "--wait", "--timeout", "2m"])
                .arg("--values")
                .arg(file)
                .arg("--kubeconfig")
                .arg(kubeconfig)
                .output()
        });
        let done = done.await??;
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        ensure!(done.status.success(), "helm: {said}; {}", self.hint());
        if !objects.is_empty() {
            // The controller creates them once it leads.
            self.cluster.run_kubectl(&[&["wait", "--for=create", "--timeout=2m"], objects].concat())?;
        }
        Ok(())
    }
}

fn ensure_can_start() -> Result<()> {
    let settings = Settings::from_env()?;
    machine::ensure_nodes_can_run(&settings.cache)?;
    Assets::ensure(&settings)?;
    NodeAssets::ensure(&settings)?;
    assets::helm(&settings)?;
    Ok(())
}

fn split(image: &str) -> (&str, &str) {
    image.rsplit_once(':').unwrap_or((image, ""))
}

impl World for Real {
    fn nodes(&self) -> Vec<String> {
        self.cluster.nodes().iter().map(|node| node.name().to_owned()).collect()
    }

    fn client(&self) -> Client {
        self.client.clone()
    }

    fn patience(&self) -> Duration {
        Duration::from_mins(3)
    }

    async fn start_controller(&mut self, gate: &NodeGateSpec) -> Result<()> {
        self.install(gate, json!({})).await
    }

    async fn break_dns(&self, node: &str) -> Result<()> {
        self.node(node)?.break_dns()
    }

    async fn heal_dns(&self, node: &str) -> Result<()> {
        self.node(node)?.heal_dns()
    }

    async fn start_cluster_dns(&self) -> Result<()> {
        self.cluster.run_kubectl(&[
            "--namespace=kube-system",
            "scale",
            "deployment/coredns",
            "--replicas=1",
        ])?;
        Ok(())
    }

    fn hint(&self) -> String {
        let all = self.cluster.run_kubectl(&["get", "pods", "--all-namespaces", "--output=wide"]);
        let log = ["logs", "--namespace", NAMESPACE, "deployment/nodekeeper-controller", "--tail=20"];
        let log = self.cluster.run_kubectl(&log);
        format!("{}\n{}", all.unwrap_or_default(), log.unwrap_or_else(|error| error.to_string()))
    }
}
