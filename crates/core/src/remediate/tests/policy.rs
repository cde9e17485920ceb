//! The policy's status and the history.

use super::*;
use crate::api::{BreakerState, History};

pub(super) fn status_of(policy: &Policy, requests: &[Remediation]) -> RemediationPolicyStatus {
    status_at(policy, requests, at(1))
}

pub(super) fn status_at(
    policy: &Policy,
    requests: &[Remediation],
    now: Timestamp,
) -> RemediationPolicyStatus {
    keep(policy, requests, &[], NodeProgress::InReplacement, now)
}

pub(super) fn keep(
    policy: &Policy,
    requests: &[Remediation],
    compared: &[(String, String, ControlGroupResult)],
    progress: NodeProgress,
    now: Timestamp,
) -> RemediationPolicyStatus {
    let requests: Vec<&Remediation> = requests.iter().collect();
    let group_stats = GroupStats::default();
    let progress = |_: &str| progress;
    reconcile_policy_status(&PolicyInput {
        policy,
        requests: &requests,
        group_stats: &group_stats,
        progress: &progress,
        compared,
        found: PolicyFindings::default(),
        now,
    })
}

fn ended(uid: &str, minutes: i64) -> Remediation {
    let mut request = request(uid, vec![cause(CauseSource::Person, at(minutes))]);
    request.status =
        request.status_with(vec![Finding::new("Succeeded", "False", "DrainTimedOut", "")], at(minutes));
    request
}

#[test]
fn a_reservation_ends_with_its_remediation() {
    let mut policy = policy();
    policy.status.reservations = vec![reservation("x", at(0))];
    let (stays, gone) = (NodeProgress::InReplacement, NodeProgress::Gone);
    let ends = |requests: &[Remediation], progress, minutes| {
        let kept = keep(&policy, requests, &[], progress, at(minutes)).reservations;
        kept.first().map(|one| one.ended)
    };
    let pending = request("x", vec![cause(CauseSource::Person, at(0))]);
    assert_eq!(ends(std::slice::from_ref(&pending), stays, 59), Some(None));
    assert_eq!(ends(std::slice::from_ref(&pending), gone, 59), Some(None), "its request has to say so");
    assert_eq!(ends(&[ended("x", 5)], stays, 6), Some(Some(at(6))));
    assert_eq!(ends(&[ended("x", -5)], stays, 6), Some(None), "that was the end of an earlier remediation");
    assert_eq!(ends(&[], stays, 59), Some(None), "a deleted NodeRemediation has not ended");
    assert_eq!(ends(&[], NodeProgress::Untouched, 59), Some(Some(at(59))), "unless nothing is left of it");
    assert_eq!(ends(&[], gone, 59), Some(Some(at(59))), "or the node is gone with it");
    assert_eq!(ends(std::slice::from_ref(&pending), stays, 119), Some(None));
    assert_eq!(ends(&[pending], stays, 120), None, "no remediation takes two hours");
}

#[test]
fn r10_a_node_that_is_being_deleted_stays_in_flight() {
    let mut policy = policy();
    policy.status.reservations = vec![reservation("x", at(0))];
    let in_flight = |policy: &Policy, requests: &[Remediation], progress| {
        let kept = keep(policy, requests, &[], progress, at(600)).reservations;
        kept.iter().any(|one| one.ended.is_none())
    };
    let mut waits = request("x", vec![cause(CauseSource::Person, at(0))]);
    waits.status = waits.approved_status(&reservation("x", at(0)), at(0));
    assert!(!in_flight(&policy, &[waits.clone()], NodeProgress::InReplacement), "two hours are the limit");
    assert!(in_flight(&policy, &[waits.clone()], NodeProgress::Terminating));
    assert!(in_flight(&policy, &[], NodeProgress::Terminating), "though its NodeRemediation was deleted");
    let replaced = vec![Finding::new("Replaced", "True", "Requested", "")];
    waits.status = waits.status_with(replaced, at(1));
    let progress = NodeProgress::InReplacement;
    assert!(in_flight(&policy, &[waits.clone()], progress), "its NodeClaim is being deleted");
    policy.status.reservations.clear();
    assert!(in_flight(&policy, &[waits], progress), "though the policy's status was lost");
}

#[test]
fn a_reservation_is_kept_for_an_hour() {
    let mut policy = policy();
    policy.status.reservations = vec![Reservation { ended: Some(at(2)), ..reservation("x", at(0)) }];
    assert_eq!(status_at(&policy, &[], at(60) - SignedDuration::from_nanos(1)).reservations.len(), 1);
    assert_eq!(status_at(&policy, &[], at(60)).reservations.len(), 0);
}

#[test]
fn a_second_end_gets_its_own_time() {
    let mut again = ended("x", 0);
    assert!(again.is_complete());
    again.spec.causes = vec![cause(CauseSource::Person, at(5))];
    assert!(!again.is_complete(), "it was requested again");
    again.status = again.status_with(vec![Finding::new("Succeeded", "False", "DrainTimedOut", "")], at(6));
    assert_eq!((again.finished_at(), again.is_complete()), (Some(at(6)), true));
    let mut policy = policy();
    policy.status.reservations = vec![reservation("x", at(5))];
    assert_eq!(status_at(&policy, &[again.clone()], at(7)).reservations[0].ended, Some(at(7)));
    let later = again.status_with(vec![Finding::new("Succeeded", "False", "DrainTimedOut", "")], at(9));
    assert_eq!(later.conditions[0].last_transition_time, at(6).to_string(), "said twice, it ended once");
    again.spec.causes = vec![cause(CauseSource::Person, at(8))];
    assert_eq!(again.status_with(vec![], at(9)).conditions.len(), 1, "who says nothing ends nothing");
}

#[test]
fn only_a_failed_remediation_can_be_requested_again() {
    let mut done = request("x", vec![cause(CauseSource::Person, at(60))]);
    done.status = done.status_with(vec![Finding::new("Succeeded", "True", "Replaced", "")], at(0));
    assert!(done.is_complete(), "though a clock that is ahead asked later");
    done.status = done.status_with(vec![Finding::new("Succeeded", "False", "Paused", "")], at(0));
    assert!(done.is_complete(), "and it was refused after that");
    done.spec.causes = vec![cause(CauseSource::Person, at(61))];
    assert!(!done.is_complete());
}

#[test]
fn history_is_pruned_by_age_and_count() {
    let mut policy = policy();
    policy.spec.history = History { ttl_seconds: 7 * 86_400, max_count: 500 };
    let week = 7 * 24 * 60;
    let pruned = |policy: &Policy, requests: &[Remediation], now| {
        let requests: Vec<&Remediation> = requests.iter().collect();
        prune(Some(policy), &requests, now).iter().map(|one| one.name.clone()).collect::<Vec<_>>()
    };
    let all = [ended("a", 0), ended("b", 1), request("c", vec![cause(CauseSource::Person, at(0))])];
    assert_eq!(pruned(&policy, &all, at(week) - SignedDuration::from_secs(1)), [""; 0]);
    assert_eq!(pruned(&policy, &all, at(week)), ["a"]);
    policy.spec.history.max_count = 1;
    assert_eq!(pruned(&policy, &all, at(100)), ["a"], "the oldest goes first, what goes on stays");
    policy.spec.history.max_count = 0;
    let mut approved = ended("d", 30);
    approved.status.approved_at = Some(at(0));
    let all = [approved, ended("e", 30)];
    assert_eq!(pruned(&policy, &all, at(59)), ["e"], "the budget counts by it");
    assert_eq!(pruned(&policy, &all, at(60)), ["d", "e"]);
    policy.status.reservations = vec![reservation("e", at(0))];
    assert_eq!(pruned(&policy, &all, at(60)), ["d"], "it is reserved");
    assert_eq!(prune(None, &[&ended("f", 0)], at(week)).len(), 1, "without a policy the defaults reason");
}

#[test]
fn the_policy_reports_why_it_is_not_ready() {
    let mut policy = policy();
    let ready = |policy: &Policy| {
        let one = status_of(policy, &[])
            .conditions
            .into_iter()
            .find(|one| one.type_ == "Ready")
            .expect("it is there");
        (one.status, one.reason)
    };
    let is = |status: &str, reason: &str| (status.to_owned(), reason.to_owned());
    assert_eq!(ready(&policy), is("True", "Enforcing"));
    policy.status.cooldown_until = Some(at(9));
    assert_eq!(ready(&policy), is("False", "Recovering"));
    policy.status.breaker = BreakerState { open: true, below_threshold_since: Some(at(0)) };
    assert_eq!(ready(&policy), is("False", "BreakerOpen"));
    policy.spec.pause = Some(Pause { reason: "sale".into(), until: at(9) });
    assert_eq!(ready(&policy), is("False", "Paused"));
    policy.spec.enforcement = ActEnforcement::DryRun;
    assert_eq!(ready(&policy), is("False", "DryRun"));
    policy.status = status_of(&policy, &[]);
    let later = status_at(&policy, &[], at(5));
    assert_eq!(later.conditions[0].last_transition_time, at(1).to_string());
    let mut blocked = request("x", vec![cause(CauseSource::Gate, at(0))]);
    blocked.status =
        blocked.status_with(Blocked::new(BlockReason::FuseBlown, "replacements fail").findings(), at(0));
    let said = status_of(&policy, &[blocked]).conditions;
    let fuse = said.iter().find(|one| one.type_ == "FuseBlown").expect("it is there");
    assert_eq!((&*fuse.status, &*fuse.message), ("True", "replacements fail"));
}

fn paused(policy: &Policy, now: Timestamp) -> (String, String) {
    let conditions = status_at(policy, &[], now).conditions;
    let paused = conditions.into_iter().find(|one| one.type_ == "Paused").expect("it is there");
    (paused.status, paused.reason)
}

#[test]
fn a_pause_by_annotation_blocks_until_its_end() {
    let is = |status: &str, reason: &str| (status.to_owned(), reason.to_owned());
    let mut world = World::by_person();
    assert_eq!(paused(world.policy(), at(1)), is("False", "NotPaused"));
    world.policy().annotations.pause_until = Some(at(5).to_string());
    world.policy().annotations.pause_reason = Some("network change".into());
    let blocked = world.blocked();
    assert_eq!(
        (blocked.reason, blocked.requeue_after),
        (BlockReason::Paused, Some(Duration::from_mins(4))),
        "{blocked:?}"
    );
    assert!(blocked.message.contains("nodekeeper.dev/pause-until"), "{}", blocked.message);
    assert!(blocked.message.contains("network change"), "{}", blocked.message);
    assert_eq!(paused(world.policy(), at(4)), is("True", "PausedByAnnotation"));
    assert_eq!(paused(world.policy(), at(5)), is("False", "NotPaused"));
    world.policy().spec.pause = Some(Pause { reason: "sale".into(), until: at(9) });
    assert_eq!(paused(world.policy(), at(4)), is("True", "PausedBySpec"), "the later end counts");
    assert_eq!(paused(world.policy(), at(9)), is("False", "NotPaused"));
}

#[test]
fn an_annotation_that_cannot_be_read_pauses_and_is_reported() {
    let mut world = World::by_person();
    world.policy().annotations.pause_until = Some("tomorrow".into());
    let blocked = world.blocked();
    assert_eq!(blocked.reason, BlockReason::Paused);
    assert!(blocked.message.contains("'tomorrow'") && blocked.message.contains("2030-01-31T18:00:00Z"));
    assert_eq!(paused(world.policy(), at(1)), ("True".to_owned(), "InvalidAnnotation".to_owned()));
    let mut policy = policy();
    for value in ["", "*", "pool/dns", "2026-11-16T12:00:00Z", "pool@2026-11-16T12:00:00Z", "*@now"] {
        policy.annotations.reset_fuse = Some(value.into());
        let ready = status_of(&policy, &[]).conditions.remove(0);
        assert_eq!((&*ready.type_, &*ready.reason), ("Ready", "InvalidAnnotation"), "{value}");
        assert!(ready.message.contains("nodekeeper.dev/reset-fuse"), "{}", ready.message);
    }
}

#[test]
fn annotations_are_read_from_the_policy_and_change_decisions() {
    let object = |annotations: serde_json::Value| {
        let json = serde_json::json!({"apiVersion": "nodekeeper.dev/v1alpha1", "kind": "RemediationPolicy",
            "metadata": {"name": "default", "annotations": annotations}, "spec": {}});
        Policy::new(&serde_json::from_value(json).expect("a policy")).expect("it is named default")
    };
    let policy =
        object(serde_json::json!({"nodekeeper.dev/pause-until": "a", "nodekeeper.dev/pause-reason": "b",
        "nodekeeper.dev/reset-fuse": "c", "nodekeeper.dev/last-applied": "d"}));
    let some = |text: &str| Some(text.to_owned());
    let expected = PolicyAnnotations {
        pause_until: some("a"),
        pause_reason: some("b"),
        reset_fuse: some("c"),
        last_applied: some("d"),
    };
    assert_eq!(policy.annotations, expected);
    assert_ne!(policy.decision_state(), object(serde_json::json!({})).decision_state());
}

#[test]
fn times_in_a_status_are_whole_seconds_and_rounded_up() {
    let late = at(1) + SignedDuration::from_millis(300);
    let second = at(1) + SignedDuration::from_secs(1);
    let world = World::with(|world| world.now = late);
    let approved = world.approved();
    assert_eq!(approved.reservations[0].at, second);
    assert_eq!(approved.fuses[0].generations, [at(1)], "creation times of nodes are rounded down");
    let mut request = request("x", vec![cause(CauseSource::Person, late)]);
    request.status = request.status_with(vec![Finding::new("Succeeded", "False", "Paused", "")], at(0));
    assert_eq!(request.finished_at(), Some(second), "not before the observation");
    assert!(request.is_complete());
    let status = status_at(&policy(), &[], late);
    assert!(status.conditions.iter().all(|one| one.last_transition_time == second.to_string()));
}
