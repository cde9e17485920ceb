//! Reads the `EndpointSlices` of a Service page by page; only the used fields are decoded.

use std::borrow::Cow;

use nodekeeper_core::report::{Outcome, reason};
use serde::Deserialize;

use crate::api::refusal;
use crate::net::Net;
use crate::run::Finding;

/// Slices per page. A slice has up to 100 endpoints by default and 1000 at most: a page has some hundred kilobytes.
pub(crate) const PAGE: usize = 10;
/// Largest number of pages.
pub(crate) const PAGES: usize = 100;

#[derive(Deserialize)]
struct Page<'a> {
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
pub(crate) struct Slice<'a> {
    #[serde(borrow)]
    endpoints: Option<Vec<Endpoint<'a>>>,
    #[serde(borrow)]
    ports: Option<Vec<Port<'a>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Endpoint<'a> {
    #[serde(borrow, default)]
    pub(crate) addresses: Vec<Cow<'a, str>>,
    conditions: Option<Conditions>,
    #[serde(borrow)]
    target_ref: Option<TargetRef<'a>>,
    #[serde(borrow)]
    pub(crate) node_name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(crate) zone: Option<Cow<'a, str>>,
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

#[derive(Deserialize)]
struct Port<'a> {
    port: Option<u16>,
    #[serde(borrow)]
    protocol: Option<Cow<'a, str>>,
}

impl<'a> Slice<'a> {
    /// Returns the lowest port of a protocol; higher ones are usually for metrics.
    pub(crate) fn port(&self, protocol: &str) -> Option<u16> {
        let ports = self.ports.iter().flatten();
        let of_protocol = ports.filter(|port| port.protocol.as_deref().unwrap_or("TCP") == protocol);
        of_protocol.filter_map(|port| port.port).filter(|port| *port != 0).min()
    }

    /// Returns the ready endpoints. As the API defines it, an unset condition counts as true.
    pub(crate) fn ready(self) -> impl Iterator<Item = Endpoint<'a>> {
        let endpoints = self.endpoints.unwrap_or_default().into_iter();
        endpoints.filter(|one| one.conditions.as_ref().and_then(|it| it.ready).unwrap_or(true))
    }
}

impl Endpoint<'_> {
    /// Identifies a dual-stack endpoint, which is in two slices, by the UID of its target.
    pub(crate) fn identity(self) -> Option<String> {
        let uid = self.target_ref.and_then(|target| target.uid);
        uid.or_else(|| self.addresses.into_iter().next()).map(Cow::into_owned)
    }
}

/// Passes the slices of a Service to a function page by page until it returns true. Returns whether these were all.
pub(crate) async fn read(
    net: &impl Net,
    namespace: &str,
    name: &str,
    mut has_enough: impl FnMut(Vec<Slice<'_>>) -> bool + Send,
) -> Result<bool, Finding> {
    let of_slices = format!(
        "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3D{name}&limit={PAGE}"
    );
    let inconclusive = |message: &str| Finding::new(Outcome::Inconclusive, reason::BAD_ANSWER, message);
    let mut path = of_slices.clone();
    for _ in 0..PAGES {
        let answer = net.api(&path, None).await.map_err(|error| Finding::from_error(&error))?;
        if answer.status != 200 {
            return Err(refusal(&answer));
        }
        let page: Page =
            answer.decode().ok_or_else(|| inconclusive("the response is no list of EndpointSlices"))?;
        let Metadata { next } = &page.metadata;
        path = format!("{of_slices}&continue={}", escape(next));
        let is_last = next.is_empty();
        if has_enough(page.items.unwrap_or_default()) || is_last {
            return Ok(is_last);
        }
    }
    Err(inconclusive("the Service has too many EndpointSlices"))
}

/// Percent-encodes a continue token.
fn escape(token: &str) -> String {
    let one = |byte: u8| match byte {
        b'-' | b'_' | b'.' => char::from(byte).to_string(),
        _ if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    token.bytes().map(one).collect()
}
