use proptest::prelude::*;

use super::backoff::pause;
use super::*;
use crate::api::{Backoff, GateTaint, NodeGateSpec, NodeGateStatus, Retry};
use crate::node::{Labels, Taint};
use crate::record::{InconclusiveReason, WorkerResult};
use crate::report::{CheckResult, Outcome, Report, Verdict};
use crate::worker::Progress;

const BOOT: &str = "boot-1";

fn now() -> Timestamp {
    Timestamp::from_second(1_000_000).expect("a time")
}

fn taint(key: &str) -> Taint {
    Taint { key: key.into(), effect: "NoSchedule".into() }
}

fn node() -> NodeView {
    NodeView {
        name: "n1".into(),
        uid: "uid-1".into(),
        boot_id: BOOT.into(),
        ready: true,
        taints: vec![taint("foreign"), taint("node-ready/unverified")],
        ..NodeView::default()
    }
}

fn gate() -> GateView {
    GateView {
        name: "default".into(),
        uid: "gate-1".into(),
        resource_version: String::new(),
        generation: 3,
        created: Timestamp::UNIX_EPOCH,
        deleting: false,
        spec: NodeGateSpec::default(),
        status: NodeGateStatus::default(),
    }
}

fn identity(number: u32) -> WorkerIdentity {
    WorkerIdentity {
        node_uid: "uid-1".into(),
        boot_id: BOOT.into(),
        gate_uid: "gate-1".into(),
        gate_generation: 3,
        number,
    }
}

fn worker(number: u32, progress: Progress) -> WorkerView {
    WorkerView {
        name: crate::worker::name("uid-1", number),
        uid: format!("pod-{number}"),
        resource_version: "1".into(),
        first_seen: Duration::ZERO,
        deleting: false,
        node_name: "n1".into(),
        identity: identity(number),
        progress,
    }
}

fn reported(number: u32, outcome: Outcome) -> WorkerView {
    let result = CheckResult::new("dns", "kubernetes.", outcome, "Timeout", "no answer");
    worker(number, Progress::Reported(Report::judge(identity(number), vec![result], 5)))
}

fn set_record(node: &mut NodeView, record: &Record) {
    node.set_record_annotation(Some(&record.to_annotation()));
}

fn record(number: u32, verdict: Verdict, at: Timestamp) -> Record {
    let round = VerificationScope { boot_id: BOOT.into(), gate_uid: "gate-1".into(), gate_generation: 3 };
    let mut record = Record::default();
    for n in 1..=number {
        record = record.after(ending(n, round.clone(), verdict, at));
    }
    record
}

fn ending(number: u32, scope: VerificationScope, verdict: Verdict, at: Timestamp) -> WorkerResult<'static> {
    let why = "dns: Timeout";
    WorkerResult {
        uid: "uid-1",
        scope,
        number,
        verdict,
        why,
        failed: Vec::new(),
        cause: None,
        elapsed_seconds: 0,
        restart: false,
        at,
    }
}

fn observed<'a>(node: &'a NodeView, served: Ownership<'a>, workers: &'a [WorkerView]) -> Observed<'a> {
    Observed {
        node,
        served,
        workers,
        daemons: None,
        slots: Slots { first: true, another: true, periodic: true },
        fleet: Fleet::default(),
        down: &[],
        policy_known: true,
        asked: None,
        now: now(),
        elapsed: Duration::ZERO,
    }
}

fn decided(node: &NodeView, workers: &[WorkerView]) -> Decision {
    decided_at(node, workers, now())
}

fn decided_at(node: &NodeView, workers: &[WorkerView], now: Timestamp) -> Decision {
    let gate = gate();
    let elapsed = Duration::try_from(now.duration_since(self::now())).unwrap_or_default();
    decide(&Observed { now, elapsed, ..observed(node, ownership([&gate], node), workers) })
}

fn removes_taint(decision: &Decision) -> bool {
    decision.effects.iter().any(|effect| matches!(effect, Effect::RemoveTaint(_)))
}

fn starts(decision: &Decision) -> Option<u32> {
    decision.effects.iter().find_map(|effect| match effect {
        Effect::StartWorker(identity) => Some(identity.number),
        _ => None,
    })
}

fn recorded(decision: &Decision) -> Option<&Record> {
    decision.effects.iter().find_map(|effect| match effect {
        Effect::PatchRecord(record) | Effect::RemoveTaint(record) => Some(record),
        _ => None,
    })
}

fn removed(decision: &Decision) -> Vec<&str> {
    let uids = decision.effects.iter().filter_map(|effect| match effect {
        Effect::RemoveWorker { uid, .. } => Some(uid.as_str()),
        _ => None,
    });
    uids.collect()
}

#[test]
fn a_node_without_our_taint_is_left_alone_whatever_it_bears() {
    let mut node = node();
    node.taints = vec![taint("foreign")];
    node.labels.insert("node-ready/verified", "true");
    let decision = decided(&node, &[]);
    assert_eq!((decision.state, decision.effects), (State::Ungated, vec![]));
}

#[test]
fn a_taint_of_another_effect_is_not_ours() {
    let mut node = node();
    node.taints = vec![Taint { key: "node-ready/unverified".into(), effect: "NoExecute".into() }];
    assert_eq!(decided(&node, &[]).state, State::Ungated);
}

#[test]
fn a_new_node_gets_its_first_worker() {
    let decision = decided(&node(), &[]);
    assert_eq!((decision.state, starts(&decision)), (State::Pending, Some(1)));
}

#[test]
fn a_label_opens_nothing() {
    let mut node = node();
    node.labels.insert("node-ready/verified", "true");
    let decision = decided(&node, &[]);
    assert_eq!((removes_taint(&decision), starts(&decision)), (false, Some(1)));
}

#[test]
fn nothing_starts_on_a_node_that_is_not_ready_for_it() {
    for change in [
        (|node: &mut NodeView| node.ready = false) as fn(&mut NodeView),
        |node| node.unschedulable = true,
        |node| node.boot_id = Box::default(),
    ] {
        let mut node = node();
        change(&mut node);
        let decision = decided(&node, &[]);
        assert_eq!((decision.state, decision.effects), (State::Waiting, vec![]));
    }
}

#[test]
fn without_a_free_slot_a_node_waits_for_one() {
    let (node, gate) = (node(), gate());
    let slots = Slots { first: false, another: true, periodic: true };
    let decision = decide(&Observed { slots, ..observed(&node, Ownership::Gated(&gate), &[]) });
    assert!(decision.wants_slot == Some(0) && decision.effects.is_empty(), "{decision:?}");
}

#[test]
fn a_worker_at_work_is_left_to_it() {
    for (progress, state) in [
        (Progress::Running, State::InProgress),
        (Progress::Waiting(InconclusiveReason::NotStarted, String::new()), State::Pending),
    ] {
        let decision = decided(&node(), &[worker(1, progress)]);
        assert_eq!((decision.state, decision.effects), (state, vec![]));
        assert_eq!(decision.recheck_in, Some(Duration::from_mins(3)), "its deadline and a minute");
    }
}

#[test]
fn a_passed_worker_opens_the_gate_and_goes() {
    let decision = decided(&node(), &[reported(1, Outcome::Passed)]);
    assert!(removes_taint(&decision));
    assert_eq!(removed(&decision), ["pod-1"]);
    let record = recorded(&decision).expect("it is recorded");
    assert_eq!((record.number, record.attempts, record.verdict), (1, 1, Some(Verdict::Passed)));
    assert!(
        matches!(decision.effects[0], Effect::RemoveTaint(_)),
        "the record is written before the pod goes"
    );
}

#[test]
fn a_verdict_about_something_else_opens_nothing() {
    for change in [
        (|identity: &mut WorkerIdentity| identity.boot_id = "boot-0".into()) as fn(&mut WorkerIdentity),
        |identity| identity.gate_uid = "gate-0".into(),
        |identity| identity.gate_generation = 2,
    ] {
        let mut passed = reported(1, Outcome::Passed);
        change(&mut passed.identity);
        let decision = decided(&node(), &[passed]);
        let record = recorded(&decision).expect("it is recorded");
        assert_eq!((removes_taint(&decision), record.verdict), (false, Some(Verdict::Inconclusive)));
        assert_eq!(record.attempts, 0, "it blames nobody");
    }
}

#[test]
fn a_passed_worker_of_a_node_that_is_no_longer_ready_opens_nothing() {
    let mut node = node();
    node.ready = false;
    let decision = decided(&node, &[reported(1, Outcome::Passed)]);
    assert_eq!((removes_taint(&decision), decision.state), (false, State::Inconclusive));
}

#[test]
fn a_worker_that_was_recorded_opens_nothing_again() {
    let mut node = node();
    set_record(&mut node, &record(1, Verdict::Passed, now()));
    let decision = decided(&node, &[reported(1, Outcome::Passed)]);
    assert_eq!(
        (removes_taint(&decision), starts(&decision)),
        (false, Some(2)),
        "tainted again: verified again"
    );
}

#[test]
fn a_failure_is_recorded_and_its_worker_kept_for_its_logs() {
    let decision = decided(&node(), &[reported(1, Outcome::Failed)]);
    let record = recorded(&decision).expect("it is recorded");
    assert_eq!((record.attempts, record.verdict), (1, Some(Verdict::Failed)));
    assert!(record.why.contains("dns") && record.why.contains("Timeout"), "{}", record.why);
    assert!(removed(&decision).is_empty());
    assert!(
        decision.effects.iter().any(|effect| matches!(effect, Effect::EmitEvent(event) if event.warning))
    );
}

#[test]
fn the_next_worker_waits_its_pause_and_replaces_the_last() {
    let mut node = node();
    set_record(&mut node, &record(1, Verdict::Failed, now()));
    let last = reported(1, Outcome::Failed);
    let decision = decided(&node, std::slice::from_ref(&last));
    let wait = decision.recheck_in.expect("it waits");
    assert!(
        decision.effects.is_empty() && wait >= Duration::from_secs(1) && wait < Duration::from_millis(1200)
    );
    let later = now() + SignedDuration::from_secs(2);
    let decision = decided_at(&node, &[last], later);
    assert_eq!((starts(&decision), removed(&decision)), (Some(2), vec!["pod-1"]));
    assert!(matches!(decision.effects[0], Effect::StartWorker(_)), "the new one reserves its number first");
}

#[test]
fn pauses_grow_as_documented() {
    let seconds = |backoff, workers| {
        let record = Record { workers, ..Record::default() };
        pause(&Retry { backoff, ..Retry::default() }, &record).as_millis() / 1000
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
fn a_node_that_used_up_its_attempts_is_looked_at_rarely_but_for_ever() {
    let mut node = node();
    let decision = {
        set_record(&mut node, &record(5, Verdict::Failed, now()));
        decided(&node, &[reported(6, Outcome::Failed)])
    };
    let event: Vec<&str> = decision
        .effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::EmitEvent(event) => Some(event.reason),
            _ => None,
        })
        .collect();
    assert_eq!(event, ["NodeCheckFailed", "NodeVerificationFailed"]);
    set_record(&mut node, recorded(&decision).expect("it is recorded"));
    let decision = decided(&node, &[]);
    assert_eq!((decision.state, decision.recheck_in), (State::Failed, Some(Duration::from_mins(5))));
    let decision = decided_at(&node, &[], now() + SignedDuration::from_mins(5));
    assert_eq!(starts(&decision), Some(7));
    let decision = decided_at(&node, &[reported(7, Outcome::Passed)], now());
    assert!(removes_taint(&decision), "a node that heals is let in");
}

#[test]
fn a_worker_that_cannot_tell_costs_no_attempt() {
    let mut deleted = worker(1, Progress::Running);
    deleted.deleting = true;
    let silent = worker(1, Progress::Inconclusive(InconclusiveReason::OutOfMemory, "OOMKilled".into()));
    for one in [deleted, silent, reported(1, Outcome::Inconclusive)] {
        let decision = decided(&node(), &[one]);
        let record = recorded(&decision).expect("its number is used up");
        assert_eq!((record.number, record.workers, record.attempts), (1, 1, 0));
        assert_eq!(record.verdict, Some(Verdict::Inconclusive));
    }
}

#[test]
fn an_overdue_worker_is_given_up_and_gone_before_the_next() {
    let late = now() + SignedDuration::from_mins(4);
    let stuck = worker(1, Progress::Waiting(InconclusiveReason::ImagePull, "ErrImagePull".into()));
    let decision = decided_at(&node(), std::slice::from_ref(&stuck), late);
    let record = recorded(&decision).expect("its number is used up").clone();
    assert!(record.why.contains("ErrImagePull"), "{}", record.why);
    let mut node = node();
    set_record(&mut node, &record);
    let later = late + SignedDuration::from_mins(1);
    let decision = decided_at(&node, std::slice::from_ref(&stuck), later);
    assert_eq!((starts(&decision), removed(&decision)), (None, vec!["pod-1"]));
    let going = WorkerView { deleting: true, ..stuck };
    assert_eq!(decided_at(&node, &[going], later).effects, vec![], "never two at once");
    assert_eq!(starts(&decided_at(&node, &[], later)), Some(2));
}

#[test]
fn a_worker_that_cannot_be_scheduled_is_given_up_soon() {
    let refused = worker(1, Progress::Unscheduled("untolerated taint".into()));
    let decision = decided(&node(), std::slice::from_ref(&refused));
    assert_eq!((decision.state, decision.recheck_in), (State::Pending, Some(Duration::from_secs(20))));
    let decision = decided_at(&node(), &[refused], now() + SignedDuration::from_secs(21));
    assert!(
        recorded(&decision).is_some_and(|record| record.why.contains("untolerated taint")),
        "{decision:?}"
    );
}

#[test]
fn a_wrong_time_of_day_makes_no_worker_overdue() {
    let (node, gate) = (node(), gate());
    let workers = [worker(1, Progress::Running)];
    let now = now() + SignedDuration::from_hours(5);
    let seen = Observed { now, ..observed(&node, Ownership::Gated(&gate), &workers) };
    assert_eq!(decide(&seen).state, State::InProgress);
}

#[test]
fn a_record_from_a_clock_that_is_ahead_delays_by_no_more_than_the_pause() {
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
fn workers_that_cannot_tell_do_not_make_failures_rarer() {
    let mut silent = record(25, Verdict::Inconclusive, now());
    let mut node = node();
    set_record(&mut node, &silent);
    assert_eq!(decided(&node, &[]).recheck_in, Some(Duration::from_mins(5)), "so many, and they come rarely");
    silent = silent.after(ending(26, silent.scope.clone(), Verdict::Failed, now()));
    set_record(&mut node, &silent);
    let decision = decided(&node, &[]);
    assert!(decision.recheck_in.is_some_and(|wait| wait <= Duration::from_secs(36)), "{decision:?}");
    assert!(decision.why.contains("attempt 1 of 6"), "{}", decision.why);
}

#[test]
fn a_node_whose_gate_is_gone_says_so() {
    let mut node = node();
    set_record(&mut node, &record(1, Verdict::Failed, now()));
    let decision = decide(&observed(&node, ownership([], &node), &[]));
    assert_eq!(decision.state, State::Unserved);
    let Some(Effect::EmitEvent(event)) = decision.effects.first() else { panic!("{decision:?}") };
    assert!(event.note.contains("kubectl taint node n1 node-ready/unverified-"), "{}", event.note);
    assert_eq!(event.dedup_key, Some(0), "it would be event for ever");
}

#[test]
fn a_forged_record_starts_no_storm() {
    let mut node = node();
    node.set_record_annotation(Some(r#"{"uid":"uid-1","number":4294967295}"#));
    assert_eq!(starts(&decided(&node, &[])), Some(1));
    assert_eq!(decided(&node, &[worker(1, Progress::Running)]).effects, vec![]);
}

#[test]
fn another_boot_begins_another_round() {
    let mut node = node();
    set_record(&mut node, &record(6, Verdict::Failed, now()));
    node.boot_id = "boot-2".into();
    let decision = decided(&node, &[]);
    assert_eq!(starts(&decision), Some(7), "at dedup_key, and numbers go on");
    let mut passed = reported(7, Outcome::Failed);
    passed.identity.boot_id = "boot-2".into();
    let decision = decided(&node, &[passed]);
    assert_eq!(recorded(&decision).map(|record| record.attempts), Some(1));
}

#[test]
fn a_record_of_another_node_counts_for_nothing() {
    let mut node = node();
    set_record(&mut node, &Record { uid: "uid-0".into(), number: 9, ..Record::default() });
    assert_eq!(starts(&decided(&node, &[])), Some(1));
    node.set_record_annotation(Some("{\"uid\": 7}"));
    assert_eq!(starts(&decided(&node, &[])), Some(1));
}

#[test]
fn a_node_that_leaves_takes_its_workers_along() {
    let mut node = node();
    node.terminating = true;
    let decision = decided(&node, &[worker(1, Progress::Running)]);
    assert_eq!((decision.state, removed(&decision)), (State::Terminating, vec!["pod-1"]));
    assert_eq!(decision.effects.len(), 1);
}

#[test]
fn an_open_node_has_no_workers_left() {
    let mut node = node();
    node.taints.clear();
    set_record(&mut node, &record(1, Verdict::Passed, now()));
    let decision = decided(&node, &[reported(1, Outcome::Passed)]);
    assert_eq!((decision.state, removed(&decision)), (State::Verified, vec!["pod-1"]));
}

#[test]
fn the_older_gate_serves_and_only_those_it_selects() {
    let (mut younger, older) = (gate(), gate());
    younger.created = now();
    younger.name = "a".into();
    let node = node();
    let name =
        |gates: &[&GateView]| ownership(gates.iter().copied(), &node).gate().map(|gate| gate.name.clone());
    assert_eq!(name(&[&younger, &older]).as_deref(), Some("default"));
    younger.spec.priority = 1;
    assert_eq!(name(&[&younger, &older]).as_deref(), Some("a"), "priority goes before age");
    younger.spec.enforcement = Enforcement::DryRun;
    assert_eq!(name(&[&younger, &older]).as_deref(), Some("default"), "whoever only looks holds nobody up");
    younger.deleting = true;
    assert_eq!(name(&[&younger]), None);
    let mut picky = gate();
    picky.spec.node_selector.match_labels.insert("pool".into(), "gpu".into());
    assert_eq!(name(&[&picky]), None);
    let mut other = gate();
    other.spec.taints = vec![GateTaint { key: "other".into(), ..GateTaint::default() }];
    assert_eq!(name(&[&other]), None);
}

fn any_progress() -> impl Strategy<Value = Option<Outcome>> {
    prop_oneof![
        Just(None),
        Just(Some(Outcome::Passed)),
        Just(Some(Outcome::Failed)),
        Just(Some(Outcome::Inconclusive))
    ]
}

proptest! {
    /// Whatever is seen: a gate opens only on a Passed verdict about this boot and gate whose number is new; never two
    /// workers at once; numbers only rise.
    #[test]
    fn nothing_seen_leads_to_harm(
        last_number in 0_u32..4,
        workers in prop::collection::vec((1_u32..6, any_progress(), any::<bool>(), any::<bool>()), 0..4),
        ready: bool,
        slot_free: bool,
        later in 0_i64..1000,
    ) {
        let mut node = node();
        node.ready = ready;
        if last_number > 0 {
            set_record(&mut node, &record(last_number, Verdict::Failed, now()));
        }
        let workers: Vec<WorkerView> = workers
            .into_iter()
            .map(|(number, outcome, deleting, this_boot)| {
                let mut worker = outcome.map_or_else(|| worker(number, Progress::Running), |outcome| reported(number, outcome));
                worker.deleting = deleting;
                if !this_boot {
                    worker.identity.boot_id = "boot-0".into();
                }
                worker
            })
            .collect();
        let gate = gate();
        let now = now() + SignedDuration::from_secs(later);
        let slots = Slots { first: slot_free, another: slot_free, periodic: slot_free };
        let decision = decide(&Observed { slots, now, ..observed(&node, Ownership::Gated(&gate), &workers) });
        if removes_taint(&decision) {
            let newest = workers.iter().max_by_key(|worker| worker.identity.number).expect("somebody passed");
            prop_assert!(newest.identity.number > last_number && newest.identity.boot_id == BOOT && ready);
            let passed = matches!(&newest.progress, Progress::Reported(report) if report.verdict == Verdict::Passed);
            prop_assert!(passed);
        }
        if let Some(number) = starts(&decision) {
            prop_assert!(number > last_number && workers.iter().all(|worker| worker.identity.number < number));
            prop_assert!(workers.iter().all(WorkerView::has_ended) && slot_free && ready);
        }
        if let Some(record) = recorded(&decision) {
            prop_assert!(record.number > last_number && record.attempts <= record.workers);
        }
    }
}

mod events;
mod outage;
mod verified;
