//! The pause after attempts that failed because of the node.

use super::*;
use crate::api::RemediationBackoff;
use crate::remediate::backoff::after_failure;

pub(super) fn paused_until(until: Timestamp) -> RemediationBackoff {
    RemediationBackoff { failures: 2, reason: "DrainTimedOut".into(), until }
}

#[test]
fn r14_the_pause_grows_with_each_failure_up_to_a_day() {
    let (mut now, mut backoff, mut hours) = (at(0), None, Vec::new());
    for _ in 0..7 {
        backoff = after_failure(backoff.as_ref(), "DrainTimedOut", now);
        let until = backoff.as_ref().expect("it failed").until;
        hours.push(until.duration_since(now).as_hours());
        now = until;
    }
    assert_eq!(hours, [1, 2, 4, 8, 16, 24, 24]);
    let kept = after_failure(backoff.as_ref(), "Paused", now);
    assert_eq!(kept, backoff, "that the policy stopped it is not the node's fault");
    assert_eq!(after_failure(None, "NodeRebooted", now), None);
    let long_after = after_failure(backoff.as_ref(), "PodStuck", now + SignedDuration::from_hours(24));
    assert_eq!(long_after.map(|one| one.failures), Some(1), "it begins anew");
    let far = RemediationBackoff { failures: i32::MAX, ..paused_until(Timestamp::MAX) };
    assert_eq!(after_failure(Some(&far), "TimedOut", now).map(|one| one.failures), Some(i32::MAX));
}

#[test]
fn r14_a_node_waits_until_its_pause_is_over() {
    let mut world = World::with(|world| {
        world.request.status.backoff = Some(paused_until(at(3)));
    });
    let blocked = world.blocked();
    let wait = blocked.requeue_after;
    assert_eq!((blocked.reason, wait), (BlockReason::BackOff, Some(Duration::from_mins(2))));
    world.now = at(3);
    assert_eq!(world.block_reason(), None);
}
