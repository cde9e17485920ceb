//! The only door to a destructive act: may this go ahead now, and what is its next step?
//!
//! [`consider`] is asked before anything is done, and all brakes are in it. What it approves is reserved in the policy by
//! one guarded write; from then on [`act::next`] says each step.

pub mod act;
mod blocked;
mod breaker;
mod budget;
pub mod control;
pub mod drain;
mod evidence;
mod fuse;
mod group_stats;
mod policy;
pub mod provider;
mod target;
mod window;

use jiff::{SignedDuration, Timestamp};

use crate::api::{
    ActEnforcement, CauseSource, CauseVerdict, Condition, FailedCheck, NodeRemediation, NodeRemediationSpec,
    NodeRemediationStatus, RemediationCause, RemediationPolicy, RemediationPolicySpec,
    RemediationPolicyStatus, Reservation,
};
use crate::condition::{Finding, conditions};
use crate::record::{InconclusiveReason, Record};
use control::{Compared, Comparison};
use drain::DrainPlan;
use evidence::live;
use provider::Replacement;

pub use blocked::{BlockReason, Blocked};
pub use evidence::{evidence, evidence_lasts};
pub use group_stats::{GroupCounts, GroupStats, VerdictCounts};
pub use policy::{PolicyInput, prune, reconcile_policy_status};
pub use target::Target;

/// What the budget counts over.
pub const HOUR: SignedDuration = SignedDuration::from_hours(1);
/// An act that has not ended after this is no longer waited for.
pub const LONGEST_ACT: SignedDuration = SignedDuration::from_hours(1);

/// A `NodeRemediation`, as far as anything is decided by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remediation {
    /// Its name: the uid of the node.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// For guarded writes.
    pub resource_version: String,
    /// Changes with its spec.
    pub generation: i64,
    /// When it was made.
    pub created: Timestamp,
    /// What is asked for.
    pub spec: NodeRemediationSpec,
    /// What became of it.
    pub status: NodeRemediationStatus,
}

impl Remediation {
    /// Keeps what is needed.
    #[must_use]
    pub fn new(object: &NodeRemediation) -> Self {
        let metadata = &object.metadata;
        Self {
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            resource_version: metadata.resource_version.clone().unwrap_or_default(),
            generation: metadata.generation.unwrap_or_default(),
            created: metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            spec: object.spec.clone(),
            status: object.status.clone().unwrap_or_default(),
        }
    }

    /// One of its conditions.
    #[must_use]
    pub fn condition(&self, type_: &str) -> Option<&Condition> {
        self.status.conditions.iter().find(|condition| condition.type_ == type_)
    }

    /// When it came to an end, if it did.
    #[must_use]
    pub fn finished(&self) -> Option<Timestamp> {
        let ended = self.condition("Succeeded").filter(|condition| condition.status != "Unknown")?;
        Some(ended.last_transition_time.parse().unwrap_or(self.created))
    }

    /// When it was last approved, whatever became of it.
    #[must_use]
    pub fn approved(&self) -> Option<Timestamp> {
        self.status.approved_at
    }

    /// When its youngest cause was seen.
    #[must_use]
    pub fn asked(&self) -> Timestamp {
        let seen = self.spec.causes.iter().map(|cause| cause.observed_at.unwrap_or(self.created));
        seen.max().unwrap_or(self.created)
    }

    /// Whether it came to an end and nobody asked again. A node that was replaced is not replaced twice.
    #[must_use]
    pub fn is_history(&self) -> bool {
        let succeeded = self.condition("Succeeded").is_some_and(|condition| condition.status == "True");
        succeeded || self.finished().is_some_and(|at| self.asked() <= at)
    }

    /// The gate that asks, the last one if there are several, and the checks that fail there.
    #[must_use]
    pub fn gate_cause(&self) -> Option<(&str, &[FailedCheck])> {
        let gates = self.spec.causes.iter().filter(|cause| cause.source == CauseSource::Gate);
        let gate = gates.rev().max_by_key(|cause| cause.observed_at)?;
        Some((&gate.name, &gate.checks))
    }

    /// Its status with these findings.
    #[must_use]
    pub fn status_with(&self, findings: Vec<Finding>, now: Timestamp) -> NodeRemediationStatus {
        let mut before = self.status.conditions.clone();
        if !self.is_history() && findings.iter().any(|finding| finding.type_ == "Succeeded") {
            // An end after somebody asked again is another one, though it may look like the last.
            before.retain(|condition| condition.type_ != "Succeeded" || condition.status == "Unknown");
        }
        // No end is before what came to it, though a clock may be behind: else it would be another one each time.
        let is_end = findings.iter().any(|one| one.type_ == "Succeeded" && one.status != "Unknown");
        let least = self.status.approved_at.into_iter().chain([self.asked()]).max();
        let now = least.filter(|_| is_end).map_or(now, |least| now.max(least));
        let conditions = conditions(findings, &before, self.generation, &now.to_string());
        let approved = conditions.iter().find(|one| one.type_ == "Approved" && one.status == "True");
        NodeRemediationStatus {
            observed_generation: self.generation,
            approved_at: approved
                .and_then(|one| one.last_transition_time.parse().ok())
                .or(self.status.approved_at),
            conditions,
            ..self.status.clone()
        }
    }
}

/// The `RemediationPolicy`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Its uid.
    pub uid: String,
    /// For guarded writes.
    pub resource_version: String,
    /// Changes with its spec.
    pub generation: i64,
    /// What it says.
    pub spec: RemediationPolicySpec,
    /// What is reserved.
    pub status: RemediationPolicyStatus,
}

impl Policy {
    /// The only name that counts.
    pub const NAME: &'static str = "default";

    /// Keeps what is needed; none of one with another name or that is being deleted.
    #[must_use]
    pub fn new(object: &RemediationPolicy) -> Option<Self> {
        let metadata = &object.metadata;
        let counts = metadata.name.as_deref() == Some(Self::NAME) && metadata.deletion_timestamp.is_none();
        counts.then(|| Self {
            uid: metadata.uid.clone().unwrap_or_default(),
            resource_version: metadata.resource_version.clone().unwrap_or_default(),
            generation: metadata.generation.unwrap_or_default(),
            spec: object.spec.clone(),
            status: object.status.clone().unwrap_or_default(),
        })
    }

    /// Why everything destructive stands still, if somebody paused it.
    #[must_use]
    pub fn paused(&self, now: Timestamp) -> Option<String> {
        let pause = self.spec.pause.as_ref().filter(|pause| now < pause.until)?;
        Some(format!(
            "paused by `spec.pause` of the policy until {}: {}",
            format_time(pause.until),
            pause.reason
        ))
    }

    /// Whether the bare Node object may be deleted on the word of all who ask, where nobody replaces the replacement.
    #[must_use]
    pub fn deletes_node_object_for(&self, request: &Remediation) -> bool {
        let named =
            |cause: &RemediationCause| self.spec.delete_node_object_for.iter().any(|one| one.matches(cause));
        !request.spec.causes.is_empty() && request.spec.causes.iter().all(named)
    }

    /// What requests are held or let go by: all but what it says for people.
    #[must_use]
    pub fn brakes(&self) -> (i64, RemediationPolicyStatus) {
        (self.generation, RemediationPolicyStatus { conditions: Vec::new(), ..self.status.clone() })
    }

    /// The act that was approved for this request and has not ended.
    #[must_use]
    pub fn reservation(&self, request: &Remediation) -> Option<&Reservation> {
        self.status.reservations.iter().find(|one| one.remediation == request.name && one.ended.is_none())
    }
}

/// All that is looked at before anything is done.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// What is asked for.
    pub request: &'a Remediation,
    /// The brakes; none if there is no policy or it cannot be read.
    pub policy: Option<&'a Policy>,
    /// The node, read from the server just now; none if there is none of that name.
    pub target: Option<&'a Target>,
    /// Its pods, read just now.
    pub pods: &'a [drain::PodView],
    /// Who would replace it.
    pub replacement: &'a Replacement,
    /// All nodes.
    pub group_stats: &'a GroupStats,
    /// All requests, this one among them.
    pub requests: &'a [&'a Remediation],
    /// How nodes that work fare with the same checks.
    pub compared: &'a Compared,
    /// Workers with the image of the node's gate told something on another node lately.
    pub ran_elsewhere: bool,
    /// The time of day.
    pub now: Timestamp,
}

/// A time, for people: nobody reads nanoseconds.
fn format_time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// What follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Approval {
    /// Nothing is done.
    BlockReason(Blocked),
    /// The checks that failed have to run on nodes that work first.
    Compare(Blocked),
    /// It goes ahead, once this is the policy's status: the reservation is in it.
    Approve(Box<RemediationPolicyStatus>),
}

/// An outage that is known takes what the gate said back, which is then no evidence any more: people are to read why.
fn for_the_outage(seen: &Seen<'_>, target: &Target) -> Option<Blocked> {
    let is_frozen = |record: &Record| record.cause == Some(InconclusiveReason::SharedDependency);
    let causes: Vec<&RemediationCause> = seen.request.spec.causes.iter().collect();
    let down = &seen.policy?.status.down;
    target.record.as_ref().filter(|record| is_frozen(record))?;
    control::known_outage(down, &causes, &target.zone).err()
}

/// Whether the act may go ahead now.
#[must_use]
pub fn evaluate(seen: &Seen<'_>) -> Approval {
    let target = match resolve_target(seen) {
        Ok(target) => target,
        Err(held) => return Approval::BlockReason(held),
    };
    let causes = match live(seen.request, target, seen.policy, seen.ran_elsewhere, seen.now) {
        Ok(causes) => causes,
        Err(held) if held.hold == BlockReason::EvidenceExpired => {
            return Approval::BlockReason(for_the_outage(seen, target).unwrap_or(held));
        }
        Err(held) => return Approval::BlockReason(held),
    };
    let unheard = Policy {
        uid: String::new(),
        resource_version: String::new(),
        generation: 0,
        spec: RemediationPolicySpec::default(),
        status: RemediationPolicyStatus::default(),
    };
    let policy = seen.policy.unwrap_or(&unheard);
    let is_dry = policy.spec.enforcement == ActEnforcement::DryRun;
    let held = brakes(seen, policy, target, &causes).err();
    if is_dry {
        let policy = if seen.policy.is_some() {
            "`spec.enforcement` of the RemediationPolicy is 'DryRun'"
        } else {
            "there is no RemediationPolicy 'default'"
        };
        let would = held.map_or_else(
            || "it would be compared with nodes that work, and replaced if they pass".to_owned(),
            |held| format!("it would be held: {}: {}", held.hold.as_str(), held.message),
        );
        return Approval::BlockReason(Blocked::new(BlockReason::DryRun, format!("{policy}; {would}")));
    }
    if let Some(held) = held {
        return Approval::BlockReason(held);
    }
    if let Some(approval) = comparison(policy, &target.zone, &causes, seen.compared) {
        return approval;
    }
    let mut status = policy.status.clone();
    fuse::burn(&mut status.fuses, &policy.spec.fuse, &check_names(&causes), target, seen.now);
    status.reservations.push(Reservation {
        remediation: seen.request.name.clone(),
        node: target.identity.name.clone(),
        group: target.group.clone(),
        zone: target.zone.clone(),
        at: seen.now,
        ended: None,
    });
    Approval::Approve(Box::new(status))
}

/// What keeps every act from being approved now, whatever it is about: found out without asking the server anything.
#[must_use]
pub fn cluster_block(
    policy: Option<&Policy>,
    requests: &[&Remediation],
    group_stats: &GroupStats,
    now: Timestamp,
) -> Option<Blocked> {
    let policy = policy.filter(|policy| policy.spec.enforcement == ActEnforcement::Enforce)?;
    cluster(policy, group_stats, now).and_then(|()| budget::cluster(policy, requests, now)).err()
}

/// The brakes that hold for the whole cluster.
fn cluster(policy: &Policy, group_stats: &GroupStats, now: Timestamp) -> Result<(), Blocked> {
    if let Some(why) = policy.paused(now) {
        let until = policy.spec.pause.as_ref().map_or(now, |pause| pause.until);
        return Err(Blocked::new(BlockReason::Paused, why).until(until, now));
    }
    if let Some(until) = policy.status.cooldown_until.filter(|until| now < *until) {
        let message = format!(
            "something that all nodes share has just recovered: nothing destructive is done before {} (`spec.controlGroup.recoverySeconds` of the policy)",
            format_time(until)
        );
        return Err(Blocked::new(BlockReason::Recovering, message).until(until, now));
    }
    breaker::check(&policy.spec.breaker, &policy.status.breaker, group_stats.verdicts)
}

/// The node in the life that was asked for, and nobody is removing it.
fn resolve_target<'a>(seen: &Seen<'a>) -> Result<&'a Target, Blocked> {
    let wanted = &seen.request.spec.node;
    let Some(target) = seen.target.filter(|target| target.identity.uid == wanted.uid) else {
        let message = format!("there is no node {} with this uid any more", wanted.name);
        return Err(Blocked::new(BlockReason::NodeGone, message));
    };
    if !wanted.boot_id.is_empty() && wanted.boot_id != target.identity.boot_id {
        return Err(Blocked::new(BlockReason::OtherBoot, "the node was booted since this was asked for"));
    }
    if !wanted.provider_id.is_empty() && wanted.provider_id != target.identity.provider_id {
        return Err(Blocked::new(BlockReason::NodeGone, "the Node stands for another machine now"));
    }
    if target.terminating {
        return Err(Blocked::new(
            BlockReason::BeingRemoved,
            "somebody else is removing the node: it is left to them",
        ));
    }
    Ok(target)
}

/// Every brake, but for those that cost something.
fn brakes(
    seen: &Seen<'_>,
    policy: &Policy,
    target: &Target,
    causes: &[&RemediationCause],
) -> Result<(), Blocked> {
    let now = seen.now;
    cluster(policy, seen.group_stats, now)?;
    opted_out(target, seen.pods)?;
    if target.control_plane && !policy.spec.allowed_control_plane_nodes.contains(&target.identity.name) {
        let message =
            "control-plane nodes are never touched; name it in `spec.allowedControlPlaneNodes` of the policy";
        return Err(Blocked::new(BlockReason::ControlPlane, message));
    }
    provider::check(seen.replacement, target)?;
    if let DrainPlan::Refused(_, message) = drain::plan(seen.pods, &policy.spec.drain, now, now) {
        return Err(Blocked::new(BlockReason::PodNotEvictable, message));
    }
    let for_gate = causes.iter().any(|cause| cause.source == CauseSource::Gate);
    window::check(&policy.spec.windows, now).or_else(|held| if for_gate { Ok(()) } else { Err(held) })?;
    control::known_outage(&policy.status.down, causes, &target.zone)?;
    fuse::check(policy, &check_names(causes), target, seen.group_stats, now)?;
    budget::check(policy, seen.requests, target, seen.group_stats, now)
}

fn opted_out(target: &Target, pods: &[drain::PodView]) -> Result<(), Blocked> {
    if let Some(key) = target.opted_out {
        let message = format!("the node bears the annotation {key}: remove it to have the node replaced");
        return Err(Blocked::new(BlockReason::OptedOut, message));
    }
    match pods.iter().find_map(|pod| Some((pod, pod.opted_out?))) {
        Some((pod, key)) => {
            let message = format!(
                "its pod {}/{} bears the annotation {key}: remove it, or the pod, to have the node replaced",
                pod.namespace, pod.name
            );
            Err(Blocked::new(BlockReason::OptedOut, message))
        }
        None => Ok(()),
    }
}

/// What fails, each once: the checks by name, and `Stuck` where no worker could tell.
fn check_names<'a>(causes: &[&'a RemediationCause]) -> Vec<&'a str> {
    let stuck = causes.iter().any(|cause| cause.verdict == CauseVerdict::Stuck && cause.checks.is_empty());
    let checks = causes.iter().flat_map(|cause| &cause.checks).map(|check| check.name.as_str());
    let mut names: Vec<&str> = checks.chain(stuck.then_some("Stuck")).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Why a request that waits for a comparison goes on waiting: found out without asking the server anything.
#[must_use]
pub fn control_group_block(
    policy: &Policy,
    request: &Remediation,
    zone: &str,
    compared: &Compared,
) -> Option<Blocked> {
    let causes: Vec<&RemediationCause> = request.spec.causes.iter().collect();
    if let Err(held) = control::known_outage(&policy.status.down, &causes, zone) {
        return Some(held);
    }
    match comparison(policy, zone, &causes, compared)? {
        Approval::BlockReason(held) | Approval::Compare(held) => Some(held),
        Approval::Approve(_) => None,
    }
}

/// Nodes that work have to pass what this one fails. None if they do.
fn comparison(
    policy: &Policy,
    zone: &str,
    causes: &[&RemediationCause],
    compared: &Compared,
) -> Option<Approval> {
    let by_gate = |cause: &&&RemediationCause| cause.source == CauseSource::Gate && !cause.checks.is_empty();
    let RemediationCause { name: gate, checks, .. } = causes.iter().find(by_gate)?;
    let size = usize::try_from(policy.spec.control_group.size).unwrap_or_default();
    let place = if zone.is_empty() { String::new() } else { format!(" of zone {zone}") };
    let held = |hold, message| Blocked { again_in: Some(control::SHARED), ..Blocked::new(hold, message) };
    match compared.judge(size, checks) {
        Comparison::NodeIsWorse => None,
        Comparison::Due => {
            let message =
                format!("{size} verified nodes{place} are looked at with the checks of gate {gate}");
            Some(Approval::Compare(held(BlockReason::Comparing, message)))
        }
        Comparison::Running => {
            let message =
                format!("{size} verified nodes{place} are being looked at with the checks of gate {gate}");
            Some(Approval::BlockReason(held(BlockReason::Comparing, message)))
        }
        Comparison::Shared(what) => Some(Approval::BlockReason(held(
            BlockReason::SharedDependencyDown,
            format!("verified nodes{place} fail alike: {what}. It is not the node"),
        ))),
        Comparison::TooFew(there) => Some(Approval::BlockReason(held(
            BlockReason::SharedDependencyDown,
            format!(
                "{there} verified nodes{place} could be compared with, and {size} are needed (`spec.controlGroup.size` of the policy): it may not be the node"
            ),
        ))),
    }
}

#[cfg(test)]
mod tests;
