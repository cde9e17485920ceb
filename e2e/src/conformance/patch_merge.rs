//! JSON merge patches.

use anyhow::Result;
use http::Method;
use serde_json::json;

use super::check::{absent, is, rv};
use super::ctx::Ctx;
use super::http::{Call, MERGE_PATCH};

cases!["patch_merge":
    merges_objects_deeply,
    null_removes,
    replaces_lists,
    resource_version_is_a_precondition,
    refuses_another_uid,
    sets_and_removes_finalizers,
    of_a_missing_object,
    malformed,
    cannot_change_the_name,
    wrong_shape_is_refused,
];

async fn merges_objects_deeply(c: &Ctx) -> Result<()> {
    let (path, _) = c.make_widget("a").await?;
    let patched = c.merge(&path, json!({"spec": {"free": {"a": {"b": 1, "c": 2}}}})).await?.ok(200)?;
    is(&patched, "/spec/size", 3)?;
    let patched = c.merge(&path, json!({"spec": {"free": {"a": {"c": 3, "d": {"e": 4}}}}})).await?.ok(200)?;
    is(&patched, "/spec/free", json!({"a": {"b": 1, "c": 3, "d": {"e": 4}}}))
}

async fn null_removes(c: &Ctx) -> Result<()> {
    let (path, _) = c.config_map("a").await?;
    c.merge(&path, json!({"metadata": {"labels": {"x": "1", "y": "2"}}})).await?.ok(200)?;
    let patched =
        c.merge(&path, json!({"metadata": {"labels": {"x": null, "none": null}}})).await?.ok(200)?;
    is(&patched, "/metadata/labels", json!({"y": "2"}))?;
    let patched =
        c.merge(&path, json!({"data": null, "metadata": {"labels": {"y": null}}})).await?.ok(200)?;
    absent(&patched, "/data")?;
    absent(&patched, "/metadata/labels")
}

async fn replaces_lists(c: &Ctx) -> Result<()> {
    let (path, _) = c.make_widget("a").await?;
    c.merge(&path, json!({"spec": {"list": ["x", "y"]}})).await?.ok(200)?;
    is(&c.merge(&path, json!({"spec": {"list": ["z"]}})).await?.ok(200)?, "/spec/list", json!(["z"]))?;
    is(&c.merge(&path, json!({"spec": {"list": []}})).await?.ok(200)?, "/spec/list", json!([]))?;
    let (path, _) = c.node("a").await?;
    let taints = json!([{"key": "mine", "effect": "NoSchedule"}]);
    let patched = c.merge(&path, json!({"spec": {"taints": taints}})).await?.ok(200)?;
    is(&patched, "/spec/taints", taints)
}

async fn resource_version_is_a_precondition(c: &Ctx) -> Result<()> {
    let (path, made) = c.config_map("a").await?;
    let patch = json!({"metadata": {"resourceVersion": rv(&made)?}, "data": {"b": "2"}});
    c.merge(&path, patch).await?.ok(200)?;
    let patch = json!({"metadata": {"resourceVersion": rv(&made)?}, "data": {"c": "3"}});
    let failed = c.merge(&path, patch).await?.fails(409, "Conflict")?;
    is(&failed, "/details/name", "a")?;
    let (path, made) = c.make_widget("a").await?;
    c.merge(&path, json!({"spec": {"size": 4}})).await?.ok(200)?;
    let patch = json!({"metadata": {"resourceVersion": rv(&made)?}, "spec": {"size": 5}});
    c.merge(&path, patch).await?.fails(409, "Conflict").map(drop)
}

async fn refuses_another_uid(c: &Ctx) -> Result<()> {
    let other = json!({"metadata": {"uid": "11111111-2222-3333-4444-555555555555"}, "data": {"b": "2"}});
    let (path, _) = c.config_map("a").await?;
    c.merge(&path, other.clone()).await?.invalid(&["metadata.uid"])?;
    let (path, _) = c.make_widget("a").await?;
    c.merge(&path, other).await?.invalid(&["metadata.uid"]).map(drop)
}

async fn sets_and_removes_finalizers(c: &Ctx) -> Result<()> {
    let (path, _) = c.config_map("a").await?;
    let patched = c.merge(&path, json!({"metadata": {"finalizers": ["example.com/a"]}})).await?.ok(200)?;
    is(&patched, "/metadata/finalizers", json!(["example.com/a"]))?;
    let patched = c.merge(&path, json!({"metadata": {"finalizers": null}})).await?.ok(200)?;
    absent(&patched, "/metadata/finalizers")
}

async fn of_a_missing_object(c: &Ctx) -> Result<()> {
    c.merge(&c.path("v1/configmaps/a"), json!({"data": {"a": "1"}})).await?.fails(404, "NotFound")?;
    c.merge(&c.path("coordination.k8s.io/v1/leases/a"), json!({})).await?.fails(404, "NotFound")?;
    c.json_patch(&c.path("v1/configmaps/a"), json!([])).await?.fails(404, "NotFound").map(drop)
}

async fn malformed(c: &Ctx) -> Result<()> {
    let (path, _) = c.config_map("a").await?;
    for patch in ["{bad", "", "[]", "5"] {
        let call = Call::new(Method::PATCH, &path).text(MERGE_PATCH, patch);
        c.send(call).await?.fails(400, "BadRequest")?;
    }
    Ok(())
}

async fn cannot_change_the_name(c: &Ctx) -> Result<()> {
    let (path, _) = c.config_map("a").await?;
    c.merge(&path, json!({"metadata": {"name": "b"}})).await?.fails(400, "BadRequest")?;
    let (path, _) = c.make_widget("a").await?;
    c.merge(&path, json!({"metadata": {"name": "b"}})).await?.fails(400, "BadRequest").map(drop)
}

async fn wrong_shape_is_refused(c: &Ctx) -> Result<()> {
    let (path, _) = c.config_map("a").await?;
    c.merge(&path, json!({"data": {"a": {"b": "c"}}})).await?.invalid(&["patch"])?;
    c.merge(&path, json!({"metadata": {"labels": ["x"]}})).await?.invalid(&["patch"])?;
    c.merge(&path, json!({"metadata": {"labels": {"a": "b c"}}}))
        .await?
        .invalid(&["metadata.labels"])
        .map(drop)
}
