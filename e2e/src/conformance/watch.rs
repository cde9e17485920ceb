//! Watching.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use serde_json::json;
use tokio::time::timeout;

use super::check::{absent, is, names, present, rv};
use super::ctx::Ctx;
use super::http::Watch;
use super::objects::{self, with};

cases!["watch":
    from_a_resource_version_gives_what_came_after,
    without_a_resource_version_begins_with_what_is_there,
    from_zero_begins_with_what_is_there,
    event_is_the_whole_object,
    deleted_is_the_last_state_with_a_new_version,
    order_is_that_of_the_writes,
    no_event_without_a_change,
    label_selector_transitions,
    field_selector_transitions,
    of_one_object,
    of_all_namespaces,
    of_a_custom_kind,
    of_a_deletion_with_finalizers,
    of_a_pod_and_its_grace,
    timeout_ends_the_stream,
    initial_events_end_with_a_bookmark,
    initial_events_from_a_resource_version,
    initial_events_of_one_object,
    initial_events_need_their_options,
    too_old_is_expired,
    from_the_future_waits,
    impossible_resource_version,
    two_watchers_see_the_same,
    partial_metadata,
    old_style_path,
    old_style_path_of_one_object;
    slow:
    quiet_watch_gets_a_bookmark_once_a_minute,
];

/// The path of the case's leases, and the resource version of their list.
async fn leases(c: &Ctx) -> Result<(String, String)> {
    let path = c.path("coordination.k8s.io/v1/leases");
    let all = c.read(&path).await?;
    Ok((path, rv(&all)?.to_owned()))
}

async fn from_a_resource_version_gives_what_came_after(c: &Ctx) -> Result<()> {
    let (path, _) = leases(c).await?;
    c.create(&path, objects::lease("old")).await?;
    let since = c.read(&path).await?;
    c.create(&path, objects::lease("new")).await?;
    let mut watch = c.watch(&format!("{path}?watch=true&resourceVersion={}", rv(&since)?)).await?;
    watch.about("ADDED", "new").await?;
    c.merge(&format!("{path}/old"), json!({"spec": {"holderIdentity": "two"}})).await?.ok(200)?;
    watch.about("MODIFIED", "old").await?;
    c.delete(&format!("{path}/new")).await?.ok(200)?;
    watch.about("DELETED", "new").await.map(drop)
}

async fn without_a_resource_version_begins_with_what_is_there(c: &Ctx) -> Result<()> {
    let (path, _) = leases(c).await?;
    for name in ["b", "a"] {
        c.create(&path, objects::lease(name)).await?;
    }
    let mut watch = c.watch(&format!("{path}?watch=1")).await?;
    let mut first = [watch.event("ADDED").await?, watch.event("ADDED").await?];
    first.sort_by_key(|object| object["metadata"]["name"].to_string());
    is(&first[0], "/metadata/name", "a")?;
    is(&first[1], "/metadata/name", "b")?;
    c.create(&path, objects::lease("c")).await?;
    watch.about("ADDED", "c").await.map(drop)
}

async fn from_zero_begins_with_what_is_there(c: &Ctx) -> Result<()> {
    let (path, _) = leases(c).await?;
    let made = c.create(&path, objects::lease("a")).await?;
    // The watch cache may be behind: later events follow right after the initial ones.
    let mut watch = c.watch(&format!("{path}?watch=true&resourceVersion=0")).await?;
    let seen = watch.about("ADDED", "a").await?;
    is(&seen, "/metadata/resourceVersion", rv(&made)?)
}

async fn event_is_the_whole_object(c: &Ctx) -> Result<()> {
    let (path, since) = leases(c).await?;
    let made = c.create(&path, objects::lease("a")).await?;
    let mut watch = c.watch(&format!("{path}?watch=true&resourceVersion={since}")).await?;
    let seen = watch.about("ADDED", "a").await?;
    ensure!(seen == made, "saw {seen}, made {made}");
    is(&seen, "/kind", "Lease")?;
    is(&seen, "/apiVersion", "coordination.k8s.io/v1")
}

async fn deleted_is_the_last_state_with_a_new_version(c: &Ctx) -> Result<()> {
    let (path, since) = leases(c).await?;
    let made = c.create(&path, objects::lease("a")).await?;
    c.delete(&format!("{path}/a")).await?.ok(200)?;
    let mut watch = c.watch(&format!("{path}?watch=true&resourceVersion={since}")).await?;
    watch.about("ADDED", "a").await?;
    let last = watch.about("DELETED", "a").await?;
    is(&last, "/spec", made["spec"].clone())?;
    is(&last, "/metadata/uid", made["metadata"]["uid"].clone())?;
    let number = |text: &str| text.parse::<u64>();
    ensure!(number(rv(&last)?)? > number(rv(&made)?)?, "the deletion has no version of its own");
    // A watch can continue from there.
    c.create(&path, objects::lease("b")).await?;
    let mut watch = c.watch(&format!("{path}?watch=true&resourceVersion={}", rv(&last)?)).await?;
    watch.about("ADDED", "b").await.map(drop)
}

async fn order_is_that_of_the_writes(c: &Ctx) -> Result<()> {
    let (path, since) = leases(c).await?;
    let mut watch = c.watch(&format!("{path}?watch=true&resourceVersion={since}")).await?;
    for name in ["c", "a", "b"] {
        c.create(&path, objects::lease(name)).await?;
    }
    c.merge(&format!("{path}/c"), json!({"spec": {"holderIdentity": "two"}})).await?.ok(200)?;
    let mut last = 0;
    for (kind, name) in [("ADDED", "c"), ("ADDED", "a"), ("ADDED", "b"), ("MODIFIED", "c")] {
        let seen: u64 = rv(&watch.about(kind, name).await?)?.parse()?;
        ensure!(seen > last, "{seen} after {last}");
        last = seen;
    }
    Ok(())
}

async fn no_event_without_a_change(c: &Ctx) -> Result<()> {
    let (path, since) = leases(c).await?;
    let made = c.create(&path, objects::lease("a")).await?;
    c.put(&format!("{path}/a"), &made).await?.ok(200)?;
    c.create(&path, objects::lease("end")).await?;
    let mut watch = c.watch(&format!("{path}?watch=true&resourceVersion={since}")).await?;
    watch.about("ADDED", "a").await?;
    watch.about("ADDED", "end").await.map(drop)
}

async fn label_selector_transitions(c: &Ctx) -> Result<()> {
    let (path, since) = leases(c).await?;
    let selected = format!("{path}?watch=true&resourceVersion={since}&labelSelector=on%3Dyes");
    let mut watch = c.watch(&selected).await?;
    let label = |value: &str| json!({"metadata": {"labels": {"on": value}}});
    c.create(&path, objects::lease("a")).await?;
    c.merge(&format!("{path}/a"), label("yes")).await?.ok(200)?;
    let seen = watch.about("ADDED", "a").await?;
    is(&seen, "/metadata/labels/on", "yes")?;
    c.merge(&format!("{path}/a"), json!({"spec": {"holderIdentity": "two"}})).await?.ok(200)?;
    watch.about("MODIFIED", "a").await?;
    let changed = c.merge(&format!("{path}/a"), label("no")).await?.ok(200)?;
    // The object in its last matching state, with the version of the change.
    let left = watch.about("DELETED", "a").await?;
    is(&left, "/metadata/labels/on", "yes")?;
    is(&left, "/metadata/resourceVersion", rv(&changed)?)?;
    c.delete(&format!("{path}/a")).await?.ok(200)?;
    c.create(&path, with(objects::lease("end"), label("yes"))).await?;
    watch.about("ADDED", "end").await.map(drop)
}

async fn field_selector_transitions(c: &Ctx) -> Result<()> {
    let path = c.path("v1/pods");
    let since = c.read(&path).await?;
    let selected =
        format!("{path}?watch=true&resourceVersion={}&fieldSelector=status.phase%3DRunning", rv(&since)?);
    let mut watch = c.watch(&selected).await?;
    let (pod, _) = c.pod("a").await?;
    let phase = |phase: &str| json!({"status": {"phase": phase}});
    c.merge(&format!("{pod}/status"), phase("Running")).await?.ok(200)?;
    watch.about("ADDED", "a").await?;
    c.merge(&format!("{pod}/status"), phase("Succeeded")).await?.ok(200)?;
    watch.about("DELETED", "a").await.map(drop)
}

async fn of_one_object(c: &Ctx) -> Result<()> {
    let (path, since) = leases(c).await?;
    let one = format!("{path}?watch=true&resourceVersion={since}&fieldSelector=metadata.name%3Db");
    let mut watch = c.watch(&one).await?;
    for name in ["a", "b", "c"] {
        c.create(&path, objects::lease(name)).await?;
    }
    c.delete(&format!("{path}/a")).await?.ok(200)?;
    c.delete(&format!("{path}/b")).await?.ok(200)?;
    watch.about("ADDED", "b").await?;
    watch.about("DELETED", "b").await.map(drop)
}

async fn of_all_namespaces(c: &Ctx) -> Result<()> {
    let all = "/apis/coordination.k8s.io/v1/leases";
    let (path, since) = leases(c).await?;
    let label = json!({"metadata": {"labels": {"case": c.ns()}}});
    c.create(&path, with(objects::lease("a"), label)).await?;
    let mine = format!("{all}?watch=true&resourceVersion={since}&labelSelector=case%3D{}", c.ns());
    let seen = c.watch(&mine).await?.about("ADDED", "a").await?;
    is(&seen, "/metadata/namespace", c.ns())
}

async fn of_a_custom_kind(c: &Ctx) -> Result<()> {
    let path = c.widgets().await?;
    let since = c.read(&path).await?;
    let mut watch = c.watch(&format!("{path}?watch=true&resourceVersion={}", rv(&since)?)).await?;
    let (widget, made) = c.make_widget("a").await?;
    let seen = watch.about("ADDED", "a").await?;
    ensure!(seen == made, "saw {seen}, made {made}");
    c.merge(&format!("{widget}/status"), json!({"status": {"phase": "Up"}})).await?.ok(200)?;
    is(&watch.about("MODIFIED", "a").await?, "/status/phase", "Up")?;
    c.delete(&widget).await?.ok(200)?;
    is(&watch.about("DELETED", "a").await?, "/kind", "Widget")
}

async fn of_a_deletion_with_finalizers(c: &Ctx) -> Result<()> {
    let (path, since) = leases(c).await?;
    c.create(&path, with(objects::lease("a"), json!({"metadata": {"finalizers": ["example.com/a"]}})))
        .await?;
    c.delete(&format!("{path}/a")).await?.ok(200)?;
    c.merge(&format!("{path}/a"), json!({"metadata": {"finalizers": null}})).await?.ok(200)?;
    let mut watch = c.watch(&format!("{path}?watch=true&resourceVersion={since}")).await?;
    absent(&watch.about("ADDED", "a").await?, "/metadata/deletionTimestamp")?;
    present(&watch.about("MODIFIED", "a").await?, "/metadata/deletionTimestamp")?;
    // The update that removes the last finalizer is the deletion: there is no MODIFIED event for it.
    let last = watch.about("DELETED", "a").await?;
    present(&last, "/metadata/deletionTimestamp")
}

async fn of_a_pod_and_its_grace(c: &Ctx) -> Result<()> {
    let (_, node) = c.node("n").await?;
    let path = c.path("v1/pods");
    let since = c.read(&path).await?;
    let spec = json!({"spec": {"nodeName": node["metadata"]["name"]}});
    let (pod, _) = c.pod_of(with(objects::pod("a"), spec)).await?;
    c.delete(&pod).await?.ok(200)?;
    c.delete_with(&pod, json!({"gracePeriodSeconds": 0})).await?.ok(200)?;
    let mut watch = c.watch(&format!("{path}?watch=true&resourceVersion={}", rv(&since)?)).await?;
    watch.about("ADDED", "a").await?;
    let marked = watch.about("MODIFIED", "a").await?;
    is(&marked, "/metadata/deletionGracePeriodSeconds", 30)?;
    watch.until("DELETED", "a").await.map(drop)
}

async fn timeout_ends_the_stream(c: &Ctx) -> Result<()> {
    let (path, since) = leases(c).await?;
    let mut watch = c.watch(&format!("{path}?watch=true&resourceVersion={since}&timeoutSeconds=1")).await?;
    if let Some(event) = watch.next().await? {
        bail!("{event} at the end of a silent watch");
    }
    Ok(())
}

const INITIAL: &str =
    "watch=true&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan";

/// Reads the initial events up to their bookmark: the names, and the bookmark.
async fn initial(watch: &mut Watch) -> Result<(Vec<String>, serde_json::Value)> {
    let mut names = Vec::new();
    loop {
        let Some(mut event) = watch.next().await? else { bail!("ended before the bookmark") };
        match event["type"].as_str() {
            Some("ADDED") => {
                names.push(event["object"]["metadata"]["name"].as_str().unwrap_or_default().to_owned());
            }
            Some("BOOKMARK") if event.pointer("/object/metadata/annotations").is_some() => {
                return Ok((names, event["object"].take()));
            }
            Some("BOOKMARK") => {}
            _ => bail!("{event} before the bookmark"),
        }
    }
}

async fn initial_events_end_with_a_bookmark(c: &Ctx) -> Result<()> {
    let (path, _) = leases(c).await?;
    for name in ["b", "a"] {
        c.create(&path, objects::lease(name)).await?;
    }
    let mut watch = c.watch(&format!("{path}?{INITIAL}")).await?;
    let (mut first, bookmark) = initial(&mut watch).await?;
    first.sort();
    ensure!(first == ["a", "b"], "{first:?}");
    is(&bookmark, "/kind", "Lease")?;
    is(&bookmark, "/apiVersion", "coordination.k8s.io/v1")?;
    is(&bookmark, "/metadata/annotations/k8s.io~1initial-events-end", "true")?;
    absent(&bookmark, "/metadata/name")?;
    c.create(&path, objects::lease("c")).await?;
    watch.until("ADDED", "c").await?;
    // A watch can continue from the bookmark.
    let mut watch = c.watch(&format!("{path}?watch=true&resourceVersion={}", rv(&bookmark)?)).await?;
    watch.about("ADDED", "c").await.map(drop)
}

async fn initial_events_from_a_resource_version(c: &Ctx) -> Result<()> {
    let (path, _) = leases(c).await?;
    let made =
        c.create(&path, with(objects::lease("a"), json!({"metadata": {"labels": {"l": "1"}}}))).await?;
    c.create(&path, objects::lease("b")).await?;
    let mut watch = c.watch(&format!("{path}?{INITIAL}&resourceVersion={}", rv(&made)?)).await?;
    ensure!(initial(&mut watch).await?.0.contains(&"a".to_owned()));
    let mut watch = c.watch(&format!("{path}?{INITIAL}&labelSelector=l%3D1")).await?;
    ensure!(initial(&mut watch).await?.0 == ["a"]);
    let mut watch = c.watch(&format!("{path}?{INITIAL}&labelSelector=l%3D2")).await?;
    ensure!(initial(&mut watch).await?.0.is_empty());
    Ok(())
}

async fn initial_events_of_one_object(c: &Ctx) -> Result<()> {
    let (path, _) = leases(c).await?;
    c.create(&path, objects::lease("other")).await?;
    let by_name = format!("{path}?{INITIAL}&fieldSelector=metadata.name%3Dleader");
    let mut watch = c.watch(&by_name).await?;
    ensure!(initial(&mut watch).await?.0.is_empty());
    c.create(&path, objects::lease("leader")).await?;
    watch.until("ADDED", "leader").await?;
    let mut watch = c.watch(&by_name).await?;
    ensure!(initial(&mut watch).await?.0 == ["leader"]);
    let renewal = json!({"spec": {"holderIdentity": "two"}});
    for name in ["other", "leader"] {
        c.merge(&format!("{path}/{name}"), renewal.clone()).await?.ok(200)?;
    }
    is(&watch.until("MODIFIED", "leader").await?, "/spec/holderIdentity", "two")
}

async fn quiet_watch_gets_a_bookmark_once_a_minute(c: &Ctx) -> Result<()> {
    let (path, _) = leases(c).await?;
    let made = c.create(&path, objects::lease("a")).await?;
    let since = rv(&made)?;
    let url =
        format!("{path}?watch=true&allowWatchBookmarks=true&resourceVersion={since}&timeoutSeconds=150");
    let mut watch = c.watch(&url).await?;
    for _ in 0..3 {
        let early = timeout(Duration::from_secs(15), watch.next()).await;
        ensure!(early.is_err(), "{early:?} before a minute had passed");
    }
    let bookmark = watch.event("BOOKMARK").await?;
    is(&bookmark, "/kind", "Lease")?;
    let number = |text: &str| text.parse::<u64>();
    ensure!(number(rv(&bookmark)?)? >= number(since)?, "{bookmark} is older than {since}");
    Ok(())
}

async fn initial_events_need_their_options(c: &Ctx) -> Result<()> {
    let (path, _) = leases(c).await?;
    for (options, field) in [
        ("watch=true&sendInitialEvents=true", "resourceVersionMatch"),
        ("watch=true&resourceVersionMatch=NotOlderThan", "resourceVersionMatch"),
        ("watch=true&sendInitialEvents=true&resourceVersionMatch=Exact", "resourceVersionMatch"),
        ("sendInitialEvents=true&resourceVersionMatch=NotOlderThan", "sendInitialEvents"),
    ] {
        let failed = c.get(&format!("{path}?{options}")).await?.fails(422, "Invalid")?;
        is(&failed, "/details/kind", "ListOptions")?;
        let causes = super::check::list(&failed, "/details/causes")?;
        ensure!(causes.iter().any(|cause| cause["field"] == field), "{options}: {failed}");
    }
    Ok(())
}

async fn too_old_is_expired(c: &Ctx) -> Result<()> {
    // Older than the kind itself, which is too old on any server.
    c.make_widget("a").await?;
    let path = c.widgets().await?;
    let mut watch = c.watch(&format!("{path}?watch=true&resourceVersion=1")).await?;
    let status = watch.event("ERROR").await?;
    is(&status, "/kind", "Status")?;
    is(&status, "/status", "Failure")?;
    is(&status, "/code", 410)?;
    is(&status, "/reason", "Expired")?;
    ensure!(watch.next().await?.is_none(), "the watch goes on after its error");
    Ok(())
}

async fn from_the_future_waits(c: &Ctx) -> Result<()> {
    let (path, _) = leases(c).await?;
    let future = format!("{path}?watch=true&resourceVersion=999999999999&timeoutSeconds=1");
    let mut watch = c.watch(&future).await?;
    c.create(&path, objects::lease("a")).await?;
    ensure!(watch.next().await?.is_none(), "an event from before the future");
    Ok(())
}

async fn impossible_resource_version(c: &Ctx) -> Result<()> {
    let (path, _) = leases(c).await?;
    c.get(&format!("{path}?watch=true&resourceVersion=abc")).await?.fails(500, "").map(drop)
}

async fn two_watchers_see_the_same(c: &Ctx) -> Result<()> {
    let (path, since) = leases(c).await?;
    let url = format!("{path}?watch=true&resourceVersion={since}");
    let mut one = c.watch(&url).await?;
    c.create(&path, objects::lease("a")).await?;
    let mut two = c.watch(&url).await?;
    c.delete(&format!("{path}/a")).await?.ok(200)?;
    for kind in ["ADDED", "DELETED"] {
        let (left, right) = (one.about(kind, "a").await?, two.about(kind, "a").await?);
        ensure!(left == right, "{left} is not {right}");
    }
    ensure!(names(&c.read(&path).await?)?.is_empty());
    Ok(())
}

async fn partial_metadata(c: &Ctx) -> Result<()> {
    let (path, since) = leases(c).await?;
    c.create(&path, objects::lease("a")).await?;
    let accept = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
    let url = format!("{path}?watch=true&resourceVersion={since}");
    let seen = Watch::open(c.client(), &url, accept).await?.about("ADDED", "a").await?;
    is(&seen, "/kind", "PartialObjectMetadata")?;
    is(&seen, "/apiVersion", "meta.k8s.io/v1")?;
    absent(&seen, "/spec")
}

async fn old_style_path_of_one_object(c: &Ctx) -> Result<()> {
    let (path, since) = leases(c).await?;
    for name in ["a", "b"] {
        c.create(&path, objects::lease(name)).await?;
    }
    let old = path.replace("/v1/namespaces", "/v1/watch/namespaces");
    c.watch(&format!("{old}/b?resourceVersion={since}")).await?.about("ADDED", "b").await.map(drop)
}

async fn old_style_path(c: &Ctx) -> Result<()> {
    let (path, since) = leases(c).await?;
    c.create(&path, objects::lease("a")).await?;
    let old = path.replace("/v1/namespaces", "/v1/watch/namespaces");
    c.watch(&format!("{old}?resourceVersion={since}")).await?.about("ADDED", "a").await.map(drop)
}
