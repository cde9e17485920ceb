//! Draining a node before its deletion, and budgets that block evictions.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt as _};
use nodekeeper_e2e::scenario::remediation::{
    edit_policy, policies, remediation_condition, remediations, request_remediation,
};
use nodekeeper_e2e::scenario::steps::{node, node_is, patch_node, until};
use nodekeeper_e2e::scenario::world::{IMAGE, WORKLOADS, World};
use serde_json::{Value, json};

use crate::remediation::{is_cordoned, is_marked, is_replaced, is_there, start_controller};

fn pods(world: &impl World) -> Api<Pod> {
    Api::namespaced(world.client(), WORKLOADS)
}

pub fn budgets(world: &impl World) -> Api<PodDisruptionBudget> {
    Api::namespaced(world.client(), WORKLOADS)
}

/// Runs a pod on a node. Its ReplicaSet controller does not run, so an evicted pod is not created again.
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

/// A pod on node `one` that a budget protects.
pub async fn run_protected_pod(world: &impl World) -> Result<()> {
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

/// The node is schedulable and has no cordon annotation.
async fn is_uncordoned(world: &impl World, uid: &str) -> Result<()> {
    node_is(world, "one", "uncordoned", |node| !is_cordoned(node) && !is_marked(node)).await?;
    ensure!(is_there(world, "one", uid).await?, "the node was deleted");
    ensure!(pods(world).get("web").await?.metadata.deletion_timestamp.is_none(), "its pod is being deleted");
    Ok(())
}

/// A budget blocks every eviction: this is reported, the drain times out, and the node is uncordoned. After the
/// budget is deleted and the replacement is requested again, the pod is evicted and the node deleted.
pub async fn a_drain_blocked_by_a_budget_times_out_and_can_be_retried(world: impl World) -> Result<()> {
    let drain = json!({"timeoutSeconds": 10, "podOvertimeSeconds": 5});
    let _controller =
        start_controller(&world, json!({"drain": drain, "budget": {"maxGroupPercentPerHour": 100}})).await?;
    run_protected_pod(&world).await?;
    let uid = request_remediation(&world, "one").await?;
    node_is(&world, "one", "cordoned by the controller", |node| is_cordoned(node) && is_marked(node)).await?;
    remediation_condition(&world, "one", ("Drained", "False", "Draining"), "web-budget").await?;
    let given_up = ("Succeeded", "False", "DrainTimedOut");
    let message = remediation_condition(&world, "one", given_up, "web-budget").await?;
    ensure!(message.contains("1 pods are left after 10 s"), "{message}");
    is_uncordoned(&world, &uid).await?;

    budgets(&world).delete("web-budget", &DeleteParams::default()).await?;
    remediations(&world).delete(&uid, &DeleteParams::default()).await?;
    request_remediation(&world, "one").await?;
    is_replaced(&world, "one", &uid).await?;
    let left = pods(&world).get_opt("web").await?;
    ensure!(left.is_none(), "the node was deleted before its pod: {left:?}");
    Ok(())
}

/// A pause during a drain ends the drain, which is not resumed afterwards.
pub async fn a_pause_ends_a_drain_and_uncordons_the_node(world: impl World) -> Result<()> {
    let _controller = start_controller(&world, json!({})).await?;
    run_protected_pod(&world).await?;
    let uid = request_remediation(&world, "one").await?;
    remediation_condition(&world, "one", ("Drained", "False", "Draining"), "web-budget").await?;
    ensure!(is_cordoned(&node(&world, "one").await?), "it is not cordoned");
    edit_policy(&world, json!({"pause": {"reason": "a storm", "until": "2100-01-01T00:00:00Z"}})).await?;
    remediation_condition(&world, "one", ("Succeeded", "False", "Paused"), "a storm").await?;
    is_uncordoned(&world, &uid).await?;
    edit_policy(&world, json!({"pause": null})).await?;
    // Another replacement completes meanwhile, so the controller had time to resume the first.
    let other = request_remediation(&world, "two").await?;
    let held = ("Approved", "False", "BudgetSpent");
    remediation_condition(&world, "two", held, "maxGroupPercentPerHour").await?;
    edit_policy(&world, json!({"budget": {"maxGroupPercentPerHour": 100}})).await?;
    is_replaced(&world, "two", &other).await?;
    is_uncordoned(&world, &uid).await
}

/// A user cordoned the node before: the cordon stays whatever the drain results in.
pub async fn a_users_cordon_is_kept(world: impl World) -> Result<()> {
    let drain = json!({"timeoutSeconds": 10, "podOvertimeSeconds": 5});
    let _controller = start_controller(&world, json!({"drain": drain})).await?;
    run_protected_pod(&world).await?;
    patch_node(&world, "one", json!({"spec": {"unschedulable": true}})).await?;
    let uid = request_remediation(&world, "one").await?;
    remediation_condition(&world, "one", ("Drained", "False", "Draining"), "web-budget").await?;
    ensure!(!is_marked(&node(&world, "one").await?), "a user's cordon has the controller's annotation");
    remediation_condition(&world, "one", ("Succeeded", "False", "DrainTimedOut"), "").await?;
    // The controller removes its cordons when it reconciles the policy after the act.
    until(&world, "the act has ended", async || {
        let policy = policies(&world).get("default").await?;
        let acts = policy.data["status"]["reservations"].as_array().context("no acts")?;
        Ok(acts.iter().all(|act| act["ended"].is_string()).then_some(()))
    })
    .await?;
    let now = node(&world, "one").await?;
    ensure!(is_cordoned(&now) && now.uid().as_ref() == Some(&uid), "the cordon is gone: {:?}", now.spec);
    Ok(())
}
