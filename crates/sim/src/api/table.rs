//! The output formats of objects: whole objects, `PartialObjectMetadata` and `Table`.

use std::sync::Arc;

use crate::value::{Value, json};
use jiff::Timestamp;
use jsonpath_rust::JsonPath as _;

use super::Query;
use super::status::ApiError;
use crate::object::{self, at, condition_status, is_true, items, number, text};
use crate::resource::Resource;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Whole,
    Metadata,
    Table(IncludeObject),
}

/// The `includeObject` parameter of a `Table`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IncludeObject {
    None,
    Metadata,
    Object,
}

impl Shape {
    /// The first supported format of an `Accept` header, else 406.
    pub fn of(accept: &str, query: &Query, is_list: bool) -> Result<Self, ApiError> {
        for wanted in accept.split(',').map(str::trim) {
            let mut parts = wanted.split(';').map(str::trim);
            let media = parts.next().unwrap_or_default();
            let parameter = |name: &str| {
                wanted.split(';').map(str::trim).find_map(|p| p.strip_prefix(name)?.strip_prefix('='))
            };
            if !matches!(media, "" | "*/*" | "application/*" | "application/json") {
                continue;
            }
            match (parameter("as"), parameter("v")) {
                (None, _) => return Ok(Self::Whole),
                (Some("Table"), Some("v1")) => {
                    return Ok(Self::Table(match query.text("includeObject") {
                        "None" => IncludeObject::None,
                        "Object" => IncludeObject::Object,
                        _ => IncludeObject::Metadata,
                    }));
                }
                (Some("PartialObjectMetadata"), Some("v1")) if !is_list => return Ok(Self::Metadata),
                (Some("PartialObjectMetadataList"), Some("v1")) if is_list => return Ok(Self::Metadata),
                _ => {}
            }
        }
        Err(ApiError::not_acceptable())
    }

    #[must_use]
    pub fn one(self, resource: &Resource, object: Arc<Value>, now: Timestamp) -> Arc<Value> {
        match self {
            Self::Whole => object,
            Self::Metadata => Arc::new(metadata_of(&object)),
            Self::Table(beside) => {
                let version = json!({"resourceVersion": text(&object, "metadata.resourceVersion")});
                Arc::new(table(resource, vec![Arc::unwrap_or_clone(object)], &version, beside, now))
            }
        }
    }

    #[must_use]
    pub fn list(self, resource: &Resource, objects: Vec<Value>, metadata: &Value, now: Timestamp) -> Value {
        match self {
            Self::Table(beside) => table(resource, objects, metadata, beside, now),
            Self::Metadata => json!({
                "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
                "items": objects.iter().map(metadata_of).collect::<Vec<_>>(),
            }),
            Self::Whole => {
                let mut list = json!({"kind": format!("{}List", resource.kind),
                    "apiVersion": resource.api_version(), "metadata": metadata});
                // Moved, since the macro would clone each item.
                list["items"] = objects.into();
                list
            }
        }
    }

    /// A bookmark has only metadata.
    #[must_use]
    pub fn bookmark(self, mut object: Value) -> Value {
        match self {
            Self::Whole => object,
            Self::Metadata => metadata_of(&object),
            Self::Table(_) => {
                let row = json!({"cells": [], "object": metadata_of(&object)});
                let metadata = std::mem::take(&mut object["metadata"]);
                json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
                    "columnDefinitions": [], "rows": [row]})
            }
        }
    }
}

fn metadata_of(object: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
}

type Cell = fn(&Value, Timestamp) -> Value;

/// The columns of the most used kinds; others have a name and an age.
fn columns(kind: &str) -> &'static [(&'static str, Cell)] {
    match kind {
        "Node" => &[
            ("Status", |node, _| json!(node_status(node))),
            ("Roles", |node, _| json!(node_roles(node))),
            ("Age", age),
            ("Version", |node, _| json!(text(node, "status.nodeInfo.kubeletVersion"))),
        ],
        "Pod" => &[
            ("Ready", |pod, _| json!(pod_ready(pod))),
            ("Status", |pod, _| json!(pod_status(pod))),
            ("Restarts", |pod, _| {
                let counts = items(pod, "status.containerStatuses").iter();
                json!(counts.filter_map(|c| number(c, "restartCount")).sum::<i64>().to_string())
            }),
            ("Age", age),
        ],
        "Namespace" => &[("Status", |ns, _| json!(text(ns, "status.phase"))), ("Age", age)],
        "PodDisruptionBudget" => &[
            ("Min Available", |budget, _| bound(budget, "spec.minAvailable")),
            ("Max Unavailable", |budget, _| bound(budget, "spec.maxUnavailable")),
            ("Allowed Disruptions", |budget, _| budget["status"]["disruptionsAllowed"].clone()),
            ("Age", age),
        ],
        "Lease" => &[("Holder", |lease, _| json!(text(lease, "spec.holderIdentity"))), ("Age", age)],
        "Event" => &[
            ("Last Seen", |event, now| {
                let seen = [
                    text(event, "lastTimestamp"),
                    text(event, "eventTime"),
                    text(event, "metadata.creationTimestamp"),
                ];
                json!(seen.iter().find_map(|t| since(t, now)).unwrap_or_else(|| "<unknown>".into()))
            }),
            ("Type", |event, _| event["type"].clone()),
            ("Reason", |event, _| event["reason"].clone()),
            ("Object", |event, _| {
                let kind = text(event, "involvedObject.kind").to_lowercase();
                json!(format!("{kind}/{}", text(event, "involvedObject.name")))
            }),
            ("Message", |event, _| json!(text(event, "message").trim())),
        ],
        _ => &[("Age", age)],
    }
}

fn table(
    resource: &Resource,
    objects: Vec<Value>,
    metadata: &Value,
    beside: IncludeObject,
    now: Timestamp,
) -> Value {
    let column = |name: &str, kind: &str, format: &str, priority: &Value| json!({"name": name, "type": kind, "format": format, "description": "", "priority": priority});
    let zero = json!(0);
    let mut head = vec![column("Name", "string", "name", &zero)];
    if resource.columns.is_empty() {
        head.extend(columns(&resource.kind).iter().map(|(name, _)| column(name, "string", "", &zero)));
    } else {
        for c in &resource.columns {
            head.push(column(
                text(c, "name"),
                text(c, "type"),
                text(c, "format"),
                c.get("priority").unwrap_or(&zero),
            ));
        }
    }
    let row = |object: Value| {
        let mut cells = vec![json!(object::name(&object))];
        if resource.columns.is_empty() {
            let stored = resource.to_stored(object.clone());
            cells.extend(columns(&resource.kind).iter().map(|(_, cell)| cell(&stored, now)));
        } else {
            cells.extend(resource.columns.iter().map(|c| custom_cell(&object, c, now)));
        }
        let mut row = json!({"cells": cells});
        match beside {
            IncludeObject::None => {}
            IncludeObject::Metadata => row["object"] = metadata_of(&object),
            IncludeObject::Object => row["object"] = object,
        }
        row
    };
    let rows: Vec<Value> = objects.into_iter().map(row).collect();
    json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "columnDefinitions": head, "rows": rows})
}

fn custom_cell(object: &Value, column: &Value, now: Timestamp) -> Value {
    let path = format!("${}", text(column, "jsonPath"));
    let plain = serde_json::Value::from(object);
    let found = plain.query(&path).ok().and_then(|found| found.first().map(|found| json!(found)));
    match (found, text(column, "type")) {
        (Some(Value::String(at)), "date") => since(&at, now).map_or(Value::Null, Value::from),
        (Some(value), _) => value,
        (None, _) => Value::Null,
    }
}

fn node_status(node: &Value) -> String {
    let ready = match condition_status(node, "Ready") {
        "True" => "Ready",
        "" => "Unknown",
        _ => "NotReady",
    };
    let cordoned = if is_true(node, "spec.unschedulable") { ",SchedulingDisabled" } else { "" };
    format!("{ready}{cordoned}")
}

fn node_roles(node: &Value) -> String {
    const PREFIX: &str = "node-role.kubernetes.io/";
    let labels = at(node, "metadata.labels").and_then(Value::as_object);
    let roles: Vec<&str> =
        labels.into_iter().flatten().filter_map(|(key, _)| key.strip_prefix(PREFIX)).collect();
    if roles.is_empty() { "<none>".into() } else { roles.join(",") }
}

fn pod_ready(pod: &Value) -> String {
    let ready = items(pod, "status.containerStatuses").iter().filter(|c| is_true(c, "ready")).count();
    format!("{ready}/{}", items(pod, "spec.containers").len())
}

fn pod_status(pod: &Value) -> String {
    let state = |c: &Value| {
        ["waiting", "terminated"].iter().find_map(|s| {
            let reason = text(c, &format!("state.{s}.reason"));
            (!reason.is_empty()).then(|| reason.to_owned())
        })
    };
    let reason = text(pod, "status.reason");
    if object::is_deleting(pod) {
        return "Terminating".into();
    }
    if !reason.is_empty() {
        return reason.to_owned();
    }
    let of_container = items(pod, "status.containerStatuses").iter().find_map(state);
    of_container.unwrap_or_else(|| text(pod, "status.phase").to_owned())
}

fn bound(budget: &Value, path: &str) -> Value {
    at(budget, path).cloned().unwrap_or_else(|| json!("N/A"))
}

fn age(object: &Value, now: Timestamp) -> Value {
    json!(since(text(object, "metadata.creationTimestamp"), now).unwrap_or_else(|| "<unknown>".into()))
}

/// The age as kubectl prints it.
fn since(at: &str, now: Timestamp) -> Option<String> {
    let seconds = (now.as_second() - at.parse::<Timestamp>().ok()?.as_second()).max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let pair = |big: i64, unit: char, small: i64, small_unit: char| match small {
        0 => format!("{big}{unit}"),
        small => format!("{big}{unit}{small}{small_unit}"),
    };
    Some(match () {
        () if seconds < 120 => format!("{seconds}s"),
        () if minutes < 10 => pair(minutes, 'm', seconds % 60, 's'),
        () if hours < 3 => format!("{minutes}m"),
        () if hours < 8 => pair(hours, 'h', minutes % 60, 'm'),
        () if hours < 48 => format!("{hours}h"),
        () if days < 8 => pair(days, 'd', hours % 24, 'h'),
        () if days < 730 => format!("{days}d"),
        () => format!("{}y", days / 365),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_supported_format_is_used() {
        let of = |accept| Shape::of(accept, &Query::default(), true).map_err(|e| e.code);
        assert_eq!(of(""), Ok(Shape::Whole));
        assert_eq!(of("application/vnd.kubernetes.protobuf,application/json"), Ok(Shape::Whole));
        assert_eq!(
            of(
                "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"
            ),
            Ok(Shape::Table(IncludeObject::Metadata))
        );
        assert_eq!(
            of("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"),
            Ok(Shape::Metadata)
        );
        assert_eq!(of("application/vnd.kubernetes.protobuf"), Err(406));
    }

    #[test]
    fn ages_are_printed_as_by_kubectl() {
        let now = Timestamp::from_second(10_000_000).unwrap();
        for (ago, shown) in
            [(5, "5s"), (119, "119s"), (125, "2m5s"), (3600, "60m"), (4 * 3600, "4h"), (90_000 * 3, "3d3h")]
        {
            let at = Timestamp::from_second(10_000_000 - ago).unwrap().to_string();
            assert_eq!(since(&at, now).unwrap(), shown);
        }
    }
}
