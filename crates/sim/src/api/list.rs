//! List and get: selectors, consistent pages and resource version semantics.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::value::{Value, json};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;

use super::selector::{Fields, Labels};
use super::status::{ApiError, StatusCause};
use super::{Query, Request, State};
use crate::resource::Resource;

/// The namespace and selectors of a request.
#[derive(Clone, Debug)]
pub struct Selection {
    /// `namespace/`, or empty for all namespaces.
    prefix: String,
    labels: Labels,
    fields: Fields,
    resource: Arc<Resource>,
}

impl Selection {
    pub fn read(resource: &Arc<Resource>, namespace: &str, query: &Query) -> Result<Self, ApiError> {
        Ok(Self {
            prefix: if namespace.is_empty() { String::new() } else { format!("{namespace}/") },
            labels: Labels::parse(query.text("labelSelector"))?,
            fields: Fields::parse(query.text("fieldSelector"), resource)?,
            resource: resource.clone(),
        })
    }

    #[must_use]
    pub fn matches(&self, key: &str, object: &Value) -> bool {
        if !key.starts_with(&self.prefix) || !self.labels.matches(object) {
            return false;
        }
        if self.fields == Fields::default() {
            return true;
        }
        if self.resource.is_view() {
            return self.fields.matches(&self.resource.from_stored(object.clone()));
        }
        self.fields.matches(object)
    }

    fn selects_all(&self) -> bool {
        self.labels == Labels::default() && self.fields == Fields::default()
    }
}

#[derive(Debug)]
pub struct Page {
    pub items: Vec<Arc<Value>>,
    pub metadata: Value,
}

impl State {
    pub fn list(&self, request: &Request) -> Result<Page, ApiError> {
        let query = &request.query;
        if !query.text("sendInitialEvents").is_empty() {
            let detail = "sendInitialEvents is forbidden for list";
            return Err(ApiError::invalid_options(
                "ListOptions",
                &[StatusCause::forbidden("sendInitialEvents", detail)],
            ));
        }
        let selection = Selection::read(&request.resource, &request.namespace, query)?;
        let limit = query.number("limit")?.and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0);
        // The watch cache, which serves version 0, ignores the limit.
        let limit = limit.filter(|_| query.text("resourceVersion") != "0");
        let (revision, after) = match query.text("continue") {
            "" => (self.list_revision(request, limit.is_some())?, String::new()),
            token => self.decode_continue(token, query)?,
        };
        let collection = request.resource.collection();
        let now = revision == self.store.revision();
        let past = if now { BTreeMap::new() } else { self.store.at(collection, revision) };
        let all: Box<dyn Iterator<Item = (&String, &Arc<Value>)>> =
            if now { Box::new(self.store.all(collection)) } else { Box::new(past.iter()) };
        let mut rest = all.filter(|(key, object)| **key > after && selection.matches(key, object));
        let page: Vec<_> = rest.by_ref().take(limit.unwrap_or(usize::MAX)).collect();
        let mut metadata = json!({"resourceVersion": revision.to_string()});
        let left = rest.count();
        if let Some((last, _)) = page.last().filter(|_| left > 0) {
            metadata["continue"] = json!(BASE64.encode(format!("{revision}:{last}")));
            if selection.selects_all() {
                metadata["remainingItemCount"] = json!(left);
            }
        }
        Ok(Page { items: page.into_iter().map(|(_, object)| object.clone()).collect(), metadata })
    }

    /// The revision of a list without a continue token.
    fn list_revision(&self, request: &Request, limited: bool) -> Result<u64, ApiError> {
        let query = &request.query;
        let current = self.store.revision();
        let asked = query.text("resourceVersion");
        let rule = query.text("resourceVersionMatch");
        let refuse = |detail: &str| {
            let cause = StatusCause::forbidden("resourceVersionMatch", detail);
            Err(ApiError::invalid_options("ListOptions", &[cause]))
        };
        if !matches!(rule, "" | "Exact" | "NotOlderThan") {
            let allowed = ["\"Exact\"".to_owned(), "\"NotOlderThan\"".to_owned()];
            let cause = StatusCause::unsupported("resourceVersionMatch", &json!(rule), &allowed);
            return Err(ApiError::invalid_options("ListOptions", &[cause]));
        }
        if asked.is_empty() {
            return if rule.is_empty() {
                Ok(current)
            } else {
                refuse("resourceVersionMatch is forbidden unless resourceVersion is provided")
            };
        }
        let version = asked
            .parse::<u64>()
            .map_err(|_| ApiError::bad_request(format!("invalid resource version {asked:?}")))?;
        if rule == "Exact" && version == 0 {
            return refuse("resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"");
        }
        if version > current {
            return Err(ApiError::version_too_large(version, current));
        }
        if rule == "Exact" || (rule.is_empty() && limited && version > 0) {
            return if version < self.store.compacted() {
                Err(ApiError::expired(format!(
                    "The resourceVersion for the provided list is too old: {version}"
                )))
            } else {
                Ok(version)
            };
        }
        let may_be_old = version == 0 && !limited;
        Ok(request.cache_at.filter(|at| may_be_old && *at >= self.store.compacted()).unwrap_or(current))
    }

    /// Reads one object; a stale state if the client allows that and the watch cache is behind.
    pub fn read(&self, request: &Request) -> Result<Arc<Value>, ApiError> {
        let (namespace, name) = request.target();
        let cache_at = request.cache_at.filter(|at| *at >= self.store.compacted());
        match query_version(request)? {
            Some(version) if version > self.store.revision() => {
                return Err(ApiError::version_too_large(version, self.store.revision()));
            }
            _ => {}
        }
        match cache_at.filter(|_| request.query.text("resourceVersion") == "0") {
            None => self.get(&request.resource, namespace, name),
            Some(revision) => {
                let mut past = self.store.at(request.resource.collection(), revision);
                let found = past.remove(&super::key(namespace, name));
                found.ok_or_else(|| ApiError::not_found(&request.resource, name))
            }
        }
    }

    fn decode_continue(&self, token: &str, query: &Query) -> Result<(u64, String), ApiError> {
        if !matches!(query.text("resourceVersion"), "" | "0") {
            return Err(ApiError::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        let bad =
            || ApiError::bad_request("continue key is not valid: use the one of the page before, unchanged");
        let plain = BASE64.decode(token).ok().and_then(|b| String::from_utf8(b).ok()).ok_or_else(bad)?;
        let (revision, after) = plain.split_once(':').ok_or_else(bad)?;
        let revision: u64 = revision.parse().map_err(|_| bad())?;
        if revision < self.store.compacted() {
            return Err(ApiError::expired(
                "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter",
            ));
        }
        Ok((revision, after.to_owned()))
    }
}

/// The resource version of a get or a watch.
pub fn query_version(request: &Request) -> Result<Option<u64>, ApiError> {
    match request.query.text("resourceVersion") {
        "" => Ok(None),
        text => text
            .parse()
            .map(Some)
            .map_err(|_| ApiError::unclassified(&format!("invalid resource version {text:?}"))),
    }
}
