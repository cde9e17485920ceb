//! Whether what was seen may still be acted on.

use jiff::{SignedDuration, Timestamp};

use super::{BlockReason, Blocked, Policy, Remediation, Target, format_time};
use crate::api::{CauseSource, CauseVerdict, RemediationCause, RemediationPolicySpec};
use crate::report::Verdict;

/// So far a clock may be ahead of ours.
const SKEW: SignedDuration = SignedDuration::from_mins(1);

/// For how long what was seen may be acted on.
#[must_use]
pub fn evidence_lasts(policy: Option<&Policy>) -> SignedDuration {
    let default = RemediationPolicySpec::default().evidence_seconds;
    SignedDuration::from_secs(policy.map_or(default, |policy| policy.spec.evidence_seconds).into())
}

/// Whether at least one cause is fresh. What waited through a pause or an outage is dropped, not replayed.
///
/// # Errors
/// Says why none is.
pub fn evidence(
    request: &Remediation,
    target: &Target,
    policy: Option<&Policy>,
    ran_elsewhere: bool,
    now: Timestamp,
) -> Result<(), Blocked> {
    live(request, target, policy, ran_elsewhere, now).map(drop)
}

/// The causes that are fresh: nothing may be decided by the others.
pub(super) fn live<'a>(
    request: &'a Remediation,
    target: &Target,
    policy: Option<&Policy>,
    ran_elsewhere: bool,
    now: Timestamp,
) -> Result<Vec<&'a RemediationCause>, Blocked> {
    let allowed = evidence_lasts(policy);
    let (mut fresh, mut why) = (Vec::new(), None);
    for cause in &request.spec.causes {
        match supports(request, cause, target, allowed, ran_elsewhere, now) {
            Ok(()) => fresh.push(cause),
            Err(held) => why = why.or(Some(held)),
        }
    }
    if !fresh.is_empty() {
        return Ok(fresh);
    }
    Err(why.unwrap_or_else(|| Blocked::new(BlockReason::EvidenceExpired, "nobody asks for it")))
}

fn supports(
    request: &Remediation,
    cause: &RemediationCause,
    target: &Target,
    allowed: SignedDuration,
    ran_elsewhere: bool,
    now: Timestamp,
) -> Result<(), Blocked> {
    let seen = match cause.source {
        CauseSource::Gate => gate_says(cause, target, ran_elsewhere)?,
        CauseSource::Recycler | CauseSource::Person => cause.observed_at.unwrap_or(request.created),
    };
    // After an end, the same evidence is not acted on again.
    if request.finished().is_some_and(|ended| seen <= ended) {
        let message = "it came to an end, and nothing new was seen since";
        return Err(Blocked::new(BlockReason::EvidenceExpired, message));
    }
    let source = match cause.source {
        CauseSource::Gate => "gate",
        CauseSource::Recycler => "recycler",
        CauseSource::Person => "person",
    };
    let age = now.duration_since(seen);
    // What says that it will be seen would be fresh for ever.
    let message = if age < -SKEW {
        format!(
            "what {source} {} saw is of {}, which is to come: correct its clock, or `observedAt`",
            cause.name,
            format_time(seen)
        )
    } else if age > allowed {
        format!(
            "what {source} {} saw is of {}, more than {} s ago (`spec.evidenceSeconds` of the policy): it has to be seen again",
            cause.name,
            format_time(seen),
            allowed.as_secs()
        )
    } else {
        return Ok(());
    };
    Err(Blocked::new(BlockReason::EvidenceExpired, message))
}

/// When the gate's verdict on this boot was recorded on the node itself.
fn gate_says(cause: &RemediationCause, target: &Target, ran_elsewhere: bool) -> Result<Timestamp, Blocked> {
    let expired = |message: &str| Blocked::new(BlockReason::EvidenceExpired, message);
    let record = target.record.as_ref().ok_or_else(|| expired("the node has no record of any verdict"))?;
    if record.is_open() {
        return Err(Blocked::new(BlockReason::NodeRecovered, "the node passed since, and was let in"));
    }
    if record.scope.boot_id != target.identity.boot_id {
        return Err(Blocked::new(BlockReason::OtherBoot, "the node was booted since its last verdict"));
    }
    let at = record.at.ok_or_else(|| expired("the node's record has no time"))?;
    // A verdict that it did not ask for may be the first of a new round, or about other checks.
    if cause.observed_at != Some(at) {
        return Err(expired("the node had another verdict since: its gate has to ask again"));
    }
    match (cause.verdict, record.verdict) {
        (CauseVerdict::Failed, Some(Verdict::Failed)) => Ok(at),
        (CauseVerdict::Stuck, Some(Verdict::Inconclusive)) if ran_elsewhere => Ok(at),
        (CauseVerdict::Stuck, Some(Verdict::Inconclusive)) => Err(expired(
            "no worker with the same image told anything on another node lately: it may not be the node",
        )),
        _ => Err(expired("the node's last verdict is another")),
    }
}
