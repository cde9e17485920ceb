//! Before a node is blamed, nodes that work are looked at.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use nodekeeper_sim::network::Outage;
use tokio::time::sleep;

use super::stage::{Stage, group, most_within, roomy};

#[tokio::test(start_paused = true)]
async fn one_of_two_controls_that_fails_is_enough_to_blame_nobody() {
    let mut stage = Stage::new(1, &roomy());
    stage.lead();
    stage.good(2, "a").await;
    stage.fail_dns("good-a-1");
    let pool = group("pool", 1, 1);
    stage.karpenter(pool.clone());
    stage.until("it is compared", 10, |stage| stage.says("SharedDependencyDown").is_some()).await;
    let (reason, message) = stage.says("SharedDependencyDown").expect("just seen");
    assert_eq!(reason, "ControlsFail");
    assert!(message.contains("dns") && message.contains("zone a"), "{message}");
    sleep(Duration::from_mins(30)).await;
    assert!(stage.deletions().is_empty(), "{:?}", stage.deletions());
    // The other is well again: after a pause the node is blamed for what is its own.
    stage.heal_dns("good-a-1");
    let healed = stage.now();
    stage.until("it is replaced", 30, |stage| stage.is_open(&pool.node(1))).await;
    let deletions = stage.deletions();
    assert_eq!(deletions.len(), 1, "{deletions:?}");
    assert!(deletions[0].at.duration_since(healed) >= SignedDuration::from_mins(10), "{deletions:?}");
}

#[tokio::test(start_paused = true)]
async fn where_no_verified_node_is_in_the_zone_nobody_is_blamed() {
    let mut stage = Stage::new(1, &roomy());
    stage.lead();
    stage.good(3, "b").await;
    let pool = group("pool", 2, 2);
    stage.karpenter(pool.clone());
    stage.until("it is held", 10, |stage| stage.reason(&pool.node(0)) == "SharedDependencyDown").await;
    sleep(Duration::from_mins(30)).await;
    assert!(stage.deletions().is_empty() && stage.controls().is_empty());
    assert_eq!(stage.says("SharedDependencyDown").expect("it is said").0, "NothingToCompareWith");
    stage.good(2, "a").await;
    stage.until("both are replaced", 30, |stage| (2..4).all(|n| stage.is_open(&pool.node(n)))).await;
    assert_eq!(stage.deletions().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_minute_costs_one_run_a_zone_however_many_fail() {
    let mut stage = Stage::new(1, &roomy());
    stage.lead();
    stage.good(3, "a").await;
    stage.good(3, "b").await;
    stage.cluster.network().fail(Outage::All);
    let mut pool = group("pool", 40, 0);
    pool.zones = vec!["a".into(), "b".into()];
    stage.karpenter(pool);
    sleep(Duration::from_mins(20)).await;
    let mut by_zone: BTreeMap<String, Vec<Timestamp>> = BTreeMap::new();
    for (at, node) in stage.controls() {
        by_zone.entry(node["good-".len()..="good-".len()].to_owned()).or_default().push(at);
    }
    assert_eq!(by_zone.len(), 2, "{by_zone:?}");
    for (zone, times) in by_zone {
        assert!(times.len() >= 10, "{zone} is looked at again and again: {times:?}");
        // The two of a run are not made in the same instant.
        assert!(most_within(&times, SignedDuration::from_secs(55)) <= 2, "{zone}: {times:?}");
    }
    assert!(stage.deletions().is_empty());
    stage.cluster.network().heal(&Outage::All);
    stage.until("all are open", 20, |stage| stage.nodes() == (46, 46)).await;
    sleep(Duration::from_mins(15)).await;
    let left = stage.api.all("pods");
    assert!(left.is_empty(), "{} pods are left over", left.len());
    assert!(stage.deletions().is_empty());
}
