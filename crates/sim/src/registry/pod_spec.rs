//! Defaulting and validation of pod specs, in Pods and in pod templates.

use crate::value::{Value, json};

use super::is_dns_label;
use crate::api::quantity;
use crate::api::status::StatusCause;
use crate::object::{self, at, items, number, set, take, text};

pub fn default(object: &mut Value, at_path: &str) {
    let Some(mut spec) = take(object, at_path) else { return };
    if !spec.is_object() {
        return set(object, at_path, spec);
    }
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
    for volume in spec.get_mut("volumes").and_then(Value::as_array_mut).into_iter().flatten() {
        if volume.as_object().is_some_and(|v| v.len() == 1) {
            volume["emptyDir"] = json!({});
        }
    }
    for list in ["containers", "initContainers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            default_container(container);
        }
    }
    set(object, at_path, spec);
}

fn default_container(container: &mut Value) {
    let image = text(container, "image");
    let tag = image.rsplit('/').next().and_then(|name| name.split_once(':')).map(|(_, tag)| tag);
    let moves = !image.contains('@') && tag.is_none_or(|tag| tag == "latest");
    let pull = if moves { "Always" } else { "IfNotPresent" };
    object::default(container, "imagePullPolicy", json!(pull));
    object::default(container, "terminationMessagePath", json!("/dev/termination-log"));
    object::default(container, "terminationMessagePolicy", json!("File"));
    object::default(container, "resources", json!({}));
    // Missing requests default to the limits.
    if let Some(limits) = at(container, "resources.limits").and_then(Value::as_object).cloned() {
        object::default(container, "resources.requests", json!({}));
        for (resource, limit) in limits {
            if container["resources"]["requests"].get(&resource).is_none() {
                container["resources"]["requests"][&*resource] = limit;
            }
        }
    }
    for port in container.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        object::default(port, "protocol", json!("TCP"));
    }
}

pub fn validate(object: &Value, path: &str) -> Vec<StatusCause> {
    let Some(spec) = at(object, path) else { return vec![StatusCause::required(path, "")] };
    let mut causes = Vec::new();
    if let Some(seconds) = number(spec, "activeDeadlineSeconds")
        && !(1..=i64::from(i32::MAX)).contains(&seconds)
    {
        let detail = "must be between 1 and 2147483647, inclusive";
        causes.push(StatusCause::invalid(format!("{path}.activeDeadlineSeconds"), &json!(seconds), detail));
    }
    causes.extend(one_of(spec, path, "restartPolicy", &["Always", "OnFailure", "Never"]));
    causes.extend(one_of(
        spec,
        path,
        "dnsPolicy",
        &["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"],
    ));
    causes.extend(validate_volumes(spec, path));
    causes.extend(validate_containers(spec, path));
    causes.extend(validate_tolerations(spec, path));
    causes.extend(validate_affinity(spec, path));
    causes
}

fn one_of(value: &Value, path: &str, field: &str, allowed: &[&str]) -> Option<StatusCause> {
    let given = text(value, field);
    let list: Vec<String> = allowed.iter().map(|a| format!("{a:?}")).collect();
    (!allowed.contains(&given))
        .then(|| StatusCause::unsupported(format!("{path}.{field}"), &json!(given), &list))
}

fn validate_volumes(spec: &Value, path: &str) -> Vec<StatusCause> {
    let volumes = items(spec, "volumes");
    let twice = |(i, volume): (usize, &Value)| {
        let name = text(volume, "name");
        let before = volumes[..i].iter().any(|v| text(v, "name") == name);
        before.then(|| StatusCause::duplicate(format!("{path}.volumes[{i}].name"), &json!(name)))
    };
    volumes.iter().enumerate().filter_map(twice).collect()
}

fn validate_containers(spec: &Value, path: &str) -> Vec<StatusCause> {
    let mut causes = Vec::new();
    if items(spec, "containers").is_empty() {
        causes.push(StatusCause::required(format!("{path}.containers"), ""));
    }
    let mut names = Vec::new();
    for list in ["containers", "initContainers"] {
        for (i, container) in items(spec, list).iter().enumerate() {
            let path = format!("{path}.{list}[{i}]");
            let name = text(container, "name");
            if name.is_empty() {
                causes.push(StatusCause::required(format!("{path}.name"), ""));
            } else if !is_dns_label(name) {
                let detail =
                    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-'";
                causes.push(StatusCause::invalid(format!("{path}.name"), &json!(name), detail));
            } else if names.contains(&name) {
                causes.push(StatusCause::duplicate(format!("{path}.name"), &json!(name)));
            }
            names.push(name);
            if text(container, "image").is_empty() {
                causes.push(StatusCause::required(format!("{path}.image"), ""));
            }
            causes.extend(one_of(container, &path, "imagePullPolicy", &["Always", "IfNotPresent", "Never"]));
            causes.extend(validate_resources(container, &path));
            for (m, mount) in items(container, "volumeMounts").iter().enumerate() {
                if !items(spec, "volumes").iter().any(|v| text(v, "name") == text(mount, "name")) {
                    let path = format!("{path}.volumeMounts[{m}].name");
                    causes.push(StatusCause {
                        reason: "FieldValueNotFound",
                        ..StatusCause::invalid(path, &mount["name"], "no such volume")
                    });
                }
            }
        }
    }
    causes
}

fn validate_resources(container: &Value, path: &str) -> Option<StatusCause> {
    let requests = at(container, "resources.requests").and_then(Value::as_object)?;
    let limits = at(container, "resources.limits").and_then(Value::as_object)?;
    let billionths = |quantity: &Value| quantity.as_str().and_then(quantity::billionths);
    let over = requests.iter().find(|(resource, request)| {
        limits.get(resource).is_some_and(|limit| billionths(request) > billionths(limit))
    })?;
    let detail = format!("must be less than or equal to {} limit", over.0);
    Some(StatusCause::invalid(format!("{path}.resources.requests"), over.1, &detail))
}

fn validate_tolerations(spec: &Value, path: &str) -> Vec<StatusCause> {
    let mut causes = Vec::new();
    for (i, toleration) in items(spec, "tolerations").iter().enumerate() {
        let path = format!("{path}.tolerations[{i}]");
        let (key, operator) = (text(toleration, "key"), text(toleration, "operator"));
        let wrong = |field: &str, detail: &str| {
            StatusCause::invalid(format!("{path}.{field}"), &toleration[field], detail)
        };
        match operator {
            "Exists" if !text(toleration, "value").is_empty() => {
                causes.push(wrong("operator", "value must be empty when `operator` is 'Exists'"));
            }
            "" | "Equal" if key.is_empty() => {
                causes.push(wrong("operator", "operator must be Exists when `key` is empty, which means \"match all values and all keys\""));
            }
            "" | "Equal" | "Exists" => {}
            _ => causes.extend(one_of(toleration, &path, "operator", &["Equal", "Exists"])),
        }
        if number(toleration, "tolerationSeconds").is_some()
            && !matches!(text(toleration, "effect"), "" | "NoExecute")
        {
            causes.push(wrong("effect", "effect must be 'NoExecute' when `tolerationSeconds` is set"));
        }
    }
    causes
}

fn validate_affinity(spec: &Value, path: &str) -> Vec<StatusCause> {
    const REQUIRED: &str = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution";
    let mut causes = Vec::new();
    for (t, term) in items(spec, &format!("{REQUIRED}.nodeSelectorTerms")).iter().enumerate() {
        let path = format!("{path}.{REQUIRED}.nodeSelectorTerms[{t}]");
        for (i, expression) in items(term, "matchExpressions").iter().enumerate() {
            let path = format!("{path}.matchExpressions[{i}]");
            let count = items(expression, "values").len();
            let allowed = ["DoesNotExist", "Exists", "Gt", "In", "Lt", "NotIn"];
            causes.extend(one_of(expression, &path, "operator", &allowed));
            if matches!(text(expression, "operator"), "In" | "NotIn") && count == 0 {
                causes.push(StatusCause::required(
                    format!("{path}.values"),
                    "must be specified when `operator` is 'In' or 'NotIn'",
                ));
            }
        }
        for (i, field) in items(term, "matchFields").iter().enumerate() {
            let path = format!("{path}.matchFields[{i}]");
            if items(field, "values").len() != 1 {
                causes.push(StatusCause::required(
                    format!("{path}.values"),
                    "must be only one value when `operator` is 'In' or 'NotIn' for node field selector",
                ));
            }
            if text(field, "key") != "metadata.name" {
                causes.push(StatusCause::invalid(
                    format!("{path}.key"),
                    &field["key"],
                    "not a valid field selector key",
                ));
            }
        }
    }
    causes
}
