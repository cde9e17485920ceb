//! What a reconcile of a remediation does.

use super::*;
use crate::remediate::decision::{Decision, Effect, LiveState, RefusalBackoff, decide, decide_cached};

fn live(world: &World) -> LiveState {
    LiveState {
        policy: world.policy.clone(),
        gates: world.gates.clone(),
        target: world.target.clone(),
        pods: world.pods.clone(),
        replacement: world.replacement.clone(),
        missing_rights: world.missing_rights.clone(),
    }
}

fn decided(world: &World) -> Decision {
    let cluster = ClusterView {
        nodes: Vec::new(),
        gates: world.gates.iter().collect(),
        controls: Vec::new(),
        remediations: vec![&world.request],
        policy: world.policy.as_ref(),
        now: world.now,
        elapsed: Duration::ZERO,
    };
    let live = live(world);
    match decide_cached(&world.request, &cluster, &world.group_stats) {
        Some(decision) => decision,
        None => decide(&world.request, &cluster, &world.group_stats, &live, None),
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

/// A person's request, which needs no control group.
fn requested() -> World {
    World::with(|world| world.request = request("n1", vec![cause(CauseSource::Person, at(0))]))
}

/// The request is reserved, and does not say yet that it is approved.
fn reserved() -> World {
    let mut world = requested();
    let decision = decided(&world);
    let [Effect::ReserveAct(status)] = &decision.effects[..] else { panic!("{decision:?}") };
    world.policy().status = (**status).clone();
    world
}

/// The request says that it is approved.
fn approved() -> World {
    let mut world = reserved();
    let decision = decided(&world);
    let [Effect::UpdateStatus(status), Effect::EmitEvent(event)] = &decision.effects[..] else {
        panic!("{decision:?}")
    };
    assert_eq!(event.reason, "RemediationApproved");
    world.request.status = (**status).clone();
    world
}

/// The policy was created again, and its status is rebuilt.
fn rebuild_status(world: &mut World) {
    let request = world.request.clone();
    let policy = world.policy();
    policy.status = RemediationPolicyStatus::default();
    policy.status = policy::status_of(policy, &[request]);
}

fn is_harmless(decision: &Decision) -> bool {
    let is_harm =
        |effect: &Effect| matches!(effect, Effect::Cordon | Effect::EvictPods(_) | Effect::Replace(_));
    !decision.effects.iter().any(is_harm)
}

#[test]
fn r02_an_act_begins_after_its_reservation_and_its_approval() {
    let mut world = approved();
    let (reservation, request) =
        (&world.policy.as_ref().expect("one").status.reservations[0], &world.request);
    assert_eq!((&*reservation.uid, &*reservation.boot_id), ("request-n1", "boot-1"));
    assert_eq!((request.is_approved(), request.approved_at()), (true, Some(reservation.at)));
    let next = decided(&world);
    assert_eq!(next.effects.first(), Some(&Effect::Cordon), "{next:?}");
    world.target().unschedulable = true;
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
fn r02_after_a_crash_a_reservation_is_confirmed_or_released() {
    let stale = |decision: &Decision| {
        let [Effect::ReleaseAct(status), ..] = &decision.effects[..] else { panic!("{decision:?}") };
        assert_eq!(status.reservations, [], "nothing was done, so nothing counts");
        is_harmless(decision)
    };
    let mut world = reserved();
    world.policy().spec.pause = Some(Pause { reason: "sale".into(), until: at(60) });
    let paused = decided(&world);
    assert!(stale(&paused) && matches!(paused.effects[1], Effect::UpdateStatus(_)), "{paused:?}");
    let mut world = reserved();
    world.target().identity.boot_id = "boot-2".into();
    world.request.spec.node.boot_id = String::new();
    assert!(stale(&decided(&world)), "it was reserved for another boot");
    let mut world = reserved();
    world.now = at(3);
    assert!(stale(&decided(&world)), "its drain would have begun long ago");
}

#[test]
fn r02_a_request_that_is_not_approved_permits_nothing() {
    let mut world = approved();
    let blocked = Blocked::new(BlockReason::Paused, "a pause").findings();
    world.request.status = world.request.status_with(blocked, at(2));
    assert!(is_harmless(&decided(&world)), "its reservation is still in the policy's status");
    rebuild_status(&mut world);
    let rebuilt = &world.policy().status.reservations;
    assert!(rebuilt.len() == 1 && rebuilt[0].ended.is_some() && rebuilt[0].uid.is_empty(), "{rebuilt:?}");
    assert!(is_harmless(&decided(&world)));
    world.now = at(20);
    let expired = decided(&world);
    assert_eq!(expired.newly_blocked.map(|one| one.reason), Some(BlockReason::EvidenceExpired));
    // An approved one has to be approved again, too: what is rebuilt only counts.
    let mut world = approved();
    rebuild_status(&mut world);
    assert_eq!(world.policy().status.reservations[0].ended, None, "it may be in flight");
    let again = decided(&world);
    let [Effect::ReserveAct(status)] = &again.effects[..] else { panic!("{again:?}") };
    let in_flight = status.reservations.iter().filter(|one| one.ended.is_none());
    assert_eq!((status.reservations.len(), in_flight.count()), (2, 1), "both count for the hour");
}

#[test]
fn r10_what_is_being_deleted_is_not_decided_about_again() {
    let mut world = approved();
    world.target().unschedulable = true;
    world.replacement = Replacement::Karpenter(NodeClaimView { deleting: true, ..claim("c1") });
    world.request.status = updated(&decided(&world));
    rebuild_status(&mut world);
    world.now = at(20);
    let waits = decided(&world);
    assert_eq!((waits.effects.len(), waits.newly_blocked), (0, None), "its machine is being deleted");
    world.target = None;
    world.policy = None;
    let ended = decided(&world);
    assert_eq!(ended.act_ended, Some(true), "{ended:?}");
    world.request.status = updated(&ended);
    assert!(world.request.is_complete());
}

#[test]
fn r03_what_was_given_up_is_evaluated_again() {
    let mut world = requested();
    world.request = super::budget::given_up_and_requested_again();
    world.now = at(25);
    // The policy's status does not know yet that it was given up.
    world.policy().status.reservations = vec![reservation("n1", at(0))];
    let again = decided(&world);
    let [Effect::ReserveAct(status)] = &again.effects[..] else { panic!("{again:?}") };
    let times: Vec<_> = status.reservations.iter().map(|one| (one.at, one.ended.is_some())).collect();
    assert_eq!(times, [(at(0), true), (at(25), false)]);
}

#[test]
fn r05_a_request_that_was_made_again_inherits_nothing() {
    let mut world = approved();
    world.target().unschedulable = true;
    let approved_status = world.request.status.clone();
    world.request =
        Remediation { uid: "made-again".into(), ..request("n1", world.request.spec.causes.clone()) };
    let decision = decided(&world);
    assert!(is_harmless(&decision), "{decision:?}");
    assert_eq!(decision.newly_blocked.map(|one| one.reason), Some(BlockReason::BudgetSpent));
    world.request.status = approved_status;
    assert!(is_harmless(&decided(&world)), "even if somebody copied the status");
}

#[test]
fn r06_what_was_read_counts_and_not_what_is_cached() {
    let world = approved();
    let cached = world.policy.clone().expect("one");
    let gates = world.gates.clone();
    let cluster = ClusterView {
        nodes: Vec::new(),
        gates: gates.iter().collect(),
        controls: Vec::new(),
        remediations: vec![&world.request],
        policy: Some(&cached),
        now: world.now,
        elapsed: Duration::ZERO,
    };
    let with = |change: fn(&mut LiveState)| {
        let mut live = live(&world);
        change(&mut live);
        decide(&world.request, &cluster, &world.group_stats, &live, None)
    };
    assert!(!is_harmless(&with(|_| ())));
    assert!(is_harmless(&with(|live| live.policy = None)));
    let paused = with(|live| {
        if let Some(policy) = &mut live.policy {
            policy.spec.pause = Some(Pause { reason: "sale".into(), until: at(60) });
        }
    });
    assert!(is_harmless(&paused));
}

fn updated(decision: &Decision) -> NodeRemediationStatus {
    let status = decision.effects.iter().find_map(|effect| match effect {
        Effect::UpdateStatus(status) => Some((**status).clone()),
        _ => None,
    });
    status.unwrap_or_else(|| panic!("{decision:?}"))
}

fn events(decision: &Decision) -> Vec<&'static str> {
    let event = |effect: &Effect| match effect {
        Effect::EmitEvent(event) => Some(event.reason),
        _ => None,
    };
    decision.effects.iter().filter_map(event).collect()
}

#[test]
fn r10_a_deletion_that_does_not_end_is_reported_once() {
    let mut world = approved();
    world.target().terminating = true;
    world.now = at(90);
    let late = decided(&world);
    assert_eq!((events(&late), late.act_ended), (vec!["DeletionTimedOut"], None));
    world.request.status = updated(&late);
    let again = decided(&world);
    assert_eq!((again.effects.len(), again.requeue_after), (0, Some(Duration::from_mins(1))));
}

#[test]
fn r14_a_node_that_cannot_be_drained_leaves_the_budget_to_others() {
    let mut world = approved();
    world.pods = vec![pod("p")];
    world.target().unschedulable = true;
    world.now = at(17);
    let failed = decided(&world);
    assert_eq!((events(&failed), failed.act_ended), (vec!["RemediationGivenUp"], Some(false)));
    world.request.status = updated(&failed);
    let backoff = world.request.status.backoff.clone().expect("it failed because of the node");
    assert_eq!((backoff.failures, &*backoff.reason, backoff.until), (1, "DrainTimedOut", at(77)));
    world.policy().status =
        policy::status_at(world.policy.as_ref().expect("one"), &[world.request.clone()], at(17));
    // The hour of the budget is over, and the node is requested again.
    world.request.spec.causes = vec![cause(CauseSource::Person, at(70))];
    world.now = at(70);
    let blocked = decided(&world);
    assert_eq!(blocked.newly_blocked.map(|one| one.reason), Some(BlockReason::BackOff));
    world.now = at(77);
    assert!(matches!(decided(&world).effects[..], [Effect::ReserveAct(_)]));
    let mut stopped = approved();
    stopped.policy().spec.enforcement = ActEnforcement::DryRun;
    assert_eq!(updated(&decided(&stopped)).backoff, None, "nothing is wrong with the node");
}

#[test]
fn refused_evictions_back_off() {
    let mut backoff = RefusalBackoff::default();
    let waits: Vec<u64> = (0..6).map(|_| backoff.refused("budget".into()).as_secs()).collect();
    assert_eq!(waits, [5, 10, 20, 40, 60, 60]);
}

#[test]
fn a_refreshed_cause_replaces_its_predecessor() {
    let known = request("n1", vec![cause(CauseSource::Gate, at(0)), cause(CauseSource::Person, at(0))]);
    let merged = known.causes_with(&cause(CauseSource::Gate, at(5)), &known.spec.node.boot_id);
    let sources: Vec<_> = merged.iter().map(|one| (one.source, one.observed_at)).collect();
    assert_eq!(sources, [(CauseSource::Gate, Some(at(5))), (CauseSource::Person, Some(at(0)))]);
}

#[test]
fn causes_of_an_earlier_boot_are_dropped() {
    let known = request("n1", vec![cause(CauseSource::Person, at(0))]);
    let merged = known.causes_with(&cause(CauseSource::Gate, at(5)), "boot-2");
    assert_eq!(merged.iter().map(|one| one.source).collect::<Vec<_>>(), [CauseSource::Gate]);
}

#[test]
fn a_block_with_another_message_is_written_but_not_reported_again() {
    let mut world = requested();
    world.policy().spec.enforcement = ActEnforcement::DryRun;
    world.replacement = Replacement::None;
    let message = |status: &NodeRemediationStatus| {
        let approved = status.conditions.iter().find(|one| one.type_ == "Approved").expect("it is written");
        (approved.reason.clone(), approved.message.clone())
    };
    let first = decided(&world);
    world.request.status = updated(&first);
    assert!(message(&world.request.status).1.contains("NoProvider"), "{first:?}");
    assert_eq!(decided(&world).effects, vec![]);
    world.replacement = Replacement::Karpenter(claim("c1"));
    let second = decided(&world);
    assert_eq!((second.effects.len(), &second.newly_blocked), (1, &None), "{second:?}");
    let (reason, message) = message(&updated(&second));
    assert!(reason == "DryRun" && message.contains("would be compared"), "{message}");
}

#[test]
fn the_end_is_recorded_before_the_node_is_uncordoned() {
    let mut world = approved();
    world.target().unschedulable = true;
    world.target().cordoned_for = Some(world.request.name.clone());
    world.policy().spec.enforcement = ActEnforcement::DryRun;
    let end = decided(&world);
    let order: Vec<_> = end.effects.iter().map(|effect| matches!(effect, Effect::UpdateStatus(_))).collect();
    assert!(order.starts_with(&[true, false]) && end.effects[1] == Effect::Uncordon, "{end:?}");
    world.request.status = updated(&end);
    world.policy().spec.enforcement = ActEnforcement::Enforce;
    assert_eq!(
        decided(&world).effects,
        [Effect::Uncordon],
        "the cordon was refused to be removed, and nothing is resumed"
    );
}

#[test]
fn a_request_for_a_node_that_is_gone_ends_whatever_blocks_all_others() {
    let mut world = requested();
    world.policy().spec.budget.max_per_hour = 0;
    world.target = None;
    let ended = decided(&world);
    assert_eq!(ended.newly_blocked.as_ref().map(|one| one.reason), Some(BlockReason::NodeGone));
    world.request.status = updated(&ended);
    assert!(world.request.is_complete());
}
