//! Minimal valid bodies, which the cases modify.

use serde_json::{Value, json};

/// `base` changed by a JSON merge patch.
#[expect(clippy::needless_pass_by_value, reason = "it is called with json!")]
pub(super) fn with(mut base: Value, patch: Value) -> Value {
    merge(&mut base, &patch);
    base
}

fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let Value::Object(target) = target else { return };
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key).or_insert(Value::Null), value);
        }
    }
}

pub(super) fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "1"}})
}

/// A pod of a scheduler that does not exist, so that no component modifies it.
pub(super) fn pod(name: &str) -> Value {
    with(bare_pod(name), json!({"spec": {"schedulerName": "none"}}))
}

/// A pod with only the required fields.
pub(super) fn bare_pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "image": "example.com/none:1"}]},
    })
}

/// A Node with a taint that repels the pods of other cases, and a label `case` for its own.
pub(super) fn node(name: &str, case: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {"case": case}},
        "spec": {"taints": [{"key": "case", "value": case, "effect": "NoSchedule"}]},
    })
}

pub(super) fn lease(name: &str) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name},
        "spec": {"holderIdentity": "one", "leaseDurationSeconds": 15},
    })
}

pub(super) fn deployment(name: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "main", "image": "example.com/none:1"}]},
            },
        },
    })
}

/// A budget for the pods with the label `app: a`.
#[expect(clippy::needless_pass_by_value, reason = "it is called with json!")]
pub(super) fn budget(name: &str, bound: Value) -> Value {
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": {"app": "a"}}},
    });
    with(budget, json!({"spec": bound}))
}

pub(super) fn service(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80}]},
    })
}

pub(super) fn endpoint_slice(name: &str) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": name},
        "addressType": "IPv4", "endpoints": [{"addresses": ["10.1.2.3"]}], "ports": [],
    })
}

pub(super) fn priority_class(name: &str, value: i32) -> Value {
    json!({
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value,
    })
}

pub(super) fn owned_by(owner: &Value) -> Value {
    json!({
        "apiVersion": owner["apiVersion"], "kind": owner["kind"],
        "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"],
    })
}

pub(super) fn widget(group: &str, name: &str) -> Value {
    json!({
        "apiVersion": format!("{group}/v1"), "kind": "Widget", "metadata": {"name": name},
        "spec": {"size": 3},
    })
}

/// A namespaced kind with a schema, defaults, printer columns and a status subresource.
pub(super) fn widget_crd(group: &str) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("widgets.{group}")},
        "spec": {
            "group": group, "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "shortNames": ["wdg"]},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "subresources": {"status": {}},
                "additionalPrinterColumns": [
                    {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
                    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
                ],
                "schema": {"openAPIV3Schema": widget_schema()},
            }],
        },
    })
}

fn widget_schema() -> Value {
    let spec = json!({
        "size": {"type": "integer", "minimum": 1, "maximum": 10},
        "color": {"type": "string", "enum": ["red", "green"], "default": "red"},
        "note": {"type": "string", "maxLength": 5, "nullable": true},
        "plain": {"type": "string"},
        "code": {"type": "string", "pattern": "^[a-z]+$"},
        "ratio": {"type": "number"},
        "on": {"type": "boolean"},
        "port": {"x-kubernetes-int-or-string": true},
        "list": {"type": "array", "maxItems": 2, "items": {"type": "string"}},
        "parts": {"type": "array", "items": {
            "type": "object", "required": ["id"],
            "properties": {"id": {"type": "string"}, "count": {"type": "integer", "default": 7}},
        }},
        "deep": {
            "type": "object", "default": {},
            "properties": {"level": {"type": "integer", "default": 1}},
        },
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        "map": {"type": "object", "additionalProperties": {"type": "integer"}},
    });
    let status = json!({"phase": {"type": "string", "enum": ["Up", "Down"]}, "seen": {"type": "integer"}});
    json!({
        "type": "object", "required": ["spec"],
        "properties": {
            "spec": {"type": "object", "required": ["size"], "properties": spec},
            "status": {"type": "object", "properties": status},
        },
    })
}

/// A cluster-scoped kind without a schema or a status subresource.
pub(super) fn gadget_crd(group: &str) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("gadgets.{group}")},
        "spec": {
            "group": group, "scope": "Cluster",
            "names": {"plural": "gadgets", "singular": "gadget", "kind": "Gadget"},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            }],
        },
    })
}
