//! The parts of the `RemediationPolicy` that decisions depend on.

use jiff::Timestamp;

use super::annotations::{PAUSE_UNTIL, PolicyAnnotations};
use super::{BlockReason, Blocked, Remediation, format_time};
use crate::api::{Pause, RemediationPolicy, RemediationPolicySpec, RemediationPolicyStatus, Reservation};
use crate::reasons::remediation::{INVALID_ANNOTATION, PAUSED_BY_ANNOTATION, PAUSED_BY_SPEC};

/// The `RemediationPolicy` of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    pub uid: String,
    pub resource_version: String,
    pub generation: i64,
    pub annotations: PolicyAnnotations,
    pub spec: RemediationPolicySpec,
    pub status: RemediationPolicyStatus,
}

/// A pause that is in effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActivePause {
    /// The reason of the condition `Paused`.
    pub reason: &'static str,
    pub message: String,
    /// None if the annotation that asks for the pause cannot be read.
    pub until: Option<Timestamp>,
}

impl ActivePause {
    pub(super) fn block(self, now: Timestamp) -> Blocked {
        let blocked = Blocked::new(BlockReason::Paused, self.message);
        match self.until {
            Some(until) => blocked.until(until, now),
            None => blocked,
        }
    }
}

impl Policy {
    /// The only name that a policy may have.
    pub const NAME: &'static str = "default";

    /// Stands for a policy that does not exist: a dry run with default limits.
    pub(super) fn missing() -> Self {
        Self {
            uid: String::new(),
            resource_version: String::new(),
            generation: 0,
            annotations: PolicyAnnotations::default(),
            spec: RemediationPolicySpec::default(),
            status: RemediationPolicyStatus::default(),
        }
    }

    /// None if the policy has another name or is being deleted.
    #[must_use]
    pub fn new(object: &RemediationPolicy) -> Option<Self> {
        let metadata = &object.metadata;
        let counts = metadata.name.as_deref() == Some(Self::NAME) && metadata.deletion_timestamp.is_none();
        counts.then(|| Self {
            uid: metadata.uid.clone().unwrap_or_default(),
            resource_version: metadata.resource_version.clone().unwrap_or_default(),
            generation: metadata.generation.unwrap_or_default(),
            annotations: PolicyAnnotations::new(metadata.annotations.as_ref()),
            spec: object.spec.clone(),
            status: object.status.clone().unwrap_or_default(),
        })
    }

    /// The pause that is in effect, by the spec or by annotation. Of two the one that ends later counts.
    #[must_use]
    pub fn paused(&self, now: Timestamp) -> Option<ActivePause> {
        let annotation = match self.annotations.pause() {
            Some(Err(message)) => {
                return Some(ActivePause { reason: INVALID_ANNOTATION, message, until: None });
            }
            pause => pause.and_then(Result::ok),
        };
        let active = |pause: Pause, reason, field: &str| ActivePause {
            reason,
            message: format!(
                "remediation is paused until {} ({field} of the policy): {}",
                format_time(pause.until),
                pause.reason
            ),
            until: Some(pause.until),
        };
        let by_spec = self.spec.pause.clone().map(|pause| active(pause, PAUSED_BY_SPEC, "`spec.pause`"));
        let field = format!("annotation {PAUSE_UNTIL}");
        let by_annotation = annotation.map(|pause| active(pause, PAUSED_BY_ANNOTATION, &field));
        let both = by_spec.into_iter().chain(by_annotation);
        both.filter(|pause| pause.until.is_some_and(|until| now < until)).max_by_key(|pause| pause.until)
    }

    /// Whether the Node object may be deleted for all causes of the remediation if no provider replaces the machine.
    #[must_use]
    pub fn deletes_node_object_for(&self, request: &Remediation) -> bool {
        let causes = &request.spec.causes;
        let selectors = &self.spec.delete_node_object_for;
        !causes.is_empty() && causes.iter().all(|cause| selectors.iter().any(|one| one.matches(cause)))
    }

    /// Everything that decisions depend on, which is all but the conditions.
    #[must_use]
    pub fn decision_state(&self) -> (i64, PolicyAnnotations, RemediationPolicyStatus) {
        let status = RemediationPolicyStatus { conditions: Vec::new(), ..self.status.clone() };
        (self.generation, self.annotations.clone(), status)
    }

    /// The reservation that an approval of this very remediation wrote, while it is in flight. One that was restored from a
    /// remediation, or that belongs to a deleted remediation of the same name, is none.
    #[must_use]
    pub fn reservation(&self, request: &Remediation) -> Option<&Reservation> {
        let is_own = |one: &&Reservation| !one.uid.is_empty() && one.uid == request.uid;
        self.status.reservations.iter().find(|one| is_own(one) && one.ended.is_none())
    }

    /// The status without this reservation, for which nothing was done.
    pub(super) fn status_without(&self, reservation: &Reservation) -> RemediationPolicyStatus {
        let mut status = self.status.clone();
        status.reservations.retain(|one| one != reservation);
        status
    }
}
