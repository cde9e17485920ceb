//! Pods: defaults and admission as the API server does them, an all but immutable spec, graceful deletion.

use serde_json::{Value, json};

use super::node::{NOT_READY, UNREACHABLE};
use super::{Rules, Scene, is_dns_label};
use crate::api::status::{ApiError, Cause};
use crate::object::{self, at, items, namespace, number, set, take, text};

/// Rules of Pods.
#[derive(Debug)]
pub struct Pods;

impl Rules for Pods {
    fn default(&self, pod: &mut Value) {
        default_pod_spec(pod, "spec");
        tolerate_brief_outages(pod);
    }

    fn admit(&self, pod: &mut Value, scene: &Scene<'_>) -> Result<(), ApiError> {
        admit_service_account(pod, scene)?;
        admit_priority(pod, scene)?;
        let qos = qos_class(pod);
        set(pod, "status", json!({"phase": "Pending", "qosClass": qos}));
        Ok(())
    }

    fn validate(&self, pod: &Value) -> Vec<Cause> {
        let mut causes = validate_containers(pod, "spec");
        if let Some(seconds) = number(pod, "spec.activeDeadlineSeconds")
            && !(1..=i64::from(i32::MAX)).contains(&seconds)
        {
            let detail = "must be between 1 and 2147483647, inclusive";
            causes.push(Cause::invalid("spec.activeDeadlineSeconds", &json!(seconds), detail));
        }
        let policies = ["Always", "OnFailure", "Never"];
        if !policies.contains(&text(pod, "spec.restartPolicy")) {
            let allowed = policies.map(|p| format!("{p:?}"));
            causes.push(Cause::unsupported("spec.restartPolicy", &pod["spec"]["restartPolicy"], &allowed));
        }
        causes
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Cause> {
        let mut causes = Vec::new();
        let (before, after) = (items(old, "spec.tolerations"), items(new, "spec.tolerations"));
        if !before.iter().all(|t| after.contains(t)) {
            let detail = "existing toleration can not be modified except its tolerationSeconds";
            causes.push(Cause::forbidden("spec.tolerations", detail));
        }
        if let Some(was) = number(old, "spec.activeDeadlineSeconds")
            && number(new, "spec.activeDeadlineSeconds").is_none_or(|is| is > was)
        {
            let detail = "must be less than or equal to previous value";
            causes.push(Cause::invalid("spec.activeDeadlineSeconds", &json!(was), detail));
        }
        if frozen(new) != frozen(old) {
            let detail = "pod updates may not change fields other than `spec.containers[*].image`,\
                `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to \
                existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was \
                previously negative)";
            causes.push(Cause::forbidden("spec", detail));
        }
        causes
    }

    fn carry_over(&self, new: &mut Value, old: &Value) {
        for path in ["spec.nodeName", "spec.priority", "spec.preemptionPolicy", "spec.serviceAccountName", "spec.serviceAccount"] {
            if at(new, path).is_none() {
                object::copy(old, new, path);
            }
        }
    }

    fn grace_seconds(&self, pod: &Value, asked: Option<i64>) -> Option<i64> {
        let unscheduled = text(pod, "spec.nodeName").is_empty();
        let finished = matches!(text(pod, "status.phase"), "Succeeded" | "Failed");
        if unscheduled || finished {
            return Some(0);
        }
        let seconds = asked.or_else(|| number(pod, "spec.terminationGracePeriodSeconds")).unwrap_or(30);
        Some(if seconds < 0 { 1 } else { seconds })
    }
}

/// Fills in what every pod spec gets, in a Pod or in a template.
pub(super) fn default_pod_spec(object: &mut Value, at_path: &str) {
    let Some(mut spec) = at(object, at_path).cloned().filter(Value::is_object) else { return };
    for (path, value) in [
        ("restartPolicy", json!("Always")),
        ("terminationGracePeriodSeconds", json!(30)),
        ("dnsPolicy", json!("ClusterFirst")),
        ("schedulerName", json!("default-scheduler")),
        ("securityContext", json!({})),
    ] {
        object::default(&mut spec, path, value);
    }
    if at_path == "spec" {
        object::default(&mut spec, "enableServiceLinks", json!(true));
    }
    for list in ["containers", "initContainers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            let image = text(container, "image");
            let tag = image.rsplit('/').next().and_then(|name| name.split_once(':')).map(|(_, tag)| tag);
            let moves = !image.contains('@') && tag.is_none_or(|tag| tag == "latest");
            let pull = if moves { "Always" } else { "IfNotPresent" };
            object::default(container, "imagePullPolicy", json!(pull));
            object::default(container, "terminationMessagePath", json!("/dev/termination-log"));
            object::default(container, "terminationMessagePolicy", json!("File"));
            object::default(container, "resources", json!({}));
            for port in container.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
                object::default(port, "protocol", json!("TCP"));
            }
        }
    }
    set(object, at_path, spec);
}

pub(super) fn validate_containers(object: &Value, spec: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    if items(object, &format!("{spec}.containers")).is_empty() {
        causes.push(Cause::required(format!("{spec}.containers"), ""));
    }
    let mut names = Vec::new();
    for list in ["initContainers", "containers"] {
        for (i, container) in items(object, &format!("{spec}.{list}")).iter().enumerate() {
            let path = format!("{spec}.{list}[{i}]");
            let name = text(container, "name");
            if name.is_empty() {
                causes.push(Cause::required(format!("{path}.name"), ""));
            } else if !is_dns_label(name) {
                let detail = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-'";
                causes.push(Cause::invalid(format!("{path}.name"), &json!(name), detail));
            } else if names.contains(&name) {
                causes.push(Cause::duplicate(format!("{path}.name"), &json!(name)));
            }
            names.push(name);
            if text(container, "image").is_empty() {
                causes.push(Cause::required(format!("{path}.image"), ""));
            }
        }
    }
    causes
}

/// The part of the spec that an update must leave alone.
fn frozen(pod: &Value) -> Value {
    let mut spec = pod.get("spec").cloned().unwrap_or_default();
    for path in ["activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds"] {
        take(&mut spec, path);
    }
    for list in ["containers", "initContainers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            take(container, "image");
        }
    }
    spec
}

fn admit_service_account(pod: &mut Value, scene: &Scene<'_>) -> Result<(), ApiError> {
    object::default(pod, "spec.serviceAccountName", json!("default"));
    let account = text(pod, "spec.serviceAccountName").to_owned();
    set(pod, "spec.serviceAccount", json!(account));
    let key = format!("{}/{account}", namespace(pod));
    if scene.store.get("serviceaccounts", &key).is_none() {
        let detail = format!("error looking up service account {key}: serviceaccount \"{account}\" not found");
        return Err(ApiError::forbidden(scene.resource, object::name(pod), &detail));
    }
    Ok(())
}

fn admit_priority(pod: &mut Value, scene: &Scene<'_>) -> Result<(), ApiError> {
    const CLASSES: &str = "scheduling.k8s.io/priorityclasses";
    let wanted = text(pod, "spec.priorityClassName").to_owned();
    let class = if wanted.is_empty() {
        scene.store.all(CLASSES).map(|(_, c)| c).find(|c| object::is_true(c, "globalDefault"))
    } else {
        let class = scene.store.get(CLASSES, &wanted);
        if class.is_none() {
            let detail = format!("no PriorityClass with name {wanted} was found");
            return Err(ApiError::forbidden(scene.resource, object::name(pod), &detail));
        }
        class
    };
    let priority = class.and_then(|c| number(c, "value")).unwrap_or(0);
    let preemption = class.map_or("PreemptLowerPriority", |c| text(c, "preemptionPolicy"));
    if let Some(class) = class {
        set(pod, "spec.priorityClassName", json!(object::name(class)));
    }
    set(pod, "spec.priority", json!(priority));
    set(pod, "spec.preemptionPolicy", json!(preemption));
    Ok(())
}

/// Every pod that does not say otherwise stays five minutes on a node that is not ready or not reachable.
fn tolerate_brief_outages(pod: &mut Value) {
    let mut tolerations = items(pod, "spec.tolerations").to_vec();
    for key in [NOT_READY, UNREACHABLE] {
        let covered = |t: &Value| {
            (text(t, "key") == key || text(t, "key").is_empty()) && matches!(text(t, "effect"), "" | "NoExecute")
        };
        if !tolerations.iter().any(covered) {
            tolerations.push(
                json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}),
            );
        }
    }
    set(pod, "spec.tolerations", Value::Array(tolerations));
}

fn qos_class(pod: &Value) -> &'static str {
    let (mut any, mut all) = (false, true);
    for container in items(pod, "spec.containers") {
        let limits = at(container, "resources.limits");
        let requests = at(container, "resources.requests").or(limits);
        any |= [limits, requests].iter().flatten().any(|r| r.as_object().is_some_and(|m| !m.is_empty()));
        let complete = limits.is_some_and(|l| l.get("cpu").is_some() && l.get("memory").is_some());
        all &= complete && requests == limits;
    }
    match (any, all) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}
