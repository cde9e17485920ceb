//! Events: two API groups, one set of objects.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::check::{absent, is, names, rv, uid};
use super::ctx::Ctx;
use super::objects::with;

cases!["events":
    core_event_in_the_new_api,
    new_event_in_the_core_api,
    are_the_same_objects,
    both_are_watched,
    new_api_is_strict,
    core_api_is_not,
    repeat_by_series,
    repeat_by_count,
    by_selector_in_either,
];

fn core(c: &Ctx, name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": name},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "name": "it", "namespace": c.ns(), "uid": "u"},
        "reason": "Why", "message": "what", "type": "Warning", "count": 2,
        "source": {"component": "who", "host": "where"},
        "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:00:05Z",
    })
}

fn modern(c: &Ctx, name: &str) -> Value {
    json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": name},
        "regarding": {"apiVersion": "v1", "kind": "Pod", "name": "it", "namespace": c.ns(), "uid": "u"},
        "reason": "Why", "note": "what", "type": "Normal", "action": "Doing",
        "reportingController": "example.com/who", "reportingInstance": "one",
        "eventTime": "2026-01-01T00:00:00.000000Z",
    })
}

async fn core_event_in_the_new_api(c: &Ctx) -> Result<()> {
    let made = c.create(&c.path("v1/events"), core(c, "a")).await?;
    is(&made, "/eventTime", Value::Null)?;
    is(&made, "/reportingComponent", "")?;
    let read = c.read(&c.path("events.k8s.io/v1/events/a")).await?;
    is(&read, "/apiVersion", "events.k8s.io/v1")?;
    is(&read, "/metadata/uid", uid(&made)?)?;
    is(&read, "/metadata/resourceVersion", rv(&made)?)?;
    is(&read, "/regarding", made["involvedObject"].clone())?;
    is(&read, "/note", "what")?;
    is(&read, "/deprecatedCount", 2)?;
    is(&read, "/deprecatedSource", json!({"component": "who", "host": "where"}))?;
    is(&read, "/deprecatedFirstTimestamp", "2026-01-01T00:00:00Z")?;
    is(&read, "/deprecatedLastTimestamp", "2026-01-01T00:00:05Z")?;
    absent(&read, "/message")
}

async fn new_event_in_the_core_api(c: &Ctx) -> Result<()> {
    let made = c.create(&c.path("events.k8s.io/v1/events"), modern(c, "a")).await?;
    let read = c.read(&c.path("v1/events/a")).await?;
    is(&read, "/apiVersion", "v1")?;
    is(&read, "/metadata/uid", uid(&made)?)?;
    is(&read, "/involvedObject", made["regarding"].clone())?;
    is(&read, "/message", "what")?;
    is(&read, "/eventTime", "2026-01-01T00:00:00.000000Z")?;
    is(&read, "/reportingComponent", "example.com/who")?;
    is(&read, "/reportingInstance", "one")?;
    is(&read, "/action", "Doing")?;
    is(&read, "/source", json!({}))?;
    is(&read, "/firstTimestamp", Value::Null)
}

async fn are_the_same_objects(c: &Ctx) -> Result<()> {
    let (old, new) = (c.path("v1/events"), c.path("events.k8s.io/v1/events"));
    c.create(&old, core(c, "a")).await?;
    c.post(&new, &modern(c, "a")).await?.fails(409, "AlreadyExists")?;
    c.create(&new, modern(c, "b")).await?;
    for (path, version) in [(&old, "v1"), (&new, "events.k8s.io/v1")] {
        let all = c.read(path).await?;
        is(&all, "/kind", "EventList")?;
        is(&all, "/apiVersion", version)?;
        ensure!(names(&all)? == ["a", "b"], "{:?}", names(&all)?);
    }
    c.delete(&format!("{new}/a")).await?.ok(200)?;
    c.get(&format!("{old}/a")).await?.fails(404, "NotFound").map(drop)
}

async fn both_are_watched(c: &Ctx) -> Result<()> {
    let (old, new) = (c.path("v1/events"), c.path("events.k8s.io/v1/events"));
    let since = c.read(&old).await?;
    let mut watch = c.watch(&format!("{new}?watch=true&resourceVersion={}", rv(&since)?)).await?;
    c.create(&old, core(c, "a")).await?;
    let seen = watch.about("ADDED", "a").await?;
    is(&seen, "/apiVersion", "events.k8s.io/v1")?;
    is(&seen, "/note", "what")
}

async fn new_api_is_strict(c: &Ctx) -> Result<()> {
    let path = c.path("events.k8s.io/v1/events");
    for field in ["eventTime", "reportingController", "reportingInstance", "action", "reason"] {
        let mut body = modern(c, "a");
        body[field] = Value::Null;
        c.post(&path, &body).await?.fails(422, "Invalid")?;
    }
    c.post(&path, &with(modern(c, "a"), json!({"type": "Odd"}))).await?.invalid(&["type"])?;
    c.post(&path, &with(modern(c, "a"), json!({"note": "n".repeat(1025)})))
        .await?
        .fails(422, "Invalid")
        .map(drop)
}

async fn core_api_is_not(c: &Ctx) -> Result<()> {
    let bare = json!({"metadata": {"name": "a"}, "involvedObject": {"namespace": c.ns()}});
    c.create(&c.path("v1/events"), bare).await?;
    let long = with(core(c, "b"), json!({"type": "Odd", "message": "n".repeat(2000)}));
    c.create(&c.path("v1/events"), long).await.map(drop)
}

async fn repeat_by_series(c: &Ctx) -> Result<()> {
    let path = c.path("events.k8s.io/v1/events");
    c.create(&path, modern(c, "a")).await?;
    let series = json!({"series": {"count": 3, "lastObservedTime": "2026-01-01T00:00:05.000000Z"}});
    is(&c.merge(&format!("{path}/a"), series).await?.ok(200)?, "/series/count", 3)?;
    is(&c.read(&c.path("v1/events/a")).await?, "/series/count", 3)?;
    // The other fields are immutable.
    c.merge(&format!("{path}/a"), json!({"note": "other"})).await?.fails(422, "Invalid").map(drop)
}

async fn repeat_by_count(c: &Ctx) -> Result<()> {
    let path = c.path("v1/events");
    c.create(&path, core(c, "a")).await?;
    let again = json!({"count": 3, "lastTimestamp": "2026-01-01T00:01:00Z", "message": "more"});
    let patched = c.strategic(&format!("{path}/a"), again).await?.ok(200)?;
    is(&patched, "/count", 3)?;
    is(&patched, "/message", "more")
}

async fn by_selector_in_either(c: &Ctx) -> Result<()> {
    c.create(&c.path("v1/events"), core(c, "a")).await?;
    c.create(&c.path("events.k8s.io/v1/events"), modern(c, "b")).await?;
    for (path, want) in [
        ("v1/events?fieldSelector=type=Warning", vec!["a"]),
        ("v1/events?fieldSelector=source=who", vec!["a"]),
        ("v1/events?fieldSelector=reportingComponent=example.com/who", vec!["b"]),
        ("v1/events?fieldSelector=involvedObject.uid=u", vec!["a", "b"]),
        ("events.k8s.io/v1/events?fieldSelector=reportingController=example.com/who", vec!["b"]),
        ("events.k8s.io/v1/events?fieldSelector=regarding.uid=u,type=Normal", vec!["b"]),
    ] {
        let all = c.read(&c.path(path)).await?;
        ensure!(names(&all)? == want, "{path}: {:?}", names(&all)?);
    }
    Ok(())
}
