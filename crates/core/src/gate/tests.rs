use proptest::prelude::*;

use super::*;
use crate::api::{GateTaint, NodeGateSpec, NodeGateStatus};
use crate::id::Id;
use crate::labels::Labels;
use crate::node::Taint;
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
        last_applied: None,
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
        unscheduled_since: Duration::ZERO,
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
        record = record.after(result(n, round.clone(), verdict, at));
    }
    record
}

fn result(number: u32, scope: VerificationScope, verdict: Verdict, at: Timestamp) -> WorkerResult<'static> {
    let why = "dns: Timeout";
    WorkerResult {
        uid: "uid-1".into(),
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

fn observed<'a>(node: &'a NodeView, ownership: Ownership<'a>, workers: &'a [WorkerView]) -> Observed<'a> {
    Observed {
        node,
        ownership,
        gates: &[],
        workers,
        daemon_pods: None,
        slots: Slots { first: true, another: true, periodic: true },
        fleet: Fleet::default(),
        shared_outages: &[],
        policy_known: true,
        remediation_requested_at: None,
        agent: AgentPod::NotExpected,
        confirmed_at: None,
        ready_since: Duration::ZERO,
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
fn nodes_without_a_gate_taint_are_left_alone() {
    let mut node = node();
    node.taints = vec![taint("foreign")];
    node.labels.insert("node-ready/verified", "true");
    let decision = decided(&node, &[]);
    assert_eq!((decision.state, decision.effects), (State::Ungated, vec![]));
}

#[test]
fn a_taint_with_another_effect_is_not_the_gates() {
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
fn the_verified_label_removes_no_taint() {
    let mut node = node();
    node.labels.insert("node-ready/verified", "true");
    let decision = decided(&node, &[]);
    assert_eq!((removes_taint(&decision), starts(&decision)), (false, Some(1)));
}

#[test]
fn g10_a_ready_node_without_a_boot_id_gets_a_worker() {
    let node = NodeView { boot_id: Id::default(), ..node() };
    assert_eq!(starts(&decided(&node, &[])), Some(1), "a virtual kubelet reports none");
}

#[test]
fn g01_a_node_is_verified_only_once_its_taint_is_removed() {
    let decision = decided(&node(), &[reported(1, Outcome::Passed)]);
    assert!(removes_taint(&decision), "{decision:?}");
    assert_eq!(decision.state, State::InProgress, "the API server may refuse it");
}

#[test]
fn no_worker_starts_on_an_unready_or_cordoned_node() {
    for change in
        [(|node: &mut NodeView| node.ready = false) as fn(&mut NodeView), |node| node.unschedulable = true]
    {
        let mut node = node();
        change(&mut node);
        let decision = decided(&node, &[]);
        assert_eq!((decision.state, decision.effects), (State::Waiting, vec![]));
    }
}

#[test]
fn a_node_waits_for_a_free_worker_slot() {
    let (node, gate) = (node(), gate());
    let slots = Slots { first: false, another: true, periodic: true };
    let decision = decide(&Observed { slots, ..observed(&node, Ownership::Gated(&gate), &[]) });
    assert!(decision.wants_slot == Some(0) && decision.effects.is_empty(), "{decision:?}");
}

#[test]
fn an_unfinished_worker_is_awaited() {
    for (progress, state) in [
        (Progress::Running, State::InProgress),
        (Progress::Waiting(InconclusiveReason::NotStarted, String::new()), State::Pending),
    ] {
        let decision = decided(&node(), &[worker(1, progress)]);
        assert_eq!((decision.state, decision.effects), (state, vec![]));
        assert_eq!(
            decision.recheck_in,
            Some(Duration::from_mins(3)),
            "the worker deadline and one minute of grace"
        );
    }
}

#[test]
fn a_passed_worker_removes_the_taint_and_is_deleted() {
    let decision = decided(&node(), &[reported(1, Outcome::Passed)]);
    assert!(removes_taint(&decision));
    assert_eq!(removed(&decision), ["pod-1"]);
    let record = recorded(&decision).expect("a record");
    assert_eq!((record.number, record.attempts, record.verdict), (1, 1, Some(Verdict::Passed)));
    assert!(
        matches!(decision.effects[0], Effect::RemoveTaint(_)),
        "the record is written before the pod is deleted"
    );
}

#[test]
fn a_verdict_of_another_scope_removes_no_taint() {
    for change in [
        (|identity: &mut WorkerIdentity| identity.boot_id = "boot-0".into()) as fn(&mut WorkerIdentity),
        |identity| identity.gate_uid = "gate-0".into(),
        |identity| identity.gate_generation = 2,
    ] {
        let mut passed = reported(1, Outcome::Passed);
        change(&mut passed.identity);
        let decision = decided(&node(), &[passed]);
        let record = recorded(&decision).expect("a record");
        assert_eq!((removes_taint(&decision), record.verdict), (false, Some(Verdict::Inconclusive)));
        assert_eq!(record.attempts, 0, "no attempt is counted");
    }
}

#[test]
fn a_passed_worker_on_an_unready_node_removes_no_taint() {
    let mut node = node();
    node.ready = false;
    let decision = decided(&node, &[reported(1, Outcome::Passed)]);
    assert_eq!((removes_taint(&decision), decision.state), (false, State::Inconclusive));
}

#[test]
fn a_recorded_worker_is_not_evaluated_again() {
    let mut node = node();
    set_record(&mut node, &record(1, Verdict::Passed, now()));
    let decision = decided(&node, &[reported(1, Outcome::Passed)]);
    assert_eq!(
        (removes_taint(&decision), starts(&decision)),
        (false, Some(2)),
        "tainted again, so verified again"
    );
}

#[test]
fn a_failed_worker_is_recorded_and_kept_for_its_logs() {
    let decision = decided(&node(), &[reported(1, Outcome::Failed)]);
    let record = recorded(&decision).expect("a record");
    assert_eq!((record.attempts, record.verdict), (1, Some(Verdict::Failed)));
    assert!(record.why.contains("dns") && record.why.contains("Timeout"), "{}", record.why);
    assert!(removed(&decision).is_empty());
    assert!(
        decision.effects.iter().any(|effect| matches!(effect, Effect::EmitEvent(event) if event.warning))
    );
}

#[test]
fn a_node_of_a_deleted_gate_emits_an_event() {
    let mut node = node();
    set_record(&mut node, &record(1, Verdict::Failed, now()));
    let decision = decide(&observed(&node, ownership([], &node), &[]));
    assert_eq!(decision.state, State::Unserved);
    let Some(Effect::EmitEvent(event)) = decision.effects.first() else { panic!("{decision:?}") };
    assert!(event.note.contains("kubectl taint node n1 node-ready/unverified-"), "{}", event.note);
    assert_eq!(event.dedup_key, Some(0), "otherwise it would be emitted forever");
}

#[test]
fn workers_of_a_terminating_node_are_removed() {
    let mut node = node();
    node.terminating = true;
    let decision = decided(&node, &[worker(1, Progress::Running)]);
    assert_eq!((decision.state, removed(&decision)), (State::Terminating, vec!["pod-1"]));
    assert_eq!(decision.effects.len(), 1);
}

#[test]
fn workers_of_a_verified_node_are_removed() {
    let mut node = node();
    node.taints.clear();
    set_record(&mut node, &record(1, Verdict::Passed, now()));
    let decision = decided(&node, &[reported(1, Outcome::Passed)]);
    assert_eq!((decision.state, removed(&decision)), (State::Verified, vec!["pod-1"]));
}

#[test]
fn gates_serve_by_precedence_and_selector() {
    let (mut younger, older) = (gate(), gate());
    younger.created = now();
    younger.name = "a".into();
    let node = node();
    let name =
        |gates: &[&GateView]| ownership(gates.iter().copied(), &node).gate().map(|gate| gate.name.clone());
    assert_eq!(name(&[&younger, &older]).as_deref(), Some("default"));
    younger.spec.priority = 1;
    assert_eq!(name(&[&younger, &older]).as_deref(), Some("a"), "priority comes before age");
    younger.spec.enforcement = Enforcement::DryRun;
    assert_eq!(name(&[&younger, &older]).as_deref(), Some("default"), "a dry run comes last");
    younger.deleting = true;
    assert_eq!(name(&[&younger]), None);
    let mut selective = gate();
    selective.spec.node_selector.match_labels.insert("pool".into(), "gpu".into());
    assert_eq!(name(&[&selective]), None);
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
    /// For any input: the taint is removed only on a Passed verdict of the current scope with a new number; there are
    /// never two workers at once; numbers only rise.
    #[test]
    fn every_decision_is_safe(
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
            let newest = workers.iter().max_by_key(|worker| worker.identity.number).expect("a worker passed");
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

mod agent;
mod audit;
mod events;
mod outage;
mod schedule;
mod sections;
mod verified;
