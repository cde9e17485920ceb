//! How much may be done.

use jiff::Timestamp;

use super::{
    BlockReason, Blocked, GroupCounts, GroupStats, HOUR, LONGEST_ACT, Policy, Remediation, Target,
    format_time,
};
use crate::api::Reservation;

/// What was approved, as the policy remembers it and as the requests do: whoever makes the policy anew, or loses its
/// status, gets no second budget by it. Where a request remembers, nobody knows the group: it may be any.
pub(super) fn reserved(policy: &Policy, requests: &[&Remediation], now: Timestamp) -> Vec<Reservation> {
    let mut all = policy.status.reservations.clone();
    for request in requests {
        let Some(at) = request.approved() else { continue };
        let ended = request.finished().filter(|ended| *ended >= at);
        let counted = if ended.is_some() { HOUR } else { LONGEST_ACT + LONGEST_ACT };
        if now.duration_since(at) < counted && !all.iter().any(|one| one.remediation == request.name) {
            let (remediation, node) = (request.name.clone(), request.spec.node.name.clone());
            all.push(Reservation { remediation, node, group: String::new(), zone: String::new(), at, ended });
        }
    }
    all
}

/// Whether one more act is within the budget of the cluster.
pub(super) fn cluster(policy: &Policy, requests: &[&Remediation], now: Timestamp) -> Result<(), Blocked> {
    let (budget, reservations) = (&policy.spec.budget, &reserved(policy, requests, now));
    let in_flight = reservations.iter().filter(|one| one.ended.is_none()).count();
    spent(in_flight, budget.max_in_flight, "nodes are being replaced", "maxInFlight")?;
    let lately = || reservations.iter().map(|one| one.at).filter(|at| now.duration_since(*at) < HOUR);
    spent(lately().count(), budget.max_per_hour, "acts were approved in the last hour", "maxPerHour")
        .map_err(|held| held.until(lately().min().unwrap_or(now) + HOUR, now))
}

fn spent(count: usize, most: i32, what: &str, field: &str) -> Result<(), Blocked> {
    if count < usize::try_from(most).unwrap_or_default() {
        return Ok(());
    }
    let message = format!("{count} {what}, and `spec.budget.{field}` of the policy is {most}");
    Err(Blocked::new(BlockReason::BudgetSpent, message))
}

/// Whether one more act is within the budget.
pub(super) fn check(
    policy: &Policy,
    requests: &[&Remediation],
    target: &Target,
    group_stats: &GroupStats,
    now: Timestamp,
) -> Result<(), Blocked> {
    let budget = &policy.spec.budget;
    let reservations = &reserved(policy, requests, now);
    let in_flight = |fits: &dyn Fn(&Reservation) -> bool| {
        reservations.iter().filter(|one| one.ended.is_none() && fits(one)).count()
    };
    let lately = |fits: &dyn Fn(&Reservation) -> bool| {
        let counts = |one: &Reservation| one.ended.is_none() || now.duration_since(one.at) < HOUR;
        reservations.iter().filter(|one| counts(one) && fits(one)).count()
    };
    let (group, zone) = (&target.group, &target.zone);
    let is_own = |one: &&Reservation| one.ended.is_none() && one.remediation == target.identity.uid;
    if let Some(own) = reservations.iter().find(is_own) {
        return Err(Blocked::new(
            BlockReason::BudgetSpent,
            format!("it is being replaced already, since {}", format_time(own.at)),
        ));
    }
    cluster(policy, requests, now)?;
    let is_of_group = |one: &Reservation| one.group.is_empty() || one.group == *group;
    let same_group = in_flight(&is_of_group);
    let what = format!("nodes of group {group} are being replaced");
    spent(same_group, budget.max_in_flight_per_group, &what, "maxInFlightPerGroup")?;
    let same_zone = in_flight(&|one| one.group.is_empty() || one.zone == *zone);
    let what = format!("nodes of zone '{zone}' are being replaced");
    spent(same_zone, budget.max_in_flight_per_zone, &what, "maxInFlightPerZone")?;
    let facts = group_stats.group(group);
    let share = (facts.size * budget.max_group_percent_per_hour.unsigned_abs() / 100)
        .max(u32::from(budget.max_group_percent_per_hour > 0));
    let of_group = lately(&is_of_group);
    if of_group >= usize::try_from(share).unwrap_or(usize::MAX) {
        let message = format!(
            "{of_group} of the {} nodes of group {group} were replaced in the last hour, and `spec.budget.maxGroupPercentPerHour` of the policy is {} %",
            facts.size, budget.max_group_percent_per_hour
        );
        return Err(Blocked::new(BlockReason::BudgetSpent, message));
    }
    last_open(target, &facts, same_group)
}

/// A group keeps at least one node that can be scheduled to. Those that are being replaced may not be cordoned yet.
fn last_open(target: &Target, facts: &GroupCounts, going: usize) -> Result<(), Blocked> {
    let held = target.record.as_ref().is_some_and(|record| !record.is_open());
    let is_open = !target.unschedulable && !held;
    if is_open && usize::try_from(facts.open).unwrap_or(usize::MAX) <= 1 + going {
        let message = format!(
            "it may be the last open node of group {}: add another one, or wait for those that are being replaced",
            target.group
        );
        return Err(Blocked::new(BlockReason::LastOpenNode, message));
    }
    Ok(())
}
