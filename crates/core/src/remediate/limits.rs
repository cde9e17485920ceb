//! The limits of the policy that have to allow a remediation.

use jiff::Timestamp;

use super::drain::{self, DrainPlan, PodView};
use super::{
    BlockReason, Blocked, EvaluationInput, GroupStats, Policy, Target, backoff, breaker, budget, control,
    format_time, fuse, rights, window,
};
use crate::api::{CauseSource, CauseVerdict, RemediationCause};

/// The limits that hold for the whole cluster.
pub(super) fn check_cluster(
    policy: &Policy,
    group_stats: &GroupStats,
    now: Timestamp,
) -> Result<(), Blocked> {
    if let Some(pause) = policy.paused(now) {
        return Err(pause.block(now));
    }
    if let Some(until) = policy.status.cooldown_until.filter(|until| now < *until) {
        let message = format!(
            "a shared outage has just ended: remediation is blocked until {} (`spec.controlGroup.recoverySeconds` of the policy)",
            format_time(until)
        );
        return Err(Blocked::new(BlockReason::Recovering, message).until(until, now));
    }
    breaker::check(&policy.spec.breaker, &policy.status.breaker, group_stats.verdicts)
}

/// All limits except for the control group, whose workers cost resources.
pub(super) fn check(
    seen: &EvaluationInput<'_>,
    policy: &Policy,
    target: &Target,
    causes: &[&RemediationCause],
) -> Result<(), Blocked> {
    let now = seen.now;
    check_cluster(policy, seen.group_stats, now)?;
    rights::check(seen.missing_rights)?;
    check_opted_out(target, seen.pods)?;
    check_control_plane(policy, target)?;
    seen.replacement.check(target)?;
    if let DrainPlan::Refused(_, message) = drain::plan(seen.pods, &policy.spec.drain, now, now) {
        return Err(Blocked::new(BlockReason::PodNotEvictable, message));
    }
    backoff::check(seen.request, now)?;
    if !causes.iter().any(|cause| cause.source == CauseSource::Gate) {
        window::check(&policy.spec.windows, now)?;
    }
    control::known_outage(&policy.status.down, causes, &target.zone)?;
    fuse::check(policy, &check_names(causes), target, seen.group_stats, now)?;
    budget::check(seen, policy, target)
}

pub(super) fn check_control_plane(policy: &Policy, target: &Target) -> Result<(), Blocked> {
    if target.control_plane && !policy.spec.allowed_control_plane_nodes.contains(&target.identity.name) {
        let message = "control-plane nodes are not replaced: add the node to `spec.allowedControlPlaneNodes` of the policy to allow it";
        return Err(Blocked::new(BlockReason::ControlPlane, message));
    }
    Ok(())
}

pub(super) fn check_opted_out(target: &Target, pods: &[PodView]) -> Result<(), Blocked> {
    let message = if let Some(key) = target.opted_out {
        format!("the node has the annotation {key}: remove it to allow the replacement")
    } else if let Some((pod, key)) = pods.iter().find_map(|pod| Some((pod, pod.opted_out?))) {
        format!(
            "pod {}/{} has the annotation {key}: remove it, or the pod, to allow the replacement",
            pod.namespace, pod.name
        )
    } else {
        return Ok(());
    };
    Err(Blocked::new(BlockReason::OptedOut, message))
}

/// The names of the failed checks without duplicates, and `Stuck` for a cause without checks.
pub(super) fn check_names<'a>(causes: &[&'a RemediationCause]) -> Vec<&'a str> {
    let stuck = causes.iter().any(|cause| cause.verdict == CauseVerdict::Stuck && cause.checks.is_empty());
    let checks = causes.iter().flat_map(|cause| &cause.checks).map(|check| check.name.as_str());
    let mut names: Vec<&str> = checks.chain(stuck.then_some("Stuck")).collect();
    names.sort_unstable();
    names.dedup();
    names
}
