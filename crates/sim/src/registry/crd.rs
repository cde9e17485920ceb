//! The strategy of `CustomResourceDefinitions`, and the resources that they define.

use crate::value::{Value, json};

use super::{AdmissionContext, Strategy};
use crate::api::schema::Schema;
use crate::api::status::{ApiError, StatusCause};
use crate::clock::time;
use crate::object::{self, at, items, set, text};
use crate::resource::{Generation, Resource};

/// The finalizer of a CRD until its objects are gone.
pub const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

#[derive(Debug)]
pub struct Crds;

impl Strategy for Crds {
    fn default(&self, definition: &mut Value) {
        let kind = text(definition, "spec.names.kind").to_owned();
        object::default(definition, "spec.names.singular", json!(kind.to_lowercase()));
        object::default(definition, "spec.names.listKind", json!(format!("{kind}List")));
        object::default(definition, "spec.conversion", json!({"strategy": "None"}));
    }

    fn admit(&self, definition: &mut Value, ctx: &AdmissionContext<'_>) -> Result<(), ApiError> {
        // A real server sets these conditions a moment later, in a controller.
        let names = definition["spec"]["names"].clone();
        let stored: Vec<&Value> =
            items(definition, "spec.versions").iter().filter(|v| object::is_true(v, "storage")).collect();
        let stored: Vec<Value> = stored.iter().map(|v| v["name"].clone()).collect();
        let since = time(ctx.now);
        let condition = |kind: &str, status: &str, reason: &str, message: &str| json!({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since});
        let conditions = match conflicting_name(definition, ctx) {
            None => vec![
                condition("NamesAccepted", "True", "NoConflicts", "no conflicts found"),
                condition(
                    "Established",
                    "True",
                    "InitialNamesAccepted",
                    "the initial names have been accepted",
                ),
            ],
            Some(name) => vec![
                condition("NamesAccepted", "False", "NamesConflict", &format!("{name:?} is already in use")),
                condition("Established", "False", "NotAccepted", "not all names are accepted"),
            ],
        };
        let mut finalizers = items(definition, "metadata.finalizers").to_vec();
        finalizers.push(json!(CLEANUP));
        set(definition, "metadata.finalizers", json!(finalizers));
        set(
            definition,
            "status",
            json!({"acceptedNames": names, "storedVersions": stored, "conditions": conditions}),
        );
        Ok(())
    }

    fn validate(&self, definition: &Value) -> Vec<StatusCause> {
        let mut causes = Vec::new();
        let (plural, group) = (text(definition, "spec.names.plural"), text(definition, "spec.group"));
        if object::name(definition) != format!("{plural}.{group}") {
            let detail = format!("must be spec.names.plural+\".\"+spec.group = \"{plural}.{group}\"");
            causes.push(StatusCause::invalid("metadata.name", &json!(object::name(definition)), &detail));
        }
        if text(definition, "spec.conversion.strategy") != "None" {
            let strategy = &definition["spec"]["conversion"]["strategy"];
            causes.push(StatusCause::unsupported(
                "spec.conversion.strategy",
                strategy,
                &["\"None\"".to_owned()],
            ));
        }
        if !matches!(text(definition, "spec.scope"), "Cluster" | "Namespaced") {
            causes.push(StatusCause::required("spec.scope", "Cluster or Namespaced"));
        }
        let versions = items(definition, "spec.versions");
        if versions.iter().filter(|v| object::is_true(v, "storage")).count() != 1 {
            let detail = "must have exactly one version marked as storage version";
            causes.push(StatusCause::invalid("spec.versions", &json!(versions.len()), detail));
        }
        for (i, version) in versions.iter().enumerate() {
            if at(version, "schema.openAPIV3Schema").is_none() {
                let path = format!("spec.versions[{i}].schema.openAPIV3Schema");
                causes.push(StatusCause::required(path, "schemas are required"));
            } else {
                let path = format!("spec.versions[{i}].schema.openAPIV3Schema");
                causes.extend(untyped(&version["schema"]["openAPIV3Schema"], &path));
            }
        }
        causes
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<StatusCause> {
        ["spec.group", "spec.names.plural", "spec.names.kind", "spec.scope"]
            .iter()
            .filter_map(|path| super::immutable(new, old, path))
            .collect()
    }
}

/// A name of this CRD that another CRD of its group has.
fn conflicting_name(definition: &Value, ctx: &AdmissionContext<'_>) -> Option<String> {
    let names = |d: &Value| -> Vec<String> {
        let single = ["plural", "singular", "kind", "listKind"]
            .map(|n| text(d, &format!("spec.names.{n}")).to_owned());
        let short = items(d, "spec.names.shortNames").iter().filter_map(Value::as_str).map(str::to_owned);
        single.into_iter().chain(short).collect()
    };
    let wanted = names(definition);
    let group = text(definition, "spec.group");
    let collection = ctx.resource.collection();
    let others = ctx.store.all(collection).map(|(_, d)| d);
    others.filter(|d| text(d, "spec.group") == group).flat_map(|d| names(d)).find(|n| wanted.contains(n))
}

/// The parts of a schema without a type, which a structural schema must have.
fn untyped(schema: &Value, path: &str) -> Vec<StatusCause> {
    let mut causes = Vec::new();
    let free = ["x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"];
    if text(schema, "type").is_empty() && !free.iter().any(|f| schema.get(f) == Some(&Value::Bool(true))) {
        causes.push(StatusCause::required(
            format!("{path}.type"),
            "must not be empty for specified object fields",
        ));
    }
    for (name, sub) in at(schema, "properties").and_then(Value::as_object).into_iter().flatten() {
        causes.extend(untyped(sub, &format!("{path}.properties[{name}]")));
    }
    for part in ["items", "additionalProperties"] {
        if let Some(sub) = schema.get(part).filter(|s| s.is_object()) {
            causes.extend(untyped(sub, &format!("{path}.{part}")));
        }
    }
    causes
}

/// Keywords of a CRD's schema that the embedded cluster does not enforce, for a warning.
#[must_use]
pub fn not_enforced(definition: &Value) -> Vec<&'static str> {
    const IGNORED: &[&str] =
        &["x-kubernetes-validations", "x-kubernetes-list-type", "format", "oneOf", "anyOf", "allOf", "not"];
    fn mentions(schema: &Value, word: &str) -> bool {
        match schema {
            Value::Object(map) => map.iter().any(|(key, value)| {
                // A property may have the name of a keyword.
                let named = key == "properties" && value.is_object();
                if named {
                    value.as_object().into_iter().flatten().any(|(_, sub)| mentions(sub, word))
                } else {
                    key == word || mentions(value, word)
                }
            }),
            Value::Array(list) => list.iter().any(|sub| mentions(sub, word)),
            _ => false,
        }
    }
    let schemas =
        || items(definition, "spec.versions").iter().filter_map(|v| at(v, "schema.openAPIV3Schema"));
    IGNORED.iter().copied().filter(|word| schemas().any(|schema| mentions(schema, word))).collect()
}

/// One resource for each served version. Versions share their objects without conversion.
#[must_use]
pub fn resource_of(definition: &Value) -> Vec<Resource> {
    if object::condition_status(definition, "Established") != "True" {
        return Vec::new();
    }
    let storage = items(definition, "spec.versions").iter().find(|v| object::is_true(v, "storage"));
    let storage = storage.map(|v| text(v, "name").to_owned());
    let get = |path: &str| text(definition, path).to_owned();
    let served = items(definition, "spec.versions").iter().filter(|v| object::is_true(v, "served"));
    served
        .map(|version| {
            let names = (get("spec.names.plural"), get("spec.names.kind"));
            let mut resource =
                Resource::new(get("spec.group"), text(version, "name").to_owned(), names.0, names.1);
            resource.namespaced = text(definition, "spec.scope") == "Namespaced";
            resource.singular = get("spec.names.singular");
            let short = items(definition, "spec.names.shortNames").iter();
            resource.short = short.filter_map(Value::as_str).map(str::to_owned).collect();
            resource.has_status = at(version, "subresources.status").is_some();
            resource.guarded_update = true;
            resource.stored_version.clone_from(&storage);
            resource.generation = Generation::NotMetadata;
            let fields = items(version, "selectableFields").iter().map(|f| text(f, "jsonPath"));
            resource = resource.select_by(fields.map(|path| path.trim_start_matches('.').to_owned()));
            resource.columns = items(version, "additionalPrinterColumns").to_vec();
            resource.schema = at(version, "schema.openAPIV3Schema").cloned().map(Schema::new);
            resource
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keywords_that_are_not_enforced_are_reported() {
        let crd = |schema: Value| json!({"spec": {"versions": [{"schema": {"openAPIV3Schema": schema}}]}});
        let plain = crd(
            json!({"type": "object", "properties": {"format": {"type": "string"}, "not": {"type": "string"}}}),
        );
        assert!(not_enforced(&plain).is_empty(), "a property may be called like a keyword");
        let more =
            crd(json!({"type": "object", "properties": {"at": {"type": "string", "format": "date-time"}},
            "x-kubernetes-validations": [{"rule": "true"}]}));
        assert_eq!(not_enforced(&more), ["x-kubernetes-validations", "format"]);
    }
}
