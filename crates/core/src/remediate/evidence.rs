//! Decides whether the causes of a remediation are recent enough and still true.

use jiff::{SignedDuration, Timestamp};

use super::{BlockReason, Blocked, Policy, Remediation, Target, format_time};
use crate::api::{CauseSource, CauseVerdict, RemediationCause, RemediationPolicySpec};
use crate::report::Verdict;

/// How far the clock of a requester may be ahead.
const MAX_CLOCK_SKEW: SignedDuration = SignedDuration::from_mins(1);

/// For how long a node may be replaced because of an observation.
#[must_use]
pub fn evidence_ttl(policy: Option<&Policy>) -> SignedDuration {
    let default = RemediationPolicySpec::default().evidence_seconds;
    SignedDuration::from_secs(policy.map_or(default, |policy| policy.spec.evidence_seconds).into())
}

/// Whether at least one cause is fresh.
///
/// # Errors
/// Says why no cause is fresh.
pub fn check_evidence(
    request: &Remediation,
    target: &Target,
    policy: Option<&Policy>,
    ran_elsewhere: bool,
    now: Timestamp,
) -> Result<(), Blocked> {
    fresh_causes(request, target, policy, ran_elsewhere, now).map(drop)
}

/// The causes that are fresh. The others must not influence a decision.
pub(super) fn fresh_causes<'a>(
    request: &'a Remediation,
    target: &Target,
    policy: Option<&Policy>,
    ran_elsewhere: bool,
    now: Timestamp,
) -> Result<Vec<&'a RemediationCause>, Blocked> {
    let ttl = evidence_ttl(policy);
    let (mut fresh, mut first_block) = (Vec::new(), None);
    for cause in &request.spec.causes {
        match check_cause(request, cause, target, ttl, ran_elsewhere, now) {
            Ok(()) => fresh.push(cause),
            Err(blocked) => first_block = first_block.or(Some(blocked)),
        }
    }
    if !fresh.is_empty() {
        return Ok(fresh);
    }
    Err(first_block.unwrap_or_else(|| expired("the remediation has no causes")))
}

fn expired(message: impl Into<String>) -> Blocked {
    Blocked::new(BlockReason::EvidenceExpired, message)
}

fn check_cause(
    request: &Remediation,
    cause: &RemediationCause,
    target: &Target,
    ttl: SignedDuration,
    ran_elsewhere: bool,
    now: Timestamp,
) -> Result<(), Blocked> {
    let observed = match cause.source {
        CauseSource::Gate => recorded_verdict(cause, target, ran_elsewhere)?,
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
    let age = now.duration_since(observed);
    // A cause from the future would stay fresh for too long.
    if age < -MAX_CLOCK_SKEW {
        return Err(expired(format!(
            "the observation of {source} {} at {} is in the future: correct its clock or `observedAt`",
            cause.name,
            format_time(observed)
        )));
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

/// When the gate's verdict on the current boot was recorded on the node.
fn recorded_verdict(
    cause: &RemediationCause,
    target: &Target,
    ran_elsewhere: bool,
) -> Result<Timestamp, Blocked> {
    let record = target.record.as_ref().ok_or_else(|| expired("the node has no record of a verdict"))?;
    if record.is_open() {
        return Err(Blocked::new(BlockReason::NodeRecovered, "the node has passed its gate since"));
    }
    if record.scope.boot_id != target.identity.boot_id {
        return Err(Blocked::new(BlockReason::NodeRebooted, "the node has rebooted since its last verdict"));
    }
    let at = record.at.ok_or_else(|| expired("the node's record has no time"))?;
    // Another verdict may be the first of a new verification, or about other checks.
    if cause.observed_at != Some(at) {
        return Err(expired(
            "the node got another verdict since: its gate has to request the remediation again",
        ));
    }
    match (cause.verdict, record.verdict) {
        (CauseVerdict::Failed, Some(Verdict::Failed)) => Ok(at),
        (CauseVerdict::Stuck, Some(Verdict::Inconclusive)) if ran_elsewhere => Ok(at),
        (CauseVerdict::Stuck, Some(Verdict::Inconclusive)) => Err(expired(
            "no worker with the same image reported from another node recently: the image or the cluster may be the cause",
        )),
        _ => Err(expired("the node's last verdict is not the one of the cause")),
    }
}
