//! All nodes, counted for the brakes.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::gate::{GateView, Served, serving};
use crate::node::NodeView;
use crate::record::Record;
use crate::report::Verdict;

/// Labels that say to which group a node belongs: Karpenter's, EKS's, GKE's and AKS's.
pub(super) const GROUPS: [&str; 5] = [
    "karpenter.sh/nodepool",
    "eks.amazonaws.com/nodegroup",
    "cloud.google.com/gke-nodepool",
    "kubernetes.azure.com/agentpool",
    "agentpool",
];
pub(super) const ZONE: &str = "topology.kubernetes.io/zone";

/// The group that a node belongs to.
#[must_use]
pub fn group(node: &NodeView) -> &str {
    GROUPS.into_iter().find_map(|key| node.labels.get(key)).unwrap_or("ungrouped")
}

/// The zone that a node is in; empty if it has none.
#[must_use]
pub fn zone(node: &NodeView) -> &str {
    node.labels.get(ZONE).unwrap_or_default()
}

/// How many nodes had a verdict lately, each its last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdicts {
    /// Passed or failed.
    pub all: u32,
    /// Failed.
    pub failed: u32,
}

/// The nodes of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupFacts {
    /// How many there are.
    pub size: u32,
    /// How many can be scheduled to.
    pub open: u32,
    /// Those with a verdict: when they were made, and whether they passed.
    pub judged: Vec<(Timestamp, bool)>,
}

/// All nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// By group.
    pub groups: BTreeMap<String, GroupFacts>,
    /// Of all of them.
    pub verdicts: Verdicts,
}

impl Survey {
    /// Counts the nodes. Verdicts since `from` count.
    #[must_use]
    pub fn new<'a>(
        nodes: impl IntoIterator<Item = &'a NodeView>,
        gates: &[&'a GateView],
        from: Timestamp,
    ) -> Self {
        let mut survey = Self::default();
        for node in nodes.into_iter().filter(|node| !node.leaving) {
            survey.count(node, gates, from);
        }
        survey
    }

    fn count<'a>(&mut self, node: &'a NodeView, gates: &[&'a GateView], from: Timestamp) {
        let served = serving(gates.iter().copied(), node);
        let is_held = matches!(served, Served::Held(_) | Served::Orphan(..));
        let group = self.groups.entry(group(node).to_owned()).or_default();
        group.size += 1;
        group.open += u32::from(node.ready && !node.unschedulable && !is_held);
        let Some(record) = Record::read(node.record.as_deref(), &node.uid) else { return };
        let passed = match record.verdict {
            Some(Verdict::Passed) => true,
            Some(Verdict::Failed) => false,
            Some(Verdict::Inconclusive) | None => return,
        };
        group.judged.push((node.created, passed));
        if record.at.is_some_and(|at| at >= from) {
            self.verdicts.all += 1;
            self.verdicts.failed += u32::from(!passed);
        }
    }

    /// The nodes of a group.
    #[must_use]
    pub fn group(&self, name: &str) -> GroupFacts {
        self.groups.get(name).cloned().unwrap_or_default()
    }
}
