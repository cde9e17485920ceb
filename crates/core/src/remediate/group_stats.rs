//! Counts of all nodes, for budget, breaker and fuse.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::gate::{GateView, Ownership, ownership};
use crate::labels::Labels;
use crate::node::NodeView;
use crate::report::Verdict;
use crate::topology::group;

/// How many nodes have a recent verdict. Each node counts with its last one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerdictCounts {
    /// Passed and failed.
    pub total: u32,
    pub failed: u32,
}

/// The last verdict about a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeVerdict {
    /// When the node was created.
    pub created: Timestamp,
    pub passed: bool,
    /// The cached labels of the node, which tell its type, zone and image. They are shared with the cache.
    pub labels: Labels,
}

/// Counts of one node group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupCounts {
    pub size: u32,
    /// Nodes that are ready, not cordoned and not gated.
    pub schedulable: u32,
    /// One for each node with a verdict.
    pub verdicts: Vec<NodeVerdict>,
}

/// Counts of all nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupStats {
    pub groups: BTreeMap<String, GroupCounts>,
    /// The recent verdicts of the cluster.
    pub verdicts: VerdictCounts,
}

impl GroupStats {
    /// Counts the nodes. A verdict is recent if it is not older than `from`.
    #[must_use]
    pub fn new<'a>(
        nodes: impl IntoIterator<Item = &'a NodeView>,
        gates: &[&'a GateView],
        from: Timestamp,
    ) -> Self {
        let mut group_stats = Self::default();
        for node in nodes.into_iter().filter(|node| !node.terminating) {
            group_stats.count(node, gates, from);
        }
        group_stats
    }

    fn count<'a>(&mut self, node: &'a NodeView, gates: &[&'a GateView], from: Timestamp) {
        let ownership = ownership(gates.iter().copied(), node);
        let is_gated = matches!(ownership, Ownership::Gated(_) | Ownership::Unserved(..));
        let group = self.groups.entry(group(node).to_owned()).or_default();
        group.size += 1;
        group.schedulable += u32::from(node.ready && !node.unschedulable && !is_gated);
        // A gate that audits says what it would do, and its verdicts stop nothing.
        let Some(record) = node.record.as_ref().filter(|record| !record.audited) else { return };
        let passed = match record.verdict {
            Some(Verdict::Passed) => true,
            Some(Verdict::Failed) => false,
            Some(Verdict::Inconclusive) | None => return,
        };
        group.verdicts.push(NodeVerdict { created: node.created, passed, labels: node.labels.clone() });
        if record.at.is_some_and(|at| at >= from) {
            self.verdicts.total += 1;
            self.verdicts.failed += u32::from(!passed);
        }
    }

    #[must_use]
    pub fn group(&self, name: &str) -> GroupCounts {
        self.groups.get(name).cloned().unwrap_or_default()
    }
}
