//! Nodes with a fake kubelet that runs the real worker with the rights of its account.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use nodekeeper_e2e::Cluster;
use nodekeeper_e2e::fake_kubelet::{create, join, worker};
use nodekeeper_sim::actors::kubelet::Terminated;
use nodekeeper_sim::loopback::Dns;
use nodekeeper_sim::process::{Processes, Setup};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::{LOOK, NAMESPACE};

/// Gated by the gate of the file.
pub const FIRST: &str = "node-1";
/// Gated by another gate.
pub const SECOND: &str = "node-2";
/// Its kubelet starts no pod.
pub const SILENT: &str = "silent";
pub const OTHER_TAINT: &str = "other/held";
pub const TAINT: &str = "node-ready/unverified";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First {
    /// The first worker finds no DNS server, later ones do.
    Heals,
    /// No worker finds a DNS server.
    NeverHeals,
}

/// Stops its kubelets when dropped.
pub struct Machines {
    failed: Arc<AtomicU32>,
    _kubelet: JoinSet<()>,
    _folder: tempfile::TempDir,
}

impl Machines {
    /// Creates nodes with these names and taints. Checks on all but the first pass.
    pub async fn start(cluster: &Cluster, nodes: &[(&str, &str)], first: First) -> Result<Self> {
        let client = cluster.client()?;
        create_services(&client).await?;
        let folder = tempfile::tempdir()?;
        let token = crate::token(cluster, "nodekeeper-worker").await?;
        let url = cluster.config()?.cluster_url;
        let (host, port) = (url.host(), url.port_u16());
        let processes = Processes::new(Setup {
            binary: worker()?,
            folder: folder.path().to_owned(),
            api_server: SocketAddr::new(host.context("no host")?.parse()?, port.context("no port")?),
            authority: std::fs::read_to_string(cluster.folder().join("ca.crt"))?,
            tokens: Arc::new(move |_| token.clone()),
        })?;
        processes.endpoints(FIRST).await?.set_dns(Dns::Drop);
        for (name, taint) in nodes {
            let taints = json!([{"key": taint, "effect": "NoSchedule"}]);
            let node = json!({"metadata": {"name": name}, "spec": {"taints": taints}});
            join(&client, name, node, &format!("boot-of-{name}"), true).await?;
        }
        let failed = Arc::<AtomicU32>::default();
        let mut tasks = JoinSet::new();
        tasks.spawn(kubelet(client, processes, first, failed.clone()));
        Ok(Self { failed, _kubelet: tasks, _folder: folder })
    }

    /// The number of failed workers.
    pub fn failed(&self) -> u32 {
        self.failed.load(Ordering::Relaxed)
    }
}

/// Creates the Services and RBAC objects that a real cluster has.
async fn create_services(client: &Client) -> Result<()> {
    let ports = json!([{"name": "dns", "port": 53, "protocol": "UDP"}]);
    let spec = json!({"clusterIP": "10.96.0.10", "ports": ports});
    create(
        &Api::<Service>::namespaced(client.clone(), "kube-system"),
        json!({"metadata": {"name": "kube-dns"}, "spec": spec}),
    )
    .await?;
    for (namespace, service) in [("default", "kubernetes"), ("kube-system", "kube-dns")] {
        let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), namespace);
        let labels = json!({"kubernetes.io/service-name": service});
        let endpoints = json!([{"addresses": ["10.244.0.2"], "conditions": {"ready": true}}]);
        let slice = json!({"metadata": {"name": format!("{service}-rbac"), "labels": labels}, "addressType": "IPv4",
            "endpoints": endpoints, "ports": ports});
        create(&slices, slice).await?;
    }
    let labels = json!({"app": "network"});
    let containers = json!([{"name": "network", "image": "nodekeeper.local/none:1"}]);
    let spec = json!({"tolerations": [{"operator": "Exists"}], "containers": containers});
    let template = json!({"metadata": {"labels": labels}, "spec": spec});
    create(
        &Api::<DaemonSet>::namespaced(client.clone(), "kube-system"),
        json!({"metadata": {"name": "network"}, "spec": {"selector": {"matchLabels": labels}, "template": template}}),
    )
    .await?;
    Ok(())
}

/// Whether the node is verified.
pub async fn is_open(nodes: &Api<Node>, name: &str) -> Result<Option<()>> {
    let node = nodes.get(name).await?;
    let taints = node.spec.clone().unwrap_or_default().taints.unwrap_or_default();
    let held = taints.iter().any(|taint| [OTHER_TAINT, TAINT].contains(&taint.key.as_str()));
    Ok((!held && node.labels().contains_key("node-ready/verified")).then_some(()))
}

/// Runs each pod once. Polls instead of watching, because there are few pods.
async fn kubelet(client: Client, processes: Processes, first: First, failed: Arc<AtomicU32>) {
    let pods: Api<Pod> = Api::all(client.clone());
    let mut known = BTreeSet::new();
    loop {
        for pod in pods.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default() {
            let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()) else { continue };
            let own: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
            if pod.metadata.deletion_timestamp.is_some() {
                let _ = own.delete(&pod.name_any(), &DeleteParams::default().grace_period(0)).await;
            } else if node != SILENT && known.insert(pod.uid()) {
                let status = if pod.namespace().as_deref() == Some(NAMESPACE) {
                    let status = run(&pod, &node, &processes).await;
                    if status["phase"] == "Failed" {
                        failed.fetch_add(1, Ordering::Relaxed);
                        if let (First::Heals, Ok(network)) = (first, processes.endpoints(&node).await) {
                            network.set_dns(Dns::Healthy);
                        }
                    }
                    status
                } else {
                    json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]})
                };
                let patch = Patch::Merge(json!({"status": status}));
                let _ = own.patch_status(&pod.name_any(), &PatchParams::default(), &patch).await;
            }
        }
        sleep(LOOK).await;
    }
}

async fn run(pod: &Pod, node: &str, processes: &Processes) -> Value {
    let value = nodekeeper_sim::value::json!(pod);
    let container = value["spec"]["containers"][0].clone();
    let (code, message) = match processes.execute(node, &value, &container).await {
        Terminated::Exit { code, message } => (code, message),
        Terminated::OutOfMemory => (137, String::new()),
    };
    let state = json!({"terminated": {"exitCode": code, "message": message, "reason": "Ended"}});
    let container = json!({"name": "worker", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state});
    json!({"phase": if code == 0 { "Succeeded" } else { "Failed" }, "containerStatuses": [container]})
}
