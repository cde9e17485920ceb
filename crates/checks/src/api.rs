//! `api`: the API server accepts an authenticated request over verified TLS.

use nodekeeper_core::report::{Outcome, reason};
use serde_json::{Value, json};

use crate::net::{Answer, Net};
use crate::run::Finding;

/// Every authenticated user may create a `SelfSubjectReview`; nothing is stored.
pub(crate) const WHO_AM_I: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
/// The user name of a request without a valid token.
const ANONYMOUS: &str = "system:anonymous";

pub(crate) async fn check(net: &impl Net) -> Finding {
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let answer = match net.api(WHO_AM_I, Some(&review)).await {
        Ok(answer) => answer,
        Err(error) => return Finding::from_error(&error),
    };
    if !(200..300).contains(&answer.status) {
        return refusal(&answer);
    }
    let review: Value = answer.decode().unwrap_or_default();
    match review.pointer("/status/userInfo/username").and_then(Value::as_str) {
        Some(ANONYMOUS) => {
            let message = "the API server does not accept the token";
            Finding::new(Outcome::Inconclusive, reason::UNAUTHORIZED, message)
        }
        Some(name) if !name.is_empty() => Finding::passed(name.to_owned()),
        _ => Finding::new(Outcome::Failed, reason::BAD_ANSWER, "the response has no user name"),
    }
}

/// Returns the result for an unexpected status. It is inconclusive, because the API server was reached: its answer is about
/// the cluster. A token that is not accepted was issued by the API server, and the node only passes it on.
pub(crate) fn refusal(answer: &Answer) -> Finding {
    let (outcome, reason) = match answer.status {
        401 => (Outcome::Inconclusive, reason::UNAUTHORIZED),
        403 => (Outcome::Inconclusive, reason::FORBIDDEN),
        404 => (Outcome::Inconclusive, reason::NOT_FOUND),
        429 | 500.. => (Outcome::Inconclusive, reason::SERVER_ERROR),
        _ => (Outcome::Inconclusive, reason::BAD_ANSWER),
    };
    let status: Value = answer.decode().unwrap_or_default();
    let message = status["message"].as_str().unwrap_or_default();
    let colon = if message.is_empty() { "" } else { ": " };
    Finding::new(outcome, reason, format!("status {}{colon}{message}", answer.status))
}
