//! JSON patches, including the guarded removal of a taint by index, which the gate depends on.

use anyhow::{Result, ensure};
use http::Method;
use serde_json::{Value, json};

use super::check::{absent, is, rv, uid};
use super::ctx::Ctx;
use super::http::{Call, JSON_PATCH};

cases!["patch_json":
    add_remove_replace,
    add_replaces_what_is_there,
    move_and_copy,
    failed_test_changes_nothing,
    test_for_null_is_a_test_for_absence,
    missing_paths_are_invalid,
    array_positions,
    escaped_paths,
    test_on_the_resource_version,
    guarded_removal_of_a_taint,
    guarded_removal_loses_against_another_boot,
    guarded_removal_loses_against_another_node,
    guarded_removal_loses_when_taints_moved,
    malformed_patches,
    result_is_validated,
    cannot_change_identity,
    replaces_the_whole_object,
];

async fn add_remove_replace(c: &Ctx) -> Result<()> {
    let (path, _) = c.config_map("a").await?;
    let patch = json!([
        {"op": "add", "path": "/data/b", "value": "2"},
        {"op": "replace", "path": "/data/a", "value": "one"},
        {"op": "add", "path": "/metadata/labels", "value": {}},
        {"op": "add", "path": "/metadata/labels/x", "value": "y"},
    ]);
    let patched = c.json_patch(&path, patch).await?.ok(200)?;
    is(&patched, "/data", json!({"a": "one", "b": "2"}))?;
    is(&patched, "/metadata/labels", json!({"x": "y"}))?;
    let patched = c.json_patch(&path, json!([{"op": "remove", "path": "/data/a"}])).await?.ok(200)?;
    is(&patched, "/data", json!({"b": "2"}))
}

async fn add_replaces_what_is_there(c: &Ctx) -> Result<()> {
    let (path, _) = c.config_map("a").await?;
    let patch = json!([{"op": "add", "path": "/data", "value": {"z": "1"}}]);
    is(&c.json_patch(&path, patch).await?.ok(200)?, "/data", json!({"z": "1"}))
}

async fn move_and_copy(c: &Ctx) -> Result<()> {
    let (path, _) = c.config_map("a").await?;
    let patch = json!([
        {"op": "copy", "from": "/data/a", "path": "/data/b"},
        {"op": "move", "from": "/data/a", "path": "/data/c"},
    ]);
    is(&c.json_patch(&path, patch).await?.ok(200)?, "/data", json!({"b": "1", "c": "1"}))
}

async fn failed_test_changes_nothing(c: &Ctx) -> Result<()> {
    let (path, made) = c.config_map("a").await?;
    let patch = json!([
        {"op": "add", "path": "/data/b", "value": "2"},
        {"op": "test", "path": "/data/a", "value": "other"},
    ]);
    c.json_patch(&path, patch).await?.fails(422, "Invalid")?;
    let patch = json!([{"op": "test", "path": "/data/none", "value": "x"}]);
    c.json_patch(&path, patch).await?.fails(422, "Invalid")?;
    ensure!(c.read(&path).await? == made, "half a patch was applied");
    let patch = json!([
        {"op": "test", "path": "/data", "value": {"a": "1"}},
        {"op": "add", "path": "/data/b", "value": "2"},
    ]);
    is(&c.json_patch(&path, patch).await?.ok(200)?, "/data/b", "2")
}

async fn test_for_null_is_a_test_for_absence(c: &Ctx) -> Result<()> {
    let (path, _) = c.config_map("a").await?;
    let patch = json!([
        {"op": "test", "path": "/data/b", "value": null},
        {"op": "test", "path": "/metadata/annotations", "value": null},
        {"op": "add", "path": "/data/b", "value": "2"},
    ]);
    is(&c.json_patch(&path, patch.clone()).await?.ok(200)?, "/data/b", "2")?;
    c.json_patch(&path, patch).await?.fails(422, "Invalid").map(drop)
}

async fn missing_paths_are_invalid(c: &Ctx) -> Result<()> {
    let (path, made) = c.config_map("a").await?;
    for operation in [
        json!({"op": "remove", "path": "/data/none"}),
        json!({"op": "add", "path": "/metadata/labels/x", "value": "y"}),
        json!({"op": "copy", "from": "/metadata/labels/none", "path": "/data/b"}),
        json!({"op": "move", "from": "/data/none", "path": "/data/b"}),
    ] {
        c.json_patch(&path, json!([operation])).await?.fails(422, "Invalid")?;
    }
    ensure!(c.read(&path).await? == made, "a failed patch changed the object");
    // The server deviates from the RFC: replacing a missing member adds it.
    let patch = json!([{"op": "replace", "path": "/data/none", "value": "x"}]);
    is(&c.json_patch(&path, patch).await?.ok(200)?, "/data/none", "x")
}

async fn array_positions(c: &Ctx) -> Result<()> {
    let (path, _) = c.make_widget("a").await?;
    let list = |value: Value| json!([{"op": "add", "path": "/spec/parts", "value": value}]);
    let part = |id: &str| json!({"id": id, "count": 1});
    c.json_patch(&path, list(json!([part("a"), part("b")]))).await?.ok(200)?;
    let patch = json!([
        {"op": "add", "path": "/spec/parts/1", "value": part("m")},
        {"op": "add", "path": "/spec/parts/-", "value": part("z")},
        {"op": "remove", "path": "/spec/parts/0"},
    ]);
    let patched = c.json_patch(&path, patch).await?.ok(200)?;
    is(&patched, "/spec/parts", json!([part("m"), part("b"), part("z")]))?;
    for position in ["4", "x"] {
        let patch = json!([{"op": "add", "path": format!("/spec/parts/{position}"), "value": part("q")}]);
        c.json_patch(&path, patch).await?.fails(422, "Invalid")?;
    }
    let patch = json!([{"op": "remove", "path": "/spec/parts/3"}]);
    c.json_patch(&path, patch).await?.fails(422, "Invalid").map(drop)
}

async fn escaped_paths(c: &Ctx) -> Result<()> {
    let (path, _) = c.config_map("a").await?;
    c.merge(&path, json!({"metadata": {"annotations": {"example.com/a": "1"}}})).await?.ok(200)?;
    let patch = json!([
        {"op": "test", "path": "/metadata/annotations/example.com~1a", "value": "1"},
        {"op": "replace", "path": "/metadata/annotations/example.com~1a", "value": "2"},
    ]);
    let patched = c.json_patch(&path, patch).await?.ok(200)?;
    is(&patched, "/metadata/annotations", json!({"example.com/a": "2"}))
}

async fn test_on_the_resource_version(c: &Ctx) -> Result<()> {
    let (path, made) = c.config_map("a").await?;
    let patch = json!([
        {"op": "test", "path": "/metadata/resourceVersion", "value": rv(&made)?},
        {"op": "add", "path": "/data/b", "value": "2"},
    ]);
    c.json_patch(&path, patch.clone()).await?.ok(200)?;
    c.json_patch(&path, patch).await?.fails(422, "Invalid")?;
    // Set instead of tested, it is a precondition.
    let patch = json!([
        {"op": "replace", "path": "/metadata/resourceVersion", "value": rv(&made)?},
        {"op": "add", "path": "/data/c", "value": "3"},
    ]);
    c.json_patch(&path, patch).await?.fails(409, "Conflict").map(drop)
}

/// Creates a Node with a boot id and two taints of the gate, and returns its path.
async fn gated(c: &Ctx) -> Result<(String, Value)> {
    let (path, _) = c.node("a").await?;
    c.merge(&format!("{path}/status"), json!({"status": {"nodeInfo": {"bootID": "boot-1"}}}))
        .await?
        .ok(200)?;
    let taints = json!([
        {"op": "add", "path": "/spec/taints/0", "value": {"key": "example.com/gate", "effect": "NoSchedule"}},
        {"op": "add", "path": "/spec/taints/1", "value": {"key": "example.com/gate", "effect": "NoExecute"}},
    ]);
    let node = c.json_patch(&path, taints).await?.ok(200)?;
    Ok((path, node))
}

fn removal(index: usize, uid: &str, boot: &str, effect: &str) -> Value {
    json!([
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "test", "path": "/status/nodeInfo/bootID", "value": boot},
        {"op": "test", "path": format!("/spec/taints/{index}/key"), "value": "example.com/gate"},
        {"op": "test", "path": format!("/spec/taints/{index}/effect"), "value": effect},
        {"op": "remove", "path": format!("/spec/taints/{index}")},
    ])
}

async fn guarded_removal_of_a_taint(c: &Ctx) -> Result<()> {
    let (path, node) = gated(c).await?;
    let patched = c.json_patch(&path, removal(1, uid(&node)?, "boot-1", "NoExecute")).await?.ok(200)?;
    is(&patched, "/spec/taints/0/key", "example.com/gate")?;
    is(&patched, "/spec/taints/1/key", "case")?;
    let patched = c.json_patch(&path, removal(0, uid(&node)?, "boot-1", "NoSchedule")).await?.ok(200)?;
    is(&patched, "/spec/taints/0/key", "case")
}

async fn guarded_removal_loses_against_another_boot(c: &Ctx) -> Result<()> {
    let (path, node) = gated(c).await?;
    c.merge(&format!("{path}/status"), json!({"status": {"nodeInfo": {"bootID": "boot-2"}}}))
        .await?
        .ok(200)?;
    let failed = c.json_patch(&path, removal(0, uid(&node)?, "boot-1", "NoSchedule")).await?;
    failed.fails(422, "Invalid")?;
    is(&c.read(&path).await?, "/spec/taints/0/key", "example.com/gate")
}

async fn guarded_removal_loses_against_another_node(c: &Ctx) -> Result<()> {
    let (path, _) = gated(c).await?;
    let other = "11111111-2222-3333-4444-555555555555";
    c.json_patch(&path, removal(0, other, "boot-1", "NoSchedule")).await?.fails(422, "Invalid").map(drop)
}

async fn guarded_removal_loses_when_taints_moved(c: &Ctx) -> Result<()> {
    let (path, node) = gated(c).await?;
    let foreign =
        json!([{"op": "add", "path": "/spec/taints/0", "value": {"key": "x", "effect": "NoSchedule"}}]);
    c.json_patch(&path, foreign).await?.ok(200)?;
    let failed = c.json_patch(&path, removal(0, uid(&node)?, "boot-1", "NoSchedule")).await?;
    failed.fails(422, "Invalid")?;
    let beyond = c.json_patch(&path, removal(20, uid(&node)?, "boot-1", "NoSchedule")).await?;
    beyond.fails(422, "Invalid")?;
    // Removing the last taint removes the list.
    c.merge(&path, json!({"spec": {"taints": [{"key": "example.com/gate", "effect": "NoSchedule"}]}}))
        .await?
        .ok(200)?;
    c.until(&path, |node| node["spec"]["taints"][0]["key"] == "example.com/gate").await?;
    let patch = removal(0, uid(&node)?, "boot-1", "NoSchedule");
    let patched = c.json_patch(&path, patch).await?.ok(200)?;
    ensure!(
        patched["spec"]["taints"].as_array().is_none_or(|t| t.iter().all(|t| t["key"] != "example.com/gate"))
    );
    Ok(())
}

async fn malformed_patches(c: &Ctx) -> Result<()> {
    let (path, made) = c.config_map("a").await?;
    for patch in ["{bad", "", r#"{"op": "remove"}"#, r#""text""#] {
        let call = Call::new(Method::PATCH, &path).text(JSON_PATCH, patch);
        c.send(call).await?.fails(400, "BadRequest")?;
    }
    ensure!(c.read(&path).await? == made, "a malformed patch changed the object");
    let kept = c.json_patch(&path, json!([])).await?.ok(200)?;
    is(&kept, "/metadata/resourceVersion", rv(&made)?)
}

async fn result_is_validated(c: &Ctx) -> Result<()> {
    let (path, _) = c.node("a").await?;
    let taint = |taint: Value| json!([{"op": "add", "path": "/spec/taints/-", "value": taint}]);
    c.json_patch(&path, taint(json!({"key": "a", "effect": "Never"}))).await?.fails(422, "Invalid")?;
    c.json_patch(&path, taint(json!({"key": "a b", "effect": "NoSchedule"}))).await?.fails(422, "Invalid")?;
    c.json_patch(&path, taint(json!({"key": "a"}))).await?.fails(422, "Invalid")?;
    // The same key and effect twice, with any values.
    let twice = json!({"key": "case", "effect": "NoSchedule", "value": "other"});
    c.json_patch(&path, taint(twice)).await?.fails(422, "Invalid")?;
    c.json_patch(&path, taint(json!("text"))).await?.invalid(&["patch"]).map(drop)
}

async fn cannot_change_identity(c: &Ctx) -> Result<()> {
    let (path, made) = c.config_map("a").await?;
    let change = |field: &str, value: &str| json!([{"op": "replace", "path": field, "value": value}]);
    c.json_patch(&path, change("/metadata/name", "b")).await?.fails(400, "BadRequest")?;
    c.json_patch(&path, change("/metadata/namespace", "default")).await?.fails(400, "BadRequest")?;
    let other = "11111111-2222-3333-4444-555555555555";
    c.json_patch(&path, change("/metadata/uid", other)).await?.invalid(&["metadata.uid"])?;
    c.json_patch(&path, change("/kind", "Pod")).await?.invalid(&["patch"])?;
    let kept =
        c.json_patch(&path, change("/metadata/creationTimestamp", "2001-01-01T00:00:00Z")).await?.ok(200)?;
    is(&kept, "/metadata/creationTimestamp", made["metadata"]["creationTimestamp"].clone())
}

async fn replaces_the_whole_object(c: &Ctx) -> Result<()> {
    let (path, _) = c.config_map("a").await?;
    let whole =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"w": "1"}});
    let reply = c.json_patch(&path, json!([{"op": "replace", "path": "", "value": whole}])).await?;
    let patched = reply.ok(200)?;
    is(&patched, "/data", json!({"w": "1"}))?;
    absent(&patched, "/metadata/labels")
}
