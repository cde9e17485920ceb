//! A real control plane with a real Karpenter. kwok acts as the kubelet and runs all pods except workers, which a
//! fake kubelet reports as `WorkerBehaviour` says for the node or its pool.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, ListParams};
use kube::core::ClusterResourceScope;
use kube::{Api, Client, Resource, ResourceExt as _};
use nodekeeper_core::api::{NodeGate, NodeRemediation, RemediationPolicy};
use nodekeeper_e2e::Cluster;
use nodekeeper_e2e::control_plane::Options;
use nodekeeper_e2e::karpenter::{Karpenter, objects};
use nodekeeper_e2e::pool::{Pool, Taken};
use nodekeeper_e2e::scenario::fake_kubelet;
use nodekeeper_e2e::scenario::world::{Machine, NAMESPACE, WorkerBehaviour, WorkerBehaviours, World};
use nodekeeper_operator::clock::Clock;
use serde::de::DeserializeOwned;
use tokio::task::{JoinSet, block_in_place};
use tokio::time::{Instant, sleep};

use crate::log;

/// Scenarios use them one after the other, because Karpenter and the controller act on every node.
static CLUSTERS: Pool<(Cluster, Karpenter)> = Pool::of(2);

const PATIENCE: Duration = Duration::from_mins(2);
const LOOK: Duration = Duration::from_millis(100);
/// All workers, including those on control nodes.
const WORKERS: &str = "app.kubernetes.io/name=nodekeeper,app.kubernetes.io/component in (worker,control)";

#[derive(Clone)]
pub struct KarpenterWorld {
    client: Client,
    behaviours: WorkerBehaviours,
    place: Arc<Place>,
}

struct Place {
    _kubelet: JoinSet<()>,
    /// The control plane and its Karpenter. The last field: they return to the pool after their kubelet has stopped.
    taken: Taken<'static, (Cluster, Karpenter)>,
}

impl KarpenterWorld {
    /// Removes what the last scenario left.
    pub async fn start() -> Result<Self> {
        log::keep();
        let taken = CLUSTERS.take(begin).await?;
        let (cluster, karpenter) = &*taken;
        karpenter.check()?;
        let (client, behaviours) = (cluster.client()?, WorkerBehaviours::default());
        let mut tasks = JoinSet::new();
        // The kubelet first: workers of the last scenario are not deleted without one.
        tasks.spawn(kubelet(client.clone(), behaviours.clone()));
        clean(&client).await?;
        Ok(Self { client, behaviours, place: Arc::new(Place { _kubelet: tasks, taken }) })
    }

    /// The same world with a client that has the controller's rights, but cannot read claims.
    pub async fn without_claims(&self, user: &str) -> Result<Self> {
        objects::grant_all_but_claims(&self.client, user).await?;
        Ok(Self { client: self.place.taken.0.client_as(user, &[])?, ..self.clone() })
    }
}

async fn begin() -> Result<(Cluster, Karpenter)> {
    let mut options = Options::from_env()?;
    let settings = options.settings.clone();
    // kwok renews leases four times a minute.
    options.controller_manager_flags.push("--node-monitor-grace-period=1h".into());
    let cluster = Cluster::start(options).await?;
    let client = cluster.client()?;
    fake_kubelet::install(&client).await?;
    let karpenter = block_in_place(|| Karpenter::start(&cluster, &settings, WORKERS))?;
    Ok((cluster, karpenter))
}

/// Deletes the objects of the last scenario. Gates first, so that no new workers are created.
async fn clean(client: &Client) -> Result<()> {
    let (now, all) = (DeleteParams::default(), ListParams::default());
    let nodes: Api<Node> = Api::all(client.clone());
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let end = Instant::now() + PATIENCE;
    remove_all::<NodeGate>(client, end).await?;
    remove_all::<RemediationPolicy>(client, end).await?;
    remove_all::<NodeRemediation>(client, end).await?;
    objects::delete_all(client).await?;
    Api::<Lease>::namespaced(client.clone(), NAMESPACE).delete_collection(&now, &all).await?;
    loop {
        pods.delete_collection(&now.clone().grace_period(0), &all).await?;
        let nodes_left = nodes.list_metadata(&all).await?.items;
        let left =
            objects::left(client).await? + nodes_left.len() + pods.list_metadata(&all).await?.items.len();
        if left == 0 {
            return Ok(());
        }
        let names: Vec<_> = nodes_left.iter().map(kube::ResourceExt::name_any).collect();
        ensure!(
            Instant::now() < end,
            "{left} objects of the last scenario are not deleted; nodes: {names:?}"
        );
        // Nodes without a claim are not deleted by Karpenter.
        nodes.delete_collection(&now, &ListParams::default().labels("!karpenter.sh/registered")).await?;
        sleep(LOOK).await;
    }
}

async fn remove_all<K>(client: &Client, end: Instant) -> Result<()>
where
    K: Resource<DynamicType = (), Scope = ClusterResourceScope> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let all: Api<K> = Api::all(client.clone());
    loop {
        // At first the kind may not be served yet.
        match all.delete_collection(&DeleteParams::default(), &ListParams::default()).await {
            Err(error) if Instant::now() > end => bail!("{} cannot be deleted: {error}", K::plural(&())),
            Err(_) => sleep(LOOK).await,
            Ok(_) => return Ok(()),
        }
    }
}

/// Reports the workers on all nodes.
async fn kubelet(client: Client, behaviours: WorkerBehaviours) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let report = |pod: Pod, node: String| {
        let (client, behaviours) = (client.clone(), behaviours.clone());
        async move {
            // The node may have been deleted meanwhile.
            if let Ok(behaviour) = behaviour(&client, &node, &behaviours).await {
                fake_kubelet::report_worker(&client, &pod, behaviour).await;
            }
        }
    };
    fake_kubelet::run(pods, WORKERS, |_| false, report).await;
}

/// The behaviour of the node or else of its pool: tests do not know the names of Karpenter's nodes in advance.
async fn behaviour(client: &Client, name: &str, behaviours: &WorkerBehaviours) -> Result<WorkerBehaviour> {
    if let Some(own) = behaviours.get(name) {
        return Ok(own);
    }
    let node = Api::<Node>::all(client.clone()).get_metadata(name).await?;
    Ok(behaviours.of(node.labels().get("karpenter.sh/nodepool").map_or("", String::as_str)))
}

impl World for KarpenterWorld {
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
        nodes.min(3)
    }

    fn behaviours(&self) -> &WorkerBehaviours {
        &self.behaviours
    }

    async fn join(&self, _: Machine) -> Result<()> {
        bail!("only Karpenter creates nodes")
    }

    async fn say_ready(&self, _: &str, _: bool) -> Result<()> {
        bail!("only kwok reports readiness")
    }

    async fn reboot(&self, _: &str) -> Result<()> {
        bail!("kwok nodes do not reboot")
    }

    async fn power_off(&self, _: &str) -> Result<()> {
        bail!("kwok nodes cannot be switched off")
    }

    fn hint(&self) -> String {
        let ended = self.place.taken.1.check().err().map(|error| format!("{error:#}"));
        let (ended, ours) = (ended.unwrap_or_default(), log::tail(20));
        format!("{ended}; end of our log:\n{ours}end of Karpenter's log:\n{}", self.place.taken.1.log_tail())
    }
}
