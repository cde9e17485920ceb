//! `services`: a Service is there and has ready endpoints, as its `EndpointSlices` say.

use nodekeeper_core::checks::ServiceTarget;
use nodekeeper_core::report::{Outcome, reason};
use serde_json::Value;

use crate::api::refusal;
use crate::net::Net;
use crate::run::Finding;

pub(crate) async fn check(net: &impl Net, service: &ServiceTarget) -> Finding {
    let ServiceTarget { namespace, name, min_ready } = service;
    let of_service = format!("/api/v1/namespaces/{namespace}/services/{name}");
    match net.api(&of_service, None).await {
        Ok(answer) if answer.status == 200 => {}
        Ok(answer) if answer.status == 404 => {
            return Finding::new(Outcome::Failed, reason::NOT_FOUND, "there is no such Service");
        }
        Ok(answer) => return refusal(&answer),
        Err(trouble) => return Finding::trouble(&trouble),
    }
    let of_slices = format!(
        "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3D{name}"
    );
    let ready = match net.api(&of_slices, None).await {
        Ok(answer) if answer.status == 200 => count_ready(&answer.body),
        Ok(answer) => return refusal(&answer),
        Err(trouble) => return Finding::trouble(&trouble),
    };
    match ready {
        0 => Finding::new(Outcome::Failed, reason::NO_READY_ENDPOINTS, "none of its endpoints is ready"),
        n if n < usize::try_from(*min_ready).unwrap_or(1) => Finding::new(
            Outcome::Failed,
            reason::TOO_FEW_READY_ENDPOINTS,
            format!("{n} of its endpoints are ready, {min_ready} are needed"),
        ),
        n => Finding::passed(format!("{n} ready")),
    }
}

/// Endpoints that take connections. A condition that is not set counts as true: so the API defines it. An endpoint of
/// two address families stands in two slices; it is one by its target.
fn count_ready(slices: &Value) -> usize {
    let list = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
    let mut seen = std::collections::BTreeSet::new();
    for endpoint in list(slices, "items").iter().flat_map(|slice| list(slice, "endpoints")) {
        let is_ready = endpoint["conditions"]["ready"].as_bool().unwrap_or(true);
        let addresses = list(&endpoint, "addresses");
        let identity = match (endpoint["targetRef"]["uid"].as_str(), addresses.first()) {
            (Some(uid), _) => uid.to_owned(),
            (None, Some(address)) => address.to_string(),
            (None, None) => continue,
        };
        if is_ready {
            seen.insert(identity);
        }
    }
    seen.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ready_endpoints_are_counted_once() {
        let pod = |uid: &str, ip: &str, ready: bool| json!({"addresses": [ip], "conditions": {"ready": ready}, "targetRef": {"uid": uid}});
        let slices = json!({"items": [
            {"endpoints": [pod("a", "10.0.0.1", true), pod("b", "10.0.0.2", false), {"addresses": ["10.0.0.9"]}]},
            {"endpoints": [pod("a", "fd00::1", true), {"addresses": []}]},
            {"endpoints": null},
        ]});
        assert_eq!(count_ready(&slices), 2);
        assert_eq!(count_ready(&json!({"items": null})), 0);
        assert_eq!(count_ready(&Value::Null), 0);
    }
}
