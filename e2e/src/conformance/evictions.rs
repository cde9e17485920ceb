//! `pods/eviction`: a deletion that respects the pod's budget.

use anyhow::{Result, ensure};
use http::Method;
use serde_json::{Value, json};

use super::budgets::{counts, make, running, say};
use super::check::{absent, condition, is, list, text, uid};
use super::ctx::Ctx;
use super::http::{Call, JSON, Reply};
use super::objects::{self, with};

cases!["evictions":
    pod_without_a_budget,
    pod_that_is_not_there,
    body_must_fit_the_path,
    only_post,
    misspelt_options_are_ignored,
    uid_is_a_precondition,
    version_is_a_precondition,
    rehearsal_by_query_and_by_options,
    grace_and_condition,
    going_pod_may_be_evicted_again,
    budget_lets_one_go,
    budget_keeps_its_books,
    refusal_names_the_budget,
    refusal_ends_when_another_is_ready,
    wrong_uid_is_asked_last,
    pods_that_serve_nobody,
    unready_pod_where_enough_are_healthy,
    unready_pod_where_too_few_are_healthy,
    unready_pod_that_may_always_go,
    two_budgets_are_one_too_many,
];

async fn evict(c: &Ctx, pod: &str, options: Value) -> Result<Reply> {
    let name = pod.rsplit('/').next().unwrap_or_default();
    let body = json!({"apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": {"name": name, "namespace": c.ns()}, "deleteOptions": options});
    post(c, pod, &body).await
}

async fn post(c: &Ctx, pod: &str, body: &Value) -> Result<Reply> {
    c.send(Call::new(Method::POST, &format!("{pod}/eviction")).body(JSON, body).once()).await
}

fn refusal(reply: Reply) -> Result<Value> {
    let body = reply.fails(429, "TooManyRequests")?;
    is(&body, "/message", "Cannot evict pod as it would violate the pod's disruption budget.")?;
    let causes = list(&body, "/details/causes")?;
    ensure!(causes.len() == 1, "{body}");
    is(&body, "/details/causes/0/reason", "DisruptionBudget")?;
    Ok(body)
}

async fn pod_without_a_budget(c: &Ctx) -> Result<()> {
    let pod = running(c, "p", true, json!({})).await?;
    make(c, "others", json!({"minAvailable": 5, "selector": {"matchLabels": {"app": "b"}}})).await?;
    let done = evict(c, &pod, Value::Null).await?.ok(201)?;
    is(&done, "/kind", "Status")?;
    is(&done, "/apiVersion", "v1")?;
    is(&done, "/status", "Success")?;
    is(&done, "/code", 201)?;
    c.gone(&pod).await
}

async fn pod_that_is_not_there(c: &Ctx) -> Result<()> {
    let missing = evict(c, &c.path("v1/pods/none"), Value::Null).await?.fails(404, "NotFound")?;
    is(&missing, "/details/kind", "pods")?;
    is(&missing, "/details/name", "none")
}

async fn body_must_fit_the_path(c: &Ctx) -> Result<()> {
    let pod = running(c, "p", true, json!({})).await?;
    let body = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}});
    for wrong in [
        json!({"metadata": {"name": "q"}}),
        json!({"metadata": {"name": null}}),
        json!({"metadata": {"namespace": "default"}}),
        json!({"kind": "Pod", "apiVersion": "v1"}),
        json!({"apiVersion": "apps/v1"}),
        json!({"deleteOptions": {"gracePeriodSeconds": "soon"}}),
    ] {
        post(c, &pod, &with(body.clone(), wrong)).await?.fails(400, "BadRequest")?;
    }
    let before = c.read(&pod).await?;
    absent(&before, "/metadata/deletionTimestamp")?;
    // Fields given by the path may be omitted.
    post(c, &pod, &json!({"metadata": {"name": "p"}})).await?.ok(201)?;
    c.gone(&pod).await
}

async fn only_post(c: &Ctx) -> Result<()> {
    let pod = running(c, "p", true, json!({})).await?;
    let path = format!("{pod}/eviction");
    c.get(&path).await?.fails(405, "MethodNotAllowed")?;
    c.delete(&path).await?.fails(405, "MethodNotAllowed").map(drop)
}

/// A misspelled `delete_options` is refused: its precondition would be ignored silently.
async fn misspelt_options_are_ignored(c: &Ctx) -> Result<()> {
    let pod = running(c, "p", true, json!({})).await?;
    let body = json!({"metadata": {"name": "p"}, "delete_options": {"preconditions": {"uid": "another"}}});
    let strict = format!("{pod}/eviction?fieldValidation=Strict");
    c.send(Call::new(Method::POST, &strict).body(JSON, &body).once()).await?.fails(400, "BadRequest")?;
    post(c, &pod, &body).await?.ok(201)?;
    c.gone(&pod).await
}

async fn uid_is_a_precondition(c: &Ctx) -> Result<()> {
    let pod = running(c, "p", true, json!({})).await?;
    let only = |uid: &str| json!({"preconditions": {"uid": uid}});
    let refused = evict(c, &pod, only("another")).await?.fails(409, "Conflict")?;
    ensure!(text(&refused, "/message")?.contains("does not match the UID in record"), "{refused}");
    let before = c.read(&pod).await?;
    ensure!(condition(&before, "DisruptionTarget").is_none(), "marked all the same");
    evict(c, &pod, only(uid(&before)?)).await?.ok(201)?;
    c.gone(&pod).await
}

async fn version_is_a_precondition(c: &Ctx) -> Result<()> {
    let pod = running(c, "p", true, json!({})).await?;
    let only = |version: &Value| json!({"preconditions": {"resourceVersion": version}});
    let old = c.read(&pod).await?;
    c.merge(&pod, json!({"metadata": {"labels": {"x": "y"}}})).await?.ok(200)?;
    evict(c, &pod, only(&old["metadata"]["resourceVersion"])).await?.fails(409, "Conflict")?;
    let new = c.read(&pod).await?;
    evict(c, &pod, only(&new["metadata"]["resourceVersion"])).await?.ok(201)?;
    c.gone(&pod).await
}

async fn rehearsal_by_query_and_by_options(c: &Ctx) -> Result<()> {
    let pod = running(c, "p", true, json!({})).await?;
    let budget = make(c, "a", json!({"minAvailable": 0})).await?;
    counts(c, &budget, [1, 0, 1, 1]).await?;
    let before = c.read(&pod).await?;
    let body = json!({"metadata": {"name": "p"}});
    let query = format!("{pod}/eviction?dryRun=All");
    let done = c.send(Call::new(Method::POST, &query).body(JSON, &body).once()).await?.ok(201)?;
    is(&done, "/status", "Success")?;
    evict(c, &pod, json!({"dryRun": ["All"]})).await?.ok(201)?;
    ensure!(before == c.read(&pod).await?, "a rehearsal changed the pod");
    is(&c.read(&budget).await?, "/status/disruptionsAllowed", 1)?;
    // A dry run is refused like a real request.
    c.merge(&budget, json!({"spec": {"minAvailable": 1}})).await?.ok(200)?;
    counts(c, &budget, [1, 1, 1, 0]).await?;
    refusal(evict(c, &pod, json!({"dryRun": ["All"]})).await?).map(drop)
}

async fn grace_and_condition(c: &Ctx) -> Result<()> {
    let (_, node) = c.node("a").await?;
    let bound =
        json!({"spec": {"nodeName": node["metadata"]["name"], "tolerations": [{"operator": "Exists"}]}});
    let pod = running(c, "p", true, bound).await?;
    evict(c, &pod, json!({"gracePeriodSeconds": 7})).await?.ok(201)?;
    let going = c.read(&pod).await?;
    is(&going, "/metadata/deletionGracePeriodSeconds", 7)?;
    let target = condition(&going, "DisruptionTarget").cloned().unwrap_or_default();
    is(&target, "/status", "True")?;
    is(&target, "/reason", "EvictionByEvictionAPI")?;
    is(&target, "/message", "Eviction API: evicting")
}

async fn going_pod_may_be_evicted_again(c: &Ctx) -> Result<()> {
    let pod = running(c, "p", true, json!({"metadata": {"finalizers": ["example.com/hold"]}})).await?;
    let budget = make(c, "a", json!({"minAvailable": 1})).await?;
    counts(c, &budget, [1, 1, 1, 0]).await?;
    refusal(evict(c, &pod, Value::Null).await?)?;
    c.delete(&pod).await?.ok(200)?;
    evict(c, &pod, Value::Null).await?.ok(201)?;
    let going = c.read(&pod).await?;
    is(condition(&going, "DisruptionTarget").unwrap_or(&Value::Null), "/status", "True")
}

async fn budget_lets_one_go(c: &Ctx) -> Result<()> {
    let budget = make(c, "a", json!({"minAvailable": 1})).await?;
    let (one, two) = (running(c, "p", true, json!({})).await?, running(c, "q", true, json!({})).await?);
    counts(c, &budget, [2, 1, 2, 1]).await?;
    evict(c, &one, Value::Null).await?.ok(201)?;
    // Without waiting: the API server itself has decremented the budget, not only the controller.
    refusal(evict(c, &two, Value::Null).await?)?;
    c.gone(&one).await?;
    counts(c, &budget, [1, 1, 1, 0]).await?;
    refusal(evict(c, &two, Value::Null).await?)?;
    absent(&c.read(&two).await?, "/metadata/deletionTimestamp")
}

async fn budget_keeps_its_books(c: &Ctx) -> Result<()> {
    let path = make(c, "a", json!({"minAvailable": 1})).await?;
    let held = json!({"metadata": {"finalizers": ["example.com/hold"]}});
    let pod = running(c, "p.with.dots", true, held).await?;
    running(c, "q", true, json!({})).await?;
    let counted = counts(c, &path, [2, 1, 2, 1]).await?;
    let version = text(&counted, "/metadata/resourceVersion")?;
    let list = c.path("policy/v1/poddisruptionbudgets");
    let mut watch = c.watch(&format!("{list}?watch=true&resourceVersion={version}")).await?;
    evict(c, &pod, Value::Null).await?.ok(201)?;
    let booked = watch.about("MODIFIED", "a").await?;
    is(&booked, "/status/disruptionsAllowed", 0)?;
    is(&booked, "/status/currentHealthy", 2)?;
    text(&booked, "/status/disruptedPods/p.with.dots")?;
    let insufficient = condition(&booked, "DisruptionAllowed").cloned().unwrap_or_default();
    is(&insufficient, "/reason", "InsufficientPods")?;
    // A pod that is being deleted does not block others.
    counts(c, &path, [2, 1, 1, 0]).await?;
    c.until(&path, |budget| budget.pointer("/status/disruptedPods").is_none()).await.map(drop)
}

async fn refusal_names_the_budget(c: &Ctx) -> Result<()> {
    let pod = running(c, "p", true, json!({})).await?;
    let budget = make(c, "careful", json!({"minAvailable": 3})).await?;
    counts(c, &budget, [1, 3, 1, 0]).await?;
    let refused = refusal(evict(c, &pod, Value::Null).await?)?;
    let message = "The disruption budget careful needs 3 healthy pods and has 1 currently";
    is(&refused, "/details/causes/0/message", message)?;
    absent(&refused, "/details/retryAfterSeconds")?;
    absent(&refused, "/details/name")
}

async fn refusal_ends_when_another_is_ready(c: &Ctx) -> Result<()> {
    let pod = running(c, "p", true, json!({})).await?;
    let other = running(c, "q", false, json!({})).await?;
    let budget = make(c, "a", json!({"minAvailable": 1})).await?;
    counts(c, &budget, [2, 1, 1, 0]).await?;
    refusal(evict(c, &pod, Value::Null).await?)?;
    say(c, &other, "Running", true).await?;
    counts(c, &budget, [2, 1, 2, 1]).await?;
    evict(c, &pod, Value::Null).await?.ok(201)?;
    c.gone(&pod).await
}

async fn wrong_uid_is_asked_last(c: &Ctx) -> Result<()> {
    let pod = running(c, "p", true, json!({})).await?;
    let budget = make(c, "a", json!({"minAvailable": 1})).await?;
    counts(c, &budget, [1, 1, 1, 0]).await?;
    let another = json!({"preconditions": {"uid": "another"}});
    refusal(evict(c, &pod, another).await?).map(drop)
}

async fn pods_that_serve_nobody(c: &Ctx) -> Result<()> {
    let budget = make(c, "a", json!({"minAvailable": 9})).await?;
    let labelled = with(objects::pod("waits"), json!({"metadata": {"labels": {"app": "a"}}}));
    let (waits, _) = c.pod_of(labelled).await?;
    let done = running(c, "done", true, json!({})).await?;
    say(c, &done, "Succeeded", true).await?;
    let failed = running(c, "failed", false, json!({})).await?;
    say(c, &failed, "Failed", false).await?;
    counts(c, &budget, [3, 9, 1, 0]).await?;
    for pod in [waits, done, failed] {
        evict(c, &pod, Value::Null).await?.ok(201)?;
        c.gone(&pod).await?;
    }
    Ok(())
}

async fn unready_pod_where_enough_are_healthy(c: &Ctx) -> Result<()> {
    let budget = make(c, "a", json!({"minAvailable": 1})).await?;
    let pod = running(c, "p", false, json!({})).await?;
    running(c, "q", true, json!({})).await?;
    counts(c, &budget, [2, 1, 1, 0]).await?;
    evict(c, &pod, Value::Null).await?.ok(201)?;
    c.gone(&pod).await
}

async fn unready_pod_where_too_few_are_healthy(c: &Ctx) -> Result<()> {
    let budget =
        make(c, "a", json!({"minAvailable": 2, "unhealthyPodEvictionPolicy": "IfHealthyBudget"})).await?;
    let pod = running(c, "p", false, json!({})).await?;
    running(c, "q", true, json!({})).await?;
    counts(c, &budget, [2, 2, 1, 0]).await?;
    refusal(evict(c, &pod, Value::Null).await?).map(drop)
}

async fn unready_pod_that_may_always_go(c: &Ctx) -> Result<()> {
    let budget =
        make(c, "a", json!({"minAvailable": 2, "unhealthyPodEvictionPolicy": "AlwaysAllow"})).await?;
    let pod = running(c, "p", false, json!({})).await?;
    let healthy = running(c, "q", true, json!({})).await?;
    counts(c, &budget, [2, 2, 1, 0]).await?;
    evict(c, &pod, Value::Null).await?.ok(201)?;
    c.gone(&pod).await?;
    refusal(evict(c, &healthy, Value::Null).await?).map(drop)
}

async fn two_budgets_are_one_too_many(c: &Ctx) -> Result<()> {
    let pod = running(c, "p", true, json!({})).await?;
    for name in ["a", "b"] {
        let budget = make(c, name, json!({"minAvailable": 0})).await?;
        counts(c, &budget, [1, 0, 1, 1]).await?;
    }
    let refused = evict(c, &pod, Value::Null).await?.fails(500, "")?;
    ensure!(text(&refused, "/message")?.contains("more than one PodDisruptionBudget"), "{refused}");
    absent(&c.read(&pod).await?, "/metadata/deletionTimestamp")
}
