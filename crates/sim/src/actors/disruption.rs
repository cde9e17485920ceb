//! The disruption controller: it counts the pods of each PodDisruptionBudget and sets `disruptionsAllowed`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::value::{Map, Value, json};
use jiff::{SignedDuration, Timestamp};
use tokio::time::{Instant, sleep, timeout_at};

use super::REACTION_TIME;
use crate::api::{BUDGETS, Labels, set_disruption_allowed};
use crate::clock::{after, time};
use crate::cluster::Local;
use crate::object::{
    at, condition, condition_status, is_deleting, is_true, items, name, namespace, number, set,
    set_condition, text, uid,
};
use crate::registry::percent;

/// A pod that was evicted but not deleted within this time counts as healthy again.
const DELETION_TIMEOUT: SignedDuration = SignedDuration::from_mins(2);

pub(super) async fn run(api: Local) {
    let mut changes = api.watch(&[BUDGETS, "pods"]);
    loop {
        let due = api.all(BUDGETS).iter().filter_map(|budget| sync(&api, budget)).min();
        match due {
            Some(due) => drop(timeout_at(due, changes.next()).await),
            None => drop(changes.next().await),
        }
        sleep(REACTION_TIME).await;
        changes.drain();
    }
}

/// Updates the status of a budget. Returns when to sync it again without a change.
fn sync(api: &Local, budget: &Arc<Value>) -> Option<Instant> {
    let now = api.cluster().clock().now();
    let labels = Labels::of(at(budget, "spec.selector"));
    let guarded = |pod: &Arc<Value>| {
        namespace(pod) == namespace(budget) && labels.as_ref().is_some_and(|labels| labels.matches(pod))
    };
    let pods: Vec<Arc<Value>> = api.all("pods").into_iter().filter(guarded).collect();
    let (expected, desired) = match count_expected(api, budget, &pods) {
        Ok(counts) => counts,
        Err(why) => {
            fail_safe(api, budget, &why, now);
            return None;
        }
    };
    let pending = pending_disruptions(budget, &pods, now);
    let is_healthy = |pod: &&Arc<Value>| {
        !is_deleting(pod) && !pending.contains_key(name(pod)) && condition_status(pod, "Ready") == "True"
    };
    let healthy = i64::try_from(pods.iter().filter(is_healthy).count()).unwrap_or(i64::MAX);
    let allowed = if expected > 0 { (healthy - desired).max(0) } else { 0 };
    let recheck = pending.values().filter_map(|since| since.as_str()?.parse::<Timestamp>().ok()).min();
    let recheck = recheck.and_then(|since| since.checked_add(DELETION_TIMEOUT).ok());
    let _ = api.change(budget, Some("status"), |budget| {
        let observed = budget["metadata"]["generation"].clone();
        for (field, value) in [
            ("currentHealthy", json!(healthy)),
            ("desiredHealthy", json!(desired)),
            ("expectedPods", json!(expected)),
            ("disruptionsAllowed", json!(allowed)),
            ("observedGeneration", observed),
            ("disruptedPods", Value::Object(pending)),
        ] {
            set(budget, &format!("status.{field}"), value);
        }
        set_disruption_allowed(budget, now);
    });
    recheck.map(|at| after(Instant::now(), Duration::try_from(at.duration_since(now)).unwrap_or_default()))
}

/// The `disruptedPods` that are not being deleted yet.
fn pending_disruptions(budget: &Value, pods: &[Arc<Value>], now: Timestamp) -> Map {
    let let_go = at(budget, "status.disruptedPods").and_then(Value::as_object);
    let is_going = |(pod, since): &(&str, &Value)| {
        let since: Option<Timestamp> = since.as_str().and_then(|s| s.parse().ok());
        let end = since.and_then(|since| since.checked_add(DELETION_TIMEOUT).ok());
        let there = pods.iter().any(|p| name(p) == *pod && !is_deleting(p));
        there && end.is_some_and(|end| end > now)
    };
    let let_go = let_go.into_iter().flatten().filter(is_going);
    let_go.map(|(pod, since)| (pod, since.clone())).collect()
}

/// The expected and the desired healthy number of pods.
fn count_expected(api: &Local, budget: &Value, pods: &[Arc<Value>]) -> Result<(i64, i64), String> {
    if let Some(bound) = at(budget, "spec.maxUnavailable") {
        let expected = expected_scale(api, pods)?;
        return Ok((expected, (expected - resolve_bound(bound, expected)).max(0)));
    }
    match at(budget, "spec.minAvailable") {
        Some(bound @ Value::String(_)) => {
            let expected = expected_scale(api, pods)?;
            Ok((expected, resolve_bound(bound, expected)))
        }
        Some(bound) => Ok((i64::try_from(pods.len()).unwrap_or(i64::MAX), bound.as_i64().unwrap_or(0))),
        None => Ok((0, 0)),
    }
}

/// Percentages round up.
fn resolve_bound(bound: &Value, total: i64) -> i64 {
    let percentage = bound.as_str().and_then(percent);
    percentage.map_or_else(|| bound.as_i64().unwrap_or(0), |p| (p * total + 99) / 100)
}

/// The sum of the replicas of the pods' controllers. Pods without a controller do not count.
fn expected_scale(api: &Local, pods: &[Arc<Value>]) -> Result<i64, String> {
    let mut scales: BTreeMap<String, i64> = BTreeMap::new();
    for pod in pods {
        let Some(owner) = controller_of(pod) else { continue };
        let (id, replicas) = controller_scale(api, owner, namespace(pod))
            .ok_or_else(|| format!("found no controllers for pod {:?}", name(pod)))?;
        scales.insert(id, replicas);
    }
    Ok(scales.values().sum())
}

fn controller_of(object: &Value) -> Option<&Value> {
    items(object, "metadata.ownerReferences").iter().find(|owner| is_true(owner, "controller"))
}

/// The uid and the replicas of a controller, or of the Deployment that owns it.
fn controller_scale(api: &Local, owner: &Value, space: &str) -> Option<(String, i64)> {
    let collection = match (text(owner, "apiVersion"), text(owner, "kind")) {
        ("apps/v1", "ReplicaSet") => "apps/replicasets",
        ("apps/v1", "StatefulSet") => "apps/statefulsets",
        ("apps/v1", "Deployment") => "apps/deployments",
        // Custom kinds with a `scale` subresource are not served here.
        _ => return None,
    };
    let set = api.get(collection, space, text(owner, "name")).filter(|set| uid(set) == text(owner, "uid"))?;
    match controller_of(&set).filter(|above| text(above, "kind") == "Deployment") {
        Some(above) => controller_scale(api, above, space),
        None => Some((uid(&set).to_owned(), number(&set, "spec.replicas").unwrap_or(1))),
    }
}

/// Allows no disruption of a budget that cannot be counted.
fn fail_safe(api: &Local, budget: &Value, why: &str, now: Timestamp) {
    if condition(budget, "DisruptionAllowed").is_some_and(|c| text(c, "message") == why) {
        return;
    }
    let _ = api.change(budget, Some("status"), |budget| {
        set(budget, "status.disruptionsAllowed", json!(0));
        let failed = json!({"type": "DisruptionAllowed", "status": "False", "reason": "SyncFailed", "message": why,
            "observedGeneration": number(budget, "status.observedGeneration").unwrap_or(0)});
        set_condition(budget, failed, &time(now));
    });
}
