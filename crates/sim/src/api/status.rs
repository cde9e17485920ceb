//! Errors as the API server gives them: `Status` objects with a code, a reason and details.

use serde_json::{Value, json};

use crate::resource::Resource;

/// One thing that is wrong with an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// Machine-readable kind, such as `FieldValueRequired`.
    pub reason: &'static str,
    /// Where, such as `spec.containers[0].name`.
    pub field: String,
    /// For people; begins like the real server's.
    pub message: String,
}

impl Cause {
    /// Something required is missing.
    pub fn required(field: impl Into<String>, detail: &str) -> Self {
        let message =
            if detail.is_empty() { "Required value".into() } else { format!("Required value: {detail}") };
        Self { reason: "FieldValueRequired", field: field.into(), message }
    }

    /// A value that is not allowed.
    pub fn invalid(field: impl Into<String>, value: &Value, detail: &str) -> Self {
        let message = format!("Invalid value: {value}: {detail}");
        Self { reason: "FieldValueInvalid", field: field.into(), message }
    }

    /// A value of the wrong type.
    pub fn wrong_type(field: impl Into<String>, value: &Value, detail: &str) -> Self {
        let message = format!("Invalid value: {value}: {detail}");
        Self { reason: "FieldValueTypeInvalid", field: field.into(), message }
    }

    /// A change or value that is never allowed here.
    pub fn forbidden(field: impl Into<String>, detail: &str) -> Self {
        Self { reason: "FieldValueForbidden", field: field.into(), message: format!("Forbidden: {detail}") }
    }

    /// A value outside an enumeration.
    pub fn unsupported(field: impl Into<String>, value: &Value, allowed: &[String]) -> Self {
        let allowed = allowed.join(", ");
        let message = format!("Unsupported value: {value}: supported values: {allowed}");
        Self { reason: "FieldValueNotSupported", field: field.into(), message }
    }

    /// A second entry with the same key.
    pub fn duplicate(field: impl Into<String>, value: &Value) -> Self {
        let message = format!("Duplicate value: {value}");
        Self { reason: "FieldValueDuplicate", field: field.into(), message }
    }

    /// Something longer or larger than allowed.
    pub fn too_long(field: impl Into<String>, message: String) -> Self {
        Self { reason: "FieldValueTooLong", field: field.into(), message }
    }
}

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code} {reason}: {message}")]
pub struct ApiError {
    /// HTTP status code.
    pub code: u16,
    /// `Status.reason`.
    pub reason: &'static str,
    /// `Status.message`.
    pub message: String,
    /// `Status.details`.
    pub details: Option<Value>,
}

impl ApiError {
    fn new(code: u16, reason: &'static str, message: String, details: Option<Value>) -> Self {
        Self { code, reason, message, details }
    }

    fn about(resource: &Resource, name: &str) -> Value {
        let mut details = json!({"name": name, "kind": resource.plural});
        if !resource.group.is_empty() {
            details["group"] = json!(resource.group);
        }
        details
    }

    /// 404 for an object.
    #[must_use]
    pub fn not_found(resource: &Resource, name: &str) -> Self {
        let message = format!("{} \"{name}\" not found", resource.qualified());
        Self::new(404, "NotFound", message, Some(Self::about(resource, name)))
    }

    /// 404 for a path that nothing serves.
    #[must_use]
    pub fn no_such_path() -> Self {
        let message = "the server could not find the requested resource".into();
        Self::new(404, "NotFound", message, Some(json!({})))
    }

    /// 409 on create.
    #[must_use]
    pub fn already_exists(resource: &Resource, name: &str) -> Self {
        let message = format!("{} \"{name}\" already exists", resource.qualified());
        Self::new(409, "AlreadyExists", message, Some(Self::about(resource, name)))
    }

    /// 409 on a write that is guarded by something that no longer holds.
    #[must_use]
    pub fn conflict(resource: &Resource, name: &str, detail: &str) -> Self {
        let message =
            format!("Operation cannot be fulfilled on {} \"{name}\": {detail}", resource.qualified());
        Self::new(409, "Conflict", message, Some(Self::about(resource, name)))
    }

    /// 409 because the resourceVersion is not the current one.
    #[must_use]
    pub fn modified(resource: &Resource, name: &str) -> Self {
        let detail =
            "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(resource, name, detail)
    }

    /// 422 with everything that is wrong.
    #[must_use]
    pub fn invalid(resource: &Resource, name: &str, causes: &[Cause]) -> Self {
        let list: Vec<_> = causes.iter().map(|c| format!("{}: {}", c.field, c.message)).collect();
        let list = if let [one] = list.as_slice() { one.clone() } else { format!("[{}]", list.join(", ")) };
        let kind = resource.qualified_kind();
        let mut details = json!({"name": name, "kind": resource.kind});
        if !resource.group.is_empty() {
            details["group"] = json!(resource.group);
        }
        details["causes"] = causes
            .iter()
            .map(|c| json!({"reason": c.reason, "field": c.field, "message": c.message}))
            .collect();
        Self::new(422, "Invalid", format!("{kind} \"{name}\" is invalid: {list}"), Some(details))
    }

    /// 422 for a JSON patch that does not fit the object.
    #[must_use]
    pub fn patch_failed() -> Self {
        let message = "the server rejected our request due to an error in our request".into();
        Self::new(422, "Invalid", message, Some(json!({})))
    }

    /// 422 for a patch whose result is no object of its kind.
    #[must_use]
    pub fn bad_patch(detail: &str) -> Self {
        let message = format!("\"\" is invalid: patch: Invalid value: {detail}");
        let cause = json!({"reason": "FieldValueInvalid", "field": "patch", "message": detail});
        Self::new(422, "Invalid", message, Some(json!({"causes": [cause]})))
    }

    /// 500 without a reason, for the few mistakes of clients that the real server answers so.
    #[must_use]
    pub fn unclassified(message: &str) -> Self {
        Self::new(500, "", message.into(), None)
    }

    /// 400.
    #[must_use]
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message.into(), None)
    }

    /// 401.
    #[must_use]
    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized".into(), None)
    }

    /// 403.
    #[must_use]
    pub fn forbidden(resource: &Resource, name: &str, detail: &str) -> Self {
        let message = format!("{} \"{name}\" is forbidden: {detail}", resource.qualified());
        Self::new(403, "Forbidden", message, Some(Self::about(resource, name)))
    }

    /// 405.
    #[must_use]
    pub fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource".into();
        Self::new(405, "MethodNotAllowed", message, Some(json!({})))
    }

    /// 415, naming what would be taken.
    #[must_use]
    pub fn unsupported_media_type(accepted: &[&str]) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            accepted.join(", ")
        );
        Self::new(415, "UnsupportedMediaType", message, Some(json!({})))
    }

    /// 410: the version asked for is no longer kept.
    #[must_use]
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message.into(), None)
    }

    /// 504: the version asked for does not exist yet.
    #[must_use]
    pub fn version_too_large(asked: u64, current: u64) -> Self {
        let message = format!("Timeout: Too large resource version: {asked}, current: {current}");
        let cause = json!({"reason": "ResourceVersionTooLarge", "message": "Too large resource version"});
        let details = json!({"causes": [cause], "retryAfterSeconds": 1});
        Self::new(504, "Timeout", message, Some(details))
    }

    /// 429 with a Retry-After, as an overloaded server sends it.
    #[must_use]
    pub fn too_many_requests() -> Self {
        let message = "too many requests, please try again later".into();
        Self::new(429, "TooManyRequests", message, Some(json!({"retryAfterSeconds": 1})))
    }

    /// 429: a disruption budget says no. Only where it will soon know better is there a time to wait.
    #[must_use]
    pub fn over_budget(budget: &str, retry_after: Option<u32>) -> Self {
        let message = "Cannot evict pod as it would violate the pod's disruption budget.".into();
        let mut details = json!({"causes": [{"reason": "DisruptionBudget", "message": budget}]});
        if let Some(seconds) = retry_after {
            details["retryAfterSeconds"] = json!(seconds);
        }
        Self::new(429, "TooManyRequests", message, Some(details))
    }

    /// 500: a pod with more than one disruption budget cannot be evicted.
    #[must_use]
    pub fn too_many_budgets() -> Self {
        let message = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
        Self::unclassified(message)
    }

    /// 500.
    #[must_use]
    pub fn internal(detail: &str) -> Self {
        let message = format!("Internal error occurred: {detail}");
        let details = json!({"causes": [{"message": detail}]});
        Self::new(500, "InternalError", message, Some(details))
    }

    /// 422 about the options of a request, not about an object.
    #[must_use]
    pub fn invalid_options(kind: &'static str, causes: &[Cause]) -> Self {
        let options = Resource::new("meta.k8s.io", "v1", "", kind);
        Self::invalid(&options, "", causes)
    }

    /// 406: only JSON is spoken here.
    #[must_use]
    pub fn not_acceptable() -> Self {
        let message = "only the following media types are accepted: application/json".into();
        Self::new(406, "NotAcceptable", message, Some(json!({})))
    }

    /// 413.
    #[must_use]
    pub fn too_large(limit: usize) -> Self {
        let message = format!("Request entity too large: limit is {limit}");
        Self::new(413, "RequestEntityTooLarge", message, Some(json!({})))
    }

    /// The `Status` object.
    #[must_use]
    pub fn body(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        });
        if self.reason.is_empty() {
            crate::object::take(&mut status, "reason");
        }
        if let Some(details) = &self.details {
            status["details"] = details.clone();
        }
        status
    }
}
