//! Verified nodes: when they are verified again and tainted again.

use super::*;
use crate::api::{Mode, OnReboot};

/// A node that worker 1 verified, and its gate.
pub(super) fn verified() -> (NodeView, GateView) {
    let mut node = node();
    node.taints = vec![taint("foreign")];
    node.labels.insert("node-ready/verified", "true");
    set_record(&mut node, &record(1, Verdict::Passed, now()).opened("node-ready/verified"));
    (node, gate())
}

fn decided_with(
    node: &NodeView,
    gate: &GateView,
    workers: &[WorkerView],
    fleet: Fleet,
    later: i64,
) -> Decision {
    let now = now() + SignedDuration::from_secs(later);
    let elapsed = Duration::from_secs(later.unsigned_abs());
    decide(&Observed { fleet, now, elapsed, ..observed(node, ownership([gate], node), workers) })
}

fn retainted(decision: &Decision) -> Option<&Record> {
    decision.effects.iter().find_map(|effect| match effect {
        Effect::Retaint(record) => Some(record),
        _ => None,
    })
}

#[test]
fn a_verified_node_is_left_alone() {
    let (node, gate) = verified();
    let decision = decided_with(&node, &gate, &[], Fleet::default(), 1_000_000);
    assert_eq!((decision.state, decision.effects, decision.recheck_in), (State::Verified, vec![], None));
}

#[test]
fn f07_removing_the_label_starts_a_worker_and_restores_it() {
    let (mut node, gate) = verified();
    node.labels = Labels::default();
    let decision = decided_with(&node, &gate, &[], Fleet::default(), 60);
    assert_eq!((decision.state, starts(&decision)), (State::Verified, Some(2)));
    assert_eq!(retainted(&decision), None, "it stays schedulable");
    let decision = decided_with(&node, &gate, &[reported(2, Outcome::Passed)], Fleet::default(), 60);
    assert!(removes_taint(&decision) && retainted(&decision).is_none(), "{decision:?}");
    assert_eq!(removed(&decision), ["pod-2"]);
}

#[test]
fn a_changed_label_key_starts_no_workers() {
    let (node, mut gate) = verified();
    gate.spec.verified_label.key = "another/label".into();
    assert_eq!(decided_with(&node, &gate, &[], Fleet::default(), 60).effects, vec![]);
}

#[test]
fn the_verify_annotation_starts_a_worker_and_restarts_counts() {
    let (mut node, gate) = verified();
    node.verify = Some("now".into());
    assert_eq!(starts(&decided_with(&node, &gate, &[], Fleet::default(), 60)), Some(2));
    // A failed node does not wait for its recheck.
    let mut failed = self::node();
    set_record(&mut failed, &record(6, Verdict::Failed, now()));
    assert_eq!(starts(&decided(&failed, &[])), None);
    failed.verify = Some("now".into());
    assert_eq!(starts(&decided(&failed, &[])), Some(7));
    let decision = decided(&failed, &[reported(7, Outcome::Failed)]);
    assert_eq!(recorded(&decision).map(|record| record.attempts), Some(1), "the counts restart");
}

#[test]
fn on_reboot_is_respected() {
    for (meaning, worker, taints) in
        [(OnReboot::Verify, Some(2), false), (OnReboot::Regate, None, true), (OnReboot::Ignore, None, false)]
    {
        let (mut node, mut gate) = verified();
        gate.spec.on_reboot = meaning;
        node.boot_id = "boot-2".into();
        let decision = decided_with(&node, &gate, &[], Fleet::default(), 60);
        assert_eq!((starts(&decision), retainted(&decision).is_some()), (worker, taints), "{meaning:?}");
    }
}

#[test]
fn g10_a_rebooted_node_is_retainted_before_it_is_ready() {
    let (mut node, mut gate) = verified();
    gate.spec.on_reboot = OnReboot::Regate;
    (node.boot_id, node.ready) = ("boot-2".into(), false);
    assert!(retainted(&decided_with(&node, &gate, &[], Fleet::default(), 60)).is_some());
}

/// Somebody undoes what the gate wrote, each time at once. Returns the seconds between the workers.
fn pauses(revert: fn(&mut NodeView)) -> Vec<i64> {
    let (mut node, gate) = verified();
    let mut pauses = Vec::new();
    let mut later = 0;
    for number in 2..14 {
        revert(&mut node);
        let waits = decided_with(&node, &gate, &[], Fleet::default(), later);
        let pause = waits.recheck_in.map_or(0, |wait| i64::try_from(wait.as_secs()).unwrap_or(i64::MAX) + 1);
        let events = waits.effects.iter().filter(|effect| {
            matches!(effect, Effect::EmitEvent(event)
            if event.reason == reasons::NODE_REVERTED && event.dedup_key.is_some())
        });
        assert_eq!(events.count(), usize::from(pause > 0), "{waits:?}");
        later += pause;
        assert_eq!(starts(&decided_with(&node, &gate, &[], Fleet::default(), later)), Some(number));
        let decision =
            decided_with(&node, &gate, &[reported(number, Outcome::Passed)], Fleet::default(), later);
        set_record(&mut node, recorded(&decision).expect("a record"));
        node.record_seen_at = Duration::from_secs(later.unsigned_abs());
        pauses.push(pause);
    }
    pauses
}

#[test]
fn g03_a_node_that_somebody_keeps_reverting_is_verified_ever_more_rarely() {
    let put_taint: fn(&mut NodeView) = |node| {
        if node.taints.len() == 1 {
            node.taints.push(taint("node-ready/unverified"));
        }
    };
    for revert in [put_taint, |node| node.labels = Labels::default()] {
        let pauses = pauses(revert);
        assert_eq!(pauses[..2], [0, 0], "a user may do it");
        assert!(pauses.windows(2).skip(1).all(|two| two[1] > two[0] || two[1] > 20 * 60), "{pauses:?}");
        assert!(pauses[11] > 20 * 60 && pauses[11] < 40 * 60, "{pauses:?}");
    }
}

#[test]
fn g03_the_backoff_stays_at_its_longest_however_often_it_happens() {
    let (node, gate) = verified();
    for reverted in (12..200).chain([u32::MAX]) {
        let mut node = NodeView { taints: vec![taint("node-ready/unverified")], ..node.clone() };
        set_record(
            &mut node,
            &Record { reverted, ..record(1, Verdict::Passed, now()).opened("node-ready/verified") },
        );
        let waits = decided_with(&node, &gate, &[], Fleet::default(), 1).recheck_in.expect("it waits");
        assert!((29 * 60..37 * 60).contains(&waits.as_secs()), "{reverted}: {waits:?}");
    }
}

#[test]
fn g03_a_user_is_not_delayed() {
    let (mut node, gate) = verified();
    let reverted = Record { reverted: 9, ..record(1, Verdict::Passed, now()).opened("node-ready/verified") };
    set_record(&mut node, &reverted);
    node.taints.push(taint("node-ready/unverified"));
    assert_eq!(starts(&decided_with(&node, &gate, &[], Fleet::default(), 60)), None);
    let later = decided_with(&node, &gate, &[], Fleet::default(), 2 * 3600);
    assert_eq!(starts(&later), Some(2), "that is no longer the same dispute");
    node.verify = Some("now".into());
    assert_eq!(starts(&decided_with(&node, &gate, &[], Fleet::default(), 60)), Some(2));
}

#[test]
fn a_node_retainted_after_reboot_gets_a_worker_at_once() {
    let (mut node, mut gate) = verified();
    gate.spec.on_reboot = OnReboot::Regate;
    node.boot_id = "boot-2".into();
    let decision = decided_with(&node, &gate, &[], Fleet::default(), 60);
    let record = retainted(&decision).expect("a taint").clone();
    assert!(!record.is_open() && record.number == 1);
    set_record(&mut node, &record);
    node.taints.push(taint("node-ready/unverified"));
    assert_eq!(starts(&decided_with(&node, &gate, &[], Fleet::default(), 60)), Some(2));
}

#[test]
fn only_a_failed_verdict_retaints() {
    let (mut node, gate) = verified();
    node.labels = Labels::default();
    let killed = worker(2, Progress::Inconclusive(InconclusiveReason::OutOfMemory, "OOMKilled".into()));
    let decision = decided_with(&node, &gate, &[killed], Fleet::default(), 60);
    assert_eq!((retainted(&decision), decision.state), (None, State::Verified));
    let record = recorded(&decision).expect("a record").clone();
    assert!(record.is_open(), "it stays schedulable");
    set_record(&mut node, &record);
    assert_eq!(
        starts(&decided_with(&node, &gate, &[], Fleet::default(), 90)),
        Some(3),
        "retried until there is a verdict"
    );

    let decision = decided_with(&node, &gate, &[reported(3, Outcome::Failed)], Fleet::default(), 60);
    let record = retainted(&decision).expect("a taint").clone();
    assert!(!record.is_open() && record.retainted && record.attempts == 0, "{record:?}");
    set_record(&mut node, &record);
    node.taints.push(taint("node-ready/unverified"));
    let decision = decided_with(&node, &gate, &[reported(4, Outcome::Passed)], Fleet::default(), 60);
    let Some(Effect::RemoveTaint(record)) = decision.effects.first() else { panic!("{decision:?}") };
    assert!(record.is_open() && !record.retainted, "a node that recovers is verified again");
}

#[test]
fn mass_failures_skip_the_taint() {
    let (mut node, gate) = verified();
    node.labels = Labels::default();
    let many = Fleet { open: 19, retainted: 2, ..Fleet::default() };
    let decision = decided_with(&node, &gate, &[reported(2, Outcome::Failed)], many, 60);
    assert_eq!((retainted(&decision), decision.state), (None, State::Verified));
    assert!(decision.why.contains("probably shared"), "{}", decision.why);
    set_record(&mut node, recorded(&decision).expect("a record"));
    let decision = decided_with(&node, &gate, &[], many, 61);
    let wait = decision.recheck_in.expect("a recheck");
    assert!(wait > Duration::from_mins(3), "rechecked slowly: {wait:?}");
}

#[test]
fn a_continuous_gate_retaints_after_consecutive_failures() {
    let (mut node, mut gate) = verified();
    gate.spec.mode = Mode::Continuous;
    let wait = decided_with(&node, &gate, &[], Fleet::default(), 0).recheck_in.expect("a period");
    assert!(wait >= Duration::from_hours(3) && wait < Duration::from_hours(9), "{wait:?}");
    let large = Fleet { open: 50_000, ..Fleet::default() };
    let stretched = decided_with(&node, &gate, &[], large, 0).recheck_in.expect("a period");
    let range = Duration::from_secs(25_000)..Duration::from_mins(1250);
    assert!(range.contains(&stretched), "one a second: {stretched:?}");
    assert_eq!(starts(&decided_with(&node, &gate, &[], Fleet::default(), 9 * 3600)), Some(2));
    for failure in 2..4 {
        let decision = decided_with(&node, &gate, &[reported(failure, Outcome::Failed)], Fleet::default(), 0);
        assert_eq!(retainted(&decision), None, "{failure}");
        set_record(&mut node, recorded(&decision).expect("a record"));
    }
    let decision = decided_with(&node, &gate, &[reported(4, Outcome::Failed)], Fleet::default(), 0);
    assert!(retainted(&decision).is_some(), "{decision:?}");
}

#[test]
fn a_node_that_is_tainted_again_has_all_its_attempts() {
    for max_retries in [0, 2] {
        let (mut node, mut gate) = verified();
        gate.spec.mode = Mode::Continuous;
        gate.spec.retry.max_retries = max_retries;
        for failure in 2..5 {
            let failed = [reported(failure, Outcome::Failed)];
            let decision = decided_with(&node, &gate, &failed, Fleet::default(), 0);
            let tainted = retainted(&decision).or_else(|| recorded(&decision)).expect("a record").clone();
            set_record(&mut node, &tainted);
        }
        node.taints.push(taint("node-ready/unverified"));
        let decision = decided_with(&node, &gate, &[], Fleet::default(), 0);
        assert_eq!((decision.state, starts(&decision)), (State::Pending, Some(5)), "{decision:?}");
        let attempts = u32::try_from(max_retries).expect("a count") + 1;
        for attempt in 1..=attempts {
            let failed = [reported(4 + attempt, Outcome::Failed)];
            let decision = decided_with(&node, &gate, &failed, Fleet::default(), 0);
            let given_up = decision.effects.iter().any(
                |one| matches!(one, Effect::EmitEvent(event) if event.reason == reasons::NODE_VERIFICATION_FAILED),
            );
            let is_last = attempt == attempts;
            assert_eq!((decision.state == State::Failed, given_up), (is_last, is_last), "{decision:?}");
            set_record(&mut node, recorded(&decision).expect("a record"));
        }
    }
}

#[test]
fn a_new_leader_counts_the_other_nodes_before_it_taints_one_again() {
    let (mut node, gate) = verified();
    node.labels = Labels::default();
    let failed = [reported(2, Outcome::Failed)];
    let partial = Fleet { is_partial: true, ..Fleet::default() };
    let decision = decided_with(&node, &gate, &failed, partial, 60);
    assert_eq!((&decision.effects[..], decision.state), (&[][..], State::Verified));
    assert!(decision.recheck_in.is_some(), "{decision:?}");
    assert!(retainted(&decided_with(&node, &gate, &failed, Fleet::default(), 60)).is_some());
}

#[test]
fn g03_the_backoff_of_a_node_that_somebody_keeps_reverting_does_not_make_it_stuck() {
    let (mut node, gate) = verified();
    let record = Record { reverted: 12, ..record(1, Verdict::Passed, now()).opened("node-ready/verified") };
    set_record(&mut node, &record);
    node.taints.push(taint("node-ready/unverified"));
    let mut lost = worker(2, Progress::Inconclusive(InconclusiveReason::NoReport, "x".into()));
    lost.first_seen = Duration::from_mins(40);
    let decision = decided_with(&node, &gate, &[lost], Fleet::default(), 40 * 60 + 5);
    let record = recorded(&decision).expect("a record");
    assert_eq!((decision.state, record.elapsed_seconds), (State::Inconclusive, 5), "{decision:?}");
}

#[test]
fn paused_and_dry_run_gates_leave_verified_nodes_alone() {
    for enforcement in [Enforcement::DryRun, Enforcement::Paused] {
        let (mut node, mut gate) = verified();
        gate.spec.enforcement = enforcement;
        node.labels = Labels::default();
        node.verify = Some("now".into());
        assert_eq!(decided_with(&node, &gate, &[], Fleet::default(), 60).effects, vec![]);
    }
}

#[test]
fn a_node_tainted_by_a_user_is_no_longer_open() {
    let (mut node, gate) = verified();
    node.taints.push(taint("node-ready/unverified"));
    let decision = decided_with(&node, &gate, &[reported(2, Outcome::Failed)], Fleet::default(), 60);
    let record = recorded(&decision).expect("a record");
    assert!(!record.is_open(), "a user may remove the taint: {record:?}");
    set_record(&mut node, record);
    node.taints.pop();
    assert_eq!(decided_with(&node, &gate, &[], Fleet::default(), 600).state, State::Ungated);
}

#[test]
fn a_reboot_while_a_worker_runs_retaints() {
    let (mut node, mut gate) = verified();
    gate.spec.on_reboot = OnReboot::Regate;
    node.boot_id = "boot-2".into();
    for progress in [reported(2, Outcome::Passed), worker(2, Progress::Running)] {
        let decision = decided_with(&node, &gate, &[progress], Fleet::default(), 60);
        let record = retainted(&decision).expect("a taint");
        assert_eq!(record.number, 2, "the worker counts as inconclusive");
    }
}

#[test]
fn periodic_workers_start_one_at_a_time() {
    let (node, mut gate) = verified();
    gate.spec.mode = Mode::Continuous;
    let late = now() + SignedDuration::from_hours(48);
    let decided = |periodic| {
        let slots = Slots { first: true, another: true, periodic };
        let fleet = Fleet { open: 100, ..Fleet::default() };
        decide(&Observed { slots, fleet, now: late, ..observed(&node, ownership([&gate], &node), &[]) })
    };
    let decision = decided(true);
    assert!(decision.periodic && starts(&decision) == Some(2), "{decision:?}");
    let decision = decided(false);
    assert_eq!((starts(&decision), decision.wants_slot), (None, None), "it does not queue for a slot");
    assert!(decision.recheck_in.is_some_and(|wait| wait <= Duration::from_secs(100)), "{decision:?}");
}

#[test]
fn only_a_gate_with_the_same_label_inherits_nodes() {
    let (node, mut gate) = verified();
    gate.uid = "gate-2".into();
    assert!(matches!(ownership([&gate], &node), Ownership::Verified(_)), "a successor inherits them");
    gate.spec.verified_label.key = "another/label".into();
    assert!(matches!(ownership([&gate], &node), Ownership::Released));
}
