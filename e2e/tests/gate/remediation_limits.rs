//! Replacements that are requested and blocked, each for another reason.

use anyhow::{Context as _, Result, ensure};
use http::Method;
use jiff::Timestamp;
use kube::api::ListParams;
use nodekeeper_e2e::scenario::fault_proxy::{FaultProxy, RecordedRequest};
use nodekeeper_e2e::scenario::remediation::{
    edit_policy, policies, remediation_condition, remediations, request_remediation,
};
use nodekeeper_e2e::scenario::steps::{node, patch_node, until};
use nodekeeper_e2e::scenario::world::World;
use serde_json::{Value, json};

use crate::drain::run_on;
use crate::remediation::{
    is_cordoned, is_marked, is_replaced, is_there, join_failing, start_controller, zoned,
};

const OPT_OUT: &str = "nodekeeper.dev/do-not-disrupt";

/// Asserts that neither this node nor any other was touched.
async fn is_untouched(world: &impl World, proxy: &FaultProxy, name: &str, uid: &str) -> Result<()> {
    let node = node(world, name).await?;
    ensure!(is_there(world, name, uid).await?, "{name} was replaced");
    ensure!(!is_cordoned(&node) && !is_marked(&node), "{name} was cordoned: {:?}", node.spec);
    let harm: Vec<_> = proxy.requests().into_iter().filter(RecordedRequest::is_destructive).collect();
    ensure!(harm.is_empty(), "{harm:?}");
    Ok(())
}

/// A dry run reports what it would do and writes nothing else: no cordon, no worker on other nodes. Once enforced,
/// the replacement happens.
pub async fn a_dry_run_reports_the_replacement(world: impl World) -> Result<()> {
    let controller = start_controller(&world, json!({"enforcement": "DryRun"})).await?;
    let before = controller.proxy.requests().len();
    let uid = join_failing(&world, zoned("failing")).await?;
    let held = ("Approved", "False", "DryRun");
    remediation_condition(&world, "failing", held, "the node would be compared with verified nodes").await?;
    is_untouched(&world, &controller.proxy, "failing", &uid).await?;
    // Workers of the node itself, and its record.
    let fits = |path: &str| {
        ["/noderemediations", "/remediationpolicies/default/status", "/nodegates/default/status", "/events"]
            .iter()
            .any(|one| path.contains(one))
            || path.contains("/leases/")
            || path.contains(&uid)
            || path.ends_with("/pods")
            || path.starts_with("/api/v1/nodes/failing")
    };
    let writes = controller.proxy.requests().into_iter().skip(before).filter(|one| one.method != Method::GET);
    let path = |uri: &str| uri.split('?').next().unwrap_or_default().to_owned();
    let others: Vec<String> = writes.map(|one| path(&one.uri)).filter(|path| !fits(path)).collect();
    ensure!(others.is_empty(), "{others:?}");
    edit_policy(&world, json!({"enforcement": "Enforce"})).await?;
    is_replaced(&world, "failing", &uid).await
}

/// Without a `NodeClaim`, and while the policy does not allow deleting the Node object for this source, nothing is
/// done.
pub async fn a_node_without_a_provider_is_kept(world: impl World) -> Result<()> {
    let controller =
        start_controller(&world, json!({"deleteNodeObjectFor": [{"source": "Gate", "name": "another"}]}))
            .await?;
    let uid = join_failing(&world, zoned("failing")).await?;
    remediation_condition(&world, "failing", ("Approved", "False", "NoProvider"), "deleteNodeObjectFor")
        .await?;
    is_untouched(&world, &controller.proxy, "failing", &uid).await?;
    edit_policy(&world, json!({"deleteNodeObjectFor": [{"source": "Gate", "name": "default"}]})).await?;
    is_replaced(&world, "failing", &uid).await
}

/// A node, and a node with a pod, that opted out of disruption. Then the first opts in again.
pub async fn nodes_and_pods_that_opted_out_are_not_disrupted(world: impl World) -> Result<()> {
    let controller = start_controller(&world, json!({})).await?;
    patch_node(&world, "one", json!({"metadata": {"annotations": {OPT_OUT: "true"}}})).await?;
    run_on(&world, "two", "web", json!({OPT_OUT: "true"})).await?;
    let (one, two) = (request_remediation(&world, "one").await?, request_remediation(&world, "two").await?);
    let held = ("Approved", "False", "OptedOut");
    remediation_condition(&world, "one", held, "do-not-disrupt").await?;
    remediation_condition(&world, "two", held, "default/web").await?;
    is_untouched(&world, &controller.proxy, "one", &one).await?;
    is_untouched(&world, &controller.proxy, "two", &two).await?;
    patch_node(&world, "one", json!({"metadata": {"annotations": {OPT_OUT: null}}})).await?;
    is_replaced(&world, "one", &one).await?;
    ensure!(is_there(&world, "two", &two).await? && !is_cordoned(&node(&world, "two").await?));
    Ok(())
}

/// A control-plane node that never passes stays, unless the policy names it.
pub async fn control_plane_nodes_are_kept_unless_named(world: impl World) -> Result<()> {
    let controller = start_controller(&world, json!({})).await?;
    let boss = zoned("boss").labelled("node-role.kubernetes.io/control-plane", "");
    let uid = join_failing(&world, boss).await?;
    remediation_condition(&world, "boss", ("Approved", "False", "ControlPlane"), "allowedControlPlaneNodes")
        .await?;
    is_untouched(&world, &controller.proxy, "boss", &uid).await?;
    edit_policy(&world, json!({"allowedControlPlaneNodes": ["boss"]})).await?;
    is_replaced(&world, "boss", &uid).await
}

/// Five nodes fail, and the budget allows two per hour, one at a time.
pub async fn replacements_stay_within_the_budget(world: impl World) -> Result<()> {
    let budget = json!({"maxInFlight": 1, "maxPerHour": 2, "maxGroupPercentPerHour": 100, "maxInFlightPerZone": 5, "maxInFlightPerGroup": 5});
    let spec = json!({"budget": budget, "breaker": {"openPercent": 100}});
    let controller = start_controller(&world, spec).await?;
    for number in 1..=5 {
        let name = format!("failing-{number}");
        let uid = join_failing(&world, zoned(&name)).await?;
        run_on(&world, &name, &format!("web-{number}"), json!({})).await?;
        ensure!(is_there(&world, &name, &uid).await?, "{name} is gone already");
    }
    let acts = until(&world, "two acts have ended", async || {
        let mut policy = policies(&world).get("default").await?;
        let acts = policy.data["status"]["reservations"].take();
        let acts = acts.as_array().cloned().unwrap_or_default();
        ensure!(acts.len() <= 2, "{acts:?}");
        Ok((acts.iter().filter(|act| act["ended"].is_string()).count() == 2).then_some(acts))
    })
    .await?;
    let time = |act: &Value, field: &str| -> Result<Timestamp> {
        Ok(act[field].as_str().context("no time")?.parse()?)
    };
    let mut times = Vec::new();
    for act in &acts {
        times.push((time(act, "at")?, time(act, "ended")?));
    }
    times.sort();
    ensure!(times[0].1 <= times[1].0, "two at once: {acts:?}");
    // New and waiting replacements are blocked now.
    join_failing(&world, zoned("late")).await?;
    remediation_condition(&world, "late", ("Approved", "False", "BudgetSpent"), "maxPerHour").await?;
    let deleted = controller.proxy.requests().into_iter().filter(|one| one.method == Method::DELETE);
    let deleted: Vec<_> = deleted.filter(RecordedRequest::is_about_nodes).collect();
    ensure!(deleted.len() == 2, "{deleted:?}");
    let all = remediations(&world).list(&ListParams::default()).await?.items;
    let approved = |one: &&kube::core::DynamicObject| one.data["status"]["approvedAt"].is_string();
    ensure!(all.iter().filter(approved).count() == 2, "{all:?}");
    Ok(())
}
