//! Nodes that never pass, and what Karpenter makes of it.

use anyhow::{Context as _, Result, ensure};
use http::Method;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use kube::api::ListParams;
use nodekeeper_e2e::karpenter::objects::{
    Under, ZONE, claim_of, image, make_pods, make_pods_that_tolerate, make_pool, nodes_of, scale_pods,
};
use serde_json::json;

use crate::eye::{Eye, Step};
use crate::land::Land;
use crate::line::Line;
use crate::log;
use crate::passing::{app_runs, initialized};
use crate::play::{controller, gate, node_is, opens, record, until};
use crate::taking::first_node;
use crate::wishes::{policy, policy_says, request_says, requests};
use crate::world::{BROKEN, TAINT, WORKS, World};

/// A gate that asks after its second attempt.
pub async fn asking_gate(world: &impl World) -> Result<()> {
    let retry = json!({"maxRetries": 1, "recheckPeriodSeconds": 10});
    gate(world, "default", json!({"onFailure": "Replace", "retry": retry})).await
}

/// A pool of three nodes that were let in, to compare others with.
pub async fn verified(world: &impl World) -> Result<()> {
    let client = world.client();
    make_pool(&client, "good", TAINT, Under::StartupTaints, "0s").await?;
    make_pods(&client, "steady", "good", 3).await?;
    for name in app_runs(world, "steady", 3).await? {
        opens(world, &name).await?;
    }
    Ok(())
}

/// The name of a pool's first node, which never passes, and of its claim. The pool's other nodes do.
pub async fn hopeless(world: &impl World, pool: &str) -> Result<(String, String)> {
    let node = first_node(world, pool).await?;
    let name = node.name_any();
    world.fates().set(&name, BROKEN);
    world.fates().set(pool, WORKS);
    let node = node_is(world, &name, "owned", |node| !node.owner_references().is_empty()).await?;
    let claim = claim_of(&world.client(), &node).await?.context("a node without a claim")?;
    Ok((name, claim.name_any()))
}

/// All that was asked of the server and takes something away: Nodes and claims that were to be deleted, and evictions.
pub fn harm(line: &Line) -> Vec<String> {
    let mut harm = Vec::new();
    for asked in line.asked() {
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

/// Waits until a node that is held was looked at twice more: by then whoever wants to do something has.
pub async fn looked_at_twice_more(world: &impl World, name: &str) -> Result<()> {
    let number = |node: &Node| record(node).map_or(0, |record| record.workers);
    let before = number(&crate::play::node(world, name).await?);
    node_is(world, name, "looked at twice more", |node| number(node) >= before + 2).await.map(drop)
}

/// The node is compared with those that work, cordoned and drained, and its claim is deleted; the Node is Karpenter's to delete, and
/// so is the next one to make: held again, looked at, opened.
pub async fn a_node_that_never_passes_has_its_claim_deleted(land: Land) -> Result<()> {
    let eye = Eye::open(&land);
    let client = land.client();
    asking_gate(&land).await?;
    policy(&land, json!({"enforcement": "Enforce"})).await?;
    let controller = controller(&land, "a");
    verified(&land).await?;
    land.fates().set("unlucky", BROKEN);
    make_pool(&client, "unlucky", TAINT, Under::StartupTaints, "0s").await?;
    make_pods_that_tolerate(&client, "app", "unlucky", 1, &[TAINT]).await?;
    let (name, claim) = hopeless(&land, "unlucky").await?;
    ensure!(app_runs(&land, "app", 1).await? == [name.clone()], "the pod does not run on {name}");

    request_says(&land, &name, ("Succeeded", "True", "Replaced")).await?;
    let done = harm(&controller.line);
    let is_drained = |first: &str| first.starts_with("POST /api/v1/namespaces/default/pods/app-");
    ensure!(done.len() == 2 && is_drained(&done[0]) && done[1] == deletes(&claim), "{done:?}");
    let all = requests(&land).list(&ListParams::default()).await?.items;
    let status = &all.first().context("no request")?.data["status"];
    ensure!(all.len() == 1 && status["provider"] == "karpenter" && status["machine"] == *claim, "{all:?}");
    let (node, of_claim) = (format!("node=\"{name}\""), format!("nodeClaim=\"{claim}\""));
    for line in [
        ["Found NodeClaim for failed node, deleting NodeClaim instead", &of_claim, &node],
        ["Successfully deleted NodeClaim, node should be terminated by Karpenter", &of_claim, ""],
    ] {
        ensure!(log::has(&line), "{line:?} is not in the log:\n{}", log::tail(50));
    }
    let when = |step| eye.when(&name, step);
    ensure!(when(Step::Gated)?.is_some() && when(Step::Opened)?.is_none(), "{:?}", eye.steps()?);
    let (cordoned, disrupted) = (when(Step::Cordoned)?, when(Step::Disrupted)?);
    ensure!(cordoned.is_some() && cordoned < disrupted, "{:?}", eye.steps()?);

    for other in app_runs(&land, "app", 1).await? {
        ensure!(other != name, "the pod runs on a node that is gone");
        opens(&land, &other).await?;
        initialized(&land, &other).await?;
        eye.in_order(&other)?;
    }
    ensure!(harm(&controller.line) == done, "{:?}", harm(&controller.line));
    Ok(())
}

/// The node of a pool that is not among those known.
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

/// All that a pool makes from now on is broken: the first is replaced, and what comes for it, and then no more. What they
/// share is said, and nobody is held for ever: who heals is let in.
pub async fn a_broken_pool_is_not_replaced_for_ever(land: Land) -> Result<()> {
    let client = land.client();
    asking_gate(&land).await?;
    let budget = json!({"perHour": 20, "groupPercent": 100});
    let spec = json!({"enforcement": "Enforce", "budget": budget, "breaker": {"openPercent": 100}});
    policy(&land, spec).await?;
    let controller = controller(&land, "a");
    make_pool(&client, "pool", TAINT, Under::StartupTaints, "0s").await?;
    make_pods(&client, "app", "pool", 3).await?;
    let mut known = app_runs(&land, "app", 3).await?;
    for name in &known {
        opens(&land, name).await?;
        land.fates().set(name, WORKS);
    }
    land.fates().set("pool", BROKEN);
    scale_pods(&client, "app", 4).await?;
    let mut expected = Vec::new();
    for _ in 0..2 {
        let (name, claim) = newcomer(&land, "pool", &known).await?;
        request_says(&land, &name, ("Succeeded", "True", "Replaced")).await?;
        known.push(name);
        expected.push(deletes(&claim));
    }
    let (name, _) = newcomer(&land, "pool", &known).await?;
    let said = request_says(&land, &name, ("Approved", "False", "FuseBlown")).await?;
    let type_ = crate::play::node(&land, &name).await?.labels()["node.kubernetes.io/instance-type"].clone();
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
    let said = policy_says(&land, ("FuseBlown", "True", "ReplacementsFailAlike")).await?;
    ensure!(said.contains("pool"), "{said}");
    looked_at_twice_more(&land, &name).await?;
    ensure!(harm(&controller.line) == expected, "{:?}, not {expected:?}", harm(&controller.line));

    land.fates().set("pool", WORKS);
    opens(&land, &name).await?;
    request_says(&land, &name, ("Succeeded", "False", "NodeRecovered")).await?;
    Ok(())
}
