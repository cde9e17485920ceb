//! Parses method and URL into a verb and a resource.

use std::sync::Arc;

use bytes::Bytes;
use http::Method;
use percent_encoding::percent_decode_str;

use super::State;
use super::status::ApiError;
use crate::resource::Resource;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
}

impl Verb {
    #[must_use]
    pub fn is_write(self) -> bool {
        !matches!(self, Self::Get | Self::List | Self::Watch)
    }

    #[must_use]
    pub fn is_delete(self) -> bool {
        matches!(self, Self::Delete | Self::DeleteCollection)
    }
}

#[derive(Clone, Debug, Default)]
pub struct Query(Vec<(String, String)>);

impl Query {
    #[must_use]
    pub fn parse(query: &str) -> Self {
        Self(form_urlencoded::parse(query.as_bytes()).into_owned().collect())
    }

    #[must_use]
    pub fn text(&self, name: &str) -> &str {
        self.0.iter().find(|(n, _)| n == name).map_or("", |(_, v)| v)
    }

    /// Parses a flag as the API machinery does: anything but `false` and `0` is true (Python sends `True`).
    #[must_use]
    pub fn flag(&self, name: &str) -> bool {
        let given = self.0.iter().find(|(n, _)| n == name);
        given.is_some_and(|(_, v)| !v.eq_ignore_ascii_case("false") && v != "0")
    }

    pub fn number(&self, name: &str) -> Result<Option<i64>, ApiError> {
        match self.text(name) {
            "" => Ok(None),
            given => given
                .parse()
                .map(Some)
                .map_err(|_| ApiError::bad_request(format!("{name}: {given:?} is not a whole number"))),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Request {
    pub verb: Verb,
    pub resource: Arc<Resource>,
    /// Empty for all namespaces and for cluster-scoped kinds.
    pub namespace: String,
    pub name: Option<String>,
    pub subresource: Option<String>,
    pub query: Query,
    /// Without parameters.
    pub content_type: String,
    pub accept: String,
    pub body: Bytes,
    /// The revision of a stale watch cache that serves `resourceVersion=0`; none if the cache is current.
    pub cache_at: Option<u64>,
}

impl Request {
    /// The namespace and name of the object.
    #[must_use]
    pub fn target(&self) -> (&str, &str) {
        (&self.namespace, self.name.as_deref().unwrap_or_default())
    }

    /// Returns none if the path is not that of a resource.
    pub fn read(state: &State, request: &http::Request<Bytes>) -> Option<Result<Self, ApiError>> {
        let mut path = Path::parse(request.uri().path())?;
        let Some(resource) = state.resource(&path.group, &path.version, &path.resource) else {
            return Some(Err(ApiError::no_such_path()));
        };
        let mut query = Query::parse(request.uri().query().unwrap_or_default());
        if path.is_watch
            && let Some(name) = path.name.take()
        {
            query.0.push(("fieldSelector".into(), format!("metadata.name={name}")));
        }
        let header = |name| request.headers().get(name).and_then(|v| v.to_str().ok()).unwrap_or_default();
        let verb = match (request.method(), path.name.is_some()) {
            (&Method::GET, false) if path.is_watch || query.flag("watch") => Verb::Watch,
            (&Method::GET, true) => Verb::Get,
            (&Method::GET, false) => Verb::List,
            (&Method::POST, false) => Verb::Create,
            // A POST below an object is a binding or an eviction of a Pod.
            (&Method::POST, true) if path.subresource.is_some() => Verb::Create,
            (&Method::PUT, true) => Verb::Update,
            (&Method::PATCH, true) => Verb::Patch,
            (&Method::DELETE, true) => Verb::Delete,
            (&Method::DELETE, false) => Verb::DeleteCollection,
            _ => return Some(Err(ApiError::method_not_allowed())),
        };
        let in_namespace = path.namespace.is_some();
        let misplaced =
            resource.namespaced != in_namespace && (in_namespace || path.name.is_some() || verb.is_write());
        if misplaced {
            // A built-in namespaced kind can be listed across namespaces, but not written.
            let readable = !in_namespace && path.name.is_none() && !resource.is_custom();
            let error = if readable { ApiError::method_not_allowed() } else { ApiError::no_such_path() };
            return Some(Err(error));
        }
        Some(Ok(Self {
            verb,
            resource,
            namespace: path.namespace.unwrap_or_default(),
            name: path.name,
            subresource: path.subresource,
            query,
            content_type: header("content-type").split(';').next().unwrap_or_default().trim().to_owned(),
            accept: header("accept").to_owned(),
            body: request.body().clone(),
            cache_at: None,
        }))
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Path {
    is_watch: bool,
    group: String,
    version: String,
    namespace: Option<String>,
    resource: String,
    name: Option<String>,
    subresource: Option<String>,
}

impl Path {
    /// Parses `/api/v1/…` and `/apis/GROUP/VERSION/…`, with or without `namespaces/NAME/`.
    fn parse(path: &str) -> Option<Self> {
        let decoded: Vec<String> = path
            .trim_matches('/')
            .split('/')
            .map(|part| percent_decode_str(part).decode_utf8_lossy().into_owned())
            .collect();
        let parts: Vec<&str> = decoded.iter().map(String::as_str).collect();
        let (group, version, rest) = match parts.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return None,
        };
        // The deprecated `/watch/` path.
        let (is_watch, rest) = match rest {
            ["watch", rest @ ..] => (true, rest),
            rest => (false, rest),
        };
        let (namespace, rest) = match rest {
            // `status` and `finalize` are subresources of the Namespace itself.
            ["namespaces", name, part @ ("status" | "finalize")] => (None, &["namespaces", name, part][..]),
            ["namespaces", name, _, ..] => (Some((*name).to_owned()), &rest[2..]),
            rest => (None, rest),
        };
        let (resource, name, subresource) = match rest {
            [resource] => (*resource, None, None),
            [resource, name] => (*resource, Some(*name), None),
            [resource, name, subresource] => (*resource, Some(*name), Some(*subresource)),
            _ => return None,
        };
        Some(Self {
            is_watch,
            group: group.to_owned(),
            version: version.to_owned(),
            namespace,
            resource: resource.to_owned(),
            name: name.map(str::to_owned),
            subresource: subresource.map(str::to_owned),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read_with_and_without_a_namespace() {
        let path = |p| Path::parse(p).map(|p| (p.group, p.namespace, p.resource, p.name, p.subresource));
        let s = |s: &str| Some(s.to_owned());
        assert_eq!(
            path("/api/v1/nodes/n1/status"),
            Some((String::new(), None, "nodes".into(), s("n1"), s("status")))
        );
        assert_eq!(
            path("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1"),
            Some(("coordination.k8s.io".into(), s("kube-node-lease"), "leases".into(), s("n1"), None))
        );
        assert_eq!(
            path("/api/v1/namespaces/x/finalize"),
            Some((String::new(), None, "namespaces".into(), s("x"), s("finalize")))
        );
        assert_eq!(
            path("/api/v1/namespaces/x"),
            Some((String::new(), None, "namespaces".into(), s("x"), None))
        );
        assert_eq!(path("/version"), None);
        assert_eq!(path("/api/v1"), None);
    }

    #[test]
    fn flags_are_read_as_go_and_python_write_them() {
        let query = Query::parse("watch=True&a=1&b=false&c=0&d=&labelSelector=x%3Dy%2Cz+in+(w)");
        assert!(query.flag("watch") && query.flag("a") && query.flag("d"));
        assert!(!query.flag("b") && !query.flag("c") && !query.flag("missing"));
        assert_eq!(query.text("labelSelector"), "x=y,z in (w)");
    }
}
