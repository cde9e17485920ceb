//! The real controller, a gate and its workers under the harness.

#![allow(dead_code, reason = "each test file uses only a part of it")]

pub mod bench;
pub mod configuration;
pub mod events;
pub mod invariants;
mod namespace;
pub mod reports;
mod two_gates;
pub mod writes;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use nodekeeper_core::api::definitions;
use nodekeeper_core::node::VERIFY;
use nodekeeper_core::record::Record;
use nodekeeper_core::worker::Template;
use nodekeeper_operator::clock::Clock;
use nodekeeper_operator::metrics::{Format, Metrics, Options};
use nodekeeper_operator::{Settings, run};
use nodekeeper_sim::cluster::Local;
use nodekeeper_sim::harness::{Program, Scenario};
use nodekeeper_sim::object::{at, is_deleting, is_true, items, name, set, text, uid};
use nodekeeper_sim::store::Change;
use nodekeeper_sim::value::{Value, json};
use nodekeeper_sim::worker::Workers;
use nodekeeper_sim::{Cluster, network};

pub const NAMESPACE: &str = "nodekeeper-system";
pub const TAINT: &str = "node-ready/unverified";
pub const LABEL: &str = "node-ready/verified";
/// The taint of the second gate, which sets the same label.
pub const STRICT: &str = "strict.example.com/unverified";
/// The names of the gates and the keys of their taints.
pub const GATES: [(&str, &str); 2] = [("default", TAINT), ("strict", STRICT)];
/// Few, so that nodes have to wait.
pub const MAX_WORKERS: usize = 12;

/// Two replicas of the controller, a gate for every node, and in every third run a second one for half of them; ten minutes
/// of chaos.
pub fn scenario() -> Scenario {
    let program: Program = Arc::new(|replica| {
        let clock = replica.clock.clone();
        let identity = format!("{}_{:x}", replica.name, replica.seed);
        let metrics = Arc::new(Metrics::new(Options { per_node: true, ..Options::default() }));
        let served = metrics.clone();
        replica.metrics.serve(move || served.render(Format::Prometheus).unwrap_or_default());
        let objects = configuration::objects(&replica.cluster);
        let settings = Settings::new(template(), identity, replica.seed);
        let settings = Settings { most_workers: MAX_WORKERS, objects, metrics, ..settings };
        let clock = Clock::new(move || clock.now());
        Box::pin(run(replica.client, settings, clock, std::future::pending()))
    });
    Scenario {
        runtime: Arc::new(Workers),
        setup: setup_of_a_run,
        taints,
        false_label: (LABEL.into(), "true".into()),
        user_action,
        revert,
        count_as,
        heal,
        // Long enough for a crash, a failover, and the longest recheck period.
        settle_duration: Duration::from_mins(4),
        ..Scenario::new(program, invariants::all)
    }
}

pub fn template() -> Template {
    Template {
        namespace: NAMESPACE.into(),
        image: "nodekeeper.local/worker:1".into(),
        service_account: "nodekeeper-worker".into(),
        ..Template::default()
    }
}

pub fn taint() -> Value {
    taint_of(TAINT)
}

pub fn taint_of(key: &str) -> Value {
    json!({"key": key, "value": "true", "effect": "NoSchedule"})
}

/// A number that is constant for a run and differs between runs.
pub fn dice(user: &Local, sides: u64) -> u64 {
    let namespace = user.get("namespaces", "", "kube-system").expect("every cluster has it");
    uid(&namespace).bytes().map(u64::from).sum::<u64>() % sides
}

/// Every other machine has the taint of the second gate too, if there is one.
fn taints(user: &Local, machine: usize) -> Vec<Value> {
    let is_second = user.get("nodekeeper.dev/nodegates", "", "strict").is_some();
    let strict = (is_second && machine.is_multiple_of(2)).then(|| taint_of(STRICT));
    [taint()].into_iter().chain(strict).collect()
}

/// Creates the CRDs, the namespace and a gate.
pub fn setup(cluster: &Cluster) {
    // Generated once, since every run needs them.
    static DEFINITIONS: LazyLock<Vec<Value>> =
        LazyLock::new(|| definitions().iter().map(|definition| json!(definition)).collect());
    let user = cluster.local("setup");
    for definition in DEFINITIONS.iter().cloned() {
        user.create("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", definition)
            .expect("it is valid");
    }
    for namespace in [NAMESPACE, "default", "kube-system"] {
        if user.get("namespaces", "", namespace).is_none() {
            let body = json!({"metadata": {"name": namespace}});
            user.create("v1", "Namespace", "", body).expect("the namespace does not exist yet");
        }
    }
    network::install(cluster).expect("the objects do not exist yet");
    let account = json!({"metadata": {"name": "nodekeeper-worker", "namespace": NAMESPACE}});
    user.create("v1", "ServiceAccount", NAMESPACE, account).expect("its namespace is there");
    create_gate(&user, "default").expect("it is valid");
}

/// The same, and in every third run a second gate.
pub fn setup_of_a_run(cluster: &Cluster) {
    setup(cluster);
    let user = cluster.local("setup");
    configuration::mark_as_applied(&user);
    if has_two_gates(&user) {
        create_gate(&user, "strict").expect("it is valid");
    }
}

fn has_two_gates(user: &Local) -> bool {
    dice(user, 3) == 0
}

/// The second gate has precedence in half of the runs.
fn create_gate(user: &Local, name: &str) -> Option<()> {
    let mut spec = json!({"retry": {"recheckPeriodSeconds": 30}});
    if name == "strict" {
        spec["taints"] = json!([taint_of(STRICT)]);
        spec["priority"] = json!(if dice(user, 2) == 0 { 1 } else { -1 });
    }
    let gate = json!({
        "apiVersion": "nodekeeper.dev/v1alpha1", "kind": "NodeGate", "metadata": {"name": name}, "spec": spec,
    });
    user.create("nodekeeper.dev/v1alpha1", "NodeGate", "", gate).ok().map(drop)
}

/// One of the gates.
fn choose_gate(user: &Local, random: &mut fastrand::Rng) -> Option<Arc<Value>> {
    let gates = user.all("nodekeeper.dev/nodegates");
    gates.get(random.usize(..gates.len().max(1))).cloned()
}

pub fn change_gate(user: &Local, gate: &Value, random: &mut fastrand::Rng) -> Option<&'static str> {
    let (field, value, what) = match random.u8(0..8) {
        7 => ("spec.enforcement", json!("Audit"), "gate audits"),
        0 | 1 => ("spec.retry.maxRetries", json!(random.i64(1..9)), "gate changed"),
        2 => ("spec.enforcement", json!("Paused"), "gate paused"),
        3 => ("spec.enforcement", json!("DryRun"), "gate in dry-run"),
        4 => ("spec.onReboot", json!("Regate"), "gate taints rebooted nodes"),
        5 => ("spec.mode", json!("Continuous"), "gate verifies continuously"),
        _ => ("spec.nodeCondition", json!("NetworkVerified"), "gate writes conditions"),
    };
    let changed = user.change(gate, None, |gate| {
        set(gate, "spec.enforcement", json!("Enforce"));
        set(gate, "spec.continuous", json!({"periodSeconds": 300, "failureThreshold": 2}));
        set(gate, field, value.clone());
    });
    changed.ok().map(|_| what)
}

/// Deletes a gate. The user creates it again in half of the cases; otherwise the leader does if the installation brings it.
pub fn remake_gate(user: &Local, gate: &Value, random: &mut fastrand::Rng) -> Option<&'static str> {
    user.delete(gate, None).ok()?;
    if random.bool() {
        return Some("gate deleted");
    }
    create_gate(user, name(gate));
    Some("gate deleted and recreated")
}

/// Creates the second gate if a user deleted it.
fn restore_gate(user: &Local) -> bool {
    let is_missing = user.get("nodekeeper.dev/nodegates", "", "strict").is_none();
    has_two_gates(user) && is_missing && create_gate(user, "strict").is_some()
}

pub fn count_as(change: &Change) -> Option<&'static str> {
    let is_ours = change.user.starts_with("replica-");
    let gated = |node: &Arc<Value>| invariants::is_gated(node);
    match (change.collection.as_str(), change.before.as_ref(), change.after.as_ref()) {
        ("nodes", None, _) => Some("nodes registered"),
        ("pods", None, _) if is_ours => Some("workers"),
        ("nodekeeper.dev/nodegates", None, _) if is_ours => Some("gates created by the leader"),
        ("nodekeeper.dev/nodegates", Some(before), Some(after)) if is_ours => {
            (before["spec"] != after["spec"]).then_some("gates patched by the leader")
        }
        ("nodes", Some(before), Some(after)) if is_ours => match (gated(before), gated(after)) {
            (true, false) => Some("nodes verified"),
            (false, true) => Some("nodes tainted again"),
            _ => None,
        },
        _ => None,
    }
}

/// Enforces the gate again, so that nodes do not stay gated, and has nodes verified that another controller reverted.
pub fn heal(user: &Local) {
    for node in user.all("nodes") {
        let is_reverted = |record: Record| record.sections().any(|section| section.reverted > 1);
        if invariants::record(&node).is_some_and(is_reverted) {
            request_verification(user, &node);
        }
    }
    namespace::heal(user);
    restore_gate(user);
    for gate in user.all("nodekeeper.dev/nodegates") {
        let healed = user.change(&gate, None, |gate| set(gate, "spec.enforcement", json!("Enforce")));
        healed.expect("no other user writes");
    }
}

/// Puts the taint of a gate back, or on every other node removes the label.
pub fn revert(user: &Local, node: &str) -> bool {
    let Some(node) = user.get("nodes", "", node).filter(|node| !is_deleting(node)) else { return false };
    let choice = uid(&node).bytes().map(u32::from).sum::<u32>() % 4;
    let key = if choice == 2 && user.get("nodekeeper.dev/nodegates", "", "strict").is_some() {
        STRICT
    } else {
        TAINT
    };
    let mut taints = items(&node, "spec.taints").to_vec();
    if taints.iter().any(|taint| text(taint, "key") == key) || at(&node, "metadata.labels").is_none() {
        return false;
    }
    let is_labelled = node["metadata"]["labels"].get(LABEL).is_some();
    if choice.is_multiple_of(2) {
        taints.push(taint_of(key));
        return user.change(&node, None, |node| set(node, "spec.taints", json!(taints))).is_ok();
    }
    is_labelled && remove_label(user, &node)
}

fn request_verification(user: &Local, node: &Value) -> bool {
    let mut all = at(node, "metadata.annotations").cloned().unwrap_or_else(|| json!({}));
    all[VERIFY] = json!("now");
    user.change(node, None, |node| set(node, "metadata.annotations", all)).is_ok()
}

fn remove_label(user: &Local, node: &Value) -> bool {
    let Some(labels) = at(node, "metadata.labels").and_then(Value::as_object) else { return false };
    let kept: BTreeMap<_, _> = labels.iter().filter(|(key, _)| *key != LABEL).collect();
    user.change(node, None, |node| set(node, "metadata.labels", json!(kept))).is_ok()
}

/// Users delete workers, change and replace gates, and taint, cordon and delete nodes.
pub fn user_action(user: &Local, random: &mut fastrand::Rng) -> Option<&'static str> {
    let nodes = user.all("nodes");
    let node = nodes.get(random.usize(..nodes.len().max(1)))?;
    match random.u8(0..14) {
        11 | 12 => namespace::toggle_injection(user, random),
        13 => namespace::toggle_quota(user),
        8 => {
            let is_labelled = at(node, "metadata.labels")?.get(LABEL).is_some();
            (is_labelled && remove_label(user, node)).then_some("label removed by user")
        }
        9 | 10 => request_verification(user, node).then_some("verification requested by user"),
        0 | 1 => {
            let pods = user.all("pods");
            let pod = pods.get(random.usize(..pods.len().max(1)))?;
            let grace = random.bool().then_some(0);
            user.delete(pod, grace).ok().map(|_| "worker deleted by user")
        }
        2 => change_gate(user, &*choose_gate(user, random)?, random),
        3 if restore_gate(user) => Some("gate created"),
        3 => remake_gate(user, &*choose_gate(user, random)?, random),
        // Rarely, so that some nodes remain.
        4 if random.u8(0..3) == 0 => user.delete(node, None).ok().map(|_| "node deleted"),
        5 => {
            let cordoned = is_true(node, "spec.unschedulable");
            let changed = user.change(node, None, |node| set(node, "spec.unschedulable", json!(!cordoned)));
            changed.ok().map(|_| if cordoned { "node uncordoned" } else { "node cordoned" })
        }
        _ => {
            let mut taints = items(node, "spec.taints").to_vec();
            let gate = choose_gate(user, random)?;
            let (_, key) = GATES.into_iter().find(|(gate_name, _)| *gate_name == name(&gate))?;
            if is_deleting(node) || taints.iter().any(|taint| text(taint, "key") == key) {
                return None;
            }
            taints.insert(random.usize(..=taints.len()), taint_of(key));
            let changed = user.change(node, None, |node| set(node, "spec.taints", json!(taints)));
            changed.ok().map(|_| "node tainted again")
        }
    }
}
