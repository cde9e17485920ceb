//! People change their minds while a node waits for its replacement, or is being replaced.

use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use nodekeeper_sim::faults::Rates;
use nodekeeper_sim::object::{is_true, items, set, text};
use nodekeeper_sim::value::{Value, json};
use parking_lot::Mutex;
use tokio::time::sleep;

use super::test_cluster::{TestCluster, permissive_policy};
use crate::gate::TAINT;

fn free(test: &TestCluster, name: &str) {
    let node = test.node(name).expect("it is there");
    let is_other = |taint: &&Value| text(taint, "key") != TAINT;
    let others: Vec<Value> = items(&node, "spec.taints").iter().filter(is_other).cloned().collect();
    test.api.change(&node, None, |node| set(node, "spec.taints", json!(others))).expect("it is valid");
}

/// What a user does about the node `bad`.
type Withdrawal = fn(&TestCluster);

const WITHDRAWALS: [Withdrawal; 5] = [
    |test| free(test, "bad"),
    |test| test.change_gate(|gate| set(gate, "spec.enforcement", json!("Paused"))),
    |test| test.change_gate(|gate| set(gate, "spec.enforcement", json!("DryRun"))),
    |test| test.change_gate(|gate| set(gate, "spec.onFailure", json!("KeepTainted"))),
    |test| {
        let gate = test.api.get("nodekeeper.dev/nodegates", "", "default").expect("it is there");
        test.api.delete(&gate, None).expect("it is there");
    },
];

/// A node whose remediation was requested, and waits for the budget.
async fn waiting() -> TestCluster {
    let mut test = TestCluster::new(1, &permissive_policy());
    test.start_controller();
    test.add_healthy_nodes(3, "a").await;
    test.change_policy(|policy| set(policy, "spec.budget.maxPerHour", json!(0)));
    test.fail_dns("bad");
    test.join("bad", "a");
    test.until("the remediation waits", 10, |test| test.reason("bad") == "BudgetSpent").await;
    test
}

#[tokio::test(start_paused = true)]
async fn r01_a_withdrawn_request_is_not_approved() {
    for withdraw in WITHDRAWALS {
        let test = waiting().await;
        withdraw(&test);
        test.change_policy(|policy| set(policy, "spec.budget.maxPerHour", json!(100)));
        sleep(Duration::from_mins(20)).await;
        assert!(test.deletions().is_empty(), "{:?}", test.deletions());
        let node = test.node("bad").expect("it stays");
        assert!(!is_true(&node, "spec.unschedulable"));
        assert_eq!(test.reason("bad"), "EvidenceExpired");
    }
}

#[tokio::test(start_paused = true)]
async fn r01_a_withdrawn_request_stops_the_drain() {
    for withdraw in WITHDRAWALS {
        let test = waiting().await;
        test.add_budget("web", "web", 1);
        test.deploy("web", "web", "bad").await;
        test.change_policy(|policy| set(policy, "spec.budget.maxPerHour", json!(100)));
        let is_cordoned =
            |test: &TestCluster| test.node("bad").is_some_and(|node| is_true(&node, "spec.unschedulable"));
        test.until("the node is cordoned", 10, is_cordoned).await;
        withdraw(&test);
        test.until("the node is uncordoned", 2, |test| !is_cordoned(test)).await;
        let budget = test.api.get("policy/poddisruptionbudgets", "default", "web").expect("it is there");
        test.api.delete(&budget, None).expect("it is there");
        sleep(Duration::from_mins(20)).await;
        assert!(test.deletions().is_empty(), "{:?}", test.deletions());
        assert!(test.api.get("pods", "default", "web").is_some(), "it was evicted");
    }
}

/// The controller's watch of the policy is open and silent.
#[tokio::test(start_paused = true)]
async fn r06_a_pause_counts_though_no_watch_tells_of_it() {
    let mut policy = permissive_policy();
    policy["deleteNodeObjectFor"] = json!([{"source": "Person", "name": "*"}]);
    let mut test = TestCluster::new(1, &policy);
    let faults = test.start_controller_with_faults(Rates::NONE);
    test.add_healthy_nodes(3, "a").await;
    test.add_budget("web", "web", 1);
    test.deploy("web", "web", "good-a-0").await;
    test.request_remediation("good-a-0");
    let is_cordoned =
        |test: &TestCluster| test.node("good-a-0").is_some_and(|node| is_true(&node, "spec.unschedulable"));
    test.until("the node is cordoned", 5, is_cordoned).await;
    faults.stall_watches("remediationpolicies");
    let until = (test.now() + SignedDuration::from_mins(30)).to_string();
    test.change_policy(|policy| set(policy, "spec.pause", json!({"reason": "a change", "until": until})));
    let budget = test.api.get("policy/poddisruptionbudgets", "default", "web").expect("it is there");
    test.api.delete(&budget, None).expect("it is there");
    test.until("the node is uncordoned", 3, |test| !is_cordoned(test)).await;
    assert_eq!(test.reason("good-a-0"), "Paused");
    assert!(test.api.get("pods", "default", "web").is_some(), "it was evicted");
}

/// The controller's watch of the remediations is open and silent. Its status has to be written, and each change of the node
/// is a reason to try.
#[tokio::test(start_paused = true)]
async fn a_deleted_request_is_forgotten_though_no_watch_tells_of_it() {
    let mut policy = permissive_policy();
    policy["budget"]["maxPerHour"] = json!(0);
    let mut test = TestCluster::new(1, &policy);
    let faults = test.start_controller_with_faults(Rates::NONE);
    test.add_healthy_nodes(3, "a").await;
    test.request_remediation("good-a-0");
    test.until("the remediation waits", 5, |test| test.reason("good-a-0") == "BudgetSpent").await;
    faults.stall_watches("noderemediations");
    let request = test.request("good-a-0").expect("it is there");
    test.api.delete(&request, None).expect("it is there");
    let codes: Arc<Mutex<Vec<Option<u16>>>> = Arc::default();
    let log = codes.clone();
    test.cluster.observe_writes(Box::new(move |write| {
        if write.request.uri().path().contains("/noderemediations") {
            log.lock().push(write.code);
        }
    }));
    let until = (test.now() + SignedDuration::from_mins(30)).to_string();
    test.change_policy(|policy| set(policy, "spec.pause", json!({"reason": "a change", "until": until})));
    for number in 0..60 {
        sleep(Duration::from_secs(1)).await;
        let node = test.node("good-a-0").expect("it stays");
        let change = |node: &mut Value| set(node, "metadata.annotations.number", json!(number.to_string()));
        test.api.change(&node, None, change).expect("it is valid");
    }
    assert_eq!(*codes.lock(), [Some(404)], "the first answer says that it is gone");
}
