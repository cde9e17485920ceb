//! The status subresource.

use anyhow::{Result, ensure};
use serde_json::json;

use super::check::{absent, is, rv};
use super::ctx::Ctx;
use super::objects::with;

cases!["status":
    of_a_custom_resource_changes_nothing_else,
    keeps_the_generation,
    refuses_a_stale_resource_version,
    of_a_node_changes_labels_and_annotations_too,
    of_a_pod_changes_nothing_else,
    can_be_read_alone,
    of_a_kind_without_it,
    is_validated,
    of_a_missing_object,
    json_patch_sees_the_whole_object,
    without_a_change_keeps_the_resource_version,
];

async fn of_a_custom_resource_changes_nothing_else(c: &Ctx) -> Result<()> {
    let (path, made) = c.make_widget("a").await?;
    let change = json!({
        "metadata": {"labels": {"a": "b"}, "annotations": {"a": "b"}, "finalizers": ["example.com/a"]},
        "spec": {"size": 9}, "status": {"phase": "Up"},
    });
    let put = c.put(&format!("{path}/status"), &with(made, change.clone())).await?.ok(200)?;
    is(&put, "/status/phase", "Up")?;
    is(&put, "/spec/size", 3)?;
    for field in ["labels", "annotations", "finalizers"] {
        absent(&put, &format!("/metadata/{field}"))?;
    }
    let patched =
        c.merge(&format!("{path}/status"), with(change, json!({"status": {"phase": "Down"}}))).await?;
    let patched = patched.ok(200)?;
    is(&patched, "/status/phase", "Down")?;
    is(&patched, "/spec/size", 3)?;
    absent(&patched, "/metadata/labels")
}

async fn keeps_the_generation(c: &Ctx) -> Result<()> {
    let (path, made) = c.make_widget("a").await?;
    let patched = c.merge(&format!("{path}/status"), json!({"status": {"seen": 1}})).await?.ok(200)?;
    is(&patched, "/metadata/generation", 1)?;
    ensure!(rv(&patched)? != rv(&made)?, "the resource version stayed");
    let (path, _) = c.pod("a").await?;
    let patched = c.merge(&format!("{path}/status"), json!({"status": {"message": "m"}})).await?.ok(200)?;
    is(&patched, "/metadata/generation", 1)
}

async fn refuses_a_stale_resource_version(c: &Ctx) -> Result<()> {
    let (path, made) = c.make_widget("a").await?;
    c.merge(&path, json!({"spec": {"size": 4}})).await?.ok(200)?;
    let stale = with(made.clone(), json!({"status": {"phase": "Up"}}));
    c.put(&format!("{path}/status"), &stale).await?.fails(409, "Conflict")?;
    let patch = json!({"metadata": {"resourceVersion": rv(&made)?}, "status": {"phase": "Up"}});
    c.merge(&format!("{path}/status"), patch).await?.fails(409, "Conflict")?;
    absent(&c.read(&path).await?, "/status")
}

async fn of_a_node_changes_labels_and_annotations_too(c: &Ctx) -> Result<()> {
    let (path, _) = c.node("a").await?;
    let patch = json!({
        "metadata": {"labels": {"l": "1"}, "annotations": {"a": "1"}},
        "spec": {"unschedulable": true, "taints": null},
        "status": {"capacity": {"cpu": "4"}},
    });
    let patched = c.strategic(&format!("{path}/status"), patch).await?.ok(200)?;
    is(&patched, "/status/capacity/cpu", "4")?;
    is(&patched, "/metadata/labels/l", "1")?;
    is(&patched, "/metadata/annotations/a", "1")?;
    absent(&patched, "/spec/unschedulable")?;
    is(&patched, "/spec/taints/0/key", "case")
}

async fn of_a_pod_changes_nothing_else(c: &Ctx) -> Result<()> {
    let (path, _) = c.pod("a").await?;
    let patch = json!({
        "metadata": {"labels": {"l": "1"}, "annotations": {"a": "1"}, "finalizers": ["example.com/a"]},
        "spec": {"activeDeadlineSeconds": 5},
        "status": {"phase": "Running", "podIP": "10.1.1.1", "podIPs": [{"ip": "10.1.1.1"}]},
    });
    let patched = c.merge(&format!("{path}/status"), patch).await?.ok(200)?;
    is(&patched, "/status/phase", "Running")?;
    is(&patched, "/status/podIP", "10.1.1.1")?;
    absent(&patched, "/spec/activeDeadlineSeconds")?;
    is(&patched, "/metadata/labels/l", "1")?;
    is(&patched, "/metadata/annotations/a", "1")?;
    is(&patched, "/metadata/finalizers/0", "example.com/a")
}

async fn can_be_read_alone(c: &Ctx) -> Result<()> {
    let (path, _) = c.make_widget("a").await?;
    c.merge(&format!("{path}/status"), json!({"status": {"phase": "Up"}})).await?.ok(200)?;
    let status = c.read(&format!("{path}/status")).await?;
    ensure!(status == c.read(&path).await?, "the status is not the whole object: {status}");
    let (path, _) = c.node("a").await?;
    is(&c.read(&format!("{path}/status")).await?, "/kind", "Node")
}

async fn of_a_kind_without_it(c: &Ctx) -> Result<()> {
    let name = c.name("a");
    let path = c.gadgets().await?;
    c.create(&path, c.gadget(&name)).await?;
    c.get(&format!("{path}/{name}/status")).await?.fails(404, "NotFound")?;
    c.merge(&format!("{path}/{name}/status"), json!({"status": {}})).await?.fails(404, "NotFound")?;
    let (path, _) = c.config_map("a").await?;
    c.merge(&format!("{path}/status"), json!({})).await?.fails(404, "NotFound").map(drop)
}

async fn is_validated(c: &Ctx) -> Result<()> {
    let (path, _) = c.make_widget("a").await?;
    let failed = c.merge(&format!("{path}/status"), json!({"status": {"phase": "Sideways"}})).await?;
    failed.invalid(&["status.phase"])?;
    let patched =
        c.merge(&format!("{path}/status"), json!({"status": {"seen": 1, "extra": 1}})).await?.ok(200)?;
    is(&patched, "/status", json!({"seen": 1}))?;
    let (path, _) = c.node("a").await?;
    let failed = c.merge(&format!("{path}/status"), json!({"status": {"capacity": {"cpu": "many"}}})).await?;
    failed.invalid(&["patch"]).map(drop)
}

async fn of_a_missing_object(c: &Ctx) -> Result<()> {
    let path = format!("{}/none/status", c.widgets().await?);
    c.get(&path).await?.fails(404, "NotFound")?;
    c.merge(&path, json!({"status": {}})).await?.fails(404, "NotFound")?;
    c.put(&path, &c.widget("none")).await?.fails(404, "NotFound").map(drop)
}

async fn json_patch_sees_the_whole_object(c: &Ctx) -> Result<()> {
    let (path, made) = c.make_widget("a").await?;
    let patch = json!([
        {"op": "test", "path": "/metadata/uid", "value": made["metadata"]["uid"]},
        {"op": "test", "path": "/spec/size", "value": 3},
        {"op": "replace", "path": "/spec/size", "value": 4},
        {"op": "add", "path": "/status", "value": {"phase": "Up"}},
    ]);
    let patched = c.json_patch(&format!("{path}/status"), patch).await?.ok(200)?;
    is(&patched, "/status/phase", "Up")?;
    is(&patched, "/spec/size", 3)?;
    // The main resource can test the status but not change it.
    let patch = json!([
        {"op": "test", "path": "/status/phase", "value": "Up"},
        {"op": "replace", "path": "/status/phase", "value": "Down"},
        {"op": "replace", "path": "/spec/size", "value": 5},
    ]);
    let patched = c.json_patch(&path, patch).await?.ok(200)?;
    is(&patched, "/status/phase", "Up")?;
    is(&patched, "/spec/size", 5)
}

async fn without_a_change_keeps_the_resource_version(c: &Ctx) -> Result<()> {
    let (path, _) = c.make_widget("a").await?;
    let patch = json!({"status": {"phase": "Up"}});
    let first = c.merge(&format!("{path}/status"), patch.clone()).await?.ok(200)?;
    let second = c.merge(&format!("{path}/status"), patch).await?.ok(200)?;
    is(&second, "/metadata/resourceVersion", rv(&first)?)
}
