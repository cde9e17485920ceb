//! How much may be done.

use jiff::Timestamp;

use super::{GroupFacts, HOUR, Held, Hold, Policy, Request, Survey, Target};
use crate::api::Reservation;

/// Whether one more act is within the budget of the cluster.
pub(super) fn cluster(policy: &Policy, requests: &[&Request], now: Timestamp) -> Result<(), Held> {
    let (budget, reservations) = (&policy.spec.budget, &policy.status.reservations);
    let in_flight = reservations.iter().filter(|one| one.ended.is_none()).count();
    spent(in_flight, budget.in_flight, "nodes are being replaced", "inFlight")?;
    let lately = || reservations.iter().map(|one| one.at).filter(|at| now.duration_since(*at) < HOUR);
    let forgotten = requests.iter().filter(|request| is_forgotten(request, reservations, now)).count();
    let count = lately().count() + forgotten;
    spent(count, budget.per_hour, "acts were approved in the last hour", "perHour")
        .map_err(|held| held.until(lately().min().unwrap_or(now) + HOUR, now))
}

fn spent(count: usize, most: i32, what: &str, field: &str) -> Result<(), Held> {
    if count < usize::try_from(most).unwrap_or_default() {
        return Ok(());
    }
    let message = format!("{count} {what}, and `spec.budget.{field}` of the policy is {most}");
    Err(Held::new(Hold::BudgetSpent, message))
}

/// Whether one more act is within the budget.
pub(super) fn check(
    policy: &Policy,
    requests: &[&Request],
    target: &Target,
    survey: &Survey,
    now: Timestamp,
) -> Result<(), Held> {
    let budget = &policy.spec.budget;
    let reservations = &policy.status.reservations;
    let in_flight = |fits: &dyn Fn(&Reservation) -> bool| {
        reservations.iter().filter(|one| one.ended.is_none() && fits(one)).count()
    };
    let lately = |fits: &dyn Fn(&Reservation) -> bool| {
        reservations.iter().filter(|one| now.duration_since(one.at) < HOUR && fits(one)).count()
    };
    let (group, zone) = (&target.group, &target.zone);
    cluster(policy, requests, now)?;
    let same_group = in_flight(&|one| one.group == *group);
    let what = format!("nodes of group {group} are being replaced");
    spent(same_group, budget.in_flight_per_group, &what, "inFlightPerGroup")?;
    let same_zone = in_flight(&|one| one.zone == *zone);
    let what = format!("nodes of zone '{zone}' are being replaced");
    spent(same_zone, budget.in_flight_per_zone, &what, "inFlightPerZone")?;
    let facts = survey.group(group);
    let share =
        (facts.size * budget.group_percent.unsigned_abs() / 100).max(u32::from(budget.group_percent > 0));
    let of_group = lately(&|one| one.group == *group);
    if of_group >= usize::try_from(share).unwrap_or(usize::MAX) {
        let message = format!(
            "{of_group} of the {} nodes of group {group} were replaced in the last hour, and `spec.budget.groupPercent` of the policy is {} %",
            facts.size, budget.group_percent
        );
        return Err(Held::new(Hold::BudgetSpent, message));
    }
    last_open(target, &facts)
}

/// Approved in the last hour, and the policy does not know: somebody made it anew, or lost its status.
fn is_forgotten(request: &Request, reservations: &[Reservation], now: Timestamp) -> bool {
    request.approved().is_some_and(|at| now.duration_since(at) < HOUR)
        && !reservations.iter().any(|one| one.remediation == request.name)
}

/// A group keeps at least one node that can be scheduled to.
fn last_open(target: &Target, facts: &GroupFacts) -> Result<(), Held> {
    let held = target.record.as_ref().is_some_and(|record| !record.is_open());
    let is_open = !target.unschedulable && !held;
    if is_open && facts.open <= 1 {
        let message = format!("it is the last open node of group {}", target.group);
        return Err(Held::new(Hold::LastOpenNode, message));
    }
    Ok(())
}
