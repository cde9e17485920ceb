//! Decides whether a node may be replaced, and the next step of a replacement.
//!
//! [`evaluate`] checks all limits of the policy. An approval is reserved in the policy's status by one guarded write, and
//! confirmed in the remediation's status by another. After that, [`act::next`] decides each step.

pub mod act;
mod annotations;
mod backoff;
mod blocked;
mod breaker;
mod budget;
pub mod control;
pub mod decision;
pub mod drain;
mod evidence;
mod fuse;
mod group_stats;
pub mod housekeeping;
mod labels;
mod limits;
mod policy;
mod policy_status;
pub mod provider;
mod remediation;
mod rights;
mod target;
mod view;
mod window;

use std::collections::BTreeMap;

use jiff::{RoundMode, SignedDuration, Timestamp, TimestampRound, Unit};

use crate::api::{ActEnforcement, NodeIdentity, RemediationCause, RemediationPolicyStatus, Reservation};
use crate::gate::GateView;
use control::Comparison;
use provider::Replacement;

pub use annotations::{PAUSE_REASON, PAUSE_UNTIL, PolicyAnnotations, RESET_FUSE};
pub use blocked::{BlockReason, Blocked};
pub use evidence::{EvidenceInput, check_evidence, evidence_ttl};
pub use group_stats::{GroupCounts, GroupStats, NodeVerdict, VerdictCounts};
pub use labels::{GATE_LABEL, GROUP_LABEL, NODE_LABEL, label_value, labels};
pub use policy::{ActivePause, Policy};
pub use policy_status::{NodeProgress, PolicyInput, prune, reconcile_policy_status};
pub use remediation::{Remediation, ReservationState};
pub use rights::{Right, needed_rights};
pub use target::Target;
pub use view::{ClusterView, OtherNodes, reported_elsewhere};

/// The time over which the budget counts approvals.
pub const BUDGET_WINDOW: SignedDuration = SignedDuration::from_hours(1);
/// A remediation that takes longer fails.
pub const MAX_DURATION: SignedDuration = SignedDuration::from_hours(1);

/// What a remediation is evaluated from.
#[derive(Clone, Copy, Debug)]
pub struct EvaluationInput<'a> {
    pub request: &'a Remediation,
    /// None if there is no policy or it cannot be read.
    pub policy: Option<&'a Policy>,
    /// The node, read from the API server just now. None if no node has the name.
    pub target: Option<&'a Target>,
    /// All gates. Those of the causes were read from the API server just now.
    pub gates: &'a [&'a GateView],
    /// Its pods, read from the API server just now.
    pub pods: &'a [drain::PodView],
    pub replacement: &'a Replacement,
    pub group_stats: &'a GroupStats,
    /// All remediations, including this one.
    pub requests: &'a [&'a Remediation],
    /// What other nodes show, by gate of a cause.
    pub others: &'a BTreeMap<String, OtherNodes>,
    /// The [`needed_rights`] that the controller does not have.
    pub missing_rights: &'a [Right],
    pub now: Timestamp,
}

/// A time for people, without fractions of a second.
fn format_time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Times in a status have no fractions of a second. They are rounded up, so that an end is never before the observation
/// that led to it, and an approval never before the end of the last one.
fn whole_second(at: Timestamp) -> Timestamp {
    at.round(TimestampRound::new().smallest(Unit::Second).mode(RoundMode::Ceil)).unwrap_or(at)
}

/// The result of an evaluation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Approval {
    Blocked(Blocked),
    /// The remediation starts after the policy's status was replaced with this one, which contains the reservation.
    Approved(Box<RemediationPolicyStatus>),
}

/// Whether the remediation may start now.
#[must_use]
pub fn evaluate(seen: &EvaluationInput<'_>) -> Approval {
    match approve(seen) {
        Ok(status) => Approval::Approved(Box::new(status)),
        Err(blocked) => Approval::Blocked(blocked),
    }
}

fn approve(seen: &EvaluationInput<'_>) -> Result<RemediationPolicyStatus, Blocked> {
    let target = resolve_target(seen)?;
    let causes = evidence::fresh_causes(&EvidenceInput {
        request: seen.request,
        target,
        policy: seen.policy,
        gates: seen.gates,
        others: seen.others,
        approved_at: None,
        now: seen.now,
    })?;
    let missing = Policy::missing();
    let policy = seen.policy.unwrap_or(&missing);
    let limits = limits::check(seen, policy, target, &causes);
    if policy.spec.enforcement == ActEnforcement::DryRun {
        return Err(dry_run_block(seen, limits.err()));
    }
    limits?;
    match compare(policy, &target.zone, &causes, seen.others) {
        Some(blocked) => Err(blocked),
        None => Ok(reserve(seen, policy, target, &causes)),
    }
}

fn reserve(
    seen: &EvaluationInput<'_>,
    policy: &Policy,
    target: &Target,
    causes: &[&RemediationCause],
) -> RemediationPolicyStatus {
    let mut status = policy.status.clone();
    // What the status lost is kept from here on: the next approval overwrites the only memory of it.
    status.reservations = budget::reservations(policy, seen.requests, seen.now);
    budget::supersede(&mut status.reservations, seen.request, seen.now);
    let (checks, group) = (limits::check_names(causes), seen.group_stats.group(&target.group));
    fuse::record_replacement(&mut status.fuses, policy, &checks, target, &group, seen.now);
    status.reservations.push(Reservation {
        remediation: seen.request.name.clone(),
        uid: seen.request.uid.clone(),
        boot_id: target.identity.boot_id.clone(),
        node: target.identity.name.clone(),
        group: target.group.clone(),
        zone: target.zone.clone(),
        at: whole_second(seen.now),
        ended: None,
    });
    status
}

fn dry_run_block(seen: &EvaluationInput<'_>, limits: Option<Blocked>) -> Blocked {
    let policy = if seen.policy.is_some() {
        "`spec.enforcement` of the RemediationPolicy is 'DryRun'"
    } else {
        "there is no RemediationPolicy 'default'"
    };
    let would = limits.map_or_else(
        || "the node would be compared with verified nodes, and replaced if they pass".to_owned(),
        |blocked| format!("the node would not be replaced: {}: {}", blocked.reason.as_str(), blocked.message),
    );
    Blocked::new(BlockReason::DryRun, format!("{policy}; {would}"))
}

/// What blocks all remediations, found without reading from the API server.
#[must_use]
pub fn cluster_block(
    policy: Option<&Policy>,
    requests: &[&Remediation],
    group_stats: &GroupStats,
    now: Timestamp,
) -> Option<Blocked> {
    let policy = policy.filter(|policy| policy.spec.enforcement == ActEnforcement::Enforce)?;
    let limits = limits::check_cluster(policy, group_stats, now);
    limits.and_then(|()| budget::check_cluster(policy, requests, now)).err()
}

/// The node, if it is still the one of the request and is not being deleted.
fn resolve_target<'a>(seen: &EvaluationInput<'a>) -> Result<&'a Target, Blocked> {
    let wanted = &seen.request.spec.node;
    let Some(target) = seen.target.filter(|target| target.identity.uid == wanted.uid) else {
        let message = format!("no node {} with this uid exists any more", wanted.name);
        return Err(Blocked::new(BlockReason::NodeGone, message));
    };
    check_identity(wanted, target)?;
    if target.terminating {
        let message = "a user or another controller is deleting the node: wait for it";
        return Err(Blocked::new(BlockReason::NodeTerminating, message));
    }
    Ok(target)
}

/// Whether the node is still the machine of the request, and has not booted since.
fn check_identity(wanted: &NodeIdentity, target: &Target) -> Result<(), Blocked> {
    if !wanted.boot_id.is_empty() && wanted.boot_id != target.identity.boot_id {
        let message = "the node has rebooted since the remediation was requested";
        return Err(Blocked::new(BlockReason::NodeRebooted, message));
    }
    if !wanted.provider_id.is_empty() && wanted.provider_id != target.identity.provider_id {
        let message = "the Node has another providerID and stands for another machine";
        return Err(Blocked::new(BlockReason::NodeGone, message));
    }
    Ok(())
}

/// Why a remediation that waits for the control group has to go on waiting, found without reading from the API server.
#[must_use]
pub fn control_group_block(
    policy: &Policy,
    request: &Remediation,
    zone: &str,
    others: &BTreeMap<String, OtherNodes>,
) -> Option<Blocked> {
    let causes: Vec<&RemediationCause> = request.spec.causes.iter().collect();
    let outage = control::known_outage(&policy.status.down, &causes, zone).err();
    outage.or_else(|| compare(policy, zone, &causes, others))
}

/// None if the control group passes the checks that the node fails.
fn compare(
    policy: &Policy,
    zone: &str,
    causes: &[&RemediationCause],
    others: &BTreeMap<String, OtherNodes>,
) -> Option<Blocked> {
    let RemediationCause { name: gate, checks, .. } =
        causes.iter().find(|cause| control::is_compared(cause))?;
    // Only this gate's workers run these checks.
    let compared = others.get(gate).map(|others| others.compared.clone()).unwrap_or_default();
    let size = usize::try_from(policy.spec.control_group.size).unwrap_or_default();
    let in_zone = if zone.is_empty() { String::new() } else { format!(" of zone {zone}") };
    let (reason, message) = match compared.compare(size, checks) {
        Comparison::ControlsPassed => return None,
        Comparison::Due | Comparison::Running => (
            BlockReason::Comparing,
            format!("{size} verified nodes{in_zone} run the checks of gate {gate} for comparison"),
        ),
        Comparison::ControlsFailed(what) => (
            BlockReason::SharedDependencyDown,
            format!(
                "verified nodes{in_zone} fail too: {what}. Fix this shared dependency, replacing the node would not help"
            ),
        ),
        Comparison::TooFewControls(count) => (
            BlockReason::SharedDependencyDown,
            format!(
                "{count} verified nodes{in_zone} could be compared with, and {size} are needed (`spec.controlGroup.size` of the policy): a shared dependency may be down"
            ),
        ),
    };
    Some(Blocked { requeue_after: Some(control::RUN_INTERVAL), ..Blocked::new(reason, message) })
}

#[cfg(test)]
mod tests;
