//! The budget limits how many nodes are replaced at the same time and in an hour.

use jiff::Timestamp;

use super::{
    BUDGET_WINDOW, BlockReason, Blocked, EvaluationInput, GroupCounts, MAX_DURATION, Policy, Remediation,
    ReservationState, Target, format_time, whole_second,
};
use crate::api::Reservation;
use crate::gate::GateView;

/// Whether the reservation belongs to the remediation.
pub(super) fn is_of(one: &Reservation, request: &Remediation) -> bool {
    if one.uid.is_empty() { one.remediation == request.name } else { one.uid == request.uid }
}

/// The reservations in the policy's status, and those that only the remediations remember. So a policy that was created
/// again, or lost its status, gets no second budget. The latter have no uid, so that they permit nothing, and no group,
/// which counts for every group. Only a remediation that says that it is approved is in flight.
pub(super) fn reservations(policy: &Policy, requests: &[&Remediation], now: Timestamp) -> Vec<Reservation> {
    let mut all = policy.status.reservations.clone();
    for one in all.iter_mut().filter(|one| one.ended.is_none()) {
        let mut own = requests.iter().filter(|request| is_of(one, request));
        if own.any(|request| request.reservation_state(one) == ReservationState::Ended) {
            one.ended = Some(whole_second(now).max(one.at));
        }
    }
    for request in requests {
        let Some(restored) = request.restored_reservation() else { continue };
        let at = restored.at;
        let has_ended = request.reservation_state(&restored) == ReservationState::Ended;
        let ended = has_ended.then(|| request.finished_at().filter(|ended| *ended >= at).unwrap_or(at));
        let counted = if has_ended { BUDGET_WINDOW } else { MAX_DURATION + MAX_DURATION };
        let is_known = all.iter().any(|one| one.remediation == request.name && one.at == at);
        let is_counted = request.awaits_deletion() || now.duration_since(at) < counted;
        if is_counted && !is_known {
            all.push(Reservation { ended, ..restored });
        }
    }
    all
}

/// The reservations of others. A reservation of this remediation that waits for its confirmation is the one that is
/// decided about; one that was restored is superseded, but counts for the hour.
fn others(
    policy: &Policy,
    requests: &[&Remediation],
    request: &Remediation,
    now: Timestamp,
) -> Vec<Reservation> {
    let mut all = reservations(policy, requests, now);
    all.retain(|one| one.ended.is_some() || one.uid.is_empty() || one.uid != request.uid);
    supersede(&mut all, request, now);
    all
}

/// Ends the reservations of this remediation that were restored.
pub(super) fn supersede(all: &mut [Reservation], request: &Remediation, now: Timestamp) {
    for one in all.iter_mut().filter(|one| one.ended.is_none() && one.uid.is_empty()) {
        if is_of(one, request) {
            one.ended = Some(whole_second(now).max(one.at));
        }
    }
}

/// Whether the budget of the cluster allows one more remediation.
pub(super) fn check_cluster(
    policy: &Policy,
    requests: &[&Remediation],
    now: Timestamp,
) -> Result<(), Blocked> {
    check_counts(policy, &reservations(policy, requests, now), now)
}

fn check_counts(policy: &Policy, reservations: &[Reservation], now: Timestamp) -> Result<(), Blocked> {
    let budget = &policy.spec.budget;
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
pub(super) fn check(seen: &EvaluationInput<'_>, policy: &Policy, target: &Target) -> Result<(), Blocked> {
    let (budget, now) = (&policy.spec.budget, seen.now);
    let reservations = &others(policy, seen.requests, seen.request, now);
    let is_own = |one: &&Reservation| one.ended.is_none() && one.remediation == target.identity.uid;
    if let Some(own) = reservations.iter().find(is_own) {
        let message = format!("the node is being replaced already, since {}", format_time(own.at));
        return Err(Blocked::new(BlockReason::BudgetSpent, message));
    }
    check_counts(policy, reservations, now)?;
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
    let counts = seen.group_stats.group(group);
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
    check_last_schedulable(target, seen.gates, &counts, same_group)
}

/// A group keeps at least one schedulable node. Nodes in replacement may still count as schedulable until they are cordoned.
fn check_last_schedulable(
    target: &Target,
    gates: &[&GateView],
    counts: &GroupCounts,
    in_flight: usize,
) -> Result<(), Blocked> {
    let is_schedulable = target.is_schedulable(gates);
    if is_schedulable && usize::try_from(counts.schedulable).unwrap_or(usize::MAX) <= 1 + in_flight {
        let message = format!(
            "the node may be the last schedulable node of group {}: add another one, or wait for the replacements in flight",
            target.group
        );
        return Err(Blocked::new(BlockReason::LastOpenNode, message));
    }
    Ok(())
}
