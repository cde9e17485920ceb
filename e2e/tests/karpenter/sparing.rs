//! Nodes that are to be replaced, and are not touched.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt as _};
use nodekeeper_e2e::karpenter::objects::{
    Under, claims_of, delete_claim, grant_claims, instance_of, is, is_disrupted, keep_pods, let_pods_go,
    make_pods, make_pods_that_tolerate, make_pool,
};
use serde_json::json;

use crate::eye::{Eye, Step};
use crate::land::Land;
use crate::passing::{app_runs, initialized, join};
use crate::play::{controller, gate, node, node_is, opens, patch_node, until};
use crate::replacing::{asking_gate, deletes, harm, hopeless, looked_at_twice_more, verified};
use crate::wishes::{ask, edit_policy, policy, request_says};
use crate::world::{BROKEN, TAINT, World};

/// What cannot be read is waited for: nothing else is deleted in its place. Once the right is there, it goes ahead.
pub async fn a_claim_that_may_not_be_read_deletes_nothing(land: Land) -> Result<()> {
    let eye = Eye::open(&land);
    let client = land.client();
    let user = "may-read-no-claims";
    let seat = land.without_claims(user).await?;
    asking_gate(&land).await?;
    policy(&land, json!({"enforcement": "Enforce", "deleteNodeObjectFor": [{"source": "Gate", "name": "*"}, {"source": "Person", "name": "*"}]})).await?;
    let controller = controller(&seat, "a");
    verified(&land).await?;
    land.fates().set("unlucky", BROKEN);
    make_pool(&client, "unlucky", TAINT, Under::StartupTaints, "0s").await?;
    make_pods(&client, "app", "unlucky", 1).await?;
    let (name, claim) = hopeless(&land, "unlucky").await?;

    let said = request_says(&land, &name, ("Approved", "False", "ProviderUnreadable")).await?;
    for part in ["nodeclaims.karpenter.sh", "forbidden", "give the controller the right to get and list them"]
    {
        ensure!(said.contains(part), "{part} is missing in: {said}");
    }
    looked_at_twice_more(&land, &name).await?;
    ensure!(harm(&controller.line).is_empty(), "{:?}", harm(&controller.line));
    ensure!(eye.when(&name, Step::Cordoned)?.is_none(), "{:?}", eye.steps()?);

    grant_claims(&client, user).await?;
    request_says(&land, &name, ("Succeeded", "True", "Replaced")).await?;
    ensure!(harm(&controller.line) == [deletes(&claim)], "{:?}", harm(&controller.line));
    Ok(())
}

/// Somebody deletes the claim of a node that is to be replaced, and a budget keeps Karpenter from emptying it. It is
/// Karpenter's to wait for that: we would only get in its way.
pub async fn a_node_that_karpenter_drains_is_neither_cordoned_nor_evicted_from(land: Land) -> Result<()> {
    let eye = Eye::open(&land);
    let client = land.client();
    asking_gate(&land).await?;
    let pause = json!({"reason": "not yet", "until": "2100-01-01T00:00:00Z"});
    policy(&land, json!({"enforcement": "Enforce", "pause": pause})).await?;
    let controller = controller(&land, "a");
    verified(&land).await?;
    land.fates().set("unlucky", BROKEN);
    make_pool(&client, "unlucky", TAINT, Under::StartupTaints, "0s").await?;
    make_pods_that_tolerate(&client, "app", "unlucky", 1, &[TAINT]).await?;
    let (name, claim) = hopeless(&land, "unlucky").await?;
    ensure!(app_runs(&land, "app", 1).await? == [name.clone()], "the pod does not run on {name}");
    keep_pods(&client, "app").await?;
    request_says(&land, &name, ("Approved", "False", "Paused")).await?;

    delete_claim(&client, &claim).await?;
    node_is(&land, &name, "disrupted", is_disrupted).await?;
    edit_policy(&land, json!({"pause": null})).await?;
    let said = request_says(&land, &name, ("Approved", "False", "NodeTerminating")).await?;
    ensure!(said.contains("wait for"), "{said}");
    // Another node comes and passes meanwhile: whoever wanted to do something has.
    make_pods(&client, "later", "good", 4).await?;
    app_runs(&land, "later", 4).await?;
    let there = node(&land, &name).await?;
    ensure!(there.spec.as_ref().and_then(|spec| spec.unschedulable) != Some(true), "{:?}", there.spec);
    ensure!(harm(&controller.line).is_empty(), "{:?}", harm(&controller.line));
    ensure!(eye.when(&name, Step::Cordoned)?.is_none(), "{:?}", eye.steps()?);

    let_pods_go(&client, "app").await?;
    request_says(&land, &name, ("Succeeded", "False", "NodeGone")).await?;
    let look = async || {
        let nodes = app_runs(&land, "app", 1).await?;
        Ok(nodes.into_iter().find(|other| *other != name))
    };
    let other = until(&land, "the pod runs elsewhere", look).await?;
    opens(&land, &other).await?;
    initialized(&land, &other).await?;
    ensure!(harm(&controller.line).is_empty(), "{:?}", harm(&controller.line));
    Ok(())
}

/// Somebody wants a node replaced that Karpenter does not know yet, because its cloud is late with the provider's id.
/// It is not touched before it is registered; then it goes.
pub async fn no_claim_is_deleted_before_karpenter_has_registered_its_node(land: Land) -> Result<()> {
    let eye = Eye::open(&land);
    let client = land.client();
    land.fates().set("late", BROKEN);
    make_pool(&client, "late", TAINT, Under::StartupTaints, "1h").await?;
    gate(&land, "default", json!({})).await?;
    policy(&land, json!({"enforcement": "Enforce"})).await?;
    let controller = controller(&land, "a");
    make_pods(&client, "app", "late", 1).await?;
    let look =
        async || Ok(claims_of(&client, "late").await?.into_iter().find(|one| instance_of(one).is_some()));
    let claim = until(&land, "the late node is launched", look).await?;
    let name = instance_of(&claim).context("launched, and no instance")?.to_owned();
    join(&land, &name, &claim).await?;
    ask(&land, &node(&land, &name).await?).await?;
    request_says(&land, &name, ("Approved", "False", "NotRegistered")).await?;
    // Others come and pass meanwhile.
    verified(&land).await?;
    let late = node(&land, &name).await?;
    ensure!(!is(&late, "registered") && !is_disrupted(&late), "{:?}, {:?}", late.spec, late.labels());
    ensure!(harm(&controller.line).is_empty(), "{:?}", harm(&controller.line));

    patch_node(&land, &name, json!({"spec": {"providerID": format!("kwok://{name}")}})).await?;
    request_says(&land, &name, ("Succeeded", "True", "Replaced")).await?;
    ensure!(harm(&controller.line) == [deletes(&claim.name_any())], "{:?}", harm(&controller.line));
    let (registered, disrupted) = (eye.when(&name, Step::Registered)?, eye.when(&name, Step::Disrupted)?);
    ensure!(registered.is_some() && registered < disrupted, "{:?}", eye.steps()?);
    let gone = Api::<Node>::all(client).get_opt(&name).await?;
    ensure!(gone.is_none(), "it is still there: {gone:?}");
    Ok(())
}
