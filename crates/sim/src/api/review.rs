//! `SelfSubjectReview`, which is answered and never stored.

use std::sync::Arc;

use crate::value::{Value, json};
use bytes::Bytes;
use http::{Method, StatusCode};
use jiff::Timestamp;

use super::Answer;
use super::status::ApiError;
use crate::clock::time;
use crate::object::text;

pub(super) const GROUP: &str = "authentication.k8s.io";
pub(super) const VERSION: &str = "v1";
const PATH: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const KIND: &str = "SelfSubjectReview";

#[must_use]
pub fn is_review(path: &str) -> bool {
    path == PATH
}

pub(super) fn resource_list() -> Value {
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{GROUP}/{VERSION}"), "resources": [
        {"name": "selfsubjectreviews", "singularName": "selfsubjectreview", "namespaced": false, "kind": KIND,
            "verbs": ["create"]}]})
}

/// Returns the user of the request.
pub(crate) fn review(request: &http::Request<Bytes>, user: &str, now: Timestamp) -> Result<Answer, ApiError> {
    if request.method() != Method::POST {
        return Err(ApiError::method_not_allowed());
    }
    let body: Value = serde_json::from_slice(request.body())
        .map_err(|e| ApiError::bad_request(format!("unable to read the body: {e}")))?;
    let kind = text(&body, "kind");
    if !matches!(kind, "" | KIND) {
        let message = format!("{kind} in the body, {KIND} in the path");
        return Err(ApiError::bad_request(message));
    }
    let document = json!({"kind": KIND, "apiVersion": format!("{GROUP}/{VERSION}"),
        "metadata": {"creationTimestamp": time(now)},
        "status": {"userInfo": {"username": user, "groups": groups(user)}}});
    Ok(Answer::Document(StatusCode::CREATED, Arc::new(document)))
}

fn groups(user: &str) -> Vec<String> {
    let mut groups = Vec::new();
    if let Some((namespace, _)) = user.strip_prefix("system:serviceaccount:").and_then(|n| n.split_once(':'))
    {
        groups.push("system:serviceaccounts".to_owned());
        groups.push(format!("system:serviceaccounts:{namespace}"));
    }
    groups.push("system:authenticated".to_owned());
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Cluster, Options};
    use crate::server;

    fn send(method: Method, path: &str, body: &'static str) -> (u16, Value) {
        let cluster = Cluster::new(Options::simulated(1));
        let mut request = http::Request::new(Bytes::from_static(body.as_bytes()));
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().expect("it is a path");
        match server::answer(&cluster, "system:serviceaccount:ns:worker", &request, None) {
            Answer::Document(code, document) => (code.as_u16(), (*document).clone()),
            other => unreachable!("{other:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_review_names_the_user() {
        let body = r#"{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}"#;
        let (code, answer) = send(Method::POST, PATH, body);
        assert_eq!((code, text(&answer, "kind")), (201, KIND));
        let user = &answer["status"]["userInfo"];
        assert_eq!(user["username"], "system:serviceaccount:ns:worker");
        let groups = ["system:serviceaccounts", "system:serviceaccounts:ns", "system:authenticated"];
        assert_eq!(user["groups"], json!(groups));
        assert!(!text(&answer, "metadata.creationTimestamp").is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_self_subject_review_can_be_created() {
        assert_eq!(send(Method::GET, PATH, "").0, 405);
        assert_eq!(send(Method::DELETE, PATH, "").0, 405);
        assert_eq!(send(Method::POST, PATH, "{").0, 400);
        assert_eq!(send(Method::POST, PATH, r#"{"kind":"TokenReview"}"#).0, 400);
    }

    #[tokio::test(start_paused = true)]
    async fn the_review_is_discoverable() {
        let (_, groups) = send(Method::GET, "/apis", "");
        let names: Vec<_> = groups["groups"].as_array().expect("a list").iter().map(|g| &g["name"]).collect();
        assert!(names.contains(&&json!(GROUP)), "{names:?}");
        let (_, list) = send(Method::GET, "/apis/authentication.k8s.io/v1", "");
        assert_eq!(list["resources"][0]["verbs"], json!(["create"]));
        let (_, group) = send(Method::GET, "/apis/authentication.k8s.io", "");
        assert_eq!(group["preferredVersion"]["groupVersion"], "authentication.k8s.io/v1");
    }
}
