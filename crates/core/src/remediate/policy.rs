//! What the policy says about itself, gone over again and again: reservations end, the breaker moves, what was down
//! recovers, and history goes.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use super::control::{Compared, failing, has_recovered};
use super::{
    BlockReason, GroupStats, HOUR, LONGEST_ACT, Policy, Remediation, breaker, budget, format_time, fuse,
    window,
};
use crate::api::{ActEnforcement, RemediationPolicyStatus, Reservation, SharedOutage};
use crate::condition::{Finding, conditions};
use crate::outage::matches_outage;

/// So much of what is down is said, as the schema has it.
const MOST_DOWN: usize = 64;

/// All that it is made from.
#[derive(Clone, Copy)]
pub struct PolicyInput<'a> {
    /// The policy, as it was read.
    pub policy: &'a Policy,
    /// All requests.
    pub requests: &'a [&'a Remediation],
    /// All nodes.
    pub group_stats: &'a GroupStats,
    /// Whether there is a node with this uid.
    pub is_there: &'a dyn Fn(&str) -> bool,
    /// The last runs on nodes that work: of which gate, in which zone.
    pub compared: &'a [(String, String, Compared)],
    /// The time of day.
    pub now: Timestamp,
}

/// The policy's status as it should be now.
#[must_use]
pub fn reconcile_policy_status(seen: &PolicyInput<'_>) -> RemediationPolicyStatus {
    let PolicyInput { policy, group_stats, now, .. } = *seen;
    let mut status = policy.status.clone();
    status.reservations = budget::reserved(policy, seen.requests, now);
    for one in &mut status.reservations {
        if one.ended.is_none() && has_ended(seen, one) {
            one.ended = Some(now);
        }
    }
    status.reservations.retain(|one| one.ended.is_none() || now.duration_since(one.at) < HOUR);
    status.breaker = breaker::state(&policy.spec.breaker, &policy.status.breaker, group_stats.verdicts, now);
    down(seen, &mut status);
    status.cooldown_until = status.cooldown_until.filter(|until| now < *until);
    fuse::settle(&mut status.fuses, &policy.spec.fuse, group_stats, now);
    status.observed_generation = policy.generation;
    let findings = findings(seen, &status);
    status.conditions = conditions(findings, &policy.status.conditions, policy.generation, &now.to_string());
    status
}

fn has_ended(seen: &PolicyInput<'_>, one: &Reservation) -> bool {
    let request = seen.requests.iter().find(|request| request.name == one.remediation);
    let said_so = request.and_then(|request| request.finished()).is_some_and(|ended| ended >= one.at);
    // Whoever deletes the request does not end the act. What came to an end has, where the node is gone, whatever the
    // clocks of those who wrote it say.
    let is_over =
        request.is_none_or(|request| request.finished().is_some()) && !(seen.is_there)(&one.remediation);
    said_so || is_over || seen.now.duration_since(one.at) >= LONGEST_ACT + LONGEST_ACT
}

/// What fails on nodes that work is down, until as many as are needed pass it again.
fn down(seen: &PolicyInput<'_>, status: &mut RemediationPolicyStatus) {
    let group = &seen.policy.spec.control_group;
    let size = usize::try_from(group.size).unwrap_or_default();
    let is_compared = |down: &SharedOutage| {
        seen.compared.iter().any(|(gate, zone, _)| *gate == down.gate && *zone == down.zone)
    };
    if size == 0 || seen.policy.spec.enforcement == ActEnforcement::DryRun {
        // Nobody would find out that it works again.
        status.down.clear();
        return;
    }
    status.down.retain(is_compared);
    for (gate, zone, compared) in seen.compared {
        let Some(run) = &compared.run else { continue };
        for check in failing(run) {
            let known =
                |down: &SharedOutage| down.zone == *zone && matches_outage(down, &check.name, &check.target);
            if !status.down.iter().any(known) {
                status.down.push(SharedOutage {
                    gate: gate.clone(),
                    zone: zone.clone(),
                    check: check.name.clone(),
                    target: check.target.clone(),
                    since: seen.now,
                });
            }
        }
        status.down.truncate(MOST_DOWN);
        let before = status.down.len();
        status.down.retain(|down| {
            down.gate != *gate
                || down.zone != *zone
                || !failing(run).is_empty()
                || !has_recovered(run, size, down)
        });
        if status.down.len() < before {
            status.cooldown_until = Some(seen.now + SignedDuration::from_secs(group.recovery_seconds.into()));
        }
    }
}

fn findings(seen: &PolicyInput<'_>, status: &RemediationPolicyStatus) -> Vec<Finding> {
    let PolicyInput { policy, now, .. } = *seen;
    let of = |type_, status, reason, message: String| Finding::new(type_, status, reason, message);
    let in_flight = status.reservations.iter().filter(|one| one.ended.is_none()).count();
    let lately = status.reservations.iter().filter(|one| now.duration_since(one.at) < HOUR).count();
    let breaker = if status.breaker.open {
        let verdicts = seen.group_stats.verdicts;
        let message = format!(
            "{} of {} nodes that had a verdict lately failed: nothing destructive is done, letting nodes in goes on",
            verdicts.failed, verdicts.all
        );
        of("BreakerOpen", "True", "TooManyFail", message)
    } else {
        of("BreakerOpen", "False", "FewFail", "few enough nodes fail".into())
    };
    let fuse = match held(seen, BlockReason::FuseBlown) {
        Some((message, _)) => of("FuseBlown", "True", "ReplacementsFailAlike", message),
        None => of("FuseBlown", "False", "NoLoop", "no replacements of replacements fail alike".into()),
    };
    let shared = shared(seen, status);
    let ready = ready(policy, status, now, &[&breaker, &shared], (in_flight, lately));
    vec![ready, breaker, shared, fuse]
}

/// What a request is held for, if one is, and how many are.
fn held(seen: &PolicyInput<'_>, hold: BlockReason) -> Option<(String, usize)> {
    let held = |request: &&&Remediation| {
        !request.is_history()
            && request.condition("Approved").is_some_and(|approved| approved.reason == hold.as_str())
    };
    let mut all = seen.requests.iter().filter(held);
    let first = all.next()?.condition("Approved")?.message.clone();
    Some((first, 1 + all.count()))
}

fn shared(seen: &PolicyInput<'_>, status: &RemediationPolicyStatus) -> Finding {
    let of = |status, reason, message: String| Finding::new("SharedDependencyDown", status, reason, message);
    match (&status.down[..], held(seen, BlockReason::SharedDependencyDown)) {
        ([], None) => of("False", "NotSeen", "nothing fails on nodes that work".into()),
        ([], Some((message, count))) => {
            of("True", "NothingToCompareWith", format!("{count} nodes wait: {message}"))
        }
        ([first, rest @ ..], _) => {
            let place =
                if first.zone.is_empty() { String::new() } else { format!(" in zone {}", first.zone) };
            let more = if rest.is_empty() { String::new() } else { format!("; and {} more", rest.len()) };
            let message = format!(
                "verified nodes{place} fail {} {} since {}{more}: no node is blamed for it, attempts and deadlines stand still",
                first.check,
                first.target,
                format_time(first.since)
            );
            of("True", "ControlsFail", message)
        }
    }
}

fn ready(
    policy: &Policy,
    status: &RemediationPolicyStatus,
    now: Timestamp,
    brakes: &[&Finding],
    (in_flight, lately): (usize, usize),
) -> Finding {
    let of = |status, reason, message: String| Finding::new("Ready", status, reason, message);
    if let Some(problem) = window::unreadable(&policy.spec.windows) {
        return of("False", "InvalidWindow", problem);
    }
    if policy.spec.enforcement == ActEnforcement::DryRun {
        let message = "`spec.enforcement` is 'DryRun': it is said what would be done, and nothing is done";
        return of("False", "DryRun", message.into());
    }
    if let Some(why) = policy.paused(now) {
        return of("False", "Paused", why);
    }
    if let Some(brake) = brakes.iter().find(|brake| brake.status == "True") {
        return of("False", brake.type_, brake.message.clone());
    }
    if let Some(until) = status.cooldown_until {
        return of(
            "False",
            "Recovering",
            format!("nothing destructive is done before {}", format_time(until)),
        );
    }
    let most = policy.spec.budget.max_per_hour;
    of(
        "True",
        "Enforcing",
        format!("{in_flight} acts in flight, {lately} of {most} approved in the last hour"),
    )
}

/// The requests whose history is old enough to go, or too much: never what the budget counts.
#[must_use]
pub fn prune<'a>(
    policy: Option<&Policy>,
    requests: &[&'a Remediation],
    now: Timestamp,
) -> Vec<&'a Remediation> {
    let default = crate::api::History::default();
    let history = policy.map_or(&default, |policy| &policy.spec.history);
    let reserved: BTreeSet<&str> = policy
        .into_iter()
        .flat_map(|policy| &policy.status.reservations)
        .map(|one| one.remediation.as_str())
        .collect();
    let counts = |request: &Remediation| {
        reserved.contains(request.name.as_str())
            || request.approved().is_some_and(|at| now.duration_since(at) < HOUR)
    };
    let mut old: Vec<(Timestamp, &Remediation)> = requests
        .iter()
        .filter(|request| request.is_history() && !counts(request))
        .filter_map(|request| Some((request.finished()?, *request)))
        .collect();
    old.sort_by_key(|(ended, request)| (*ended, request.name.clone()));
    let most = usize::try_from(history.max_count).unwrap_or(usize::MAX);
    let too_many = old.len().saturating_sub(most);
    let is_old = |ended: &Timestamp| now.duration_since(*ended).as_secs() >= history.ttl_seconds;
    let goes = |(place, (ended, _)): &(usize, (Timestamp, &Remediation))| *place < too_many || is_old(ended);
    old.into_iter().enumerate().filter(goes).map(|(_, (_, request))| request).collect()
}
