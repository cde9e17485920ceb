//! Checks which object a write means: name, namespace, uid and resource version.

use crate::value::{Value, json};

use super::status::{ApiError, StatusCause};
use crate::object::{self, at, set, take, text};
use crate::resource::Resource;

/// The namespace of the path applies; a different one in the body is an error.
pub fn check_namespace(resource: &Resource, new: &mut Value, namespace: &str) -> Result<(), ApiError> {
    let given = object::namespace(new);
    if !resource.namespaced {
        if !given.is_empty() {
            take(new, "metadata.namespace");
        }
        return Ok(());
    }
    if !given.is_empty() && given != namespace {
        let message = "the namespace of the provided object does not match the namespace sent on the request";
        return Err(ApiError::bad_request(message));
    }
    set(new, "metadata.namespace", json!(namespace));
    Ok(())
}

/// Checks name, uid, resource version and deletion timestamp of an update, where they are set.
pub fn check(resource: &Resource, new: &Value, old: &Value, is_patch: bool) -> Result<(), ApiError> {
    let name = object::name(old);
    if object::name(new) != name {
        let given = object::name(new);
        let message = format!("the name of the object ({given}) does not match the name on the URL ({name})");
        return Err(ApiError::bad_request(message));
    }
    check_uid(resource, new, old, is_patch)?;
    check_version(resource, new, old)?;
    let deletion = at(new, "metadata.deletionTimestamp");
    if deletion.is_some() && deletion != at(old, "metadata.deletionTimestamp") {
        return Err(immutable(resource, name, "metadata.deletionTimestamp", deletion));
    }
    Ok(())
}

fn check_uid(resource: &Resource, new: &Value, old: &Value, is_patch: bool) -> Result<(), ApiError> {
    let (name, uid, current) = (object::name(old), object::uid(new), object::uid(old));
    if uid.is_empty() || uid == current {
        return Ok(());
    }
    if is_patch {
        return Err(immutable(resource, name, "metadata.uid", Some(&json!(uid))));
    }
    let detail = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {current}");
    Err(ApiError::conflict(resource, name, &detail))
}

fn check_version(resource: &Resource, new: &Value, old: &Value) -> Result<(), ApiError> {
    let name = object::name(old);
    let version = text(new, "metadata.resourceVersion");
    if matches!(version, "" | "0") {
        if !resource.guarded_update {
            return Ok(());
        }
        let cause =
            StatusCause::invalid("metadata.resourceVersion", &json!(0), "must be specified for an update");
        return Err(ApiError::invalid(resource, name, &[cause]));
    }
    if version.parse::<u64>().is_err() {
        return Err(ApiError::unclassified(&format!("resourceVersion {version:?} is not a number")));
    }
    if version != text(old, "metadata.resourceVersion") {
        return Err(ApiError::modified(resource, name));
    }
    Ok(())
}

fn immutable(resource: &Resource, name: &str, path: &str, value: Option<&Value>) -> ApiError {
    let cause = StatusCause::invalid(path, value.unwrap_or(&Value::Null), "field is immutable");
    ApiError::invalid(resource, name, &[cause])
}
