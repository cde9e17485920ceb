//! What happened to others must not happen here. The numbers are those of the incidents that the rules of safety
//! come from.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use nodekeeper_sim::actors::kubelet::Lie;
use nodekeeper_sim::faults::Rates;
use nodekeeper_sim::network::{Fault, Outage};
use nodekeeper_sim::object::{condition, name, set, text, uid};
use serde_json::json;
use tokio::time::sleep;

use super::stage::{CLAIMS, Stage, group, most_within, roomy};

/// The policy that a careful person would write: all numbers are the defaults.
fn defaults() -> serde_json::Value {
    json!({"enforcement": "Enforce"})
}

/// Routes are gone on more than half of all nodes at once. A boot mends them; new machines would not.
#[tokio::test(start_paused = true)]
async fn i02_a_cause_that_half_of_all_nodes_share_replaces_no_more_than_one() {
    let mut stage = Stage::new(1, &defaults());
    stage.change_gate(|gate| {
        set(gate, "spec.mode", json!("Continuous"));
        set(gate, "spec.continuous", json!({"periodSeconds": 300, "failureThreshold": 1}));
    });
    stage.lead();
    let pool = group("pool", 12, 0);
    stage.karpenter(pool.clone());
    stage.until("all are open", 10, |stage| stage.nodes() == (12, 12)).await;
    for n in 0..7 {
        stage.cluster.network().break_at(Fault::Services, Outage::Node(pool.node(n)));
    }
    stage
        .until("too many fail", 30, |stage| {
            stage.says("BreakerOpen").is_some() || stage.says("SharedDependencyDown").is_some()
        })
        .await;
    sleep(Duration::from_hours(1)).await;
    assert!(stage.deletions().len() <= 1, "{:?}", stage.deletions());
    for n in 0..7 {
        stage.cluster.network().mend_at(Fault::Services, &Outage::Node(pool.node(n)));
    }
    stage.until("all are open", 30, |stage| stage.nodes() == (12, 12)).await;
    assert!(stage.deletions().len() <= 1, "{:?}", stage.deletions());
}

/// A check that is wrong finds every newcomer unhealthy.
#[tokio::test(start_paused = true)]
async fn i03_a_check_that_nobody_can_pass_replaces_nobody() {
    let mut stage = Stage::new(1, &roomy());
    stage.lead();
    stage.good(4, "a").await;
    stage.change_gate(|gate| {
        set(gate, "spec.checks", json!({"dns": {"names": ["moved.default.svc.cluster.local"]}}));
    });
    let pool = group("pool", 6, 0);
    stage.karpenter(pool.clone());
    stage.until("it is said", 10, |stage| stage.says("SharedDependencyDown").is_some()).await;
    let (reason, message) = stage.says("SharedDependencyDown").expect("just seen");
    assert!(reason == "ControlsFail" && message.contains("moved.default"), "{reason}: {message}");
    sleep(Duration::from_hours(2)).await;
    assert!(stage.deletions().is_empty(), "{:?}", stage.deletions());
}

/// Heartbeats of all nodes are lost and come back: nobody is judged by what was heard last.
#[tokio::test(start_paused = true)]
async fn i04_lost_heartbeats_replace_nobody_while_they_are_lost_nor_after() {
    let mut stage = Stage::new(1, &roomy());
    stage.lead();
    let pool = group("pool", 6, 0);
    stage.good(3, "a").await;
    stage.karpenter(pool.clone());
    // In the middle of being verified.
    stage.until("all are registered", 5, |stage| stage.nodes().0 == 9).await;
    let all: Vec<String> = stage.api.all("nodes").iter().map(|node| name(node).to_owned()).collect();
    for node in &all {
        stage.kubelets.lie(node, Lie { ready: Some(false), ..Lie::default() });
    }
    sleep(Duration::from_mins(20)).await;
    for node in &all {
        stage.kubelets.lie(node, Lie::default());
    }
    stage.until("all are open", 10, |stage| stage.nodes() == (9, 9)).await;
    sleep(Duration::from_hours(1)).await;
    assert!(stage.deletions().is_empty(), "{:?}", stage.deletions());
}

/// What waited through a pause is about a time that is over.
#[tokio::test(start_paused = true)]
async fn i05_what_waited_through_a_pause_is_dropped() {
    let mut stage = Stage::new(1, &roomy());
    stage.lead();
    stage.good(4, "a").await;
    let until = (stage.now() + SignedDuration::from_mins(30)).to_string();
    stage.change_policy(|policy| set(policy, "spec.pause", json!({"reason": "a change", "until": until})));
    for n in 0..3 {
        stage.join(&format!("bad-{n}"), "a");
        stage.fail_dns(&format!("bad-{n}"));
    }
    stage.ask("good-a-0");
    stage
        .until("all wait", 10, |stage| {
            let waits = |node: &str| stage.reason(node) == "Paused";
            waits("good-a-0") && (0..3).all(|n| waits(&format!("bad-{n}")))
        })
        .await;
    // While it is paused two of them heal, and nobody looks at the third any more.
    stage.heal_dns("bad-0");
    stage.heal_dns("bad-1");
    stage.until("they are let in", 5, |stage| stage.is_open("bad-0") && stage.is_open("bad-1")).await;
    stage.change_gate(|gate| set(gate, "spec.enforcement", json!("Paused")));
    sleep(Duration::from_hours(1)).await;
    assert!(stage.deletions().is_empty(), "{:?}", stage.deletions());
    assert_eq!(stage.reason("bad-0"), "NodeRecovered");
    for node in ["good-a-0", "bad-2"] {
        assert_eq!(stage.reason(node), "EvidenceExpired", "{node}");
    }
}

/// The end of an outage is as dangerous as its beginning.
#[tokio::test(start_paused = true)]
async fn i06_the_end_of_an_outage_is_no_storm() {
    let mut policy = defaults();
    policy["breaker"] = json!({"openPercent": 100});
    let mut stage = Stage::new(1, &policy);
    stage.lead();
    stage.good(3, "a").await;
    stage.cluster.network().fail(Outage::All);
    // Four of them are broken by themselves.
    let pool = group("pool", 20, 4);
    stage.karpenter(pool.clone());
    stage.until("it is said", 15, |stage| stage.says("SharedDependencyDown").is_some()).await;
    sleep(Duration::from_mins(20)).await;
    assert!(stage.deletions().is_empty(), "{:?}", stage.deletions());
    stage.cluster.network().heal(&Outage::All);
    let back = stage.now();
    stage.until("those that are well are open", 15, |stage| stage.nodes().1 == 19).await;
    sleep(Duration::from_hours(3)).await;
    let deletions = stage.deletions();
    let times: Vec<Timestamp> = deletions.iter().map(|act| act.at).collect();
    assert!(times[0].duration_since(back) >= SignedDuration::from_mins(10), "{deletions:?}");
    // A tenth of twenty.
    assert_eq!(most_within(&times, SignedDuration::from_hours(1)), 2, "{deletions:?}");
    assert_eq!(times.len(), 4, "only those that are broken: {deletions:?}");
}

/// Another machine has the name now, and is well.
#[tokio::test(start_paused = true)]
async fn i08_who_has_the_name_of_a_bad_node_is_not_that_node() {
    let mut stage = Stage::new(1, &roomy());
    stage.lead();
    stage.good(3, "a").await;
    stage.fail_dns("n1");
    stage.join("n1", "a");
    // Nothing is done yet, so that it is asked for and waits.
    stage.change_policy(|policy| set(policy, "spec.budget.perHour", json!(0)));
    stage.until("it waits", 10, |stage| stage.reason("n1") == "BudgetSpent").await;
    let old = stage.node("n1").expect("it is there");
    stage.kubelets.power_off("n1");
    stage.api.delete(&old, None).expect("it is there");
    stage.heal_dns("n1");
    stage.join("n1", "a");
    stage.change_policy(|policy| set(policy, "spec.budget.perHour", json!(100)));
    stage.until("its namesake is let in", 10, |stage| stage.is_open("n1")).await;
    sleep(Duration::from_hours(1)).await;
    assert_ne!(uid(&stage.node("n1").expect("it stays")), uid(&old));
    assert!(stage.deletions().is_empty(), "{:?}", stage.deletions());
    assert_eq!(stage.reason("n1"), "NodeGone");
}

/// Cluster Autoscaler gives a node up after 15 minutes, and stops altogether when 45 % are unready. Who is hopeless is
/// gone before that, and those that are well do not wait behind them.
#[tokio::test(start_paused = true)]
async fn i10_hopeless_nodes_are_gone_before_an_autoscaler_gives_them_up() {
    let mut policy = roomy();
    policy["breaker"] = json!({"openPercent": 60});
    let mut stage = Stage::new(1, &policy);
    stage.lead();
    stage.good(3, "a").await;
    let fleet = group("fleet", 10, 4);
    stage.autoscaler(fleet.clone());
    let start = stage.now();
    stage
        .until("those that are well are open", 3, |stage| (4..10).all(|n| stage.is_open(&fleet.node(n))))
        .await;
    stage.until("all are open", 15, |stage| stage.nodes() == (13, 13)).await;
    let deletions = stage.deletions();
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
        let mut stage = Stage::new(seed, &roomy());
        stage.lead();
        stage.good(3, "a").await;
        stage.kill();
        stage.cluster.trace().keep();
        stage.lead_with(Rates { lost: 1_500, ..Rates::CALM });
        stage.karpenter(group("pool", 3, 3));
        stage.until("all are replaced", 60, |stage| stage.nodes() == (6, 6)).await;
        let trace = stage.cluster.trace().text();
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
        assert_eq!(stage.deletions().len(), 3, "{:?}", stage.deletions());
        assert!(stage.deletions().iter().all(|act| act.what == CLAIMS));
        let ended = |request: &serde_json::Value| {
            condition(request, "Succeeded").is_some_and(|one| text(one, "status") == "True")
        };
        let all_ended = |stage: &Stage| {
            let requests = stage.api.all("nodekeeper.dev/noderemediations");
            requests.iter().filter(|request| ended(request)).count() == 3
        };
        stage.until("all requests say so", 5, all_ended).await;
    }
    assert!(lost > 0, "no answer got lost, so this shows nothing");
    assert!(landed.values().all(|times| *times == 1), "{landed:?}");
}
