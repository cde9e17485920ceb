//! Reconciles the status of the policy: reservations, breaker, shared outages, fuses and conditions.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use super::control::{ControlGroupResult, failing_checks, has_recovered};
use super::housekeeping::PolicyFindings;
use super::{
    BUDGET_WINDOW, BlockReason, GroupStats, MAX_DURATION, Policy, Remediation, VerdictCounts, breaker,
    budget, format_time, fuse, rights, whole_second, window,
};
use crate::api::{ActEnforcement, History, RemediationPolicyStatus, Reservation, SharedOutage};
use crate::condition::{Finding, conditions, without};
use crate::outage::matches_outage;
use crate::reasons::{CONFIGURATION_APPLIED, remediation as reasons};

/// The maximum of the CRD's schema.
const MAX_OUTAGES: usize = 64;

/// What a node shows of a replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeProgress {
    Gone,
    /// The node is being deleted.
    Terminating,
    /// The node has our cordon.
    InReplacement,
    /// The node shows nothing.
    Untouched,
}

/// What the policy's status is computed from.
#[derive(Clone, Copy)]
pub struct PolicyInput<'a> {
    pub policy: &'a Policy,
    /// All remediations.
    pub requests: &'a [&'a Remediation],
    pub group_stats: &'a GroupStats,
    /// What the node with this uid shows of a replacement.
    pub progress: &'a dyn Fn(&str) -> NodeProgress,
    /// The last runs of the control groups, with gate and zone.
    pub compared: &'a [(String, String, ControlGroupResult)],
    pub found: PolicyFindings<'a>,
    pub now: Timestamp,
}

/// The status that the policy should have now.
#[must_use]
pub fn reconcile_policy_status(seen: &PolicyInput<'_>) -> RemediationPolicyStatus {
    let PolicyInput { policy, group_stats, now, .. } = *seen;
    let mut status = policy.status.clone();
    status.reservations = budget::reservations(policy, seen.requests, now);
    for one in &mut status.reservations {
        if one.ended.is_none() && has_ended(seen, one) {
            one.ended = Some(whole_second(now));
        }
    }
    status.reservations.retain(|one| one.ended.is_none() || now.duration_since(one.at) < BUDGET_WINDOW);
    status.breaker =
        breaker::next_state(&policy.spec.breaker, &policy.status.breaker, group_stats.verdicts, now);
    reconcile_outages(seen, &mut status);
    status.cooldown_until = status.cooldown_until.filter(|until| now < *until);
    fuse::prune(&mut status.fuses, policy, group_stats, now);
    status.observed_generation = policy.generation;
    let (mut findings, at) = (findings(seen, &status), whole_second(now).to_string());
    let before = match seen.found.configuration {
        Some(_) => policy.status.conditions.clone(),
        None => without(&policy.status.conditions, CONFIGURATION_APPLIED),
    };
    findings.extend(seen.found.configuration.cloned());
    status.conditions = conditions(findings, &before, policy.generation, &at);
    status
}

fn has_ended(seen: &PolicyInput<'_>, one: &Reservation) -> bool {
    let request = seen.requests.iter().find(|request| budget::is_of(one, request));
    let progress = (seen.progress)(&one.remediation);
    let is_over = match request {
        // Nothing goes on without the NodeRemediation, but what was done has to come to its end.
        None => !matches!(progress, NodeProgress::InReplacement | NodeProgress::Terminating),
        // If the node is gone, it has ended, even if the clocks disagree.
        Some(request) => request.finished_at().is_some() && progress == NodeProgress::Gone,
    };
    // The cache knows the Node. That its NodeClaim is being deleted, the remediation says.
    let is_deleting =
        progress == NodeProgress::Terminating || request.is_some_and(|request| request.awaits_deletion());
    let is_late = seen.now.duration_since(one.at) >= MAX_DURATION + MAX_DURATION;
    is_over || (is_late && !is_deleting)
}

/// Adds the checks that fail on the control groups, and removes those that have recovered.
fn reconcile_outages(seen: &PolicyInput<'_>, status: &mut RemediationPolicyStatus) {
    let group = &seen.policy.spec.control_group;
    let size = usize::try_from(group.size).unwrap_or_default();
    if size == 0 || seen.policy.spec.enforcement == ActEnforcement::DryRun {
        // No control group runs that would find out about the recovery.
        status.down.clear();
        return;
    }
    let now = whole_second(seen.now);
    let is_of = |outage: &SharedOutage, gate: &str, zone: &str| outage.gate == gate && outage.zone == zone;
    status.down.retain(|outage| seen.compared.iter().any(|(gate, zone, _)| is_of(outage, gate, zone)));
    for (gate, zone, compared) in seen.compared {
        let Some(run) = &compared.run else { continue };
        let failing = failing_checks(run);
        for check in &failing {
            let is_known = |outage: &SharedOutage| {
                outage.zone == *zone && matches_outage(outage, &check.name, &check.target)
            };
            if !status.down.iter().any(is_known) {
                status.down.push(SharedOutage {
                    gate: gate.clone(),
                    zone: zone.clone(),
                    check: check.name.clone(),
                    target: check.target.clone(),
                    since: now,
                });
            }
        }
        status.down.truncate(MAX_OUTAGES);
        let before = status.down.len();
        let goes_on = |outage: &SharedOutage| !failing.is_empty() || !has_recovered(run, size, outage);
        status.down.retain(|outage| !is_of(outage, gate, zone) || goes_on(outage));
        if status.down.len() < before {
            status.cooldown_until = Some(now + SignedDuration::from_secs(group.recovery_seconds.into()));
        }
    }
}

fn findings(seen: &PolicyInput<'_>, status: &RemediationPolicyStatus) -> Vec<Finding> {
    let (breaker, shared) = (breaker_finding(seen, status), outage_finding(seen, status));
    let ready = ready_finding(seen, status, &[&breaker, &shared]);
    let fuse = if let Some((message, _)) = blocked_requests(seen, BlockReason::FuseBlown) {
        Finding::new(reasons::FUSE_BLOWN, "True", reasons::REPLACEMENTS_FAIL_ALIKE, message)
    } else {
        let message = "no group has failing replacements of replacements";
        Finding::new(reasons::FUSE_BLOWN, "False", reasons::NO_REPEATED_FAILURE, message)
    };
    let paused = match seen.policy.paused(seen.now) {
        Some(pause) => Finding::new(reasons::PAUSED, "True", pause.reason, pause.message),
        None => Finding::new(reasons::PAUSED, "False", reasons::NOT_PAUSED, "no pause is in effect"),
    };
    vec![ready, breaker, shared, fuse, paused]
}

fn breaker_finding(seen: &PolicyInput<'_>, status: &RemediationPolicyStatus) -> Finding {
    if !status.breaker.open {
        let message = "the share of failing nodes is below the threshold";
        return Finding::new(reasons::BREAKER_OPEN, "False", reasons::BELOW_THRESHOLD, message);
    }
    let spec = &seen.policy.spec.breaker;
    let message = if let Some(since) = status.breaker.below_threshold_since {
        let closes = since + SignedDuration::from_secs(spec.close_after_seconds.into());
        format!("few enough nodes fail: remediation is blocked until {}", format_time(closes))
    } else {
        // Verified nodes have no recent verdict, so a few broken ones that are verified again and again are all that counts.
        let VerdictCounts { failed, total } = seen.group_stats.verdicts;
        format!(
            "{failed} of {total} nodes with a recent verdict failed: remediation is blocked until at most {} % of them fail for {} s, and gates go on to admit nodes. Find out what the nodes have in common. If nothing but these nodes is broken, delete them by hand, or set `spec.breaker.minVerdicts` of the policy to more than {total} to have them replaced within the budget",
            spec.close_percent, spec.close_after_seconds
        )
    };
    Finding::new(reasons::BREAKER_OPEN, "True", reasons::TOO_MANY_FAIL, message)
}

/// The message of the first remediation that is blocked for this reason, and how many are.
fn blocked_requests(seen: &PolicyInput<'_>, reason: BlockReason) -> Option<(String, usize)> {
    let is_blocked = |request: &&&Remediation| {
        let approved = request.condition(reasons::APPROVED);
        !request.is_complete() && approved.is_some_and(|approved| approved.reason == reason.as_str())
    };
    let mut all = seen.requests.iter().filter(is_blocked);
    let first = all.next()?.condition(reasons::APPROVED)?.message.clone();
    Some((first, 1 + all.count()))
}

fn outage_finding(seen: &PolicyInput<'_>, status: &RemediationPolicyStatus) -> Finding {
    let type_ = reasons::SHARED_DEPENDENCY_DOWN;
    match (&status.down[..], blocked_requests(seen, BlockReason::SharedDependencyDown)) {
        ([], None) => {
            let message = "no check is known to fail on verified nodes";
            Finding::new(type_, "False", reasons::NOT_OBSERVED, message)
        }
        ([], Some((message, count))) => {
            let message = format!("{count} nodes wait: {message}");
            Finding::new(type_, "True", reasons::NOTHING_TO_COMPARE_WITH, message)
        }
        ([first, rest @ ..], _) => {
            let zone = if first.zone.is_empty() { String::new() } else { format!(" in zone {}", first.zone) };
            let more = if rest.is_empty() { String::new() } else { format!("; and {} more", rest.len()) };
            let message = format!(
                "verified nodes{zone} fail {} {} since {}{more}: fix this shared dependency. Until then no node is replaced for it, and attempts and deadlines are suspended",
                first.check,
                first.target,
                format_time(first.since)
            );
            Finding::new(type_, "True", reasons::CONTROLS_FAIL, message)
        }
    }
}

fn ready_finding(seen: &PolicyInput<'_>, status: &RemediationPolicyStatus, limits: &[&Finding]) -> Finding {
    let PolicyInput { policy, now, .. } = *seen;
    let not_ready = |reason, message: String| Finding::new(reasons::READY, "False", reason, message);
    if let Some(problem) = window::invalid(&policy.spec.windows) {
        return not_ready(reasons::INVALID_WINDOW, problem);
    }
    if let Some(problem) = policy.annotations.invalid() {
        return not_ready(reasons::INVALID_ANNOTATION, problem);
    }
    if let Some(problem) = seen.found.failed_write {
        let message = format!("the API server does not accept {problem}; the controller retries");
        return not_ready(reasons::WRITE_REFUSED, message);
    }
    if policy.spec.enforcement == ActEnforcement::DryRun {
        let message = "`spec.enforcement` is 'DryRun': each NodeRemediation reports what would happen";
        return not_ready(reasons::DRY_RUN, message.into());
    }
    if let Some(problem) = rights::describe(seen.found.missing_rights) {
        return not_ready(reasons::MISSING_RIGHTS, problem);
    }
    if let Some(pause) = policy.paused(now) {
        return not_ready(reasons::PAUSED, pause.message);
    }
    if let Some(limit) = limits.iter().find(|limit| limit.status == "True") {
        return not_ready(limit.type_, limit.message.clone());
    }
    if let Some(until) = status.cooldown_until {
        let message =
            format!("a shared outage has just ended: remediation is blocked until {}", format_time(until));
        return not_ready(reasons::RECOVERING, message);
    }
    let in_flight = status.reservations.iter().filter(|one| one.ended.is_none()).count();
    let recent = status.reservations.iter().filter(|one| now.duration_since(one.at) < BUDGET_WINDOW).count();
    let max = policy.spec.budget.max_per_hour;
    let message = format!("{in_flight} remediations in flight, {recent} of {max} approved in the last hour");
    Finding::new(reasons::READY, "True", reasons::ENFORCING, message)
}

/// The complete remediations to delete: those that are old, and the oldest of too many. Those that the budget counts stay.
#[must_use]
pub fn prune<'a>(
    policy: Option<&Policy>,
    requests: &[&'a Remediation],
    now: Timestamp,
) -> Vec<&'a Remediation> {
    let default = History::default();
    let history = policy.map_or(&default, |policy| &policy.spec.history);
    let reserved: BTreeSet<&str> = policy
        .into_iter()
        .flat_map(|policy| &policy.status.reservations)
        .map(|one| one.remediation.as_str())
        .collect();
    let is_counted = |request: &Remediation| {
        reserved.contains(request.name.as_str())
            || request.approved_at().is_some_and(|at| now.duration_since(at) < BUDGET_WINDOW)
    };
    let mut complete: Vec<(Timestamp, &Remediation)> = requests
        .iter()
        .filter(|request| request.is_complete() && !is_counted(request))
        .filter_map(|request| Some((request.finished_at()?, *request)))
        .collect();
    complete.sort_by_key(|(ended, request)| (*ended, request.name.clone()));
    let surplus = complete.len().saturating_sub(usize::try_from(history.max_count).unwrap_or(usize::MAX));
    let is_old = |ended: &Timestamp| now.duration_since(*ended).as_secs() >= history.ttl_seconds;
    let is_pruned =
        |(index, (ended, _)): &(usize, (Timestamp, &Remediation))| *index < surplus || is_old(ended);
    complete.into_iter().enumerate().filter(is_pruned).map(|(_, (_, request))| request).collect()
}
