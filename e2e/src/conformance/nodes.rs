//! Node objects.

use anyhow::Result;
use serde_json::{Value, json};

use super::check::{absent, is};
use super::ctx::Ctx;
use super::fake_kubelet::NOT_READY;
use super::objects::{self, with};

cases!["nodes":
    info_is_always_there,
    is_tainted_at_birth,
    own_not_ready_taint_is_kept,
    allocatable_is_capacity,
    taints_are_validated,
    provider_id_can_be_set_once,
    pod_cidrs_must_agree,
    labels_can_be_changed_by_anyone,
    status_by_update,
    unschedulable_false_is_absent,
    taint_value_is_kept,
    delete_leaves_its_lease,
];

async fn info_is_always_there(c: &Ctx) -> Result<()> {
    let (_, node) = c.node("a").await?;
    for field in [
        "machineID",
        "systemUUID",
        "bootID",
        "kernelVersion",
        "osImage",
        "containerRuntimeVersion",
        "kubeletVersion",
        "operatingSystem",
        "architecture",
    ] {
        is(&node, &format!("/status/nodeInfo/{field}"), "")?;
    }
    is(&node, "/status/daemonEndpoints/kubeletEndpoint/Port", 0)?;
    absent(&node, "/status/conditions")
}

async fn is_tainted_at_birth(c: &Ctx) -> Result<()> {
    // Also a node that reports Ready.
    for (name, conditions) in [
        ("a", json!([])),
        ("b", json!([{"type": "Ready", "status": "False"}])),
        ("c", json!([{"type": "Ready", "status": "True"}])),
    ] {
        let body = with(objects::node(&c.name(name), c.ns()), json!({"status": {"conditions": conditions}}));
        let made = c.create("/api/v1/nodes", body).await?;
        // After the taints given by the client.
        is(&made, "/spec/taints/0/key", "case")?;
        is(&made, "/spec/taints/1", json!({"key": NOT_READY, "effect": "NoSchedule"}))?;
    }
    Ok(())
}

async fn own_not_ready_taint_is_kept(c: &Ctx) -> Result<()> {
    let taints = json!({"spec": {"taints": [{"key": NOT_READY, "effect": "NoSchedule"}]}});
    let made = c.create("/api/v1/nodes", with(objects::node(&c.name("a"), c.ns()), taints.clone())).await?;
    is(&made, "/spec", taints["spec"].clone())
}

async fn allocatable_is_capacity(c: &Ctx) -> Result<()> {
    let size = json!({"cpu": "4", "pods": "110"});
    let body = with(objects::node(&c.name("a"), c.ns()), json!({"status": {"capacity": size}}));
    is(&c.create("/api/v1/nodes", body).await?, "/status/allocatable", size.clone())?;
    let (path, _) = c.node("b").await?;
    let patched = c.merge(&format!("{path}/status"), json!({"status": {"capacity": size}})).await?.ok(200)?;
    is(&patched, "/status/allocatable", size)
}

async fn taints_are_validated(c: &Ctx) -> Result<()> {
    let refused = async |taints: Value, field: &'static str| {
        let body = with(objects::node(&c.name("a"), c.ns()), json!({"spec": {"taints": taints}}));
        c.post("/api/v1/nodes", &body).await?.invalid(&[field])
    };
    refused(json!([{"key": "a", "effect": "Never"}]), "metadata.taints[0].effect").await?;
    refused(json!([{"key": "a"}]), "metadata.taints[0].effect").await?;
    refused(json!([{"key": "a b", "effect": "NoSchedule"}]), "metadata.taints[0].key").await?;
    refused(json!([{"key": "a", "value": "b c", "effect": "NoSchedule"}]), "metadata.taints[0].value")
        .await?;
    let twice = json!([
        {"key": "a", "effect": "NoSchedule", "value": "x"}, {"key": "a", "effect": "NoSchedule", "value": "y"},
    ]);
    refused(twice, "metadata.taints[1]").await?;
    let both = json!([{"key": "a", "effect": "NoSchedule"}, {"key": "a", "effect": "NoExecute"}]);
    let body = with(objects::node(&c.name("a"), c.ns()), json!({"spec": {"taints": both}}));
    c.create("/api/v1/nodes", body).await.map(drop)
}

async fn provider_id_can_be_set_once(c: &Ctx) -> Result<()> {
    let (path, _) = c.node("a").await?;
    let set = |id: &str| json!({"spec": {"providerID": id}});
    is(&c.merge(&path, set("aws:///z/i-1")).await?.ok(200)?, "/spec/providerID", "aws:///z/i-1")?;
    c.merge(&path, set("aws:///z/i-1")).await?.ok(200)?;
    c.merge(&path, set("aws:///z/i-2")).await?.invalid(&["spec.providerID"]).map(drop)
}

async fn pod_cidrs_must_agree(c: &Ctx) -> Result<()> {
    let (path, _) = c.node("a").await?;
    let patched = c.merge(&path, json!({"spec": {"podCIDR": "10.9.0.0/24"}})).await?.ok(200)?;
    is(&patched, "/spec/podCIDRs", json!(["10.9.0.0/24"]))?;
    c.merge(&path, json!({"spec": {"podCIDR": "10.8.0.0/24"}})).await?.fails(422, "Invalid").map(drop)
}

async fn labels_can_be_changed_by_anyone(c: &Ctx) -> Result<()> {
    let (path, _) = c.node("a").await?;
    let labels = json!({"metadata": {"labels": {"node-role.kubernetes.io/worker": "", "kubernetes.io/hostname": "h"}}});
    let patched = c.merge(&path, labels).await?.ok(200)?;
    is(&patched, "/metadata/labels/node-role.kubernetes.io~1worker", "")?;
    absent(&patched, "/metadata/generation")
}

async fn status_by_update(c: &Ctx) -> Result<()> {
    let (path, _) = c.node("a").await?;
    let body = json!({
        "metadata": {"name": c.name("a"), "labels": {"new": "1"}}, "spec": {"unschedulable": true},
        "status": {"nodeInfo": {"bootID": "b1", "kubeletVersion": "v1.36.0"}, "phase": "Running"},
    });
    let put = c.put(&format!("{path}/status"), &body).await?.ok(200)?;
    is(&put, "/status/nodeInfo/bootID", "b1")?;
    absent(&put, "/spec/unschedulable")?;
    is(&put, "/metadata/labels", json!({"new": "1"}))
}

async fn unschedulable_false_is_absent(c: &Ctx) -> Result<()> {
    let (path, _) = c.node("a").await?;
    c.merge(&path, json!({"spec": {"unschedulable": true}})).await?.ok(200)?;
    absent(&c.merge(&path, json!({"spec": {"unschedulable": false}})).await?.ok(200)?, "/spec/unschedulable")
}

async fn taint_value_is_kept(c: &Ctx) -> Result<()> {
    let (path, _) = c.node("a").await?;
    let taints = json!([
        {"key": "example.com/a", "value": "v", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"},
        {"key": "b", "effect": "PreferNoSchedule", "value": ""},
    ]);
    let patched = c.merge(&path, json!({"spec": {"taints": taints}})).await?.ok(200)?;
    is(&patched, "/spec/taints/0", taints[0].clone())?;
    is(&patched, "/spec/taints/1", json!({"key": "b", "effect": "PreferNoSchedule"}))
}

async fn delete_leaves_its_lease(c: &Ctx) -> Result<()> {
    let (path, _) = c.node("a").await?;
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    c.create(leases, objects::lease(&c.name("a"))).await?;
    c.delete(&path).await?.ok(200)?;
    c.get(&path).await?.fails(404, "NotFound")?;
    c.read(&format!("{leases}/{}", c.name("a"))).await.map(drop)
}
