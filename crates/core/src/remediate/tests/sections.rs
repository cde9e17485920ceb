//! Nodes with several gates: the evidence of a gate is in its own section of the record.

use super::*;
use crate::remediate::control::eligible_nodes;

/// The section of another gate, which verified the node.
fn verified_by_another(uid: &str) -> Record {
    let mut other = Record { verdict: Some(Verdict::Passed), open: true, ..failed_record(uid, at(0)) };
    other.scope.gate_uid = "gate-2".into();
    other
}

/// The record of two gates, the first of which wrote last.
fn of_two(first: Record, second: Record) -> Record {
    Record { others: vec![Record { uid: crate::id::Id::default(), ..second }], ..first }
}

fn other_gate() -> GateView {
    let mut gate = GateView { name: "other".into(), uid: "gate-2".into(), ..replacing_gate() };
    gate.spec.taints[0].key = "other".into();
    gate
}

#[test]
fn g08_the_verdict_of_the_gate_counts_that_requested_the_replacement() {
    let world = |record: Record| {
        World::with(|world| {
            world.target().record = Some(record);
            world.gates.push(other_gate());
        })
    };
    let (failed, verified) = (failed_record("n1", at(0)), verified_by_another("n1"));
    assert_eq!(world(of_two(failed.clone(), verified.clone())).block_reason(), None);
    assert_eq!(world(of_two(verified.clone(), failed.clone())).block_reason(), None, "in any order");
    let mut of_other = failed.clone();
    of_other.scope.gate_uid = "gate-2".into();
    let recovered = Record { open: true, verdict: Some(Verdict::Passed), ..failed };
    assert_eq!(
        world(of_two(of_other, recovered)).block_reason(),
        Some(BlockReason::NodeRecovered),
        "another gate's failure is no evidence"
    );
}

#[test]
fn g08_a_gate_is_compared_with_nodes_that_it_verified() {
    let node = |record: Record| {
        let mut node = control::verified("n");
        node.record = Some(record.into());
        node
    };
    let own = control::verified("n").record.expect("a record");
    let first = node(of_two(verified_by_another("uid-n"), *own.clone()));
    assert_eq!(eligible_nodes([&first], &control::gate(), "a", 1).len(), 1);
    let failed = Record { verdict: Some(Verdict::Failed), open: false, ..*own };
    let failed = node(of_two(verified_by_another("uid-n"), failed));
    assert_eq!(eligible_nodes([&failed], &control::gate(), "a", 1).len(), 0);
}

#[test]
fn g08_workers_of_another_gate_do_not_show_that_the_image_runs() {
    let mut node = control::verified("n");
    let own = Record { at: Some(at(0)), ..*node.record.take().expect("a record") };
    let reported = |node: &NodeView, gate: &GateView| {
        reported_elsewhere([node], gate, "another", SignedDuration::from_mins(10), at(1))
    };
    node.record = Some(of_two(verified_by_another("uid-n"), own).into());
    assert!(reported(&node, &control::gate()));
    let third = GateView { uid: "gate-3".into(), ..control::gate() };
    assert!(!reported(&node, &third));
}

#[test]
fn g08_a_node_that_one_of_its_gates_fails_counts_as_failed_once() {
    let (gate, other) = (replacing_gate(), other_gate());
    let stats = |record: Record, gates: &[&GateView]| {
        let node = NodeView { name: "n".into(), record: Some(record.into()), ..NodeView::default() };
        let stats = GroupStats::new([&node], gates, at(-5));
        let passed: Vec<bool> =
            stats.groups.values().flat_map(|group| &group.verdicts).map(|one| one.passed).collect();
        (stats.verdicts.total, stats.verdicts.failed, passed)
    };
    let (failed, verified) = (failed_record("n", at(0)), verified_by_another("n"));
    for record in [of_two(failed.clone(), verified.clone()), of_two(verified.clone(), failed.clone())] {
        assert_eq!(stats(record.clone(), &[&gate, &other]), (1, 1, vec![false]));
        assert_eq!(stats(record, &[&other]), (1, 0, vec![true]), "a deleted gate does not count");
    }
    let old = Record { at: Some(at(-60)), ..failed.clone() };
    assert_eq!(stats(of_two(verified, old), &[&gate, &other]), (1, 0, vec![false]), "it failed long ago");
    assert_eq!(stats(failed, &[]), (1, 1, vec![false]), "no gate is left");
}

#[test]
fn g08_checks_are_compared_with_workers_of_the_gate_that_they_are_of() {
    let mut world = World::with(|world| {
        world.target().record = Some(failed_record("n1", at(0)));
        world.gates.push(other_gate());
        // Its cause is the newest, and it has withdrawn its verdict since.
        let newest = RemediationCause {
            name: "other".into(),
            checks: vec![check("tcp", "x:1")],
            ..cause(CauseSource::Gate, at(0))
        };
        world.request.spec.causes.insert(0, newest);
        let passed = compared(10, vec![report(&[("tcp", "x:1", Outcome::Passed)]); 2]);
        let shown = OtherNodes { compared: passed, reported: true };
        world.shown_by_others = [("other".to_owned(), shown)].into();
    });
    assert_eq!(world.block_reason(), None);
    world.compared.run = None;
    assert_eq!(world.block_reason(), Some(BlockReason::Comparing), "workers of another gate passed");
}

#[test]
fn g08_the_gates_of_all_causes_are_compared() {
    let mut world = World::with(|world| world.gates.push(other_gate()));
    let other = RemediationCause { name: "other".into(), ..cause(CauseSource::Gate, at(0)) };
    world.request.spec.causes.push(other);
    let waiting = Finding::new("Approved", "False", BlockReason::Comparing.as_str(), "");
    world.request.status = world.request.status_with(vec![waiting], at(0));
    let mut node = control::verified("n1");
    node.name = world.request.spec.node.name.as_str().into();
    let cluster = ClusterView {
        nodes: vec![&node],
        gates: world.gates.iter().collect(),
        controls: Vec::new(),
        remediations: vec![&world.request],
        policy: world.policy.as_ref(),
        now: world.now,
        elapsed: Duration::ZERO,
    };
    let places = cluster.compared_places(&[BlockReason::Comparing]);
    assert_eq!(places.into_iter().map(|(gate, _)| gate).collect::<Vec<_>>(), ["default", "other"]);
}

#[test]
fn g08_only_workers_of_the_gate_of_a_stuck_cause_show_that_its_image_runs() {
    let mut world = World::with(|world| world.gates.push(other_gate()));
    let inconclusive =
        Record { verdict: Some(Verdict::Inconclusive), failed: vec![], ..failed_record("n1", at(0)) };
    world.target().record = Some(inconclusive);
    let stuck =
        RemediationCause { verdict: CauseVerdict::Stuck, checks: vec![], ..cause(CauseSource::Gate, at(0)) };
    let other = RemediationCause { name: "other".into(), ..stuck.clone() };
    world.request.spec.causes = vec![other, stuck];
    world.ran_elsewhere = false;
    let shown = OtherNodes { reported: true, ..OtherNodes::default() };
    world.shown_by_others = [("other".to_owned(), shown)].into();
    assert_eq!(world.block_reason(), Some(BlockReason::EvidenceExpired));
}
