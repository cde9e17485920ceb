//! The strategies of kinds that need only a few lines.

use crate::value::{Value, json};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::{AdmissionContext, Strategy, immutable, is_dns_label, pod_spec};
use crate::api::status::{ApiError, StatusCause};
use crate::object::{self, at, default, is_true, items, number, set, take, text};

#[derive(Debug)]
pub struct Namespaces;
impl Strategy for Namespaces {
    fn default(&self, namespace: &mut Value) {
        let name = object::name(namespace).to_owned();
        if !name.is_empty() {
            // The key has dots, so no dotted path.
            object::default(namespace, "metadata.labels", json!({}));
            namespace["metadata"]["labels"]["kubernetes.io/metadata.name"] = json!(name);
        }
    }
    fn admit(&self, namespace: &mut Value, _: &AdmissionContext<'_>) -> Result<(), ApiError> {
        default(namespace, "spec.finalizers", json!(["kubernetes"]));
        set(namespace, "status", json!({"phase": "Active"}));
        Ok(())
    }
    fn prepare_for_update(&self, new: &mut Value, old: &Value) {
        object::copy(old, new, "spec.finalizers");
    }
    fn check_name(&self, name: &str) -> Option<&'static str> {
        (!is_dns_label(name))
            .then_some("a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-'")
    }
}

#[derive(Debug)]
pub struct Services;
impl Strategy for Services {
    fn default(&self, service: &mut Value) {
        default(service, "spec.type", json!("ClusterIP"));
        default(service, "spec.sessionAffinity", json!("None"));
        if text(service, "spec.type") != "ExternalName" {
            default(service, "spec.internalTrafficPolicy", json!("Cluster"));
        }
        for port in service["spec"].get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
            default(port, "protocol", json!("TCP"));
            let number = port.get("port").cloned().unwrap_or_default();
            default(port, "targetPort", number);
        }
    }
    fn admit(&self, service: &mut Value, ctx: &AdmissionContext<'_>) -> Result<(), ApiError> {
        if text(service, "spec.type") == "ExternalName" {
            return Ok(());
        }
        let taken = |ip: &str| ctx.store.all("services").any(|(_, s)| text(s, "spec.clusterIP") == ip);
        let asked = text(service, "spec.clusterIP");
        if !matches!(asked, "" | "None") && taken(asked) {
            let cause =
                StatusCause::invalid("spec.clusterIPs", &json!([asked]), "provided IP is already allocated");
            return Err(ApiError::invalid(ctx.resource, object::name(service), &[cause]));
        }
        if asked.is_empty() {
            let free =
                (10..65_000_u32).map(|n| format!("10.96.{}.{}", n / 256, n % 256)).find(|ip| !taken(ip));
            let ip =
                free.ok_or_else(|| ApiError::internal("failed to allocate a serviceIP: range is full"))?;
            set(service, "spec.clusterIP", json!(ip));
        }
        let ip = text(service, "spec.clusterIP").to_owned();
        set(service, "spec.clusterIPs", json!([ip]));
        default(service, "spec.ipFamilies", json!(["IPv4"]));
        default(service, "spec.ipFamilyPolicy", json!("SingleStack"));
        set(service, "status", json!({"loadBalancer": {}}));
        Ok(())
    }
    fn prepare_for_update(&self, new: &mut Value, old: &Value) {
        for path in ["spec.clusterIP", "spec.clusterIPs", "spec.ipFamilies", "spec.ipFamilyPolicy"] {
            if at(new, path).is_none() {
                object::copy(old, new, path);
            }
        }
    }
    fn validate(&self, service: &Value) -> Vec<StatusCause> {
        let headless =
            text(service, "spec.clusterIP") == "None" || text(service, "spec.type") == "ExternalName";
        let missing = items(service, "spec.ports").is_empty() && !headless;
        missing.then(|| StatusCause::required("spec.ports", "")).into_iter().collect()
    }
    fn validate_update(&self, new: &Value, old: &Value) -> Vec<StatusCause> {
        immutable(new, old, "spec.clusterIP").into_iter().collect()
    }
    fn check_name(&self, name: &str) -> Option<&'static str> {
        let good = is_dns_label(name) && name.starts_with(|c: char| c.is_ascii_lowercase());
        (!good).then_some("a DNS-1035 label must consist of lower case alphanumeric characters or '-', and start with a letter")
    }
}

fn frozen_when_immutable(new: &Value, old: &Value, fields: &[&str]) -> Vec<StatusCause> {
    if !is_true(old, "immutable") {
        return Vec::new();
    }
    let changed = |path: &&&str| at(new, path) != at(old, path);
    let detail = "field is immutable when `immutable` is set";
    fields.iter().filter(changed).map(|path| StatusCause::forbidden(*path, detail)).collect()
}

#[derive(Debug)]
pub struct ConfigMaps;
impl Strategy for ConfigMaps {
    fn validate(&self, map: &Value) -> Vec<StatusCause> {
        let keys =
            |field: &str| at(map, field).and_then(Value::as_object).into_iter().flatten().map(|(k, _)| k);
        let good = |key: &str| {
            key.len() <= 253
                && !key.is_empty()
                && key.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        };
        let detail = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'";
        let bad = ["data", "binaryData"].into_iter().flat_map(|field| {
            keys(field)
                .filter(|key| !good(key))
                .map(move |key| StatusCause::invalid(format!("{field}[{key}]"), &json!(key), detail))
        });
        let twice = keys("data").filter(|key| keys("binaryData").any(|k| k == *key));
        let twice = twice.map(|key| {
            StatusCause::invalid(
                format!("data[{key}]"),
                &json!(key),
                "duplicate of key present in binaryData",
            )
        });
        bad.chain(twice).collect()
    }
    fn validate_update(&self, new: &Value, old: &Value) -> Vec<StatusCause> {
        frozen_when_immutable(new, old, &["immutable", "data", "binaryData"])
    }
}

#[derive(Debug)]
pub struct Secrets;
impl Strategy for Secrets {
    fn default(&self, secret: &mut Value) {
        default(secret, "type", json!("Opaque"));
        let Some(Value::Object(plain)) = take(secret, "stringData") else { return };
        default(secret, "data", json!({}));
        for (key, value) in plain {
            secret["data"][&*key] = json!(BASE64.encode(value.as_str().unwrap_or_default()));
        }
    }
    fn validate_update(&self, new: &Value, old: &Value) -> Vec<StatusCause> {
        let mut causes = frozen_when_immutable(new, old, &["immutable", "data"]);
        causes.extend(immutable(new, old, "type"));
        causes
    }
}

#[derive(Debug)]
pub struct Events;
impl Strategy for Events {
    fn default(&self, event: &mut Value) {
        default(event, "source", json!({}));
        default(event, "reportingComponent", json!(""));
        default(event, "reportingInstance", json!(""));
    }
    fn validate(&self, event: &Value) -> Vec<StatusCause> {
        let about = text(event, "involvedObject.namespace");
        let home = object::namespace(event);
        let fits = about == home || (about.is_empty() && home == "default");
        let cause = || {
            StatusCause::invalid("involvedObject.namespace", &json!(about), "does not match event.namespace")
        };
        (!fits).then(cause).into_iter().collect()
    }
}

/// The strategy of events.k8s.io Events: the same objects under their core field names, with stricter validation.
#[derive(Debug)]
pub struct EventsV1;
impl Strategy for EventsV1 {
    fn default(&self, event: &mut Value) {
        Events.default(event);
    }
    fn validate(&self, event: &Value) -> Vec<StatusCause> {
        let mut causes = Events.validate(event);
        for (field, name) in [
            ("eventTime", "eventTime"),
            ("reportingComponent", "reportingController"),
            ("reportingInstance", "reportingInstance"),
            ("action", "action"),
            ("reason", "reason"),
        ] {
            if text(event, field).is_empty() {
                causes.push(StatusCause::required(name, ""));
            }
        }
        if !matches!(text(event, "type"), "Normal" | "Warning") {
            causes.push(StatusCause::invalid("type", &event["type"], "must be Normal or Warning"));
        }
        if text(event, "message").len() > 1024 {
            causes.push(StatusCause::invalid("message", &json!("…"), "can have at most 1024 characters"));
        }
        causes
    }
    fn validate_update(&self, new: &Value, old: &Value) -> Vec<StatusCause> {
        ["involvedObject", "reason", "message", "source", "type", "eventTime", "action", "related"]
            .iter()
            .filter_map(|path| immutable(new, old, path))
            .collect()
    }
}

#[derive(Debug)]
pub struct Leases;
impl Strategy for Leases {
    fn validate(&self, lease: &Value) -> Vec<StatusCause> {
        let seconds = number(lease, "spec.leaseDurationSeconds").filter(|s| *s <= 0);
        let path = "spec.leaseDurationSeconds";
        seconds.map(|s| StatusCause::invalid(path, &json!(s), "must be greater than 0")).into_iter().collect()
    }
}

#[derive(Debug)]
pub struct EndpointSlices;
impl Strategy for EndpointSlices {
    fn default(&self, slice: &mut Value) {
        for port in slice.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
            default(port, "name", json!(""));
            default(port, "protocol", json!("TCP"));
        }
    }
    fn validate(&self, slice: &Value) -> Vec<StatusCause> {
        let kind = text(slice, "addressType");
        let registry = ["FQDN", "IPv4", "IPv6"];
        if kind.is_empty() {
            return vec![StatusCause::required("addressType", "")];
        }
        if !registry.contains(&kind) {
            return vec![StatusCause::unsupported(
                "addressType",
                &json!(kind),
                &registry.map(|k| format!("{k:?}")),
            )];
        }
        let fits = |address: &str| match kind {
            "IPv4" => address.parse::<std::net::Ipv4Addr>().is_ok(),
            "IPv6" => address.parse::<std::net::Ipv6Addr>().is_ok(),
            _ => true,
        };
        let wrong = |(i, endpoint): (usize, &Value)| {
            let bad = items(endpoint, "addresses").iter().find(|a| !a.as_str().is_some_and(fits))?.clone();
            Some(StatusCause::invalid(
                format!("endpoints[{i}].addresses"),
                &bad,
                &format!("must be an {kind} address"),
            ))
        };
        items(slice, "endpoints").iter().enumerate().filter_map(wrong).collect()
    }
    fn validate_update(&self, new: &Value, old: &Value) -> Vec<StatusCause> {
        immutable(new, old, "addressType").into_iter().collect()
    }
}

#[derive(Debug)]
pub struct PriorityClasses;
impl Strategy for PriorityClasses {
    fn default(&self, class: &mut Value) {
        default(class, "preemptionPolicy", json!("PreemptLowerPriority"));
        default(class, "value", json!(0));
    }
    fn validate(&self, class: &Value) -> Vec<StatusCause> {
        let name = object::name(class);
        if matches!(name, "system-node-critical" | "system-cluster-critical") {
            return Vec::new();
        }
        let mut causes = Vec::new();
        if name.starts_with("system-") {
            let detail = "priority class names with 'system-' prefix are reserved for system use only";
            causes.push(StatusCause::invalid("metadata.name", &json!(name), detail));
        }
        if number(class, "value").is_some_and(|v| v > 1_000_000_000) {
            let detail = "maximum allowed value of a user defined priority is 1000000000";
            causes.push(StatusCause::forbidden("value", detail));
        }
        causes
    }
    fn validate_update(&self, new: &Value, old: &Value) -> Vec<StatusCause> {
        let changed = |path: &&str| at(new, path) != at(old, path);
        let fixed = ["value", "preemptionPolicy"].into_iter().filter(changed);
        fixed.map(|path| StatusCause::forbidden(path, "may not be changed in an update.")).collect()
    }
}

/// The strategy of Deployments, ReplicaSets, `StatefulSets` and DaemonSets, which no controller acts on.
#[derive(Debug)]
pub struct Workloads;
impl Strategy for Workloads {
    fn default(&self, workload: &mut Value) {
        let rolling = |surge: Value, unavailable: Value| json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}});
        match text(workload, "kind") {
            "Deployment" => {
                default(workload, "spec.replicas", json!(1));
                default(workload, "spec.revisionHistoryLimit", json!(10));
                default(workload, "spec.progressDeadlineSeconds", json!(600));
                default(workload, "spec.strategy", rolling(json!("25%"), json!("25%")));
            }
            "DaemonSet" => {
                default(workload, "spec.revisionHistoryLimit", json!(10));
                default(workload, "spec.updateStrategy", rolling(json!(0), json!(1)));
            }
            "StatefulSet" => {
                default(workload, "spec.replicas", json!(1));
                default(workload, "spec.revisionHistoryLimit", json!(10));
                default(workload, "spec.podManagementPolicy", json!("OrderedReady"));
                let rolling = json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0}});
                default(workload, "spec.updateStrategy", rolling);
                let retain = json!({"whenDeleted": "Retain", "whenScaled": "Retain"});
                default(workload, "spec.persistentVolumeClaimRetentionPolicy", retain);
            }
            _ => default(workload, "spec.replicas", json!(1)),
        }
        pod_spec::default(workload, "spec.template.spec");
    }
    fn admit(&self, workload: &mut Value, _: &AdmissionContext<'_>) -> Result<(), ApiError> {
        let status = match text(workload, "kind") {
            "Deployment" => json!({}),
            "ReplicaSet" => json!({"replicas": 0}),
            "StatefulSet" => json!({"replicas": 0, "availableReplicas": 0}),
            _ => {
                json!({"currentNumberScheduled": 0, "desiredNumberScheduled": 0, "numberMisscheduled": 0, "numberReady": 0})
            }
        };
        set(workload, "status", status);
        Ok(())
    }
    fn validate(&self, workload: &Value) -> Vec<StatusCause> {
        let mut causes = pod_spec::validate(workload, "spec.template.spec");
        let selector = at(workload, "spec.selector").filter(|s| s.as_object().is_some_and(|s| !s.is_empty()));
        let wanted = selector.and_then(|s| s.get("matchLabels")).and_then(Value::as_object);
        if selector.is_none() {
            causes.push(StatusCause::required("spec.selector", ""));
        }
        let labels = at(workload, "spec.template.metadata.labels");
        let matches = |(key, value): (&str, &Value)| labels.and_then(|l| l.get(key)) == Some(value);
        if !wanted.into_iter().flatten().all(matches) {
            let found = labels.unwrap_or(&Value::Null);
            let detail = "`selector` does not match template `labels`";
            causes.push(StatusCause::invalid("spec.template.metadata.labels", found, detail));
        }
        causes
    }
    fn validate_update(&self, new: &Value, old: &Value) -> Vec<StatusCause> {
        immutable(new, old, "spec.selector").into_iter().collect()
    }
}
