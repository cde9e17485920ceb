//! Deleting objects: responses, preconditions, collections, and grace periods of pods.

use anyhow::{Result, ensure};
use serde_json::json;

use super::check::{absent, is, names, present, rv, uid};
use super::ctx::Ctx;
use super::objects::{self, with};

cases!["delete":
    answers_with_a_status,
    answers_with_the_object_for_some_kinds,
    of_a_missing_object,
    precondition_on_the_uid,
    precondition_on_the_resource_version,
    options_in_the_query,
    refuses_bad_options,
    dry_run_deletes_nothing,
    frees_the_name,
    collection_by_label,
    collection_by_field,
    collection_with_finalizers,
    unscheduled_pod_is_gone_at_once,
    scheduled_pod_waits_for_its_grace_period,
    grace_period_comes_from_the_request,
    second_delete_shortens_the_grace_period,
    second_delete_does_not_lengthen_it,
    grace_period_zero_is_immediate,
    finished_pod_is_gone_at_once,
    zero_grace_with_a_finalizer_stays,
    grace_period_is_ignored_for_other_kinds,
];

async fn answers_with_a_status(c: &Ctx) -> Result<()> {
    let (path, made) = c.config_map("a").await?;
    let answer = c.delete(&path).await?.ok(200)?;
    is(&answer, "/kind", "Status")?;
    is(&answer, "/status", "Success")?;
    is(&answer, "/details/name", "a")?;
    is(&answer, "/details/kind", "configmaps")?;
    is(&answer, "/details/uid", uid(&made)?)?;
    let (path, made) = c.make_widget("a").await?;
    let answer = c.delete(&path).await?.ok(200)?;
    is(&answer, "/status", "Success")?;
    is(&answer, "/details/group", c.run.group())?;
    is(&answer, "/details/uid", uid(&made)?)?;
    let (path, _) = c.node("a").await?;
    is(&c.delete(&path).await?.ok(200)?, "/status", "Success")
}

async fn answers_with_the_object_for_some_kinds(c: &Ctx) -> Result<()> {
    let (path, _) = c.pod("a").await?;
    let answer = c.delete(&path).await?.ok(200)?;
    is(&answer, "/kind", "Pod")?;
    is(&answer, "/metadata/name", "a")?;
    c.create(&c.path("v1/services"), objects::service("a")).await?;
    is(&c.delete(&c.path("v1/services/a")).await?.ok(200)?, "/kind", "Service")?;
    c.create(&c.path("v1/serviceaccounts"), json!({"metadata": {"name": "a"}})).await?;
    is(&c.delete(&c.path("v1/serviceaccounts/a")).await?.ok(200)?, "/kind", "ServiceAccount")
}

async fn of_a_missing_object(c: &Ctx) -> Result<()> {
    let (path, _) = c.config_map("a").await?;
    c.delete(&path).await?.ok(200)?;
    let failed = c.delete(&path).await?.fails(404, "NotFound")?;
    is(&failed, "/details/name", "a")?;
    is(&failed, "/details/kind", "configmaps")
}

async fn precondition_on_the_uid(c: &Ctx) -> Result<()> {
    let other = "11111111-2222-3333-4444-555555555555";
    let (path, made) = c.config_map("a").await?;
    let failed =
        c.delete_with(&path, json!({"preconditions": {"uid": other}})).await?.fails(409, "Conflict")?;
    is(&failed, "/details/name", "a")?;
    c.read(&path).await?;
    c.delete_with(&path, json!({"preconditions": {"uid": uid(&made)?}})).await?.ok(200)?;
    let (path, made) = c.node("a").await?;
    c.delete_with(&path, json!({"preconditions": {"uid": other}})).await?.fails(409, "Conflict")?;
    c.delete_with(&path, json!({"preconditions": {"uid": uid(&made)?}})).await?.ok(200)?;
    let (path, made) = c.pod("a").await?;
    c.delete_with(&path, json!({"preconditions": {"uid": other}})).await?.fails(409, "Conflict")?;
    c.delete_with(&path, json!({"preconditions": {"uid": uid(&made)?}})).await?.ok(200).map(drop)
}

async fn precondition_on_the_resource_version(c: &Ctx) -> Result<()> {
    let (path, made) = c.config_map("a").await?;
    let changed = c.merge(&path, json!({"data": {"b": "2"}})).await?.ok(200)?;
    let stale = json!({"preconditions": {"resourceVersion": rv(&made)?}});
    c.delete_with(&path, stale).await?.fails(409, "Conflict")?;
    let fresh = json!({"preconditions": {"resourceVersion": rv(&changed)?, "uid": uid(&made)?}});
    c.delete_with(&path, fresh).await?.ok(200).map(drop)
}

async fn options_in_the_query(c: &Ctx) -> Result<()> {
    let path = bound(c, "a").await?;
    c.delete(&format!("{path}?gracePeriodSeconds=7")).await?.ok(200)?;
    is(&c.read(&path).await?, "/metadata/deletionGracePeriodSeconds", 7)?;
    c.delete(&format!("{path}?gracePeriodSeconds=0&propagationPolicy=Background")).await?.ok(200)?;
    c.get(&path).await?.fails(404, "NotFound").map(drop)
}

async fn refuses_bad_options(c: &Ctx) -> Result<()> {
    let (path, _) = c.config_map("a").await?;
    let failed = c.delete_with(&path, json!({"propagationPolicy": "Sideways"})).await?;
    failed.invalid(&["propagationPolicy"])?;
    let both = json!({"propagationPolicy": "Orphan", "orphanDependents": true});
    c.delete_with(&path, both).await?.invalid(&["propagationPolicy"])?;
    c.delete(&format!("{path}?gracePeriodSeconds=soon")).await?.fails(400, "BadRequest")?;
    c.read(&path).await.map(drop)
}

async fn dry_run_deletes_nothing(c: &Ctx) -> Result<()> {
    let (path, made) = c.config_map("a").await?;
    c.delete(&format!("{path}?dryRun=All")).await?.ok(200)?;
    c.delete_with(&path, json!({"dryRun": ["All"]})).await?.ok(200)?;
    c.delete_with(&c.path("v1/configmaps"), json!({"dryRun": ["All"]})).await?.ok(200)?;
    is(&c.read(&path).await?, "/metadata/resourceVersion", rv(&made)?)
}

async fn frees_the_name(c: &Ctx) -> Result<()> {
    let (path, first) = c.config_map("a").await?;
    c.delete(&path).await?.ok(200)?;
    let (_, second) = c.config_map("a").await?;
    ensure!(uid(&first)? != uid(&second)?, "a new object has the uid of the old one");
    ensure!(rv(&first)? != rv(&second)?, "a new object has the resource version of the old one");
    Ok(())
}

async fn collection_by_label(c: &Ctx) -> Result<()> {
    let path = c.path("v1/configmaps");
    for (name, value) in [("a", "x"), ("b", "y"), ("c", "x")] {
        let label = json!({"metadata": {"labels": {"l": value}}});
        c.create(&path, with(objects::config_map(name), label)).await?;
    }
    let answer = c.delete(&format!("{path}?labelSelector=l=x")).await?.ok(200)?;
    is(&answer, "/kind", "ConfigMapList")?;
    ensure!(names(&answer)? == ["a", "c"], "{answer}");
    let left = c.read(&format!("{path}?labelSelector=l")).await?;
    ensure!(names(&left)? == ["b"], "{left}");
    Ok(())
}

async fn collection_by_field(c: &Ctx) -> Result<()> {
    let path = c.widgets().await?;
    for name in ["a", "b"] {
        c.make_widget(name).await?;
    }
    c.delete(&format!("{path}?fieldSelector=metadata.name=a")).await?.ok(200)?;
    let left = c.read(&path).await?;
    ensure!(names(&left)? == ["b"], "{left}");
    c.delete(&path).await?.ok(200)?;
    ensure!(names(&c.read(&path).await?)?.is_empty(), "something is left");
    Ok(())
}

async fn collection_with_finalizers(c: &Ctx) -> Result<()> {
    let path = c.widgets().await?;
    c.make_widget("a").await?;
    let held = json!({"metadata": {"finalizers": ["example.com/a"]}});
    c.create(&path, with(c.widget("b"), held)).await?;
    c.delete(&path).await?.ok(200)?;
    let left = c.read(&path).await?;
    ensure!(names(&left)? == ["b"], "{left}");
    present(&left, "/items/0/metadata/deletionTimestamp")
}

/// Creates a pod on a node without a kubelet and returns its path.
async fn bound(c: &Ctx, name: &str) -> Result<String> {
    // The node must exist: the pod garbage collector removes pods of missing nodes.
    let node = c.name("nowhere");
    if c.get(&format!("/api/v1/nodes/{node}")).await?.status == 404 {
        c.node("nowhere").await?;
    }
    let spec = json!({"spec": {"nodeName": node, "terminationGracePeriodSeconds": 20}});
    Ok(c.pod_of(with(objects::pod(name), spec)).await?.0)
}

async fn unscheduled_pod_is_gone_at_once(c: &Ctx) -> Result<()> {
    let (path, _) = c.pod("a").await?;
    let answer = c.delete(&path).await?.ok(200)?;
    is(&answer, "/metadata/deletionGracePeriodSeconds", 0)?;
    c.get(&path).await?.fails(404, "NotFound").map(drop)
}

async fn scheduled_pod_waits_for_its_grace_period(c: &Ctx) -> Result<()> {
    let path = bound(c, "a").await?;
    let answer = c.delete(&path).await?.ok(200)?;
    present(&answer, "/metadata/deletionTimestamp")?;
    is(&answer, "/metadata/deletionGracePeriodSeconds", 20)?;
    is(&answer, "/metadata/generation", 2)?;
    is(&answer, "/status/phase", "Pending")?;
    // The deletion timestamp is the end of the grace period, not the time of the request.
    let created: jiff::Timestamp = super::check::text(&answer, "/metadata/creationTimestamp")?.parse()?;
    let deleted: jiff::Timestamp = super::check::text(&answer, "/metadata/deletionTimestamp")?.parse()?;
    let apart = deleted.as_second() - created.as_second();
    ensure!((20..30).contains(&apart), "deleted {apart} s after it was made");
    let read = c.read(&path).await?;
    is(&read, "/metadata/deletionTimestamp", answer["metadata"]["deletionTimestamp"].clone())
}

async fn grace_period_comes_from_the_request(c: &Ctx) -> Result<()> {
    let path = bound(c, "a").await?;
    c.delete_with(&path, json!({"gracePeriodSeconds": 90})).await?.ok(200)?;
    is(&c.read(&path).await?, "/metadata/deletionGracePeriodSeconds", 90)
}

async fn second_delete_shortens_the_grace_period(c: &Ctx) -> Result<()> {
    let path = bound(c, "a").await?;
    c.delete(&path).await?.ok(200)?;
    let answer = c.delete_with(&path, json!({"gracePeriodSeconds": 5})).await?.ok(200)?;
    is(&answer, "/metadata/deletionGracePeriodSeconds", 5)?;
    let read = c.read(&path).await?;
    is(&read, "/metadata/deletionGracePeriodSeconds", 5)?;
    is(&read, "/metadata/generation", 2)?;
    c.delete_with(&path, json!({"gracePeriodSeconds": 0})).await?.ok(200)?;
    c.get(&path).await?.fails(404, "NotFound").map(drop)
}

async fn second_delete_does_not_lengthen_it(c: &Ctx) -> Result<()> {
    let path = bound(c, "a").await?;
    let first = c.delete(&path).await?.ok(200)?;
    c.delete_with(&path, json!({"gracePeriodSeconds": 90})).await?.ok(200)?;
    let read = c.read(&path).await?;
    is(&read, "/metadata/deletionGracePeriodSeconds", 20)?;
    is(&read, "/metadata/deletionTimestamp", first["metadata"]["deletionTimestamp"].clone())?;
    is(&read, "/metadata/resourceVersion", rv(&first)?)
}

async fn grace_period_zero_is_immediate(c: &Ctx) -> Result<()> {
    let path = bound(c, "a").await?;
    c.delete_with(&path, json!({"gracePeriodSeconds": 0})).await?.ok(200)?;
    c.get(&path).await?.fails(404, "NotFound").map(drop)
}

async fn finished_pod_is_gone_at_once(c: &Ctx) -> Result<()> {
    for phase in ["Succeeded", "Failed"] {
        let path = bound(c, &phase.to_lowercase()).await?;
        c.merge(&format!("{path}/status"), json!({"status": {"phase": phase}})).await?.ok(200)?;
        c.delete(&path).await?.ok(200)?;
        c.get(&path).await?.fails(404, "NotFound")?;
    }
    Ok(())
}

async fn zero_grace_with_a_finalizer_stays(c: &Ctx) -> Result<()> {
    let path = bound(c, "a").await?;
    c.merge(&path, json!({"metadata": {"finalizers": ["example.com/a"]}})).await?.ok(200)?;
    c.delete_with(&path, json!({"gracePeriodSeconds": 0})).await?.ok(200)?;
    let read = c.read(&path).await?;
    is(&read, "/metadata/deletionGracePeriodSeconds", 0)?;
    present(&read, "/metadata/deletionTimestamp")?;
    c.merge(&path, json!({"metadata": {"finalizers": null}})).await?.ok(200)?;
    c.get(&path).await?.fails(404, "NotFound").map(drop)
}

async fn grace_period_is_ignored_for_other_kinds(c: &Ctx) -> Result<()> {
    let (path, _) = c.config_map("a").await?;
    c.delete_with(&path, json!({"gracePeriodSeconds": 30})).await?.ok(200)?;
    c.get(&path).await?.fails(404, "NotFound")?;
    let (path, _) = c.node("a").await?;
    c.merge(&path, json!({"metadata": {"finalizers": ["example.com/a"]}})).await?.ok(200)?;
    let answer = c.delete_with(&path, json!({"gracePeriodSeconds": 30})).await?.ok(200)?;
    is(&answer, "/metadata/deletionGracePeriodSeconds", 0)?;
    absent(&answer, "/metadata/generation")
}
