//! Carries out an approved remediation step by step. Each step follows from the observed objects alone, so another leader can
//! go on with it.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::drain::{DrainPlan, PodView, plan};
use super::limits::{check_cluster, check_control_plane, check_opted_out};
use super::provider::Replacement;
use super::remediation::approval_message;
use super::{
    BlockReason, Blocked, EvidenceInput, GroupStats, MAX_DURATION, Policy, Remediation, Target,
    check_identity, control, evidence,
};
use crate::api::{ActEnforcement, RemediationPolicySpec, Reservation};
use crate::condition::Finding;
use crate::gate::GateView;
use crate::reasons::remediation::{
    APPROVED, CORDONING, DELETION_TIMED_OUT, DRAINED, DRAINING, IN_PROGRESS, NODE_GONE, REPLACED, REQUESTED,
    SUCCEEDED, TIMED_OUT, WITHIN_BUDGET,
};

/// When to look again if no watched object changes before.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// The same for a node whose deletion takes longer than [`MAX_DURATION`].
const LATE_POLL_INTERVAL: Duration = Duration::from_mins(1);

/// What the next step is decided from.
#[derive(Clone, Copy, Debug)]
pub struct ActInput<'a> {
    pub request: &'a Remediation,
    /// None if there is no policy or it cannot be read.
    pub policy: Option<&'a Policy>,
    pub reservation: &'a Reservation,
    /// The node, read from the API server just now.
    pub target: Option<&'a Target>,
    /// All gates. Those of the causes were read from the API server just now.
    pub gates: &'a [&'a GateView],
    /// Its pods, read from the API server just now.
    pub pods: &'a [PodView],
    pub replacement: &'a Replacement,
    /// The answer of the API server to the last eviction that it refused.
    pub blocked: Option<&'a str>,
    pub now: Timestamp,
}

/// One step of a remediation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Make the node unschedulable, and annotate it with the name of the remediation.
    Cordon,
    /// Remove the annotation and our cordon.
    Uncordon,
    Evict(Vec<PodView>),
    /// Tell the provider to replace the machine.
    Replace(Replacement),
    Wait,
}

/// The next step of a remediation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextStep {
    pub step: Step,
    /// The conditions to set after the step.
    pub findings: Vec<Finding>,
    /// When to look again. None if the remediation has ended.
    pub requeue_after: Option<Duration>,
}

impl NextStep {
    #[must_use]
    pub fn is_end(&self) -> bool {
        self.requeue_after.is_none()
    }

    fn end(step: Step, findings: Vec<Finding>) -> Self {
        Self { step, findings, requeue_after: None }
    }

    fn in_progress(step: Step, mut findings: Vec<Finding>, message: &str) -> Self {
        findings.push(Finding::new(SUCCEEDED, "Unknown", IN_PROGRESS, message));
        Self { step, findings, requeue_after: Some(POLL_INTERVAL) }
    }
}

/// The next step of an approved remediation.
#[must_use]
pub fn next(seen: &ActInput<'_>) -> NextStep {
    let request = seen.request;
    let approved = Finding::new(APPROVED, "True", WITHIN_BUDGET, approval_message(seen.reservation));
    let Some(target) = seen.target.filter(|target| target.identity.uid == request.spec.node.uid) else {
        let message = "the node is gone";
        let replaced = Finding::new(REPLACED, "True", NODE_GONE, message);
        let succeeded = Finding::new(SUCCEEDED, "True", REPLACED, message);
        return NextStep::end(Step::Wait, vec![approved, replaced, succeeded]);
    };
    let is_terminating = target.terminating || seen.replacement.is_terminating();
    // A remediation that has failed does not go on, even if the policy's status still has its reservation.
    if request.finished_at().is_some_and(|ended| ended >= seen.reservation.at) {
        let step = if is_terminating { Step::Wait } else { undo_cordon(request, target) };
        return NextStep::end(step, Vec::new());
    }
    let is_late = seen.now.duration_since(seen.reservation.at) >= MAX_DURATION;
    if is_terminating {
        return await_deletion(approved, is_late);
    }
    if let Err((reason, message)) = may_continue(seen, target, is_late) {
        return fail(request, target, reason, message, None);
    }
    drain(seen, target, approved)
}

/// What was deleted cannot be given up. However long it takes, the node stays cordoned, because it must not get pods any
/// more, and it counts as in flight, because its replacement may exist already or may never come.
fn await_deletion(approved: Finding, is_late: bool) -> NextStep {
    let message = "the node is being deleted";
    let replaced = Finding::new(REPLACED, "True", REQUESTED, message);
    if !is_late {
        return NextStep::in_progress(Step::Wait, vec![approved, replaced], message);
    }
    let message = "the node is being deleted and still exists after an hour: check its finalizers and those of its NodeClaim. Until it is gone it stays cordoned and counts as in flight";
    let late = Finding::new(SUCCEEDED, "Unknown", DELETION_TIMED_OUT, message);
    NextStep {
        step: Step::Wait,
        findings: vec![approved, replaced, late],
        requeue_after: Some(LATE_POLL_INTERVAL),
    }
}

/// What blocks an approval also stops a remediation in flight. It is not resumed later.
fn may_continue(seen: &ActInput<'_>, target: &Target, is_late: bool) -> Result<(), (&'static str, String)> {
    check(seen, target).map_err(|blocked| (blocked.reason.as_str(), blocked.message))?;
    if is_late {
        return Err((TIMED_OUT, "the remediation took longer than an hour".into()));
    }
    Ok(())
}

/// The checks of an approval, except for those that its reservation has passed for good: budget, fuse and windows.
fn check(seen: &ActInput<'_>, target: &Target) -> Result<(), Blocked> {
    check_identity(&seen.request.spec.node, target)?;
    if seen.reservation.boot_id != target.identity.boot_id {
        return Err(Blocked::new(BlockReason::NodeRebooted, "the node has rebooted since the approval"));
    }
    let Some(policy) = seen.policy.filter(|policy| policy.spec.enforcement == ActEnforcement::Enforce) else {
        return Err(Blocked::new(BlockReason::DryRun, "the RemediationPolicy no longer enforces"));
    };
    let others = BTreeMap::new();
    let causes = evidence::fresh_causes(&EvidenceInput {
        request: seen.request,
        target,
        policy: seen.policy,
        gates: seen.gates,
        others: &others,
        approved_at: Some(seen.reservation.at),
        now: seen.now,
    })?;
    // The breaker's state in the policy's status decides here. The nodes are not counted again.
    check_cluster(policy, &GroupStats::default(), seen.now)?;
    check_opted_out(target, seen.pods)?;
    check_control_plane(policy, target)?;
    control::known_outage(&policy.status.down, &causes, &target.zone)?;
    if *seen.replacement == Replacement::None {
        return Err(Blocked::new(BlockReason::NoProvider, seen.replacement.message()));
    }
    Ok(())
}

fn drain(seen: &ActInput<'_>, target: &Target, approved: Finding) -> NextStep {
    let default = RemediationPolicySpec::default();
    let spec = seen.policy.map_or(&default, |policy| &policy.spec);
    let plan = plan(seen.pods, &spec.drain, seen.reservation.at, seen.now);
    if let DrainPlan::Refused(reason, message) = &plan {
        let message = with_refusal(message, seen.blocked);
        let drained = Finding::new(DRAINED, "False", reason, &*message);
        return fail(seen.request, target, reason, message, Some(drained));
    }
    let progress = |step, reason, message: &str| {
        let drained = Finding::new(DRAINED, "False", reason, message);
        NextStep::in_progress(step, vec![approved.clone(), drained], message)
    };
    if !target.unschedulable {
        return progress(Step::Cordon, CORDONING, "the node is being cordoned");
    }
    match plan {
        DrainPlan::Evict(pods) => {
            let message = with_refusal(&format!("{} pods have to be evicted", pods.len()), seen.blocked);
            progress(Step::Evict(pods), DRAINING, &message)
        }
        DrainPlan::Waiting(message) => progress(Step::Wait, DRAINING, &message),
        DrainPlan::Refused(..) | DrainPlan::Done => replace(seen, target, approved),
    }
}

fn with_refusal(message: &str, refused: Option<&str>) -> String {
    refused.map_or_else(|| message.to_owned(), |why| format!("{message}; an eviction was refused: {why}"))
}

fn replace(seen: &ActInput<'_>, target: &Target, approved: Finding) -> NextStep {
    let drained = Finding::new(DRAINED, "True", DRAINED, "all pods that have to leave are gone");
    if let Err(blocked) = seen.replacement.check(target) {
        let replaced = Finding::new(REPLACED, "False", blocked.reason.as_str(), &*blocked.message);
        return NextStep::in_progress(Step::Wait, vec![approved, drained, replaced], &blocked.message);
    }
    let message = seen.replacement.message();
    let replaced = Finding::new(REPLACED, "Unknown", REQUESTED, &*message);
    let step = Step::Replace(seen.replacement.clone());
    NextStep::in_progress(step, vec![approved, drained, replaced], &message)
}

/// The remediation has failed. Our cordon is removed; a cordon of a user stays.
fn fail(
    request: &Remediation,
    target: &Target,
    reason: &'static str,
    message: String,
    drained: Option<Finding>,
) -> NextStep {
    let mut findings: Vec<Finding> = drained.into_iter().collect();
    findings.push(Finding::new(APPROVED, "False", reason, &*message));
    findings.push(Finding::new(SUCCEEDED, "False", reason, message));
    NextStep::end(undo_cordon(request, target), findings)
}

/// The annotation is removed even without a cordon: otherwise a later cordon of a user would be taken for ours.
fn undo_cordon(request: &Remediation, target: &Target) -> Step {
    let is_ours = target.cordoned_for.as_deref() == Some(&request.name);
    if is_ours { Step::Uncordon } else { Step::Wait }
}
