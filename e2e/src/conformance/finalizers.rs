//! Finalizers, and objects that are being deleted.

use anyhow::{Result, ensure};
use serde_json::json;

use super::check::{absent, is, present, rv, uid};
use super::ctx::Ctx;
use super::objects::{self, with};

cases!["finalizers":
    hold_a_deleted_object,
    hold_a_custom_resource,
    hold_a_node,
    last_one_removed_deletes,
    last_one_removed_by_update_deletes,
    cannot_be_added_while_deleting,
    can_be_reordered_while_deleting,
    other_changes_are_allowed_while_deleting,
    second_delete_changes_nothing,
    name_stays_taken_while_deleting,
    guarded_removal_of_one,
    deletion_cannot_be_undone,
];

/// Creates a `ConfigMap` with two finalizers and deletes it; returns its path and last state.
async fn deleting(c: &Ctx) -> Result<(String, serde_json::Value)> {
    let held = json!({"metadata": {"finalizers": ["example.com/a", "example.com/b"]}});
    c.create(&c.path("v1/configmaps"), with(objects::config_map("a"), held)).await?;
    let path = c.path("v1/configmaps/a");
    let answer = c.delete(&path).await?.ok(200)?;
    Ok((path, answer))
}

async fn hold_a_deleted_object(c: &Ctx) -> Result<()> {
    let (path, answer) = deleting(c).await?;
    is(&answer, "/kind", "ConfigMap")?;
    present(&answer, "/metadata/deletionTimestamp")?;
    is(&answer, "/metadata/deletionGracePeriodSeconds", 0)?;
    is(&answer, "/metadata/finalizers", json!(["example.com/a", "example.com/b"]))?;
    let read = c.read(&path).await?;
    ensure!(read == answer, "reads {read}, was answered {answer}");
    Ok(())
}

async fn hold_a_custom_resource(c: &Ctx) -> Result<()> {
    let (path, _) = c.make_widget("a").await?;
    c.merge(&path, json!({"metadata": {"finalizers": ["example.com/a"]}})).await?.ok(200)?;
    let answer = c.delete(&path).await?.ok(200)?;
    is(&answer, "/kind", "Widget")?;
    present(&answer, "/metadata/deletionTimestamp")?;
    // Setting the deletion timestamp increments the generation.
    is(&answer, "/metadata/generation", 2)?;
    is(&answer, "/metadata/deletionGracePeriodSeconds", 0)
}

async fn hold_a_node(c: &Ctx) -> Result<()> {
    let (path, _) = c.node("a").await?;
    c.merge(&path, json!({"metadata": {"finalizers": ["example.com/a"]}})).await?.ok(200)?;
    let answer = c.delete(&path).await?.ok(200)?;
    is(&answer, "/kind", "Node")?;
    present(&answer, "/metadata/deletionTimestamp")?;
    let patch = json!({"spec": {"taints": [{"key": "t", "effect": "NoSchedule"}]}});
    let patched = c.merge(&path, patch).await?.ok(200)?;
    is(&patched, "/spec/taints/0/key", "t")?;
    let patch = json!([
        {"op": "test", "path": "/metadata/finalizers/0", "value": "example.com/a"},
        {"op": "remove", "path": "/metadata/finalizers/0"},
    ]);
    c.json_patch(&path, patch).await?.ok(200)?;
    c.get(&path).await?.fails(404, "NotFound").map(drop)
}

async fn last_one_removed_deletes(c: &Ctx) -> Result<()> {
    let (path, _) = deleting(c).await?;
    let patched = c.merge(&path, json!({"metadata": {"finalizers": ["example.com/b"]}})).await?.ok(200)?;
    is(&patched, "/metadata/finalizers", json!(["example.com/b"]))?;
    let last = c.merge(&path, json!({"metadata": {"finalizers": []}})).await?.ok(200)?;
    is(&last, "/metadata/name", "a")?;
    absent(&last, "/metadata/finalizers")?;
    c.get(&path).await?.fails(404, "NotFound").map(drop)
}

async fn last_one_removed_by_update_deletes(c: &Ctx) -> Result<()> {
    let (path, answer) = deleting(c).await?;
    c.put(&path, &with(answer, json!({"metadata": {"finalizers": null}}))).await?.ok(200)?;
    c.get(&path).await?.fails(404, "NotFound").map(drop)
}

async fn cannot_be_added_while_deleting(c: &Ctx) -> Result<()> {
    let (path, _) = deleting(c).await?;
    let more = json!({"metadata": {"finalizers": ["example.com/a", "example.com/b", "example.com/c"]}});
    c.merge(&path, more).await?.invalid(&["metadata.finalizers"])?;
    let (path, _) = c.make_widget("a").await?;
    c.merge(&path, json!({"metadata": {"finalizers": ["example.com/a"]}})).await?.ok(200)?;
    c.delete(&path).await?.ok(200)?;
    let more = json!({"metadata": {"finalizers": ["example.com/a", "example.com/c"]}});
    c.merge(&path, more).await?.invalid(&["metadata.finalizers"]).map(drop)
}

async fn can_be_reordered_while_deleting(c: &Ctx) -> Result<()> {
    let (path, _) = deleting(c).await?;
    let turned = json!(["example.com/b", "example.com/a"]);
    let patched = c.merge(&path, json!({"metadata": {"finalizers": turned}})).await?.ok(200)?;
    is(&patched, "/metadata/finalizers", turned)
}

async fn other_changes_are_allowed_while_deleting(c: &Ctx) -> Result<()> {
    let (path, answer) = deleting(c).await?;
    let patched =
        c.merge(&path, json!({"data": {"b": "2"}, "metadata": {"labels": {"l": "1"}}})).await?.ok(200)?;
    is(&patched, "/data/b", "2")?;
    is(&patched, "/metadata/deletionTimestamp", answer["metadata"]["deletionTimestamp"].clone())
}

async fn second_delete_changes_nothing(c: &Ctx) -> Result<()> {
    let (path, first) = deleting(c).await?;
    let second = c.delete(&path).await?.ok(200)?;
    is(&second, "/metadata/resourceVersion", rv(&first)?)?;
    is(&second, "/metadata/uid", uid(&first)?)
}

async fn name_stays_taken_while_deleting(c: &Ctx) -> Result<()> {
    deleting(c).await?;
    let failed = c.post(&c.path("v1/configmaps"), &objects::config_map("a")).await?;
    failed.fails(409, "AlreadyExists").map(drop)
}

async fn guarded_removal_of_one(c: &Ctx) -> Result<()> {
    let (path, answer) = deleting(c).await?;
    let patch = json!([
        {"op": "test", "path": "/metadata/uid", "value": uid(&answer)?},
        {"op": "test", "path": "/metadata/finalizers/0", "value": "example.com/a"},
        {"op": "remove", "path": "/metadata/finalizers/0"},
    ]);
    let patched = c.json_patch(&path, patch.clone()).await?.ok(200)?;
    is(&patched, "/metadata/finalizers", json!(["example.com/b"]))?;
    c.json_patch(&path, patch).await?.fails(422, "Invalid").map(drop)
}

async fn deletion_cannot_be_undone(c: &Ctx) -> Result<()> {
    let (path, answer) = deleting(c).await?;
    let alive = json!({"metadata": {"deletionTimestamp": null, "deletionGracePeriodSeconds": null}});
    let put = c.put(&path, &with(answer.clone(), alive.clone())).await?.ok(200)?;
    is(&put, "/metadata/deletionTimestamp", answer["metadata"]["deletionTimestamp"].clone())?;
    is(&put, "/metadata/deletionGracePeriodSeconds", 0)?;
    let patched = c.merge(&path, alive).await?.ok(200)?;
    is(&patched, "/metadata/deletionTimestamp", answer["metadata"]["deletionTimestamp"].clone())
}
