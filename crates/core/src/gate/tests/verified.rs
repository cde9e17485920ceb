//! Nodes that were let in, and what makes them be looked at again.

use super::*;
use crate::api::{Mode, OnReboot};

/// A node that passed with worker 1, and the gate that let it in.
fn verified() -> (NodeView, GateView) {
    let mut node = node();
    node.taints = vec![taint("foreign")];
    node.labels.insert("node-ready/verified", "true");
    set_record(&mut node, &record(1, Verdict::Passed, now()).opened("node-ready/verified"));
    (node, gate())
}

fn look(node: &NodeView, gate: &GateView, workers: &[WorkerView], fleet: Fleet, later: i64) -> Decision {
    let now = now() + SignedDuration::from_secs(later);
    let elapsed = Duration::from_secs(later.unsigned_abs());
    decide(&Observed { fleet, now, elapsed, ..observed(node, ownership([gate], node), workers) })
}

fn regates(decision: &Decision) -> Option<&Record> {
    decision.effects.iter().find_map(|effect| match effect {
        Effect::Retaint(record) => Some(record),
        _ => None,
    })
}

#[test]
fn a_verified_node_is_left_alone() {
    let (node, gate) = verified();
    let decision = look(&node, &gate, &[], Fleet::default(), 1_000_000);
    assert_eq!((decision.state, decision.effects, decision.recheck_in), (State::Verified, vec![], None));
}

#[test]
fn f07_whoever_removes_the_label_gets_a_worker_in_place_and_the_label_back() {
    let (mut node, gate) = verified();
    node.labels = Labels::default();
    let decision = look(&node, &gate, &[], Fleet::default(), 60);
    assert_eq!((decision.state, starts(&decision)), (State::Verified, Some(2)));
    assert_eq!(regates(&decision), None, "it goes on working");
    let decision = look(&node, &gate, &[reported(2, Outcome::Passed)], Fleet::default(), 60);
    assert!(removes_taint(&decision) && regates(&decision).is_none(), "{decision:?}");
    assert_eq!(removed(&decision), ["pod-2"]);
}

#[test]
fn a_gate_whose_label_is_another_now_sends_no_worker_to_its_whole_fleet() {
    let (node, mut gate) = verified();
    gate.spec.verified_label.key = "another/label".into();
    assert_eq!(look(&node, &gate, &[], Fleet::default(), 60).effects, vec![]);
}

#[test]
fn whoever_asks_gets_a_worker_and_a_round_of_its_own() {
    let (mut node, gate) = verified();
    node.verify = Some("now".into());
    assert_eq!(starts(&look(&node, &gate, &[], Fleet::default(), 60)), Some(2));
    // One that used up its attempts need not wait for the next rare look.
    let mut failed = self::node();
    set_record(&mut failed, &record(6, Verdict::Failed, now()));
    assert_eq!(starts(&decided(&failed, &[])), None);
    failed.verify = Some("now".into());
    assert_eq!(starts(&decided(&failed, &[])), Some(7));
    let decision = decided(&failed, &[reported(7, Outcome::Failed)]);
    assert_eq!(recorded(&decision).map(|record| record.attempts), Some(1), "and has them all again");
}

#[test]
fn a_boot_means_what_the_gate_says() {
    for (meaning, worker, taints) in
        [(OnReboot::Verify, Some(2), false), (OnReboot::Regate, None, true), (OnReboot::Ignore, None, false)]
    {
        let (mut node, mut gate) = verified();
        gate.spec.on_reboot = meaning;
        node.boot_id = "boot-2".into();
        let decision = look(&node, &gate, &[], Fleet::default(), 60);
        assert_eq!((starts(&decision), regates(&decision).is_some()), (worker, taints), "{meaning:?}");
    }
}

#[test]
fn a_node_that_is_held_for_its_boot_gets_its_worker_at_once() {
    let (mut node, mut gate) = verified();
    gate.spec.on_reboot = OnReboot::Regate;
    node.boot_id = "boot-2".into();
    let decision = look(&node, &gate, &[], Fleet::default(), 60);
    let record = regates(&decision).expect("it is tainted").clone();
    assert!(!record.is_open() && record.number == 1);
    set_record(&mut node, &record);
    node.taints.push(taint("node-ready/unverified"));
    assert_eq!(starts(&look(&node, &gate, &[], Fleet::default(), 60)), Some(2));
}

#[test]
fn only_a_failure_taints_it_again() {
    let (mut node, gate) = verified();
    node.labels = Labels::default();
    let silent = worker(2, Progress::Inconclusive(InconclusiveReason::OutOfMemory, "OOMKilled".into()));
    let decision = look(&node, &gate, &[silent], Fleet::default(), 60);
    assert_eq!((regates(&decision), decision.state), (None, State::Verified));
    let record = recorded(&decision).expect("it is recorded").clone();
    assert!(record.is_open(), "it still works");
    set_record(&mut node, &record);
    assert_eq!(
        starts(&look(&node, &gate, &[], Fleet::default(), 90)),
        Some(3),
        "and is looked at until it is known"
    );

    let decision = look(&node, &gate, &[reported(3, Outcome::Failed)], Fleet::default(), 60);
    let record = regates(&decision).expect("it is tainted").clone();
    assert!(!record.is_open() && record.retainted && record.attempts == 1, "{record:?}");
    set_record(&mut node, &record);
    node.taints.push(taint("node-ready/unverified"));
    let decision = look(&node, &gate, &[reported(4, Outcome::Passed)], Fleet::default(), 60);
    let Some(Effect::RemoveTaint(record)) = decision.effects.first() else { panic!("{decision:?}") };
    assert!(record.is_open() && !record.retainted, "a node that heals is let in again");
}

#[test]
fn where_many_fail_at_once_no_more_are_tainted() {
    let (mut node, gate) = verified();
    node.labels = Labels::default();
    let many = Fleet { open: 19, retainted: 2, ..Fleet::default() };
    let decision = look(&node, &gate, &[reported(2, Outcome::Failed)], many, 60);
    assert_eq!((regates(&decision), decision.state), (None, State::Verified));
    assert!(decision.why.contains("hardly the node"), "{}", decision.why);
    set_record(&mut node, recorded(&decision).expect("it is recorded"));
    let decision = look(&node, &gate, &[], many, 61);
    let wait = decision.recheck_in.expect("it is looked at again");
    assert!(wait > Duration::from_mins(3), "it works, and is looked at rarely: {wait:?}");
}

#[test]
fn a_continuous_gate_looks_again_and_taints_after_failures_in_a_row() {
    let (mut node, mut gate) = verified();
    gate.spec.mode = Mode::Continuous;
    let wait = look(&node, &gate, &[], Fleet::default(), 0).recheck_in.expect("it comes again");
    assert!(wait >= Duration::from_hours(6) && wait < Duration::from_mins(433), "{wait:?}");
    let large = Fleet { open: 50_000, ..Fleet::default() };
    let stretched = look(&node, &gate, &[], large, 0).recheck_in.expect("it comes again");
    assert!(stretched >= Duration::from_secs(50_000), "no more than one a second: {stretched:?}");
    assert_eq!(starts(&look(&node, &gate, &[], Fleet::default(), 7 * 3600)), Some(2));
    for failure in 2..4 {
        let decision = look(&node, &gate, &[reported(failure, Outcome::Failed)], Fleet::default(), 0);
        assert_eq!(regates(&decision), None, "{failure}");
        set_record(&mut node, recorded(&decision).expect("it is recorded"));
    }
    let decision = look(&node, &gate, &[reported(4, Outcome::Failed)], Fleet::default(), 0);
    assert!(regates(&decision).is_some(), "{decision:?}");
}

#[test]
fn a_gate_that_does_not_enforce_leaves_open_nodes_alone() {
    for enforcement in [Enforcement::DryRun, Enforcement::Paused] {
        let (mut node, mut gate) = verified();
        gate.spec.enforcement = enforcement;
        node.labels = Labels::default();
        node.verify = Some("now".into());
        assert_eq!(look(&node, &gate, &[], Fleet::default(), 60).effects, vec![]);
    }
}

#[test]
fn a_node_that_a_person_tainted_is_open_no_more() {
    let (mut node, gate) = verified();
    node.taints.push(taint("node-ready/unverified"));
    let decision = look(&node, &gate, &[reported(2, Outcome::Failed)], Fleet::default(), 60);
    let record = recorded(&decision).expect("it is recorded");
    assert!(!record.is_open(), "whoever frees it by hand then is obeyed: {record:?}");
    set_record(&mut node, record);
    node.taints.pop();
    assert_eq!(look(&node, &gate, &[], Fleet::default(), 600).state, State::Ungated);
}

#[test]
fn a_boot_while_a_worker_looks_holds_the_node_all_the_same() {
    let (mut node, mut gate) = verified();
    gate.spec.on_reboot = OnReboot::Regate;
    node.boot_id = "boot-2".into();
    for progress in [reported(2, Outcome::Passed), worker(2, Progress::Running)] {
        let decision = look(&node, &gate, &[progress], Fleet::default(), 60);
        let record = regates(&decision).expect("it is tainted");
        assert_eq!(record.number, 2, "its worker counts as one that could not tell");
    }
}

#[test]
fn nodes_that_are_due_together_are_looked_at_one_by_one() {
    let (node, mut gate) = verified();
    gate.spec.mode = Mode::Continuous;
    let late = now() + SignedDuration::from_hours(48);
    let seen = |periodic| {
        let slots = Slots { first: true, another: true, periodic };
        let fleet = Fleet { open: 100, ..Fleet::default() };
        decide(&Observed { slots, fleet, now: late, ..observed(&node, ownership([&gate], &node), &[]) })
    };
    let decision = seen(true);
    assert!(decision.periodic && starts(&decision) == Some(2), "{decision:?}");
    let decision = seen(false);
    assert_eq!((starts(&decision), decision.wants_slot), (None, None), "nobody waits in line for it");
    assert!(decision.recheck_in.is_some_and(|wait| wait <= Duration::from_secs(100)), "{decision:?}");
}

#[test]
fn a_gate_with_another_label_does_not_inherit_the_nodes_of_one_that_is_gone() {
    let (node, mut gate) = verified();
    gate.uid = "gate-2".into();
    assert!(matches!(ownership([&gate], &node), Ownership::Verified(_)), "a successor does");
    gate.spec.verified_label.key = "another/label".into();
    assert!(matches!(ownership([&gate], &node), Ownership::Released));
}
