//! A gate that audits: every node is admitted, and the record says what would have been done.

use super::*;
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
fn g14_no_worker_starts_beside_one_of_an_earlier_generation() {
    let mut earlier = worker(1, Progress::Running);
    earlier.identity.gate_generation = 2;
    let decision = decided_after(&node(), &auditing(), &[earlier], 5);
    assert_eq!((starts(&decision), removed(&decision)), (None, vec!["pod-1"]));
}

#[test]
fn g14_audits_feed_no_breaker_and_no_fuse() {
    let (node, gate) = (admitted_node(), gate());
    let stats = GroupStats::new([&node], &[&gate], Timestamp::UNIX_EPOCH);
    assert_eq!(stats.verdicts.total, 0);
    assert!(stats.groups.values().all(|group| group.size == 1 && group.verdicts.is_empty()), "{stats:?}");
}
