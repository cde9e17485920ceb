//! What the policy says about itself, and what becomes of history.

use super::*;
use crate::api::{BreakerState, History};

pub(super) fn housekept(policy: &Policy, requests: &[Remediation]) -> RemediationPolicyStatus {
    housekept_at(policy, requests, at(1))
}

pub(super) fn housekept_at(
    policy: &Policy,
    requests: &[Remediation],
    now: Timestamp,
) -> RemediationPolicyStatus {
    keep(policy, requests, &[], true, now)
}

pub(super) fn keep(
    policy: &Policy,
    requests: &[Remediation],
    compared: &[(String, String, Compared)],
    is_there: bool,
    now: Timestamp,
) -> RemediationPolicyStatus {
    let requests: Vec<&Remediation> = requests.iter().collect();
    let group_stats = GroupStats::default();
    let is_there = |_: &str| is_there;
    reconcile_policy_status(&PolicyInput {
        policy,
        requests: &requests,
        group_stats: &group_stats,
        is_there: &is_there,
        compared,
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
fn a_reservation_ends_when_its_act_does_and_only_then() {
    let mut policy = policy();
    policy.status.reservations = vec![reservation("x", at(0))];
    let ends = |requests: &[Remediation], is_there, minutes| {
        let kept = keep(&policy, requests, &[], is_there, at(minutes)).reservations;
        kept.first().map(|one| one.ended)
    };
    let pending = request("x", vec![cause(CauseSource::Person, at(0))]);
    assert_eq!(ends(std::slice::from_ref(&pending), true, 59), Some(None));
    assert_eq!(ends(std::slice::from_ref(&pending), false, 59), Some(None), "its request has to say so");
    assert_eq!(ends(&[ended("x", 5)], true, 6), Some(Some(at(6))));
    assert_eq!(ends(&[ended("x", -5)], true, 6), Some(None), "that was the end of an earlier act");
    assert_eq!(ends(&[], true, 59), Some(None), "whoever deletes the request does not end the act");
    assert_eq!(ends(&[], false, 59), Some(Some(at(59))), "but the node is gone with it");
    assert_eq!(ends(std::slice::from_ref(&pending), true, 119), Some(None));
    assert_eq!(ends(&[pending], true, 120), None, "no act takes two hours");
}

#[test]
fn a_reservation_is_kept_for_the_hour_that_the_budget_counts() {
    let mut policy = policy();
    policy.status.reservations = vec![Reservation { ended: Some(at(2)), ..reservation("x", at(0)) }];
    assert_eq!(housekept_at(&policy, &[], at(60) - SignedDuration::from_nanos(1)).reservations.len(), 1);
    assert_eq!(housekept_at(&policy, &[], at(60)).reservations.len(), 0);
}

#[test]
fn an_end_that_looks_like_the_last_one_is_an_end_of_its_own() {
    let mut again = ended("x", 0);
    assert!(again.is_history());
    again.spec.causes = vec![cause(CauseSource::Person, at(5))];
    assert!(!again.is_history(), "somebody asked again");
    again.status = again.status_with(vec![Finding::new("Succeeded", "False", "DrainTimedOut", "")], at(6));
    assert_eq!((again.finished(), again.is_history()), (Some(at(6)), true));
    let mut policy = policy();
    policy.status.reservations = vec![reservation("x", at(5))];
    assert_eq!(housekept_at(&policy, &[again.clone()], at(7)).reservations[0].ended, Some(at(7)));
    let later = again.status_with(vec![Finding::new("Succeeded", "False", "DrainTimedOut", "")], at(9));
    assert_eq!(later.conditions[0].last_transition_time, at(6).to_string(), "said twice, it ended once");
    again.spec.causes = vec![cause(CauseSource::Person, at(8))];
    assert_eq!(again.status_with(vec![], at(9)).conditions.len(), 1, "who says nothing ends nothing");
}

#[test]
fn a_replaced_node_is_not_replaced_twice_and_a_refused_one_may_be_asked_for_again() {
    let mut done = request("x", vec![cause(CauseSource::Person, at(60))]);
    done.status = done.status_with(vec![Finding::new("Succeeded", "True", "Replaced", "")], at(0));
    assert!(done.is_history(), "though a clock that is ahead asked later");
    done.status = done.status_with(vec![Finding::new("Succeeded", "False", "Paused", "")], at(0));
    assert!(done.is_history(), "and it was refused after that");
    done.spec.causes = vec![cause(CauseSource::Person, at(61))];
    assert!(!done.is_history());
}

#[test]
fn history_goes_when_it_is_old_or_too_much_and_never_inside_the_hour() {
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
    assert_eq!(prune(None, &[&ended("f", 0)], at(week)).len(), 1, "without a policy the defaults hold");
}

#[test]
fn the_policy_says_what_holds_and_keeps_its_times() {
    let mut policy = policy();
    let ready = |policy: &Policy| {
        let one = housekept(policy, &[])
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
    policy.status = housekept(&policy, &[]);
    let later = housekept_at(&policy, &[], at(5));
    assert_eq!(later.conditions[0].last_transition_time, at(1).to_string());
    let mut held = request("x", vec![cause(CauseSource::Gate, at(0))]);
    held.status =
        held.status_with(Blocked::new(BlockReason::FuseBlown, "replacements fail").findings(), at(0));
    let said = housekept(&policy, &[held]).conditions;
    let fuse = said.iter().find(|one| one.type_ == "FuseBlown").expect("it is there");
    assert_eq!((&*fuse.status, &*fuse.message), ("True", "replacements fail"));
}
