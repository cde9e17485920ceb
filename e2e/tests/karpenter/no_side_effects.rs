//! Nodes that should be replaced and must not be touched yet.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt as _};
use nodekeeper_e2e::karpenter::objects::{
    Under, claims_of, delete_claim, grant_claims, instance_of, is, is_disrupted, keep_pods, let_pods_go,
    make_pods, make_pods_that_tolerate, make_pool,
};
use nodekeeper_e2e::scenario::remediation::{
    edit_policy, policy, remediation_condition, request_remediation,
};
use nodekeeper_e2e::scenario::steps::{controller, gate, is_verified, node, node_is, patch_node, until};
use nodekeeper_e2e::scenario::world::{BROKEN, TAINT, World};
use serde_json::json;

use crate::karpenter_world::KarpenterWorld;
use crate::node_observer::{NodeObserver, NodePhase};
use crate::replacement::{asking_gate, checked_twice_more, deletes, harm, join_failing, verified};
use crate::verification::{app_runs, initialized, join};

/// Nothing is deleted while the claim cannot be read. Once the right is granted, the replacement proceeds.
pub async fn an_unreadable_claim_blocks_deletion(world: KarpenterWorld) -> Result<()> {
    let observer = NodeObserver::start(&world);
    let client = world.client();
    let user = "may-read-no-claims";
    let seat = world.without_claims(user).await?;
    asking_gate(&world).await?;
    policy(&world, json!({"enforcement": "Enforce", "deleteNodeObjectFor": [{"source": "Gate", "name": "*"}, {"source": "Person", "name": "*"}]})).await?;
    let controller = controller(&seat, "a");
    verified(&world).await?;
    world.behaviours().set("unlucky", BROKEN);
    make_pool(&client, "unlucky", TAINT, Under::StartupTaints, "0s").await?;
    make_pods(&client, "app", "unlucky", 1).await?;
    let (name, claim) = join_failing(&world, "unlucky").await?;

    let said = remediation_condition(&world, &name, ("Approved", "False", "ProviderUnreadable"), "").await?;
    for part in ["nodeclaims.karpenter.sh", "forbidden", "give the controller the right to get and list them"]
    {
        ensure!(said.contains(part), "{part} is missing in: {said}");
    }
    checked_twice_more(&world, &name).await?;
    ensure!(harm(&controller.proxy).is_empty(), "{:?}", harm(&controller.proxy));
    ensure!(observer.when(&name, NodePhase::Cordoned)?.is_none(), "{:?}", observer.steps()?);

    grant_claims(&client, user).await?;
    remediation_condition(&world, &name, ("Succeeded", "True", "Replaced"), "").await?;
    ensure!(harm(&controller.proxy) == [deletes(&claim)], "{:?}", harm(&controller.proxy));
    Ok(())
}

/// A user deletes the claim of a node that should be replaced, and a budget blocks Karpenter's drain. The controller
/// leaves the node to Karpenter.
pub async fn a_node_drained_by_karpenter_is_not_touched(world: KarpenterWorld) -> Result<()> {
    let observer = NodeObserver::start(&world);
    let client = world.client();
    asking_gate(&world).await?;
    let pause = json!({"reason": "not yet", "until": "2100-01-01T00:00:00Z"});
    policy(&world, json!({"enforcement": "Enforce", "pause": pause})).await?;
    let controller = controller(&world, "a");
    verified(&world).await?;
    world.behaviours().set("unlucky", BROKEN);
    make_pool(&client, "unlucky", TAINT, Under::StartupTaints, "0s").await?;
    make_pods_that_tolerate(&client, "app", "unlucky", 1, &[TAINT]).await?;
    let (name, claim) = join_failing(&world, "unlucky").await?;
    ensure!(app_runs(&world, "app", 1).await? == [name.clone()], "the pod does not run on {name}");
    keep_pods(&client, "app").await?;
    remediation_condition(&world, &name, ("Approved", "False", "Paused"), "").await?;

    delete_claim(&client, &claim).await?;
    node_is(&world, &name, "disrupted", is_disrupted).await?;
    edit_policy(&world, json!({"pause": null})).await?;
    let said = remediation_condition(&world, &name, ("Approved", "False", "NodeTerminating"), "").await?;
    ensure!(said.contains("wait for"), "{said}");
    // Another node is verified meanwhile, so the controller had time to act.
    make_pods(&client, "later", "good", 4).await?;
    app_runs(&world, "later", 4).await?;
    let there = node(&world, &name).await?;
    ensure!(there.spec.as_ref().and_then(|spec| spec.unschedulable) != Some(true), "{:?}", there.spec);
    ensure!(harm(&controller.proxy).is_empty(), "{:?}", harm(&controller.proxy));
    ensure!(observer.when(&name, NodePhase::Cordoned)?.is_none(), "{:?}", observer.steps()?);

    let_pods_go(&client, "app").await?;
    remediation_condition(&world, &name, ("Succeeded", "False", "NodeGone"), "").await?;
    let look = async || {
        let nodes = app_runs(&world, "app", 1).await?;
        Ok(nodes.into_iter().find(|other| *other != name))
    };
    let other = until(&world, "the pod runs elsewhere", look).await?;
    is_verified(&world, &other).await?;
    initialized(&world, &other).await?;
    ensure!(harm(&controller.proxy).is_empty(), "{:?}", harm(&controller.proxy));
    Ok(())
}

/// A user requests the replacement of a node that Karpenter has not registered, because its provider ID is missing.
/// The controller waits until it is registered.
pub async fn no_claim_is_deleted_before_its_node_is_registered(world: KarpenterWorld) -> Result<()> {
    let observer = NodeObserver::start(&world);
    let client = world.client();
    world.behaviours().set("late", BROKEN);
    make_pool(&client, "late", TAINT, Under::StartupTaints, "1h").await?;
    gate(&world, "default", json!({})).await?;
    policy(&world, json!({"enforcement": "Enforce"})).await?;
    let controller = controller(&world, "a");
    make_pods(&client, "app", "late", 1).await?;
    let look =
        async || Ok(claims_of(&client, "late").await?.into_iter().find(|one| instance_of(one).is_some()));
    let claim = until(&world, "the late node is launched", look).await?;
    let name = instance_of(&claim).context("launched, and no instance")?.to_owned();
    join(&world, &name, &claim).await?;
    request_remediation(&world, &name).await?;
    remediation_condition(&world, &name, ("Approved", "False", "NotRegistered"), "").await?;
    // Other nodes are verified meanwhile.
    verified(&world).await?;
    let late = node(&world, &name).await?;
    ensure!(!is(&late, "registered") && !is_disrupted(&late), "{:?}, {:?}", late.spec, late.labels());
    ensure!(harm(&controller.proxy).is_empty(), "{:?}", harm(&controller.proxy));

    patch_node(&world, &name, json!({"spec": {"providerID": format!("kwok://{name}")}})).await?;
    remediation_condition(&world, &name, ("Succeeded", "True", "Replaced"), "").await?;
    ensure!(harm(&controller.proxy) == [deletes(&claim.name_any())], "{:?}", harm(&controller.proxy));
    let (registered, disrupted) =
        (observer.when(&name, NodePhase::Registered)?, observer.when(&name, NodePhase::Disrupted)?);
    ensure!(registered.is_some() && registered < disrupted, "{:?}", observer.steps()?);
    let gone = Api::<Node>::all(client).get_opt(&name).await?;
    ensure!(gone.is_none(), "it is still there: {gone:?}");
    Ok(())
}
