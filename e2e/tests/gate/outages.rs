//! A shared dependency is down: no node is at fault, neither during nor after the outage.

use anyhow::{Result, ensure};
use kube::api::ListParams;
use nodekeeper_e2e::scenario::fault_proxy::RecordedRequest;
use nodekeeper_e2e::scenario::remediation::{policy_condition, remediation_condition, remediations};
use nodekeeper_e2e::scenario::steps::is_verified;
use nodekeeper_e2e::scenario::world::{BROKEN, WORKS, World};
use serde_json::json;

use crate::remediation::{GOOD, is_there, join_failing, start_controller, zoned};

/// DNS fails everywhere. New nodes fail, the control group fails alike, and the policy would replace them. Nothing is
/// deleted, the policy reports the outage, and all nodes are untainted when DNS works again.
pub async fn i02_a_dns_outage_replaces_no_node(world: impl World) -> Result<()> {
    // The breaker must not be what stops the replacements.
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
    ensure!(!asked.is_empty(), "no replacement was requested");
    let first = asked[0].data["spec"]["node"]["name"].as_str().unwrap_or_default();
    remediation_condition(&world, first, ("Approved", "False", "SharedDependencyDown"), "shared dependency")
        .await?;

    for name in GOOD.into_iter().chain(new.iter().map(|(name, _)| name.as_str())) {
        world.behaviours().set(name, WORKS);
    }
    for (name, uid) in &new {
        is_verified(&world, name).await?;
        ensure!(is_there(&world, name, uid).await?, "{name} was replaced");
    }
    policy_condition(&world, ("SharedDependencyDown", "False", "NotObserved"), "").await?;
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
