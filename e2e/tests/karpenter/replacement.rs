//! Nodes that never pass, and their replacement by Karpenter.

use anyhow::{Context as _, Result, ensure};
use http::Method;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use kube::api::ListParams;
use nodekeeper_e2e::karpenter::objects::{
    Under, ZONE, claim_of, image, make_pods, make_pods_that_tolerate, make_pool, nodes_of, scale_pods,
};
use nodekeeper_e2e::scenario::fault_proxy::FaultProxy;
use nodekeeper_e2e::scenario::remediation::{policy, policy_condition, remediation_condition, remediations};
use nodekeeper_e2e::scenario::steps::{controller, gate, is_verified, node_is, record, until};
use nodekeeper_e2e::scenario::world::{BROKEN, TAINT, WORKS, World};
use serde_json::json;

use crate::deletion::first_node;
use crate::karpenter_world::KarpenterWorld;
use crate::log;
use crate::node_observer::{NodeObserver, NodePhase};
use crate::verification::{app_runs, initialized};

/// A gate that requests a replacement after the second attempt.
pub async fn asking_gate(world: &impl World) -> Result<()> {
    let retry = json!({"maxRetries": 1, "recheckPeriodSeconds": 10});
    gate(world, "default", json!({"onFailure": "Replace", "retry": retry})).await
}

/// Creates a pool of three verified nodes as a control group.
pub async fn verified(world: &impl World) -> Result<()> {
    let client = world.client();
    make_pool(&client, "good", TAINT, Under::StartupTaints, "0s").await?;
    make_pods(&client, "steady", "good", 3).await?;
    for name in app_runs(world, "steady", 3).await? {
        is_verified(world, &name).await?;
    }
    Ok(())
}

/// Returns the name of a pool's first node, which never passes, and of its claim. The pool's other nodes pass.
pub async fn join_failing(world: &impl World, pool: &str) -> Result<(String, String)> {
    let node = first_node(world, pool).await?;
    let name = node.name_any();
    world.behaviours().set(&name, BROKEN);
    world.behaviours().set(pool, WORKS);
    let node = node_is(world, &name, "owned", |node| !node.owner_references().is_empty()).await?;
    let claim = claim_of(&world.client(), &node).await?.context("a node without a claim")?;
    Ok((name, claim.name_any()))
}

/// The destructive requests: deletions of Nodes and claims, and evictions.
pub fn harm(proxy: &FaultProxy) -> Vec<String> {
    let mut harm = Vec::new();
    for asked in proxy.requests() {
        let path = asked.uri.split('?').next().unwrap_or_default();
        let is_node = asked.is_about_nodes() || path.starts_with("/apis/karpenter.sh/");
        if (asked.method == Method::DELETE && is_node) || path.ends_with("/eviction") {
            harm.push(format!("{} {path}", asked.method));
        }
    }
    harm
}

pub fn deletes(claim: &str) -> String {
    format!("DELETE /apis/karpenter.sh/v1/nodeclaims/{claim}")
}

/// Waits until a gated node was checked twice more, so that the controller had time to act.
pub async fn checked_twice_more(world: &impl World, name: &str) -> Result<()> {
    let number = |node: &Node| record(node).map_or(0, |record| record.workers);
    let before = number(&nodekeeper_e2e::scenario::steps::node(world, name).await?);
    node_is(world, name, "checked twice more", |node| number(node) >= before + 2).await.map(drop)
}

/// The node is compared with its control group, cordoned and drained, and its claim is deleted. Karpenter deletes the
/// Node and creates another, which is gated, checked and untainted.
pub async fn a_node_that_never_passes_has_its_claim_deleted(world: KarpenterWorld) -> Result<()> {
    let observer = NodeObserver::start(&world);
    let client = world.client();
    asking_gate(&world).await?;
    policy(&world, json!({"enforcement": "Enforce"})).await?;
    let controller = controller(&world, "a");
    verified(&world).await?;
    world.behaviours().set("unlucky", BROKEN);
    make_pool(&client, "unlucky", TAINT, Under::StartupTaints, "0s").await?;
    make_pods_that_tolerate(&client, "app", "unlucky", 1, &[TAINT]).await?;
    let (name, claim) = join_failing(&world, "unlucky").await?;
    ensure!(app_runs(&world, "app", 1).await? == [name.clone()], "the pod does not run on {name}");

    remediation_condition(&world, &name, ("Succeeded", "True", "Replaced"), "").await?;
    let done = harm(&controller.proxy);
    let is_drained = |first: &str| first.starts_with("POST /api/v1/namespaces/default/pods/app-");
    ensure!(done.len() == 2 && is_drained(&done[0]) && done[1] == deletes(&claim), "{done:?}");
    let all = remediations(&world).list(&ListParams::default()).await?.items;
    let status = &all.first().context("no request")?.data["status"];
    ensure!(all.len() == 1 && status["provider"] == "Karpenter" && status["machine"] == *claim, "{all:?}");
    let (node, of_claim) = (format!("node=\"{name}\""), format!("nodeClaim=\"{claim}\""));
    for proxy in [
        ["Found NodeClaim for failed node, deleting NodeClaim instead", &of_claim, &node],
        ["Successfully deleted NodeClaim, node should be terminated by Karpenter", &of_claim, ""],
    ] {
        ensure!(log::has(&proxy), "{proxy:?} is not in the log:\n{}", log::tail(50));
    }
    let when = |step| observer.when(&name, step);
    ensure!(
        when(NodePhase::Gated)?.is_some() && when(NodePhase::Opened)?.is_none(),
        "{:?}",
        observer.steps()?
    );
    let (cordoned, disrupted) = (when(NodePhase::Cordoned)?, when(NodePhase::Disrupted)?);
    ensure!(cordoned.is_some() && cordoned < disrupted, "{:?}", observer.steps()?);

    for other in app_runs(&world, "app", 1).await? {
        ensure!(other != name, "the pod runs on a node that is gone");
        is_verified(&world, &other).await?;
        initialized(&world, &other).await?;
        observer.in_order(&other)?;
    }
    ensure!(harm(&controller.proxy) == done, "{:?}", harm(&controller.proxy));
    Ok(())
}

/// The first node of a pool that is not in `known`.
async fn newcomer(world: &impl World, pool: &str, known: &[String]) -> Result<(String, String)> {
    let look = async || {
        let nodes = nodes_of(&world.client(), pool).await?;
        Ok(nodes
            .into_iter()
            .find(|node| !known.contains(&node.name_any()) && !node.owner_references().is_empty()))
    };
    let node = until(world, &format!("{pool} has another node"), look).await?;
    let claim = claim_of(&world.client(), &node).await?.context("a node without a claim")?;
    Ok((node.name_any(), claim.name_any()))
}

/// Every new node of a pool is broken. Two generations are replaced, then no more. The common failure is reported,
/// and a node that recovers is untainted.
pub async fn a_broken_pool_is_not_replaced_forever(world: KarpenterWorld) -> Result<()> {
    let client = world.client();
    asking_gate(&world).await?;
    let budget = json!({"maxPerHour": 20, "maxGroupPercentPerHour": 100});
    let spec = json!({"enforcement": "Enforce", "budget": budget, "breaker": {"openPercent": 100}});
    policy(&world, spec).await?;
    let controller = controller(&world, "a");
    make_pool(&client, "pool", TAINT, Under::StartupTaints, "0s").await?;
    make_pods(&client, "app", "pool", 3).await?;
    let mut known = app_runs(&world, "app", 3).await?;
    for name in &known {
        is_verified(&world, name).await?;
        world.behaviours().set(name, WORKS);
    }
    world.behaviours().set("pool", BROKEN);
    scale_pods(&client, "app", 4).await?;
    let mut expected = Vec::new();
    for _ in 0..2 {
        let (name, claim) = newcomer(&world, "pool", &known).await?;
        remediation_condition(&world, &name, ("Succeeded", "True", "Replaced"), "").await?;
        known.push(name);
        expected.push(deletes(&claim));
    }
    let (name, _) = newcomer(&world, "pool", &known).await?;
    let said = remediation_condition(&world, &name, ("Approved", "False", "FuseBlown"), "").await?;
    let type_ = nodekeeper_e2e::scenario::steps::node(&world, &name).await?.labels()["node.kubernetes.io/instance-type"].clone();
    for part in [
        "group pool",
        "dns",
        &format!("image {}", image("pool")),
        &format!("type {type_}"),
        &format!("zone {ZONE}"),
        "resetAt",
    ] {
        ensure!(said.contains(part), "{part} is missing in: {said}");
    }
    let said = policy_condition(&world, ("FuseBlown", "True", "ReplacementsFailAlike"), "").await?;
    ensure!(said.contains("pool"), "{said}");
    checked_twice_more(&world, &name).await?;
    ensure!(harm(&controller.proxy) == expected, "{:?}, not {expected:?}", harm(&controller.proxy));

    world.behaviours().set("pool", WORKS);
    is_verified(&world, &name).await?;
    remediation_condition(&world, &name, ("Succeeded", "False", "NodeRecovered"), "").await?;
    Ok(())
}
