//! Create and update: decoding, defaulting, validation, admission and storage.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::value::{Map, Value, json};

use super::status::{ApiError, StatusCause};
use super::{Caller, State, decode, identity, key};
use crate::clock::time;
use crate::object::{self, at, copy, has_finalizer, is_deleting, items, number, set, take, text};
use crate::registry::{self, AdmissionContext};
use crate::resource::{Generation, Resource};

/// Metadata that only the server sets.
const SERVER_METADATA: &[&str] = &[
    "metadata.uid",
    "metadata.creationTimestamp",
    "metadata.deletionTimestamp",
    "metadata.deletionGracePeriodSeconds",
    "metadata.generation",
    "metadata.generateName",
    "metadata.selfLink",
];

/// How an update changes an object.
pub enum Edit<'e> {
    /// Replaces the object.
    Put(Value),
    /// A patch, with its content type.
    Patch(&'e str, &'e [u8]),
    /// A change by a component of the cluster.
    With(Box<dyn FnOnce(&mut Value) + 'e>),
}

impl Edit<'_> {
    fn apply(self, resource: &Resource, old: &Value) -> Result<Value, ApiError> {
        let shown = || resource.from_stored(old.clone());
        match self {
            Self::Put(new) => Ok(new),
            Self::Patch(content_type, body) => super::patch::apply(resource, content_type, &shown(), body),
            Self::With(change) => {
                let mut new = shown();
                change(&mut new);
                Ok(new)
            }
        }
    }
}

impl State {
    pub fn create(
        &mut self,
        resource: &Resource,
        namespace: &str,
        body: Value,
        caller: &Caller,
    ) -> Result<Arc<Value>, ApiError> {
        let mut new = Self::read_body(resource, body, None, caller)?;
        identity::check_namespace(resource, &mut new, namespace)?;
        if !matches!(text(&new, "metadata.resourceVersion"), "" | "0") {
            return Err(ApiError::unclassified("resourceVersion should not be set on objects to be created"));
        }
        self.check_namespace_exists(resource, namespace, object::name(&new))?;
        for path in SERVER_METADATA.iter().filter(|p| **p != "metadata.generateName") {
            take(&mut new, path);
        }
        self.generate_name(resource, &mut new)?;
        set(&mut new, "metadata.uid", json!(self.new_uid()));
        set(&mut new, "metadata.creationTimestamp", json!(time(caller.now)));
        if resource.generation != Generation::Never {
            set(&mut new, "metadata.generation", json!(1));
        }
        if resource.has_status && !resource.keeps_status {
            take(&mut new, "status");
        }
        resource.strategy.default(&mut new);
        let name = object::name(&new).to_owned();
        // Validation precedes admission, which depends on other objects.
        Self::refuse_if_invalid(resource, &new, None)?;
        let ctx = AdmissionContext { resource, store: &self.store, now: caller.now };
        resource.strategy.admit(&mut new, &ctx)?;
        let key = key(namespace, &name);
        if self.store.get(resource.collection(), &key).is_some() {
            return Err(ApiError::already_exists(resource, &name));
        }
        Ok(self.commit(resource, &key, new, caller))
    }

    /// # Panics
    /// If the writes of components are checked, and one does not fit its type.
    pub fn update(
        &mut self,
        resource: &Resource,
        (namespace, name): (&str, &str),
        subresource: Option<&str>,
        edit: Edit<'_>,
        caller: &Caller,
    ) -> Result<Arc<Value>, ApiError> {
        let key = key(namespace, name);
        let old = self.get(resource, namespace, name)?;
        let is_patch = matches!(edit, Edit::Patch(..));
        // Components of the cluster write objects that fit their type.
        let is_trusted = matches!(edit, Edit::With(_)) && !resource.is_custom() && !resource.is_view();
        let body = edit.apply(resource, &old)?;
        let mut new = if is_trusted {
            let mut new = body.clone();
            decode::normalize_changes(&mut new, &old);
            if self.checks_components {
                let decoded = Self::read_body(resource, body, None, caller);
                assert_eq!(decoded.as_ref(), Ok(&new), "{} wrote a {}", caller.user, resource.kind);
            }
            new
        } else {
            Self::read_body(resource, body, Some(&old), caller).map_err(|e| match e.code {
                // An undecodable result of a patch is 422, an undecodable body 400.
                400 if is_patch => ApiError::bad_patch(&e.message),
                _ => e,
            })?
        };
        new.share_with(&old);
        identity::check_namespace(resource, &mut new, namespace)?;
        identity::check(resource, &new, &old, is_patch)?;
        for path in SERVER_METADATA {
            copy(&old, &mut new, path);
        }
        match subresource {
            Some("status") => prepare_status_update(resource, &mut new, &old),
            _ if resource.has_status => copy(&old, &mut new, "status"),
            _ => {}
        }
        // What is stored has its defaults.
        if changes(&new, &old, |part| part != "status" || resource.strategy.has_status_rules()) {
            resource.strategy.default(&mut new);
        }
        if subresource != Some("finalize") {
            resource.strategy.prepare_for_update(&mut new, &old);
        }
        Self::refuse_if_invalid(resource, &new, Some(&old))?;
        if generation_changes(resource, &new, &old) {
            let next = number(&old, "metadata.generation").unwrap_or(0) + 1;
            set(&mut new, "metadata.generation", json!(next));
        }
        copy(&old, &mut new, "metadata.resourceVersion");
        if new == *old {
            return Ok(old);
        }
        if is_deletable(&new) {
            self.finish_deletion(resource, &key, caller);
            return Ok(Arc::new(new));
        }
        Ok(self.commit(resource, &key, new, caller))
    }

    /// Decodes a body and drops unknown fields. Parts that are equal to the stored object are not decoded again.
    pub(super) fn read_body(
        resource: &Resource,
        mut body: Value,
        old: Option<&Value>,
        caller: &Caller,
    ) -> Result<Value, ApiError> {
        if !body.is_object() {
            return Err(ApiError::bad_request("the body of the request is not a JSON object"));
        }
        for (field, expected) in [("apiVersion", resource.api_version()), ("kind", resource.kind.to_string())]
        {
            match body.get(field).and_then(Value::as_str) {
                None | Some("") if resource.is_custom() => {
                    return Err(ApiError::bad_request(format!("Object '{field}' is missing in the body")));
                }
                None | Some("") => set(&mut body, field, json!(expected)),
                Some(found) if found == expected => {}
                // The real server refuses a wrong `kind` of a custom resource during validation.
                Some(found) if resource.is_custom() && field == "kind" => {
                    let cause = StatusCause::invalid("kind", &json!(found), &format!("must be {expected}"));
                    let other =
                        Resource::new(resource.group.clone(), resource.version.clone(), "", found.to_owned());
                    return Err(ApiError::invalid(&other, object::name(&body), &[cause]));
                }
                Some(found) => {
                    let message = format!(
                        "the API version or kind in the data ({field}: {found}) does not match the expected one ({expected})"
                    );
                    return Err(ApiError::bad_request(message));
                }
            }
        }
        if matches!(&*resource.kind, "Lease" | "Event") && !resource.is_custom() {
            decode::check_micro_times(&body)?;
        }
        // In a CRD these are property names, and a custom resource has no quantity type.
        let has_quantities = !resource.is_custom() && &*resource.kind != "CustomResourceDefinition";
        let is_typed = has_quantities && !resource.is_view() && !caller.strict;
        let unchanged = old.filter(|_| is_typed).map_or_else(Vec::new, |old| take_unchanged(&mut body, old));
        if has_quantities {
            decode::quote_quantities(&mut body);
        }
        let wrong_type = |e: serde_json::Error| {
            let (kind, version) = (&resource.kind, &resource.version);
            let detail = format!("{kind} in version \"{version}\" cannot be handled as a {kind}: {e}");
            ApiError::bad_request(detail)
        };
        let mut decoded = resource.decode(&body).map_err(wrong_type)?;
        let unknown = if let Some(schema) = &resource.schema {
            decode::check_metadata(&mut decoded)?;
            decode::normalize_metadata(&mut decoded);
            let unknown = schema.prune(&mut decoded);
            schema.default(&mut decoded);
            unknown
        } else {
            if has_quantities {
                decode::read_quantities(&mut decoded)?;
            }
            let unknown = if caller.strict { decode::lost_fields(&body, &decoded) } else { Vec::new() };
            decode::normalize(&mut decoded);
            unknown
        };
        if caller.strict {
            decode::refuse_fields(&resource.kind, &resource.version, &unknown, &[])?;
        }
        object::map(&mut decoded).extend(unchanged);
        take(&mut decoded, "metadata.managedFields");
        Ok(resource.to_stored(decoded))
    }

    fn generate_name(&mut self, resource: &Resource, new: &mut Value) -> Result<(), ApiError> {
        if !object::name(new).is_empty() {
            return Ok(());
        }
        let base: String = text(new, "metadata.generateName").chars().take(58).collect();
        if base.is_empty() {
            let cause = StatusCause::required("metadata.name", "name or generateName is required");
            return Err(ApiError::invalid(resource, "", &[cause]));
        }
        let namespace = object::namespace(new).to_owned();
        // As on a real server, a few collisions are retried.
        for _ in 0..8 {
            let name = format!("{base}{}", self.name_suffix());
            set(new, "metadata.name", json!(name));
            if self.store.get(resource.collection(), &key(&namespace, &name)).is_none() {
                break;
            }
        }
        Ok(())
    }

    /// Refuses an object whose namespace is missing or terminating.
    fn check_namespace_exists(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
    ) -> Result<(), ApiError> {
        if !resource.namespaced {
            return Ok(());
        }
        let Some(home) = self.store.get("namespaces", namespace) else {
            let namespaces = self.resource("", "v1", "namespaces");
            let error = |r: Arc<Resource>| ApiError::not_found(&r, namespace);
            return Err(namespaces.map_or_else(ApiError::no_such_path, error));
        };
        if is_deleting(home) {
            let detail = format!(
                "unable to create new content in namespace {namespace} because it is being terminated"
            );
            let mut error = ApiError::forbidden(resource, name, &detail);
            if let Some(details) = &mut error.details {
                details["causes"] = json!([{"reason": "NamespaceTerminating", "field": "metadata.namespace",
                    "message": format!("namespace {namespace} is being terminated")}]);
            }
            return Err(error);
        }
        Ok(())
    }

    fn refuse_if_invalid(resource: &Resource, new: &Value, old: Option<&Value>) -> Result<(), ApiError> {
        let has_changed = |part: &dyn Fn(&str) -> bool| old.is_none_or(|old| changes(new, old, part));
        let mut causes = Vec::new();
        if has_changed(&|part| part == "metadata") {
            causes = registry::validate_metadata(new);
        }
        if old.is_none()
            && let Some(detail) = resource.strategy.check_name(object::name(new))
        {
            causes.push(StatusCause::invalid("metadata.name", &json!(object::name(new)), detail));
        }
        let ruled = |part: &str| match part {
            "metadata" => false,
            "status" => resource.strategy.has_status_rules(),
            _ => true,
        };
        if has_changed(&ruled) {
            causes.extend(resource.strategy.validate(new));
        }
        if let Some(schema) = resource.schema.as_ref().filter(|_| has_changed(&|part| part != "metadata")) {
            let mut wrong = schema.validate(new);
            // A value that a newer schema forbids may stay while it does not change.
            wrong.retain(|c| {
                old.is_none_or(|old| at(new, &c.field).is_none() || at(new, &c.field) != at(old, &c.field))
            });
            causes.extend(wrong);
        }
        if let Some(old) = old {
            causes.extend(resource.strategy.validate_update(new, old));
            let added = items(new, "metadata.finalizers")
                .iter()
                .filter(|f| !f.as_str().is_some_and(|f| has_finalizer(old, f)));
            let added: Vec<&str> = added.filter_map(Value::as_str).collect();
            if is_deleting(old) && !added.is_empty() {
                let detail = format!(
                    "no new finalizers can be added if the object is being deleted, found new finalizers {added:?}"
                );
                causes.push(StatusCause::forbidden("metadata.finalizers", &detail));
            }
        }
        if causes.is_empty() { Ok(()) } else { Err(ApiError::invalid(resource, object::name(new), &causes)) }
    }

    /// Stores an object, except in a dry run.
    pub(super) fn commit(
        &mut self,
        resource: &Resource,
        key: &str,
        new: Value,
        caller: &Caller,
    ) -> Arc<Value> {
        if caller.dry_run {
            return Arc::new(new);
        }
        let stored = self.store.put(resource.collection(), key, new, caller.origin(), caller.now);
        if resource.plural == "customresourcedefinitions" {
            self.reload_definitions();
        }
        stored
    }

    /// Removes an object that has no finalizers left.
    pub(super) fn finish_deletion(&mut self, resource: &Resource, key: &str, caller: &Caller) {
        if caller.dry_run {
            return;
        }
        self.store.remove(resource.collection(), key, caller.origin(), caller.now);
        if resource.plural == "customresourcedefinitions" {
            self.reload_definitions();
        }
    }
}

/// Whether one of some top-level parts differs from an earlier version with which the object shares equal parts.
fn changes(new: &Value, old: &Value, of: impl Fn(&str) -> bool) -> bool {
    let (Some(new), Some(old)) = (new.as_object(), old.as_object()) else { return true };
    let changed = |(part, value): (&str, &Value)| !old.get(part).is_some_and(|before| before.is_same(value));
    new.iter().filter(|(part, _)| of(part)).any(changed)
        || old.keys().any(|part| of(part) && !new.contains_key(part))
}

/// Removes and returns the parts that are equal in another object.
fn take_unchanged(object: &mut Value, other: &Value) -> Vec<(Arc<str>, Value)> {
    let same = |part: &&str| object.get(part).is_some_and(|is| other.get(part) == Some(is));
    let same: Vec<&str> = ["metadata", "spec", "status"].into_iter().filter(same).collect();
    same.into_iter().filter_map(|part| Some((part.into(), take(object, part)?))).collect()
}

/// Whether an object that is being deleted has neither finalizers nor a grace period.
fn is_deletable(object: &Value) -> bool {
    is_deleting(object)
        && items(object, "metadata.finalizers").is_empty()
        && number(object, "metadata.deletionGracePeriodSeconds").unwrap_or(0) == 0
        && (text(object, "kind") != "Namespace" || items(object, "spec.finalizers").is_empty())
}

/// A write to `/status` changes only the status. Built-in kinds also take labels, annotations and finalizers, as on
/// the real server.
fn prepare_status_update(resource: &Resource, new: &mut Value, old: &Value) {
    let given = take(new, "metadata").unwrap_or_default();
    copy(old, new, "metadata");
    if let Some(kept) = new.get_mut("metadata") {
        let own: &[&str] = if resource.is_custom() { &[] } else { &["labels", "annotations", "finalizers"] };
        for field in own.iter().chain(&["resourceVersion"]) {
            copy(&given, kept, field);
        }
    }
    let parts = [old, &*new].into_iter().filter_map(Value::as_object).flat_map(Map::keys);
    let rest: BTreeSet<String> =
        parts.filter(|p| !matches!(*p, "metadata" | "status")).map(str::to_owned).collect();
    for part in rest {
        copy(old, new, &part);
    }
}

fn generation_changes(resource: &Resource, new: &Value, old: &Value) -> bool {
    match resource.generation {
        Generation::Never | Generation::First => false,
        Generation::Spec => at(new, "spec") != at(old, "spec"),
        Generation::NotMetadata => {
            let content = |object: &Value| {
                let mut content = object.clone();
                take(&mut content, "metadata");
                if resource.has_status {
                    take(&mut content, "status");
                }
                content
            };
            content(new) != content(old)
        }
    }
}
