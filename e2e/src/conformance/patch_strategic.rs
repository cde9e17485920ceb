//! Strategic merge patches, which kubectl and kubelets send.

use anyhow::{Result, ensure};
use http::Method;
use serde_json::{Value, json};

use super::check::{absent, is, list, rv};
use super::ctx::Ctx;
use super::http::{Call, STRATEGIC_PATCH};
use super::objects;

cases!["patch_strategic":
    merges_maps_and_null_removes,
    taints_are_replaced,
    tolerations_are_replaced,
    containers_are_merged_by_name,
    environment_is_merged_by_name,
    patch_delete_removes_an_element,
    patch_replace_replaces_a_map,
    patch_replace_replaces_a_list,
    patch_delete_empties_a_map,
    element_order_is_set,
    retain_keys_drops_the_others,
    finalizers_are_merged_as_a_set,
    owner_references_are_merged_by_uid,
    node_conditions_are_merged_by_type,
    node_addresses_are_merged_by_type,
    pod_conditions_are_merged_by_type,
    service_ports_are_merged_by_port,
    volumes_are_merged_by_name,
    null_removes_a_list,
    element_without_its_merge_key,
    resource_version_is_a_precondition,
    malformed,
];

fn names(value: &Value, pointer: &str, key: &str) -> Result<Vec<String>> {
    let items = list(value, pointer)?.iter();
    Ok(items.filter_map(|item| item[key].as_str().map(str::to_owned)).collect())
}

/// Creates a deployment without replicas and returns its path.
async fn deployment(c: &Ctx) -> Result<String> {
    let path = c.path("apps/v1/deployments");
    c.create(&path, objects::deployment("a")).await?;
    Ok(format!("{path}/a"))
}

fn in_template(spec: &Value) -> Value {
    json!({"spec": {"template": {"spec": spec}}})
}

const TEMPLATE: &str = "/spec/template/spec";

async fn merges_maps_and_null_removes(c: &Ctx) -> Result<()> {
    let (path, _) = c.config_map("a").await?;
    let patch = json!({"data": {"b": "2"}, "metadata": {"labels": {"x": "1", "y": "2"}}});
    is(&c.strategic(&path, patch).await?.ok(200)?, "/data", json!({"a": "1", "b": "2"}))?;
    let patch = json!({"data": {"a": null, "none": null}, "metadata": {"labels": {"x": null}}});
    let patched = c.strategic(&path, patch).await?.ok(200)?;
    is(&patched, "/data", json!({"b": "2"}))?;
    is(&patched, "/metadata/labels", json!({"y": "2"}))
}

async fn taints_are_replaced(c: &Ctx) -> Result<()> {
    let (path, _) = c.node("a").await?;
    let taints = json!([{"key": "new", "effect": "NoSchedule"}, {"key": "new", "effect": "NoExecute"}]);
    let patched = c.strategic(&path, json!({"spec": {"taints": taints}})).await?.ok(200)?;
    ensure!(names(&patched, "/spec/taints", "key")? == ["new", "new"], "{}", patched["spec"]);
    let patched = c.strategic(&path, json!({"spec": {"taints": null}})).await?.ok(200)?;
    absent(&patched, "/spec/taints")
}

async fn tolerations_are_replaced(c: &Ctx) -> Result<()> {
    let path = deployment(c).await?;
    let one = |key: &str| in_template(&json!({"tolerations": [{"key": key, "operator": "Exists"}]}));
    c.strategic(&path, one("a")).await?.ok(200)?;
    let patched = c.strategic(&path, one("b")).await?.ok(200)?;
    is(&patched, &format!("{TEMPLATE}/tolerations"), json!([{"key": "b", "operator": "Exists"}]))
}

async fn containers_are_merged_by_name(c: &Ctx) -> Result<()> {
    let path = deployment(c).await?;
    let patch = in_template(&json!({"containers": [{"name": "second", "image": "example.com/two:2"}]}));
    let patched = c.strategic(&path, patch).await?.ok(200)?;
    ensure!(names(&patched, &format!("{TEMPLATE}/containers"), "name")? == ["second", "main"], "{patched}");
    let patch = in_template(&json!({"containers": [{"name": "main", "image": "example.com/one:3"}]}));
    let patched = c.strategic(&path, patch).await?.ok(200)?;
    ensure!(names(&patched, &format!("{TEMPLATE}/containers"), "name")? == ["second", "main"], "{patched}");
    is(&patched, &format!("{TEMPLATE}/containers/1/image"), "example.com/one:3")?;
    is(&patched, &format!("{TEMPLATE}/containers/0/image"), "example.com/two:2")
}

async fn environment_is_merged_by_name(c: &Ctx) -> Result<()> {
    let path = deployment(c).await?;
    let env = |env: Value| in_template(&json!({"containers": [{"name": "main", "env": env}]}));
    c.strategic(&path, env(json!([{"name": "A", "value": "1"}, {"name": "B", "value": "2"}])))
        .await?
        .ok(200)?;
    let patched = c.strategic(&path, env(json!([{"name": "B", "value": "3"}]))).await?.ok(200)?;
    let want = json!([{"name": "A", "value": "1"}, {"name": "B", "value": "3"}]);
    is(&patched, &format!("{TEMPLATE}/containers/0/env"), want)?;
    // Changing the source of an element requires removing the old one.
    let source =
        json!([{"name": "A", "value": null, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]);
    let patched = c.strategic(&path, env(source)).await?.ok(200)?;
    absent(&patched, &format!("{TEMPLATE}/containers/0/env/0/value"))
}

async fn patch_delete_removes_an_element(c: &Ctx) -> Result<()> {
    let path = deployment(c).await?;
    let patch = in_template(&json!({"containers": [{"name": "second", "image": "example.com/two:2"}]}));
    c.strategic(&path, patch).await?.ok(200)?;
    let patch = in_template(&json!({"containers": [{"name": "main", "$patch": "delete"}]}));
    let patched = c.strategic(&path, patch).await?.ok(200)?;
    ensure!(names(&patched, &format!("{TEMPLATE}/containers"), "name")? == ["second"], "{patched}");
    let patch = in_template(&json!({"containers": [{"name": "none", "$patch": "delete"}]}));
    is(
        &c.strategic(&path, patch).await?.ok(200)?,
        "/metadata/generation",
        patched["metadata"]["generation"].clone(),
    )
}

async fn patch_replace_replaces_a_map(c: &Ctx) -> Result<()> {
    let (path, _) = c.config_map("a").await?;
    let patched = c.strategic(&path, json!({"data": {"$patch": "replace", "z": "9"}})).await?.ok(200)?;
    is(&patched, "/data", json!({"z": "9"}))
}

async fn patch_replace_replaces_a_list(c: &Ctx) -> Result<()> {
    let path = deployment(c).await?;
    let list = json!([{"$patch": "replace"}, {"name": "only", "image": "example.com/only:1"}]);
    let patched = c.strategic(&path, in_template(&json!({"containers": list}))).await?.ok(200)?;
    ensure!(names(&patched, &format!("{TEMPLATE}/containers"), "name")? == ["only"], "{patched}");
    Ok(())
}

async fn patch_delete_empties_a_map(c: &Ctx) -> Result<()> {
    let (path, _) = c.config_map("a").await?;
    absent(&c.strategic(&path, json!({"data": {"$patch": "delete"}})).await?.ok(200)?, "/data")
}

async fn element_order_is_set(c: &Ctx) -> Result<()> {
    let path = deployment(c).await?;
    let patch = in_template(&json!({
        "$setElementOrder/containers": [{"name": "main"}, {"name": "second"}, {"name": "third"}],
        "containers": [
            {"name": "second", "image": "example.com/two:1"}, {"name": "third", "image": "example.com/three:1"},
        ],
    }));
    let patched = c.strategic(&path, patch).await?.ok(200)?;
    let order = names(&patched, &format!("{TEMPLATE}/containers"), "name")?;
    ensure!(order == ["main", "second", "third"], "{order:?}");
    let order = json!([{"name": "third"}, {"name": "main"}, {"name": "second"}]);
    let patch = in_template(&json!({"$setElementOrder/containers": order}));
    let patched = c.strategic(&path, patch).await?.ok(200)?;
    let order = names(&patched, &format!("{TEMPLATE}/containers"), "name")?;
    ensure!(order == ["third", "main", "second"], "{order:?}");
    Ok(())
}

async fn retain_keys_drops_the_others(c: &Ctx) -> Result<()> {
    let path = deployment(c).await?;
    let patch = json!({"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}});
    is(&c.strategic(&path, patch).await?.ok(200)?, "/spec/strategy", json!({"type": "Recreate"}))
}

async fn finalizers_are_merged_as_a_set(c: &Ctx) -> Result<()> {
    let (path, _) = c.config_map("a").await?;
    let set = |list: Value| json!({"metadata": {"finalizers": list}});
    c.strategic(&path, set(json!(["example.com/a", "example.com/b"]))).await?.ok(200)?;
    let patched = c.strategic(&path, set(json!(["example.com/c", "example.com/b"]))).await?.ok(200)?;
    let mut all = list(&patched, "/metadata/finalizers")?.clone();
    all.sort_by_key(Value::to_string);
    ensure!(all == ["example.com/a", "example.com/b", "example.com/c"], "{all:?}");
    let patch =
        json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["example.com/c", "example.com/a"]}});
    is(&c.strategic(&path, patch).await?.ok(200)?, "/metadata/finalizers", json!(["example.com/b"]))
}

async fn owner_references_are_merged_by_uid(c: &Ctx) -> Result<()> {
    let (_, owner) = c.config_map("owner").await?;
    let (path, _) = c.config_map("a").await?;
    let reference = objects::owned_by(&owner);
    c.strategic(&path, json!({"metadata": {"ownerReferences": [reference]}})).await?.ok(200)?;
    let again = json!({"uid": owner["metadata"]["uid"], "controller": true});
    let patched = c.strategic(&path, json!({"metadata": {"ownerReferences": [again]}})).await?.ok(200)?;
    is(&patched, "/metadata/ownerReferences/0/name", "owner")?;
    is(&patched, "/metadata/ownerReferences/0/controller", true)?;
    let gone = json!({"uid": owner["metadata"]["uid"], "$patch": "delete"});
    let patched = c.strategic(&path, json!({"metadata": {"ownerReferences": [gone]}})).await?.ok(200)?;
    absent(&patched, "/metadata/ownerReferences")
}

async fn node_conditions_are_merged_by_type(c: &Ctx) -> Result<()> {
    let (path, _) = c.node("a").await?;
    let status = format!("{path}/status");
    let set = |list: Value| json!({"status": {"conditions": list}});
    let both =
        json!([{"type": "Ready", "status": "True", "reason": "r"}, {"type": "Other", "status": "False"}]);
    c.strategic(&status, set(both)).await?.ok(200)?;
    let patched = c.strategic(&status, set(json!([{"type": "Other", "status": "True"}]))).await?.ok(200)?;
    ensure!(names(&patched, "/status/conditions", "type")? == ["Ready", "Other"], "{patched}");
    is(&patched, "/status/conditions/0/reason", "r")?;
    is(&patched, "/status/conditions/1/status", "True")
}

async fn node_addresses_are_merged_by_type(c: &Ctx) -> Result<()> {
    let (path, _) = c.node("a").await?;
    let status = format!("{path}/status");
    let set = |list: Value| json!({"status": {"addresses": list}});
    c.strategic(&status, set(json!([{"type": "InternalIP", "address": "10.0.0.1"}]))).await?.ok(200)?;
    let patch = json!([{"type": "InternalIP", "address": "10.0.0.2"}, {"type": "Hostname", "address": "h"}]);
    let patched = c.strategic(&status, set(patch.clone())).await?.ok(200)?;
    is(&patched, "/status/addresses", patch)?;
    let patch = json!([{"type": "InternalIP", "$patch": "delete"}]);
    let patched = c.strategic(&status, set(patch)).await?.ok(200)?;
    is(&patched, "/status/addresses", json!([{"type": "Hostname", "address": "h"}]))
}

async fn pod_conditions_are_merged_by_type(c: &Ctx) -> Result<()> {
    let (path, _) = c.pod("a").await?;
    let status = format!("{path}/status");
    let set = |list: Value| json!({"status": {"conditions": list}});
    let both = json!([{"type": "Ready", "status": "True"}, {"type": "Initialized", "status": "True"}]);
    c.strategic(&status, set(both)).await?.ok(200)?;
    let patched = c.strategic(&status, set(json!([{"type": "Ready", "status": "False"}]))).await?.ok(200)?;
    ensure!(names(&patched, "/status/conditions", "type")? == ["Ready", "Initialized"], "{patched}");
    is(&patched, "/status/conditions/0/status", "False")?;
    // Container statuses have no merge key.
    let containers = |name: &str| json!({"status": {"containerStatuses": [{"name": name}]}});
    c.strategic(&status, containers("main")).await?.ok(200)?;
    let patched = c.strategic(&status, containers("other")).await?.ok(200)?;
    ensure!(names(&patched, "/status/containerStatuses", "name")? == ["other"], "{patched}");
    Ok(())
}

async fn service_ports_are_merged_by_port(c: &Ctx) -> Result<()> {
    let path = c.path("v1/services");
    let body = json!({
        "metadata": {"name": "a"},
        "spec": {"ports": [{"name": "x", "port": 80}, {"name": "y", "port": 81}]},
    });
    c.create(&path, body).await?;
    let patch = json!({"spec": {"ports": [{"port": 81, "name": "z"}]}});
    let patched = c.strategic(&format!("{path}/a"), patch).await?.ok(200)?;
    ensure!(names(&patched, "/spec/ports", "name")? == ["x", "z"], "{patched}");
    Ok(())
}

async fn volumes_are_merged_by_name(c: &Ctx) -> Result<()> {
    let path = deployment(c).await?;
    let volumes = |volume: Value| in_template(&json!({"volumes": [volume]}));
    c.strategic(&path, volumes(json!({"name": "v", "emptyDir": {}}))).await?.ok(200)?;
    // Changing the source requires removing the old one.
    let source = json!({"name": "v", "$retainKeys": ["name", "configMap"], "configMap": {"name": "m"}});
    let patched = c.strategic(&path, volumes(source)).await?.ok(200)?;
    is(&patched, &format!("{TEMPLATE}/volumes/0/configMap/name"), "m")?;
    absent(&patched, &format!("{TEMPLATE}/volumes/0/emptyDir"))
}

async fn null_removes_a_list(c: &Ctx) -> Result<()> {
    let (path, _) = c.config_map("a").await?;
    c.strategic(&path, json!({"metadata": {"finalizers": ["example.com/a"]}})).await?.ok(200)?;
    absent(
        &c.strategic(&path, json!({"metadata": {"finalizers": null}})).await?.ok(200)?,
        "/metadata/finalizers",
    )
}

async fn element_without_its_merge_key(c: &Ctx) -> Result<()> {
    let (path, _) = c.node("a").await?;
    let set = |list: Value| json!({"status": {"conditions": list}});
    let status = format!("{path}/status");
    c.strategic(&status, set(json!([{"type": "Ready", "status": "True"}]))).await?.ok(200)?;
    let reply = c.strategic(&status, set(json!([{"status": "False"}]))).await?;
    reply.fails(500, "").map(drop)
}

async fn resource_version_is_a_precondition(c: &Ctx) -> Result<()> {
    let (path, made) = c.config_map("a").await?;
    c.strategic(&path, json!({"data": {"b": "2"}})).await?.ok(200)?;
    let patch = json!({"metadata": {"resourceVersion": rv(&made)?}, "data": {"c": "3"}});
    c.strategic(&path, patch).await?.fails(409, "Conflict")?;
    absent(&c.read(&path).await?, "/data/c")
}

async fn malformed(c: &Ctx) -> Result<()> {
    let (path, _) = c.config_map("a").await?;
    for patch in ["{bad", "", "[]"] {
        let call = Call::new(Method::PATCH, &path).text(STRATEGIC_PATCH, patch);
        c.send(call).await?.fails(400, "BadRequest")?;
    }
    c.strategic(&path, json!({"data": {"a": 5}})).await?.invalid(&["patch"])?;
    c.strategic(&path, json!({"data": {"$patch": "nonsense"}})).await?.fails(500, "").map(drop)
}
