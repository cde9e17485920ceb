//! Known incidents of other systems do not happen here; the numbers are those of the safety rules.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use nodekeeper_sim::actors::kubelet::FalseReport;
use nodekeeper_sim::faults::Rates;
use nodekeeper_sim::network::{Fault, Outage};
use nodekeeper_sim::object::{condition, name, set, text, uid};
use nodekeeper_sim::value::json;
use tokio::time::sleep;

use super::test_cluster::{CLAIMS, TestCluster, group, max_in_window, permissive_policy};

/// The defaults of all fields.
fn defaults() -> nodekeeper_sim::value::Value {
    json!({"enforcement": "Enforce"})
}

/// More than half of all nodes lose their routes at once. A reboot repairs them, a replacement would not.
#[tokio::test(start_paused = true)]
async fn i02_a_fault_of_half_the_nodes_replaces_at_most_one() {
    let mut test = TestCluster::new(1, &defaults());
    test.change_gate(|gate| {
        set(gate, "spec.mode", json!("Continuous"));
        set(gate, "spec.continuous", json!({"periodSeconds": 300, "failureThreshold": 1}));
    });
    test.start_controller();
    let pool = group("pool", 12, 0);
    test.karpenter(pool.clone());
    test.until("all are verified", 10, |test| test.nodes() == (12, 12)).await;
    for n in 0..7 {
        test.cluster.network().fail_at(Fault::Services, Outage::Node(pool.node(n)));
    }
    test.until("remediation is blocked", 30, |test| {
        test.true_condition("BreakerOpen").is_some() || test.true_condition("SharedDependencyDown").is_some()
    })
    .await;
    sleep(Duration::from_hours(1)).await;
    assert!(test.deletions().len() <= 1, "{:?}", test.deletions());
    for n in 0..7 {
        test.cluster.network().heal_at(Fault::Services, &Outage::Node(pool.node(n)));
    }
    test.until("all are verified", 30, |test| test.nodes() == (12, 12)).await;
    assert!(test.deletions().len() <= 1, "{:?}", test.deletions());
}

/// A wrong check fails on every new node.
#[tokio::test(start_paused = true)]
async fn i03_a_check_that_fails_everywhere_replaces_no_node() {
    let mut test = TestCluster::new(1, &permissive_policy());
    test.start_controller();
    test.add_healthy_nodes(4, "a").await;
    test.change_gate(|gate| {
        set(gate, "spec.checks", json!({"dns": {"names": ["moved.default.svc.cluster.local"]}}));
    });
    let pool = group("pool", 6, 0);
    test.karpenter(pool.clone());
    test.until("the condition is True", 10, |test| test.true_condition("SharedDependencyDown").is_some())
        .await;
    let (reason, message) = test.true_condition("SharedDependencyDown").expect("just seen");
    assert!(reason == "ControlsFail" && message.contains("moved.default"), "{reason}: {message}");
    sleep(Duration::from_hours(2)).await;
    assert!(test.deletions().is_empty(), "{:?}", test.deletions());
}

/// The heartbeats of all nodes stop and come back.
#[tokio::test(start_paused = true)]
async fn i04_lost_heartbeats_replace_no_node() {
    let mut test = TestCluster::new(1, &permissive_policy());
    test.start_controller();
    let pool = group("pool", 6, 0);
    test.add_healthy_nodes(3, "a").await;
    test.karpenter(pool.clone());
    // During verification.
    test.until("all are registered", 5, |test| test.nodes().0 == 9).await;
    let all: Vec<String> = test.api.all("nodes").iter().map(|node| name(node).to_owned()).collect();
    for node in &all {
        test.kubelets.set_false_report(node, FalseReport { ready: Some(false), ..FalseReport::default() });
    }
    sleep(Duration::from_mins(20)).await;
    for node in &all {
        test.kubelets.set_false_report(node, FalseReport::default());
    }
    test.until("all are verified", 10, |test| test.nodes() == (9, 9)).await;
    sleep(Duration::from_hours(1)).await;
    assert!(test.deletions().is_empty(), "{:?}", test.deletions());
}

/// A remediation that waited through a pause is based on expired evidence.
#[tokio::test(start_paused = true)]
async fn i05_evidence_expires_during_a_pause() {
    let mut test = TestCluster::new(1, &permissive_policy());
    test.start_controller();
    test.add_healthy_nodes(4, "a").await;
    let until = (test.now() + SignedDuration::from_mins(30)).to_string();
    test.change_policy(|policy| set(policy, "spec.pause", json!({"reason": "a change", "until": until})));
    for n in 0..3 {
        test.join(&format!("bad-{n}"), "a");
        test.fail_dns(&format!("bad-{n}"));
    }
    test.request_remediation("good-a-0");
    test.until("all remediations are paused", 10, |test| {
        let waits = |node: &str| test.reason(node) == "Paused";
        waits("good-a-0") && (0..3).all(|n| waits(&format!("bad-{n}")))
    })
    .await;
    // During the pause two nodes recover, and the third is not verified any more.
    test.heal_dns("bad-0");
    test.heal_dns("bad-1");
    test.until("they are verified", 5, |test| test.is_verified("bad-0") && test.is_verified("bad-1")).await;
    test.change_gate(|gate| set(gate, "spec.enforcement", json!("Paused")));
    sleep(Duration::from_hours(1)).await;
    assert!(test.deletions().is_empty(), "{:?}", test.deletions());
    assert_eq!(test.reason("bad-0"), "NodeRecovered");
    for node in ["good-a-0", "bad-2"] {
        assert_eq!(test.reason(node), "EvidenceExpired", "{node}");
    }
}

#[tokio::test(start_paused = true)]
async fn i06_the_end_of_an_outage_respects_the_budget() {
    let mut policy = defaults();
    policy["breaker"] = json!({"openPercent": 100});
    let mut test = TestCluster::new(1, &policy);
    test.start_controller();
    test.add_healthy_nodes(3, "a").await;
    test.cluster.network().fail(Outage::All);
    // Four machines have faults of their own.
    let pool = group("pool", 20, 4);
    test.karpenter(pool.clone());
    test.until("the condition is True", 15, |test| test.true_condition("SharedDependencyDown").is_some())
        .await;
    sleep(Duration::from_mins(20)).await;
    assert!(test.deletions().is_empty(), "{:?}", test.deletions());
    test.cluster.network().heal(&Outage::All);
    let back = test.now();
    test.until("healthy nodes are verified", 15, |test| test.nodes().1 == 19).await;
    sleep(Duration::from_hours(3)).await;
    let deletions = test.deletions();
    let times: Vec<Timestamp> = deletions.iter().map(|act| act.at).collect();
    assert!(times[0].duration_since(back) >= SignedDuration::from_mins(10), "{deletions:?}");
    // Ten percent of twenty.
    assert_eq!(max_in_window(&times, SignedDuration::from_hours(1)), 2, "{deletions:?}");
    assert_eq!(times.len(), 4, "only the broken ones: {deletions:?}");
}

/// A new machine has the name of a failed one and is healthy.
#[tokio::test(start_paused = true)]
async fn i08_a_new_node_of_the_same_name_is_not_remediated() {
    let mut test = TestCluster::new(1, &permissive_policy());
    test.start_controller();
    test.add_healthy_nodes(3, "a").await;
    test.fail_dns("n1");
    test.join("n1", "a");
    // The remediation is requested and waits for the budget.
    test.change_policy(|policy| set(policy, "spec.budget.maxPerHour", json!(0)));
    test.until("the remediation waits", 10, |test| test.reason("n1") == "BudgetSpent").await;
    let old = test.node("n1").expect("it is there");
    test.kubelets.power_off("n1");
    test.api.delete(&old, None).expect("it is there");
    test.heal_dns("n1");
    test.join("n1", "a");
    test.change_policy(|policy| set(policy, "spec.budget.maxPerHour", json!(100)));
    test.until("the new node is verified", 10, |test| test.is_verified("n1")).await;
    sleep(Duration::from_hours(1)).await;
    assert_ne!(uid(&test.node("n1").expect("it stays")), uid(&old));
    assert!(test.deletions().is_empty(), "{:?}", test.deletions());
    assert_eq!(test.reason("n1"), "NodeGone");
}

/// Cluster Autoscaler gives up on a node after 15 minutes, and stops when 45 % are unready. Failed nodes are replaced
/// before that, and healthy ones do not wait for them.
#[tokio::test(start_paused = true)]
async fn i10_failed_nodes_are_replaced_within_15_minutes() {
    let mut policy = permissive_policy();
    policy["breaker"] = json!({"openPercent": 60});
    let mut test = TestCluster::new(1, &policy);
    test.start_controller();
    test.add_healthy_nodes(3, "a").await;
    let fleet = group("fleet", 10, 4);
    test.autoscaler(fleet.clone());
    let start = test.now();
    test.until("healthy nodes are verified", 3, |test| (4..10).all(|n| test.is_verified(&fleet.node(n))))
        .await;
    test.until("all are verified", 15, |test| test.nodes() == (13, 13)).await;
    let deletions = test.deletions();
    let broken: Vec<String> = (0..4).map(|n| fleet.node(n)).collect();
    let mut gone: Vec<String> = deletions.iter().map(|act| act.name.clone()).collect();
    gone.sort();
    assert_eq!(gone, broken, "each of them once");
    assert!(deletions.iter().all(|act| act.at.duration_since(start) < SignedDuration::from_mins(15)));
}

#[tokio::test(start_paused = true)]
async fn i11_a_deletion_without_a_response_is_not_repeated() {
    let mut landed = BTreeMap::new();
    let mut lost = 0;
    for seed in 1..6 {
        let mut test = TestCluster::new(seed, &permissive_policy());
        test.start_controller();
        test.add_healthy_nodes(3, "a").await;
        test.kill_controllers();
        test.cluster.trace().enable();
        test.start_controller_with_faults(Rates { lost: 1_500, ..Rates::NONE });
        test.karpenter(group("pool", 3, 3));
        test.until("all are replaced", 60, |test| test.nodes() == (6, 6)).await;
        let trace = test.cluster.trace().text();
        for line in
            trace.lines().filter(|line| line.contains("replica-0 DELETE /apis/karpenter.sh/v1/nodeclaims/"))
        {
            let claim = line.split("nodeclaims/").nth(1).and_then(|rest| rest.split(['?', ' ']).next());
            let claim = claim.expect("the line names it").to_owned();
            lost += u32::from(line.contains("lost") || line.contains("timeout"));
            if line.contains("-> 200") {
                *landed.entry((seed, claim)).or_insert(0) += 1;
            }
        }
        // Three machines were broken, so three claims are deleted.
        assert_eq!(test.deletions().len(), 3, "{:?}", test.deletions());
        assert!(test.deletions().iter().all(|act| act.what == CLAIMS));
        let result = |request: &nodekeeper_sim::value::Value| {
            condition(request, "Succeeded").is_some_and(|one| text(one, "status") == "True")
        };
        let all_ended = |test: &TestCluster| {
            let requests = test.api.all("nodekeeper.dev/noderemediations");
            requests.iter().filter(|request| result(request)).count() == 3
        };
        test.until("all remediations have succeeded", 5, all_ended).await;
    }
    assert!(lost > 0, "no response was lost");
    assert!(landed.values().all(|times| *times == 1), "{landed:?}");
}
