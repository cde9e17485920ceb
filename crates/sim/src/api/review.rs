//! `SelfSubjectReview` and `SelfSubjectAccessReview`, which are answered and never stored. There is no RBAC, so every access
//! is permitted.

use std::sync::Arc;

use crate::value::{Value, json};
use bytes::Bytes;
use http::{Method, StatusCode};
use jiff::Timestamp;

use super::Answer;
use super::status::ApiError;
use crate::clock::time;
use crate::object::text;

pub(super) const GROUPS: [&str; 2] = ["authentication.k8s.io", "authorization.k8s.io"];
pub(super) const VERSION: &str = "v1";
/// The path and the kind of the review of each group.
const REVIEWS: [(&str, &str); 2] = [
    ("/apis/authentication.k8s.io/v1/selfsubjectreviews", "SelfSubjectReview"),
    ("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "SelfSubjectAccessReview"),
];

#[must_use]
pub fn is_review(path: &str) -> bool {
    REVIEWS.iter().any(|(known, _)| *known == path)
}

pub(super) fn resource_list(group: &str, version: &str) -> Option<Value> {
    let index = GROUPS.iter().position(|known| *known == group && version == VERSION)?;
    let (path, kind) = REVIEWS[index];
    let plural = path.rsplit('/').next().unwrap_or_default();
    Some(
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{group}/{VERSION}"), "resources": [
        {"name": plural, "singularName": kind.to_lowercase(), "namespaced": false, "kind": kind, "verbs": ["create"]}]}),
    )
}

/// Returns the user of the request, or that the access is permitted.
pub(crate) fn review(request: &http::Request<Bytes>, user: &str, now: Timestamp) -> Result<Answer, ApiError> {
    if request.method() != Method::POST {
        return Err(ApiError::method_not_allowed());
    }
    let body: Value = serde_json::from_slice(request.body())
        .map_err(|e| ApiError::bad_request(format!("unable to read the body: {e}")))?;
    let index = usize::from(request.uri().path() == REVIEWS[1].0);
    let (group, (_, wanted)) = (GROUPS[index], REVIEWS[index]);
    let kind = text(&body, "kind");
    if !kind.is_empty() && kind != wanted {
        let message = format!("{kind} in the body, {wanted} in the path");
        return Err(ApiError::bad_request(message));
    }
    let mut document = json!({"kind": wanted, "apiVersion": format!("{group}/{VERSION}"),
        "metadata": {"creationTimestamp": time(now)}});
    if index == 0 {
        document["status"] = json!({"userInfo": {"username": user, "groups": groups(user)}});
    } else {
        document["spec"] = body["spec"].clone();
        document["status"] = json!({"allowed": true});
    }
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

    const PATH: &str = REVIEWS[0].0;
    const KIND: &str = REVIEWS[0].1;

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
        assert!(names.contains(&&json!(GROUPS[0])), "{names:?}");
        let (_, list) = send(Method::GET, "/apis/authentication.k8s.io/v1", "");
        assert_eq!(list["resources"][0]["verbs"], json!(["create"]));
        let (_, group) = send(Method::GET, "/apis/authentication.k8s.io", "");
        assert_eq!(group["preferredVersion"]["groupVersion"], "authentication.k8s.io/v1");
    }

    #[tokio::test(start_paused = true)]
    async fn every_access_is_permitted() {
        let body = r#"{"kind":"SelfSubjectAccessReview","spec":{"resourceAttributes":{"verb":"delete","resource":"nodes"}}}"#;
        let (code, answer) = send(Method::POST, REVIEWS[1].0, body);
        assert_eq!((code, text(&answer, "kind")), (201, "SelfSubjectAccessReview"));
        assert_eq!(answer["status"]["allowed"], json!(true));
        assert_eq!(answer["spec"]["resourceAttributes"]["verb"], "delete");
        assert_eq!(send(Method::POST, REVIEWS[1].0, r#"{"kind":"SelfSubjectReview"}"#).0, 400);
        let (_, list) = send(Method::GET, "/apis/authorization.k8s.io/v1", "");
        assert_eq!(list["resources"][0]["name"], "selfsubjectaccessreviews");
    }
}
