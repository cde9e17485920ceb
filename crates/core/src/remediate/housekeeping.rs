//! What a reconcile of the RemediationPolicy does: history, cordons, control workers and the policy's status.

use std::collections::BTreeSet;
use std::time::Duration;

use super::control::{MAX_RUNNING_CONTROLS, eligible_nodes, expired_controls};
use super::view::ClusterView;
use super::{
    BlockReason, GroupStats, NodeProgress, Policy, PolicyInput, Remediation, Right, Target, prune,
    reconcile_policy_status,
};
use crate::api::{ActEnforcement, Condition, RemediationPolicyStatus};
use crate::checks::WorkerIdentity;
use crate::condition::Finding;
use crate::gate::GateView;
use crate::id::Id;
use crate::limits::takes_slot;
use crate::node::NodeView;
use crate::reasons::CONFIGURATION_APPLIED;
use crate::reasons::remediation::{INVALID_ANNOTATION, INVALID_WINDOW, MISSING_RIGHTS, WRITE_REFUSED};
use crate::topology::zone;
use crate::worker::WorkerView;

const BUSY_PERIOD: Duration = Duration::from_secs(10);
/// How often it is asked whether the permissions for acts are there, though no remediation needs them.
const ENFORCING_PERIOD: Duration = Duration::from_mins(5);
const IDLE_PERIOD: Duration = Duration::from_hours(1);
/// So many old remediations are deleted at once.
const MAX_PRUNED: usize = 50;

/// One thing to do. The effects are independent of each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyEffect {
    DeleteRemediation(Box<Remediation>),
    Uncordon(Box<Target>),
    DeleteControlWorker(Box<WorkerView>),
    UpdateStatus(Box<RemediationPolicyStatus>),
    CreateControlWorker { node: Box<NodeView>, gate: Box<GateView>, identity: WorkerIdentity },
}

/// What to do about the policy now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyDecision {
    pub effects: Vec<PolicyEffect>,
    pub requeue_after: Duration,
}

/// Whether a remediation goes on, so that its node stays cordoned.
#[must_use]
pub fn needs_cordon(policy: Option<&Policy>, remediation: Option<&Remediation>) -> bool {
    let has_reservation = |one| policy.is_some_and(|policy| policy.reservation(one).is_some());
    remediation.is_some_and(|one| one.awaits_deletion() || has_reservation(one))
}

/// The nodes with a cordon of ours whose act has ended or whose remediation was deleted.
#[must_use]
pub fn cordons_to_remove<'a>(cluster: &ClusterView<'a>) -> Vec<&'a NodeView> {
    let is_reserved = |node: &NodeView| {
        let remediation = cluster.remediations.iter().find(|one| node.uid == one.name);
        needs_cordon(cluster.policy, remediation.copied())
    };
    let marked = cluster.nodes.iter().copied().filter(|node| node.marked && !node.terminating);
    marked.filter(|node| !is_reserved(node)).collect()
}

/// What the controller found out about its own work, for the policy's conditions.
#[derive(Clone, Copy, Debug, Default)]
pub struct PolicyFindings<'a> {
    /// What the server does not permit of [`super::needed_rights`].
    pub missing_rights: &'a [Right],
    /// The condition `ConfigurationApplied`, if the installation brought the policy.
    pub configuration: Option<&'a Finding>,
    /// A write of an earlier reconcile that the server has not accepted, and its answer.
    pub failed_write: Option<&'a str>,
}

/// Decides what to do about the policy now. `cordoned` are the nodes of [`cordons_to_remove`], read from the server.
#[must_use]
pub fn decide_policy(
    cluster: &ClusterView<'_>,
    stats: &GroupStats,
    cordoned: Vec<Target>,
    found: &PolicyFindings<'_>,
) -> PolicyDecision {
    let mut effects = Vec::new();
    let old = prune(cluster.policy, &cluster.remediations, cluster.now);
    let old = old.into_iter().take(MAX_PRUNED);
    effects.extend(old.map(|one| PolicyEffect::DeleteRemediation(Box::new(one.clone()))));
    let cordoned = cordoned.into_iter().filter(|target| !target.terminating);
    effects.extend(cordoned.map(|target| PolicyEffect::Uncordon(Box::new(target))));
    let zone_of = |node: &str| cluster.node(node).map(|node| zone(node).to_owned());
    // Control workers go also where somebody deleted the policy meanwhile.
    let expired = expired_controls(&cluster.controls, zone_of, cluster.elapsed);
    effects.extend(expired.into_iter().map(|one| PolicyEffect::DeleteControlWorker(Box::new(one.clone()))));
    let has_controls = !cluster.controls.is_empty();
    let Some(policy) = cluster.policy else {
        let requeue_after = if has_controls { BUSY_PERIOD } else { IDLE_PERIOD };
        return PolicyDecision { effects, requeue_after };
    };
    let compared: Vec<_> = cluster
        .compared_places(&[BlockReason::Comparing, BlockReason::SharedDependencyDown])
        .into_iter()
        .filter_map(|(gate, in_zone)| {
            let compared = cluster.compared(cluster.gate(&gate)?, &in_zone);
            Some((gate, in_zone, compared))
        })
        .collect();
    let status = reconcile_policy_status(&PolicyInput {
        policy,
        requests: &cluster.remediations,
        group_stats: stats,
        progress: &|uid| {
            let uid = Id::from(uid);
            match cluster.nodes.iter().find(|node| node.uid == uid) {
                None => NodeProgress::Gone,
                Some(node) if node.terminating => NodeProgress::Terminating,
                Some(node) if node.marked => NodeProgress::InReplacement,
                Some(_) => NodeProgress::Untouched,
            }
        },
        compared: &compared,
        found: *found,
        now: cluster.now,
    });
    let is_busy = cluster.remediations.iter().any(|remediation| !remediation.is_complete())
        || status.breaker.open
        || !status.down.is_empty()
        || status.cooldown_until.is_some()
        || policy.paused(cluster.now).is_some()
        || status.reservations.iter().any(|one| one.ended.is_none())
        || has_controls;
    if is_different(&status, &policy.status) {
        effects.push(PolicyEffect::UpdateStatus(Box::new(status)));
    }
    effects.extend(control_workers(cluster));
    let requeue_after = match policy.spec.enforcement {
        _ if is_busy => BUSY_PERIOD,
        ActEnforcement::Enforce => ENFORCING_PERIOD,
        ActEnforcement::DryRun => IDLE_PERIOD,
    };
    PolicyDecision { effects, requeue_after }
}

/// The control workers that are due: for gates and zones that are compared, one run at a time.
fn control_workers(cluster: &ClusterView<'_>) -> Vec<PolicyEffect> {
    let Some(policy) = cluster.policy else { return Vec::new() };
    let size = usize::try_from(policy.spec.control_group.size).unwrap_or_default();
    if size == 0 || policy.spec.enforcement == ActEnforcement::DryRun {
        return Vec::new();
    }
    // The name of a control worker is made from node and number, so one node cannot serve two gates under one number.
    let id_of = |control: &&WorkerView| (control.identity.node_uid.clone(), control.identity.number);
    let mut taken: BTreeSet<(String, u32)> = cluster.controls.iter().map(id_of).collect();
    let mut running = cluster.controls.iter().filter(|control| takes_slot(control, cluster.elapsed)).count();
    let mut effects = Vec::new();
    for (gate, in_zone) in cluster.compared_places(&[BlockReason::Comparing]) {
        let Some(gate) = cluster.gate(&gate) else { continue };
        let number = cluster.next_run_number(gate, &in_zone);
        let mut there = eligible_nodes(cluster.nodes.iter().copied(), gate, &in_zone, number);
        there.retain(|node| !taken.contains(&(node.uid.to_string(), number)));
        let is_due = cluster.compared(gate, &in_zone).is_due();
        if !is_due || running + size > MAX_RUNNING_CONTROLS || there.len() < size {
            continue;
        }
        running += size;
        there.truncate(size);
        taken.extend(there.iter().map(|node| (node.uid.to_string(), number)));
        effects.extend(there.into_iter().map(|node| PolicyEffect::CreateControlWorker {
            node: Box::new(node.clone()),
            gate: Box::new(gate.clone()),
            identity: WorkerIdentity {
                node_uid: node.uid.to_string(),
                boot_id: node.boot_id.to_string(),
                gate_uid: gate.uid.clone(),
                gate_generation: gate.generation,
                number,
            },
        }));
    }
    effects
}

/// Reasons whose message names what a user has to change.
const NAMING: [&str; 4] = [MISSING_RIGHTS, INVALID_WINDOW, INVALID_ANNOTATION, WRITE_REFUSED];

/// Whether a status says something else. Figures in messages are no reason to write; what a user has to change, or
/// edited, is one.
fn is_different(next: &RemediationPolicyStatus, before: &RemediationPolicyStatus) -> bool {
    let words = |status: &RemediationPolicyStatus| -> Vec<[String; 4]> {
        let words = |one: &Condition| {
            let names = one.type_ == CONFIGURATION_APPLIED || NAMING.contains(&one.reason.as_str());
            let message = if names { one.message.clone() } else { String::new() };
            [one.type_.clone(), one.status.clone(), one.reason.clone(), message]
        };
        status.conditions.iter().map(words).collect()
    };
    let bare = |status: &RemediationPolicyStatus| RemediationPolicyStatus {
        conditions: Vec::new(),
        ..status.clone()
    };
    bare(next) != bare(before) || words(next) != words(before)
}
