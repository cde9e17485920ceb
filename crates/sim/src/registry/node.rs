//! The strategy of Nodes: a not-ready taint on create, an immutable provider id and pod CIDR.

use crate::value::{Value, json};

use super::{AdmissionContext, Strategy, is_label_value, is_qualified_name};
use crate::api::status::{ApiError, StatusCause};
use crate::object::{at, default, items, set, take, text};

/// The taint of a node that is not Ready.
pub const NOT_READY: &str = "node.kubernetes.io/not-ready";
/// The taint of a node whose Ready condition is Unknown.
pub const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
/// The taint of a cordoned node.
pub const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

const NODE_INFO: &[&str] = &[
    "machineID",
    "systemUUID",
    "bootID",
    "kernelVersion",
    "osImage",
    "containerRuntimeVersion",
    "kubeletVersion",
    "kubeProxyVersion",
    "operatingSystem",
    "architecture",
];

#[derive(Debug)]
pub struct Nodes;

impl Strategy for Nodes {
    fn admit(&self, node: &mut Value, _: &AdmissionContext<'_>) -> Result<(), ApiError> {
        let mut taints = items(node, "spec.taints").to_vec();
        if !taints.iter().any(|t| text(t, "key") == NOT_READY && text(t, "effect") == "NoSchedule") {
            taints.push(json!({"key": NOT_READY, "effect": "NoSchedule"}));
        }
        set(node, "spec.taints", taints.into());
        Ok(())
    }

    fn default(&self, node: &mut Value) {
        if let Some(capacity) = at(node, "status.capacity").cloned() {
            default(node, "status.allocatable", capacity);
        }
        if let Some(cidr) = at(node, "spec.podCIDR").cloned() {
            default(node, "spec.podCIDRs", json!([cidr]));
        }
        // Go writes the empty fields of this struct.
        for field in NODE_INFO {
            default(node, &format!("status.nodeInfo.{field}"), json!(""));
        }
        default(node, "status.daemonEndpoints.kubeletEndpoint.Port", json!(0));
        // Go omits these.
        if at(node, "spec.unschedulable") == Some(&json!(false)) {
            take(node, "spec.unschedulable");
        }
        let is_empty = |taint: &Value| at(taint, "value").is_some_and(|value| value == "");
        if items(node, "spec.taints").iter().any(is_empty) {
            for taint in node["spec"].get_mut("taints").and_then(Value::as_array_mut).into_iter().flatten() {
                if is_empty(taint) {
                    take(taint, "value");
                }
            }
        }
    }

    fn validate(&self, node: &Value) -> Vec<StatusCause> {
        let mut causes = Vec::new();
        let taints = items(node, "spec.taints");
        for (i, taint) in taints.iter().enumerate() {
            // The real server uses this path.
            let path = format!("metadata.taints[{i}]");
            if !is_qualified_name(text(taint, "key")) {
                causes.push(StatusCause::invalid(
                    format!("{path}.key"),
                    &taint["key"],
                    "name part must be non-empty",
                ));
            }
            if !is_label_value(text(taint, "value")) {
                causes.push(StatusCause::invalid(
                    format!("{path}.value"),
                    &taint["value"],
                    "not a valid label value",
                ));
            }
            let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
            if text(taint, "effect").is_empty() {
                causes.push(StatusCause::required(format!("{path}.effect"), ""));
            } else if !effects.contains(&text(taint, "effect")) {
                let allowed = effects.map(|e| format!("{e:?}"));
                causes.push(StatusCause::unsupported(format!("{path}.effect"), &taint["effect"], &allowed));
            }
            let id = |t: &Value| (text(t, "key").to_owned(), text(t, "effect").to_owned());
            if taints[..i].iter().any(|earlier| id(earlier) == id(taint)) {
                causes.push(StatusCause::duplicate(path, taint));
            }
        }
        causes
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<StatusCause> {
        let fixed = |path: &str, name: &str| {
            let changed = at(old, path).is_some_and(|o| !o.as_str().is_some_and(str::is_empty))
                && at(new, path) != at(old, path);
            changed.then(|| {
                StatusCause::forbidden(
                    path,
                    &format!("node updates may not change {name} except from \"\" to valid"),
                )
            })
        };
        let cidrs = fixed("spec.podCIDRs", "podCIDR").or_else(|| fixed("spec.podCIDR", "podCIDR"));
        fixed("spec.providerID", "providerID").into_iter().chain(cidrs).collect()
    }
}
