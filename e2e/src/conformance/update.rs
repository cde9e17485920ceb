//! Replacing objects: optimistic concurrency, generations, and immutable fields.

use anyhow::{Result, ensure};
use serde_json::json;

use super::check::{absent, is, rv};
use super::ctx::Ctx;
use super::objects::{self, with};

cases!["update":
    changes_the_object,
    refuses_a_stale_resource_version,
    without_resource_version_is_unconditional,
    needs_a_resource_version_for_some_kinds,
    refuses_another_name,
    refuses_another_namespace,
    refuses_another_uid,
    refuses_an_impossible_resource_version,
    of_a_missing_object,
    of_a_missing_lease_creates_it,
    of_a_deleted_lease_by_its_old_holder,
    without_a_change_keeps_the_resource_version,
    keeps_what_the_server_owns,
    bumps_generation_with_the_spec_only,
    does_not_touch_status,
    dry_run_changes_nothing,
    refuses_changes_to_a_pod_spec,
    allows_some_changes_to_a_pod_spec,
    refuses_changes_to_node_identity,
    refuses_changes_to_an_immutable_config_map,
    refuses_changes_to_a_priority,
    refuses_changes_to_an_address_type,
    refuses_changes_to_a_selector,
    of_a_lease_conflicts,
];

async fn changes_the_object(c: &Ctx) -> Result<()> {
    let (path, made) = c.config_map("a").await?;
    let put = c.put(&path, &with(made.clone(), json!({"data": {"a": null, "b": "2"}}))).await?.ok(200)?;
    is(&put, "/data", json!({"b": "2"}))?;
    is(&put, "/metadata/uid", made["metadata"]["uid"].clone())?;
    is(&put, "/metadata/creationTimestamp", made["metadata"]["creationTimestamp"].clone())?;
    ensure!(rv(&put)? != rv(&made)?, "the resource version stayed");
    ensure!(c.read(&path).await? == put, "another object is read than was answered");
    Ok(())
}

async fn refuses_a_stale_resource_version(c: &Ctx) -> Result<()> {
    let (path, made) = c.config_map("a").await?;
    c.merge(&path, json!({"data": {"b": "2"}})).await?.ok(200)?;
    let failed = c.put(&path, &with(made, json!({"data": {"c": "3"}}))).await?.fails(409, "Conflict")?;
    is(&failed, "/details/name", "a")?;
    is(&failed, "/details/kind", "configmaps")?;
    absent(&c.read(&path).await?, "/data/c")?;
    let (path, made) = c.make_widget("a").await?;
    c.merge(&path, json!({"spec": {"size": 4}})).await?.ok(200)?;
    let failed = c.put(&path, &with(made, json!({"spec": {"size": 5}}))).await?.fails(409, "Conflict")?;
    is(&failed, "/details/group", c.run.group())
}

async fn without_resource_version_is_unconditional(c: &Ctx) -> Result<()> {
    let (path, _) = c.config_map("a").await?;
    c.merge(&path, json!({"data": {"b": "2"}})).await?.ok(200)?;
    is(&c.put(&path, &objects::config_map("a")).await?.ok(200)?, "/data", json!({"a": "1"}))?;
    let (path, _) = c.node("a").await?;
    let body = with(objects::node(&c.name("a"), c.ns()), json!({"spec": {"unschedulable": true}}));
    is(&c.put(&path, &body).await?.ok(200)?, "/spec/unschedulable", true)?;
    let path = c.path("apps/v1/deployments");
    c.create(&path, objects::deployment("a")).await?;
    let body = with(objects::deployment("a"), json!({"metadata": {"labels": {"a": "b"}}}));
    is(&c.put(&format!("{path}/a"), &body).await?.ok(200)?, "/metadata/labels/a", "b")
}

async fn needs_a_resource_version_for_some_kinds(c: &Ctx) -> Result<()> {
    let (path, _) = c.make_widget("a").await?;
    c.put(&path, &c.widget("a")).await?.invalid(&["metadata.resourceVersion"])?;
    let path = format!("{}/{}", c.gadgets().await?, c.name("g"));
    c.create(&c.gadgets().await?, c.gadget(&c.name("g"))).await?;
    c.put(&path, &c.gadget(&c.name("g"))).await?.invalid(&["metadata.resourceVersion"])?;
    let leases = c.path("coordination.k8s.io/v1/leases");
    c.create(&leases, objects::lease("a")).await?;
    let failed = c.put(&format!("{leases}/a"), &objects::lease("a")).await?;
    failed.invalid(&["metadata.resourceVersion"]).map(drop)
}

async fn refuses_another_name(c: &Ctx) -> Result<()> {
    let (path, made) = c.config_map("a").await?;
    c.put(&path, &with(made.clone(), json!({"metadata": {"name": "b"}}))).await?.fails(400, "BadRequest")?;
    c.put(&path, &with(made, json!({"metadata": {"name": null}}))).await?.fails(400, "BadRequest")?;
    let (path, made) = c.make_widget("a").await?;
    c.put(&path, &with(made, json!({"metadata": {"name": "b"}}))).await?.fails(400, "BadRequest").map(drop)
}

async fn refuses_another_namespace(c: &Ctx) -> Result<()> {
    let (path, made) = c.config_map("a").await?;
    let moved = with(made.clone(), json!({"metadata": {"namespace": "default"}}));
    c.put(&path, &moved).await?.fails(400, "BadRequest")?;
    // An omitted name defaults to that of the path.
    let silent = with(made, json!({"metadata": {"namespace": null}}));
    is(&c.put(&path, &silent).await?.ok(200)?, "/metadata/namespace", c.ns())
}

async fn refuses_another_uid(c: &Ctx) -> Result<()> {
    let uid = json!({"metadata": {"uid": "11111111-2222-3333-4444-555555555555"}});
    let (path, made) = c.config_map("a").await?;
    let failed = c.put(&path, &with(made, uid.clone())).await?.fails(409, "Conflict")?;
    is(&failed, "/details/name", "a")?;
    let (path, made) = c.make_widget("a").await?;
    c.put(&path, &with(made, uid)).await?.fails(409, "Conflict").map(drop)
}

async fn refuses_an_impossible_resource_version(c: &Ctx) -> Result<()> {
    let (path, made) = c.config_map("a").await?;
    let impossible = with(made.clone(), json!({"metadata": {"resourceVersion": "abc"}}));
    c.put(&path, &impossible).await?.fails(500, "")?;
    let future = with(made, json!({"metadata": {"resourceVersion": "999999999999"}}));
    c.put(&path, &future).await?.fails(409, "Conflict").map(drop)
}

async fn of_a_missing_object(c: &Ctx) -> Result<()> {
    c.put(&c.path("v1/configmaps/a"), &objects::config_map("a")).await?.fails(404, "NotFound")?;
    let node = objects::node(&c.name("a"), c.ns());
    c.put(&format!("/api/v1/nodes/{}", c.name("a")), &node).await?.fails(404, "NotFound")?;
    c.put(&format!("{}/a", c.widgets().await?), &c.widget("a")).await?.fails(404, "NotFound").map(drop)
}

async fn of_a_deleted_lease_by_its_old_holder(c: &Ctx) -> Result<()> {
    let leases = c.path("coordination.k8s.io/v1/leases");
    let made = c.create(&leases, objects::lease("a")).await?;
    c.delete(&format!("{leases}/a")).await?.ok(200)?;
    c.put(&format!("{leases}/a"), &made).await?.fails(409, "Conflict")?;
    c.get(&format!("{leases}/a")).await?.fails(404, "NotFound").map(drop)
}

async fn of_a_missing_lease_creates_it(c: &Ctx) -> Result<()> {
    let path = c.path("coordination.k8s.io/v1/leases/a");
    let made = c.put(&path, &objects::lease("a")).await?.ok(201)?;
    is(&made, "/metadata/name", "a")?;
    is(&c.read(&path).await?, "/spec/holderIdentity", "one")
}

async fn without_a_change_keeps_the_resource_version(c: &Ctx) -> Result<()> {
    let (path, made) = c.config_map("a").await?;
    is(&c.put(&path, &made).await?.ok(200)?, "/metadata/resourceVersion", rv(&made)?)?;
    is(
        &c.merge(&path, json!({"data": {"a": "1"}})).await?.ok(200)?,
        "/metadata/resourceVersion",
        rv(&made)?,
    )?;
    is(&c.merge(&path, json!({})).await?.ok(200)?, "/metadata/resourceVersion", rv(&made)?)?;
    let (path, made) = c.make_widget("a").await?;
    is(&c.put(&path, &made).await?.ok(200)?, "/metadata/resourceVersion", rv(&made)?)?;
    is(&c.merge(&path, json!({"spec": {"size": 3}})).await?.ok(200)?, "/metadata/resourceVersion", rv(&made)?)
}

async fn keeps_what_the_server_owns(c: &Ctx) -> Result<()> {
    let (path, made) = c.config_map("a").await?;
    let bare = json!({"metadata": {
        "creationTimestamp": "2001-01-01T00:00:00Z", "uid": null, "selfLink": "/nowhere", "generation": 9,
    }});
    let put = c.put(&path, &with(made.clone(), bare)).await?.ok(200)?;
    is(&put, "/metadata/uid", made["metadata"]["uid"].clone())?;
    is(&put, "/metadata/creationTimestamp", made["metadata"]["creationTimestamp"].clone())?;
    let deleted = with(put, json!({"metadata": {"deletionTimestamp": "2001-01-01T00:00:00Z"}}));
    c.put(&path, &deleted).await?.invalid(&["metadata.deletionTimestamp"]).map(drop)
}

async fn bumps_generation_with_the_spec_only(c: &Ctx) -> Result<()> {
    let (path, made) = c.make_widget("a").await?;
    is(&made, "/metadata/generation", 1)?;
    let put = c.put(&path, &with(made, json!({"metadata": {"labels": {"a": "b"}}}))).await?.ok(200)?;
    is(&put, "/metadata/generation", 1)?;
    let put = c
        .put(&path, &with(put, json!({"spec": {"size": 4}, "metadata": {"generation": 70}})))
        .await?
        .ok(200)?;
    is(&put, "/metadata/generation", 2)?;
    let path = c.path("apps/v1/deployments");
    c.create(&path, objects::deployment("a")).await?;
    let path = format!("{path}/a");
    let patched = c.merge(&path, json!({"metadata": {"labels": {"a": "b"}}})).await?.ok(200)?;
    is(&patched, "/metadata/generation", 1)?;
    let patched = c.merge(&path, json!({"spec": {"paused": true}})).await?.ok(200)?;
    is(&patched, "/metadata/generation", 2)
}

async fn does_not_touch_status(c: &Ctx) -> Result<()> {
    let (path, _) = c.node("a").await?;
    let node = objects::node(&c.name("a"), c.ns());
    let put = c.put(&path, &with(node, json!({"status": {"capacity": {"cpu": "9"}}}))).await?.ok(200)?;
    absent(&put, "/status/capacity")?;
    let (path, made) = c.make_widget("a").await?;
    let put = c.put(&path, &with(made, json!({"status": {"phase": "Up"}}))).await?.ok(200)?;
    absent(&put, "/status")?;
    let (path, made) = c.pod("a").await?;
    let put = c.put(&path, &with(made, json!({"status": {"phase": "Running"}}))).await?.ok(200)?;
    is(&put, "/status/phase", "Pending")
}

async fn dry_run_changes_nothing(c: &Ctx) -> Result<()> {
    let (path, made) = c.config_map("a").await?;
    let changed = with(made.clone(), json!({"data": {"a": "2"}}));
    let put = c.put(&format!("{path}?dryRun=All"), &changed).await?.ok(200)?;
    is(&put, "/data/a", "2")?;
    c.merge(&format!("{path}?dryRun=All"), json!({"data": {"a": "3"}})).await?.ok(200)?;
    c.delete(&format!("{path}?dryRun=All")).await?.ok(200)?;
    ensure!(c.read(&path).await? == made, "a dry run changed the object");
    Ok(())
}

async fn refuses_changes_to_a_pod_spec(c: &Ctx) -> Result<()> {
    let (path, made) = c.pod("a").await?;
    for change in [
        json!({"spec": {"restartPolicy": "Never"}}),
        json!({"spec": {"nodeName": "elsewhere"}}),
        json!({"spec": {"hostNetwork": true}}),
    ] {
        c.put(&path, &with(made.clone(), change)).await?.invalid(&["spec"])?;
    }
    let patch =
        json!([{"op": "add", "path": "/spec/tolerations/0", "value": {"key": "x", "operator": "Exists"}}]);
    c.json_patch(&path, patch).await?.ok(200)?;
    let failed = c.json_patch(&path, json!([{"op": "remove", "path": "/spec/tolerations/0"}])).await?;
    let failed = failed.fails(422, "Invalid")?;
    is(&failed, "/details/kind", "Pod")?;
    // tolerationSeconds may change, other fields may not.
    let longer = json!([{"op": "replace", "path": "/spec/tolerations/1/tolerationSeconds", "value": 600}]);
    c.json_patch(&path, longer).await?.ok(200)?;
    // Admission adds the two default tolerations again.
    let patched =
        c.json_patch(&path, json!([{"op": "remove", "path": "/spec/tolerations/1"}])).await?.ok(200)?;
    ensure!(patched["spec"]["tolerations"].as_array().is_some_and(|t| t.len() == 3), "{}", patched["spec"]);
    Ok(())
}

async fn allows_some_changes_to_a_pod_spec(c: &Ctx) -> Result<()> {
    let (path, _) = c.pod("a").await?;
    let patch =
        json!([{"op": "replace", "path": "/spec/containers/0/image", "value": "example.com/other:2"}]);
    let patched = c.json_patch(&path, patch).await?.ok(200)?;
    is(&patched, "/spec/containers/0/image", "example.com/other:2")?;
    is(&patched, "/metadata/generation", 2)?;
    let patch =
        json!([{"op": "add", "path": "/spec/tolerations/-", "value": {"key": "x", "operator": "Exists"}}]);
    c.json_patch(&path, patch).await?.ok(200)?;
    let patched = c.merge(&path, json!({"spec": {"activeDeadlineSeconds": 50}})).await?.ok(200)?;
    is(&patched, "/spec/activeDeadlineSeconds", 50)?;
    c.merge(&path, json!({"spec": {"activeDeadlineSeconds": 60}})).await?.fails(422, "Invalid").map(drop)
}

async fn refuses_changes_to_node_identity(c: &Ctx) -> Result<()> {
    let (path, _) = c.node("a").await?;
    let given = json!({"spec": {"providerID": "aws:///a/i-1", "podCIDR": "10.9.0.0/24", "podCIDRs": ["10.9.0.0/24"]}});
    c.merge(&path, given).await?.ok(200)?;
    c.merge(&path, json!({"spec": {"providerID": "aws:///a/i-2"}})).await?.fails(422, "Invalid")?;
    c.merge(&path, json!({"spec": {"providerID": null}})).await?.fails(422, "Invalid")?;
    let moved = json!({"spec": {"podCIDR": "10.8.0.0/24", "podCIDRs": ["10.8.0.0/24"]}});
    c.merge(&path, moved).await?.fails(422, "Invalid").map(drop)
}

async fn refuses_changes_to_an_immutable_config_map(c: &Ctx) -> Result<()> {
    let (path, _) = c.config_map("a").await?;
    c.merge(&path, json!({"immutable": true})).await?.ok(200)?;
    c.merge(&path, json!({"data": {"a": "2"}})).await?.invalid(&["data"])?;
    c.merge(&path, json!({"immutable": false})).await?.invalid(&["immutable"])?;
    c.merge(&path, json!({"metadata": {"labels": {"a": "b"}}})).await?.ok(200).map(drop)
}

async fn refuses_changes_to_a_priority(c: &Ctx) -> Result<()> {
    let path = "/apis/scheduling.k8s.io/v1/priorityclasses";
    c.create(path, objects::priority_class(&c.name("a"), 5)).await?;
    let path = format!("{path}/{}", c.name("a"));
    c.merge(&path, json!({"value": 6})).await?.invalid(&["value"])?;
    c.merge(&path, json!({"preemptionPolicy": "Never"})).await?.invalid(&["preemptionPolicy"])?;
    c.merge(&path, json!({"description": "new"})).await?.ok(200).map(drop)
}

async fn refuses_changes_to_an_address_type(c: &Ctx) -> Result<()> {
    let path = c.path("discovery.k8s.io/v1/endpointslices");
    let made = c.create(&path, objects::endpoint_slice("a")).await?;
    is(&made, "/addressType", "IPv4")?;
    let path = format!("{path}/a");
    let failed =
        c.merge(&path, json!({"addressType": "IPv6", "endpoints": [{"addresses": ["::1"]}]})).await?;
    failed.fails(422, "Invalid")?;
    let put = c.merge(&path, json!({"endpoints": [{"addresses": ["10.1.2.4"]}]})).await?.ok(200)?;
    is(&put, "/metadata/generation", 2)
}

async fn refuses_changes_to_a_selector(c: &Ctx) -> Result<()> {
    let path = c.path("apps/v1/deployments");
    c.create(&path, objects::deployment("a")).await?;
    let change = json!({"spec": {
        "selector": {"matchLabels": {"app": "b"}}, "template": {"metadata": {"labels": {"app": "b"}}},
    }});
    c.merge(&format!("{path}/a"), change).await?.invalid(&["spec.selector"]).map(drop)
}

async fn of_a_lease_conflicts(c: &Ctx) -> Result<()> {
    let leases = c.path("coordination.k8s.io/v1/leases");
    let made = c.create(&leases, objects::lease("a")).await?;
    let path = format!("{leases}/a");
    let mine = with(made.clone(), json!({"spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}}));
    let put = c.put(&path, &mine).await?.ok(200)?;
    is(&put, "/spec/renewTime", "2026-01-01T00:00:00.000000Z")?;
    let theirs = with(made, json!({"spec": {"holderIdentity": "two"}}));
    let failed = c.put(&path, &theirs).await?.fails(409, "Conflict")?;
    is(&failed, "/details/group", "coordination.k8s.io")?;
    is(&c.read(&path).await?, "/spec/holderIdentity", "one")
}
