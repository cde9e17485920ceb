//! The scheduler, on nodes with heartbeats.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::check::{condition, is};
use super::ctx::Ctx;
use super::fake_kubelet::FakeKubelet;
use super::objects::{self, with};

cases!["scheduling":
    tolerated_taint,
    taint_not_tolerated,
    taint_removed_later,
    node_selector,
    label_given_later,
    match_fields_by_name,
    affinity_in_and_not_in,
    affinity_exists_and_does_not_exist,
    affinity_greater_and_less,
    terms_are_alternatives,
    unschedulable_node,
    unschedulable_tolerated,
    prefer_no_schedule_is_no_obstacle,
    node_name_bypasses_the_scheduler,
    other_scheduler_is_left_alone,
    no_room,
    tolerations_by_value_and_effect,
    gates_hold_a_pod,
];

/// Waits until the scheduler reports that no node fits.
async fn refused(c: &Ctx, pod: &str) -> Result<()> {
    let unschedulable = |pod: &Value| condition(pod, "PodScheduled").is_some_and(|c| c["status"] == "False");
    let pod = c.until(pod, unschedulable).await?;
    let scheduled = condition(&pod, "PodScheduled").cloned().unwrap_or_default();
    is(&scheduled, "/reason", "Unschedulable")?;
    ensure!(pod["spec"]["nodeName"].is_null(), "bound all the same");
    is(&pod, "/status/phase", "Pending")
}

async fn tolerated_taint(c: &Ctx) -> Result<()> {
    let node = FakeKubelet::start(c, "a", json!({})).await?;
    let pod = FakeKubelet::pod(c, "p", json!({})).await?;
    let bound = node.gets(c, &pod).await?;
    let scheduled = condition(&bound, "PodScheduled").cloned().unwrap_or_default();
    is(&scheduled, "/status", "True")?;
    is(&bound, "/status/phase", "Pending")?;
    is(&bound, "/metadata/generation", 1)
}

async fn taint_not_tolerated(c: &Ctx) -> Result<()> {
    let _node = FakeKubelet::start(c, "a", json!({})).await?;
    let pod = FakeKubelet::pod(c, "p", json!({"spec": {"tolerations": null}})).await?;
    refused(c, &pod).await
}

async fn taint_removed_later(c: &Ctx) -> Result<()> {
    let gate = json!({"spec": {"taints": [{"key": "example.com/gate", "effect": "NoSchedule"}]}});
    let node = FakeKubelet::start(c, "a", gate).await?;
    let pod = FakeKubelet::pod(c, "p", json!({"spec": {"tolerations": null}})).await?;
    refused(c, &pod).await?;
    let patch = json!([
        {"op": "test", "path": "/spec/taints/0/key", "value": "example.com/gate"},
        {"op": "remove", "path": "/spec/taints/0"},
    ]);
    c.json_patch(&node.path, patch).await?.ok(200)?;
    node.gets(c, &pod).await.map(drop)
}

async fn node_selector(c: &Ctx) -> Result<()> {
    let _other = FakeKubelet::start(c, "a", json!({})).await?;
    let node = FakeKubelet::start(c, "b", json!({"metadata": {"labels": {"disk": "fast"}}})).await?;
    let pod = FakeKubelet::pod(c, "p", json!({"spec": {"nodeSelector": {"disk": "fast"}}})).await?;
    node.gets(c, &pod).await?;
    let pod = FakeKubelet::pod(c, "q", json!({"spec": {"nodeSelector": {"disk": "slow"}}})).await?;
    refused(c, &pod).await
}

async fn label_given_later(c: &Ctx) -> Result<()> {
    let node = FakeKubelet::start(c, "a", json!({})).await?;
    let pod = FakeKubelet::pod(c, "p", json!({"spec": {"nodeSelector": {"late": "yes"}}})).await?;
    refused(c, &pod).await?;
    c.merge(&node.path, json!({"metadata": {"labels": {"late": "yes"}}})).await?.ok(200)?;
    node.gets(c, &pod).await.map(drop)
}

/// Node affinity that requires one of these terms.
fn requires(terms: Value) -> Value {
    let mut required = json!({"nodeSelectorTerms": []});
    required["nodeSelectorTerms"] = terms;
    json!({"spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}})
}

fn expressions(list: &Value) -> Value {
    requires(json!([{"matchExpressions": list}]))
}

async fn match_fields_by_name(c: &Ctx) -> Result<()> {
    let _other = FakeKubelet::start(c, "a", json!({})).await?;
    let node = FakeKubelet::start(c, "b", json!({})).await?;
    let by_name = |name: &str| {
        let field = json!({"key": "metadata.name", "operator": "In", "values": [name]});
        with(requires(json!([{"matchFields": [field]}])), json!({"spec": {"nodeSelector": null}}))
    };
    let pod = FakeKubelet::pod(c, "p", by_name(&node.name)).await?;
    node.gets(c, &pod).await?;
    let pod = FakeKubelet::pod(c, "q", by_name(&c.name("none"))).await?;
    refused(c, &pod).await
}

async fn affinity_in_and_not_in(c: &Ctx) -> Result<()> {
    let one = FakeKubelet::start(c, "a", json!({"metadata": {"labels": {"size": "s"}}})).await?;
    let two = FakeKubelet::start(c, "b", json!({})).await?;
    let within = json!([{"key": "size", "operator": "In", "values": ["s", "m"]}]);
    let pod = FakeKubelet::pod(c, "p", expressions(&within)).await?;
    one.gets(c, &pod).await?;
    // A node without the label matches no set.
    let without = json!([{"key": "size", "operator": "NotIn", "values": ["s"]}]);
    let pod = FakeKubelet::pod(c, "q", expressions(&without)).await?;
    two.gets(c, &pod).await.map(drop)
}

async fn affinity_exists_and_does_not_exist(c: &Ctx) -> Result<()> {
    let one = FakeKubelet::start(c, "a", json!({"metadata": {"labels": {"gpu": ""}}})).await?;
    let two = FakeKubelet::start(c, "b", json!({})).await?;
    let pod = FakeKubelet::pod(c, "p", expressions(&json!([{"key": "gpu", "operator": "Exists"}]))).await?;
    one.gets(c, &pod).await?;
    let pod =
        FakeKubelet::pod(c, "q", expressions(&json!([{"key": "gpu", "operator": "DoesNotExist"}]))).await?;
    two.gets(c, &pod).await.map(drop)
}

async fn affinity_greater_and_less(c: &Ctx) -> Result<()> {
    let one = FakeKubelet::start(c, "a", json!({"metadata": {"labels": {"cores": "8"}}})).await?;
    let two = FakeKubelet::start(c, "b", json!({"metadata": {"labels": {"cores": "16"}}})).await?;
    let many = json!([{"key": "cores", "operator": "Gt", "values": ["8"]}]);
    let pod = FakeKubelet::pod(c, "p", expressions(&many)).await?;
    two.gets(c, &pod).await?;
    let few = json!([{"key": "cores", "operator": "Lt", "values": ["16"]}]);
    let pod = FakeKubelet::pod(c, "q", expressions(&few)).await?;
    one.gets(c, &pod).await.map(drop)
}

async fn terms_are_alternatives(c: &Ctx) -> Result<()> {
    let node = FakeKubelet::start(c, "a", json!({"metadata": {"labels": {"x": "1"}}})).await?;
    let wants = |key: &str| json!({"key": key, "operator": "Exists"});
    let either = requires(json!([{"matchExpressions": [wants("none")]}, {"matchExpressions": [wants("x")]}]));
    let pod = FakeKubelet::pod(c, "p", either).await?;
    node.gets(c, &pod).await?;
    let both = expressions(&json!([wants("x"), wants("none")]));
    let pod = FakeKubelet::pod(c, "q", both).await?;
    refused(c, &pod).await
}

async fn unschedulable_node(c: &Ctx) -> Result<()> {
    let node = FakeKubelet::start(c, "a", json!({"spec": {"unschedulable": true}})).await?;
    let pod = FakeKubelet::pod(c, "p", json!({})).await?;
    refused(c, &pod).await?;
    c.merge(&node.path, json!({"spec": {"unschedulable": null}})).await?.ok(200)?;
    node.gets(c, &pod).await.map(drop)
}

async fn unschedulable_tolerated(c: &Ctx) -> Result<()> {
    let node = FakeKubelet::start(c, "a", json!({"spec": {"unschedulable": true}})).await?;
    let all = json!({"spec": {"tolerations": [{"operator": "Exists"}]}});
    let pod = FakeKubelet::pod(c, "p", all).await?;
    node.gets(c, &pod).await.map(drop)
}

async fn prefer_no_schedule_is_no_obstacle(c: &Ctx) -> Result<()> {
    let soft = json!({"spec": {"taints": [{"key": "soft", "effect": "PreferNoSchedule"}]}});
    let node = FakeKubelet::start(c, "a", soft).await?;
    let pod = FakeKubelet::pod(c, "p", json!({"spec": {"tolerations": null}})).await?;
    node.gets(c, &pod).await.map(drop)
}

async fn node_name_bypasses_the_scheduler(c: &Ctx) -> Result<()> {
    let node = FakeKubelet::start(c, "a", json!({"spec": {"unschedulable": true}})).await?;
    let named = json!({"spec": {"nodeName": node.name, "tolerations": null, "nodeSelector": {"none": "x"}}});
    let pod = c.read(&FakeKubelet::pod(c, "p", named).await?).await?;
    is(&pod, "/spec/nodeName", node.name.clone())?;
    ensure!(condition(&pod, "PodScheduled").is_none(), "the scheduler handled it");
    Ok(())
}

async fn other_scheduler_is_left_alone(c: &Ctx) -> Result<()> {
    let node = FakeKubelet::start(c, "a", json!({})).await?;
    let other = FakeKubelet::pod(c, "p", json!({"spec": {"schedulerName": "none"}})).await?;
    let mine = FakeKubelet::pod(c, "q", json!({})).await?;
    node.gets(c, &mine).await?;
    let other = c.read(&other).await?;
    ensure!(other["spec"]["nodeName"].is_null() && condition(&other, "PodScheduled").is_none(), "{other}");
    Ok(())
}

async fn no_room(c: &Ctx) -> Result<()> {
    let node = FakeKubelet::start(c, "a", json!({})).await?;
    let asks = |cpu: &str| {
        let resources = json!({"requests": {"cpu": cpu}});
        json!({"spec": {"containers": [{"name": "main", "image": "x:1", "resources": resources}]}})
    };
    let large = FakeKubelet::pod(c, "p", asks("3")).await?;
    node.gets(c, &large).await?;
    let second = FakeKubelet::pod(c, "q", asks("2")).await?;
    refused(c, &second).await?;
    // The end of another pod frees its resources.
    c.delete_with(&large, json!({"gracePeriodSeconds": 0})).await?.ok(200)?;
    node.gets(c, &second).await.map(drop)
}

async fn tolerations_by_value_and_effect(c: &Ctx) -> Result<()> {
    let taints = json!({"spec": {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}});
    let node = FakeKubelet::start(c, "a", taints).await?;
    for (name, toleration) in [
        ("wrong-value", json!({"key": "k", "value": "w", "effect": "NoSchedule"})),
        ("wrong-effect", json!({"key": "k", "value": "v", "effect": "NoExecute"})),
        ("wrong-key", json!({"key": "j", "operator": "Exists"})),
    ] {
        let pod = FakeKubelet::pod(c, name, json!({"spec": {"tolerations": [toleration]}})).await?;
        refused(c, &pod).await?;
    }
    for (name, toleration) in [
        ("by-value", json!({"key": "k", "value": "v", "effect": "NoSchedule"})),
        ("any-effect", json!({"key": "k", "operator": "Equal", "value": "v"})),
        ("any-value", json!({"key": "k", "operator": "Exists"})),
        ("any", json!({"operator": "Exists"})),
    ] {
        let pod = FakeKubelet::pod(c, name, json!({"spec": {"tolerations": [toleration]}})).await?;
        node.gets(c, &pod).await?;
    }
    Ok(())
}

async fn gates_hold_a_pod(c: &Ctx) -> Result<()> {
    let node = FakeKubelet::start(c, "a", json!({})).await?;
    let gated = json!({"spec": {"schedulingGates": [{"name": "example.com/wait"}]}});
    let pod = FakeKubelet::pod(c, "p", gated).await?;
    let held = c.until(&pod, |pod| condition(pod, "PodScheduled").is_some()).await?;
    let scheduled = condition(&held, "PodScheduled").cloned().unwrap_or_default();
    is(&scheduled, "/reason", "SchedulingGated")?;
    c.merge(&pod, json!({"spec": {"schedulingGates": []}})).await?.ok(200)?;
    node.gets(c, &pod).await?;
    // A pod with scheduling gates cannot be bound.
    let again = with(objects::pod("q"), json!({"spec": {"schedulingGates": [{"name": "example.com/wait"}]}}));
    let (path, _) = c.pod_of(again).await?;
    let binding = json!({"metadata": {"name": "q"}, "target": {"kind": "Node", "name": node.name}});
    c.post(&format!("{path}/binding"), &binding).await?.fails(409, "Conflict").map(drop)
}
