//! Pods that have to go before a node does, and budgets that keep them.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use crate::play::{node, node_is, patch_node, until};
use crate::remediating::{
    ask, edit_policy, is_cordoned, is_marked, is_replaced, is_there, request_says, requests, stage,
};
use crate::world::{IMAGE, WORKLOADS, World};

fn pods(world: &impl World) -> Api<Pod> {
    Api::namespaced(world.client(), WORKLOADS)
}

fn budgets(world: &impl World) -> Api<PodDisruptionBudget> {
    Api::namespaced(world.client(), WORKLOADS)
}

/// Runs a pod on a node, of a ReplicaSet whose controller is away: one that goes does not come back.
pub async fn run_on(world: &impl World, node: &str, name: &str, annotations: Value) -> Result<()> {
    let labels = json!({"app": name});
    let spec = json!({"nodeName": node, "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false,
        "tolerations": [{"operator": "Exists"}], "containers": [{"name": "main", "image": IMAGE}]});
    let template = json!({"metadata": {"labels": labels}, "spec": {"containers": spec["containers"]}});
    let set = json!({"metadata": {"name": name}, "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}});
    let sets: Api<ReplicaSet> = Api::namespaced(world.client(), WORKLOADS);
    let set = sets.create(&PostParams::default(), &serde_json::from_value(set)?).await?;
    let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": set.uid(), "controller": true});
    let metadata =
        json!({"name": name, "labels": labels, "annotations": annotations, "ownerReferences": [owner]});
    let pod = serde_json::from_value(json!({"metadata": metadata, "spec": spec}))?;
    pods(world).create(&PostParams::default(), &pod).await?;
    until(world, &format!("{name} runs"), async || {
        let pod = pods(world).get(name).await?;
        let conditions = pod.status.and_then(|status| status.conditions).unwrap_or_default();
        let ready = conditions.iter().any(|one| one.type_ == "Ready" && one.status == "True");
        Ok(ready.then_some(()))
    })
    .await
}

/// The pod runs on node `one`, and may not go.
async fn guarded(world: &impl World) -> Result<()> {
    run_on(world, "one", "web", json!({})).await?;
    let spec = json!({"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}});
    let budget = serde_json::from_value(json!({"metadata": {"name": "web-budget"}, "spec": spec}))?;
    budgets(world).create(&PostParams::default(), &budget).await?;
    until(world, "the budget is counted", async || {
        let status = budgets(world).get("web-budget").await?.status;
        Ok(status.filter(|status| status.current_healthy == 1).map(drop))
    })
    .await
}

/// The node can be scheduled to, and nothing reminds of us.
async fn is_free(world: &impl World, uid: &str) -> Result<()> {
    node_is(world, "one", "free", |node| !is_cordoned(node) && !is_marked(node)).await?;
    ensure!(is_there(world, "one", uid).await?, "it was deleted");
    ensure!(pods(world).get("web").await?.metadata.deletion_timestamp.is_none(), "its pod is going");
    Ok(())
}

/// A budget lets nobody go: it is waited for and named, then it is given up and the node is free. When the budget is gone
/// and somebody asks again, the pod goes and then the node.
pub async fn a_drain_that_a_budget_blocks_is_given_up_and_asked_for_again(world: impl World) -> Result<()> {
    let drain = json!({"timeoutSeconds": 10, "podOvertimeSeconds": 5});
    let _controller =
        stage(&world, json!({"drain": drain, "budget": {"maxGroupPercentPerHour": 100}})).await?;
    guarded(&world).await?;
    let uid = ask(&world, "one").await?;
    node_is(&world, "one", "cordoned by us", |node| is_cordoned(node) && is_marked(node)).await?;
    request_says(&world, "one", ("Drained", "False", "Draining"), "web-budget").await?;
    let given_up = ("Succeeded", "False", "DrainTimedOut");
    let message = request_says(&world, "one", given_up, "web-budget").await?;
    ensure!(message.contains("1 pods are left after 10 s, default/web among them"), "{message}");
    is_free(&world, &uid).await?;

    budgets(&world).delete("web-budget", &DeleteParams::default()).await?;
    requests(&world).delete(&uid, &DeleteParams::default()).await?;
    ask(&world, "one").await?;
    is_replaced(&world, "one", &uid).await?;
    let left = pods(&world).get_opt("web").await?;
    ensure!(left.is_none(), "the node went before its pod: {left:?}");
    Ok(())
}

/// In the middle of a drain somebody pauses everything: it is given up, and not resumed when the pause is over.
pub async fn a_pause_ends_a_drain_and_frees_the_node(world: impl World) -> Result<()> {
    let _controller = stage(&world, json!({})).await?;
    guarded(&world).await?;
    let uid = ask(&world, "one").await?;
    request_says(&world, "one", ("Drained", "False", "Draining"), "web-budget").await?;
    ensure!(is_cordoned(&node(&world, "one").await?), "it is not cordoned");
    edit_policy(&world, json!({"pause": {"reason": "a storm", "until": "2100-01-01T00:00:00Z"}})).await?;
    request_says(&world, "one", ("Succeeded", "False", "Paused"), "a storm").await?;
    is_free(&world, &uid).await?;
    edit_policy(&world, json!({"pause": null})).await?;
    // Another one is done meanwhile: the first had its chance.
    let other = ask(&world, "two").await?;
    let held = ("Approved", "False", "BudgetSpent");
    request_says(&world, "two", held, "maxGroupPercentPerHour").await?;
    edit_policy(&world, json!({"budget": {"maxGroupPercentPerHour": 100}})).await?;
    is_replaced(&world, "two", &other).await?;
    is_free(&world, &uid).await
}

/// Somebody cordoned the node before: whatever becomes of the drain, that stays.
pub async fn a_cordon_of_a_person_is_never_undone(world: impl World) -> Result<()> {
    let drain = json!({"timeoutSeconds": 10, "podOvertimeSeconds": 5});
    let _controller = stage(&world, json!({"drain": drain})).await?;
    guarded(&world).await?;
    patch_node(&world, "one", json!({"spec": {"unschedulable": true}})).await?;
    let uid = ask(&world, "one").await?;
    request_says(&world, "one", ("Drained", "False", "Draining"), "web-budget").await?;
    ensure!(!is_marked(&node(&world, "one").await?), "a person's cordon was marked as ours");
    request_says(&world, "one", ("Succeeded", "False", "DrainTimedOut"), "").await?;
    // The policy is gone over when the act ends: that is when cordons of ours go.
    until(&world, "the act has ended", async || {
        let policy = crate::remediating::policies(&world).get("default").await?;
        let acts = policy.data["status"]["reservations"].as_array().context("no acts")?;
        Ok(acts.iter().all(|act| act["ended"].is_string()).then_some(()))
    })
    .await?;
    let now = node(&world, "one").await?;
    ensure!(is_cordoned(&now) && now.uid().as_ref() == Some(&uid), "the cordon is gone: {:?}", now.spec);
    Ok(())
}
