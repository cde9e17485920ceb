//! API errors: `Status` objects with a code, a reason and details.

use crate::value::{Value, json};

use crate::resource::Resource;

/// A `metav1.StatusCause`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusCause {
    /// Such as `FieldValueRequired`.
    pub reason: &'static str,
    /// Such as `spec.containers[0].name`.
    pub field: String,
    /// Begins as the real server's message does.
    pub message: String,
}

impl StatusCause {
    pub fn required(field: impl Into<String>, detail: &str) -> Self {
        let message =
            if detail.is_empty() { "Required value".into() } else { format!("Required value: {detail}") };
        Self { reason: "FieldValueRequired", field: field.into(), message }
    }

    pub fn invalid(field: impl Into<String>, value: &Value, detail: &str) -> Self {
        let message = format!("Invalid value: {value}: {detail}");
        Self { reason: "FieldValueInvalid", field: field.into(), message }
    }

    pub fn wrong_type(field: impl Into<String>, value: &Value, detail: &str) -> Self {
        let message = format!("Invalid value: {value}: {detail}");
        Self { reason: "FieldValueTypeInvalid", field: field.into(), message }
    }

    pub fn forbidden(field: impl Into<String>, detail: &str) -> Self {
        Self { reason: "FieldValueForbidden", field: field.into(), message: format!("Forbidden: {detail}") }
    }

    pub fn unsupported(field: impl Into<String>, value: &Value, allowed: &[String]) -> Self {
        let allowed = allowed.join(", ");
        let message = format!("Unsupported value: {value}: supported values: {allowed}");
        Self { reason: "FieldValueNotSupported", field: field.into(), message }
    }

    pub fn duplicate(field: impl Into<String>, value: &Value) -> Self {
        let message = format!("Duplicate value: {value}");
        Self { reason: "FieldValueDuplicate", field: field.into(), message }
    }

    pub fn too_long(field: impl Into<String>, message: String) -> Self {
        Self { reason: "FieldValueTooLong", field: field.into(), message }
    }
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{code} {reason}: {message}")]
pub struct ApiError {
    pub code: u16,
    pub reason: &'static str,
    pub message: String,
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

    /// 404 for a path that is not served.
    #[must_use]
    pub fn no_such_path() -> Self {
        let message = "the server could not find the requested resource".into();
        Self::new(404, "NotFound", message, Some(json!({})))
    }

    #[must_use]
    pub fn already_exists(resource: &Resource, name: &str) -> Self {
        let message = format!("{} \"{name}\" already exists", resource.qualified());
        Self::new(409, "AlreadyExists", message, Some(Self::about(resource, name)))
    }

    /// 409 for a failed precondition.
    #[must_use]
    pub fn conflict(resource: &Resource, name: &str, detail: &str) -> Self {
        let message =
            format!("Operation cannot be fulfilled on {} \"{name}\": {detail}", resource.qualified());
        Self::new(409, "Conflict", message, Some(Self::about(resource, name)))
    }

    /// 409 for a stale resource version.
    #[must_use]
    pub fn modified(resource: &Resource, name: &str) -> Self {
        let detail =
            "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(resource, name, detail)
    }

    #[must_use]
    pub fn invalid(resource: &Resource, name: &str, causes: &[StatusCause]) -> Self {
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

    #[must_use]
    pub fn patch_failed() -> Self {
        let message = "the server rejected our request due to an error in our request".into();
        Self::new(422, "Invalid", message, Some(json!({})))
    }

    /// 422 for a patch whose result does not decode.
    #[must_use]
    pub fn bad_patch(detail: &str) -> Self {
        let message = format!("\"\" is invalid: patch: Invalid value: {detail}");
        let cause = json!({"reason": "FieldValueInvalid", "field": "patch", "message": detail});
        Self::new(422, "Invalid", message, Some(json!({"causes": [cause]})))
    }

    /// 500 without a reason, which the real server returns for a few client errors.
    #[must_use]
    pub fn unclassified(message: &str) -> Self {
        Self::new(500, "", message.into(), None)
    }

    #[must_use]
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message.into(), None)
    }

    #[must_use]
    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized".into(), None)
    }

    #[must_use]
    pub fn forbidden(resource: &Resource, name: &str, detail: &str) -> Self {
        let message = format!("{} \"{name}\" is forbidden: {detail}", resource.qualified());
        Self::new(403, "Forbidden", message, Some(Self::about(resource, name)))
    }

    #[must_use]
    pub fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource".into();
        Self::new(405, "MethodNotAllowed", message, Some(json!({})))
    }

    #[must_use]
    pub fn unsupported_media_type(accepted: &[&str]) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            accepted.join(", ")
        );
        Self::new(415, "UnsupportedMediaType", message, Some(json!({})))
    }

    /// 410 for a compacted resource version.
    #[must_use]
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message.into(), None)
    }

    /// 504 for a resource version that does not exist yet.
    #[must_use]
    pub fn version_too_large(asked: u64, current: u64) -> Self {
        let message = format!("Timeout: Too large resource version: {asked}, current: {current}");
        let cause = json!({"reason": "ResourceVersionTooLarge", "message": "Too large resource version"});
        let details = json!({"causes": [cause], "retryAfterSeconds": 1});
        Self::new(504, "Timeout", message, Some(details))
    }

    /// 429 with `Retry-After`, as from an overloaded server.
    #[must_use]
    pub fn too_many_requests() -> Self {
        let message = "too many requests, please try again later".into();
        Self::new(429, "TooManyRequests", message, Some(json!({"retryAfterSeconds": 1})))
    }

    /// 429 because of a disruption budget. `retryAfterSeconds` is set only if the budget is being processed.
    #[must_use]
    pub fn over_budget(budget: &str, retry_after: Option<u32>) -> Self {
        let message = "Cannot evict pod as it would violate the pod's disruption budget.".into();
        let mut details = json!({"causes": [{"reason": "DisruptionBudget", "message": budget}]});
        if let Some(seconds) = retry_after {
            details["retryAfterSeconds"] = json!(seconds);
        }
        Self::new(429, "TooManyRequests", message, Some(details))
    }

    /// 500 for a pod with more than one disruption budget.
    #[must_use]
    pub fn too_many_budgets() -> Self {
        let message = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
        Self::unclassified(message)
    }

    #[must_use]
    pub fn internal(detail: &str) -> Self {
        let message = format!("Internal error occurred: {detail}");
        let details = json!({"causes": [{"message": detail}]});
        Self::new(500, "InternalError", message, Some(details))
    }

    /// 422 for the options of a request.
    #[must_use]
    pub fn invalid_options(kind: &'static str, causes: &[StatusCause]) -> Self {
        let options = Resource::new("meta.k8s.io", "v1", "", kind);
        Self::invalid(&options, "", causes)
    }

    /// 406: only JSON is supported.
    #[must_use]
    pub fn not_acceptable() -> Self {
        let message = "only the following media types are accepted: application/json".into();
        Self::new(406, "NotAcceptable", message, Some(json!({})))
    }

    #[must_use]
    pub fn too_large(limit: usize) -> Self {
        let message = format!("Request entity too large: limit is {limit}");
        Self::new(413, "RequestEntityTooLarge", message, Some(json!({})))
    }

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
