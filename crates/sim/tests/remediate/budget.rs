//! Never more than the budget, whoever dies when.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use tokio::time::sleep;

use super::stage::{CLAIMS, Stage, group, most_within, roomy};

#[tokio::test(start_paused = true)]
async fn budget_two_an_hour_fifty_failing_leader_killed_every_thirty_seconds() {
    let mut policy = roomy();
    policy["budget"]["perHour"] = json!(2);
    let mut stage = Stage::new(1, &policy);
    stage.change_gate(|gate| gate["spec"]["retry"]["recheckPeriodSeconds"] = json!(300));
    stage.lead();
    stage.good(4, "a").await;
    stage.karpenter(group("pool", 50, 50));
    for _ in 0..3 * 120 {
        sleep(Duration::from_secs(30)).await;
        // The next one waits until the lease of this one is over.
        stage.kill();
        stage.lead();
    }
    let deletions = stage.deletions();
    assert!(deletions.iter().all(|act| act.what == CLAIMS), "{deletions:?}");
    let times: Vec<Timestamp> = deletions.iter().map(|act| act.at).collect();
    assert_eq!(most_within(&times, SignedDuration::from_hours(1)), 2, "{deletions:?}");
    assert!(times.len() >= 4, "it goes on in the next hour: {deletions:?}");
}
