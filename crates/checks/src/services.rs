//! `services`: a Service is there and has ready endpoints, as its `EndpointSlices` say.

use std::borrow::Cow;
use std::collections::BTreeSet;

use nodekeeper_core::checks::ServiceTarget;
use nodekeeper_core::report::{Outcome, reason};
use serde::Deserialize;

use crate::api::refusal;
use crate::net::Net;
use crate::run::Finding;

/// How many slices are asked for at once. A slice has up to 100 endpoints, 1000 where somebody wants it so: a page is
/// some hundred kilobytes.
const PAGE: usize = 10;
/// How many pages are read before it is said that there are too many.
const PAGES: usize = 100;

/// A page of slices, and of it only what is looked at.
#[derive(Deserialize)]
struct Slices<'a> {
    #[serde(default)]
    metadata: Metadata,
    #[serde(borrow)]
    items: Option<Vec<Slice<'a>>>,
}

#[derive(Default, Deserialize)]
struct Metadata {
    #[serde(rename = "continue", default)]
    next: String,
}

#[derive(Deserialize)]
struct Slice<'a> {
    #[serde(borrow)]
    endpoints: Option<Vec<Endpoint<'a>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Endpoint<'a> {
    #[serde(borrow, default)]
    addresses: Vec<Cow<'a, str>>,
    conditions: Option<Conditions>,
    #[serde(borrow)]
    target_ref: Option<TargetRef<'a>>,
}

#[derive(Deserialize)]
struct Conditions {
    ready: Option<bool>,
}

#[derive(Deserialize)]
struct TargetRef<'a> {
    #[serde(borrow)]
    uid: Option<Cow<'a, str>>,
}

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
    let enough = usize::try_from(*min_ready).unwrap_or(1);
    match count(net, service, enough).await {
        Ok((0, _)) => {
            Finding::new(Outcome::Failed, reason::NO_READY_ENDPOINTS, "none of its endpoints is ready")
        }
        Ok((n, _)) if n < enough => Finding::new(
            Outcome::Failed,
            reason::TOO_FEW_READY_ENDPOINTS,
            format!("{n} of its endpoints are ready, {min_ready} are needed"),
        ),
        Ok((n, true)) => Finding::passed(format!("{n} ready")),
        Ok((n, false)) => Finding::passed(format!("{n} ready or more")),
        Err(finding) => finding,
    }
}

/// Counts ready endpoints, page by page, until there are enough; and whether these are all.
async fn count(net: &impl Net, service: &ServiceTarget, enough: usize) -> Result<(usize, bool), Finding> {
    let ServiceTarget { namespace, name, .. } = service;
    let of_slices = format!(
        "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3D{name}&limit={PAGE}"
    );
    let vague = |message: &str| Finding::new(Outcome::Inconclusive, reason::BAD_ANSWER, message);
    let mut ready = BTreeSet::new();
    let mut path = of_slices.clone();
    for _ in 0..PAGES {
        let answer = net.api(&path, None).await.map_err(|trouble| Finding::trouble(&trouble))?;
        if answer.status != 200 {
            return Err(refusal(&answer));
        }
        let page: Slices = answer.decode().ok_or_else(|| vague("the answer is no list of EndpointSlices"))?;
        let Metadata { next } = &page.metadata;
        path = format!("{of_slices}&continue={}", escape(next));
        let is_last = next.is_empty();
        add_ready(page, &mut ready);
        if is_last || ready.len() >= enough {
            return Ok((ready.len(), is_last));
        }
    }
    Err(vague("it has more EndpointSlices than are read"))
}

/// Endpoints that take connections. A condition that is not set counts as true: so the API defines it. An endpoint of
/// two address families stands in two slices; it is one by its target.
fn add_ready(page: Slices, ready: &mut BTreeSet<String>) {
    let slices = page.items.unwrap_or_default();
    for endpoint in slices.into_iter().flat_map(|slice| slice.endpoints.unwrap_or_default()) {
        let uid = endpoint.target_ref.and_then(|target| target.uid);
        let identity = uid.or_else(|| endpoint.addresses.into_iter().next());
        let is_ready = endpoint.conditions.and_then(|conditions| conditions.ready).unwrap_or(true);
        if let Some(identity) = identity.filter(|_| is_ready) {
            ready.insert(identity.into_owned());
        }
    }
}

/// A token of the API server as part of a URL.
fn escape(token: &str) -> String {
    let one = |byte: u8| match byte {
        b'-' | b'_' | b'.' => char::from(byte).to_string(),
        _ if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    token.bytes().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::{Answer, Trouble};
    use serde_json::{Value, json};
    use std::net::IpAddr;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// An API server whose Service has so many pages of slices, each with two ready endpoints; the last page has no
    /// more. It counts what it is asked for.
    struct Pages {
        pages: usize,
        asked: AtomicUsize,
    }

    impl Net for Pages {
        async fn resolve(&self, _: &str) -> Result<Vec<IpAddr>, Trouble> {
            Err(Trouble::NxDomain)
        }

        async fn connect(&self, _: &str, _: u16) -> Result<(), Trouble> {
            Err(Trouble::Refused)
        }

        async fn api(&self, path: &str, _: Option<&Value>) -> Result<Answer, Trouble> {
            let body = if path.contains("endpointslices") {
                let page = self.asked.fetch_add(1, Ordering::Relaxed);
                let wanted = if page == 0 { String::new() } else { format!("&continue={page}%2B%3D") };
                assert!(path.ends_with(&format!("&limit={PAGE}{wanted}")), "{path}");
                let endpoint = |n: usize| json!({"addresses": [format!("10.0.{page}.{n}")]});
                let next = if page + 1 < self.pages { format!("{}+=", page + 1) } else { String::new() };
                json!({"metadata": {"continue": next}, "items": [{"endpoints": [endpoint(1), endpoint(2)]}]})
            } else {
                json!({})
            };
            Ok(Answer { status: 200, body: body.to_string().into_bytes() })
        }

        fn api_server(&self) -> Option<(String, u16)> {
            None
        }
    }

    async fn counted(pages: usize, enough: usize) -> (Option<(usize, bool)>, usize) {
        let net = Pages { pages, asked: AtomicUsize::new(0) };
        let counted = count(&net, &ServiceTarget::new("ns", "db"), enough).await.ok();
        (counted, net.asked.into_inner())
    }

    #[tokio::test]
    async fn pages_are_read_until_there_are_enough() {
        assert_eq!(counted(3, 1).await, (Some((2, false)), 1));
        assert_eq!(counted(3, 3).await, (Some((4, false)), 2));
        assert_eq!(counted(3, 99).await, (Some((6, true)), 3));
        assert_eq!(counted(PAGES + 1, 999).await, (None, PAGES));
    }

    fn ready(page: &Value) -> usize {
        let text = page.to_string();
        let mut seen = BTreeSet::new();
        add_ready(serde_json::from_str(&text).expect("it is a page"), &mut seen);
        seen.len()
    }

    #[test]
    fn ready_endpoints_are_counted_once() {
        let pod = |uid: &str, ip: &str, ready: bool| json!({"addresses": [ip], "conditions": {"ready": ready}, "targetRef": {"uid": uid}});
        let slices = json!({"metadata": {"resourceVersion": "7"}, "items": [
            {"endpoints": [pod("a", "10.0.0.1", true), pod("b", "10.0.0.2", false), {"addresses": ["10.0.0.9"]}]},
            {"endpoints": [pod("a", "fd00::1", true), {"addresses": []}]},
            {"endpoints": null},
            {"endpoints": [{"addresses": ["10.0.0.8"], "conditions": {"ready": null}, "targetRef": {"kind": "Pod"}}]},
        ]});
        assert_eq!(ready(&slices), 3);
        assert_eq!(ready(&json!({"items": null})), 0);
    }
}
