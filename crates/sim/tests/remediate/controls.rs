//! A node is compared with verified nodes of its zone before it is remediated.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{Method, Request};
use http_body_util::BodyExt as _;
use jiff::{SignedDuration, Timestamp};
use kube::client::Body;
use nodekeeper_sim::faults::{Faults, Rates};
use nodekeeper_sim::network::Outage;
use nodekeeper_sim::object::{set, take};
use nodekeeper_sim::transport::{BoxError, Transport};
use nodekeeper_sim::value::json;
use tokio::time::sleep;
use tower::{ServiceExt as _, service_fn};

use super::test_cluster::{TestCluster, group, max_in_window, permissive_policy};

#[tokio::test(start_paused = true)]
async fn one_failing_control_node_blocks_remediation() {
    let mut test = TestCluster::new(1, &permissive_policy());
    test.start_controller();
    test.add_healthy_nodes(2, "a").await;
    test.fail_dns("good-a-1");
    let pool = group("pool", 1, 1);
    test.karpenter(pool.clone());
    test.until("the controls fail", 10, |test| test.true_condition("SharedDependencyDown").is_some()).await;
    let (reason, message) = test.true_condition("SharedDependencyDown").expect("just seen");
    assert_eq!(reason, "ControlsFail");
    assert!(message.contains("dns") && message.contains("zone a"), "{message}");
    sleep(Duration::from_mins(30)).await;
    assert!(test.deletions().is_empty(), "{:?}", test.deletions());
    // Once the control node is healthy, the node is remediated after the recovery time.
    test.heal_dns("good-a-1");
    let healed = test.now();
    test.until("the node is replaced", 30, |test| test.is_verified(&pool.node(1))).await;
    let deletions = test.deletions();
    assert_eq!(deletions.len(), 1, "{deletions:?}");
    assert!(deletions[0].at.duration_since(healed) >= SignedDuration::from_mins(10), "{deletions:?}");
}

#[tokio::test(start_paused = true)]
async fn without_control_nodes_in_the_zone_nothing_is_remediated() {
    let mut test = TestCluster::new(1, &permissive_policy());
    test.start_controller();
    test.add_healthy_nodes(3, "b").await;
    let pool = group("pool", 2, 2);
    test.karpenter(pool.clone());
    test.until("the remediation is blocked", 10, |test| test.reason(&pool.node(0)) == "SharedDependencyDown")
        .await;
    sleep(Duration::from_mins(30)).await;
    assert!(test.deletions().is_empty() && test.controls().is_empty());
    assert_eq!(
        test.true_condition("SharedDependencyDown").expect("the condition is True").0,
        "NothingToCompareWith"
    );
    test.add_healthy_nodes(2, "a").await;
    test.until("both are replaced", 30, |test| (2..4).all(|n| test.is_verified(&pool.node(n)))).await;
    assert_eq!(test.deletions().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_zone_has_one_control_run_a_minute() {
    let mut test = TestCluster::new(1, &permissive_policy());
    test.start_controller();
    test.add_healthy_nodes(3, "a").await;
    test.add_healthy_nodes(3, "b").await;
    test.cluster.network().fail(Outage::All);
    let mut pool = group("pool", 40, 0);
    pool.zones = vec!["a".into(), "b".into()];
    test.karpenter(pool);
    sleep(Duration::from_mins(20)).await;
    let mut by_zone: BTreeMap<String, Vec<Timestamp>> = BTreeMap::new();
    for (at, node) in test.controls() {
        by_zone.entry(node["good-".len()..="good-".len()].to_owned()).or_default().push(at);
    }
    assert_eq!(by_zone.len(), 2, "{by_zone:?}");
    for (zone, times) in by_zone {
        assert!(times.len() >= 10, "{zone} has several control runs: {times:?}");
        // The two control workers of a run start at different times.
        assert!(max_in_window(&times, SignedDuration::from_secs(55)) <= 2, "{zone}: {times:?}");
    }
    assert!(test.deletions().is_empty());
    test.cluster.network().heal(&Outage::All);
    test.until("all are verified", 20, |test| test.nodes() == (46, 46)).await;
    sleep(Duration::from_mins(15)).await;
    let left = test.api.all("pods");
    assert!(left.is_empty(), "{} pods are left over", left.len());
    assert!(test.deletions().is_empty());
}

/// A client for which the answers to some creations of these pods are lost, by their order. They land.
pub fn with_lost_answers(
    test: &TestCluster,
    faults: &Faults,
    pods: &'static str,
    which: Range<usize>,
) -> kube::Client {
    let transport = Transport::new(&test.cluster, "replica-0").with_faults(faults.clone());
    let sent = Arc::new(AtomicUsize::new(0));
    let service = service_fn(move |request: Request<Body>| {
        let (transport, sent, which) = (transport.clone(), sent.clone(), which.clone());
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await?.to_bytes();
            let is_lost = parts.method == Method::POST
                && parts.uri.path().ends_with("/pods")
                && String::from_utf8_lossy(&body).contains(pods)
                && which.contains(&sent.fetch_add(1, Ordering::Relaxed));
            let answer = transport.oneshot(Request::from_parts(parts, Body::from(body))).await?;
            if is_lost { Err(BoxError::from("the answer is lost")) } else { Ok(answer) }
        }
    });
    kube::Client::new(service, "default")
}

/// The watch of pods is open and silent, so only another attempt to create the workers shows that they are there. They may be
/// from before the failure of the node, as far as the controller knows.
#[tokio::test(start_paused = true)]
async fn a_control_run_whose_beginning_is_unknown_approves_nothing() {
    let mut test = TestCluster::new(1, &permissive_policy());
    let faults = Faults::new(1, Rates::NONE, Arc::default());
    test.start_with(with_lost_answers(&test, &faults, "nodekeeper-control-", 0..2));
    test.add_healthy_nodes(3, "a").await;
    let until = (test.now() + SignedDuration::from_mins(60)).to_string();
    test.change_policy(|policy| set(policy, "spec.pause", json!({"reason": "a change", "until": until})));
    test.fail_dns("bad");
    test.join("bad", "a");
    test.until("the remediation waits", 10, |test| test.reason("bad") == "Paused").await;
    faults.stall_watches("pods");
    test.change_policy(|policy| drop(take(policy, "spec.pause")));
    test.until("control workers are created", 2, |test| test.controls().len() >= 2).await;
    sleep(Duration::from_secs(5)).await;
    faults.resume_watches("pods");
    test.until("the node is replaced", 20, |test| test.deletions().len() == 1).await;
    assert_eq!(test.controls().len(), 4, "of which the last two count: {:?}", test.controls());
}
