//! When the next worker starts, and what its record counts.

use super::*;
use crate::api::{Backoff, Retry};
use crate::gate::backoff::attempt_backoff;

#[test]
fn the_next_worker_waits_for_the_backoff() {
    let mut node = node();
    set_record(&mut node, &record(1, Verdict::Failed, now()));
    let last = reported(1, Outcome::Failed);
    let decision = decided(&node, std::slice::from_ref(&last));
    let wait = decision.recheck_in.expect("a backoff");
    assert!(
        decision.effects.is_empty() && wait >= Duration::from_secs(1) && wait < Duration::from_millis(1200)
    );
    let later = now() + SignedDuration::from_secs(2);
    let decision = decided_at(&node, &[last], later);
    assert_eq!((starts(&decision), removed(&decision)), (Some(2), vec!["pod-1"]));
    assert!(
        matches!(decision.effects[0], Effect::StartWorker(_)),
        "the new worker reserves its number first"
    );
}

#[test]
fn backoff_grows_as_documented() {
    let seconds = |backoff, workers| {
        let record = Record { workers, ..Record::default() };
        attempt_backoff(&Retry { backoff, ..Retry::default() }, &record).as_millis() / 1000
    };
    let exponential: Vec<i128> = (1..=7).map(|n| seconds(Backoff::Exponential, n)).collect();
    let linear: Vec<i128> = (1..=7).map(|n| seconds(Backoff::Linear, n)).collect();
    let close = |is: &[i128], wanted: [i128; 7]| {
        is.iter().zip(wanted).all(|(is, wanted)| *is >= wanted && *is * 5 <= wanted * 6)
    };
    assert!(close(&exponential, [1, 2, 4, 8, 16, 30, 30]), "{exponential:?}");
    assert!(close(&linear, [5, 10, 15, 20, 25, 30, 30]), "{linear:?}");
    assert_eq!(seconds(Backoff::Exponential, u32::MAX) / 36, 0);
}

#[test]
fn a_failed_node_is_rechecked_forever() {
    let mut node = node();
    let decision = {
        set_record(&mut node, &record(5, Verdict::Failed, now()));
        decided(&node, &[reported(6, Outcome::Failed)])
    };
    let events: Vec<&str> = decision
        .effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::EmitEvent(event) => Some(event.reason),
            _ => None,
        })
        .collect();
    assert_eq!(events, ["NodeCheckFailed", "NodeVerificationFailed"]);
    set_record(&mut node, recorded(&decision).expect("a record"));
    let decision = decided(&node, &[]);
    assert_eq!((decision.state, decision.recheck_in), (State::Failed, Some(Duration::from_mins(5))));
    let decision = decided_at(&node, &[], now() + SignedDuration::from_mins(5));
    assert_eq!(starts(&decision), Some(7));
    let decision = decided_at(&node, &[reported(7, Outcome::Passed)], now());
    assert!(removes_taint(&decision), "a node that recovers is verified");
}

#[test]
fn an_inconclusive_worker_costs_no_attempt() {
    let mut deleted = worker(1, Progress::Running);
    deleted.deleting = true;
    let killed = worker(1, Progress::Inconclusive(InconclusiveReason::OutOfMemory, "OOMKilled".into()));
    for one in [deleted, killed, reported(1, Outcome::Inconclusive)] {
        let decision = decided(&node(), &[one]);
        let record = recorded(&decision).expect("a record");
        assert_eq!((record.number, record.workers, record.attempts), (1, 1, 0));
        assert_eq!(record.verdict, Some(Verdict::Inconclusive));
    }
}

#[test]
fn an_overdue_worker_is_removed_before_the_next_starts() {
    let late = now() + SignedDuration::from_mins(4);
    let stuck = worker(1, Progress::Waiting(InconclusiveReason::ImagePull, "ErrImagePull".into()));
    let decision = decided_at(&node(), std::slice::from_ref(&stuck), late);
    let record = recorded(&decision).expect("a record").clone();
    assert!(record.why.contains("ErrImagePull"), "{}", record.why);
    let mut node = node();
    set_record(&mut node, &record);
    let later = late + SignedDuration::from_mins(1);
    let decision = decided_at(&node, std::slice::from_ref(&stuck), later);
    assert_eq!((starts(&decision), removed(&decision)), (None, vec!["pod-1"]));
    let going = WorkerView { deleting: true, ..stuck };
    assert_eq!(decided_at(&node, &[going], later).effects, vec![], "never two workers at once");
    assert_eq!(starts(&decided_at(&node, &[], later)), Some(2));
}

#[test]
fn an_unschedulable_worker_is_abandoned_soon() {
    let refused = worker(1, Progress::Unscheduled("untolerated taint".into()));
    let decision = decided(&node(), std::slice::from_ref(&refused));
    assert_eq!((decision.state, decision.recheck_in), (State::Pending, Some(Duration::from_secs(20))));
    assert_eq!(decision.gives_up_on, None);
    let decision = decided_at(&node(), &[refused], now() + SignedDuration::from_secs(21));
    assert!(
        recorded(&decision).is_some_and(|record| record.why.contains("untolerated taint")),
        "{decision:?}"
    );
}

#[test]
fn t08_a_changed_gate_restarts_the_counts() {
    let (mut node, mut gate) = (node(), gate());
    set_record(&mut node, &record(6, Verdict::Failed, now()));
    let decided =
        |gate: &GateView, workers: &[WorkerView]| decide(&observed(&node, Ownership::Gated(gate), workers));
    assert_eq!(starts(&decided(&gate, &[])), None, "it waits for its recheck");
    gate.generation = 4;
    assert_eq!(starts(&decided(&gate, &[])), Some(7), "at once");
    let identity = WorkerIdentity { gate_generation: 4, ..identity(7) };
    let result = CheckResult::new("dns", "kubernetes.", Outcome::Failed, "Timeout", "no answer");
    let report = Report::judge(identity.clone(), vec![result], 5);
    let failed = WorkerView { identity, ..worker(7, Progress::Reported(report)) };
    let decision = decided(&gate, &[failed]);
    assert_eq!(recorded(&decision).map(|record| record.attempts), Some(1), "{decision:?}");
}

#[test]
fn g04_a_worker_that_is_given_up_is_read_once_more() {
    let late = now() + SignedDuration::from_hours(1);
    for progress in [Progress::Running, Progress::Unscheduled("no CPU".into())] {
        let decision = decided_at(&node(), &[worker(1, progress)], late);
        assert_eq!(decision.gives_up_on, Some(crate::worker::name("uid-1", 1)), "{decision:?}");
    }
    let ended = decided_at(&node(), &[reported(1, Outcome::Passed)], late);
    assert_eq!(ended.gives_up_on, None);
}

#[test]
fn g04_the_grace_of_an_unschedulable_worker_begins_with_the_refusal() {
    let mut waits = worker(1, Progress::Waiting(InconclusiveReason::NotStarted, String::new()));
    waits.observe(None, Duration::ZERO);
    let mut refused = worker(1, Progress::Unscheduled("no CPU".into()));
    refused.observe(Some(&waits), Duration::from_secs(40));
    let decision = decided_at(&node(), std::slice::from_ref(&refused), now() + SignedDuration::from_secs(41));
    assert_eq!(decision.recheck_in, Some(Duration::from_secs(19)));
    let mut again = worker(1, Progress::Unscheduled("no memory".into()));
    again.observe(Some(&refused), Duration::from_secs(50));
    let decision = decided_at(&node(), &[again], now() + SignedDuration::from_secs(60));
    assert!(recorded(&decision).is_some(), "{decision:?}");
}

#[test]
fn a_wall_clock_jump_makes_no_worker_overdue() {
    let (node, gate) = (node(), gate());
    let workers = [worker(1, Progress::Running)];
    let now = now() + SignedDuration::from_hours(5);
    let input = Observed { now, ..observed(&node, Ownership::Gated(&gate), &workers) };
    assert_eq!(decide(&input).state, State::InProgress);
}

#[test]
fn a_record_from_the_future_delays_at_most_one_backoff() {
    let (mut node, gate) = (node(), gate());
    set_record(&mut node, &record(1, Verdict::Failed, now() + SignedDuration::from_mins(10)));
    node.record_seen_at = Duration::from_secs(100);
    let at = |elapsed| {
        let elapsed = Duration::from_secs(elapsed);
        decide(&Observed { elapsed, ..observed(&node, Ownership::Gated(&gate), &[]) })
    };
    assert_eq!(starts(&at(100)), None);
    assert_eq!(starts(&at(102)), Some(2));
}

#[test]
fn inconclusive_workers_do_not_slow_down_retries() {
    let mut inconclusive = record(25, Verdict::Inconclusive, now());
    let mut node = node();
    set_record(&mut node, &inconclusive);
    assert_eq!(decided(&node, &[]).recheck_in, Some(Duration::from_mins(5)), "after a long streak");
    inconclusive = inconclusive.after(result(26, inconclusive.scope.clone(), Verdict::Failed, now()));
    set_record(&mut node, &inconclusive);
    let decision = decided(&node, &[]);
    assert!(decision.recheck_in.is_some_and(|wait| wait <= Duration::from_secs(36)), "{decision:?}");
    assert!(decision.why.contains("attempt 1 of 6"), "{}", decision.why);
}

#[test]
fn a_forged_record_is_ignored() {
    let mut node = node();
    node.set_record_annotation(Some(r#"{"uid":"uid-1","number":4294967295}"#));
    assert_eq!(starts(&decided(&node, &[])), Some(1));
    assert_eq!(decided(&node, &[worker(1, Progress::Running)]).effects, vec![]);
}

#[test]
fn a_reboot_starts_another_scope() {
    let mut node = node();
    set_record(&mut node, &record(6, Verdict::Failed, now()));
    node.boot_id = "boot-2".into();
    let decision = decided(&node, &[]);
    assert_eq!(starts(&decision), Some(7), "at once, with the next number");
    let mut passed = reported(7, Outcome::Failed);
    passed.identity.boot_id = "boot-2".into();
    let decision = decided(&node, &[passed]);
    assert_eq!(recorded(&decision).map(|record| record.attempts), Some(1));
}

#[test]
fn a_record_of_another_node_is_ignored() {
    let mut node = node();
    set_record(&mut node, &Record { uid: "uid-0".into(), number: 9, ..Record::default() });
    assert_eq!(starts(&decided(&node, &[])), Some(1));
    node.set_record_annotation(Some("{\"uid\": 7}"));
    assert_eq!(starts(&decided(&node, &[])), Some(1));
}
