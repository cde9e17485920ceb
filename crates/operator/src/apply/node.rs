//! Nodes: taints, label, record, condition, cordon and deletion.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Api;
use kube::api::{Patch, PatchParams};
use nodekeeper_core::api::{GateTaint, NodeIdentity, VerifiedLabel};
use nodekeeper_core::gate::{ConditionUpdate, GateView};
use nodekeeper_core::node::{CORDONED, NodeView, PartialNode, VERIFY};
use nodekeeper_core::reasons::NETWORK_VERIFIED;
use nodekeeper_core::record::{self, Record};
use nodekeeper_core::remediate::Target;
use serde_json::{Value, json};

use super::{WriteError, Writer, deleted, escaped, json_patch, test_uid, test_version, with_uid};

impl Writer {
    /// Removes the gate's taints, sets its label unless the record says that it is withheld, and writes the record, all or
    /// nothing.
    pub async fn remove_taint(
        &self,
        node: &NodeView,
        gate: &GateView,
        record: &Record,
    ) -> Result<PartialNode, WriteError> {
        self.patch_node(&node.name, &remove_taint(node, gate, record)).await
    }

    /// Removes the gate's taints and writes the record, without the label, all or nothing.
    pub async fn admit(
        &self,
        node: &NodeView,
        gate: &GateView,
        record: &Record,
    ) -> Result<PartialNode, WriteError> {
        let mut patch = without_taints(node, gate);
        patch.extend(record_operations(node, record));
        self.patch_node(&node.name, &patch).await
    }

    /// Adds the gate's taints again, removes its label and writes the record, all or nothing.
    pub async fn retaint(
        &self,
        node: &NodeView,
        gate: &GateView,
        record: &Record,
    ) -> Result<PartialNode, WriteError> {
        self.patch_node(&node.name, &retaint(node, gate, record)).await
    }

    pub async fn patch_record(&self, node: &NodeView, record: &Record) -> Result<PartialNode, WriteError> {
        self.patch_node(&node.name, &patch_record(node, record)).await
    }

    /// Sets our condition. The kubelet merges its own conditions by type and leaves this one alone.
    pub async fn set_node_condition(
        &self,
        node: &NodeView,
        update: &ConditionUpdate,
    ) -> Result<PartialNode, WriteError> {
        let ConditionUpdate { status, reason, message } = update;
        let now = Time(self.clock.now());
        let condition = json!({
            "type": NETWORK_VERIFIED, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": now, "lastHeartbeatTime": now,
        });
        // The server refuses a patch with another uid than the object's.
        let patch =
            Patch::Strategic(json!({"metadata": {"uid": node.uid}, "status": {"conditions": [condition]}}));
        let nodes: Api<PartialNode> = self.all();
        self.write(nodes.patch_status(&node.name, &PatchParams::default(), &patch)).await
    }

    /// Cordons a node and marks the cordon as ours, so that no cordon of another is ever undone.
    pub async fn cordon_node(&self, target: &Target, remediation: &str) -> Result<PartialNode, WriteError> {
        let mut operations = target_preconditions(target);
        // The act was decided from this record: the gate may have let the node in meanwhile.
        let path = format!("/metadata/annotations/{}", escaped(record::ANNOTATION));
        if let Some(text) = &target.record_text {
            operations.push(json!({"op": "test", "path": path, "value": text}));
        }
        if !target.has_annotations {
            operations.push(json!({"op": "add", "path": "/metadata/annotations", "value": {}}));
        }
        let mark = format!("/metadata/annotations/{}", escaped(CORDONED));
        operations.push(json!({"op": "add", "path": mark, "value": remediation}));
        operations.push(json!({"op": "add", "path": "/spec/unschedulable", "value": true}));
        self.patch_node(&target.identity.name, &operations).await
    }

    /// Removes our own cordon; there is nothing to do where the node has none.
    pub async fn uncordon_node(&self, target: &Target) -> Result<Option<PartialNode>, WriteError> {
        let Some(mark) = &target.cordoned_for else { return Ok(None) };
        let path = format!("/metadata/annotations/{}", escaped(CORDONED));
        let mut operations = vec![
            test_uid(&target.identity.uid),
            json!({"op": "test", "path": path, "value": mark}),
            json!({"op": "remove", "path": path}),
        ];
        if target.unschedulable {
            operations.push(json!({"op": "test", "path": "/spec/unschedulable", "value": true}));
            operations.push(json!({"op": "remove", "path": "/spec/unschedulable"}));
        }
        self.patch_node(&target.identity.name, &operations).await.map(Some)
    }

    /// Deletes the Node object of this uid.
    pub async fn delete_node(&self, node: &NodeIdentity) -> Result<(), WriteError> {
        let nodes: Api<PartialNode> = self.all();
        deleted(self.write(nodes.delete(&node.name, &with_uid(&node.uid))).await)
    }

    async fn patch_node(&self, name: &str, operations: &[Value]) -> Result<PartialNode, WriteError> {
        let patch = json_patch(operations)?;
        let nodes: Api<PartialNode> = self.all();
        self.write(nodes.patch(name, &PatchParams::default(), &patch)).await
    }
}

/// The patch applies only to this node since this boot.
fn node_preconditions(node: &NodeView) -> Vec<Value> {
    vec![
        test_uid(&node.uid.to_string()),
        json!({"op": "test", "path": "/status/nodeInfo/bootID", "value": node.boot_id}),
    ]
}

/// The patch applies only to the node as it was read.
fn target_preconditions(target: &Target) -> Vec<Value> {
    vec![
        test_uid(&target.identity.uid),
        json!({"op": "test", "path": "/status/nodeInfo/bootID", "value": target.identity.boot_id}),
        test_version(&target.resource_version),
    ]
}

fn node_version(node: &NodeView) -> Value {
    test_version(&node.resource_version.to_string())
}

fn patch_record(node: &NodeView, record: &Record) -> Vec<Value> {
    let mut patch = node_preconditions(node);
    patch.extend(record_operations(node, record));
    patch
}

/// Writes the record over the one that the decision was made from, and removes the request to verify that it answers.
fn record_operations(node: &NodeView, record: &Record) -> Vec<Value> {
    let mut patch = Vec::new();
    if let Some(request) = &node.verify {
        let path = format!("/metadata/annotations/{}", escaped(VERIFY));
        patch.push(json!({"op": "test", "path": path, "value": request}));
        patch.push(json!({"op": "remove", "path": path}));
    }
    let path = format!("/metadata/annotations/{}", escaped(record::ANNOTATION));
    let text = record.to_annotation();
    if let Some(known) = node.record_annotation() {
        patch.push(json!({"op": "test", "path": path, "value": known}));
        patch.push(json!({"op": "replace", "path": path, "value": text}));
        return patch;
    }
    // A missing member cannot be tested: the resourceVersion stands for it.
    patch.push(node_version(node));
    patch.push(if node.has_annotations {
        json!({"op": "add", "path": path, "value": text})
    } else {
        json!({"op": "add", "path": "/metadata/annotations", "value": {record::ANNOTATION: text}})
    });
    patch
}

/// Removes the gate's taints, and no other.
fn without_taints(node: &NodeView, gate: &GateView) -> Vec<Value> {
    let mut patch = node_preconditions(node);
    // From the end, because removing an element moves those after it.
    for position in node.positions(&gate.spec.taints).into_iter().rev() {
        let path = format!("/spec/taints/{position}");
        let taint = &node.taints[position];
        patch.push(json!({"op": "test", "path": format!("{path}/key"), "value": &*taint.key}));
        patch.push(json!({"op": "test", "path": format!("{path}/effect"), "value": &*taint.effect}));
        patch.push(json!({"op": "remove", "path": path}));
    }
    patch
}

fn remove_taint(node: &NodeView, gate: &GateView, record: &Record) -> Vec<Value> {
    let mut patch = without_taints(node, gate);
    // Of gates with the same label the last one sets it.
    if !record.unlabelled {
        patch.extend(label_operations(node, &gate.spec.verified_label));
    }
    patch.extend(record_operations(node, record));
    patch
}

fn label_operations(node: &NodeView, label: &VerifiedLabel) -> Vec<Value> {
    let VerifiedLabel { key, value } = label;
    if node.has_labels {
        let path = format!("/metadata/labels/{}", escaped(key));
        return vec![json!({"op": "add", "path": path, "value": value})];
    }
    vec![node_version(node), json!({"op": "add", "path": "/metadata/labels", "value": {key: value}})]
}

fn retaint(node: &NodeView, gate: &GateView, record: &Record) -> Vec<Value> {
    let mut patch = node_preconditions(node);
    // What is added to a list must be added to the list that was seen.
    patch.push(node_version(node));
    let missing = |taint: &&GateTaint| node.positions(std::slice::from_ref(taint)).is_empty();
    let taints: Vec<Value> = gate.spec.taints.iter().filter(missing).map(|taint| json!(taint)).collect();
    if node.taints.is_empty() {
        patch.push(json!({"op": "add", "path": "/spec/taints", "value": taints}));
    } else {
        let append = |taint| json!({"op": "add", "path": "/spec/taints/-", "value": taint});
        patch.extend(taints.into_iter().map(append));
    }
    let label = &gate.spec.verified_label.key;
    if node.labels.get(label).is_some() {
        patch.push(json!({"op": "remove", "path": format!("/metadata/labels/{}", escaped(label))}));
    }
    patch.extend(record_operations(node, record));
    patch
}

#[cfg(test)]
#[path = "node_tests.rs"]
mod tests;
