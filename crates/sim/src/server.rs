//! The API server as HTTP sees it: a request in, a response or a stream of events out.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, Stream, StreamExt as _};
use http::{Response, StatusCode, header};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::api::status::{ApiError, Cause};
use crate::api::{Caller, DeleteOptions, Deleted, Edit, Next, Request, Shape, Verb, Watch, duplicate_fields, refuse_fields};
use crate::cluster::Cluster;
use crate::object::{self, text};

/// The body of every answer.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// How often a quiet watch says how far it is.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// How long a watch lasts that does not say.
const LONGEST_WATCH: Duration = Duration::from_secs(1800);

/// An answer before it is sent.
#[derive(Debug)]
pub enum Answer {
    /// A document.
    Document(StatusCode, Value),
    /// Plain text, as health endpoints and unknown paths give.
    Plain(StatusCode, &'static str),
    /// Events until the given time from now.
    Events(Box<Watch>, Duration, bool),
}

/// Answers one request. `cache_at` is how far a cache has come that may answer reads which allow it.
pub fn answer(cluster: &Cluster, who: &str, request: &http::Request<Bytes>, cache_at: Option<u64>) -> Answer {
    let path = request.uri().path();
    if matches!(path, "/healthz" | "/livez" | "/readyz") {
        return Answer::Plain(StatusCode::OK, "ok");
    }
    let read = Request::read(&cluster.state(), request);
    let result = match read {
        Some(Ok(mut request)) => {
            request.cache_at = cache_at;
            serve(cluster, who, &request)
        }
        Some(Err(error)) if error.code == 404 && !is_known_group(cluster, path) => {
            return Answer::Plain(StatusCode::NOT_FOUND, "404 page not found\n");
        }
        Some(Err(error)) => Err(error),
        None if request.method() != http::Method::GET => Err(ApiError::method_not_allowed()),
        None => match cluster.state().discover(path) {
            Ok(document) => Ok(Answer::Document(StatusCode::OK, document)),
            Err(_) => return Answer::Plain(StatusCode::NOT_FOUND, "404 page not found\n"),
        },
    };
    result.unwrap_or_else(|error| {
        let code = StatusCode::from_u16(error.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Answer::Document(code, error.body())
    })
}

fn is_known_group(cluster: &Cluster, path: &str) -> bool {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let version = match parts.as_slice() {
        ["api", version, ..] => ["", version],
        ["apis", group, version, ..] => [*group, version],
        _ => return false,
    };
    cluster.state().resources().any(|r| r.group == version[0] && r.version == version[1])
}

fn serve(cluster: &Cluster, who: &str, request: &Request) -> Result<Answer, ApiError> {
    let now = cluster.clock().now();
    let caller = Caller {
        dry_run: read_dry_run(request)?,
        strict: read_field_validation(request)?,
        ..Caller::new(who, now)
    };
    let resource = &request.resource;
    let shape = Shape::of(&request.accept, &request.query, request.verb == Verb::List)?;
    let namespace = request.namespace.as_str();
    let subresource = request.subresource.as_deref();
    check_subresource(request)?;
    let show = |code, object: &Value| {
        let object = resource.from_stored(object.clone());
        Ok(Answer::Document(code, shape.one(resource, object, now)))
    };
    let mut state = cluster.state();
    let name = request.name.as_deref().unwrap_or_default();
    match request.verb {
        Verb::Get => show(StatusCode::OK, &*state.read(request, name)?),
        Verb::List => {
            let page = state.list(request)?;
            let whole = |object: &Value| {
                let mut object = resource.from_stored(object.clone());
                // Items of a typed list do not repeat their type; those of a custom resource do.
                if shape == Shape::Whole && !resource.is_custom() {
                    object::take(&mut object, "apiVersion");
                    object::take(&mut object, "kind");
                }
                object
            };
            let items = page.items.iter().map(|o| whole(o)).collect();
            Ok(Answer::Document(StatusCode::OK, shape.list(resource, items, page.metadata, now)))
        }
        Verb::Watch => {
            let watch = Watch::begin(&state, request, now)?;
            let seconds = request.query.number("timeoutSeconds")?.and_then(|s| u64::try_from(s).ok());
            let lasts = seconds.filter(|s| *s > 0).map_or(LONGEST_WATCH, Duration::from_secs);
            Ok(Answer::Events(Box::new(watch), lasts, request.query.flag("allowWatchBookmarks")))
        }
        Verb::Create if subresource == Some("binding") => {
            let body = read_document(request, caller.strict)?;
            state.bind(resource, (namespace, name), &body, &caller)?;
            Ok(Answer::Document(StatusCode::CREATED, success(None)))
        }
        Verb::Create => {
            let made = state.create(resource, namespace, read_document(request, caller.strict)?, &caller)?;
            show(StatusCode::CREATED, &made)
        }
        Verb::Update => {
            let body = read_document(request, caller.strict)?;
            let missing = state.get(resource, namespace, name).is_err();
            if missing && resource.create_on_update && subresource.is_none() {
                return show(StatusCode::CREATED, &*state.create(resource, namespace, body, &caller)?);
            }
            let edit = Edit::Put(body);
            let updated = state.update(resource, (namespace, name), subresource, edit, &caller)?;
            show(StatusCode::OK, &updated)
        }
        Verb::Patch => {
            let edit = Edit::Patch(&request.content_type, &request.body);
            let patched = state.update(resource, (namespace, name), subresource, edit, &caller)?;
            show(StatusCode::OK, &patched)
        }
        Verb::Delete => {
            let options = read_delete_options(request)?;
            let deleted = state.delete(resource, (namespace, name), &options, &caller)?;
            match deleted {
                Deleted::Gone(last) if !resource.returns_deleted => {
                    Ok(Answer::Document(StatusCode::OK, success(Some(&describe(resource, &last)))))
                }
                Deleted::Gone(object) | Deleted::Pending(object) => show(StatusCode::OK, &object),
            }
        }
        Verb::DeleteCollection if resource.kind == "Namespace" => Err(ApiError::method_not_allowed()),
        Verb::DeleteCollection => {
            let options = read_delete_options(request)?;
            let page = state.list(request)?;
            for item in &page.items {
                let target = (object::namespace(item), object::name(item));
                state.delete(resource, target, &options, &caller)?;
            }
            let items = page.items.iter().map(|o| resource.from_stored((**o).clone())).collect();
            Ok(Answer::Document(StatusCode::OK, Shape::Whole.list(resource, items, page.metadata, now)))
        }
    }
}

fn describe(resource: &crate::resources::Resource, object: &Value) -> Value {
    let mut details = json!({"name": object::name(object), "kind": resource.plural, "uid": object::uid(object)});
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
        (None, _) | (Some("binding"), Verb::Create) | (Some("finalize"), Verb::Update) => Ok(()),
        (Some("status"), Verb::Get | Verb::Update | Verb::Patch) if resource.has_status => Ok(()),
        (Some("status"), _) if resource.has_status => Err(ApiError::method_not_allowed()),
        (Some("binding"), _) if resource.kind == "Pod" => Err(ApiError::method_not_allowed()),
        _ => Err(ApiError::no_such_path()),
    }
}

fn read_dry_run(request: &Request) -> Result<bool, ApiError> {
    match request.query.text("dryRun") {
        "" => Ok(false),
        "All" => Ok(true),
        other => {
            let cause = Cause::unsupported("dryRun", &json!(other), &["\"All\"".to_owned()]);
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
            let cause = Cause::unsupported("fieldValidation", &json!(other), &allowed);
            Err(ApiError::invalid_options(options_kind(request.verb), &[cause]))
        }
    }
}

/// A JSON or YAML body.
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

fn read_delete_options(request: &Request) -> Result<DeleteOptions, ApiError> {
    let body = if request.body.is_empty() { Value::Null } else { read_document(request, false)? };
    let grace = request.query.number("gracePeriodSeconds")?;
    let propagation = Some(request.query.text("propagationPolicy")).filter(|p| !p.is_empty());
    DeleteOptions::read(&body, grace, propagation)
}

/// Sends an answer as one frame, or as a frame an event.
pub fn respond(cluster: &Cluster, answer: Answer) -> Response<Body> {
    let json = header::HeaderValue::from_static("application/json");
    match answer {
        Answer::Document(code, document) => {
            let mut response = Response::new(Full::new(Bytes::from(document.to_string())).boxed_unsync());
            *response.status_mut() = code;
            response.headers_mut().insert(header::CONTENT_TYPE, json);
            if let Some(seconds) = object::number(&document, "details.retryAfterSeconds")
                && text(&document, "kind") == "Status"
                && let Ok(value) = seconds.to_string().parse()
            {
                response.headers_mut().insert(header::RETRY_AFTER, value);
            }
            response
        }
        Answer::Plain(code, text) => {
            let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())).boxed_unsync());
            *response.status_mut() = code;
            response
        }
        Answer::Events(watch, lasts, bookmarks) => {
            let lines = events(cluster.clone(), *watch, lasts, bookmarks);
            let body = StreamBody::new(lines.map(|line| Ok(Frame::data(line))));
            let mut response = Response::new(body.boxed_unsync());
            response.headers_mut().insert(header::CONTENT_TYPE, json);
            response
        }
    }
}

/// A watch as lines of JSON, until its time is over or it can no longer follow.
pub fn events(cluster: Cluster, watch: Watch, lasts: Duration, bookmarks: bool) -> impl Stream<Item = Bytes> {
    let wake = cluster.state().store.changes_of(&watch.collection());
    let end = Instant::now() + lasts;
    let bookmark_at = Instant::now() + BOOKMARK_EVERY;
    let place = Some((cluster, watch, wake, bookmark_at));
    stream::unfold(place, move |place| async move {
        let (cluster, mut watch, wake, mut bookmark_at) = place?;
        loop {
            let mut changed = Box::pin(wake.notified());
            // Enlist before looking, so that a change in between is not missed.
            changed.as_mut().enable();
            let next = watch.next(&cluster.state(), cluster.clock().now());
            match next {
                Next::Event(event) => return Some((line(&event), Some((cluster, watch, wake.clone(), bookmark_at)))),
                Next::Last(event) => return Some((line(&event), None)),
                Next::Wait => {}
            }
            let now = Instant::now();
            if now >= end {
                return None;
            }
            if bookmarks && now >= bookmark_at {
                bookmark_at = now + BOOKMARK_EVERY;
                return Some((line(&watch.bookmark(false)), Some((cluster, watch, wake.clone(), bookmark_at))));
            }
            let until = if bookmarks { end.min(bookmark_at) } else { end };
            // Both outcomes lead back to the top, where the log is looked at first.
            let _ = tokio::time::timeout_at(until, changed).await;
        }
    })
}

fn line(event: &Value) -> Bytes {
    let mut line = event.to_string();
    line.push('\n');
    Bytes::from(line)
}
