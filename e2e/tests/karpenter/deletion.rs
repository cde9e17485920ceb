//! Nodes that Karpenter removes.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt as _};
use nodekeeper_e2e::karpenter::objects::{Under, claim_of, delete_claim, make_pods, make_pool, nodes_of};
use nodekeeper_e2e::scenario::steps::{
    controller, gate, is_verified, no_workers_left, node, until, worker_on,
};
use nodekeeper_e2e::scenario::world::{TAINT, WORKS, WorkerBehaviour, World};
use serde_json::json;

use crate::karpenter_world::KarpenterWorld;
use crate::node_observer::{NodeObserver, NodePhase};
use crate::verification::{app_runs, initialized};

pub async fn first_node(world: &impl World, pool: &str) -> Result<Node> {
    let look = async || Ok(nodes_of(&world.client(), pool).await?.into_iter().next());
    until(world, &format!("{pool} has a node"), look).await
}

/// A claim is deleted while the worker of its node runs. Karpenter removes the node, which is never untainted, and
/// creates another, which is verified as usual.
pub async fn a_node_removed_by_karpenter_is_left_alone(world: KarpenterWorld) -> Result<()> {
    let observer = NodeObserver::start(&world);
    let client = world.client();
    make_pool(&client, "unlucky", TAINT, Under::StartupTaints, "0s").await?;
    gate(&world, "default", json!({})).await?;
    let _controller = controller(&world, "a");
    world.behaviours().set("unlucky", WorkerBehaviour::Hangs);
    make_pods(&client, "app", "unlucky", 1).await?;
    let name = first_node(&world, "unlucky").await?.name_any();
    worker_on(&world, &name).await?;
    let claim = claim_of(&client, &node(&world, &name).await?).await?.context("a node without a claim")?;
    world.behaviours().set("unlucky", WORKS);
    delete_claim(&client, &claim.name_any()).await?;
    let nodes: Api<Node> = Api::all(client.clone());
    until(&world, "the node is gone", async || Ok(nodes.get_opt(&name).await?.is_none().then_some(())))
        .await?;
    for other in app_runs(&world, "app", 1).await? {
        ensure!(other != name, "the pod runs on a node that is gone");
        is_verified(&world, &other).await?;
        initialized(&world, &other).await?;
        observer.in_order(&other)?;
    }
    let steps = observer.steps()?.remove(&name).context("not seen")?;
    let had = |step| steps.iter().any(|(_, known)| *known == step);
    ensure!(had(NodePhase::Gated) && had(NodePhase::Disrupted) && !had(NodePhase::Opened), "{steps:?}");
    no_workers_left(&world).await
}
