//! The node lifecycle controller, taint-based eviction and the pod garbage collector.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::value::{Value, json};
use tokio::time::{Instant, sleep, timeout_at};

use super::placement::{Stay, may_stay};
use super::{REACTION_TIME, Timing};
use crate::clock::{after, time};
use crate::cluster::Local;
use crate::object::{
    condition, condition_status, is_deleting, is_true, items, name, set, set_condition, text, uid,
};
use crate::registry::{NOT_READY, UNREACHABLE, UNSCHEDULABLE};

const LEASES: &str = "coordination.k8s.io/leases";

/// Conditions besides Ready that are reported as taints.
const PRESSURES: [(&str, &str); 4] = [
    ("MemoryPressure", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "node.kubernetes.io/disk-pressure"),
    ("PIDPressure", "node.kubernetes.io/pid-pressure"),
    ("NetworkUnavailable", "node.kubernetes.io/network-unavailable"),
];

/// The last heartbeat of a node and when this controller saw it, since the node's clock may be wrong.
struct LastHeartbeat {
    node: String,
    text: String,
    seen: Instant,
}

pub(super) async fn run(api: Local, timing: Timing) {
    let mut changes = api.watch(&["nodes"]);
    let mut heartbeats: BTreeMap<String, LastHeartbeat> = BTreeMap::new();
    // What was synced last; syncing it again would change nothing.
    let mut synced: Vec<Arc<Value>> = Vec::new();
    let mut any_was_ready = false;
    loop {
        monitor_heartbeats(&api, &mut heartbeats, timing);
        let nodes = api.all("nodes");
        let any_ready = nodes.iter().any(|n| condition_status(n, "Ready") == "True");
        if any_ready != any_was_ready {
            synced.clear();
        }
        any_was_ready = any_ready;
        for node in &nodes {
            if !synced.iter().any(|before| Arc::ptr_eq(before, node)) {
                sync_node(&api, node, any_ready);
            }
        }
        synced = nodes;
        // Until the next period only changed nodes are synced.
        let next_look = Instant::now() + timing.node_monitor_period;
        while let Ok(mut news) = timeout_at(next_look, changes.next()).await {
            sleep(REACTION_TIME).await;
            news.extend(changes.drain());
            let changed: BTreeSet<&String> = news.iter().map(|change| &change.key).collect();
            for node in changed.into_iter().filter_map(|name| api.get("nodes", "", name)) {
                sync_node(&api, &node, any_ready || condition_status(&node, "Ready") == "True");
            }
        }
    }
}

fn sync_node(api: &Local, node: &Value, may_evict: bool) {
    ensure_ttl_annotation(api, node);
    sync_taints(api, node, may_evict);
}

fn monitor_heartbeats(api: &Local, heartbeats: &mut BTreeMap<String, LastHeartbeat>, timing: Timing) {
    let nodes = api.all("nodes");
    let there: BTreeSet<&str> = nodes.iter().map(|n| uid(n)).collect();
    heartbeats.retain(|id, _| there.contains(id.as_str()));
    for node in &nodes {
        let renewed = api.get(LEASES, "kube-node-lease", name(node));
        let renewed = renewed.as_ref().map_or("", |l| text(l, "spec.renewTime"));
        let ready = condition(node, "Ready");
        let heartbeat = ready.map_or("", |c| text(c, "lastHeartbeatTime"));
        // A Ready condition of Unknown is no heartbeat: this controller wrote it.
        let status = Some(condition_status(node, "Ready")).filter(|s| *s != "Unknown").unwrap_or_default();
        let life = format!("{renewed} {heartbeat} {status}");
        let last = heartbeats.entry(uid(node).to_owned()).or_insert_with(|| LastHeartbeat {
            node: name(node).to_owned(),
            text: life.clone(),
            seen: Instant::now(),
        });
        if last.text != life {
            (last.text, last.seen) = (life, Instant::now());
        }
        let grace = if ready.is_some() { timing.node_monitor_grace } else { timing.node_startup_grace };
        if last.seen.elapsed() > grace && condition_status(node, "Ready") != "Unknown" {
            last.text = format!("{renewed} {heartbeat} ");
            mark_unknown(api, node);
            mark_pods_not_ready(api, &last.node);
        }
    }
}

fn mark_unknown(api: &Local, node: &Value) {
    let now = time(api.cluster().clock().now());
    let _ = api.change(node, Some("status"), |node| {
        for kind in ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"] {
            let heartbeat = condition(node, kind).map_or(Value::Null, |c| c["lastHeartbeatTime"].clone());
            let unknown = json!({"type": kind, "status": "Unknown", "reason": "NodeStatusUnknown",
                "message": "Kubelet stopped posting node status.", "lastHeartbeatTime": heartbeat});
            set_condition(node, unknown, &now);
        }
    });
}

fn mark_pods_not_ready(api: &Local, node: &str) {
    let now = time(api.cluster().clock().now());
    for pod in pods_of(api, node) {
        if condition_status(&pod, "Ready") == "True" {
            let not_ready = json!({"type": "Ready", "status": "False"});
            let _ = api.change(&pod, Some("status"), |pod| set_condition(pod, not_ready, &now));
        }
    }
}

fn pods_of(api: &Local, node: &str) -> Vec<Arc<Value>> {
    api.all("pods").into_iter().filter(|p| text(p, "spec.nodeName") == node).collect()
}

fn ensure_ttl_annotation(api: &Local, node: &Value) {
    const TTL: &str = "node.alpha.kubernetes.io/ttl";
    if node["metadata"].get("annotations").and_then(|a| a.get(TTL)).is_none() {
        let _ = api.change(node, None, |node| node["metadata"]["annotations"][TTL] = json!("0"));
    }
}

/// Sets the taints that follow from conditions and cordons.
fn sync_taints(api: &Local, node: &Value, may_evict: bool) {
    let mut wanted: Vec<(&str, &str)> = match condition_status(node, "Ready") {
        "False" => vec![(NOT_READY, "NoSchedule"), (NOT_READY, "NoExecute")],
        "Unknown" => vec![(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")],
        // A node that has not reported yet loses the not-ready taint of admission, as on a real cluster.
        _ => vec![],
    };
    // While no node is Ready the fault is likely on this side, so no pod is evicted.
    if !may_evict {
        wanted.retain(|(_, effect)| *effect != "NoExecute");
    }
    let pressed = PRESSURES.iter().filter(|(kind, _)| condition_status(node, kind) == "True");
    wanted.extend(pressed.map(|(_, taint)| (*taint, "NoSchedule")));
    if is_true(node, "spec.unschedulable") {
        wanted.push((UNSCHEDULABLE, "NoSchedule"));
    }
    let mut keys = vec![NOT_READY, UNREACHABLE, UNSCHEDULABLE];
    keys.extend(PRESSURES.map(|(_, taint)| taint));
    set_taints(api, node, &keys, &wanted);
}

/// Sets the taints with these keys to the wanted ones; all others stay.
fn set_taints(api: &Local, node: &Value, keys: &[&str], wanted: &[(&str, &str)]) {
    let now = time(api.cluster().clock().now());
    let is_ours = |taint: &Value| keys.contains(&text(taint, "key"));
    let is_wanted = |taint: &Value| wanted.contains(&(text(taint, "key"), text(taint, "effect")));
    let current = items(node, "spec.taints");
    let missing = |t: &&(&str, &str)| !current.iter().any(|c| (text(c, "key"), text(c, "effect")) == **t);
    let right = current.iter().all(|t| !is_ours(t) || is_wanted(t)) && !wanted.iter().any(|t| missing(&t));
    if right {
        return;
    }
    let _ = api.change(node, None, |node| {
        let mut taints = items(node, "spec.taints").to_vec();
        taints.retain(|t| !is_ours(t) || is_wanted(t));
        for (key, effect) in wanted {
            if !taints.iter().any(|t| text(t, "key") == *key && text(t, "effect") == *effect) {
                taints.push(json!({"key": key, "effect": effect, "timeAdded": now}));
            }
        }
        set(node, "spec.taints", json!(taints));
    });
}

/// Deletes pods that do not tolerate a `NoExecute` taint of their node, at once or when `tolerationSeconds` are over.
pub(super) async fn evict(api: Local) {
    let mut changes = api.watch(&["nodes", "pods"]);
    let mut since: BTreeMap<String, Instant> = BTreeMap::new();
    loop {
        let due = evict_due(&api, &mut since);
        match due {
            Some(due) => drop(timeout_at(due, changes.next()).await),
            None => drop(changes.next().await),
        }
        sleep(REACTION_TIME).await;
        changes.drain();
    }
}

/// Evicts the pods that are due. Returns when the next one is due.
fn evict_due(api: &Local, since: &mut BTreeMap<String, Instant>) -> Option<Instant> {
    let is_hard = |n: &Arc<Value>| items(n, "spec.taints").iter().any(|t| text(t, "effect") == "NoExecute");
    let tainted: BTreeMap<String, Arc<Value>> =
        api.all("nodes").into_iter().filter(is_hard).map(|n| (name(&n).to_owned(), n)).collect();
    if tainted.is_empty() {
        since.clear();
        return None;
    }
    let (mut next, mut pending) = (None, Vec::new());
    for pod in api.all("pods") {
        let Some(node) = tainted.get(text(&pod, "spec.nodeName")).filter(|_| !is_deleting(&pod)) else {
            continue;
        };
        let wait = match may_stay(&pod, node) {
            Stay::Forever => continue,
            Stay::No => Duration::ZERO,
            Stay::Seconds(seconds) => Duration::from_secs(seconds.unsigned_abs()),
        };
        pending.push(uid(&pod).to_owned());
        let due = *since.entry(uid(&pod).to_owned()).or_insert_with(Instant::now);
        let due = after(due, wait);
        if due <= Instant::now() {
            set_disruption_target(
                api,
                &pod,
                "DeletionByTaintManager",
                "Taint manager: deleting due to NoExecute taint",
            );
            let _ = api.delete(&pod, None);
        } else {
            next = Some(next.map_or(due, |n: Instant| n.min(due)));
        }
    }
    since.retain(|id, _| pending.contains(id));
    next
}

fn set_disruption_target(api: &Local, pod: &Value, reason: &str, message: &str) {
    let now = time(api.cluster().clock().now());
    let target = json!({"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message});
    let _ = api.change(pod, Some("status"), |pod| set_condition(pod, target, &now));
}

/// Deletes pods whose node no longer exists.
pub(super) async fn collect_pods(api: Local, timing: Timing) {
    let mut missing: BTreeMap<String, Instant> = BTreeMap::new();
    loop {
        sleep(timing.pod_gc_period).await;
        let nodes: Vec<String> = api.all("nodes").iter().map(|n| name(n).to_owned()).collect();
        let pods = api.all("pods");
        missing
            .retain(|node, _| !nodes.contains(node) && pods.iter().any(|p| text(p, "spec.nodeName") == node));
        for pod in &pods {
            let node = text(pod, "spec.nodeName");
            if node.is_empty() || nodes.iter().any(|n| n == node) {
                continue;
            }
            let gone_since = *missing.entry(node.to_owned()).or_insert_with(Instant::now);
            if gone_since.elapsed() >= timing.pod_gc_quarantine {
                set_disruption_target(&api, pod, "DeletionByPodGC", "PodGC: node no longer exists");
                let _ = api.change(pod, Some("status"), |pod| {
                    if !matches!(text(pod, "status.phase"), "Succeeded" | "Failed") {
                        set(pod, "status.phase", json!("Failed"));
                    }
                });
                let _ = api.delete(pod, Some(0));
            }
        }
    }
}
