//! `CustomResourceDefinitions`: what they must say, and the resources they make.

use serde_json::{Value, json};

use super::{Rules, Scene};
use crate::api::schema::Schema;
use crate::api::status::{ApiError, Cause};
use crate::clock::time;
use crate::object::{self, at, items, set, text};
use crate::resources::{Generation, Resource};

/// Rules of CRDs.
#[derive(Debug)]
pub struct Definitions;

impl Rules for Definitions {
    fn default(&self, definition: &mut Value) {
        let kind = text(definition, "spec.names.kind").to_owned();
        object::default(definition, "spec.names.singular", json!(kind.to_lowercase()));
        object::default(definition, "spec.names.listKind", json!(format!("{kind}List")));
        object::default(definition, "spec.conversion", json!({"strategy": "None"}));
    }

    fn admit(&self, definition: &mut Value, scene: &Scene<'_>) -> Result<(), ApiError> {
        // A real server sets these a moment later, in a controller of its own. Nobody can see the difference
        // but by asking before; what waits for Established works with both.
        let names = definition["spec"]["names"].clone();
        let stored: Vec<&Value> =
            items(definition, "spec.versions").iter().filter(|v| object::is_true(v, "storage")).collect();
        let stored: Vec<Value> = stored.iter().map(|v| v["name"].clone()).collect();
        let since = time(scene.now);
        let condition = |kind: &str, reason: &str, message: &str| {
            json!({"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": since})
        };
        set(definition, "status", json!({
            "acceptedNames": names,
            "storedVersions": stored,
            "conditions": [
                condition("NamesAccepted", "NoConflicts", "no conflicts found"),
                condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
            ],
        }));
        Ok(())
    }

    fn validate(&self, definition: &Value) -> Vec<Cause> {
        let mut causes = Vec::new();
        let (plural, group) = (text(definition, "spec.names.plural"), text(definition, "spec.group"));
        if object::name(definition) != format!("{plural}.{group}") {
            let detail = format!("must be spec.names.plural+\".\"+spec.group = \"{plural}.{group}\"");
            causes.push(Cause::invalid("metadata.name", &json!(object::name(definition)), &detail));
        }
        if !matches!(text(definition, "spec.scope"), "Cluster" | "Namespaced") {
            causes.push(Cause::required("spec.scope", "Cluster or Namespaced"));
        }
        let versions = items(definition, "spec.versions");
        if versions.iter().filter(|v| object::is_true(v, "storage")).count() != 1 {
            let detail = "must have exactly one version marked as storage version";
            causes.push(Cause::invalid("spec.versions", &json!(versions.len()), detail));
        }
        for (i, version) in versions.iter().enumerate() {
            if at(version, "schema.openAPIV3Schema").is_none() {
                let path = format!("spec.versions[{i}].schema.openAPIV3Schema");
                causes.push(Cause::required(path, "schemas are required"));
            }
        }
        causes
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Cause> {
        ["spec.group", "spec.names.plural", "spec.names.kind", "spec.scope"]
            .iter()
            .filter_map(|path| super::immutable(new, old, path))
            .collect()
    }
}

/// The resources that a CRD serves, one a version. Versions share their objects; there is no conversion.
#[must_use]
pub fn resource_of(definition: &Value) -> Vec<Resource> {
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
            resource.generation = Generation::NotMetadata;
            resource.columns = items(version, "additionalPrinterColumns").to_vec();
            resource.schema = at(version, "schema.openAPIV3Schema").cloned().map(Schema::new);
            resource
        })
        .collect()
}
