//! What a reconcile of a NodeRemediation does: one decision, as effects.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::act::{ActInput, NextStep, Step, next};
use super::control::is_compared;
use super::drain::PodView;
use super::provider::Replacement;
use super::view::ClusterView;
use super::{
    Approval, BlockReason, Blocked, EvaluationInput, GroupStats, Policy, Remediation, ReservationState,
    Right, Target, backoff, cluster_block, control_group_block, evaluate,
};
use crate::api::{NodeRemediationStatus, RemediationPolicyStatus, Reservation};
use crate::condition::Finding;
use crate::gate::{EventSpec, GateView};
use crate::reasons::remediation::{
    APPROVED, DELETION_TIMED_OUT, NODE_REPLACEMENT_REQUESTED, REMEDIATION_APPROVED, REMEDIATION_BLOCKED,
    REMEDIATION_GIVEN_UP, REQUEST_REFUSED, SUCCEEDED,
};
use crate::topology::zone;

/// After a write that another one follows.
const SOON: Duration = Duration::from_millis(100);
/// How often a blocked remediation is evaluated though nothing changed: most reasons say when they end.
const BLOCKED_PERIOD: Duration = Duration::from_mins(5);
/// How often an act is continued though nothing changed.
const ACT_PERIOD: Duration = Duration::from_secs(5);
const LONGEST_REFUSAL_BACKOFF: Duration = Duration::from_mins(1);
/// A reservation is confirmed within this time. An older one is left over from a crash, and its drain would begin late.
const CONFIRMED_WITHIN: SignedDuration = SignedDuration::from_mins(1);

/// One thing to do. Effects are applied in their order; one that fails ends the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Reserve the act in the policy's status.
    ReserveAct(Box<RemediationPolicyStatus>),
    /// Remove a reservation from the policy's status for which nothing was done. It does not count for the budget.
    ReleaseAct(Box<RemediationPolicyStatus>),
    UpdateStatus(Box<NodeRemediationStatus>),
    Cordon,
    Uncordon,
    EvictPods(Vec<PodView>),
    Replace(Replacement),
    EmitEvent(EventSpec),
}

/// What to do about a remediation now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub effects: Vec<Effect>,
    /// When to evaluate again though nothing changed; never if none.
    pub requeue_after: Option<Duration>,
    /// A reason for which it is blocked since now.
    pub newly_blocked: Option<Blocked>,
    /// The status that is written ends an act; whether it succeeded.
    pub act_ended: Option<bool>,
}

impl Decision {
    fn nothing() -> Self {
        Self { effects: Vec::new(), requeue_after: None, newly_blocked: None, act_ended: None }
    }
}

/// What was read from the API server for one decision, past every cache.
#[derive(Clone, Debug)]
pub struct LiveState {
    /// None if there is no policy or it cannot be parsed.
    pub policy: Option<Policy>,
    /// The gates of the causes, as far as they exist.
    pub gates: Vec<GateView>,
    pub target: Option<Target>,
    pub pods: Vec<PodView>,
    pub replacement: Replacement,
    /// What the API server does not permit of what the policy needs.
    pub missing_rights: Vec<Right>,
}

impl LiveState {
    /// Whether the node or its machine is gone or being deleted.
    fn is_deleted(&self) -> bool {
        self.target.as_ref().is_none_or(|target| target.terminating) || self.replacement.is_terminating()
    }

    /// The cluster with what was read in the place of what is cached.
    fn cluster<'a>(&'a self, remediation: &'a Remediation, cached: &ClusterView<'a>) -> ClusterView<'a> {
        let is_read = |gate: &&GateView| remediation.gate_names().any(|name| name == gate.name);
        let others = cached.gates.iter().copied().filter(|gate| !is_read(gate));
        let remediations = cached.remediations.iter().copied().filter(|one| one.name != remediation.name);
        ClusterView {
            remediations: remediations.chain([remediation]).collect(),
            gates: others.chain(&self.gates).collect(),
            policy: self.policy.as_ref(),
            ..cached.clone()
        }
    }
}

/// Refused requests of one remediation in a row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefusalBackoff {
    refusals: u32,
    /// What the API server said last.
    pub message: String,
}

impl RefusalBackoff {
    /// Counts one more refusal, and returns how long to wait.
    pub fn refused(&mut self, message: String) -> Duration {
        let wait = ACT_PERIOD * 2_u32.saturating_pow(self.refusals.min(8));
        self.refusals = self.refusals.saturating_add(1);
        self.message = message;
        wait.min(LONGEST_REFUSAL_BACKOFF)
    }
}

/// Decides without reading anything from the API server, where that is possible: where many nodes fail, most
/// remediations are blocked for the whole cluster.
#[must_use]
pub fn decide_cached(
    remediation: &Remediation,
    cluster: &ClusterView<'_>,
    stats: &GroupStats,
) -> Option<Decision> {
    if cluster.policy.and_then(|policy| policy.reservation(remediation)).is_some() {
        return None;
    }
    if remediation.is_complete() {
        return Some(Decision::nothing());
    }
    if remediation.is_approved() {
        // The cached policy may be older than the approval.
        return None;
    }
    if cluster.node(&remediation.spec.node.name).is_none_or(|node| node.uid != remediation.spec.node.uid) {
        // It ends, whatever blocks all others.
        return None;
    }
    let blocked = cluster_block(cluster.policy, &cluster.remediations, stats, cluster.now)
        .or_else(|| blocked_by_control_group(remediation, cluster));
    blocked.map(|blocked| block(remediation, blocked, cluster.now))
}

fn blocked_by_control_group(remediation: &Remediation, cluster: &ClusterView<'_>) -> Option<Blocked> {
    let compares = [BlockReason::Comparing.as_str(), BlockReason::SharedDependencyDown.as_str()];
    let is_waiting =
        remediation.condition(APPROVED).is_some_and(|now| compares.contains(&now.reason.as_str()));
    let policy = cluster.policy.filter(|_| is_waiting)?;
    let node = cluster.node(&remediation.spec.node.name)?;
    // The cause that is compared first.
    let gate = cluster.gate(&remediation.gate_causes().find(|cause| is_compared(cause))?.name)?;
    // A node that passed, or another node of its name, is found out by reading it.
    let mut failing = node.failing_scopes();
    let is_same = node.uid == remediation.spec.node.uid
        && !node.terminating
        && failing.any(|scope| scope.gate_uid == gate.uid);
    let others = cluster.others(remediation, Some(node), zone(node));
    control_group_block(policy, remediation, zone(node), &others).filter(|_| is_same)
}

/// Decides what to do about a remediation now, which was read from the API server too.
#[must_use]
pub fn decide<'a>(
    remediation: &'a Remediation,
    cached: &ClusterView<'a>,
    stats: &GroupStats,
    live: &'a LiveState,
    refused_eviction: Option<&str>,
) -> Decision {
    let cluster = &live.cluster(remediation, cached);
    let reservation = cluster.policy.and_then(|policy| policy.reservation(remediation));
    let unconfirmed = match reservation.map(|one| (one, remediation.reservation_state(one))) {
        Some((one, ReservationState::Approved)) => {
            return act(remediation, cluster, one, live, refused_eviction);
        }
        // Our cordon may be left.
        Some((one, ReservationState::Ended)) if remediation.is_complete() => {
            return act(remediation, cluster, one, live, refused_eviction);
        }
        Some((one, ReservationState::Unconfirmed)) => Some(one),
        None if remediation.is_complete() => return Decision::nothing(),
        // Whatever has become of the policy, what is being deleted is not decided about again.
        None if remediation.awaits_deletion() && live.is_deleted() => {
            let Some(restored) = remediation.restored_reservation() else { return Decision::nothing() };
            return act(remediation, cluster, &restored, live, refused_eviction);
        }
        // The policy's next reconcile ends the reservation of what was given up.
        Some((_, ReservationState::Ended)) | None => None,
    };
    let approval = approval(remediation, cluster, stats, live);
    let now = cluster.now;
    match (approval, cluster.policy.zip(unconfirmed)) {
        (Approval::Approved(status), None) => Decision {
            effects: vec![Effect::ReserveAct(status)],
            requeue_after: Some(SOON),
            ..Decision::nothing()
        },
        (Approval::Approved(_), Some((policy, one))) => confirm(remediation, policy, one, live, now),
        (Approval::Blocked(blocked), None) => block(remediation, blocked, now),
        (Approval::Blocked(blocked), Some((policy, one))) => {
            let mut decision = block(remediation, blocked, now);
            decision.effects.insert(0, release(policy, one));
            decision
        }
    }
}

fn release(policy: &Policy, reservation: &Reservation) -> Effect {
    Effect::ReleaseAct(Box::new(policy.status_without(reservation)))
}

/// The remediation says that it is approved. The act begins only after this write has landed.
fn confirm(
    remediation: &Remediation,
    policy: &Policy,
    reservation: &Reservation,
    live: &LiveState,
    now: Timestamp,
) -> Decision {
    let boot = live.target.as_ref().map(|target| &target.identity.boot_id);
    let is_recent = now.duration_since(reservation.at) < CONFIRMED_WITHIN;
    let effects = if is_recent && boot == Some(&reservation.boot_id) {
        let note = format!("the replacement of the node was approved: {}", first_message(remediation));
        let event = EventSpec::new(false, REMEDIATION_APPROVED, "Approve", note);
        let status = remediation.approved_status(reservation, now);
        vec![Effect::UpdateStatus(Box::new(status)), Effect::EmitEvent(event)]
    } else {
        vec![release(policy, reservation)]
    };
    Decision { effects, requeue_after: Some(SOON), ..Decision::nothing() }
}

fn approval(
    remediation: &Remediation,
    cluster: &ClusterView<'_>,
    stats: &GroupStats,
    live: &LiveState,
) -> Approval {
    let target = live.target.as_ref();
    let others = target.map(|target| {
        let node = cluster.node(&target.identity.name).filter(|node| node.uid == target.identity.uid);
        cluster.others(remediation, node, &target.zone)
    });
    evaluate(&EvaluationInput {
        request: remediation,
        policy: cluster.policy,
        target,
        gates: &cluster.gates,
        pods: &live.pods,
        replacement: &live.replacement,
        group_stats: stats,
        requests: &cluster.remediations,
        others: &others.unwrap_or_default(),
        missing_rights: &live.missing_rights,
        now: cluster.now,
    })
}

fn first_message(remediation: &Remediation) -> String {
    remediation.spec.causes.first().map(|cause| cause.message.clone()).unwrap_or_default()
}

/// Nothing is done; the status says why.
fn block(remediation: &Remediation, blocked: Blocked, now: Timestamp) -> Decision {
    let reason = blocked.reason;
    let before = remediation.condition(APPROVED).map(|condition| condition.reason.as_str());
    let is_new = before != Some(reason.as_str());
    let status = remediation.status_with(blocked.findings(), now);
    // Figures in a message are no reason to write it again.
    let words = |status: &NodeRemediationStatus| {
        let approved = status.conditions.iter().find(|condition| condition.type_ == APPROVED);
        approved.map(|condition| condition.message.replace(|letter: char| letter.is_ascii_digit(), ""))
    };
    let says_more = words(&status) != words(&remediation.status);
    let reopened = remediation.finished_at().is_some() != reason.is_end();
    let ends_again = reason.is_end() && !remediation.is_complete();
    let was_refused = remediation.condition(SUCCEEDED).is_some_and(|one| one.reason == REQUEST_REFUSED);
    let mut effects = Vec::new();
    if is_new || says_more || reopened || ends_again || was_refused {
        effects.push(Effect::UpdateStatus(Box::new(status)));
    }
    if is_new && !reason.is_end() && reason != BlockReason::Comparing {
        let note = format!("the node is not replaced: {}", blocked.message);
        effects.push(Effect::EmitEvent(EventSpec::new(true, REMEDIATION_BLOCKED, reason.as_str(), note)));
    }
    let wait = blocked.requeue_after.unwrap_or(BLOCKED_PERIOD).clamp(SOON, BLOCKED_PERIOD);
    Decision {
        effects,
        requeue_after: (!reason.is_end()).then_some(wait),
        newly_blocked: is_new.then_some(blocked),
        act_ended: None,
    }
}

/// The next step of an approved act.
fn act(
    remediation: &Remediation,
    cluster: &ClusterView<'_>,
    reservation: &Reservation,
    live: &LiveState,
    refused_eviction: Option<&str>,
) -> Decision {
    let now = cluster.now;
    let next = next(&ActInput {
        request: remediation,
        policy: cluster.policy,
        reservation,
        target: live.target.as_ref(),
        gates: &cluster.gates,
        pods: &live.pods,
        replacement: &live.replacement,
        blocked: refused_eviction.filter(|message| !message.is_empty()),
        now,
    });
    let is_end = next.is_end();
    let NextStep { step, findings, requeue_after } = next;
    let result = findings.iter().find(|one| one.type_ == SUCCEEDED).cloned();
    let wait = if step == Step::Cordon { SOON } else { requeue_after.unwrap_or(ACT_PERIOD) };
    let mut effects = Vec::new();
    // The leader that reserved the act may have had a clock ahead of ours.
    let mut status = remediation.status_with(findings, now.max(reservation.at));
    if live.target.is_some() {
        effects = step_effects(remediation, step);
        live.replacement.provider().clone_into(&mut status.provider);
        let machine = live.replacement.machine();
        if !machine.is_empty() {
            machine.clone_into(&mut status.machine);
        }
    }
    if let Some(failed) = result.as_ref().filter(|result| result.status == "False") {
        status.backoff = backoff::after_failure(status.backoff.as_ref(), failed.reason, now);
    }
    let mut act_ended = None;
    if status != remediation.status {
        // An end is recorded before anything is undone: what cannot be undone now must not go on later.
        let place = if is_end { 0 } else { effects.len() };
        effects.insert(place, Effect::UpdateStatus(Box::new(status)));
        act_ended = result.as_ref().filter(|_| is_end).map(|result| result.status == "True");
        effects.extend(result.and_then(|result| result_event(remediation, &result)).map(Effect::EmitEvent));
    }
    Decision { effects, requeue_after: Some(wait), newly_blocked: None, act_ended }
}

fn step_effects(remediation: &Remediation, step: Step) -> Vec<Effect> {
    match step {
        Step::Wait => Vec::new(),
        Step::Cordon => vec![Effect::Cordon],
        Step::Uncordon => vec![Effect::Uncordon],
        Step::Evict(pods) => vec![Effect::EvictPods(pods)],
        Step::Replace(replacement) => {
            let note = format!("{}: {}", replacement.message(), first_message(remediation));
            let event = EventSpec::new(true, NODE_REPLACEMENT_REQUESTED, replacement.action(), note);
            vec![Effect::Replace(replacement), Effect::EmitEvent(event)]
        }
    }
}

/// The Event about an act that has failed, or that cannot end.
fn result_event(remediation: &Remediation, result: &Finding) -> Option<EventSpec> {
    if result.status == "False" {
        let note = format!("the replacement of the node was given up: {}", result.message);
        return Some(EventSpec::new(true, REMEDIATION_GIVEN_UP, "GiveUp", note));
    }
    let is_known = remediation.condition(SUCCEEDED).is_some_and(|one| one.reason == DELETION_TIMED_OUT);
    let is_late = result.reason == DELETION_TIMED_OUT && !is_known;
    is_late.then(|| EventSpec::new(true, DELETION_TIMED_OUT, "AwaitDeletion", result.message.clone()))
}
