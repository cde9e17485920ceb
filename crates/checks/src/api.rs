//! `api`: the API server takes an authenticated request over verified TLS and knows who asks.

use nodekeeper_core::report::{Outcome, reason};
use serde_json::{Value, json};

use crate::net::{Answer, Net};
use crate::run::Finding;

/// Everybody who is authenticated may create these; nothing is stored.
pub(crate) const WHO_AM_I: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
/// Who asks without a token that is worth anything.
const NOBODY: &str = "system:anonymous";

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
        Some(NOBODY) => {
            Finding::new(Outcome::Failed, reason::UNAUTHORIZED, "the API server does not know the token")
        }
        Some(name) if !name.is_empty() => Finding::passed(name.to_owned()),
        _ => Finding::new(Outcome::Failed, reason::BAD_ANSWER, "the answer does not say who we are"),
    }
}

/// What an answer means that is not the wanted one. Only where the API server does not know us the node is to blame;
/// rights that are missing and a server in trouble say nothing about it.
pub(crate) fn refusal(answer: &Answer) -> Finding {
    let (outcome, reason) = match answer.status {
        401 => (Outcome::Failed, reason::UNAUTHORIZED),
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
