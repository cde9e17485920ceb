//! Decides whether the causes of a remediation are recent enough and still true.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::{BlockReason, Blocked, OtherNodes, Policy, Remediation, Target, control, format_time};
use crate::api::{
    CauseSource, CauseVerdict, Enforcement, FailureAction, RemediationCause, RemediationPolicySpec,
};
use crate::gate::GateView;
use crate::record::{InconclusiveReason, Record};
use crate::report::Verdict;

/// How far the clock of a requester may be ahead.
const MAX_CLOCK_SKEW: SignedDuration = SignedDuration::from_mins(1);

/// For how long a node may be replaced because of an observation.
#[must_use]
pub fn evidence_ttl(policy: Option<&Policy>) -> SignedDuration {
    let default = RemediationPolicySpec::default().evidence_seconds;
    SignedDuration::from_secs(policy.map_or(default, |policy| policy.spec.evidence_seconds).into())
}

/// What the causes of a remediation are checked against.
#[derive(Clone, Copy, Debug)]
pub struct EvidenceInput<'a> {
    pub request: &'a Remediation,
    /// The node, read from the API server just now.
    pub target: &'a Target,
    pub policy: Option<&'a Policy>,
    /// All gates. Those of the causes were read from the API server just now.
    pub gates: &'a [&'a GateView],
    /// What other nodes show, by gate of a cause. An approved remediation does not need it.
    pub others: &'a BTreeMap<String, OtherNodes>,
    /// When the remediation was approved. Causes that were fresh then count until it ends, as long as they are true.
    pub approved_at: Option<Timestamp>,
    pub now: Timestamp,
}

/// Whether at least one cause is fresh.
///
/// # Errors
/// Says why no cause is fresh.
pub fn check_evidence(seen: &EvidenceInput<'_>) -> Result<(), Blocked> {
    fresh_causes(seen).map(drop)
}

/// The causes that are fresh. The others must not influence a decision.
pub(super) fn fresh_causes<'a>(seen: &EvidenceInput<'a>) -> Result<Vec<&'a RemediationCause>, Blocked> {
    let (mut fresh, mut first_block) = (Vec::new(), None);
    for cause in &seen.request.spec.causes {
        match check_cause(seen, cause) {
            Ok(()) => fresh.push(cause),
            Err(blocked) => first_block = first_block.or(Some(blocked)),
        }
    }
    if !fresh.is_empty() {
        return Ok(fresh);
    }
    let blocked = first_block.unwrap_or_else(|| expired("the remediation has no causes"));
    Err(outage_block(seen, &blocked).unwrap_or(blocked))
}

/// A known outage makes the gate withdraw its verdict, so the evidence has expired. The outage is the better explanation.
fn outage_block(seen: &EvidenceInput<'_>, blocked: &Blocked) -> Option<Blocked> {
    let record = seen.target.record.as_ref().filter(|_| blocked.reason == BlockReason::EvidenceExpired)?;
    let causes: Vec<&RemediationCause> = seen.request.spec.causes.iter().collect();
    let mut sections = record.sections();
    let is_suspended = sections.any(|one| one.cause == Some(InconclusiveReason::SharedDependency));
    let outages = seen.policy.filter(|_| is_suspended).map(|policy| &policy.status.down)?;
    control::known_outage(outages, &causes, &seen.target.zone).err()
}

fn expired(message: impl Into<String>) -> Blocked {
    Blocked::new(BlockReason::EvidenceExpired, message)
}

fn check_cause(seen: &EvidenceInput<'_>, cause: &RemediationCause) -> Result<(), Blocked> {
    let EvidenceInput { request, policy, .. } = *seen;
    let observed = match cause.source {
        CauseSource::Gate => recorded_verdict(seen, cause)?,
        CauseSource::Recycler | CauseSource::Person => cause.observed_at.unwrap_or(request.created),
    };
    if request.finished_at().is_some_and(|ended| observed <= ended) {
        return Err(expired("the remediation has ended, and the node was not observed again since"));
    }
    let source = match cause.source {
        CauseSource::Gate => "gate",
        CauseSource::Recycler => "recycler",
        CauseSource::Person => "person",
    };
    let ttl = evidence_ttl(policy);
    let age = match (seen.approved_at, cause.source) {
        // The gate may have verified the node again since, with the same verdict.
        (Some(approved), CauseSource::Gate) => approved.max(observed).duration_since(observed),
        (approved, _) => approved.unwrap_or(seen.now).duration_since(observed),
    };
    // A cause from the future would stay fresh for too long.
    if age < -MAX_CLOCK_SKEW {
        let (name, at) = (&cause.name, format_time(observed));
        return Err(expired(match seen.approved_at {
            Some(_) => format!("the observation of {source} {name} at {at} is later than the approval"),
            None => format!(
                "the observation of {source} {name} at {at} is in the future: correct its clock or `observedAt`"
            ),
        }));
    }
    if age > ttl {
        return Err(expired(format!(
            "the observation of {source} {} at {} is older than {} s (`spec.evidenceSeconds` of the policy): the node has to be observed again",
            cause.name,
            format_time(observed),
            ttl.as_secs()
        )));
    }
    Ok(())
}

/// When the verdict of the cause was recorded on the node, if it is still about the current boot and the current gate.
fn recorded_verdict(seen: &EvidenceInput<'_>, cause: &RemediationCause) -> Result<Timestamp, Blocked> {
    let target = seen.target;
    let record = target.record.as_ref().ok_or_else(|| expired("the node has no record of a verdict"))?;
    // The section of the gate; that of another one says that the gate was deleted.
    let gate = seen.gates.iter().find(|gate| gate.name == cause.name && !gate.deleting);
    let record = gate.and_then(|gate| record.section(&*gate.uid)).unwrap_or(record);
    if record.is_open() {
        return Err(Blocked::new(BlockReason::NodeRecovered, "the node has passed its gate since"));
    }
    if record.scope.boot_id != target.identity.boot_id {
        return Err(Blocked::new(BlockReason::NodeRebooted, "the node has rebooted since its last verdict"));
    }
    let gate = check_gate(seen, cause, record)?;
    let at = record.at.ok_or_else(|| expired("the node's record has no time"))?;
    // Another verdict may be the first of a new verification, or about other checks. A worker that ran when the
    // remediation was approved may have confirmed the verdict since; its gate does not request again on a cordoned node.
    let observed = cause.observed_at.filter(|observed| *observed == at || seen.approved_at.is_some());
    let observed = observed.ok_or_else(|| {
        expired("the node got another verdict since: its gate has to request the remediation again")
    })?;
    match (cause.verdict, record.verdict) {
        (CauseVerdict::Failed, Some(Verdict::Failed)) if gate.has_failed(record) => Ok(observed),
        (CauseVerdict::Stuck, Some(Verdict::Inconclusive)) if gate.is_stuck(record) => {
            let is_reported = || seen.others.get(&cause.name).is_some_and(|one| one.reported);
            (seen.approved_at.is_some() || is_reported()).then_some(observed).ok_or_else(|| {
                expired(
                    "no worker with the same image reported from another node recently: the image or the cluster may be the cause",
                )
            })
        }
        // The gate was changed, somebody requested another verification, or a shared outage has ended.
        (CauseVerdict::Failed, Some(Verdict::Failed))
        | (CauseVerdict::Stuck, Some(Verdict::Inconclusive)) => Err(expired(format!(
            "gate {} verifies the node anew, and has not given up on it since",
            cause.name
        ))),
        _ => Err(expired("the node's last verdict is not the one of the cause")),
    }
}

/// Whether the gate of the cause still holds the node and wants it replaced. A user who frees the node, or pauses, changes
/// or deletes the gate, withdraws the request.
fn check_gate<'a>(
    seen: &EvidenceInput<'a>,
    cause: &RemediationCause,
    record: &Record,
) -> Result<&'a GateView, Blocked> {
    let name = &cause.name;
    let gate = seen.gates.iter().find(|gate| gate.name == *name && !gate.deleting);
    let Some(gate) = gate.filter(|gate| record.scope.gate_uid == gate.uid) else {
        return Err(expired(format!("gate {name}, which requested the replacement, was deleted")));
    };
    let (action, field) = match cause.verdict {
        CauseVerdict::Stuck => (gate.spec.on_stuck, "onStuck"),
        CauseVerdict::Asked | CauseVerdict::Failed => (gate.spec.on_failure, "onFailure"),
    };
    let problem = if gate.spec.enforcement != Enforcement::Enforce {
        format!("`spec.enforcement` of gate {name} is not 'Enforce'")
    } else if action != FailureAction::Replace {
        format!("`spec.{field}` of gate {name} is not 'Replace'")
    } else if gate.generation != record.scope.gate_generation {
        format!("gate {name} was changed after the verdict: it has to verify the node again")
    } else if !gate.gates(&seen.target.view) {
        format!("the node no longer has a taint of gate {name}, or the gate does not select it any more")
    } else {
        return Ok(gate);
    };
    Err(expired(problem))
}
