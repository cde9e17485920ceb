//! The budget holds even if the leader crashes.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use nodekeeper_sim::value::json;
use tokio::time::sleep;

use super::test_cluster::{CLAIMS, TestCluster, group, max_in_window, permissive_policy};

#[tokio::test(start_paused = true)]
async fn the_hourly_budget_holds_while_leaders_crash() {
    let mut policy = permissive_policy();
    policy["budget"]["maxPerHour"] = json!(2);
    let mut test = TestCluster::new(1, &policy);
    test.change_gate(|gate| gate["spec"]["retry"]["recheckPeriodSeconds"] = json!(300));
    test.start_controller();
    test.add_healthy_nodes(4, "a").await;
    test.karpenter(group("pool", 50, 50));
    for _ in 0..3 * 120 {
        sleep(Duration::from_secs(30)).await;
        // The next controller waits until the lease expires.
        test.kill_controllers();
        test.start_controller();
    }
    let deletions = test.deletions();
    assert!(deletions.iter().all(|act| act.what == CLAIMS), "{deletions:?}");
    let times: Vec<Timestamp> = deletions.iter().map(|act| act.at).collect();
    assert_eq!(max_in_window(&times, SignedDuration::from_hours(1)), 2, "{deletions:?}");
    assert!(times.len() >= 4, "remediation continues in the next hour: {deletions:?}");
}
