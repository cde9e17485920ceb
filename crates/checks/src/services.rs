//! `services`: a Service exists and has ready endpoints in its `EndpointSlices`.

use std::collections::BTreeSet;

use nodekeeper_core::checks::ServiceTarget;
use nodekeeper_core::report::{Outcome, reason};

use crate::api::refusal;
use crate::net::Net;
use crate::run::Finding;
use crate::slices::{self, Endpoint, Slice};

pub(crate) async fn check(net: &impl Net, service: &ServiceTarget) -> Finding {
    let ServiceTarget { namespace, name, min_ready } = service;
    let of_service = format!("/api/v1/namespaces/{namespace}/services/{name}");
    match net.api(&of_service, None).await {
        Ok(answer) if answer.status == 200 => {}
        Ok(answer) if answer.status == 404 => {
            return Finding::new(Outcome::Failed, reason::NOT_FOUND, "there is no such Service");
        }
        Ok(answer) => return refusal(&answer),
        Err(error) => return Finding::from_error(&error),
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

/// Counts ready endpoints page by page until there are enough; returns whether these are all.
async fn count(net: &impl Net, service: &ServiceTarget, enough: usize) -> Result<(usize, bool), Finding> {
    let mut ready = BTreeSet::new();
    let all = slices::read(net, &service.namespace, &service.name, |page| {
        add_ready(page, &mut ready);
        ready.len() >= enough
    })
    .await?;
    Ok((ready.len(), all))
}

fn add_ready(page: Vec<Slice>, ready: &mut BTreeSet<String>) {
    ready.extend(page.into_iter().flat_map(Slice::ready).filter_map(Endpoint::identity));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::fake::Fake;
    use crate::slices::{PAGE, PAGES};
    use serde_json::{Value, json};
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Returns the count for this many pages with two ready endpoints each, and how many pages were read.
    async fn counted(pages: usize, enough: usize) -> (Option<(usize, bool)>, usize) {
        let asked = AtomicUsize::new(0);
        let net = Fake::new().on_api(|path, _| {
            let page = asked.fetch_add(1, Ordering::Relaxed);
            let wanted = if page == 0 { String::new() } else { format!("&continue={page}%2B%3D") };
            assert!(path.ends_with(&format!("&limit={PAGE}{wanted}")), "{path}");
            let endpoint = |n: usize| json!({"addresses": [format!("10.0.{page}.{n}")]});
            let next = if page + 1 < pages { format!("{}+=", page + 1) } else { String::new() };
            (
                200,
                json!({"metadata": {"continue": next}, "items": [{"endpoints": [endpoint(1), endpoint(2)]}]}),
            )
        });
        let counted = count(&net, &ServiceTarget::new("ns", "db"), enough).await.ok();
        drop(net);
        (counted, asked.into_inner())
    }

    #[tokio::test(start_paused = true)]
    async fn pages_are_read_until_there_are_enough() {
        assert_eq!(counted(3, 1).await, (Some((2, false)), 1));
        assert_eq!(counted(3, 3).await, (Some((4, false)), 2));
        assert_eq!(counted(3, 99).await, (Some((6, true)), 3));
        assert_eq!(counted(PAGES + 1, 999).await, (None, PAGES));
    }

    fn ready(page: &Value) -> usize {
        let text = page["items"].to_string();
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
        assert_eq!(ready(&json!({"items": []})), 0);
    }
}
