//! What was approved is done step by step. Each step follows from what is there: whoever leads next goes on with it.

use std::time::Duration;

use jiff::Timestamp;

use super::drain::{DrainPlan, PodView, plan};
use super::provider::{ClaimView, Replacement};
use super::{
    BlockReason, Blocked, GroupStats, LONGEST_ACT, Policy, Remediation, Target, cluster, control,
    format_time, opted_out, provider,
};
use crate::api::{ActEnforcement, CauseSource, RemediationCause, RemediationPolicySpec, Reservation};
use crate::condition::Finding;
use crate::record::Record;

/// How soon it is looked at again where no watch says anything.
const SOON: Duration = Duration::from_secs(5);

/// All that the next step is decided from.
#[derive(Clone, Copy, Debug)]
pub struct ActInput<'a> {
    /// What is being done.
    pub request: &'a Remediation,
    /// The brakes; none if there is no policy or it cannot be read.
    pub policy: Option<&'a Policy>,
    /// What was approved.
    pub reservation: &'a Reservation,
    /// The node, read from the server just now.
    pub target: Option<&'a Target>,
    /// Its pods, read just now.
    pub pods: &'a [PodView],
    /// Who replaces it.
    pub replacement: &'a Replacement,
    /// What the server said when it last refused an eviction on this node.
    pub blocked: Option<&'a str>,
    /// The time of day.
    pub now: Timestamp,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// No more pods are scheduled to the node; it bears our mark.
    Cordon,
    /// Take our cordon away.
    Uncordon,
    /// Ask for these pods to go.
    Evict(Vec<PodView>),
    /// Delete its `NodeClaim`.
    DeleteClaim(ClaimView),
    /// Delete the Node object.
    DeleteNode,
    /// Nothing for now.
    Wait,
}

/// What is next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextStep {
    /// The step.
    pub step: Step,
    /// What the request says about itself once the step is done.
    pub findings: Vec<Finding>,
    /// When to look again though nothing changed; none if it came to an end.
    pub again_in: Option<Duration>,
}

impl NextStep {
    /// Whether it came to an end.
    #[must_use]
    pub fn is_end(&self) -> bool {
        self.again_in.is_none()
    }

    fn on(step: Step, findings: Vec<Finding>) -> Self {
        Self { step, findings, again_in: Some(SOON) }
    }
}

fn approved(message: impl Into<String>) -> Finding {
    Finding::new("Approved", "True", "WithinBudget", message)
}

fn going_on(message: &str) -> Finding {
    Finding::new("Succeeded", "Unknown", "InProgress", message)
}

/// The next step of what was approved.
#[must_use]
pub fn next(seen: &ActInput<'_>) -> NextStep {
    let request = seen.request;
    let Some(target) = seen.target.filter(|target| target.identity.uid == request.spec.node.uid) else {
        let gone = "the node is gone";
        let findings = vec![
            approved("it was within the budget"),
            Finding::new("Replaced", "True", "NodeGone", gone),
            Finding::new("Succeeded", "True", "Replaced", gone),
        ];
        return NextStep { step: Step::Wait, findings, again_in: None };
    };
    // Given up is given up, though whoever counts has not heard of it yet.
    if request.finished().is_some_and(|ended| ended >= seen.reservation.at) {
        let step = if is_marked(request, target) { Step::Uncordon } else { Step::Wait };
        return NextStep { step, findings: Vec::new(), again_in: None };
    }
    let is_late = seen.now.duration_since(seen.reservation.at) >= LONGEST_ACT;
    let is_going =
        target.terminating || matches!(seen.replacement, Replacement::Claim(claim) if claim.deleting);
    if is_going {
        let replaced = Finding::new("Replaced", "True", "Requested", "the node is being removed");
        if is_late {
            let message = "the node is being removed and does not go: look at its finalizers";
            let findings = vec![replaced, Finding::new("Succeeded", "False", "NodeStays", message)];
            return NextStep { step: Step::Wait, findings, again_in: None };
        }
        return NextStep::on(
            Step::Wait,
            vec![approved("it was within the budget"), replaced, going_on("the node is being removed")],
        );
    }
    if let Err((reason, message)) = may_go_on(seen, target, is_late) {
        return give_up(request, target, reason, message, None);
    }
    step(seen, target)
}

/// What holds destructive acts holds those that were begun, too: what waited through a pause is not replayed.
fn may_go_on(seen: &ActInput<'_>, target: &Target, is_late: bool) -> Result<(), (&'static str, String)> {
    let boot = &seen.request.spec.node.boot_id;
    if !boot.is_empty() && *boot != target.identity.boot_id {
        return Err((BlockReason::OtherBoot.as_str(), "the node was booted since this was approved".into()));
    }
    let Some(policy) = seen.policy.filter(|policy| policy.spec.enforcement == ActEnforcement::Enforce) else {
        return Err((
            BlockReason::DryRun.as_str(),
            "the RemediationPolicy no longer enforces anything".into(),
        ));
    };
    brakes(seen, policy, target).map_err(|held| (held.hold.as_str(), held.message))?;
    if matches!(seen.replacement, Replacement::Nobody) {
        return Err((BlockReason::NoProvider.as_str(), "nobody would replace the machine any more".into()));
    }
    if is_late {
        return Err(("TimedOut", "it was not done within an hour".into()));
    }
    Ok(())
}

fn brakes(seen: &ActInput<'_>, policy: &Policy, target: &Target) -> Result<(), Blocked> {
    let causes: Vec<&RemediationCause> = seen.request.spec.causes.iter().collect();
    let is_open = target.record.as_ref().is_some_and(Record::is_open);
    if is_open && causes.iter().all(|cause| cause.source == CauseSource::Gate) {
        return Err(Blocked::new(BlockReason::NodeRecovered, "the node passed since, and was let in"));
    }
    // What is counted is written in the policy; here nobody counts again.
    cluster(policy, &GroupStats::default(), seen.now)?;
    opted_out(target, seen.pods)?;
    control::known_outage(&policy.status.down, &causes, &target.zone)
}

fn step(seen: &ActInput<'_>, target: &Target) -> NextStep {
    let began = seen.reservation.at;
    let default = RemediationPolicySpec::default();
    let spec = seen.policy.map_or(&default, |policy| &policy.spec);
    let drainage = plan(seen.pods, &spec.drain, began, seen.now);
    if let DrainPlan::Refused(reason, message) = &drainage {
        let drained = Finding::new("Drained", "False", reason, with_budget(message, seen.blocked));
        return give_up(seen.request, target, reason, with_budget(message, seen.blocked), Some(drained));
    }
    let yes = || approved(format!("approved at {}", format_time(began)));
    if !target.unschedulable {
        let message = "the node is cordoned first";
        return NextStep::on(
            Step::Cordon,
            vec![yes(), Finding::new("Drained", "False", "Cordoning", message), going_on(message)],
        );
    }
    let draining = |message: String| {
        vec![yes(), Finding::new("Drained", "False", "Draining", &*message), going_on(&message)]
    };
    match drainage {
        DrainPlan::Evict(pods) => {
            let message = with_budget(&format!("{} pods have to go", pods.len()), seen.blocked);
            NextStep::on(Step::Evict(pods), draining(message))
        }
        DrainPlan::Waiting(message) => NextStep::on(Step::Wait, draining(message)),
        DrainPlan::Refused(..) | DrainPlan::Done => replace(seen, target, yes()),
    }
}

fn with_budget(message: &str, blocked: Option<&str>) -> String {
    blocked.map_or_else(|| message.to_owned(), |why| format!("{message}; an eviction was refused: {why}"))
}

fn replace(seen: &ActInput<'_>, target: &Target, approved: Finding) -> NextStep {
    let drained = Finding::new("Drained", "True", "Drained", "all pods that leave are gone");
    if let Err(held) = provider::check(seen.replacement, target) {
        let replaced = Finding::new("Replaced", "False", held.hold.as_str(), &*held.message);
        let findings = vec![approved, drained, replaced, going_on(&held.message)];
        return NextStep::on(Step::Wait, findings);
    }
    let (step, message) = match seen.replacement {
        Replacement::Claim(claim) => {
            (Step::DeleteClaim(claim.clone()), format!("its NodeClaim {} is deleted", claim.name))
        }
        _ => (Step::DeleteNode, "its Node object is deleted".to_owned()),
    };
    let replaced = Finding::new("Replaced", "Unknown", "Requested", &*message);
    NextStep::on(step, vec![approved, drained, replaced, going_on(&message)])
}

/// It came to nothing. A cordon of ours goes with it; one of somebody else stays.
fn give_up(
    request: &Remediation,
    target: &Target,
    reason: &'static str,
    message: String,
    drained: Option<Finding>,
) -> NextStep {
    let mut findings: Vec<Finding> = drained.into_iter().collect();
    findings.push(Finding::new("Approved", "False", reason, &*message));
    findings.push(Finding::new("Succeeded", "False", reason, message));
    let step = if is_marked(request, target) { Step::Uncordon } else { Step::Wait };
    NextStep { step, findings, again_in: None }
}

/// A mark without a cordon goes as well: the next cordon may be somebody else's.
fn is_marked(request: &Remediation, target: &Target) -> bool {
    target.cordoned_for.as_deref() == Some(&request.name)
}
