//! Seeds with remediation: machines are broken, pods have a disruption budget, stand-ins replace deleted machines,
//! and users pause, change and delete the policy.

#![allow(dead_code, reason = "each test file uses only a part of it")]

mod history;
pub mod invariants;
pub mod sabotage;
pub mod wanted;
mod windows;

use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use nodekeeper_sim::Cluster;
use nodekeeper_sim::actors::cloud::{Flaws, Group};
use nodekeeper_sim::cluster::Local;
use nodekeeper_sim::harness::Scenario;
use nodekeeper_sim::network::Fault;
use nodekeeper_sim::object::{at, condition_status, is_true, items, name, set, take, text, uid};
use nodekeeper_sim::store::Change;
use nodekeeper_sim::value::{Value, json};

use crate::gate::{self, dice, taint};

const API: &str = "nodekeeper.dev/v1alpha1";
pub const POLICIES: &str = "nodekeeper.dev/remediationpolicies";
pub const REMEDIATIONS: &str = "nodekeeper.dev/noderemediations";
pub const CLAIMS: &str = "karpenter.sh/nodeclaims";
const OPT_OUT: &str = "nodekeeper.dev/do-not-disrupt";

/// The gate's scenario with `onFailure: Replace`.
pub fn scenario() -> Scenario {
    Scenario {
        invariants: invariants::all,
        setup,
        karpenter: vec![group("claimed", 4)],
        autoscaled: vec![group("grouped", 3)],
        user_action,
        count_as,
        heal,
        // Long enough for recovery after an outage, a drain timeout, and the removal of control workers.
        settle_duration: Duration::from_mins(7),
        ..gate::scenario()
    }
}

/// Every third of the first nine machines never passes.
fn group(name: &str, size: usize) -> Group {
    let flaws = Flaws::of(|n| if n < 9 && n.is_multiple_of(3) { vec![Fault::Dns] } else { Vec::new() });
    let zones = ["a", "b", "c"].map(str::to_owned).to_vec();
    Group { name: name.into(), size, zones, taints: vec![taint()], flaws, ..Group::default() }
}

fn setup(cluster: &Cluster) {
    gate::setup_of_a_run(cluster);
    let user = cluster.local("setup");
    enable_replacement(&user);
    let set = json!({"metadata": {"name": "web"}, "spec": {"selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [
            {"name": "main", "image": "example.com/web:1"}]}}}});
    user.create("apps/v1", "ReplicaSet", "default", set).expect("it is valid");
    let budget = json!({"metadata": {"name": "web"},
        "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "web"}}}});
    user.create("policy/v1", "PodDisruptionBudget", "default", budget).expect("it is valid");
    create_policy(&user).expect("it is valid");
}

fn enable_replacement(user: &Local) -> Option<&'static str> {
    let gate = user.get("nodekeeper.dev/nodegates", "", "default")?;
    if text(&gate, "spec.onFailure") == "Replace" {
        return None;
    }
    let changed = user.change(&gate, None, |gate| {
        set(gate, "spec.onFailure", json!("Replace"));
        // Short enough that a node whose workers never come to a verdict is stuck within a run.
        set(gate, "spec.onStuck", json!("Replace"));
        set(gate, "spec.deadlines", json!({"workerSeconds": 45, "gateSeconds": 60}));
        set(gate, "spec.retry", json!({"maxRetries": 1, "recheckPeriodSeconds": 20}));
    });
    changed.ok().map(|_| "gate requests replacement")
}

/// Removes the taint of a node by hand; if possible of one that is about to be replaced.
fn free_node(user: &Local, random: &mut fastrand::Rng) -> Option<&'static str> {
    let requests = user.all(REMEDIATIONS);
    let is_requested = |node: &Value| requests.iter().any(|request| name(request) == uid(node));
    let gated: Vec<_> =
        user.all("nodes").into_iter().filter(|node| gate::invariants::is_gated(node)).collect();
    let requested: Vec<_> = gated.iter().filter(|node| is_requested(node)).collect();
    let node = match requested.get(random.usize(..requested.len().max(1))) {
        Some(node) => *node,
        None => gated.get(random.usize(..gated.len().max(1)))?,
    };
    let kept: Vec<Value> =
        items(node, "spec.taints").iter().filter(|one| one["key"] != taint()["key"]).cloned().collect();
    user.change(node, None, |node| set(node, "spec.taints", json!(kept)))
        .ok()
        .map(|_| "taint removed by user")
}

/// The gate keeps its nodes from now on: those that fail, or those that are stuck.
fn stop_replacement(user: &Local, random: &mut fastrand::Rng) -> Option<&'static str> {
    let gate = user.get("nodekeeper.dev/nodegates", "", "default")?;
    let (field, what) = if random.bool() {
        ("spec.onFailure", "gate keeps its nodes")
    } else {
        ("spec.onStuck", "gate keeps stuck nodes")
    };
    let changed = user.change(&gate, None, |gate| set(gate, field, json!("KeepTainted")));
    changed.ok().map(|_| what)
}

/// Changes or deletes the gate of a node whose replacement is requested or approved.
fn disturb_gate(user: &Local, random: &mut fastrand::Rng) -> Option<&'static str> {
    let request = choose_request(user, random)?;
    let cause = items(&request, "spec.causes").iter().find(|cause| text(cause, "source") == "Gate")?;
    let gate = user.get("nodekeeper.dev/nodegates", "", text(cause, "name"))?;
    let what = if random.u8(0..4) == 0 {
        gate::remake_gate(user, &gate, random)
    } else {
        gate::change_gate(user, &gate, random)
    };
    what.map(|_| "gate of a requested replacement changed")
}

/// A remediation that has not ended; an approved one, if there are any.
fn choose_request(user: &Local, random: &mut fastrand::Rng) -> Option<Arc<Value>> {
    let mut requests = user.all(REMEDIATIONS);
    requests.retain(|request| !matches!(condition_status(request, "Succeeded"), "True" | "False"));
    if requests.iter().any(is_approved) {
        requests.retain(is_approved);
    }
    random.choice(requests)
}

fn is_approved(request: &Arc<Value>) -> bool {
    condition_status(request, "Approved") == "True"
}

/// Times are short enough for a run of ten minutes. Every eighth run is a dry run.
fn create_policy(user: &Local) -> Option<&'static str> {
    let enforcement = if dice(user, 8) == 0 { "DryRun" } else { "Enforce" };
    let body = json!({"apiVersion": API, "kind": "RemediationPolicy", "metadata": {"name": "default"}, "spec": {
        "enforcement": enforcement,
        "budget": {"maxInFlightPerGroup": 2, "maxInFlightPerZone": 2, "maxInFlight": 3, "maxPerHour": 6, "maxGroupPercentPerHour": 100},
        "breaker": {"openPercent": 100},
        "controlGroup": {"recoverySeconds": 30},
        "evidenceSeconds": 120,
        "deleteNodeObjectFor": [{"source": "Gate", "name": "default"}],
        "windows": windows::of_a_run(user),
        "drain": {"timeoutSeconds": 60, "podOvertimeSeconds": 30},
    }});
    user.create(API, "RemediationPolicy", "", body).ok().map(|_| "policy created")
}

fn count_as(change: &Change) -> Option<&'static str> {
    let is_ours = change.user.starts_with("replica-");
    match change.collection.as_str() {
        "nodes" if is_ours && change.deleted().is_some() => Some("Nodes deleted"),
        CLAIMS if is_ours && change.deleted().is_some() => Some("NodeClaims deleted"),
        "pods" if is_ours && change.is_eviction() => Some("pods evicted"),
        "nodes" if is_ours && history::is_cordon(change) => Some("nodes cordoned"),
        REMEDIATIONS if is_ours && wanted::is_for_a_stuck_node(change) => Some("stuck nodes reported"),
        REMEDIATIONS if is_ours && change.before.is_none() => Some("remediations requested"),
        _ => gate::count_as(change),
    }
}

/// Removes what blocks evictions.
fn heal(user: &Local) {
    gate::heal(user);
    for budget in user.all("policy/poddisruptionbudgets") {
        user.delete(&budget, None).expect("it is there");
    }
    // A pod that bypassed the scheduler may never have started.
    for pod in user.all("pods").iter().filter(|pod| is_web(pod)) {
        let _ = user.delete(pod, Some(0));
    }
}

pub fn is_web(pod: &Value) -> bool {
    pod["metadata"]["labels"]["app"] == "web"
}

fn user_action(user: &Local, random: &mut fastrand::Rng) -> Option<&'static str> {
    let nodes = user.all("nodes");
    let node = nodes.get(random.usize(..nodes.len().max(1)))?;
    match random.u8(0..21) {
        0..=3 => gate::user_action(user, random),
        4..=6 => deploy(user, node, random),
        7 => enable_replacement(user),
        8 => opt_out(user, node, random),
        9 => request_remediation(user, node, random),
        10 | 11 => delete_policy_or_request(user, random),
        12 => free_node(user, random),
        13 => stop_replacement(user, random),
        14 => toggle_second_budget(user),
        15 | 16 => disturb_gate(user, random),
        _ => change_policy(user, random),
    }
}

/// A pod with two budgets cannot be evicted: the API server answers 500.
fn toggle_second_budget(user: &Local) -> Option<&'static str> {
    if let Some(budget) = user.get("policy/poddisruptionbudgets", "default", "web-too") {
        return user.delete(&budget, None).ok().map(|_| "second budget deleted");
    }
    let budget = json!({"metadata": {"name": "web-too"},
        "spec": {"minAvailable": 0, "selector": {"matchLabels": {"app": "web"}}}});
    let created = user.create("policy/v1", "PodDisruptionBudget", "default", budget);
    created.ok().map(|_| "second budget created")
}

/// A pod of an application on a random node, and more often on one that is to be replaced: only a drain that takes time can be
/// disturbed.
fn deploy(user: &Local, node: &Value, random: &mut fastrand::Rng) -> Option<&'static str> {
    let requested = choose_request(user, random).filter(|_| random.u8(0..4) > 0);
    let requested = requested.and_then(|one| user.get("nodes", "", text(&one, "spec.node.name")));
    let node = requested.as_deref().unwrap_or(node);
    let owner = user.get("apps/replicasets", "default", "web")?;
    let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": uid(&owner), "controller": true});
    let body = json!({
        "metadata": {"name": format!("web-{:08x}", random.u32(..)), "labels": {"app": "web"}, "ownerReferences": [owner]},
        "spec": {"nodeName": name(node), "containers": [
            {"name": "main", "image": "example.com/web:1", "command": ["serve"]}]}});
    user.create("v1", "Pod", "default", body).ok().map(|_| "pod deployed")
}

/// A node that is cordoned is probably being replaced, and is preferred.
fn opt_out(user: &Local, node: &Value, random: &mut fastrand::Rng) -> Option<&'static str> {
    let cordoned = user.all("nodes").into_iter().find(|node| is_true(node, "spec.unschedulable"));
    let cordoned = cordoned.filter(|_| random.bool());
    let node = cordoned.as_deref().unwrap_or(node);
    let mut all = at(node, "metadata.annotations").cloned().unwrap_or_else(|| json!({}));
    let map = all.as_object_mut()?;
    let what = if map.remove(OPT_OUT).is_some() {
        "node opted in again"
    } else {
        map.insert(OPT_OUT, "true");
        if cordoned.is_some() { "cordoned node opted out" } else { "node opted out" }
    };
    user.change(node, None, |node| set(node, "metadata.annotations", all)).ok().map(|_| what)
}

/// A person requests it, or a recycler, in half of the cases for something that it saw too long ago.
fn request_remediation(user: &Local, node: &Value, random: &mut fastrand::Rng) -> Option<&'static str> {
    let mut cause = json!({"source": "Person", "name": "user", "message": "it is old"});
    let is_recycler = random.bool();
    if is_recycler {
        let age = SignedDuration::from_mins(if random.bool() { 0 } else { 15 });
        let at = (user.cluster().clock().now() - age).to_string();
        cause = json!({"source": "Recycler", "name": "events", "message": "OOM", "observedAt": at});
    }
    let body = json!({"apiVersion": API, "kind": "NodeRemediation", "metadata": {"name": uid(node)}, "spec": {
        "node": {"name": name(node), "uid": uid(node), "bootID": text(node, "status.nodeInfo.bootID")},
        "causes": [cause]}});
    let what =
        if is_recycler { "remediation requested by recycler" } else { "remediation requested by user" };
    user.create(API, "NodeRemediation", "", body).ok().map(|_| what)
}

/// Deletes the policy in half of all runs and remediations in the others: the budget is lost only if both are
/// deleted.
fn delete_policy_or_request(user: &Local, random: &mut fastrand::Rng) -> Option<&'static str> {
    if dice(user, 2) == 0 {
        let request = choose_request(user, random)?;
        let what = if is_approved(&request) {
            "approved remediation deleted by user"
        } else {
            "remediation deleted by user"
        };
        return user.delete(&request, None).ok().map(|_| what);
    }
    match user.get(POLICIES, "", "default") {
        Some(policy) => user.delete(&policy, None).ok().map(|_| "policy deleted"),
        None => create_policy(user),
    }
}

fn change_policy(user: &Local, random: &mut fastrand::Rng) -> Option<&'static str> {
    let Some(policy) = user.get(POLICIES, "", "default") else { return create_policy(user) };
    let choice = random.u8(0..8);
    let (few, more, seconds) = (random.i64(0..4), random.i64(0..9), random.i64(60..300));
    // Longer than any clock jump.
    let until = (user.cluster().clock().now() + SignedDuration::from_hours(1)).to_string();
    let is_paused = at(&policy, "spec.pause").is_some();
    let is_dry = text(&policy, "spec.enforcement") == "DryRun";
    let changed = user.change(&policy, None, |policy| match choice {
        0 | 1 if is_paused => drop(take(policy, "spec.pause")),
        0 | 1 => set(policy, "spec.pause", json!({"reason": "a change", "until": until})),
        2 | 3 => set(policy, "spec.budget.maxPerHour", json!(more)),
        4 => set(policy, "spec.budget.maxInFlight", json!(few)),
        5 => set(policy, "spec.evidenceSeconds", json!(seconds)),
        _ => set(policy, "spec.enforcement", json!(if is_dry { "Enforce" } else { "DryRun" })),
    });
    changed.ok().map(|_| match choice {
        0 | 1 if is_paused => "policy resumed",
        0 | 1 => "policy paused",
        2..=4 => "budget changed",
        5 => "policy changed",
        _ if is_dry => "policy enforced",
        _ => "policy in dry-run",
    })
}

fn reserved(policy: &Value) -> impl Iterator<Item = &Value> {
    items(policy, "status.reservations").iter()
}
