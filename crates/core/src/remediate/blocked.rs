//! Why a remediation is not approved or does not go on.

use std::time::Duration;

use jiff::Timestamp;

use crate::condition::Finding;
use crate::reasons::remediation as reasons;

/// What blocks a remediation. [`crate::reasons::remediation`] documents each reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BlockReason {
    NodeGone,
    NodeTerminating,
    NodeRebooted,
    NodeRecovered,
    EvidenceExpired,
    MissingRights,
    Paused,
    OptedOut,
    ControlPlane,
    NotRegistered,
    NoProvider,
    ProviderUnreadable,
    PodNotEvictable,
    BackOff,
    OutsideWindow,
    Recovering,
    SharedDependencyDown,
    BreakerOpen,
    FuseBlown,
    BudgetSpent,
    LastOpenNode,
    Comparing,
    DryRun,
}

impl BlockReason {
    /// The reason as conditions and metrics show it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NodeGone => reasons::NODE_GONE,
            Self::NodeTerminating => reasons::NODE_TERMINATING,
            Self::NodeRebooted => reasons::NODE_REBOOTED,
            Self::NodeRecovered => reasons::NODE_RECOVERED,
            Self::EvidenceExpired => reasons::EVIDENCE_EXPIRED,
            Self::MissingRights => reasons::MISSING_RIGHTS,
            Self::Paused => reasons::PAUSED,
            Self::OptedOut => reasons::OPTED_OUT,
            Self::ControlPlane => reasons::CONTROL_PLANE,
            Self::NotRegistered => reasons::NOT_REGISTERED,
            Self::NoProvider => reasons::NO_PROVIDER,
            Self::ProviderUnreadable => reasons::PROVIDER_UNREADABLE,
            Self::PodNotEvictable => reasons::POD_NOT_EVICTABLE,
            Self::BackOff => reasons::BACK_OFF,
            Self::OutsideWindow => reasons::OUTSIDE_WINDOW,
            Self::Recovering => reasons::RECOVERING,
            Self::SharedDependencyDown => reasons::SHARED_DEPENDENCY_DOWN,
            Self::BreakerOpen => reasons::BREAKER_OPEN,
            Self::FuseBlown => reasons::FUSE_BLOWN,
            Self::BudgetSpent => reasons::BUDGET_SPENT,
            Self::LastOpenNode => reasons::LAST_OPEN_NODE,
            Self::Comparing => reasons::COMPARING,
            Self::DryRun => reasons::DRY_RUN,
        }
    }

    /// Whether the remediation ends for this reason. Only a new observation starts it again.
    #[must_use]
    pub fn is_end(self) -> bool {
        matches!(self, Self::NodeGone | Self::NodeRebooted | Self::NodeRecovered)
    }
}

/// Why a remediation does not go on, and when to evaluate it again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    pub reason: BlockReason,
    /// Explanation for people, with what to do.
    pub message: String,
    /// When to evaluate again if no watched object changes before.
    pub requeue_after: Option<Duration>,
}

impl Blocked {
    pub(super) fn new(reason: BlockReason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), requeue_after: None }
    }

    pub(super) fn until(self, at: Timestamp, now: Timestamp) -> Self {
        let wait = Duration::try_from(at.duration_since(now)).unwrap_or_default();
        Self { requeue_after: Some(wait), ..self }
    }

    /// The conditions of the remediation.
    #[must_use]
    pub fn findings(&self) -> Vec<Finding> {
        let ended = if self.reason.is_end() { "False" } else { "Unknown" };
        [(reasons::APPROVED, "False"), (reasons::SUCCEEDED, ended)]
            .map(|(type_, status)| Finding::new(type_, status, self.reason.as_str(), &*self.message))
            .into()
    }
}
