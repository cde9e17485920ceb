//! Something that all nodes share is down: no node is to blame, and none is when it is back.

use anyhow::{Result, ensure};
use kube::api::ListParams;
use serde_json::json;

use crate::fault_proxy::RecordedRequest;
use crate::remediation::{
    GOOD, join_failing, is_there, policy_condition, remediation_condition, remediations, start_controller, zoned,
};
use crate::steps::opens;
use crate::world::{BROKEN, WORKS, World};

/// Names resolve nowhere. New nodes fail by the dozen, those that were let in would fail alike, and the policy would have
/// them replaced: nothing is deleted, the policy says what is down, and when it is back all nodes are let in.
pub async fn i02_when_names_resolve_nowhere_no_node_is_blamed(world: impl World) -> Result<()> {
    // Not the breaker is to stop it.
    let controller = start_controller(&world, json!({"breaker": {"openPercent": 100}})).await?;
    for name in GOOD {
        world.behaviours().set(name, BROKEN);
    }
    let mut new = Vec::new();
    for number in 0..world.about(60) {
        let name = format!("new-{number}");
        let uid = join_failing(&world, zoned(&name)).await?;
        new.push((name, uid));
    }
    let down = ("SharedDependencyDown", "True", "ControlsFail");
    let message = policy_condition(&world, down, "dns").await?;
    ensure!(message.contains("zone a") && message.contains("kubernetes.default"), "{message}");
    policy_condition(&world, ("Ready", "False", "SharedDependencyDown"), "").await?;
    let asked = remediations(&world).list(&ListParams::default()).await?.items;
    ensure!(!asked.is_empty(), "nobody asked for a replacement");
    let first = asked[0].data["spec"]["node"]["name"].as_str().unwrap_or_default();
    remediation_condition(&world, first, ("Approved", "False", "SharedDependencyDown"), "It is not the node")
        .await?;

    for name in GOOD.into_iter().chain(new.iter().map(|(name, _)| name.as_str())) {
        world.behaviours().set(name, WORKS);
    }
    for (name, uid) in &new {
        opens(&world, name).await?;
        ensure!(is_there(&world, name, uid).await?, "{name} is another one now");
    }
    policy_condition(&world, ("SharedDependencyDown", "False", "NotSeen"), "").await?;
    policy_condition(&world, ("Ready", "False", "Recovering"), "").await?;
    for request in remediations(&world).list(&ListParams::default()).await?.items {
        let name = request.data["spec"]["node"]["name"].as_str().unwrap_or_default();
        remediation_condition(&world, name, ("Succeeded", "False", "NodeRecovered"), "").await?;
    }
    let harm: Vec<_> =
        controller.proxy.requests().into_iter().filter(RecordedRequest::is_destructive).collect();
    ensure!(harm.is_empty(), "{harm:?}");
    Ok(())
}
