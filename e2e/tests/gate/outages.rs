//! Something that all nodes share is down: no node is to blame, and none is when it is back.

use anyhow::{Result, ensure};
use kube::api::ListParams;
use serde_json::json;

use crate::line::Asked;
use crate::play::opens;
use crate::remediating::{GOOD, hopeless, is_there, policy_says, request_says, requests, stage, zoned};
use crate::world::{BROKEN, WORKS, World};

/// Names resolve nowhere. New nodes fail by the dozen, those that were let in would fail alike, and the policy would have
/// them replaced: nothing is deleted, the policy says what is down, and when it is back all nodes are let in.
pub async fn i02_when_names_resolve_nowhere_no_node_is_blamed(world: impl World) -> Result<()> {
    // Not the breaker is to stop it.
    let controller = stage(&world, json!({"breaker": {"openPercent": 100}})).await?;
    for name in GOOD {
        world.fates().set(name, BROKEN);
    }
    let mut new = Vec::new();
    for number in 0..world.about(60) {
        let name = format!("new-{number}");
        let uid = hopeless(&world, zoned(&name)).await?;
        new.push((name, uid));
    }
    let down = ("SharedDependencyDown", "True", "ControlsFail");
    let message = policy_says(&world, down, "dns").await?;
    ensure!(message.contains("zone a") && message.contains("kubernetes.default"), "{message}");
    policy_says(&world, ("Ready", "False", "SharedDependencyDown"), "").await?;
    let asked = requests(&world).list(&ListParams::default()).await?.items;
    ensure!(!asked.is_empty(), "nobody asked for a replacement");
    let first = asked[0].data["spec"]["node"]["name"].as_str().unwrap_or_default();
    request_says(&world, first, ("Approved", "False", "SharedDependencyDown"), "shared dependency").await?;

    for name in GOOD.into_iter().chain(new.iter().map(|(name, _)| name.as_str())) {
        world.fates().set(name, WORKS);
    }
    for (name, uid) in &new {
        opens(&world, name).await?;
        ensure!(is_there(&world, name, uid).await?, "{name} is another one now");
    }
    policy_says(&world, ("SharedDependencyDown", "False", "NotObserved"), "").await?;
    policy_says(&world, ("Ready", "False", "Recovering"), "").await?;
    for request in requests(&world).list(&ListParams::default()).await?.items {
        let name = request.data["spec"]["node"]["name"].as_str().unwrap_or_default();
        request_says(&world, name, ("Succeeded", "False", "NodeRecovered"), "").await?;
    }
    let harm: Vec<_> = controller.line.asked().into_iter().filter(Asked::is_harm).collect();
    ensure!(harm.is_empty(), "{harm:?}");
    Ok(())
}
