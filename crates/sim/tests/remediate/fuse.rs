//! Replacing stops where replacements fail alike.

use std::time::Duration;

use nodekeeper_sim::object::{set, text};
use serde_json::json;
use tokio::time::sleep;

use super::stage::{CLAIMS, Stage, group, roomy};

const HOUR: Duration = Duration::from_hours(1);

#[tokio::test(start_paused = true)]
async fn every_replacement_is_broken() {
    let mut stage = Stage::new(1, &roomy());
    stage.lead();
    stage.good(3, "a").await;
    let pool = group("pool", 3, u64::MAX);
    stage.karpenter(pool.clone());
    stage.until("the fuse is blown", 4 * 60, |stage| stage.says("FuseBlown").is_some()).await;
    sleep(2 * HOUR).await;
    // All of generation 0 and of its replacements, no more.
    let stopped = stage.deletions().len();
    assert!((2..=6).contains(&stopped), "{:?}", stage.deletions());
    let (reason, message) = stage.says("FuseBlown").expect("it stays blown");
    assert_eq!(reason, "ReplacementsFailAlike");
    assert!(
        message.contains("group pool") && message.contains("dns") && message.contains("zone a"),
        "{message}"
    );
    sleep(2 * HOUR).await;
    assert_eq!(stage.deletions().len(), stopped, "it does not start again by itself");

    // A person says that it is mended, and it is not.
    let now = stage.now().to_string();
    stage.change_policy(|policy| set(policy, "spec.fuse.resetAt", json!(now)));
    stage.until("it goes on", 60, |stage| stage.deletions().len() > stopped).await;
    sleep(4 * HOUR).await;
    let stopped_again = stage.deletions().len();
    assert!(stopped_again - stopped <= 6, "{:?}", stage.deletions());
    assert!(stage.says("FuseBlown").is_some());

    // Another template: its nodes are looked at without prejudice, one generation after the other.
    let template = stage.api.get("karpenter.sh/nodepools", "", "pool").expect("there is a pool");
    let changed = stage.api.change(&template, None, |pool| {
        set(pool, "spec.template.metadata.labels", json!({"example.com/image": "2"}));
    });
    changed.expect("the pool can be changed");
    sleep(HOUR).await;
    assert_eq!(stage.deletions().len(), stopped_again, "those of the old template stay");
    let old = stage.api.all(CLAIMS).into_iter().next().expect("there are claims");
    stage.api.delete(&old, None).expect("it can be deleted");
    stage.until("its replacement is replaced", 60, |stage| stage.deletions().len() > stopped_again).await;
    let last = stage.deletions().pop().expect("just seen");
    assert_ne!(last.name, text(&old, "metadata.name"));
}
