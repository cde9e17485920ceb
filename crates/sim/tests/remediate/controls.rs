//! A node is compared with verified nodes of its zone before it is remediated.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use nodekeeper_sim::network::Outage;
use tokio::time::sleep;

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
