//! All nodes, counted for the brakes.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::gate::{GateView, Ownership, ownership};
use crate::node::NodeView;
use crate::report::Verdict;
use crate::topology::group;

/// How many nodes had a verdict lately, each its last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerdictCounts {
    /// Passed or failed.
    pub all: u32,
    /// Failed.
    pub failed: u32,
}

/// The nodes of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupCounts {
    /// How many there are.
    pub size: u32,
    /// How many can be scheduled to.
    pub open: u32,
    /// Those with a verdict: when they were made, and whether they passed.
    pub judged: Vec<(Timestamp, bool)>,
}

/// All nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupStats {
    /// By group.
    pub groups: BTreeMap<String, GroupCounts>,
    /// Of all of them.
    pub verdicts: VerdictCounts,
}

impl GroupStats {
    /// Counts the nodes. VerdictCounts since `from` count.
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
        let served = ownership(gates.iter().copied(), node);
        let is_held = matches!(served, Ownership::Gated(_) | Ownership::Unserved(..));
        let group = self.groups.entry(group(node).to_owned()).or_default();
        group.size += 1;
        group.open += u32::from(node.ready && !node.unschedulable && !is_held);
        let Some(record) = node.record.as_deref() else { return };
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
    pub fn group(&self, name: &str) -> GroupCounts {
        self.groups.get(name).cloned().unwrap_or_default()
    }
}
