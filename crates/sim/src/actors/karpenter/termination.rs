//! The end of a `NodeClaim` and its Node: taint, drain, terminate, let go.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{DISRUPTED_TAINT, Reconciler, TERMINATION};
use crate::actors::placement::tolerates;
use crate::object::{condition_status, is_deleting, items, set, text, uid};

impl Reconciler {
    /// A claim that is being deleted takes its Node along, and goes after it.
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
        // A Node that was never registered is nobody's now; in a real cluster the cloud's controller buries it.
        if let Some(node) = node {
            let _ = self.api.delete(node, None);
        }
        self.remove_finalizer(claim);
    }

    /// A Node that is being deleted is drained, however long that takes; then its machine ends, and it goes.
    pub(super) fn finalize_node(&self, node: &Value) {
        // Nobody runs on a machine that is gone.
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

    /// Evicts who is still there; whether nobody is.
    fn drain(&self, node: &Value) -> bool {
        let now = self.api.cluster().clock().now();
        let on_node = |pod: &Arc<Value>| text(pod, "spec.nodeName") == crate::object::name(node);
        let waits_for = |pod: &Arc<Value>| on_node(pod) && blocks_drain(pod, now);
        let pods: Vec<Arc<Value>> = self.api.all("pods").into_iter().filter(waits_for).collect();
        // First what people run, then the daemons that serve it.
        let is_daemon = |pod: &Arc<Value>| is_owned_by(pod, "DaemonSet");
        let people = pods.iter().any(|pod| !is_daemon(pod));
        for pod in pods.iter().filter(|pod| !is_deleting(pod) && (!people || !is_daemon(pod))) {
            let spared =
                pod["metadata"]["annotations"].get("karpenter.sh/do-not-disrupt") == Some(&json!("true"));
            if !spared {
                // A budget that says no is asked again at the next look.
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

/// Whether a drain has to wait for a pod: not if it is done, is the node's own, wants to stay, or cannot end.
fn blocks_drain(pod: &Value, now: Timestamp) -> bool {
    let done = matches!(text(pod, "status.phase"), "Succeeded" | "Failed");
    let stays = items(pod, "spec.tolerations").iter().any(|t| tolerates(t, &disrupted()));
    let end: Option<Timestamp> = text(pod, "metadata.deletionTimestamp").parse().ok();
    let stuck = end.is_some_and(|end| now.duration_since(end) > SignedDuration::from_mins(1));
    !(done || stays || stuck || is_owned_by(pod, "Node"))
}
