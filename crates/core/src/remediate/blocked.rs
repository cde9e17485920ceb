//! Why nothing is done: each reason in one word, and for people.

use std::time::Duration;

use jiff::Timestamp;

use crate::condition::Finding;

/// Why nothing is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BlockReason {
    /// There is no such node any more.
    NodeGone,
    /// Somebody else is removing it.
    BeingRemoved,
    /// It was booted since.
    OtherBoot,
    /// It passed since.
    NodeRecovered,
    /// What was seen is too old.
    EvidenceExpired,
    /// Somebody paused everything.
    Paused,
    /// The node or one of its pods is not to be disrupted.
    OptedOut,
    /// It is a control-plane node that nobody named.
    ControlPlane,
    /// Karpenter has not registered it.
    NotRegistered,
    /// Nobody would replace it.
    NoProvider,
    /// Who would replace it cannot be found out.
    ProviderUnreadable,
    /// It cannot be emptied.
    PodNotEvictable,
    /// It is not the time.
    OutsideWindow,
    /// Something that all nodes share has just recovered.
    Recovering,
    /// Nodes that work fail alike, or there are none to compare with.
    SharedDependencyDown,
    /// Too many nodes fail.
    BreakerOpen,
    /// Replacements fail alike.
    FuseBlown,
    /// Enough has been done.
    BudgetSpent,
    /// The group would have no open node left.
    LastOpenNode,
    /// Nodes that work are being compared with.
    Comparing,
    /// Nothing destructive is done at all.
    DryRun,
}

impl BlockReason {
    /// As conditions and metrics say it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NodeGone => "NodeGone",
            Self::BeingRemoved => "BeingRemoved",
            Self::OtherBoot => "OtherBoot",
            Self::NodeRecovered => "NodeRecovered",
            Self::EvidenceExpired => "EvidenceExpired",
            Self::Paused => "Paused",
            Self::OptedOut => "OptedOut",
            Self::ControlPlane => "ControlPlane",
            Self::NotRegistered => "NotRegistered",
            Self::NoProvider => "NoProvider",
            Self::ProviderUnreadable => "ProviderUnreadable",
            Self::PodNotEvictable => "PodNotEvictable",
            Self::OutsideWindow => "OutsideWindow",
            Self::Recovering => "Recovering",
            Self::SharedDependencyDown => "SharedDependencyDown",
            Self::BreakerOpen => "BreakerOpen",
            Self::FuseBlown => "FuseBlown",
            Self::BudgetSpent => "BudgetSpent",
            Self::LastOpenNode => "LastOpenNode",
            Self::Comparing => "Comparing",
            Self::DryRun => "DryRun",
        }
    }

    /// Whether the wish itself is void: it comes to an end, and only new evidence revives it.
    #[must_use]
    pub fn is_end(self) -> bool {
        matches!(self, Self::NodeGone | Self::OtherBoot | Self::NodeRecovered)
    }
}

/// Why nothing is done, and when to look again though nothing changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// In one word.
    pub hold: BlockReason,
    /// For people, with what to do.
    pub message: String,
    /// When to look again.
    pub again_in: Option<Duration>,
}

impl Blocked {
    pub(super) fn new(hold: BlockReason, message: impl Into<String>) -> Self {
        Self { hold, message: message.into(), again_in: None }
    }

    pub(super) fn until(self, at: Timestamp, now: Timestamp) -> Self {
        Self { again_in: Some(Duration::try_from(at.duration_since(now)).unwrap_or_default()), ..self }
    }

    /// What the request says about itself.
    #[must_use]
    pub fn findings(&self) -> Vec<Finding> {
        let mut findings = vec![Finding::new("Approved", "False", self.hold.as_str(), self.message.clone())];
        let status = if self.hold.is_end() { "False" } else { "Unknown" };
        findings.push(Finding::new("Succeeded", status, self.hold.as_str(), self.message.clone()));
        findings
    }
}
