//! Objects that the installation brings: what the leader writes so that they are as configured, and what it reports.
//!
//! It is the three-way merge of `kubectl apply`, between the rendering that was applied last, which an annotation holds,
//! the rendering of now, and the live object. Only fields that differ between the two renderings are written, so what
//! somebody else set stays.

use std::collections::BTreeMap;
use std::fmt;

use kube::core::{ApiResource, DynamicObject};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::api::{NodeGate, NodeGateSpec, RemediationPolicy, RemediationPolicySpec};
use crate::condition::Finding;
use crate::reasons;
use crate::text::clean;

/// The annotation with the rendered spec that was applied last, as JSON.
pub const LAST_APPLIED: &str = "nodekeeper.dev/last-applied";
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Who manages an object that the leader created.
const MANAGER: &str = "nodekeeper";
/// Fields of a spec that are written at the creation and never again: a person pauses, and a person resumes.
const WRITTEN_ONCE: [&str; 1] = ["pause"];
/// By these keys Helm, Argo CD and Flux recognise objects that they delete when a chart no longer has them.
const OWNERSHIP_KEYS: [&str; 1] = ["app.kubernetes.io/instance"];
const OWNERSHIP_PREFIXES: [&str; 5] = [
    "helm.sh/",
    "meta.helm.sh/",
    "argocd.argoproj.io/",
    "helm.toolkit.fluxcd.io/",
    "kustomize.toolkit.fluxcd.io/",
];
/// How many fields a condition names.
const MAX_NAMED: usize = 8;
/// How much of a value a condition shows.
const MAX_SHOWN: usize = 80;

/// The kinds that a configuration can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ObjectKind {
    NodeGate,
    RemediationPolicy,
}

impl ObjectKind {
    pub const ALL: [Self; 2] = [Self::NodeGate, Self::RemediationPolicy];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NodeGate => "NodeGate",
            Self::RemediationPolicy => "RemediationPolicy",
        }
    }

    #[must_use]
    pub fn resource(self) -> ApiResource {
        match self {
            Self::NodeGate => ApiResource::erase::<NodeGate>(&()),
            Self::RemediationPolicy => ApiResource::erase::<RemediationPolicy>(&()),
        }
    }

    /// The spec with the defaults that the API server fills in; none if it cannot be parsed, because another release wrote
    /// it or a value is wrong.
    fn defaulted(self, spec: &Value) -> Option<Value> {
        fn parsed<S: DeserializeOwned + Serialize>(spec: &Value) -> Option<Value> {
            let spec = if spec.is_null() { json!({}) } else { spec.clone() };
            serde_json::from_value::<S>(spec).and_then(serde_json::to_value).ok()
        }
        let parsed = match self {
            Self::NodeGate => parsed::<NodeGateSpec>(spec),
            Self::RemediationPolicy => parsed::<RemediationPolicySpec>(spec),
        };
        parsed.map(without_nulls)
    }

    /// Two specs that can be compared: both with defaults, or both as they are. Otherwise all defaults would be differences.
    fn comparable(self, one: &Value, other: &Value) -> (Value, Value) {
        let defaulted = self.defaulted(one).zip(self.defaulted(other));
        defaulted.unwrap_or_else(|| (without_nulls(one.clone()), without_nulls(other.clone())))
    }
}

/// Identifies an object of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectKey {
    pub kind: ObjectKind,
    pub name: String,
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.kind.as_str(), self.name)
    }
}

/// What happens to an object that exists, and of which no rendering was applied yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adoption {
    /// Its fields stay: which of them a person set cannot be told.
    KeepLive,
    /// The configuration wins: an earlier release kept the object equal to it.
    TakeConfigured,
}

/// An object of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfiguredObject {
    pub key: ObjectKey,
    /// The spec as it was rendered, without defaults.
    pub spec: Value,
    pub adoption: Adoption,
}

/// What brings an object to its configuration.
#[derive(Clone, Debug, PartialEq)]
pub enum ApplyStep {
    Nothing,
    /// The whole object.
    Create(Value),
    /// A merge patch.
    Patch(Value),
    /// The object is being deleted, and is created again once it is gone.
    AwaitDeletion,
}

/// Decides what to write now, given the object as the API server has it.
#[must_use]
pub fn next_step(configured: &ConfiguredObject, live: Option<&DynamicObject>) -> ApplyStep {
    let ConfiguredObject { key, spec, .. } = configured;
    let resource = key.kind.resource();
    let Some(live) = live else {
        return ApplyStep::Create(json!({
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {
                "name": key.name,
                "labels": {MANAGED_BY: MANAGER},
                "annotations": {LAST_APPLIED: spec.to_string()},
            },
            "spec": spec,
        }));
    };
    if live.metadata.deletion_timestamp.is_some() {
        return ApplyStep::AwaitDeletion;
    }
    let (labels, annotations) = (live.metadata.labels.as_ref(), live.metadata.annotations.as_ref());
    let last = annotations.and_then(|all| last_applied(all.get(LAST_APPLIED)?));
    let mut new_labels = without_ownership(labels);
    // A manager that somebody else named stays.
    if labels.and_then(|all| all.get(MANAGED_BY)).is_none_or(|manager| manager == "Helm") {
        new_labels.insert(MANAGED_BY.into(), MANAGER.into());
    }
    let mut new_annotations = without_ownership(annotations);
    if last.as_ref() != Some(spec) {
        new_annotations.insert(LAST_APPLIED.into(), spec.to_string().into());
    }
    let mut metadata = Map::new();
    for (field, entries) in [("labels", new_labels), ("annotations", new_annotations)] {
        if !entries.is_empty() {
            metadata.insert(field.into(), Value::Object(entries));
        }
    }
    let mut patch = Map::new();
    if !metadata.is_empty() {
        patch.insert("metadata".into(), Value::Object(metadata));
    }
    patch.extend(spec_patch(configured, last.as_ref(), &live.data["spec"]).map(|spec| ("spec".into(), spec)));
    if patch.is_empty() { ApplyStep::Nothing } else { ApplyStep::Patch(Value::Object(patch)) }
}

/// The condition `ConfigurationApplied` of an object with this annotation and spec; none if it is not configured and never
/// was. `failure` is why the last write failed.
#[must_use]
pub fn finding(
    key: &ObjectKey,
    configured: Option<&ConfiguredObject>,
    annotation: Option<&str>,
    spec: &Value,
    failure: Option<&str>,
) -> Option<Finding> {
    let of = |status, reason, message: String| {
        Some(Finding::new(reasons::CONFIGURATION_APPLIED, status, reason, message))
    };
    let Some(configured) = configured else {
        annotation?;
        let message = format!(
            "the configuration no longer has this object, which stays and works as before. To delete it: `kubectl delete {}`. To keep it as your own: remove its annotation {LAST_APPLIED}",
            key.to_string().to_lowercase()
        );
        return of("False", reasons::NO_LONGER_CONFIGURED, message);
    };
    if let Some(failure) = failure {
        let message = format!(
            "the configuration cannot be applied: {failure}. Change the values, or the role, admission policy or webhook that the message names; the controller retries"
        );
        return of("False", reasons::APPLY_REFUSED, message);
    }
    let last = annotation.and_then(last_applied);
    if last.as_ref() != Some(&configured.spec) || spec_patch(configured, last.as_ref(), spec).is_some() {
        return of("False", reasons::APPLY_PENDING, "the configuration is about to be applied".into());
    }
    let edited = edited_fields(configured, spec);
    if edited.is_empty() {
        return of("True", reasons::APPLIED, "the object is as the configuration says".into());
    }
    let named: Vec<String> = edited.iter().take(MAX_NAMED).map(ToString::to_string).collect();
    let more = match edited.len().checked_sub(MAX_NAMED) {
        None | Some(0) => String::new(),
        Some(more) => format!("; and {more} more"),
    };
    let message = format!(
        "these fields differ from the configuration and are kept: {}{more}. A field is overwritten when the configuration changes it. Set the same in both to end this",
        named.join("; ")
    );
    of("False", reasons::EDITED_BY_HAND, message)
}

/// A field of the live object that differs from the configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct EditedField {
    /// Such as `spec.retry.maxRetries`.
    pub path: String,
    live: Value,
    configured: Value,
}

impl fmt::Display for EditedField {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |value: &Value| match value {
            Value::Null => "not set".to_owned(),
            Value::String(text) => clean(text, MAX_SHOWN),
            other => clean(&other.to_string(), MAX_SHOWN),
        };
        write!(out, "`{}` is {}, configured is {}", self.path, shown(&self.live), shown(&self.configured))
    }
}

/// The fields that differ from the configuration, defaults included, because somebody else set them.
#[must_use]
pub fn edited_fields(configured: &ConfiguredObject, spec: &Value) -> Vec<EditedField> {
    let kind = configured.key.kind;
    let (wanted, mut live) = kind.comparable(&configured.spec, spec);
    if kind.defaulted(&configured.spec).is_none() || kind.defaulted(spec).is_none() {
        // Defaults cannot be told from what somebody set: only the configured fields are compared.
        keep_common(&wanted, &mut live);
    }
    for field in WRITTEN_ONCE {
        // A pause of a person has a condition of its own. One that is configured and not in effect has none.
        if wanted.get(field).is_none() {
            remove(&mut live, field);
        }
    }
    let mut found = Vec::new();
    collect_differences("spec", &wanted, &live, &mut found);
    found
}

fn last_applied(annotation: impl AsRef<str>) -> Option<Value> {
    serde_json::from_str(annotation.as_ref()).ok()
}

/// A merge patch that removes what marks an object as owned by a tool that might delete it.
fn without_ownership(entries: Option<&BTreeMap<String, String>>) -> Map<String, Value> {
    let is_ownership = |key: &&String| {
        OWNERSHIP_KEYS.contains(&key.as_str())
            || OWNERSHIP_PREFIXES.iter().any(|prefix| key.starts_with(prefix))
    };
    let keys = entries.into_iter().flat_map(BTreeMap::keys).filter(is_ownership);
    keys.map(|key| (key.clone(), Value::Null)).collect()
}

/// A merge patch of the spec with the fields that differ between the last rendering and the one of now.
fn spec_patch(configured: &ConfiguredObject, last: Option<&Value>, live: &Value) -> Option<Value> {
    let kind = configured.key.kind;
    let last = match (last, configured.adoption) {
        (Some(last), _) => last,
        (None, Adoption::KeepLive) => &configured.spec,
        (None, Adoption::TakeConfigured) => live,
    };
    let (mut old, mut new) = kind.comparable(last, &configured.spec);
    let live = kind.defaulted(live).unwrap_or_else(|| live.clone());
    for field in WRITTEN_ONCE {
        remove(&mut old, field);
        remove(&mut new, field);
    }
    merge_patch(&old, &new, &live)
}

/// Lists are values: they are replaced as a whole.
fn merge_patch(old: &Value, new: &Value, live: &Value) -> Option<Value> {
    if old == new {
        return None;
    }
    let (Value::Object(old), Value::Object(new), Value::Object(live)) = (old, new, live) else {
        return (new != live).then(|| new.clone());
    };
    let mut patch = Map::new();
    for key in old.keys().chain(new.keys()) {
        let of = |fields: &Map<String, Value>| fields.get(key).cloned().unwrap_or_default();
        // A field that is absent is null, and null is how a merge patch removes one.
        if let Some(change) = merge_patch(&of(old), &of(new), &of(live)) {
            patch.insert(key.clone(), change);
        }
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

fn collect_differences(path: &str, configured: &Value, live: &Value, found: &mut Vec<EditedField>) {
    if configured == live {
        return;
    }
    let (Value::Object(wanted), Value::Object(fields)) = (configured, live) else {
        let (live, configured) = (live.clone(), configured.clone());
        return found.push(EditedField { path: path.to_owned(), live, configured });
    };
    let added = fields.keys().filter(|key| !wanted.contains_key(*key));
    for key in wanted.keys().chain(added) {
        let of = |fields: &Map<String, Value>| fields.get(key).cloned().unwrap_or_default();
        collect_differences(&format!("{path}.{key}"), &of(wanted), &of(fields), found);
    }
}

fn remove(spec: &mut Value, field: &str) {
    if let Value::Object(fields) = spec {
        fields.remove(field);
    }
}

/// Removes the fields of an object that another does not have.
fn keep_common(other: &Value, value: &mut Value) {
    if let (Value::Object(other), Value::Object(fields)) = (other, value) {
        fields.retain(|key, _| other.contains_key(key));
        for (key, value) in fields {
            keep_common(&other[key], value);
        }
    }
}

fn without_nulls(mut value: Value) -> Value {
    remove_nulls(&mut value);
    value
}

fn remove_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(remove_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_nulls),
        _ => {}
    }
}

#[cfg(test)]
mod tests;
