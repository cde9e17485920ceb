//! A real control plane with one fake kubelet for all nodes. It reports each worker as its `WorkerBehaviour` says,
//! and other pods as running.

use nodekeeper_e2e::Cluster;
use nodekeeper_e2e::control_plane::Options;
use nodekeeper_e2e::fake_kubelet::{join, patch_node_status, ready_condition};
use nodekeeper_e2e::pool::{Pool, Taken};
use nodekeeper_e2e::scenario::fake_kubelet;
use nodekeeper_e2e::scenario::worker::identity;
use nodekeeper_e2e::scenario::world::{Machine, NAMESPACE, WORKLOADS, WorkerBehaviours, World};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::apps::v1::{DaemonSet, ReplicaSet};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod, ResourceQuota};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, Client, Resource, ResourceExt as _};
use nodekeeper_core::api::{NodeGate, NodeRemediation, RemediationPolicy};
use nodekeeper_operator::clock::Clock;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::injection;

/// Scenarios use them one after the other, because each controller acts on every node.
static CLUSTERS: Pool<Cluster> = Pool::of(3);
/// Makes boot ids unique.
static BOOTS: AtomicU32 = AtomicU32::new(0);

const PATIENCE: Duration = Duration::from_mins(2);
const LOOK: Duration = Duration::from_millis(50);

pub struct FakeKubeletWorld {
    client: Client,
    behaviours: WorkerBehaviours,
    /// Nodes that are switched off.
    off: Off,
    _kubelet: JoinSet<()>,
    /// The last field: the cluster returns to the pool after its kubelet has stopped.
    cluster: Taken<'static, Cluster>,
}

type Off = Arc<Mutex<BTreeSet<String>>>;

impl FakeKubeletWorld {
    /// Removes what the last scenario left.
    pub async fn start() -> Result<Self> {
        let cluster = CLUSTERS.take(begin).await?;
        let client = cluster.client()?;
        clean(&client).await?;
        let (behaviours, off) = (WorkerBehaviours::default(), Off::default());
        let mut tasks = JoinSet::new();
        for namespace in [NAMESPACE, WORKLOADS] {
            tasks.spawn(kubelet(client.clone(), namespace, behaviours.clone(), off.clone()));
        }
        Ok(Self { cluster, client, behaviours, off, _kubelet: tasks })
    }
}

async fn begin() -> Result<Cluster> {
    let mut options = Options::from_env()?;
    // The leases of these nodes are not renewed.
    options.controller_manager_flags.push("--node-monitor-grace-period=1h".into());
    // The scenarios create the pods of these controllers.
    let controllers = "--controllers=*,-daemonset-controller,-replicaset-controller";
    options.controller_manager_flags.push(controllers.into());
    let cluster = Cluster::start(options).await?;
    let client = cluster.client()?;
    fake_kubelet::install(&client).await?;
    injection::install(&client).await?;
    served(&Api::<NodeGate>::all(client.clone())).await?;
    served(&Api::<NodeRemediation>::all(client.clone())).await?;
    served(&Api::<RemediationPolicy>::all(client)).await?;
    Ok(cluster)
}

/// Each kind is served as soon as its storage is ready, independent of the others.
async fn served<K>(api: &Api<K>) -> Result<()>
where
    K: Resource + Clone + std::fmt::Debug + DeserializeOwned,
{
    let end = Instant::now() + PATIENCE;
    while let Err(error) = api.list(&ListParams::default()).await {
        ensure!(Instant::now() < end, "the CRD is not served: {error}");
        sleep(LOOK).await;
    }
    Ok(())
}

fn boot() -> String {
    format!("boot-{}", BOOTS.fetch_add(1, Ordering::Relaxed))
}

/// Deletes the objects of the last scenario. Gates first, so that no new workers are created.
async fn clean(client: &Client) -> Result<()> {
    let pods = Api::<Pod>::namespaced(client.clone(), NAMESPACE);
    injection::label(client, None).await?;
    remove(&Api::<NodeGate>::all(client.clone())).await?;
    remove(&Api::<RemediationPolicy>::all(client.clone())).await?;
    remove(&Api::<NodeRemediation>::all(client.clone())).await?;
    remove(&Api::<Node>::all(client.clone())).await?;
    remove(&Api::<ResourceQuota>::namespaced(client.clone(), NAMESPACE)).await?;
    remove(&Api::<Lease>::namespaced(client.clone(), NAMESPACE)).await?;
    remove(&Api::<DaemonSet>::namespaced(client.clone(), "kube-system")).await?;
    remove(&Api::<Pod>::namespaced(client.clone(), "kube-system")).await?;
    remove(&Api::<PodDisruptionBudget>::namespaced(client.clone(), WORKLOADS)).await?;
    remove(&Api::<ReplicaSet>::namespaced(client.clone(), WORKLOADS)).await?;
    remove(&Api::<Pod>::namespaced(client.clone(), WORKLOADS)).await?;
    remove(&pods).await
}

async fn remove<K>(api: &Api<K>) -> Result<()>
where
    K: Resource + Clone + std::fmt::Debug + DeserializeOwned,
{
    let end = Instant::now() + PATIENCE;
    loop {
        let left = api.list_metadata(&ListParams::default()).await?.items;
        if left.is_empty() {
            return Ok(());
        }
        ensure!(Instant::now() < end, "{} objects of the last scenario are not deleted", left.len());
        api.delete_collection(&DeleteParams::default().grace_period(0), &ListParams::default()).await?;
    }
}

/// Reports workers as they behave, and other pods as running.
async fn kubelet(client: Client, namespace: &'static str, behaviours: WorkerBehaviours, off: Off) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let is_off = |node: &str| off.lock().contains(node);
    fake_kubelet::run(pods.clone(), "", is_off, |pod, node| {
        let (client, pods, behaviour) = (client.clone(), pods.clone(), behaviours.of(&node));
        async move {
            if identity(&pod).is_ok() {
                fake_kubelet::report_worker(&client, &pod, behaviour).await;
            } else {
                runs(&pods, &pod).await;
            }
        }
    })
    .await;
}

async fn runs(pods: &Api<Pod>, pod: &Pod) {
    let ready = json!({"type": "Ready", "status": "True"});
    let status = Patch::Merge(json!({"status": {"phase": "Running", "conditions": [ready]}}));
    drop(pods.patch_status(&pod.name_any(), &PatchParams::default(), &status).await);
}

impl World for FakeKubeletWorld {
    fn client(&self) -> Client {
        self.client.clone()
    }

    fn clock(&self) -> Clock {
        Clock::real()
    }

    fn patience(&self) -> Duration {
        PATIENCE
    }

    fn about(&self, nodes: usize) -> usize {
        nodes.div_ceil(3)
    }

    fn behaviours(&self) -> &WorkerBehaviours {
        &self.behaviours
    }

    async fn join(&self, machine: Machine) -> Result<()> {
        let Machine { name, mut labels, taints, ready: is_ready } = machine;
        // Every kubelet sets these labels: a node without labels needs another patch.
        labels.entry("kubernetes.io/hostname".into()).or_insert_with(|| name.clone());
        labels.insert("kubernetes.io/os".into(), "linux".into());
        self.off.lock().remove(&name);
        let node = json!({"metadata": {"name": name, "labels": labels}, "spec": {"taints": taints}});
        join(&self.client, &name, node, &boot(), is_ready).await
    }

    async fn say_ready(&self, node: &str, is_ready: bool) -> Result<()> {
        patch_node_status(
            &Api::all(self.client.clone()),
            node,
            json!({"conditions": [ready_condition(is_ready)]}),
        )
        .await
    }

    async fn reboot(&self, node: &str) -> Result<()> {
        patch_node_status(&Api::all(self.client.clone()), node, json!({"nodeInfo": {"bootID": boot()}})).await
    }

    async fn power_off(&self, node: &str) -> Result<()> {
        self.off.lock().insert(node.to_owned());
        Ok(())
    }

    fn hint(&self) -> String {
        format!("logs of the control plane are in {}", self.cluster.folder().display())
    }
}
