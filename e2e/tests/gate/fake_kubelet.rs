//! A real control plane with one fake kubelet for all nodes. It reports each worker as its [`WorkerBehaviour`] says,
//! and other pods as running.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, ensure};
use futures::StreamExt as _;
use k8s_openapi::api::apps::v1::{DaemonSet, ReplicaSet};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, ResourceQuota, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, WatchEvent, WatchParams};
use kube::{Api, Client, Resource, ResourceExt as _};
use nodekeeper_core::api::{NodeGate, NodeRemediation, RemediationPolicy, definitions as all_definitions};
use nodekeeper_e2e::Cluster;
use nodekeeper_e2e::control_plane::Options;
use nodekeeper_e2e::fake_kubelet::{create, join, patch_node_status, ready_condition};
use nodekeeper_e2e::pool::{Pool, Taken};
use nodekeeper_operator::clock::Clock;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::worker::{State, identity, say};
use crate::world::{MISSING, Machine, NAMESPACE, WORKLOADS, WorkerBehaviour, WorkerBehaviours, World};

/// Scenarios use them one after the other, because each controller acts on every node.
static CLUSTERS: Pool<Cluster> = Pool::of(3);
/// Makes boot ids unique.
static BOOTS: AtomicU32 = AtomicU32::new(0);

const PATIENCE: Duration = Duration::from_mins(2);
/// The check timeout in the gates of the scenarios.
const CHECK: Duration = Duration::from_secs(2);
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
            let pods = Api::namespaced(client.clone(), namespace);
            tasks.spawn(kubelet(client.clone(), pods, behaviours.clone(), off.clone()));
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
    create(&Api::<Namespace>::all(client.clone()), json!({"metadata": {"name": NAMESPACE}})).await?;
    let account = json!({"metadata": {"name": "nodekeeper-worker"}});
    create(&Api::<ServiceAccount>::namespaced(client.clone(), NAMESPACE), account).await?;
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    for definition in all_definitions() {
        create(&definitions, serde_json::to_value(definition)?).await?;
    }
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

/// Reports bound pods and removes deleted ones on all nodes. Restarts its watch whenever it ends.
async fn kubelet(client: Client, pods: Api<Pod>, behaviours: WorkerBehaviours, off: Off) {
    let mut known = BTreeSet::new();
    let mut reports = JoinSet::new();
    loop {
        let params = WatchParams::streaming_lists().fields("spec.nodeName!=").timeout(200);
        if let Ok(events) = pods.watch(&params, "").await {
            let mut events = events.boxed();
            while let Some(Ok(event)) = events.next().await {
                let (WatchEvent::Added(pod) | WatchEvent::Modified(pod)) = event else { continue };
                let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
                if off.lock().unwrap_or_else(PoisonError::into_inner).contains(&node) {
                    continue;
                }
                let pods = pods.clone();
                if pod.metadata.deletion_timestamp.is_some() {
                    let gone = DeleteParams::default().grace_period(0);
                    reports.spawn(async move { drop(pods.delete(&pod.name_any(), &gone).await) });
                } else if known.insert(pod.uid()) {
                    let (client, behaviour) = (client.clone(), behaviours.of(&node));
                    reports.spawn(async move {
                        if identity(&pod).is_ok() {
                            report(&client, &pod, behaviour).await;
                        } else {
                            runs(&pods, &pod).await;
                        }
                    });
                }
                while reports.try_join_next().is_some() {}
            }
        }
        sleep(LOOK).await;
    }
}

async fn runs(pods: &Api<Pod>, pod: &Pod) {
    let ready = json!({"type": "Ready", "status": "True"});
    let status = Patch::Merge(json!({"status": {"phase": "Running", "conditions": [ready]}}));
    drop(pods.patch_status(&pod.name_any(), &PatchParams::default(), &status).await);
}

async fn report(client: &Client, pod: &Pod, behaviour: WorkerBehaviour) {
    let number = identity(pod).map(|subject| subject.number).unwrap_or_default();
    let image = pod.spec.as_ref().and_then(|spec| spec.containers.first()?.image.as_deref());
    let state = match behaviour {
        _ if image == Some(MISSING) => State::NoImage,
        WorkerBehaviour::Hangs => State::Runs,
        WorkerBehaviour::TimesOut => {
            sleep(CHECK).await;
            State::Failed
        }
        WorkerBehaviour::Fails { first } if number <= first => State::Failed,
        WorkerBehaviour::Fails { .. } => State::Passed,
    };
    // The pod may have been deleted meanwhile.
    drop(say(client, pod, state).await);
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
        self.off.lock().unwrap_or_else(PoisonError::into_inner).remove(&name);
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
        self.off.lock().unwrap_or_else(PoisonError::into_inner).insert(node.to_owned());
        Ok(())
    }

    fn hint(&self) -> String {
        format!("logs of the control plane are in {}", self.cluster.folder().display())
    }
}
