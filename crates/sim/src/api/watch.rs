//! Watch: the log of changes from a revision on, filtered for one client.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::value::{Value, json};
use bytes::Bytes;
use jiff::Timestamp;

use super::list::{Selection, query_version};
use super::status::{ApiError, StatusCause};
use super::{Request, Shape, State};
use crate::object::set;
use crate::resource::Resource;
use crate::server::bytes_of;
use crate::store::Change;

/// An event with its object as JSON, which events of other watches may share.
#[derive(Debug)]
pub struct WatchEvent {
    kind: &'static str,
    object: Bytes,
}

impl WatchEvent {
    /// The JSON line of the event. The type comes first, as from the real server, so that clients can decode the
    /// object at once.
    #[must_use]
    pub fn line(&self) -> Bytes {
        let parts = [b"{\"type\":\"", self.kind.as_bytes(), b"\",\"object\":", &self.object, b"}\n"];
        Bytes::from(parts.concat())
    }
}

#[derive(Debug)]
pub enum Next {
    Event(WatchEvent),
    /// The last event: the watch cannot continue.
    Last(WatchEvent),
    /// The store was restored from a backup, and the watch ends without an error.
    End,
    /// No event until the collection changes.
    Wait,
}

/// The position of one client in the log.
#[derive(Debug)]
pub struct Watch {
    selection: Selection,
    resource: Arc<Resource>,
    shape: Shape,
    initial: VecDeque<WatchEvent>,
    seen: u64,
    epoch: u64,
    too_old: bool,
}

impl Watch {
    /// Starts a watch at the resource version of the request.
    pub fn begin(state: &State, request: &Request, now: Timestamp) -> Result<Self, ApiError> {
        let query = &request.query;
        let resource = request.resource.clone();
        let selection = Selection::read(&resource, &request.namespace, query)?;
        let shape = Shape::of(&request.accept, query, false)?;
        let send_initial = initial_events_wanted(request)?;
        let version = query_version(request)?.unwrap_or(0);
        let current = state.store.revision();
        let epoch = state.store.epoch();
        let (seen, initial, too_old) = (current, VecDeque::new(), false);
        let mut watch = Self { selection, resource: resource.clone(), shape, initial, seen, epoch, too_old };
        if send_initial.unwrap_or(version == 0) {
            if version > current {
                return Err(ApiError::version_too_large(version, current));
            }
            for (key, object) in state.store.all(resource.collection()) {
                if watch.selection.matches(key, object) {
                    let encoded = state.store.change_of(object).and_then(|change| watch.encoded(change));
                    let event = encoded.map_or_else(
                        || watch.event("ADDED", object, None, now),
                        |object| WatchEvent { kind: "ADDED", object },
                    );
                    watch.initial.push_back(event);
                }
            }
            if send_initial == Some(true) {
                let end = watch.bookmark(true);
                watch.initial.push_back(end);
            }
        } else if version > 0 {
            watch.seen = version;
            watch.too_old = version < state.store.compacted();
        }
        Ok(watch)
    }

    #[must_use]
    pub fn collection(&self) -> String {
        self.resource.collection().to_owned()
    }

    /// The next event after those already returned.
    pub fn next(&mut self, state: &State, now: Timestamp) -> Next {
        if self.epoch != state.store.epoch() {
            return Next::End;
        }
        if let Some(event) = self.initial.pop_front() {
            return Next::Event(event);
        }
        // A compacted version is refused only at the start of a watch, or when the log no longer has the next change.
        if self.too_old || !state.store.has_changes_since(self.seen) {
            let message = format!("too old resource version: {} ({})", self.seen, state.store.compacted());
            return Next::Last(WatchEvent {
                kind: "ERROR",
                object: bytes_of(&ApiError::expired(message).body()),
            });
        }
        let resource = self.resource.clone();
        for change in state.store.since_in(resource.collection(), self.seen) {
            self.seen = change.revision;
            if let Some(event) = self.show(change, now) {
                return Next::Event(event);
            }
        }
        self.seen = self.seen.max(state.store.revision());
        Next::Wait
    }

    /// The event of a change for this client: an object that leaves the selection is DELETED, one that enters it is
    /// ADDED.
    fn show(&self, change: &Change, now: Timestamp) -> Option<WatchEvent> {
        let selected = |o: &&Arc<Value>| self.selection.matches(&change.key, o);
        let before = change.before.as_ref().filter(selected);
        let after = change.after.as_ref().filter(selected);
        match (before, after) {
            (None, None) => None,
            (was, Some(object)) => {
                let kind = if was.is_some() { "MODIFIED" } else { "ADDED" };
                match self.encoded(change) {
                    Some(object) => Some(WatchEvent { kind, object }),
                    None => Some(self.event(kind, object, None, now)),
                }
            }
            (Some(object), None) => Some(self.event("DELETED", object, Some(change.revision), now)),
        }
    }

    /// The object that a change wrote, as this client gets it, if that is the whole object.
    fn encoded(&self, change: &Change) -> Option<Bytes> {
        if self.shape == Shape::Whole { change.encoded(&self.resource) } else { None }
    }

    fn event(
        &self,
        kind: &'static str,
        object: &Arc<Value>,
        revision: Option<u64>,
        now: Timestamp,
    ) -> WatchEvent {
        let mut object = self.resource.shown(object);
        if let Some(revision) = revision {
            let object = Arc::make_mut(&mut object);
            set(object, "metadata.resourceVersion", json!(revision.to_string()));
        }
        WatchEvent { kind, object: bytes_of(&self.shape.one(&self.resource, object, now)) }
    }

    /// Whether the watch waits for a version that does not exist yet.
    #[must_use]
    pub fn is_ahead_of(&self, state: &State) -> bool {
        self.seen > state.store.revision()
    }

    /// A bookmark with the position of the watch.
    #[must_use]
    pub fn bookmark(&self, initial_end: bool) -> WatchEvent {
        let mut object = json!({"kind": self.resource.kind, "apiVersion": self.resource.api_version(),
            "metadata": {"resourceVersion": self.seen.to_string(), "creationTimestamp": null}});
        if initial_end {
            object["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        WatchEvent { kind: "BOOKMARK", object: bytes_of(&self.shape.bookmark(object)) }
    }
}

fn initial_events_wanted(request: &Request) -> Result<Option<bool>, ApiError> {
    let query = &request.query;
    let refuse = |cause: StatusCause| Err(ApiError::invalid_options("ListOptions", &[cause]));
    if query.text("sendInitialEvents").is_empty() {
        if !query.text("resourceVersionMatch").is_empty() {
            let detail = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
            return refuse(StatusCause::forbidden("resourceVersionMatch", detail));
        }
        return Ok(None);
    }
    if query.text("resourceVersionMatch") != "NotOlderThan" {
        let detail = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
        return refuse(StatusCause::forbidden("resourceVersionMatch", detail));
    }
    Ok(Some(query.flag("sendInitialEvents")))
}
