//! The HTTP front of the API server: requests in, responses and watch streams out.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use crate::value::Value;
use bytes::Bytes;
use futures::stream::{self, Stream, StreamExt as _};
use http::{Response, StatusCode, header};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use tokio::time::Instant;

use crate::api::status::ApiError;
use crate::api::{self, Answer, Next, Request, Watch};
use crate::clock::after;
use crate::cluster::Cluster;
use crate::object::{self, text};
use crate::registry::not_enforced;
use crate::store::Origin;

pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// How often a watch gets a bookmark.
const BOOKMARK_PERIOD: Duration = Duration::from_mins(1);

/// Handles one request at the time at which it was sent. `cache_at` is the revision of a stale watch cache, if reads may be
/// served from it.
pub fn answer(
    cluster: &Cluster,
    user: &str,
    request: &http::Request<Bytes>,
    cache_at: Option<u64>,
) -> Answer {
    let origin = Origin { user, sent: cluster.clock().now(), is_delayed: false };
    answer_late(cluster, origin, request, cache_at)
}

/// The same for a request that was sent earlier.
pub fn answer_late(
    cluster: &Cluster,
    origin: Origin<'_>,
    request: &http::Request<Bytes>,
    cache_at: Option<u64>,
) -> Answer {
    let path = request.uri().path();
    if matches!(path, "/healthz" | "/livez" | "/readyz") {
        return Answer::Plain(StatusCode::OK, "ok");
    }
    if api::is_review(path) {
        let reviewed = api::review(request, origin.user, cluster.clock().now());
        return reviewed.unwrap_or_else(|error| Answer::refusal(&error));
    }
    let read = Request::read(&cluster.state(), request);
    let result = match read {
        Some(Ok(mut request)) => {
            request.cache_at = cache_at;
            cluster.state().serve(&request, origin, cluster.clock().now())
        }
        Some(Err(error)) if error.code == 404 && !is_known_group(cluster, path) => {
            return Answer::Plain(StatusCode::NOT_FOUND, "404 page not found\n");
        }
        Some(Err(error)) => Err(error),
        None if request.method() != http::Method::GET => Err(ApiError::method_not_allowed()),
        None => match cluster.state().discover(path) {
            Ok(document) => Ok(Answer::Document(StatusCode::OK, Arc::new(document))),
            Err(_) => return Answer::Plain(StatusCode::NOT_FOUND, "404 page not found\n"),
        },
    };
    result.unwrap_or_else(|error| Answer::refusal(&error))
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

/// Turns an answer into a response; a watch sends one event a frame.
pub fn respond(cluster: &Cluster, answer: Answer) -> Response<Body> {
    let json = header::HeaderValue::from_static("application/json");
    match answer {
        Answer::Document(code, document) => {
            let mut response = Response::new(Full::new(bytes_of(&document)).boxed_unsync());
            *response.status_mut() = code;
            response.headers_mut().insert(header::CONTENT_TYPE, json);
            if text(&document, "kind") == "CustomResourceDefinition" {
                for word in not_enforced(&document) {
                    let warning = format!("299 - \"{word} is not enforced by the embedded cluster\"");
                    if let Ok(warning) = warning.parse() {
                        response.headers_mut().append(header::WARNING, warning);
                    }
                }
            }
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

/// The events of a watch as lines of JSON, until it times out or cannot continue.
pub fn events(cluster: Cluster, watch: Watch, lasts: Duration, bookmarks: bool) -> impl Stream<Item = Bytes> {
    let wake = cluster.state().store.changes_of(&watch.collection());
    let end = after(Instant::now(), lasts);
    let bookmark_at = Instant::now() + BOOKMARK_PERIOD;
    let place = Some((cluster, watch, wake, bookmark_at));
    stream::unfold(place, move |place| async move {
        let (cluster, mut watch, wake, mut bookmark_at) = place?;
        loop {
            let mut changed = Box::pin(wake.notified());
            // Registers before it reads, so that no change is missed in between.
            changed.as_mut().enable();
            let next = watch.next(&cluster.state(), cluster.clock().now());
            match next {
                Next::Event(event) => {
                    return Some((event.line(), Some((cluster, watch, wake.clone(), bookmark_at))));
                }
                Next::Last(event) => return Some((event.line(), None)),
                Next::End => return None,
                Next::Wait => {}
            }
            let now = Instant::now();
            if now >= end {
                return None;
            }
            if bookmarks && now >= bookmark_at {
                bookmark_at = now + BOOKMARK_PERIOD;
                if watch.is_ahead_of(&cluster.state()) {
                    continue;
                }
                let line = watch.bookmark(false).line();
                return Some((line, Some((cluster, watch, wake.clone(), bookmark_at))));
            }
            let until = if bookmarks { end.min(bookmark_at) } else { end };
            // Both outcomes lead to the top of the loop, which reads the log.
            let _ = tokio::time::timeout_at(until, changed).await;
        }
    })
}

#[must_use]
pub fn bytes_of(document: &Value) -> Bytes {
    let bytes = serde_json::to_vec(document);
    Bytes::from(bytes.unwrap_or_else(|error| unreachable!("a document is JSON: {error}")))
}
