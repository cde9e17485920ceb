//! A gate that audits: every node is admitted, and the record says what would have been done.

use super::*;
use crate::api::{DaemonSetRef, NodeCondition, OnReboot};
use crate::remediate::GroupStats;

fn auditing() -> GateView {
    let mut gate = gate();
    gate.spec.enforcement = Enforcement::Audit;
    gate
}

fn decided_after(node: &NodeView, gate: &GateView, workers: &[WorkerView], seconds: u64) -> Decision {
    let elapsed = Duration::from_secs(seconds);
    decide(&Observed { elapsed, ..observed(node, ownership([gate], node), workers) })
}

fn admitted(decision: &Decision) -> Option<&Record> {
    decision.effects.iter().find_map(|effect| match effect {
        Effect::Admit(record) => Some(record),
        _ => None,
    })
}

/// A node that the audit admitted although a check failed.
fn admitted_node() -> NodeView {
    let mut node = node();
    let decision = decided_after(&node, &auditing(), &[reported(1, Outcome::Failed)], 5);
    set_record(&mut node, admitted(&decision).expect("it is admitted"));
    node.taints = vec![taint("foreign")];
    node
}

#[test]
fn g14_audit_admits_a_node_that_fails_and_says_so() {
    let (node, gate) = (node(), auditing());
    assert_eq!(starts(&decided_after(&node, &gate, &[], 0)), Some(1));
    let decision = decided_after(&node, &gate, &[reported(1, Outcome::Failed)], 5);
    let record = admitted(&decision).expect("it is admitted");
    assert!(record.audited && record.is_open() && record.label.is_empty(), "{record:?}");
    assert_eq!((record.verdict, record.failed.len()), (Some(Verdict::Failed), 1));
    let is_event =
        |effect: &Effect| matches!(effect, Effect::EmitEvent(event) if event.reason == reasons::NODE_AUDITED);
    assert!(decision.effects.iter().any(is_event) && removed(&decision) == ["pod-1"], "{decision:?}");
}

#[test]
fn g14_audit_verifies_a_node_that_passes() {
    let decision = decided_after(&node(), &auditing(), &[reported(1, Outcome::Passed)], 5);
    let record = recorded(&decision).expect("a record");
    assert!(removes_taint(&decision) && record.audited && *record.label == *"node-ready/verified");
}

#[test]
fn g14_audit_holds_no_node_longer_than_two_minutes() {
    let (mut node, gate) = (node(), auditing());
    for workers in [vec![], vec![worker(1, Progress::Running)]] {
        assert!(admitted(&decided_after(&node, &gate, &workers, 119)).is_none());
        let record = admitted(&decided_after(&node, &gate, &workers, 120)).cloned().expect("it is admitted");
        assert_eq!(record.verdict, Some(Verdict::Inconclusive));
    }
    node.unschedulable = true;
    let waits = decided_after(&node, &gate, &[], 20);
    assert_eq!((starts(&waits), waits.recheck_in), (None, Some(Duration::from_secs(100))));
    node.ready = false;
    assert_eq!(decided_after(&node, &gate, &[], 3600).effects, vec![], "not before it is Ready");
}

#[test]
fn g14_enforcing_later_leaves_admitted_nodes_alone() {
    let mut node = admitted_node();
    for gate in [auditing(), gate()] {
        let decision = decided_after(&node, &gate, &[], 3600);
        assert_eq!((decision.state, decision.effects), (State::Audited, vec![]));
    }
    node.verify = Some("now".into());
    assert_eq!(starts(&decided_after(&node, &gate(), &[], 3600)), Some(2), "a user requests it");
    assert_eq!(decided_after(&node, &auditing(), &[], 3600).effects, vec![]);
}

#[test]
fn g14_the_condition_of_an_admitted_node_never_says_verified() {
    let mut gate = gate();
    gate.spec.node_condition = NodeCondition::NetworkVerified;
    let mut node = admitted_node();
    (node.boot_id, node.unschedulable) = ("boot-2".into(), true);
    let decision = decided_after(&node, &gate, &[], 3600);
    let [Effect::SetNodeCondition(update)] = &decision.effects[..] else { panic!("{decision:?}") };
    assert_eq!((decision.state, update.status), (State::Audited, "False"));
}

#[test]
fn g14_a_reboot_of_an_admitted_node_counts_as_the_gate_says() {
    for (on_reboot, worker) in [(OnReboot::Verify, Some(2)), (OnReboot::Ignore, None)] {
        let (mut node, mut gate) = (admitted_node(), gate());
        gate.spec.on_reboot = on_reboot;
        node.boot_id = "boot-2".into();
        assert_eq!(starts(&decided_after(&node, &gate, &[], 3600)), worker, "{on_reboot:?}");
        node.boot_id = Id::default();
        assert_eq!(decided_after(&node, &gate, &[], 3600).effects, vec![], "a node without a boot id");
    }
}

#[test]
fn g14_an_admitted_node_that_cannot_be_verified_again_is_not_counted_as_verified() {
    let mut node = admitted_node();
    (node.boot_id, node.unschedulable) = ("boot-2".into(), true);
    let decision = decided_after(&node, &gate(), &[], 5);
    assert_eq!((decision.state, decision.why.as_str()), (State::Audited, "the node is cordoned"));
}

#[test]
fn g14_an_admitted_node_is_not_counted_as_verified_before_a_worker_passes() {
    let mut node = admitted_node();
    node.verify = Some("now".into());
    let lost = worker(2, Progress::Inconclusive(InconclusiveReason::NoReport, "x".into()));
    let decision = decided_after(&node, &gate(), &[lost], 3600);
    set_record(&mut node, recorded(&decision).expect("a record"));
    node.verify = None;
    for gate in [auditing(), gate()] {
        assert_eq!(decided_after(&node, &gate, &[], 3600).state, State::Audited);
    }
    assert_eq!(starts(&decided_after(&node, &gate(), &[], 3600)), Some(3), "until there is a verdict");
    let decision = decided_after(&node, &gate(), &[reported(3, Outcome::Passed)], 3600);
    set_record(&mut node, recorded(&decision).expect("a record"));
    node.labels.insert("node-ready/verified", "true");
    assert_eq!(decided_after(&node, &auditing(), &[], 3600).state, State::Verified);
}

#[test]
fn g14_an_admitted_node_without_a_gate_is_not_counted_as_verified() {
    let node = admitted_node();
    let state = |node: &NodeView| decide(&observed(node, Ownership::Released, &[])).state;
    assert_eq!(state(&node), State::Audited);
    assert_eq!(state(&verified::verified().0), State::Verified);
}

#[test]
fn g14_an_enforcing_gate_precedes_one_that_audits() {
    let (enforces, mut audits) = (gate(), auditing());
    (audits.name, audits.uid, audits.spec.priority) = ("a".into(), "gate-2".into(), 100);
    let node = node();
    let serving = ownership([&enforces, &audits], &node).gate().map(|gate| gate.name.as_str());
    assert_eq!(serving, Some("default"), "an audit must not admit what another gate holds");
    let mut tries = gate();
    (tries.uid, tries.spec.enforcement) = ("gate-3".into(), Enforcement::DryRun);
    let serving = ownership([&tries, &audits], &node).gate().map(|gate| gate.name.as_str());
    assert_eq!(serving, Some("a"));
}

#[test]
fn g14_a_worker_that_was_deleted_verifies_nothing_that_users_check() {
    let mut gate = auditing();
    let check = serde_json::json!({"name": "gpu", "image": "probe:1"});
    gate.spec.checks.exec = vec![serde_json::from_value(check).expect("a check")];
    let deleted = WorkerView { deleting: true, ..reported(1, Outcome::Passed) };
    let decision = decided_after(&node(), &gate, &[deleted], 5);
    let record = admitted(&decision).expect("it is admitted");
    assert_eq!(record.verdict, Some(Verdict::Inconclusive), "a container that is terminated may exit with 0");
}

#[test]
fn g14_what_a_worker_found_before_the_node_was_unready_does_not_count() {
    let (mut node, gate) = (node(), auditing());
    node.ready = false;
    for worker in [reported(1, Outcome::Passed), worker(1, Progress::Running)] {
        let decision = decided_after(&node, &gate, &[worker], 5);
        assert_eq!(
            (decision.state, removed(&decision)),
            (State::Waiting, vec!["pod-1"]),
            "it frees its slot"
        );
    }
}

#[test]
fn g09_an_audit_keeps_watching_pods_while_it_waits_for_a_slot() {
    let (node, mut gate) = (node(), auditing());
    let set = DaemonSetRef { namespace: "kube-system".into(), name: "cni".into() };
    gate.spec.wait_for.daemon_sets = vec![set.clone()];
    let pods = [DaemonPod { of: set, ready: true }];
    let slots = Slots { first: false, another: false, periodic: false };
    let waits = Observed { daemon_pods: Some(&pods), slots, ..observed(&node, Ownership::Gated(&gate), &[]) };
    let decision = decide(&waits);
    assert!(decision.wants_slot == Some(0) && decision.wants_pods, "{decision:?}");
}

#[test]
fn g04_an_audit_reads_a_worker_before_it_admits_without_it() {
    let (node, gate) = (node(), auditing());
    let cannot_pull = Progress::Waiting(InconclusiveReason::ImagePull, "ImagePullBackOff".into());
    for progress in [Progress::Running, cannot_pull] {
        let decision = decided_after(&node, &gate, &[worker(1, progress)], 120);
        assert_eq!(decision.gives_up_on, Some(crate::worker::name("uid-1", 1)), "{decision:?}");
        assert!(admitted(&decision).is_some());
    }
    let decision = decided_after(&node, &gate, &[], 120);
    assert!(decision.gives_up_on.is_none() && admitted(&decision).is_some());
}

#[test]
fn g14_an_audit_says_what_kept_the_worker_from_ending() {
    let cannot_pull = Progress::Waiting(InconclusiveReason::ImagePull, "ImagePullBackOff".into());
    let decision = decided_after(&node(), &auditing(), &[worker(1, cannot_pull)], 120);
    let record = admitted(&decision).expect("it is admitted");
    assert!(record.why.contains("ImagePullBackOff"), "{record:?}");
    assert_eq!(record.cause, Some(InconclusiveReason::ImagePull));
}

/// Somebody puts the taint back each time at once. Returns the seconds between the admissions.
fn pauses(outcome: Option<Outcome>) -> Vec<u64> {
    let (mut node, gate) = (node(), auditing());
    let (mut pauses, mut later) = (Vec::new(), 0);
    for _ in 0..12 {
        node.taints = node_taints();
        let tainted_at = later;
        let ready_since = Duration::from_secs(tainted_at);
        let decide_at = |later: u64, workers: &[WorkerView]| {
            let (elapsed, passed) = (Duration::from_secs(later), i64::try_from(later).expect("small"));
            let now = now() + SignedDuration::from_secs(passed);
            let owner = ownership([&gate], &node);
            decide(&Observed { ready_since, now, elapsed, ..observed(&node, owner, workers) })
        };
        let admission = loop {
            let decision = decide_at(later, &[]);
            if let Some(number) = starts(&decision) {
                let ends = outcome.map(|outcome| reported(number, outcome));
                // Without an outcome the worker does not end.
                let workers = [ends.unwrap_or_else(|| worker(number, Progress::Running))];
                later += if outcome.is_some() { 1 } else { 120 };
                break decide_at(later, &workers);
            }
            assert!(later < tainted_at + 3600 && admitted(&decision).is_none(), "{decision:?}");
            later += decision.recheck_in.expect("it is decided again").as_secs() + 1;
        };
        let record = recorded(&admission).or(admitted(&admission)).expect("it is admitted").clone();
        set_record(&mut node, &record);
        node.record_seen_at = Duration::from_secs(later);
        pauses.push(later - tainted_at);
    }
    pauses
}

fn node_taints() -> Vec<Taint> {
    vec![taint("foreign"), taint("node-ready/unverified")]
}

#[test]
fn g03_an_audit_does_not_fight_with_another_controller_either() {
    for outcome in [Some(Outcome::Failed), Some(Outcome::Passed), None] {
        let pauses = pauses(outcome);
        assert!(pauses[..3].iter().all(|pause| *pause <= 120), "a user may do it: {pauses:?}");
        assert!(pauses[11] > 20 * 60 && pauses[11] < 40 * 60, "{pauses:?}");
    }
}

#[test]
fn g14_no_worker_starts_beside_one_of_an_earlier_generation() {
    let mut earlier = worker(1, Progress::Running);
    earlier.identity.gate_generation = 2;
    let decision = decided_after(&node(), &auditing(), &[earlier], 5);
    assert_eq!((starts(&decision), removed(&decision)), (None, vec!["pod-1"]));
}

#[test]
fn g14_the_number_of_an_earlier_worker_is_recorded_before_the_next_starts() {
    let mut earlier = reported(1, Outcome::Passed);
    earlier.identity.gate_generation = 2;
    let decision = decided_after(&node(), &auditing(), &[earlier], 5);
    assert_eq!((starts(&decision), recorded(&decision).map(|record| record.number)), (None, Some(1)));
}

#[test]
fn g14_audits_feed_no_breaker_and_no_fuse() {
    let (node, gate) = (admitted_node(), gate());
    let stats = GroupStats::new([&node], &[&gate], Timestamp::UNIX_EPOCH);
    assert_eq!(stats.verdicts.total, 0);
    assert!(stats.groups.values().all(|group| group.size == 1 && group.verdicts.is_empty()), "{stats:?}");
}
