//! The fuse stops replacements that fail alike.

use std::time::Duration;

use nodekeeper_sim::object::{set, text};
use nodekeeper_sim::value::json;
use tokio::time::sleep;

use super::test_cluster::{CLAIMS, TestCluster, group, permissive_policy};

const HOUR: Duration = Duration::from_hours(1);

#[tokio::test(start_paused = true)]
async fn the_fuse_blows_when_every_replacement_fails() {
    let mut test = TestCluster::new(1, &permissive_policy());
    test.start_controller();
    test.add_healthy_nodes(3, "a").await;
    let pool = group("pool", 3, u64::MAX);
    test.karpenter(pool.clone());
    test.until("the fuse is blown", 4 * 60, |test| test.true_condition("FuseBlown").is_some()).await;
    sleep(2 * HOUR).await;
    // Generation 0 and its replacements, at most.
    let stopped = test.deletions().len();
    assert!((2..=6).contains(&stopped), "{:?}", test.deletions());
    let (reason, message) = test.true_condition("FuseBlown").expect("the fuse stays blown");
    assert_eq!(reason, "ReplacementsFailAlike");
    assert!(
        message.contains("group pool") && message.contains("dns") && message.contains("zone a"),
        "{message}"
    );
    sleep(2 * HOUR).await;
    assert_eq!(test.deletions().len(), stopped, "the fuse does not reset itself");

    // A user resets the fuse although the replacements still fail.
    let now = test.now().to_string();
    test.change_policy(|policy| set(policy, "spec.fuse.resetAt", json!(now)));
    test.until("remediation continues", 60, |test| test.deletions().len() > stopped).await;
    sleep(4 * HOUR).await;
    let stopped_again = test.deletions().len();
    assert!(stopped_again - stopped <= 6, "{:?}", test.deletions());
    assert!(test.true_condition("FuseBlown").is_some());

    // The fuse does not apply to nodes of a changed template.
    let template = test.api.get("karpenter.sh/nodepools", "", "pool").expect("there is a pool");
    let changed = test.api.change(&template, None, |pool| {
        set(pool, "spec.template.metadata.labels", json!({"example.com/image": "2"}));
    });
    changed.expect("the pool can be changed");
    sleep(HOUR).await;
    assert_eq!(test.deletions().len(), stopped_again, "nodes of the old template are not replaced");
    let old = test.api.all(CLAIMS).into_iter().next().expect("there are claims");
    test.api.delete(&old, None).expect("it can be deleted");
    test.until("its replacement is replaced", 60, |test| test.deletions().len() > stopped_again).await;
    let last = test.deletions().pop().expect("just seen");
    assert_ne!(last.name, text(&old, "metadata.name"));
}
