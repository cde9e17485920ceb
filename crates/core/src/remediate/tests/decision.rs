//! What a reconcile of a remediation does.

use super::*;
use crate::remediate::decision::{Decision, Effect, EvictionBackoff, LiveState, decide, decide_cached};

fn live(world: &World) -> LiveState {
    LiveState {
        target: world.target.clone(),
        pods: world.pods.clone(),
        replacement: world.replacement.clone(),
    }
}

fn decided(world: &World) -> Decision {
    let cluster = ClusterView {
        nodes: Vec::new(),
        gates: Vec::new(),
        controls: Vec::new(),
        remediations: vec![&world.request],
        policy: world.policy.as_ref(),
        now: world.now,
        elapsed: Duration::ZERO,
    };
    match decide_cached(&world.request, &cluster, &world.group_stats) {
        Some(decision) => decision,
        None => decide(&world.request, &cluster, &world.group_stats, &live(world), None),
    }
}

#[test]
fn a_block_is_written_and_reported_once() {
    let mut world = World::with(|world| world.policy = None);
    let decision = decided(&world);
    let [Effect::UpdateStatus(status), Effect::EmitEvent(event)] = &decision.effects[..] else {
        panic!("{decision:?}")
    };
    assert_eq!(event.reason, "RemediationBlocked");
    assert_eq!(decision.newly_blocked.map(|blocked| blocked.reason), Some(BlockReason::DryRun));
    world.request.status = (**status).clone();
    let again = decided(&world);
    assert_eq!((again.effects.len(), again.newly_blocked), (0, None));
}

#[test]
fn an_act_begins_with_its_reservation_and_nothing_else() {
    let mut world = World::with(|world| {
        // A person's request needs no control group.
        world.request = request("n1", vec![cause(CauseSource::Person, at(0))]);
    });
    let decision = decided(&world);
    let [Effect::ReserveAct(status), Effect::EmitEvent(_)] = &decision.effects[..] else {
        panic!("{decision:?}")
    };
    if let Some(policy) = &mut world.policy {
        policy.status = (**status).clone();
    }
    let next = decided(&world);
    assert_eq!(next.effects.first(), Some(&Effect::Cordon), "{next:?}");
    if let Some(target) = &mut world.target {
        target.unschedulable = true;
    }
    let replaced = decided(&world);
    assert!(matches!(
        replaced.effects[..],
        [Effect::Replace(_), Effect::EmitEvent(_), Effect::UpdateStatus(_)]
    ));
    world.target = None;
    let ended = decided(&world);
    assert_eq!((ended.effects.len(), ended.act_ended), (1, Some(true)), "{ended:?}");
}

#[test]
fn refused_evictions_back_off() {
    let mut backoff = EvictionBackoff::default();
    let waits: Vec<u64> = (0..6).map(|_| backoff.refused("budget".into()).as_secs()).collect();
    assert_eq!(waits, [5, 10, 20, 40, 60, 60]);
}

#[test]
fn a_refreshed_cause_replaces_its_predecessor() {
    let known = request("n1", vec![cause(CauseSource::Gate, at(0)), cause(CauseSource::Person, at(0))]);
    let merged = known.causes_with(&cause(CauseSource::Gate, at(5)));
    let sources: Vec<_> = merged.iter().map(|one| (one.source, one.observed_at)).collect();
    assert_eq!(sources, [(CauseSource::Gate, Some(at(5))), (CauseSource::Person, Some(at(0)))]);
}
