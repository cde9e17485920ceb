//! Replacements that are asked for and not done, each for another reason.

use anyhow::{Context as _, Result, ensure};
use http::Method;
use jiff::Timestamp;
use kube::api::ListParams;
use serde_json::{Value, json};

use crate::draining::run_on;
use crate::line::{Asked, Line};
use crate::play::{node, patch_node, until};
use crate::remediating::{
    ask, edit_policy, hopeless, is_cordoned, is_marked, is_replaced, is_there, policies, request_says,
    requests, stage, zoned,
};
use crate::world::World;

const OPT_OUT: &str = "nodekeeper.dev/do-not-disrupt";

/// Nothing was done to the node, and to nobody else.
async fn is_untouched(world: &impl World, line: &Line, name: &str, uid: &str) -> Result<()> {
    let node = node(world, name).await?;
    ensure!(is_there(world, name, uid).await?, "{name} is another one now");
    ensure!(!is_cordoned(&node) && !is_marked(&node), "{name} was cordoned: {:?}", node.spec);
    let harm: Vec<_> = line.asked().into_iter().filter(Asked::is_harm).collect();
    ensure!(harm.is_empty(), "{harm:?}");
    Ok(())
}

/// It is said what would be done, and nothing is written but that: no cordon, no worker on other nodes. As soon as it
/// is enforced, it is done.
pub async fn a_dry_run_says_what_it_would_do(world: impl World) -> Result<()> {
    let controller = stage(&world, json!({"enforcement": "DryRun"})).await?;
    let before = controller.line.asked().len();
    let uid = hopeless(&world, zoned("hopeless")).await?;
    let held = ("Approved", "False", "DryRun");
    request_says(&world, "hopeless", held, "the node would be compared with verified nodes").await?;
    is_untouched(&world, &controller.line, "hopeless", &uid).await?;
    // Workers are for the node itself, and patches are what the gate remembers of it.
    let fits = |path: &str| {
        ["/noderemediations", "/remediationpolicies/default/status", "/nodegates/default/status", "/events"]
            .iter()
            .any(|one| path.contains(one))
            || path.contains("/leases/")
            || path.contains(&uid)
            || path.ends_with("/pods")
            || path.starts_with("/api/v1/nodes/hopeless")
    };
    let writes = controller.line.asked().into_iter().skip(before).filter(|one| one.method != Method::GET);
    let path = |uri: &str| uri.split('?').next().unwrap_or_default().to_owned();
    let others: Vec<String> = writes.map(|one| path(&one.uri)).filter(|path| !fits(path)).collect();
    ensure!(others.is_empty(), "{others:?}");
    edit_policy(&world, json!({"enforcement": "Enforce"})).await?;
    is_replaced(&world, "hopeless", &uid).await
}

/// There is no `NodeClaim`, and the policy names nobody on whose word the bare Node object goes: nothing is done. When it
/// does, it is.
pub async fn a_node_that_nobody_replaces_stays(world: impl World) -> Result<()> {
    let controller =
        stage(&world, json!({"deleteNodeObjectFor": [{"source": "Gate", "name": "another"}]})).await?;
    let uid = hopeless(&world, zoned("hopeless")).await?;
    request_says(&world, "hopeless", ("Approved", "False", "NoProvider"), "deleteNodeObjectFor").await?;
    is_untouched(&world, &controller.line, "hopeless", &uid).await?;
    edit_policy(&world, json!({"deleteNodeObjectFor": [{"source": "Gate", "name": "default"}]})).await?;
    is_replaced(&world, "hopeless", &uid).await
}

/// A node, and a node with a pod, that are not to be disrupted. The first changes its mind.
pub async fn nodes_and_pods_that_opted_out_are_left_alone(world: impl World) -> Result<()> {
    let controller = stage(&world, json!({})).await?;
    patch_node(&world, "one", json!({"metadata": {"annotations": {OPT_OUT: "true"}}})).await?;
    run_on(&world, "two", "web", json!({OPT_OUT: "true"})).await?;
    let (one, two) = (ask(&world, "one").await?, ask(&world, "two").await?);
    let held = ("Approved", "False", "OptedOut");
    request_says(&world, "one", held, "the node has the annotation nodekeeper.dev/do-not-disrupt").await?;
    request_says(&world, "two", held, "pod default/web has the annotation").await?;
    is_untouched(&world, &controller.line, "one", &one).await?;
    is_untouched(&world, &controller.line, "two", &two).await?;
    patch_node(&world, "one", json!({"metadata": {"annotations": {OPT_OUT: null}}})).await?;
    is_replaced(&world, "one", &one).await?;
    ensure!(is_there(&world, "two", &two).await? && !is_cordoned(&node(&world, "two").await?));
    Ok(())
}

/// A control-plane node that never passes stays, until somebody names it.
pub async fn the_control_plane_is_left_alone_unless_it_is_named(world: impl World) -> Result<()> {
    let controller = stage(&world, json!({})).await?;
    let boss = zoned("boss").labelled("node-role.kubernetes.io/control-plane", "");
    let uid = hopeless(&world, boss).await?;
    request_says(&world, "boss", ("Approved", "False", "ControlPlane"), "allowedControlPlaneNodes").await?;
    is_untouched(&world, &controller.line, "boss", &uid).await?;
    edit_policy(&world, json!({"allowedControlPlaneNodes": ["boss"]})).await?;
    is_replaced(&world, "boss", &uid).await
}

/// Five nodes fail, and two an hour may go, one after the other.
pub async fn no_more_than_the_budget_allows(world: impl World) -> Result<()> {
    let budget = json!({"maxInFlight": 1, "maxPerHour": 2, "maxGroupPercentPerHour": 100, "maxInFlightPerZone": 5, "maxInFlightPerGroup": 5});
    let spec = json!({"budget": budget, "breaker": {"openPercent": 100}});
    let controller = stage(&world, spec).await?;
    for number in 1..=5 {
        let name = format!("hopeless-{number}");
        let uid = hopeless(&world, zoned(&name)).await?;
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
    // Whoever comes now is held, and so is everybody who waited.
    hopeless(&world, zoned("late")).await?;
    request_says(&world, "late", ("Approved", "False", "BudgetSpent"), "maxPerHour").await?;
    let deleted = controller.line.asked().into_iter().filter(|one| one.method == Method::DELETE);
    let deleted: Vec<_> = deleted.filter(Asked::is_about_nodes).collect();
    ensure!(deleted.len() == 2, "{deleted:?}");
    let all = requests(&world).list(&ListParams::default()).await?.items;
    let approved = |one: &&kube::core::DynamicObject| one.data["status"]["approvedAt"].is_string();
    ensure!(all.iter().filter(approved).count() == 2, "{all:?}");
    Ok(())
}
