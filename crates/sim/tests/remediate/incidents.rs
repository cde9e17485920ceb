//! What observations to others must not happen here. The numbers are those of the incidents that the rules of safety
//! come from.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use nodekeeper_sim::actors::kubelet::FalseReport;
use nodekeeper_sim::faults::Rates;
use nodekeeper_sim::network::{Fault, Outage};
use nodekeeper_sim::object::{condition, name, set, text, uid};
use serde_json::json;
use tokio::time::sleep;

use super::test_cluster::{CLAIMS, TestCluster, group, max_in_window, permissive_policy};

/// The policy that a careful person would write: all numbers are the defaults.
fn defaults() -> serde_json::Value {
    json!({"enforcement": "Enforce"})
}

/// Routes are gone on more than half of all nodes at once. A boot mends them; new machines would not.
#[tokio::test(start_paused = true)]
async fn i02_a_cause_that_half_of_all_nodes_share_replaces_no_more_than_one() {
    let mut test = TestCluster::new(1, &defaults());
    test.change_gate(|gate| {
        set(gate, "spec.mode", json!("Continuous"));
        set(gate, "spec.continuous", json!({"periodSeconds": 300, "failures": 1}));
    });
    test.start_controller();
    let pool = group("pool", 12, 0);
    test.karpenter(pool.clone());
    test.until("all are open", 10, |test| test.nodes() == (12, 12)).await;
    for n in 0..7 {
        test.cluster.network().fail_at(Fault::Services, Outage::Node(pool.node(n)));
    }
    test.until("too many fail", 30, |test| {
        test.true_condition("BreakerOpen").is_some() || test.true_condition("SharedDependencyDown").is_some()
    })
    .await;
    sleep(Duration::from_hours(1)).await;
    assert!(test.deletions().len() <= 1, "{:?}", test.deletions());
    for n in 0..7 {
        test.cluster.network().heal_at(Fault::Services, &Outage::Node(pool.node(n)));
    }
    test.until("all are open", 30, |test| test.nodes() == (12, 12)).await;
    assert!(test.deletions().len() <= 1, "{:?}", test.deletions());
}

/// A check that is wrong finds every newcomer unhealthy.
#[tokio::test(start_paused = true)]
async fn i03_a_check_that_nobody_can_pass_replaces_nobody() {
    let mut test = TestCluster::new(1, &permissive_policy());
    test.start_controller();
    test.add_healthy_nodes(4, "a").await;
    test.change_gate(|gate| {
        set(gate, "spec.checks", json!({"dns": {"names": ["moved.default.svc.cluster.local"]}}));
    });
    let pool = group("pool", 6, 0);
    test.karpenter(pool.clone());
    test.until("it is said", 10, |test| test.true_condition("SharedDependencyDown").is_some()).await;
    let (reason, message) = test.true_condition("SharedDependencyDown").expect("just seen");
    assert!(reason == "ControlsFail" && message.contains("moved.default"), "{reason}: {message}");
    sleep(Duration::from_hours(2)).await;
    assert!(test.deletions().is_empty(), "{:?}", test.deletions());
}

/// Heartbeats of all nodes are lost and come back: nobody is judged by what was heard last.
#[tokio::test(start_paused = true)]
async fn i04_lost_heartbeats_replace_nobody_while_they_are_lost_nor_after() {
    let mut test = TestCluster::new(1, &permissive_policy());
    test.start_controller();
    let pool = group("pool", 6, 0);
    test.add_healthy_nodes(3, "a").await;
    test.karpenter(pool.clone());
    // In the middle of being verified.
    test.until("all are registered", 5, |test| test.nodes().0 == 9).await;
    let all: Vec<String> = test.api.all("nodes").iter().map(|node| name(node).to_owned()).collect();
    for node in &all {
        test.kubelets.set_false_report(node, FalseReport { ready: Some(false), ..FalseReport::default() });
    }
    sleep(Duration::from_mins(20)).await;
    for node in &all {
        test.kubelets.set_false_report(node, FalseReport::default());
    }
    test.until("all are open", 10, |test| test.nodes() == (9, 9)).await;
    sleep(Duration::from_hours(1)).await;
    assert!(test.deletions().is_empty(), "{:?}", test.deletions());
}

/// What waited through a pause is about a time that is over.
#[tokio::test(start_paused = true)]
async fn i05_what_waited_through_a_pause_is_dropped() {
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
    test.until("all wait", 10, |test| {
        let waits = |node: &str| test.reason(node) == "Paused";
        waits("good-a-0") && (0..3).all(|n| waits(&format!("bad-{n}")))
    })
    .await;
    // While it is paused two of them heal, and nobody looks at the third any more.
    test.heal_dns("bad-0");
    test.heal_dns("bad-1");
    test.until("they are let in", 5, |test| test.is_open("bad-0") && test.is_open("bad-1")).await;
    test.change_gate(|gate| set(gate, "spec.enforcement", json!("Paused")));
    sleep(Duration::from_hours(1)).await;
    assert!(test.deletions().is_empty(), "{:?}", test.deletions());
    assert_eq!(test.reason("bad-0"), "NodeRecovered");
    for node in ["good-a-0", "bad-2"] {
        assert_eq!(test.reason(node), "EvidenceExpired", "{node}");
    }
}

/// The end of an outage is as dangerous as its beginning.
#[tokio::test(start_paused = true)]
async fn i06_the_end_of_an_outage_is_no_storm() {
    let mut policy = defaults();
    policy["breaker"] = json!({"openPercent": 100});
    let mut test = TestCluster::new(1, &policy);
    test.start_controller();
    test.add_healthy_nodes(3, "a").await;
    test.cluster.network().fail(Outage::All);
    // Four of them are broken by themselves.
    let pool = group("pool", 20, 4);
    test.karpenter(pool.clone());
    test.until("it is said", 15, |test| test.true_condition("SharedDependencyDown").is_some()).await;
    sleep(Duration::from_mins(20)).await;
    assert!(test.deletions().is_empty(), "{:?}", test.deletions());
    test.cluster.network().heal(&Outage::All);
    let back = test.now();
    test.until("those that are well are open", 15, |test| test.nodes().1 == 19).await;
    sleep(Duration::from_hours(3)).await;
    let deletions = test.deletions();
    let times: Vec<Timestamp> = deletions.iter().map(|act| act.at).collect();
    assert!(times[0].duration_since(back) >= SignedDuration::from_mins(10), "{deletions:?}");
    // A tenth of twenty.
    assert_eq!(max_in_window(&times, SignedDuration::from_hours(1)), 2, "{deletions:?}");
    assert_eq!(times.len(), 4, "only those that are broken: {deletions:?}");
}

/// Another machine has the name now, and is well.
#[tokio::test(start_paused = true)]
async fn i08_who_has_the_name_of_a_bad_node_is_not_that_node() {
    let mut test = TestCluster::new(1, &permissive_policy());
    test.start_controller();
    test.add_healthy_nodes(3, "a").await;
    test.fail_dns("n1");
    test.join("n1", "a");
    // Nothing is done yet, so that it is asked for and waits.
    test.change_policy(|policy| set(policy, "spec.budget.perHour", json!(0)));
    test.until("it waits", 10, |test| test.reason("n1") == "BudgetSpent").await;
    let old = test.node("n1").expect("it is there");
    test.kubelets.power_off("n1");
    test.api.delete(&old, None).expect("it is there");
    test.heal_dns("n1");
    test.join("n1", "a");
    test.change_policy(|policy| set(policy, "spec.budget.perHour", json!(100)));
    test.until("its namesake is let in", 10, |test| test.is_open("n1")).await;
    sleep(Duration::from_hours(1)).await;
    assert_ne!(uid(&test.node("n1").expect("it stays")), uid(&old));
    assert!(test.deletions().is_empty(), "{:?}", test.deletions());
    assert_eq!(test.reason("n1"), "NodeGone");
}

/// Cluster Autoscaler gives a node up after 15 minutes, and stops altogether when 45 % are unready. Who is hopeless is
/// gone before that, and those that are well do not wait behind them.
#[tokio::test(start_paused = true)]
async fn i10_hopeless_nodes_are_gone_before_an_autoscaler_gives_them_up() {
    let mut policy = permissive_policy();
    policy["breaker"] = json!({"openPercent": 60});
    let mut test = TestCluster::new(1, &policy);
    test.start_controller();
    test.add_healthy_nodes(3, "a").await;
    let fleet = group("fleet", 10, 4);
    test.autoscaler(fleet.clone());
    let start = test.now();
    test.until("those that are well are open", 3, |test| (4..10).all(|n| test.is_open(&fleet.node(n)))).await;
    test.until("all are open", 15, |test| test.nodes() == (13, 13)).await;
    let deletions = test.deletions();
    let broken: Vec<String> = (0..4).map(|n| fleet.node(n)).collect();
    let mut gone: Vec<String> = deletions.iter().map(|act| act.name.clone()).collect();
    gone.sort();
    assert_eq!(gone, broken, "each of them once");
    assert!(deletions.iter().all(|act| act.at.duration_since(start) < SignedDuration::from_mins(15)));
}

/// An answer that does not come is no reason to do it again.
#[tokio::test(start_paused = true)]
async fn i11_a_deletion_without_an_answer_is_observed_and_not_repeated() {
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
        // Three machines were broken: three claims went, whatever got lost.
        assert_eq!(test.deletions().len(), 3, "{:?}", test.deletions());
        assert!(test.deletions().iter().all(|act| act.what == CLAIMS));
        let result = |request: &serde_json::Value| {
            condition(request, "Succeeded").is_some_and(|one| text(one, "status") == "True")
        };
        let all_ended = |test: &TestCluster| {
            let requests = test.api.all("nodekeeper.dev/noderemediations");
            requests.iter().filter(|request| result(request)).count() == 3
        };
        test.until("all requests say so", 5, all_ended).await;
    }
    assert!(lost > 0, "no answer got lost, so this shows nothing");
    assert!(landed.values().all(|times| *times == 1), "{landed:?}");
}
