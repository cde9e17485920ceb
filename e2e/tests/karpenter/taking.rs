//! Nodes that are taken away.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt as _};
use nodekeeper_e2e::karpenter::objects::{Under, claim_of, delete_claim, make_pods, make_pool, nodes_of};
use serde_json::json;

use crate::eye::{Eye, Step};
use crate::land::Land;
use crate::passing::{app_runs, initialized};
use crate::play::{controller, gate, no_workers_left, node, opens, until, worker_on};
use crate::world::{Fate, TAINT, WORKS, World};

/// The first node of a pool.
pub async fn first_node(world: &impl World, pool: &str) -> Result<Node> {
    let look = async || Ok(nodes_of(&world.client(), pool).await?.into_iter().next());
    until(world, &format!("{pool} has a node"), look).await
}

/// A claim is deleted while the worker of its node runs: Karpenter ends the node, which is never opened, and makes
/// another, which goes through the gate like any.
pub async fn a_node_that_karpenter_takes_away_is_left_to_it(land: Land) -> Result<()> {
    let eye = Eye::open(&land);
    let client = land.client();
    make_pool(&client, "unlucky", TAINT, Under::StartupTaints, "0s").await?;
    gate(&land, "default", json!({})).await?;
    let _controller = controller(&land, "a");
    land.fates().set("unlucky", Fate::Hangs);
    make_pods(&client, "app", "unlucky", 1).await?;
    let name = first_node(&land, "unlucky").await?.name_any();
    worker_on(&land, &name).await?;
    let claim = claim_of(&client, &node(&land, &name).await?).await?.context("a node without a claim")?;
    land.fates().set("unlucky", WORKS);
    delete_claim(&client, &claim.name_any()).await?;
    let nodes: Api<Node> = Api::all(client.clone());
    until(&land, "the node is gone", async || Ok(nodes.get_opt(&name).await?.is_none().then_some(())))
        .await?;
    for other in app_runs(&land, "app", 1).await? {
        ensure!(other != name, "the pod runs on a node that is gone");
        opens(&land, &other).await?;
        initialized(&land, &other).await?;
        eye.in_order(&other)?;
    }
    let steps = eye.steps()?.remove(&name).context("not seen")?;
    let had = |step| steps.iter().any(|(_, known)| *known == step);
    ensure!(had(Step::Gated) && had(Step::Disrupted) && !had(Step::Opened), "{steps:?}");
    no_workers_left(&land).await
}
