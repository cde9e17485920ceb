//! `PodDisruptionBudgets`, and the disruption controller that counts their pods.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::check::{condition, is};
use super::ctx::Ctx;
use super::objects::{self, budget, owned_by, with};

cases!["budgets":
    status_begins_with_zeros,
    bounds_are_checked,
    selectors_are_checked,
    policies_are_checked,
    status_is_checked,
    put_needs_a_version,
    selector_is_patched_as_a_whole,
    new_generation_is_observed,
    ready_pods_are_healthy,
    empty_selector_is_all_and_none_is_nothing,
    percentage_of_pods_of_nobody,
    share_of_a_replica_set,
    share_of_a_stateful_set,
    share_of_a_deployment,
    controller_without_a_size,
];

const BUDGETS: &str = "policy/v1/poddisruptionbudgets";

/// Creates a budget and returns its path.
pub(super) async fn make(c: &Ctx, name: &str, spec: Value) -> Result<String> {
    c.create(&c.path(BUDGETS), budget(name, spec)).await?;
    Ok(c.path(&format!("{BUDGETS}/{name}")))
}

/// Creates a running pod `app: a`, with the status a kubelet would set, and returns its path.
pub(super) async fn running(c: &Ctx, name: &str, ready: bool, change: Value) -> Result<String> {
    let labelled = with(objects::pod(name), json!({"metadata": {"labels": {"app": "a"}}}));
    let (path, _) = c.pod_of(with(labelled, change)).await?;
    say(c, &path, "Running", ready).await?;
    Ok(path)
}

/// Patches the pod's status like a kubelet.
pub(super) async fn say(c: &Ctx, pod: &str, phase: &str, ready: bool) -> Result<()> {
    let ready = if ready { "True" } else { "False" };
    let status = json!({"status": {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]}});
    c.merge(&format!("{pod}/status"), status).await?.ok(200).map(drop)
}

/// Waits until the controller has counted: expected pods, desired healthy, current healthy, disruptions allowed.
pub(super) async fn counts(c: &Ctx, path: &str, counts: [i64; 4]) -> Result<Value> {
    let [expected, desired, current, allowed] = counts;
    c.until(path, |budget| {
        let status = &budget["status"];
        status["observedGeneration"] == budget["metadata"]["generation"]
            && status["expectedPods"] == expected
            && status["desiredHealthy"] == desired
            && status["currentHealthy"] == current
            && status["disruptionsAllowed"] == allowed
    })
    .await
}

async fn status_begins_with_zeros(c: &Ctx) -> Result<()> {
    let forged = json!({"status": {"disruptionsAllowed": 9, "observedGeneration": 9}});
    let body = with(budget("a", json!({"minAvailable": 1})), forged);
    let made = c.create(&c.path(BUDGETS), body).await?;
    let zeros = json!({"currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0});
    is(&made, "/status", zeros)?;
    is(&made, "/metadata/generation", 1)?;
    let gone = c.delete(&c.path(&format!("{BUDGETS}/a"))).await?.ok(200)?;
    is(&gone, "/kind", "Status")
}

async fn bounds_are_checked(c: &Ctx) -> Result<()> {
    let path = c.path(BUDGETS);
    for bound in [json!(-1), json!("5"), json!("-5%"), json!("101%"), json!("%"), json!("")] {
        c.post(&path, &budget("a", json!({"minAvailable": bound}))).await?.invalid(&["spec.minAvailable"])?;
        c.post(&path, &budget("a", json!({"maxUnavailable": bound})))
            .await?
            .invalid(&["spec.maxUnavailable"])?;
    }
    let both = json!({"minAvailable": 1, "maxUnavailable": 1});
    c.post(&path, &budget("a", both)).await?.invalid(&["spec"])?;
    c.post(&path, &budget("a", json!({"minAvailable": true}))).await?.fails(400, "BadRequest")?;
    c.post(&path, &budget("a", json!({"minAvailable": "100%"}))).await?.ok(201)?;
    // Setting neither is valid and allows no disruption.
    c.post(&path, &budget("b", json!({}))).await?.ok(201).map(drop)
}

async fn selectors_are_checked(c: &Ctx) -> Result<()> {
    let path = c.path(BUDGETS);
    let selector = |selector: Value| budget("a", json!({"minAvailable": 1, "selector": selector}));
    let labels = |key: &str, value: &str| selector(json!({"matchLabels": {key: value}}));
    c.post(&path, &labels("a b", "x")).await?.invalid(&["spec.selector.matchLabels"])?;
    c.post(&path, &labels("app", "x y")).await?.invalid(&["spec.selector.matchLabels"])?;
    let expression = |e: Value| selector(json!({"matchExpressions": [e]}));
    let field = |name: &str| format!("spec.selector.matchExpressions[0].{name}");
    let none = expression(json!({"key": "app", "operator": "In"}));
    c.post(&path, &none).await?.invalid(&[&field("values")])?;
    let some = expression(json!({"key": "app", "operator": "Exists", "values": ["x"]}));
    c.post(&path, &some).await?.invalid(&[&field("values")])?;
    let unknown = expression(json!({"key": "app", "operator": "Near", "values": ["x"]}));
    c.post(&path, &unknown).await?.invalid(&[&field("operator")])?;
    let nameless = expression(json!({"key": "", "operator": "Exists"}));
    c.post(&path, &nameless).await?.invalid(&[&field("key")]).map(drop)
}

async fn policies_are_checked(c: &Ctx) -> Result<()> {
    let path = c.path(BUDGETS);
    let with_policy =
        |policy: &str| budget("a", json!({"minAvailable": 1, "unhealthyPodEvictionPolicy": policy}));
    for wrong in ["Never", ""] {
        c.post(&path, &with_policy(wrong)).await?.invalid(&["spec.unhealthyPodEvictionPolicy"])?;
    }
    let made = c.post(&path, &with_policy("AlwaysAllow")).await?.ok(201)?;
    is(&made, "/spec/unhealthyPodEvictionPolicy", "AlwaysAllow")
}

async fn status_is_checked(c: &Ctx) -> Result<()> {
    let path = make(c, "a", json!({"minAvailable": 1})).await?;
    let negative = json!({"status": {"disruptionsAllowed": -1}});
    c.merge(&format!("{path}/status"), negative).await?.invalid(&["status.disruptionsAllowed"])?;
    // Neither part can be changed through the other.
    let both = json!({"spec": {"minAvailable": 5}, "status": {"expectedPods": 7}});
    let patched = c.merge(&format!("{path}/status"), both.clone()).await?.ok(200)?;
    is(&patched, "/spec/minAvailable", 1)?;
    is(&patched, "/status/expectedPods", 7)?;
    let patched = c.merge(&path, both).await?.ok(200)?;
    is(&patched, "/spec/minAvailable", 5)
}

async fn put_needs_a_version(c: &Ctx) -> Result<()> {
    let path = make(c, "a", json!({"minAvailable": 1})).await?;
    let body = budget("a", json!({"minAvailable": 2}));
    c.put(&path, &body).await?.invalid(&["metadata.resourceVersion"]).map(drop)
}

async fn selector_is_patched_as_a_whole(c: &Ctx) -> Result<()> {
    let path = make(c, "a", json!({"minAvailable": 1})).await?;
    let patch = json!({"spec": {"selector": {"matchLabels": {"tier": "b"}}}});
    let patched = c.strategic(&path, patch.clone()).await?.ok(200)?;
    is(&patched, "/spec/selector", json!({"matchLabels": {"tier": "b"}}))?;
    let merged =
        c.merge(&path, json!({"spec": {"selector": {"matchLabels": {"app": "a"}}}})).await?.ok(200)?;
    is(&merged, "/spec/selector", json!({"matchLabels": {"app": "a", "tier": "b"}}))
}

async fn new_generation_is_observed(c: &Ctx) -> Result<()> {
    let path = make(c, "a", json!({"minAvailable": 1})).await?;
    counts(c, &path, [0, 1, 0, 0]).await?;
    let patched = c.merge(&path, json!({"spec": {"minAvailable": 2}})).await?.ok(200)?;
    is(&patched, "/metadata/generation", 2)?;
    let counted = counts(c, &path, [0, 2, 0, 0]).await?;
    let allowed = condition(&counted, "DisruptionAllowed").cloned().unwrap_or_default();
    is(&allowed, "/observedGeneration", 2)
}

async fn ready_pods_are_healthy(c: &Ctx) -> Result<()> {
    let path = make(c, "a", json!({"minAvailable": 1})).await?;
    running(c, "p", true, json!({})).await?;
    running(c, "q", true, json!({})).await?;
    let third = running(c, "r", false, json!({})).await?;
    let counted = counts(c, &path, [3, 1, 2, 1]).await?;
    let allowed = condition(&counted, "DisruptionAllowed").cloned().unwrap_or_default();
    is(&allowed, "/status", "True")?;
    is(&allowed, "/reason", "SufficientPods")?;
    is(&allowed, "/message", "")?;
    ensure!(counted["status"].get("disruptedPods").is_none(), "{}", counted["status"]);
    say(c, &third, "Running", true).await?;
    counts(c, &path, [3, 1, 3, 2]).await?;
    c.merge(&path, json!({"spec": {"minAvailable": 3}})).await?.ok(200)?;
    let counted = counts(c, &path, [3, 3, 3, 0]).await?;
    let allowed = condition(&counted, "DisruptionAllowed").cloned().unwrap_or_default();
    is(&allowed, "/status", "False")?;
    is(&allowed, "/reason", "InsufficientPods")
}

async fn empty_selector_is_all_and_none_is_nothing(c: &Ctx) -> Result<()> {
    running(c, "p", true, json!({})).await?;
    running(c, "q", true, json!({"metadata": {"labels": {"app": "other"}}})).await?;
    let all = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "all"},
        "spec": {"minAvailable": 0, "selector": {}}});
    let made = c.create(&c.path(BUDGETS), all).await?;
    is(&made, "/spec/selector", json!({}))?;
    counts(c, &c.path(&format!("{BUDGETS}/all")), [2, 0, 2, 2]).await?;
    let path = make(c, "none", json!({"minAvailable": 0, "selector": null})).await?;
    counts(c, &path, [0, 0, 0, 0]).await?;
    let others = json!({"matchLabels": null, "matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["a"]}]});
    let path = make(c, "others", json!({"minAvailable": 0, "selector": others})).await?;
    counts(c, &path, [1, 0, 1, 1]).await.map(drop)
}

async fn percentage_of_pods_of_nobody(c: &Ctx) -> Result<()> {
    running(c, "p", true, json!({})).await?;
    running(c, "q", true, json!({})).await?;
    let share = make(c, "share", json!({"minAvailable": "50%"})).await?;
    counts(c, &share, [0, 0, 2, 0]).await?;
    let missing = make(c, "missing", json!({"maxUnavailable": 1})).await?;
    counts(c, &missing, [0, 0, 2, 0]).await.map(drop)
}

/// Creates a workload that is being deleted and held by a finalizer, so that its controller ignores it; returns it as
/// an owner reference.
async fn held(c: &Ctx, resource: &str, name: &str, body: Value) -> Result<Value> {
    let path = c.path(&format!("apps/v1/{resource}"));
    let held = json!({"metadata": {"finalizers": ["example.com/hold"]}, "spec": {"replicas": 0}});
    let kind = json!({"kind": body["kind"], "apiVersion": "apps/v1"});
    c.create(&path, with(with(objects::deployment(name), body), with(held, kind))).await?;
    let path = format!("{path}/{name}");
    c.delete_with(&path, json!({"propagationPolicy": "Background"})).await?;
    Ok(with(owned_by(&c.read(&path).await?), json!({"controller": true})))
}

async fn resize(c: &Ctx, resource: &str, name: &str, replicas: u32) -> Result<()> {
    let path = c.path(&format!("apps/v1/{resource}/{name}"));
    c.merge(&path, json!({"spec": {"replicas": replicas}})).await?.ok(200).map(drop)
}

async fn share_of_a_replica_set(c: &Ctx) -> Result<()> {
    let owner = held(c, "replicasets", "set", json!({"kind": "ReplicaSet"})).await?;
    resize(c, "replicasets", "set", 5).await?;
    let owned = json!({"metadata": {"ownerReferences": [owner]}});
    for name in ["p", "q", "r"] {
        running(c, name, true, owned.clone()).await?;
    }
    // Five replicas are wanted and three exist: the percentage applies to five, rounded up.
    let path = make(c, "share", json!({"minAvailable": "30%"})).await?;
    counts(c, &path, [5, 2, 3, 1]).await?;
    let path = make(c, "missing", json!({"maxUnavailable": "30%"})).await?;
    counts(c, &path, [5, 3, 3, 0]).await?;
    let path = make(c, "few", json!({"maxUnavailable": 7})).await?;
    counts(c, &path, [5, 0, 3, 3]).await?;
    let path = make(c, "number", json!({"minAvailable": 2})).await?;
    counts(c, &path, [3, 2, 3, 1]).await.map(drop)
}

async fn share_of_a_stateful_set(c: &Ctx) -> Result<()> {
    let spec = json!({"serviceName": "a"});
    let owner = held(c, "statefulsets", "set", json!({"kind": "StatefulSet", "spec": spec})).await?;
    resize(c, "statefulsets", "set", 4).await?;
    let made = c.read(&c.path("apps/v1/statefulsets/set")).await?;
    is(&made, "/spec/podManagementPolicy", "OrderedReady")?;
    is(&made, "/spec/updateStrategy", json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}))?;
    running(c, "p", true, json!({"metadata": {"ownerReferences": [owner]}})).await?;
    let path = make(c, "share", json!({"maxUnavailable": "75%"})).await?;
    counts(c, &path, [4, 1, 1, 0]).await.map(drop)
}

async fn share_of_a_deployment(c: &Ctx) -> Result<()> {
    let above = held(c, "deployments", "deploy", json!({"kind": "Deployment"})).await?;
    resize(c, "deployments", "deploy", 6).await?;
    let body = json!({"kind": "ReplicaSet", "metadata": {"ownerReferences": [above]}});
    let one = held(c, "replicasets", "one", body.clone()).await?;
    resize(c, "replicasets", "one", 4).await?;
    let two = held(c, "replicasets", "two", body).await?;
    running(c, "p", true, json!({"metadata": {"ownerReferences": [one]}})).await?;
    running(c, "q", true, json!({"metadata": {"ownerReferences": [two]}})).await?;
    // The replicas of the Deployment count, once.
    let path = make(c, "share", json!({"maxUnavailable": 5})).await?;
    counts(c, &path, [6, 1, 2, 1]).await.map(drop)
}

async fn controller_without_a_size(c: &Ctx) -> Result<()> {
    let (_, map) = c.config_map("owner").await?;
    let owner = with(owned_by(&map), json!({"apiVersion": "v1", "kind": "ConfigMap", "controller": true}));
    running(c, "p", true, json!({"metadata": {"ownerReferences": [owner]}})).await?;
    let path = make(c, "share", json!({"maxUnavailable": 1})).await?;
    let failed = |budget: &Value| {
        condition(budget, "DisruptionAllowed")
            .is_some_and(|c| c["reason"] == "SyncFailed" && c["status"] == "False")
    };
    let failed = c.until(&path, failed).await?;
    is(&failed, "/status/disruptionsAllowed", 0)?;
    // Absolute numbers can still be evaluated.
    let path = make(c, "number", json!({"minAvailable": 0})).await?;
    counts(c, &path, [1, 0, 1, 1]).await.map(drop)
}
