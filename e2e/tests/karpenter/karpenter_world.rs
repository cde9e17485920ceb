//! A real control plane with a real Karpenter. kwok acts as the kubelet and runs all pods except workers, which a
//! fake kubelet reports as [`WorkerBehaviour`] says for the node or its pool.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use futures::StreamExt as _;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, ServiceAccount};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, PostParams, WatchEvent, WatchParams};
use kube::core::ClusterResourceScope;
use kube::{Api, Client, Resource, ResourceExt as _};
use nodekeeper_core::api::{NodeGate, NodeRemediation, RemediationPolicy, definitions as all_definitions};
use nodekeeper_e2e::Cluster;
use nodekeeper_e2e::control_plane::Options;
use nodekeeper_e2e::karpenter::{Karpenter, objects};
use nodekeeper_e2e::pool::{Pool, Taken};
use nodekeeper_operator::clock::Clock;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::task::{JoinSet, block_in_place};
use tokio::time::{Instant, sleep};

use crate::log;
use crate::worker::{State, identity, say};
use crate::world::{Machine, NAMESPACE, WorkerBehaviour, WorkerBehaviours, World};

/// Scenarios use them one after the other, because Karpenter and the controller act on every node.
static CLUSTERS: Pool<(Cluster, Karpenter)> = Pool::of(2);

const PATIENCE: Duration = Duration::from_mins(2);
const LOOK: Duration = Duration::from_millis(100);
/// All workers, including those on control nodes.
const WORKERS: &str = "app.kubernetes.io/name=nodekeeper,app.kubernetes.io/component in (worker,control)";

pub struct KarpenterWorld {
    client: Client,
    behaviours: WorkerBehaviours,
    _kubelet: JoinSet<()>,
    /// The control plane and its Karpenter. The last field: they return to the pool after their kubelet has stopped.
    place: Taken<'static, (Cluster, Karpenter)>,
}

impl KarpenterWorld {
    /// Removes what the last scenario left.
    pub async fn start() -> Result<Self> {
        log::keep();
        let place = CLUSTERS.take(begin).await?;
        let (cluster, karpenter) = &*place;
        karpenter.check()?;
        let (client, behaviours) = (cluster.client()?, WorkerBehaviours::default());
        let mut tasks = JoinSet::new();
        // The kubelet first: workers of the last scenario are not deleted without one.
        tasks.spawn(kubelet(client.clone(), behaviours.clone()));
        clean(&client).await?;
        Ok(Self { place, client, behaviours, _kubelet: tasks })
    }

    /// The same world with a client that has the controller's rights, but cannot read claims.
    pub async fn without_claims(&self, user: &str) -> Result<RestrictedWorld<'_>> {
        objects::grant_all_but_claims(&self.client, user).await?;
        Ok(RestrictedWorld { world: self, client: self.place.0.client_as(user, &[])? })
    }
}

pub struct RestrictedWorld<'a> {
    world: &'a KarpenterWorld,
    client: Client,
}

async fn begin() -> Result<(Cluster, Karpenter)> {
    let mut options = Options::from_env()?;
    let settings = options.settings.clone();
    // kwok renews leases four times a minute.
    options.controller_manager_flags.push("--node-monitor-grace-period=1h".into());
    let cluster = Cluster::start(options).await?;
    let client = cluster.client()?;
    make(&Api::<Namespace>::all(client.clone()), json!({"metadata": {"name": NAMESPACE}})).await?;
    let account = json!({"metadata": {"name": "nodekeeper-worker"}});
    make(&Api::<ServiceAccount>::namespaced(client.clone(), NAMESPACE), account).await?;
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    for definition in all_definitions() {
        make(&definitions, serde_json::to_value(definition)?).await?;
    }
    let karpenter = block_in_place(|| Karpenter::start(&cluster, &settings, WORKERS))?;
    Ok((cluster, karpenter))
}

async fn make<K>(api: &Api<K>, body: Value) -> Result<K>
where
    K: Resource + Clone + std::fmt::Debug + DeserializeOwned + Serialize,
{
    Ok(api.create(&PostParams::default(), &serde_json::from_value(body)?).await?)
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

/// Reports the workers on all nodes, and removes deleted ones. Restarts its watch whenever it ends.
async fn kubelet(client: Client, behaviours: WorkerBehaviours) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let mut known = BTreeSet::new();
    let mut reports = JoinSet::new();
    loop {
        let params = WatchParams::streaming_lists().labels(WORKERS).fields("spec.nodeName!=").timeout(200);
        if let Ok(events) = pods.watch(&params, "").await {
            let mut events = events.boxed();
            while let Some(Ok(event)) = events.next().await {
                let (WatchEvent::Added(pod) | WatchEvent::Modified(pod)) = event else { continue };
                if pod.metadata.deletion_timestamp.is_some() {
                    let (pods, gone) = (pods.clone(), DeleteParams::default().grace_period(0));
                    reports.spawn(async move { drop(pods.delete(&pod.name_any(), &gone).await) });
                } else if known.insert(pod.uid()) {
                    let (client, behaviours) = (client.clone(), behaviours.clone());
                    // The pod may have been deleted meanwhile.
                    reports.spawn(async move { drop(report(&client, &pod, &behaviours).await) });
                }
                while reports.try_join_next().is_some() {}
            }
        }
        sleep(LOOK).await;
    }
}

async fn report(client: &Client, pod: &Pod, behaviours: &WorkerBehaviours) -> Result<()> {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
    let state = match behaviour(client, &node, behaviours).await? {
        WorkerBehaviour::Hangs | WorkerBehaviour::TimesOut => State::Runs,
        WorkerBehaviour::Fails { first } if identity(pod)?.number <= first => State::Failed,
        WorkerBehaviour::Fails { .. } => State::Passed,
    };
    say(client, pod, state).await
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
        let ended = self.place.1.check().err().map(|error| format!("{error:#}"));
        let (ended, ours) = (ended.unwrap_or_default(), log::tail(20));
        format!("{ended}; end of our log:\n{ours}end of Karpenter's log:\n{}", self.place.1.log_tail())
    }
}

impl World for RestrictedWorld<'_> {
    fn client(&self) -> Client {
        self.client.clone()
    }

    fn clock(&self) -> Clock {
        self.world.clock()
    }

    fn patience(&self) -> Duration {
        self.world.patience()
    }

    fn about(&self, nodes: usize) -> usize {
        self.world.about(nodes)
    }

    fn behaviours(&self) -> &WorkerBehaviours {
        self.world.behaviours()
    }

    async fn join(&self, machine: Machine) -> Result<()> {
        self.world.join(machine).await
    }

    async fn say_ready(&self, node: &str, ready: bool) -> Result<()> {
        self.world.say_ready(node, ready).await
    }

    async fn reboot(&self, node: &str) -> Result<()> {
        self.world.reboot(node).await
    }

    async fn power_off(&self, node: &str) -> Result<()> {
        self.world.power_off(node).await
    }

    fn hint(&self) -> String {
        self.world.hint()
    }
}
