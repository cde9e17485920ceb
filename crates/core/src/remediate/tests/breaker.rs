//! The breaker.

use super::*;
use crate::api::{Breaker, BreakerState};
use crate::remediate::breaker::next_state;

fn verdicts(failed: u32, all: u32) -> VerdictCounts {
    VerdictCounts { total: all, failed }
}

fn open(below_threshold_since: Option<Timestamp>) -> BreakerState {
    BreakerState { open: true, below_threshold_since }
}

#[test]
fn the_breaker_opens_above_its_threshold() {
    let closed = BreakerState::default();
    for (failed, all, opens) in [
        (4, 4, false),
        (1, 5, false),
        (2, 5, true),
        (3, 10, false),
        (4, 10, true),
        (31, 100, true),
        (30, 100, false),
    ] {
        let is = next_state(&Breaker::default(), &closed, verdicts(failed, all), at(0));
        assert_eq!(is.open, opens, "{failed} of {all}");
        let world = World::with(|world| world.group_stats.verdicts = verdicts(failed, all));
        assert_eq!(
            world.block_reason() == Some(BlockReason::BreakerOpen),
            opens,
            "also before it is written: {failed} of {all}"
        );
    }
}

#[test]
fn the_breaker_closes_after_its_time_below_the_threshold() {
    let spec = Breaker::default();
    // Between the two shares it stays as it is.
    assert_eq!(next_state(&spec, &open(None), verdicts(2, 10), at(0)), open(None));
    assert_eq!(next_state(&spec, &BreakerState::default(), verdicts(2, 10), at(0)), BreakerState::default());
    let calm = next_state(&spec, &open(None), verdicts(1, 10), at(0));
    assert_eq!(calm, open(Some(at(0))), "no more than a tenth is calm");
    let almost = at(10) - SignedDuration::from_secs(1);
    assert_eq!(next_state(&spec, &calm, verdicts(1, 10), almost), open(Some(at(0))));
    assert_eq!(next_state(&spec, &calm, verdicts(1, 10), at(10)), BreakerState::default());
    assert_eq!(
        next_state(&spec, &calm, verdicts(0, 0), at(10)),
        BreakerState::default(),
        "no node fails any more"
    );
    let blocked = World::with(|world| world.policy().status.breaker = open(Some(at(0)))).block_reason();
    assert_eq!(blocked, Some(BlockReason::BreakerOpen), "until it is closed, few failures do not matter");
}

#[test]
fn flapping_does_not_close_the_breaker() {
    let mut breaker = open(None);
    for minute in 0..120 {
        let failed = if minute % 9 == 8 { 2 } else { 0 };
        breaker = next_state(&Breaker::default(), &breaker, verdicts(failed, 10), at(minute));
        assert!(breaker.open, "minute {minute}");
    }
}

#[test]
fn at_100_percent_the_breaker_never_opens() {
    let spec = Breaker { open_percent: 100, ..Breaker::default() };
    assert!(!next_state(&spec, &BreakerState::default(), verdicts(50, 50), at(0)).open);
    let world = World::with(|world| {
        world.policy().spec.breaker = spec;
        world.group_stats.verdicts = verdicts(50, 50);
    });
    assert_eq!(world.block_reason(), None);
}

/// The condition `BreakerOpen` of a policy with these verdicts.
fn condition(policy: &Policy, verdicts: VerdictCounts) -> (String, String) {
    let group_stats = GroupStats { verdicts, ..GroupStats::default() };
    let status = reconcile_policy_status(&PolicyInput {
        policy,
        requests: &[],
        group_stats: &group_stats,
        progress: &|_| NodeProgress::Gone,
        compared: &[],
        found: PolicyFindings::default(),
        now: at(0),
    });
    let one = status.conditions.into_iter().find(|one| one.type_ == "BreakerOpen").expect("it is there");
    (one.status, one.message)
}

#[test]
fn r19_a_few_hopeless_nodes_do_not_block_for_ever() {
    let mut policy = policy();
    policy.status.breaker = open(None);
    let (status, message) = condition(&policy, verdicts(5, 5));
    assert_eq!(status, "True");
    for word in ["5 of 5", "`spec.breaker.minVerdicts`", "more than 5", "delete them by hand"] {
        assert!(message.contains(word), "{message}");
    }
    // The ways out that the message names work.
    let raised = Breaker { min_verdicts: 6, ..Breaker::default() };
    let below = next_state(&raised, &open(None), verdicts(5, 5), at(0));
    assert_eq!(below, open(Some(at(0))));
    assert_eq!(next_state(&raised, &below, verdicts(5, 5), at(10)), BreakerState::default());
    let fewer = next_state(&Breaker::default(), &open(None), verdicts(4, 4), at(0));
    assert_eq!(fewer, open(Some(at(0))), "one of them was deleted by hand");
    let off = Breaker { open_percent: 100, ..Breaker::default() };
    assert_eq!(next_state(&off, &open(None), verdicts(5, 5), at(0)), BreakerState::default());
    policy.status.breaker = below;
    policy.spec.breaker = raised;
    assert_eq!(
        condition(&policy, verdicts(5, 5)).1,
        "few enough nodes fail: remediation is blocked until 2026-11-16T12:10:00Z"
    );
}
