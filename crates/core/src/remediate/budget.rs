//! The budget limits how many nodes are replaced at the same time and in an hour.

use jiff::Timestamp;

use super::{
    BUDGET_WINDOW, BlockReason, Blocked, GroupCounts, GroupStats, MAX_DURATION, Policy, Remediation, Target,
    format_time,
};
use crate::api::Reservation;

/// The reservations in the policy's status, and those that only the remediations remember. So a policy that was created
/// again, or lost its status, gets no second budget. The latter have an empty group, which counts for every group.
pub(super) fn reservations(policy: &Policy, requests: &[&Remediation], now: Timestamp) -> Vec<Reservation> {
    let mut all = policy.status.reservations.clone();
    for request in requests {
        let Some(at) = request.approved_at() else { continue };
        let ended = request.finished_at().filter(|ended| *ended >= at);
        let counted = if ended.is_some() { BUDGET_WINDOW } else { MAX_DURATION + MAX_DURATION };
        if now.duration_since(at) < counted && !all.iter().any(|one| one.remediation == request.name) {
            let (remediation, node) = (request.name.clone(), request.spec.node.name.clone());
            all.push(Reservation { remediation, node, group: String::new(), zone: String::new(), at, ended });
        }
    }
    all
}

/// Whether the budget of the cluster allows one more remediation.
pub(super) fn check_cluster(
    policy: &Policy,
    requests: &[&Remediation],
    now: Timestamp,
) -> Result<(), Blocked> {
    let (budget, reservations) = (&policy.spec.budget, &reservations(policy, requests, now));
    let in_flight = reservations.iter().filter(|one| one.ended.is_none()).count();
    check_limit(in_flight, budget.max_in_flight, "nodes are being replaced", "maxInFlight")?;
    let recent =
        || reservations.iter().map(|one| one.at).filter(|at| now.duration_since(*at) < BUDGET_WINDOW);
    let what = "remediations were approved in the last hour";
    check_limit(recent().count(), budget.max_per_hour, what, "maxPerHour")
        .map_err(|blocked| blocked.until(recent().min().unwrap_or(now) + BUDGET_WINDOW, now))
}

fn check_limit(count: usize, max: i32, what: &str, field: &str) -> Result<(), Blocked> {
    if count < usize::try_from(max).unwrap_or_default() {
        return Ok(());
    }
    let message = format!("{count} {what}, and `spec.budget.{field}` of the policy is {max}");
    Err(Blocked::new(BlockReason::BudgetSpent, message))
}

/// Whether the budget allows the replacement of this node.
pub(super) fn check(
    policy: &Policy,
    requests: &[&Remediation],
    target: &Target,
    group_stats: &GroupStats,
    now: Timestamp,
) -> Result<(), Blocked> {
    let budget = &policy.spec.budget;
    let reservations = &reservations(policy, requests, now);
    let is_own = |one: &&Reservation| one.ended.is_none() && one.remediation == target.identity.uid;
    if let Some(own) = reservations.iter().find(is_own) {
        let message = format!("the node is being replaced already, since {}", format_time(own.at));
        return Err(Blocked::new(BlockReason::BudgetSpent, message));
    }
    check_cluster(policy, requests, now)?;
    let (group, zone) = (&target.group, &target.zone);
    let in_group = |one: &&Reservation| one.group.is_empty() || one.group == *group;
    let in_zone = |one: &&Reservation| one.group.is_empty() || one.zone == *zone;
    let in_flight = || reservations.iter().filter(|one| one.ended.is_none());
    let same_group = in_flight().filter(in_group).count();
    let what = format!("nodes of group {group} are being replaced");
    check_limit(same_group, budget.max_in_flight_per_group, &what, "maxInFlightPerGroup")?;
    let what = format!("nodes of zone '{zone}' are being replaced");
    check_limit(
        in_flight().filter(in_zone).count(),
        budget.max_in_flight_per_zone,
        &what,
        "maxInFlightPerZone",
    )?;
    let counts = group_stats.group(group);
    let percent = budget.max_group_percent_per_hour;
    let allowed = (counts.size * percent.unsigned_abs() / 100).max(u32::from(percent > 0));
    let is_recent = |one: &&Reservation| one.ended.is_none() || now.duration_since(one.at) < BUDGET_WINDOW;
    let replaced = reservations.iter().filter(is_recent).filter(in_group).count();
    if replaced >= usize::try_from(allowed).unwrap_or(usize::MAX) {
        let message = format!(
            "{replaced} of the {} nodes of group {group} were replaced in the last hour, and `spec.budget.maxGroupPercentPerHour` of the policy is {percent} %",
            counts.size
        );
        return Err(Blocked::new(BlockReason::BudgetSpent, message));
    }
    check_last_schedulable(target, &counts, same_group)
}

/// A group keeps at least one schedulable node. Nodes in replacement may still count as schedulable until they are cordoned.
fn check_last_schedulable(target: &Target, counts: &GroupCounts, in_flight: usize) -> Result<(), Blocked> {
    let is_gated = target.record.as_ref().is_some_and(|record| !record.is_open());
    let is_schedulable = !target.unschedulable && !is_gated;
    if is_schedulable && usize::try_from(counts.schedulable).unwrap_or(usize::MAX) <= 1 + in_flight {
        let message = format!(
            "the node may be the last schedulable node of group {}: add another one, or wait for the replacements in flight",
            target.group
        );
        return Err(Blocked::new(BlockReason::LastOpenNode, message));
    }
    Ok(())
}
