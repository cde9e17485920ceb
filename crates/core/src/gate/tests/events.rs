//! The options of a gate: enforcement, prerequisites, deadlines, node condition.

use super::*;
use crate::api::{Awaited, DaemonSetRef, NodeCondition};

fn before(gate: &GateView, node: &NodeView, workers: &[WorkerView]) -> Decision {
    decide(&observed(node, Ownership::Gated(gate), workers))
}

#[test]
fn a_paused_gate_only_emits_one_event() {
    let mut gate = gate();
    gate.spec.enforcement = Enforcement::Paused;
    for workers in [vec![], vec![reported(1, Outcome::Passed)]] {
        let decision = before(&gate, &node(), &workers);
        assert_eq!(decision.state, State::Waiting);
        let [Effect::EmitEvent(event)] = decision.effects.as_slice() else { panic!("{decision:?}") };
        assert!(
            event.dedup_key.is_some() && event.note.contains("kubectl edit nodegate default"),
            "{event:?}"
        );
    }
}

#[test]
fn g10_a_paused_gate_removes_workers_that_have_not_ended() {
    let mut gate = gate();
    gate.spec.enforcement = Enforcement::Paused;
    let decision = before(&gate, &node(), &[worker(1, Progress::Running)]);
    assert_eq!(removed(&decision), ["pod-1"], "it would keep its slot");
}

#[test]
fn g10_a_dry_run_reports_each_pod_even_if_numbers_repeat() {
    let mut gate = gate();
    gate.spec.enforcement = Enforcement::DryRun;
    let key = |uid: &str| {
        let worker = WorkerView { uid: uid.into(), ..reported(1, Outcome::Failed) };
        let decision = before(&gate, &node(), &[worker]);
        let [Effect::EmitEvent(event)] = decision.effects.as_slice() else { panic!("{decision:?}") };
        event.dedup_key
    };
    assert!(key("a").is_some() && key("a") == key("a") && key("a") != key("b"));
}

#[test]
fn g09_pods_stay_watched_while_a_node_waits_for_a_slot() {
    let (node, mut gate) = (node(), gate());
    let set = DaemonSetRef { namespace: "kube-system".into(), name: "cni".into() };
    gate.spec.wait_for.daemon_sets = vec![set.clone()];
    let pods = [DaemonPod { of: set, ready: true }];
    for enforcement in [Enforcement::Enforce, Enforcement::DryRun] {
        gate.spec.enforcement = enforcement;
        let slots = Slots { first: false, another: false, periodic: false };
        let waits =
            Observed { daemon_pods: Some(&pods), slots, ..observed(&node, Ownership::Gated(&gate), &[]) };
        let decision = decide(&waits);
        assert!(decision.wants_slot == Some(0) && decision.wants_pods, "{decision:?}");
    }
}

#[test]
fn a_dry_run_writes_no_node() {
    let mut gate = gate();
    gate.spec.enforcement = Enforcement::DryRun;
    assert_eq!(starts(&before(&gate, &node(), &[])), Some(1));
    assert_eq!(before(&gate, &node(), &[worker(1, Progress::Running)]).effects, vec![]);
    for (outcome, words) in
        [(Outcome::Passed, "the taint would be removed"), (Outcome::Failed, "would stay tainted")]
    {
        let decision = before(&gate, &node(), &[reported(1, outcome)]);
        let [Effect::EmitEvent(event)] = decision.effects.as_slice() else { panic!("{decision:?}") };
        assert!(event.note.contains(words) && event.dedup_key.is_some(), "{event:?}");
    }
    let (node, failed) = (node(), [reported(1, Outcome::Failed)]);
    let later = Duration::from_mins(5);
    let again = decide(&Observed { elapsed: later, ..observed(&node, Ownership::Gated(&gate), &failed) });
    assert_eq!(
        (starts(&again), removed(&again)),
        (Some(2), vec!["pod-1"]),
        "rechecked after recheckPeriodSeconds"
    );
}

#[test]
fn a_dry_run_removes_an_overdue_worker() {
    let (node, mut gate) = (node(), gate());
    gate.spec.enforcement = Enforcement::DryRun;
    let workers = [worker(1, Progress::Running)];
    let elapsed = Duration::from_mins(3);
    let decision = decide(&Observed { elapsed, ..observed(&node, Ownership::Gated(&gate), &workers) });
    assert_eq!((removed(&decision), decision.recheck_in), (vec!["pod-1"], Some(Duration::from_mins(1))));
}

#[test]
fn a_dry_run_uses_no_number_twice() {
    let (mut node, mut gate) = (node(), gate());
    gate.spec.enforcement = Enforcement::DryRun;
    set_record(&mut node, &record(2, Verdict::Failed, now()));
    assert_eq!(
        starts(&before(&gate, &node, &[reported(1, Outcome::Passed)])),
        Some(3),
        "worker 2 was deleted"
    );
}

#[test]
fn f16_no_worker_starts_before_prerequisites_are_met() {
    let gate = gate();
    for taint_key in [
        "node.cloudprovider.kubernetes.io/uninitialized",
        "node.cluster.x-k8s.io/uninitialized",
        "karpenter.sh/unregistered",
    ] {
        let mut node = node();
        node.taints.push(taint(taint_key));
        let decision = before(&gate, &node, &[]);
        assert_eq!((decision.state, decision.effects), (State::Waiting, vec![]), "{taint_key}");
    }
    let mut node = node();
    node.labels.insert("karpenter.sh/nodepool", "default");
    assert_eq!(before(&gate, &node, &[]).state, State::Waiting);
    node.labels.insert("karpenter.sh/registered", "true");
    assert_eq!(starts(&before(&gate, &node, &[])), Some(1));
    let mut ignoring = gate;
    ignoring.spec.wait_for.karpenter = Awaited::Ignore;
    node.labels.remove("karpenter.sh/registered");
    assert_eq!(starts(&before(&ignoring, &node, &[])), Some(1));
}

#[test]
fn g05_a_worker_waits_for_the_network_of_the_node() {
    let (mut node, gate) = (node(), gate());
    node.taints.push(taint("node.kubernetes.io/network-unavailable"));
    let decision = before(&gate, &node, &[]);
    assert_eq!((decision.state, decision.effects), (State::Waiting, vec![]));
    assert!(decision.why.contains("network-unavailable"), "{}", decision.why);
}

#[test]
fn g05_a_verified_node_that_has_rebooted_waits_for_its_network_too() {
    let (mut node, gate) = verified::verified();
    node.boot_id = "boot-2".into();
    let decided = |node: &NodeView| decide(&observed(node, Ownership::Verified(&gate), &[]));
    assert_eq!(starts(&decided(&node)), Some(2));
    node.taints.push(taint("node.kubernetes.io/network-unavailable"));
    let decision = decided(&node);
    assert_eq!(decision.effects, vec![]);
    assert!(decision.why.contains("network-unavailable"), "{}", decision.why);
}

#[test]
fn a_worker_waits_for_the_listed_conditions_and_taints() {
    let (mut node, mut gate) = (node(), gate());
    gate.spec.wait_for = serde_json::from_value(serde_json::json!({
        "taints": ["cni/starting"], "conditions": [{"type": "NetworkUnavailable", "status": "False"}],
    }))
    .expect("waitFor");
    let reason = |node: &NodeView| {
        let decision = decide(&observed(node, Ownership::Gated(&gate), &[]));
        (decision.state == State::Waiting).then_some(decision.why)
    };
    assert!(reason(&node).is_some_and(|why| why.contains("NetworkUnavailable")), "it has no such condition");
    node.conditions.insert("NetworkUnavailable", "True");
    assert!(reason(&node).is_some_and(|why| why.contains("is not False")));
    node.conditions.insert("NetworkUnavailable", "False");
    assert_eq!(reason(&node), None);
    node.taints.push(taint("cni/starting"));
    assert!(reason(&node).is_some_and(|why| why.contains("cni/starting")));
}

#[test]
fn f12_pods_are_watched_only_while_a_daemon_set_is_required() {
    let (node, mut gate) = (node(), gate());
    assert!(!before(&gate, &node, &[]).wants_pods);
    let cni = DaemonSetRef { namespace: "kube-system".into(), name: "cilium".into() };
    gate.spec.wait_for.daemon_sets = vec![cni.clone()];
    let decision = before(&gate, &node, &[]);
    assert!(decision.wants_pods && decision.state == State::Waiting, "{decision:?}");
    let with = |of: &DaemonSetRef, ready| {
        let pods = [DaemonPod { of: of.clone(), ready }];
        decide(&Observed { daemon_pods: Some(&pods), ..observed(&node, Ownership::Gated(&gate), &[]) })
    };
    assert!(with(&cni, false).wants_pods);
    assert!(with(&DaemonSetRef { name: "other".into(), ..cni.clone() }, true).wants_pods);
    let decision = with(&cni, true);
    assert_eq!((starts(&decision), decision.wants_pods), (Some(1), false));
}

/// The decision about an inconclusive worker that took so long, and its record.
fn inconclusive_for(minutes: i64, cause: InconclusiveReason, fleet: Fleet) -> (Decision, Record) {
    let (node, gate) = (node(), gate());
    let workers = [worker(1, Progress::Inconclusive(cause, "x".into()))];
    let elapsed = Duration::from_secs(minutes.unsigned_abs() * 60);
    let input = Observed { fleet, elapsed, ..observed(&node, Ownership::Gated(&gate), &workers) };
    let decision = decide(&input);
    let record = recorded(&decision).expect("a record").clone();
    (decision, record)
}

#[test]
fn a_node_without_a_verdict_is_stuck_after_the_deadline() {
    let (decision, record) = inconclusive_for(9, InconclusiveReason::NoReport, Fleet::default());
    assert_eq!((decision.state, record.elapsed_seconds), (State::Inconclusive, 540));
    let (decision, record) = inconclusive_for(10, InconclusiveReason::NoReport, Fleet::default());
    assert_eq!(decision.state, State::Stuck);
    assert!(
        decision
            .effects
            .iter()
            .any(|one| matches!(one, Effect::EmitEvent(event) if event.reason == "NodeVerificationStuck"))
    );
    let mut node = node();
    set_record(&mut node, &record);
    let decision = decided(&node, &[]);
    assert_eq!((decision.state, decision.recheck_in), (State::Stuck, Some(Duration::from_mins(5))));
    assert!(
        removes_taint(&decided(&node, &[reported(2, Outcome::Passed)])),
        "a node that recovers is verified"
    );
}

#[test]
fn the_deadline_is_paused_during_common_failures() {
    let (decision, record) = inconclusive_for(20, InconclusiveReason::ClusterDns, Fleet::default());
    assert_eq!((decision.state, record.elapsed_seconds), (State::Inconclusive, 0));
    let fleet = Fleet { cannot_run: true, ..Fleet::default() };
    let (decision, record) = inconclusive_for(20, InconclusiveReason::ImagePull, fleet);
    assert_eq!((decision.state, record.elapsed_seconds), (State::Inconclusive, 0));
    let mut failed = node();
    set_record(&mut failed, &Record { elapsed_seconds: 9_999, ..self::record(1, Verdict::Failed, now()) });
    assert_eq!(decided(&failed, &[]).state, State::Unverified, "a failed node is not stuck");
}

#[test]
fn the_node_condition_is_written_once_if_configured() {
    let (mut node, mut gate) = (node(), gate());
    set_record(&mut node, &record(1, Verdict::Failed, now()));
    assert_eq!(before(&gate, &node, &[]).effects, vec![]);
    gate.spec.node_condition = NodeCondition::NetworkVerified;
    let decision = before(&gate, &node, &[]);
    let [Effect::SetNodeCondition(update)] = decision.effects.as_slice() else { panic!("{decision:?}") };
    assert_eq!((update.status, update.reason), ("False", "ChecksFailed"));
    node.network_verified = Some(Box::new(("False".into(), "ChecksFailed".into())));
    assert_eq!(before(&gate, &node, &[]).effects, vec![]);
    set_record(&mut node, &record(2, Verdict::Passed, now()).opened("node-ready/verified"));
    node.labels.insert("node-ready/verified", "true");
    node.taints.clear();
    let decision = decide(&observed(&node, Ownership::Verified(&gate), &[]));
    let [Effect::SetNodeCondition(update)] = decision.effects.as_slice() else { panic!("{decision:?}") };
    assert_eq!((update.status, update.reason), ("True", "Verified"));
}

#[test]
fn the_node_condition_is_written_beside_events_that_are_repeated() {
    let (mut node, mut gate) = (node(), gate());
    gate.spec.node_condition = NodeCondition::NetworkVerified;
    let admitted = record(1, Verdict::Passed, now()).opened("node-ready/verified");
    set_record(&mut node, &Record { reverted: 9, ..admitted });
    let decision = before(&gate, &node, &[]);
    let effects = decision.effects.as_slice();
    let [Effect::EmitEvent(event), Effect::SetNodeCondition(update)] = effects else {
        panic!("{decision:?}")
    };
    assert_eq!((event.reason, update.status), (reasons::NODE_REVERTED, "Unknown"));
}

#[test]
fn f09_a_failed_node_stays_failed_after_inconclusive_workers() {
    let mut node = node();
    let failed = record(6, Verdict::Failed, now());
    let inconclusive = failed.after(result(7, failed.scope.clone(), Verdict::Inconclusive, now()));
    set_record(&mut node, &inconclusive);
    let decision = decided(&node, &[]);
    assert_eq!((decision.state, decision.recheck_in), (State::Failed, Some(Duration::from_mins(5))));
}

#[test]
fn an_image_pull_failure_is_recorded_before_the_pod_deadline() {
    let stuck = worker(1, Progress::Waiting(InconclusiveReason::ImagePull, "ErrImagePull".into()));
    let decision = decided(&node(), std::slice::from_ref(&stuck));
    assert_eq!(decision.recheck_in, Some(Duration::from_mins(1)));
    let decision = decided_at(&node(), &[stuck], now() + SignedDuration::from_secs(61));
    assert_eq!(recorded(&decision).and_then(|record| record.cause), Some(InconclusiveReason::ImagePull));
}

#[test]
fn a_custom_taint_of_a_deleted_gate_is_reported() {
    let mut gate = gate();
    gate.spec.taints = vec![GateTaint { key: "foreign".into(), ..GateTaint::default() }];
    let mut node = node();
    node.taints = vec![taint("foreign")];
    let decision = before(&gate, &node, &[reported(1, Outcome::Failed)]);
    set_record(&mut node, recorded(&decision).expect("a record"));
    assert_eq!(decide(&observed(&node, ownership([], &node), &[])).state, State::Unserved);
    node.taints.clear();
    assert_eq!(
        decide(&observed(&node, ownership([], &node), &[])).state,
        State::Ungated,
        "the taint was removed by a user"
    );
}

#[test]
fn a_record_at_the_number_limit_starts_no_worker() {
    let mut node = node();
    let forged =
        Record { uid: "uid-1".into(), number: crate::record::MAX_WORKER_NUMBER - 1, ..Record::default() };
    set_record(&mut node, &forged);
    let decision = decided(&node, &[]);
    assert_eq!((starts(&decision), decision.effects.len()), (None, 0));
    assert!(decision.why.contains("nodekeeper.dev/record"), "{}", decision.why);
}
