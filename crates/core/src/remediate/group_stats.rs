//! Counts of all nodes, for budget, breaker and fuse.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::gate::{GateView, Ownership, ownership};
use crate::labels::Labels;
use crate::node::NodeView;
use crate::record::Record;
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
        let verdicts: Vec<&Record> = conclusive_sections(node, gates).collect();
        if verdicts.is_empty() {
            return;
        }
        let has_failed = |section: &&Record| section.verdict == Some(Verdict::Failed);
        let passed = !verdicts.iter().any(has_failed);
        group.verdicts.push(NodeVerdict { created: node.created, passed, labels: node.labels.clone() });
        let mut recent = verdicts.iter().filter(|section| section.at.is_some_and(|at| at >= from)).peekable();
        self.verdicts.total += u32::from(recent.peek().is_some());
        self.verdicts.failed += u32::from(recent.any(has_failed));
    }

    #[must_use]
    pub fn group(&self, name: &str) -> GroupCounts {
        self.groups.get(name).cloned().unwrap_or_default()
    }
}

/// The sections of the node's record whose last verdict is Passed or Failed. Those of deleted gates count only where no gate
/// is left. A gate that audits says what it would do, and its verdicts stop nothing.
fn conclusive_sections<'a>(node: &'a NodeView, gates: &[&GateView]) -> impl Iterator<Item = &'a Record> {
    let exists = |section: &&Record| gates.iter().any(|gate| section.scope.gate_uid == gate.uid);
    let record = node.record.as_deref();
    let mut sections: Vec<&Record> = record.into_iter().flat_map(Record::sections).filter(exists).collect();
    if sections.is_empty() {
        sections.extend(record);
    }
    sections.into_iter().filter(|section| {
        !section.audited && matches!(section.verdict, Some(Verdict::Passed | Verdict::Failed))
    })
}
