//! The seeds in which nodes are replaced: the gate wants it, machines come broken, pods have a budget, stand-ins make
//! up for what is deleted, and people pause, change and lose the policy.

// Each test file takes what it needs of this.
#![allow(dead_code)]

pub mod invariants;
mod ledger;
pub mod sabotage;

use std::time::Duration;

use jiff::SignedDuration;
use nodekeeper_sim::Cluster;
use nodekeeper_sim::actors::cloud::{Flaws, Group};
use nodekeeper_sim::cluster::Local;
use nodekeeper_sim::harness::Scenario;
use nodekeeper_sim::network::Fault;
use nodekeeper_sim::object::{at, items, name, set, take, text, uid};
use nodekeeper_sim::store::Change;
use serde_json::{Value, json};

use crate::gate::{self, taint};

const API: &str = "nodekeeper.dev/v1alpha1";
pub const POLICIES: &str = "nodekeeper.dev/remediationpolicies";
pub const REQUESTS: &str = "nodekeeper.dev/noderemediations";
pub const CLAIMS: &str = "karpenter.sh/nodeclaims";
const OPT_OUT: &str = "nodekeeper.dev/do-not-disrupt";

/// As the gate's own, and what never passes is replaced.
pub fn scenario() -> Scenario {
    Scenario {
        invariants: invariants::all,
        furnish,
        karpenter: vec![group("claimed", 4)],
        autoscaled: vec![group("grouped", 3)],
        meddle,
        notable,
        heal,
        // Long enough for what is down to be found well, for a drain to be given up, and for comparisons to be cleared.
        calm: Duration::from_mins(7),
        ..gate::scenario()
    }
}

/// Every third machine of the first nine never passes.
fn group(name: &str, size: usize) -> Group {
    let flaws = Flaws::of(|n| if n < 9 && n.is_multiple_of(3) { vec![Fault::Dns] } else { Vec::new() });
    let zones = ["a", "b", "c"].map(str::to_owned).to_vec();
    Group { name: name.into(), size, zones, taints: vec![taint()], flaws, ..Group::default() }
}

/// What is the same for a whole run, and another in the next.
fn dice(somebody: &Local, sides: u64) -> u64 {
    let namespace = somebody.get("namespaces", "", "kube-system").expect("every cluster has it");
    uid(&namespace).bytes().map(u64::from).sum::<u64>() % sides
}

fn furnish(cluster: &Cluster) {
    gate::furnish(cluster);
    let somebody = cluster.local("setup");
    want_replacement(&somebody);
    let set = json!({"metadata": {"name": "web"}, "spec": {"selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [
            {"name": "main", "image": "example.com/web:1"}]}}}});
    somebody.create("apps/v1", "ReplicaSet", "default", set).expect("it is valid");
    let budget = json!({"metadata": {"name": "web"},
        "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "web"}}}});
    somebody.create("policy/v1", "PodDisruptionBudget", "default", budget).expect("it is valid");
    make_policy(&somebody).expect("it is valid");
}

fn want_replacement(somebody: &Local) -> Option<&'static str> {
    let gate = somebody.get("nodekeeper.dev/nodegates", "", "default")?;
    if text(&gate, "spec.onFailure") == "Replace" {
        return None;
    }
    let changed = somebody.change(&gate, None, |gate| {
        set(gate, "spec.onFailure", json!("Replace"));
        set(gate, "spec.retry", json!({"maxRetries": 1, "recheckPeriodSeconds": 20}));
    });
    changed.ok().map(|_| "gate wants nodes replaced")
}

/// So short that there is something to see in ten minutes. In every eighth run nothing is to be done at all.
fn make_policy(somebody: &Local) -> Option<&'static str> {
    let enforcement = if dice(somebody, 8) == 0 { "DryRun" } else { "Enforce" };
    let body = json!({"apiVersion": API, "kind": "RemediationPolicy", "metadata": {"name": "default"}, "spec": {
        "enforcement": enforcement,
        "budget": {"inFlightPerGroup": 2, "inFlightPerZone": 2, "inFlight": 3, "perHour": 6, "groupPercent": 100},
        "breaker": {"openPercent": 100},
        "controlGroup": {"recoverySeconds": 30},
        "evidenceSeconds": 120,
        "deleteNodeObjectFor": ["default"],
        "drain": {"totalSeconds": 60, "podSeconds": 30},
    }});
    somebody.create(API, "RemediationPolicy", "", body).ok().map(|_| "policy made")
}

/// What a report counts besides what the gate's does.
fn notable(change: &Change) -> Option<&'static str> {
    let is_ours = change.writer().starts_with("replica-");
    match change.collection.as_str() {
        "nodes" if is_ours && change.deleted().is_some() => Some("Nodes deleted"),
        CLAIMS if is_ours && change.deleted().is_some() => Some("NodeClaims deleted"),
        "pods" if is_ours && change.is_eviction() => Some("pods evicted"),
        "nodes" if is_ours && ledger::is_cordon(change) => Some("nodes cordoned"),
        REQUESTS if is_ours && change.before.is_none() => Some("replacements asked for"),
        _ => gate::notable(change),
    }
}

/// Nothing is in the way of an end any more.
fn heal(somebody: &Local) {
    gate::heal(somebody);
    for budget in somebody.all("policy/poddisruptionbudgets") {
        somebody.delete(&budget, None).expect("it is there");
    }
    // What was placed past the scheduler may never have started.
    for pod in somebody.all("pods").iter().filter(|pod| is_web(pod)) {
        let _ = somebody.delete(pod, Some(0));
    }
}

pub fn is_web(pod: &Value) -> bool {
    pod["metadata"]["labels"]["app"] == "web"
}

fn meddle(somebody: &Local, random: &mut fastrand::Rng) -> Option<&'static str> {
    let nodes = somebody.all("nodes");
    let node = nodes.get(random.usize(..nodes.len().max(1)))?;
    match random.u8(0..16) {
        0..=3 => gate::meddle(somebody, random),
        4..=6 => deploy(somebody, node, random),
        7 => want_replacement(somebody),
        8 => opt_out(somebody, node),
        9 => ask(somebody, node),
        10 | 11 => lose_something(somebody, random),
        _ => change_policy(somebody, random),
    }
}

/// A pod of an application, wherever it may land.
fn deploy(somebody: &Local, node: &Value, random: &mut fastrand::Rng) -> Option<&'static str> {
    let owner = somebody.get("apps/replicasets", "default", "web")?;
    let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": uid(&owner), "controller": true});
    let body = json!({
        "metadata": {"name": format!("web-{:08x}", random.u32(..)), "labels": {"app": "web"}, "ownerReferences": [owner]},
        "spec": {"nodeName": name(node), "containers": [
            {"name": "main", "image": "example.com/web:1", "command": ["serve"]}]}});
    somebody.create("v1", "Pod", "default", body).ok().map(|_| "pod deployed")
}

fn opt_out(somebody: &Local, node: &Value) -> Option<&'static str> {
    let mut all = at(node, "metadata.annotations").cloned().unwrap_or_else(|| json!({}));
    let map = all.as_object_mut()?;
    let what = if map.remove(OPT_OUT).is_some() {
        "node opted in again"
    } else {
        map.insert(OPT_OUT.to_owned(), json!("true"));
        "node opted out"
    };
    somebody.change(node, None, |node| set(node, "metadata.annotations", all)).ok().map(|_| what)
}

/// Somebody wants a node replaced.
fn ask(somebody: &Local, node: &Value) -> Option<&'static str> {
    let body = json!({"apiVersion": API, "kind": "NodeRemediation", "metadata": {"name": uid(node)}, "spec": {
        "node": {"name": name(node), "uid": uid(node), "bootID": text(node, "status.nodeInfo.bootID")},
        "causes": [{"source": "Person", "name": "somebody", "message": "it is old"}]}});
    somebody.create(API, "NodeRemediation", "", body).ok().map(|_| "replacement asked for by somebody")
}

/// The policy in one half of all runs, requests in the other: whoever deletes both deletes all that the budget is kept by.
fn lose_something(somebody: &Local, random: &mut fastrand::Rng) -> Option<&'static str> {
    if dice(somebody, 2) == 0 {
        let requests = somebody.all(REQUESTS);
        let request = requests.get(random.usize(..requests.len().max(1)))?;
        return somebody.delete(request, None).ok().map(|_| "request deleted by somebody");
    }
    match somebody.get(POLICIES, "", "default") {
        Some(policy) => somebody.delete(&policy, None).ok().map(|_| "policy deleted"),
        None => make_policy(somebody),
    }
}

fn change_policy(somebody: &Local, random: &mut fastrand::Rng) -> Option<&'static str> {
    let Some(policy) = somebody.get(POLICIES, "", "default") else { return make_policy(somebody) };
    let choice = random.u8(0..8);
    let (few, more, seconds) = (random.i64(0..4), random.i64(0..9), random.i64(60..300));
    // Clocks jump by a minute: nobody is to think that it is over.
    let until = (somebody.cluster().clock().now() + SignedDuration::from_hours(1)).to_string();
    let is_paused = at(&policy, "spec.pause").is_some();
    let is_dry = text(&policy, "spec.enforcement") == "DryRun";
    let changed = somebody.change(&policy, None, |policy| match choice {
        0 | 1 if is_paused => drop(take(policy, "spec.pause")),
        0 | 1 => set(policy, "spec.pause", json!({"reason": "a change", "until": until})),
        2 | 3 => set(policy, "spec.budget.perHour", json!(more)),
        4 => set(policy, "spec.budget.inFlight", json!(few)),
        5 => set(policy, "spec.evidenceSeconds", json!(seconds)),
        _ => set(policy, "spec.enforcement", json!(if is_dry { "Enforce" } else { "DryRun" })),
    });
    changed.ok().map(|_| match choice {
        0 | 1 if is_paused => "policy goes on",
        0 | 1 => "policy paused",
        2..=4 => "budget changed",
        5 => "policy changed",
        _ if is_dry => "policy enforces",
        _ => "policy only looks",
    })
}

/// The acts that a policy remembers.
fn reserved(policy: &Value) -> impl Iterator<Item = &Value> {
    items(policy, "status.reservations").iter()
}
