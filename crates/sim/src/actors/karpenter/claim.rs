//! The life of a `NodeClaim` until its Node is initialized.

use std::sync::Arc;

use crate::value::{Value, json};
use jiff::{SignedDuration, Timestamp};

use super::{
    API, HASH, INITIALIZED, NodeSpec, POOL, REGISTERED, Reconciler, TERMINATION, UNREGISTERED_TAINT,
};
use crate::clock::time;
use crate::object::{
    condition, condition_status, has_finalizer, items, map, name, set, set_condition, text, uid,
};
use crate::registry::{NOT_READY, UNREACHABLE};

/// A machine that does not register within this time is replaced.
const REGISTRATION_TTL: SignedDuration = SignedDuration::from_mins(15);

pub(super) fn body(pool: &Value, machine: &NodeSpec) -> Value {
    let template = &pool["spec"]["template"];
    let mut labels = template["metadata"].get("labels").cloned().unwrap_or_else(|| json!({}));
    labels[POOL] = json!(name(pool));
    if !machine.zone.is_empty() {
        labels["topology.kubernetes.io/zone"] = json!(machine.zone);
    }
    let owner = json!({"apiVersion": API, "kind": "NodePool", "name": name(pool), "uid": uid(pool),
        "blockOwnerDeletion": true});
    json!({"apiVersion": API, "kind": "NodeClaim", "spec": template["spec"], "metadata": {
        "generateName": format!("{}-", name(pool)), "labels": labels, "ownerReferences": [owner],
        "annotations": {HASH: hash(template)}, "finalizers": [TERMINATION]}})
}

/// Sets the labels and taints that the machine's kubelet registers with.
pub(super) fn apply_claim(machine: &mut NodeSpec, claim: &Value) {
    machine.labels.insert(POOL.to_owned(), text_of(claim, "labels", POOL).to_owned());
    machine.taints = vec![json!({"key": UNREGISTERED_TAINT, "effect": "NoExecute"})];
    for list in ["taints", "startupTaints"] {
        machine.taints.extend(items(&claim["spec"], list).iter().cloned());
    }
}

fn text_of<'v>(object: &'v Value, field: &str, key: &str) -> &'v str {
    object["metadata"][field].get(key).and_then(Value::as_str).unwrap_or_default()
}

/// Changes with the template. FNV-1a.
fn hash(template: &Value) -> String {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    template.to_string().bytes().fold(0xcbf2_9ce4_8422_2325_u64, step).to_string()
}

impl Reconciler {
    /// Registers or initializes the Node of a `NodeClaim` once it is ready for that.
    pub(super) fn advance(&mut self, claim: &Value, node: Option<&Arc<Value>>) {
        let Some(node) = node else {
            if condition_status(claim, "Registered") != "True" {
                if self.is_overdue(claim) {
                    let _ = self.api.delete(claim, None);
                    return;
                }
                self.update_status(claim, &[], "Registered", "Unknown", "NodeNotFound");
            }
            return;
        };
        if condition_status(claim, "Registered") != "True" {
            // Registration is late on purpose: it overwrites what was done to the Node before.
            if self.random.u8(0..3) == 0 {
                self.register(claim, node);
            }
            return;
        }
        if condition_status(claim, "Initialized") == "True" {
            return;
        }
        if let Some(reason) = not_initialized(claim, node) {
            self.update_status(claim, &[], "Initialized", "Unknown", reason);
            return;
        }
        if self.api.change(node, None, |node| node["metadata"]["labels"][INITIALIZED] = json!("true")).is_ok()
        {
            self.update_status(claim, &[], "Initialized", "True", "Initialized");
            self.update_status(claim, &[], "Ready", "True", "Ready");
        }
    }

    fn is_overdue(&self, claim: &Value) -> bool {
        let born: Option<Timestamp> = text(claim, "metadata.creationTimestamp").parse().ok();
        let now = self.api.cluster().clock().now();
        born.is_some_and(|born| now.duration_since(born) > REGISTRATION_TTL)
    }

    /// Copies labels and taints of the `NodeClaim` to the Node, including startup taints that were removed before.
    fn register(&self, claim: &Value, node: &Value) {
        let registered = self.api.change(node, None, |node| {
            let mut taints = items(node, "spec.taints").to_vec();
            let same = |a: &Value, b: &Value| ["key", "effect"].iter().all(|f| text(a, f) == text(b, f));
            for list in ["taints", "startupTaints"] {
                for taint in items(&claim["spec"], list) {
                    if !taints.iter().any(|t| same(t, taint)) {
                        taints.push(taint.clone());
                    }
                }
            }
            taints.retain(|t| text(t, "key") != UNREGISTERED_TAINT);
            set(node, "spec.taints", json!(taints));
            for field in ["labels", "annotations"] {
                for (key, value) in claim["metadata"][field].as_object().into_iter().flatten() {
                    map(&mut node["metadata"][field]).insert(key, value.clone());
                }
            }
            node["metadata"]["labels"][REGISTERED] = json!("true");
            if !has_finalizer(node, TERMINATION) {
                let mut finalizers = items(node, "metadata.finalizers").to_vec();
                finalizers.push(json!(TERMINATION));
                set(node, "metadata.finalizers", json!(finalizers));
            }
            let owner = json!({"apiVersion": API, "kind": "NodeClaim", "name": name(claim), "uid": uid(claim),
                "blockOwnerDeletion": true});
            set(node, "metadata.ownerReferences", json!([owner]));
        });
        if registered.is_ok() {
            self.update_status(claim, &[("nodeName", name(node))], "Registered", "True", "Registered");
        }
    }

    /// Sets status fields and one condition of a claim, if the condition changes.
    pub(super) fn update_status(
        &self,
        claim: &Value,
        fields: &[(&str, &str)],
        kind: &str,
        status: &str,
        reason: &str,
    ) {
        let known = condition(claim, kind)
            .is_some_and(|c| text(c, "status") == status && text(c, "reason") == reason);
        if known {
            return;
        }
        let now = time(self.api.cluster().clock().now());
        let new = json!({"type": kind, "status": status, "reason": reason, "message": ""});
        let _ = self.api.change(claim, Some("status"), |claim| {
            for (field, value) in fields {
                set(claim, &format!("status.{field}"), json!(value));
            }
            set_condition(claim, new, &now);
        });
    }
}

/// The reason why a registered node is not initialized.
fn not_initialized(claim: &Value, node: &Value) -> Option<&'static str> {
    let has = |key: &str| items(node, "spec.taints").iter().any(|t| text(t, "key") == key);
    if condition_status(node, "Ready") != "True" {
        return Some("NodeNotReady");
    }
    if items(&claim["spec"], "startupTaints").iter().any(|t| has(text(t, "key"))) {
        return Some("StartupTaintsExist");
    }
    [NOT_READY, UNREACHABLE].into_iter().any(has).then_some("KnownEphemeralTaintsExist")
}
