//! Nodes that agents verify.

use super::verified::verified;
use super::*;
use crate::api::{DaemonSetRef, Enforcement, FailureAction, Mode};
use crate::checks::Exec;

const NOW: Duration = Duration::from_secs(100);

fn decided_for(node: &NodeView, gate: &GateView, agent: AgentPod) -> Decision {
    decide(&Observed { agent, elapsed: NOW, ..observed(node, ownership([gate], node), &[]) })
}

fn passed(node: &NodeView, gate: &GateView, number: u32) -> WorkerView {
    let identity = super::super::identity(node, gate, number);
    let checks = vec![CheckResult::new("dns", "kubernetes.", Outcome::Passed, "", "")];
    let progress = Progress::Reported(Report::judge(identity.clone(), checks, 5));
    WorkerView { identity, ..worker(number, progress) }
}

#[test]
fn a_node_with_a_ready_agent_gets_no_worker() {
    for enforcement in [Enforcement::Enforce, Enforcement::Audit, Enforcement::DryRun] {
        let mut gate = gate();
        gate.spec.enforcement = enforcement;
        let decision = decided_for(&node(), &gate, AgentPod::Ready);
        assert_eq!(starts(&decision), None, "{decision:?}");
        assert!(decision.why.contains("agent"), "{}", decision.why);
    }
    assert_eq!(starts(&decided_for(&node(), &gate(), AgentPod::NotExpected)), Some(1));
}

#[test]
fn a_node_whose_agent_is_missing_gets_a_worker_after_a_minute() {
    let since = |seconds| AgentPod::MissingSince(NOW.saturating_sub(Duration::from_secs(seconds)));
    let decision = decided_for(&node(), &gate(), since(45));
    assert_eq!((starts(&decision), decision.recheck_in), (None, Some(Duration::from_secs(15))));
    assert_eq!(starts(&decided_for(&node(), &gate(), since(60))), Some(1));
}

#[test]
fn a_verified_node_with_a_ready_agent_is_not_verified_twice() {
    let (node, mut gate) = verified();
    gate.spec.mode = Mode::Continuous;
    let later = |agent| {
        let later = SignedDuration::from_hours(24);
        let elapsed = Duration::try_from(later).expect("a duration");
        let observed = observed(&node, ownership([&gate], &node), &[]);
        decide(&Observed { agent, now: now() + later, elapsed, ..observed })
    };
    assert_eq!(starts(&later(AgentPod::Ready)), None);
    assert_eq!(starts(&later(AgentPod::NotExpected)), Some(2));
}

#[test]
fn what_only_a_worker_pod_can_do_is_left_to_worker_pods() {
    let with = |change: fn(&mut NodeGateSpec)| {
        let mut gate = gate();
        change(&mut gate.spec);
        let needs = needs_worker_pod(&gate.spec);
        // The controller does not wait for an agent that cannot verify the node.
        let mut node = node();
        node.taints.push(taint("x"));
        let decision = decided_for(&node, &gate, AgentPod::Ready);
        (needs, starts(&decision).is_some() || decision.wants_pods)
    };
    assert_eq!(with(|_| {}), (None, false));
    let exec: fn(&mut NodeGateSpec) = |spec| {
        let exec = serde_json::json!({"name": "gpu", "image": "example.com/gpu:1"});
        spec.checks.exec = vec![serde_json::from_value::<Exec>(exec).expect("a check")];
    };
    assert_eq!(with(exec), (Some("spec.checks.exec"), true));
    let daemon_sets: fn(&mut NodeGateSpec) = |spec| {
        spec.wait_for.daemon_sets =
            vec![DaemonSetRef { namespace: "kube-system".into(), name: "cni".into() }];
    };
    assert_eq!(with(daemon_sets), (Some("spec.waitFor.daemonSets"), true));
}

#[test]
fn an_agent_enforces_the_gate_at_its_own_interval_and_replaces_nothing() {
    let mut spec = gate().spec;
    (spec.on_failure, spec.on_stuck) = (FailureAction::Replace, FailureAction::Replace);
    let timing = AgentTiming { mode: Mode::Continuous, interval: Duration::from_mins(1) };
    let own = of_agent(&spec, timing);
    assert_eq!(
        (own.mode, own.continuous.period_seconds, own.retry.recheck_period_seconds),
        (timing.mode, 60, 60)
    );
    assert_eq!((own.on_failure, own.on_stuck), (FailureAction::KeepTainted, FailureAction::KeepTainted));
    assert_eq!((own.retry.max_retries, &own.taints), (spec.retry.max_retries, &spec.taints));
}

#[test]
fn a_pass_that_changes_nothing_confirms_the_record() {
    let (node, gate) = verified();
    let confirmed = |node: &NodeView| confirms(node, &gate, &[&gate], &passed(node, &gate, 2));
    assert!(confirmed(&node));
    assert!(!confirms(&node, &gate, &[&gate], &reported(2, Outcome::Failed)));
    let mut changed = node.clone();
    changed.taints.push(taint("node-ready/unverified"));
    assert!(!confirmed(&changed), "it is tainted again");
    let mut changed = node.clone();
    changed.labels = Labels::default();
    assert!(!confirmed(&changed), "the label has to come back");
    let mut changed = node.clone();
    changed.boot_id = "boot-2".into();
    assert!(!confirmed(&changed), "the record is about another boot");
    let mut changed = node.clone();
    changed.verify = Some("now".into());
    assert!(!confirmed(&changed), "a user asked for it");
    let mut changed = node.clone();
    set_record(&mut changed, &record(2, Verdict::Failed, now()).opened("node-ready/verified"));
    assert!(!confirmed(&changed), "it recovered");
    let other = GateView { generation: 4, ..gate.clone() };
    assert!(!confirms(&node, &other, &[&other], &passed(&node, &other, 2)), "the gate was changed");
}

#[test]
fn a_confirmed_record_is_confirmed_again_after_the_interval() {
    let (node, mut gate) = verified();
    let timing = AgentTiming { mode: Mode::Continuous, interval: Duration::from_mins(1) };
    gate.spec = of_agent(&gate.spec, timing);
    let at = |seconds: u64, confirmed_at: Option<u64>| {
        let elapsed = Duration::from_secs(seconds);
        let now = now() + SignedDuration::try_from(elapsed).expect("a duration");
        let confirmed_at = confirmed_at.map(Duration::from_secs);
        decide(&Observed { confirmed_at, now, elapsed, ..observed(&node, ownership([&gate], &node), &[]) })
    };
    assert_eq!(starts(&at(29, None)), None);
    assert_eq!(starts(&at(1000, None)), Some(2));
    let waits = at(1000, Some(970));
    assert_eq!(starts(&waits), None);
    let left = waits.recheck_in.expect("it is due again").as_secs();
    assert!((29..=42).contains(&left), "{left}");
    let again = at(1000, Some(920));
    assert_eq!((starts(&again), again.periodic), (Some(2), true));
}
