//! Real nodes that join: from Ready to the removal of the taint.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt as _};
use nodekeeper_e2e::image::{Image, NONROOT};
use nodekeeper_e2e::nodes::{Node as Machine, NodeOptions};
use nodekeeper_e2e::product::Product;
use serde_json::json;
use tokio::task::block_in_place;
use tokio::time::{Instant, timeout};

use crate::fake_kubelet::{TAINT, has_gate_taint};
use crate::process::{NAMESPACE, WORKER_IMAGE};
use crate::real_cluster::{PATIENCE, RealCluster};
use crate::table::{Table, percentile, short};
use crate::watch::watch;

const NODES: usize = 3;
const ROUNDS: usize = 3;
/// The longest time from Ready to untainted, in seconds.
const BUDGET: f64 = 10.0;

pub async fn run(product: Product) -> Result<Table> {
    let image = Image::new(WORKER_IMAGE, &product.worker, "/nodekeeper-worker").as_user(NONROOT);
    let nodes = NodeOptions::new(NODES).tainted(TAINT).with_image(image).with_registry();
    let real = RealCluster::start_with(Some(nodes)).await?;
    allow_workers(&real).await?;
    real.make_gate().await?;
    let controller = real.lead(&product.controller, "controller").await?;
    real.until("the first nodes are untainted", async || {
        Ok(!real.nodes().list(&ListParams::default()).await?.items.iter().any(has_gate_taint))
    })
    .await
    .with_context(|| controller.log_tail())?;
    let mut table = Table::new("Ready to untainted: three real nodes");
    for image in [WorkerImage::Cached, WorkerImage::Pulled] {
        let mut seconds = Vec::new();
        for _ in 0..ROUNDS {
            seconds.extend(rejoin(&real, image).await.with_context(|| controller.log_tail())?);
        }
        if matches!(image, WorkerImage::Pulled) {
            ensure!(pulls(&real).await? == seconds.len(), "some workers found their image on the disk");
        }
        let of = |hundredths| percentile(&seconds, hundredths).context("no runs");
        let which = match image {
            WorkerImage::Cached => "image cached",
            WorkerImage::Pulled => "image pulled",
        };
        table.budget(format!("{which}, longest"), of(100)?, BUDGET, "s");
        table.figure(format!("{which}, median"), format!("{} s", short(of(50)?)));
    }
    controller.stop().await?;
    table.note(format!(
        "A cluster of {NODES} nodes (kubelet and containerd in namespaces of this machine). {ROUNDS} times the two without \
         cluster DNS are powered off, their Nodes are deleted, and they boot again and register with the taint. From the moment at which a watch \
         shows a Node as Ready to the moment at which it shows it without the taint. The controller is a process. The \
         worker's image is on each node's disk, or is pulled from a registry in the cluster's network. Everything shares \
         the machine."
    ));
    Ok(table)
}

/// The worker reads services and endpoints. The chart allows it no more than that.
async fn allow_workers(real: &RealCluster) -> Result<()> {
    let binding = json!({
        "metadata": {"name": "bench-workers"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "nodekeeper-worker", "namespace": NAMESPACE}],
    });
    let bindings: Api<ClusterRoleBinding> = Api::all(real.client.clone());
    bindings.create(&PostParams::default(), &serde_json::from_value(binding)?).await?;
    Ok(())
}

/// How many workers have pulled their image.
async fn pulls(real: &RealCluster) -> Result<usize> {
    let events: Api<Event> = Api::namespaced(real.client.clone(), NAMESPACE);
    let pulled = events.list(&ListParams::default().fields("reason=Pulled")).await?.items;
    let is_pull =
        |event: &Event| event.message.as_deref().is_some_and(|text| text.starts_with("Successfully pulled"));
    Ok(pulled.iter().filter(|event| is_pull(event)).count())
}

#[derive(Clone, Copy)]
enum WorkerImage {
    Cached,
    Pulled,
}

/// Lets the nodes without cluster DNS boot as new ones, and returns the seconds from Ready to untainted of each.
async fn rejoin(real: &RealCluster, image: WorkerImage) -> Result<Vec<f64>> {
    let pods: Api<Pod> = Api::namespaced(real.client.clone(), "kube-system");
    let dns = pods.list(&ListParams::default().labels("k8s-app=kube-dns")).await?.items;
    let runs_dns = |name: &str| {
        dns.iter().any(|pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(name))
    };
    let machines: Vec<&Machine> = real.machines().iter().filter(|one| !runs_dns(one.name())).collect();
    ensure!(!machines.is_empty() && machines.len() < NODES, "cluster DNS runs on no node, or on all");
    block_in_place(|| {
        machines.iter().try_for_each(|machine| {
            if matches!(image, WorkerImage::Pulled) {
                machine.lose_image(WORKER_IMAGE)?;
            }
            machine.power_off()
        })
    })?;
    let mut before = Vec::new();
    for machine in &machines {
        before.extend(real.nodes().get(machine.name()).await?.uid());
        real.nodes().delete(machine.name(), &DeleteParams::default()).await?;
    }
    let mut seen = watch(real.nodes(), "", "");
    block_in_place(|| machines.iter().try_for_each(|machine| machine.boot()))?;
    let (mut ready, mut open) = (BTreeMap::new(), BTreeMap::new());
    let all = async {
        while open.len() < machines.len() {
            let node = seen.next().await?;
            let is_new = node.uid().is_some_and(|uid| !before.contains(&uid));
            if !is_new || runs_dns(&node.name_any()) || !is_ready(&node) {
                continue;
            }
            let (name, now) = (node.name_any(), Instant::now());
            let since = *ready.entry(name.clone()).or_insert(now);
            if !has_gate_taint(&node) {
                open.entry(name).or_insert((now - since).as_secs_f64());
            }
        }
        Some(())
    };
    let ended = timeout(PATIENCE, all).await.ok().flatten();
    ensure!(ended.is_some(), "untainted: {open:?}; Ready: {:?}", ready.keys());
    Ok(open.into_values().collect())
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|one| one.type_ == "Ready" && one.status == "True")
}
