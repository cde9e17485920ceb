//! The strategies of the built-in kinds: defaulting, admission, validation and graceful deletion.

mod budget;
mod crd;
pub mod injection;
mod node;
mod others;
mod pod;
mod pod_spec;

pub use budget::{Budgets, percent};
pub use crd::{CLEANUP, Crds, not_enforced, resource_of};
pub use node::{NOT_READY, Nodes, UNREACHABLE, UNSCHEDULABLE};
pub use others::{
    ConfigMaps, EndpointSlices, Events, EventsV1, Leases, Namespaces, PriorityClasses, Secrets, Services,
    Workloads,
};
pub use pod::Pods;

use std::fmt::Debug;

use crate::value::{Value, json};
use jiff::Timestamp;

use crate::api::status::{ApiError, StatusCause};
use crate::object::{at, is_true, items, text};
use crate::resource::Resource;
use crate::store::Store;

/// What the admission of an object may read.
pub struct AdmissionContext<'s> {
    pub resource: &'s Resource,
    pub store: &'s Store,
    pub now: Timestamp,
}

/// The behaviour of a kind beyond storage, as the registry strategies of the API server define it.
pub trait Strategy: Debug + Sync {
    /// Defaults fields, on every write.
    fn default(&self, _object: &mut Value) {}

    /// Whether `default` and `validate` look at the status.
    fn has_status_rules(&self) -> bool {
        true
    }

    /// Admits an object on create and sets its first status.
    fn admit(&self, _object: &mut Value, _scene: &AdmissionContext<'_>) -> Result<(), ApiError> {
        Ok(())
    }

    /// Validates an object, on every write.
    fn validate(&self, _object: &Value) -> Vec<StatusCause> {
        Vec::new()
    }

    /// Validates a change.
    fn validate_update(&self, _new: &Value, _old: &Value) -> Vec<StatusCause> {
        Vec::new()
    }

    /// Copies fields of the old object that an update leaves out.
    fn prepare_for_update(&self, _new: &mut Value, _old: &Value) {}

    fn check_name(&self, name: &str) -> Option<&'static str> {
        (!is_dns_subdomain(name)).then_some(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', \
             and must start and end with an alphanumeric character",
        )
    }

    /// The grace period; none if deletion is immediate.
    fn grace_seconds(&self, _object: &Value, _asked: Option<i64>) -> Option<i64> {
        None
    }
}

/// The strategy of a kind that is only stored.
#[derive(Debug)]
pub struct DefaultStrategy;
impl Strategy for DefaultStrategy {}

/// At most 63 lower-case letters, digits and `-`, alphanumeric at both ends.
#[must_use]
pub fn is_dns_label(name: &str) -> bool {
    let alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    !name.is_empty()
        && name.len() <= 63
        && name.chars().all(|c| alphanumeric(c) || c == '-')
        && name.starts_with(alphanumeric)
        && name.ends_with(alphanumeric)
}

/// Dot-separated labels, at most 253 characters.
#[must_use]
pub fn is_dns_subdomain(name: &str) -> bool {
    let alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let part = |p: &str| {
        !p.is_empty()
            && p.chars().all(|c| alphanumeric(c) || c == '-')
            && p.starts_with(alphanumeric)
            && p.ends_with(alphanumeric)
    };
    name.len() <= 253 && name.split('.').all(part)
}

/// `name` or `prefix/name`, as in label keys, taint keys and finalizers.
#[must_use]
pub fn is_qualified_name(name: &str) -> bool {
    let (prefix, name) = name.split_once('/').map_or((None, name), |(p, n)| (Some(p), n));
    prefix.is_none_or(is_dns_subdomain) && !name.is_empty() && is_label_value(name)
}

/// At most 63 letters, digits, `-`, `_`, `.`, alphanumeric at both ends, or empty.
#[must_use]
pub fn is_label_value(value: &str) -> bool {
    value.len() <= 63
        && value.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
        && value.chars().next().is_none_or(|c| c.is_ascii_alphanumeric())
        && value.chars().last().is_none_or(|c| c.is_ascii_alphanumeric())
}

#[must_use]
pub fn validate_metadata(object: &Value) -> Vec<StatusCause> {
    let mut causes = Vec::new();
    for (key, value) in at(object, "metadata.labels").and_then(Value::as_object).into_iter().flatten() {
        if !is_qualified_name(key) {
            causes.push(StatusCause::invalid(
                "metadata.labels",
                &json!(key),
                "name part must be a qualified name",
            ));
        }
        if !value.as_str().is_some_and(is_label_value) {
            causes.push(StatusCause::invalid(
                "metadata.labels",
                value,
                "a valid label must be 63 characters or less",
            ));
        }
    }
    let mut size = 0;
    for (key, value) in at(object, "metadata.annotations").and_then(Value::as_object).into_iter().flatten() {
        size += key.len() + value.as_str().map_or(0, str::len);
        if !is_qualified_name(&key.to_lowercase()) {
            causes.push(StatusCause::invalid(
                "metadata.annotations",
                &json!(key),
                "name part must be a qualified name",
            ));
        }
    }
    if size > 256 * 1024 {
        causes.push(StatusCause::too_long(
            "metadata.annotations",
            "Too long: may not be more than 262144 bytes".into(),
        ));
    }
    causes.extend(validate_finalizers(object));
    causes.extend(validate_owners(object));
    causes
}

fn validate_finalizers(object: &Value) -> Vec<StatusCause> {
    let mut causes = Vec::new();
    let finalizers = items(object, "metadata.finalizers");
    for (i, finalizer) in finalizers.iter().enumerate() {
        let name = finalizer.as_str().unwrap_or_default();
        let standard = matches!(name, "orphan" | "foregroundDeletion" | "kubernetes");
        if !(is_qualified_name(name) && (standard || name.contains('/') || name.contains('.'))) {
            let path = format!("metadata.finalizers[{i}]");
            causes.push(StatusCause::invalid(
                path,
                finalizer,
                "name is neither a standard finalizer name nor is it fully qualified",
            ));
        }
    }
    if ["orphan", "foregroundDeletion"].iter().all(|f| finalizers.iter().any(|g| g == f)) {
        let detail = "orphan and foregroundDeletion cannot be both set";
        causes.push(StatusCause::invalid("metadata.finalizers", &json!(finalizers), detail));
    }
    causes
}

fn validate_owners(object: &Value) -> Vec<StatusCause> {
    let mut causes = Vec::new();
    let owners = items(object, "metadata.ownerReferences");
    for owner in owners {
        for field in ["apiVersion", "kind", "name", "uid"] {
            if text(owner, field).is_empty() {
                let path = format!("metadata.ownerReferences.{field}");
                causes.push(StatusCause::invalid(path, &json!(""), &format!("{field} must not be empty")));
            }
        }
    }
    if owners.iter().filter(|o| is_true(o, "controller")).count() > 1 {
        let detail = "Only one reference can have Controller set to true";
        causes.push(StatusCause::invalid("metadata.ownerReferences", &json!(owners), detail));
    }
    causes
}

fn immutable(new: &Value, old: &Value, path: &str) -> Option<StatusCause> {
    (at(new, path) != at(old, path))
        .then(|| StatusCause::invalid(path, at(new, path).unwrap_or(&Value::Null), "field is immutable"))
}
