//! Dispatches a request to the handler of its verb.

use std::sync::Arc;
use std::time::Duration;

use crate::value::{Value, json};
use http::StatusCode;
use jiff::Timestamp;

use super::decode::{duplicate_fields, refuse_fields};
use super::status::{ApiError, StatusCause};
use super::{Caller, DeleteOptions, Deleted, Edit, Request, Shape, State, Verb, Watch};
use crate::object;
use crate::resource::Resource;
use crate::store::Origin;

/// The timeout of a watch without `timeoutSeconds`.
const DEFAULT_WATCH_TIMEOUT: Duration = Duration::from_mins(30);

/// A response before it is serialized.
#[derive(Debug)]
pub enum Answer {
    Document(StatusCode, Arc<Value>),
    /// Plain text, as health endpoints and unknown paths return.
    Plain(StatusCode, &'static str),
    /// A watch, its timeout, and whether it gets bookmarks.
    Events(Box<Watch>, Duration, bool),
}

impl Answer {
    #[must_use]
    pub fn refusal(error: &ApiError) -> Self {
        let code = StatusCode::from_u16(error.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Self::Document(code, Arc::new(error.body()))
    }

    /// The HTTP status code.
    #[must_use]
    pub fn code(&self) -> StatusCode {
        match self {
            Self::Document(code, _) | Self::Plain(code, _) => *code,
            Self::Events(..) => StatusCode::OK,
        }
    }
}

impl State {
    pub fn serve(
        &mut self,
        request: &Request,
        origin: Origin<'_>,
        now: Timestamp,
    ) -> Result<Answer, ApiError> {
        let caller = Caller {
            dry_run: read_dry_run(request)?,
            strict: read_field_validation(request)?,
            sent: origin.sent,
            is_delayed: origin.is_delayed,
            ..Caller::new(origin.user, now)
        };
        let shape = Shape::of(&request.accept, &request.query, request.verb == Verb::List)?;
        check_subresource(request)?;
        if !request.verb.is_write() {
            return self.serve_read(request, shape, now);
        }
        let (code, object) = match request.verb {
            Verb::Create if request.subresource.is_some() => {
                let body = read_document(request, caller.strict)?;
                let (resource, target) = (&request.resource, request.target());
                if request.subresource.as_deref() == Some("eviction") {
                    self.evict(resource, target, body, &caller)?;
                } else {
                    self.bind(resource, target, &body, &caller)?;
                }
                return Ok(Answer::Document(StatusCode::CREATED, Arc::new(success(None))));
            }
            Verb::Delete => return self.serve_delete(request, shape, &caller),
            Verb::DeleteCollection => return self.serve_delete_collection(request, &caller),
            _ => self.serve_write(request, &caller)?,
        };
        Ok(Answer::Document(code, shape.one(&request.resource, object, now)))
    }

    fn serve_read(&self, request: &Request, shape: Shape, now: Timestamp) -> Result<Answer, ApiError> {
        let resource = &request.resource;
        match request.verb {
            Verb::Watch => {
                let watch = Watch::begin(self, request, now)?;
                let seconds = request.query.number("timeoutSeconds")?.and_then(|s| u64::try_from(s).ok());
                let lasts = seconds.filter(|s| *s > 0).map_or(DEFAULT_WATCH_TIMEOUT, Duration::from_secs);
                Ok(Answer::Events(Box::new(watch), lasts, request.query.flag("allowWatchBookmarks")))
            }
            Verb::List => {
                let page = self.list(request)?;
                let show = |object: &Value| {
                    let mut object = resource.from_stored(object.clone());
                    // Items of a built-in list have no `kind` and `apiVersion`; those of a custom resource have.
                    if shape == Shape::Whole && !resource.is_custom() {
                        object::take(&mut object, "apiVersion");
                        object::take(&mut object, "kind");
                    }
                    object
                };
                let items = page.items.iter().map(|o| show(o)).collect();
                let list = shape.list(resource, items, &page.metadata, now);
                Ok(Answer::Document(StatusCode::OK, Arc::new(list)))
            }
            _ => {
                let object = resource.shown(&self.read(request)?);
                Ok(Answer::Document(StatusCode::OK, shape.one(resource, object, now)))
            }
        }
    }

    fn serve_write(
        &mut self,
        request: &Request,
        caller: &Caller,
    ) -> Result<(StatusCode, Arc<Value>), ApiError> {
        let resource = &request.resource;
        let (namespace, name) = request.target();
        let subresource = request.subresource.as_deref();
        let (code, stored) = if request.verb == Verb::Patch {
            let edit = Edit::Patch(&request.content_type, &request.body);
            (StatusCode::OK, self.update(resource, (namespace, name), subresource, edit, caller)?)
        } else {
            let body = read_document(request, caller.strict)?;
            let made_by_put = resource.create_on_update && subresource.is_none();
            let missing = request.verb == Verb::Update && self.get(resource, namespace, name).is_err();
            if missing && made_by_put && !object::uid(&body).is_empty() {
                // The object that the client means is gone; a new one must not take its place.
                let detail = "Precondition failed: UID in precondition, and no object with it";
                return Err(ApiError::conflict(resource, name, detail));
            }
            if request.verb == Verb::Create || (missing && made_by_put) {
                (StatusCode::CREATED, self.create(resource, namespace, body, caller)?)
            } else {
                (
                    StatusCode::OK,
                    self.update(resource, (namespace, name), subresource, Edit::Put(body), caller)?,
                )
            }
        };
        Ok((code, resource.shown(&stored)))
    }

    fn serve_delete(&mut self, request: &Request, shape: Shape, caller: &Caller) -> Result<Answer, ApiError> {
        let resource = &request.resource;
        let options = read_delete_options(request)?;
        let document = match self.delete(resource, request.target(), &options, caller)? {
            Deleted::Gone(last) if !resource.returns_deleted => {
                Arc::new(success(Some(&describe(resource, &last))))
            }
            Deleted::Gone(object) | Deleted::Pending(object) => {
                shape.one(resource, resource.shown(&object), caller.now)
            }
        };
        Ok(Answer::Document(StatusCode::OK, document))
    }

    fn serve_delete_collection(&mut self, request: &Request, caller: &Caller) -> Result<Answer, ApiError> {
        let resource = &request.resource;
        if resource.kind == "Namespace" {
            return Err(ApiError::method_not_allowed());
        }
        let options = read_delete_options(request)?;
        let page = self.list(request)?;
        for item in &page.items {
            self.delete(resource, (object::namespace(item), object::name(item)), &options, caller)?;
        }
        let items = page.items.iter().map(|o| resource.from_stored((**o).clone())).collect();
        let list = Shape::Whole.list(resource, items, &page.metadata, caller.now);
        Ok(Answer::Document(StatusCode::OK, Arc::new(list)))
    }
}

fn describe(resource: &Resource, object: &Value) -> Value {
    let mut details =
        json!({"name": object::name(object), "kind": resource.plural, "uid": object::uid(object)});
    if !resource.group.is_empty() {
        details["group"] = json!(resource.group);
    }
    details
}

fn success(details: Option<&Value>) -> Value {
    let mut status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"});
    if let Some(details) = details {
        status["details"] = details.clone();
    } else {
        status["code"] = json!(201);
    }
    status
}

fn check_subresource(request: &Request) -> Result<(), ApiError> {
    let resource = &request.resource;
    match (request.subresource.as_deref(), request.verb) {
        (None, _) => Ok(()),
        (Some("binding" | "eviction"), Verb::Create) if resource.kind == "Pod" => Ok(()),
        (Some("finalize"), Verb::Update) if resource.kind == "Namespace" => Ok(()),
        (Some("status"), Verb::Get | Verb::Update | Verb::Patch) if resource.has_status => Ok(()),
        (Some("status"), _) if resource.has_status => Err(ApiError::method_not_allowed()),
        (Some("binding" | "eviction"), _) if resource.kind == "Pod" => Err(ApiError::method_not_allowed()),
        _ => Err(ApiError::no_such_path()),
    }
}

fn read_dry_run(request: &Request) -> Result<bool, ApiError> {
    match request.query.text("dryRun") {
        "" if request.verb.is_delete() => Ok(read_delete_body(request)?["dryRun"] == json!(["All"])),
        "" => Ok(false),
        "All" => Ok(true),
        other => {
            let cause = StatusCause::unsupported("dryRun", &json!(other), &["\"All\"".to_owned()]);
            Err(ApiError::invalid_options(options_kind(request.verb), &[cause]))
        }
    }
}

fn options_kind(verb: Verb) -> &'static str {
    match verb {
        Verb::Create => "CreateOptions",
        Verb::Patch => "PatchOptions",
        Verb::Delete | Verb::DeleteCollection => "DeleteOptions",
        _ => "UpdateOptions",
    }
}

fn read_field_validation(request: &Request) -> Result<bool, ApiError> {
    match request.query.text("fieldValidation") {
        "" | "Ignore" | "Warn" => Ok(false),
        "Strict" => Ok(true),
        other => {
            let allowed = ["", "Ignore", "Strict", "Warn"].map(|v| format!("{v:?}"));
            let cause = StatusCause::unsupported("fieldValidation", &json!(other), &allowed);
            Err(ApiError::invalid_options(options_kind(request.verb), &[cause]))
        }
    }
}

fn read_document(request: &Request, strict: bool) -> Result<Value, ApiError> {
    let malformed = |e: String| ApiError::bad_request(format!("unable to read the body: {e}"));
    match request.content_type.as_str() {
        "" | "application/json" => {
            let document = serde_json::from_slice(&request.body).map_err(|e| malformed(e.to_string()))?;
            if strict {
                let twice = duplicate_fields(&request.body);
                refuse_fields(&request.resource.kind, &request.resource.version, &[], &twice)?;
            }
            Ok(document)
        }
        "application/yaml" => {
            let text = std::str::from_utf8(&request.body).map_err(|e| malformed(e.to_string()))?;
            serde_saphyr::from_str(text).map_err(|e| malformed(e.to_string()))
        }
        _ => {
            let mut error = ApiError::unsupported_media_type(&["application/json", "application/yaml"]);
            error.details = None;
            Err(error)
        }
    }
}

fn read_delete_body(request: &Request) -> Result<Value, ApiError> {
    if request.body.is_empty() { Ok(Value::Null) } else { read_document(request, false) }
}

fn read_delete_options(request: &Request) -> Result<DeleteOptions, ApiError> {
    let body = read_delete_body(request)?;
    let grace = request.query.number("gracePeriodSeconds")?;
    let propagation = Some(request.query.text("propagationPolicy")).filter(|p| !p.is_empty());
    DeleteOptions::read(&body, grace, propagation)
}
