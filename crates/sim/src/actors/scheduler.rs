//! The scheduler: it binds a pod to the node with the fewest pods among those that fit.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::value::{Value, json};
use tokio::time::sleep;

use super::{REACTION_TIME, placement};
use crate::api::{Caller, quantity};
use crate::clock::time;
use crate::cluster::Local;
use crate::object::{condition, is_deleting, items, name, namespace, number, set_condition, text, uid};

pub(super) async fn run(api: Local) {
    let mut changes = api.watch(&["pods", "nodes"]);
    loop {
        schedule_all(&api);
        changes.next().await;
        sleep(REACTION_TIME).await;
        changes.drain();
    }
}

fn schedule_all(api: &Local) {
    let pods = api.all("pods");
    let mut waiting: Vec<&Arc<Value>> = pods.iter().filter(|p| is_waiting(p)).collect();
    if waiting.is_empty() {
        return;
    }
    waiting.sort_by_key(|p| {
        (-number(p, "spec.priority").unwrap_or(0), text(p, "metadata.creationTimestamp"), name(p))
    });
    let nodes = api.all("nodes");
    let mut load: BTreeMap<&str, Load> = BTreeMap::new();
    for pod in pods.iter().filter(|p| !matches!(text(p, "status.phase"), "Succeeded" | "Failed")) {
        load.entry(text(pod, "spec.nodeName")).or_default().add(pod);
    }
    for pod in waiting {
        let mut ask = Load::default();
        ask.add(pod);
        let on = |node: &Value| load.get(name(node)).copied().unwrap_or_default();
        let fitting = nodes.iter().filter(|n| placement::fits(pod, n) && on(n).leaves_room_for(&ask, n));
        match fitting.min_by_key(|n| (on(n).pods, name(n))) {
            Some(node) => {
                load.entry(name(node)).or_default().add(pod);
                bind(api, pod, name(node));
            }
            None => report(api, pod, &nodes),
        }
    }
}

/// The sum of resource requests, in billionths.
#[derive(Clone, Copy, Default)]
struct Load {
    pods: u128,
    cpu: u128,
    memory: u128,
}

impl Load {
    fn add(&mut self, pod: &Value) {
        self.pods = self.pods.saturating_add(1_000_000_000);
        for container in items(pod, "spec.containers") {
            let asked =
                |resource: &str| amount(container, &format!("resources.requests.{resource}")).unwrap_or(0);
            self.cpu = self.cpu.saturating_add(asked("cpu"));
            self.memory = self.memory.saturating_add(asked("memory"));
        }
    }

    /// A node without `allocatable` always has room.
    fn leaves_room_for(&self, ask: &Self, node: &Value) -> bool {
        let fits = |resource: &str, used: u128, asked: u128| {
            let has = amount(node, &format!("status.allocatable.{resource}"));
            asked == 0 || has.is_none_or(|has| used.saturating_add(asked) <= has)
        };
        fits("pods", self.pods, ask.pods)
            && fits("cpu", self.cpu, ask.cpu)
            && fits("memory", self.memory, ask.memory)
    }
}

fn amount(object: &Value, path: &str) -> Option<u128> {
    quantity::billionths(text(object, path))
}

fn is_waiting(pod: &Value) -> bool {
    text(pod, "spec.nodeName").is_empty()
        && !is_deleting(pod)
        && text(pod, "spec.schedulerName") == "default-scheduler"
        && items(pod, "spec.schedulingGates").is_empty()
}

fn bind(api: &Local, pod: &Value, node: &str) {
    let cluster = api.cluster();
    let caller = Caller::new("kube-scheduler", cluster.clock().now());
    let mut state = cluster.state();
    let Some(resource) = state.resource("", "v1", "pods") else { return };
    let binding = json!({"metadata": {"uid": uid(pod)}, "target": {"kind": "Node", "name": node}});
    // The pod may be deleted or bound already.
    let _ = state.bind(&resource, (namespace(pod), name(pod)), &binding, &caller);
}

/// Sets the `PodScheduled` condition to False, once.
fn report(api: &Local, pod: &Value, nodes: &[Arc<Value>]) {
    let repelled = nodes.iter().filter(|n| placement::untolerated_taint(pod, n).is_some()).count();
    let count = nodes.len();
    let message = format!(
        "0/{count} nodes are available: {repelled} node(s) had untolerated taint(s), {} node(s) had no room or didn't match Pod's node affinity/selector.",
        count - repelled
    );
    if condition(pod, "PodScheduled").is_some_and(|c| text(c, "message") == message) {
        return;
    }
    let now = time(api.cluster().clock().now());
    let new =
        json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message});
    let _ = api.change(pod, Some("status"), |pod| set_condition(pod, new, &now));
}
