//! The termination of a `NodeClaim` and its Node: taint, drain, terminate, remove the finalizer.

use std::sync::Arc;

use crate::value::{Value, json};
use jiff::{SignedDuration, Timestamp};

use super::{DISRUPTED_TAINT, Reconciler, TERMINATION};
use crate::actors::placement::tolerates;
use crate::object::{condition_status, is_deleting, items, set, text, uid};

impl Reconciler {
    /// Deletes the Node of a claim that is being deleted, and removes the claim's finalizer after it.
    pub(super) fn finalize_claim(&mut self, claim: &Value, node: Option<&Arc<Value>>) {
        let registered = condition_status(claim, "Registered") == "True";
        if let Some(node) = node.filter(|_| registered) {
            if !is_deleting(node) {
                let _ = self.api.delete(node, None);
            }
            return;
        }
        self.launching.remove(uid(claim));
        self.cloud.terminate(text(claim, "status.providerID"));
        // In a real cluster the cloud controller manager deletes a Node that never registered.
        if let Some(node) = node {
            let _ = self.api.delete(node, None);
        }
        self.remove_finalizer(claim);
    }

    /// Drains a Node that is being deleted, however long that takes, then terminates its machine.
    pub(super) fn finalize_node(&self, node: &Value) {
        // Pods of a terminated machine need no eviction.
        let id = text(node, "spec.providerID");
        let gone = condition_status(node, "Ready") != "True" && !self.cloud.has(id);
        if !gone {
            self.taint(node);
            if !self.drain(node) {
                return;
            }
        }
        self.cloud.terminate(id);
        self.remove_finalizer(node);
    }

    fn taint(&self, node: &Value) {
        let taint = disrupted();
        if items(node, "spec.taints").contains(&taint) {
            return;
        }
        let _ = self.api.change(node, None, |node| {
            let mut taints = items(node, "spec.taints").to_vec();
            taints.retain(|t| text(t, "key") != DISRUPTED_TAINT);
            taints.push(taint);
            set(node, "spec.taints", json!(taints));
            node["metadata"]["labels"]["node.kubernetes.io/exclude-from-external-load-balancers"] =
                json!("karpenter");
        });
    }

    /// Evicts the pods of a node. Returns whether none is left.
    fn drain(&self, node: &Value) -> bool {
        let now = self.api.cluster().clock().now();
        let on_node = |pod: &Arc<Value>| text(pod, "spec.nodeName") == crate::object::name(node);
        let waits_for = |pod: &Arc<Value>| on_node(pod) && blocks_drain(pod, now);
        let pods: Vec<Arc<Value>> = self.api.all("pods").into_iter().filter(waits_for).collect();
        // DaemonSet pods are evicted last.
        let is_daemon = |pod: &Arc<Value>| is_owned_by(pod, "DaemonSet");
        let people = pods.iter().any(|pod| !is_daemon(pod));
        for pod in pods.iter().filter(|pod| !is_deleting(pod) && (!people || !is_daemon(pod))) {
            let spared =
                pod["metadata"]["annotations"].get("karpenter.sh/do-not-disrupt") == Some(&json!("true"));
            if !spared {
                // A refused eviction is tried again at the next reconcile.
                let _ = self.api.evict(pod);
            }
        }
        pods.is_empty()
    }

    fn remove_finalizer(&self, object: &Value) {
        let _ = self.api.change(object, None, |object| {
            let mut finalizers = items(object, "metadata.finalizers").to_vec();
            finalizers.retain(|f| f != TERMINATION);
            set(object, "metadata.finalizers", json!(finalizers));
        });
    }
}

fn disrupted() -> Value {
    json!({"key": DISRUPTED_TAINT, "effect": "NoSchedule"})
}

fn is_owned_by(pod: &Value, kind: &str) -> bool {
    items(pod, "metadata.ownerReferences").iter().any(|owner| text(owner, "kind") == kind)
}

/// Whether a drain waits for a pod: not if it has finished, is a static pod, tolerates the taint, or is stuck.
fn blocks_drain(pod: &Value, now: Timestamp) -> bool {
    let done = matches!(text(pod, "status.phase"), "Succeeded" | "Failed");
    let stays = items(pod, "spec.tolerations").iter().any(|t| tolerates(t, &disrupted()));
    let end: Option<Timestamp> = text(pod, "metadata.deletionTimestamp").parse().ok();
    let stuck = end.is_some_and(|end| now.duration_since(end) > SignedDuration::from_mins(1));
    !(done || stays || stuck || is_owned_by(pod, "Node"))
}
