//! The cluster as remediation sees it: the cached objects, and what follows from several of them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::control::{ControlGroupResult, eligible_nodes, is_compared};
use super::{BlockReason, GroupStats, Policy, Remediation, evidence_ttl};
use crate::api::{CauseVerdict, RemediationCause, RemediationPolicySpec};
use crate::gate::GateView;
use crate::id::Id;
use crate::node::NodeView;
use crate::reasons::remediation::APPROVED;
use crate::report::Verdict;
use crate::topology::zone;
use crate::worker::WorkerView;

/// The cached objects that decisions about remediations are made from.
#[derive(Clone, Debug)]
pub struct ClusterView<'a> {
    /// All nodes, sorted by name.
    pub nodes: Vec<&'a NodeView>,
    pub gates: Vec<&'a GateView>,
    /// The control workers.
    pub controls: Vec<&'a WorkerView>,
    pub remediations: Vec<&'a Remediation>,
    /// None if there is no policy or it cannot be read.
    pub policy: Option<&'a Policy>,
    pub now: Timestamp,
    /// The time by the clock of [`WorkerView::first_seen`].
    pub elapsed: Duration,
}

/// What other nodes show about a gate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OtherNodes {
    /// How nodes that the gate verified fare with its checks.
    pub compared: ControlGroupResult,
    /// Whether a worker of the gate reported about another node recently.
    pub reported: bool,
}

impl<'a> ClusterView<'a> {
    #[must_use]
    pub fn node(&self, name: &str) -> Option<&'a NodeView> {
        self.nodes.binary_search_by(|node| (*node.name).cmp(name)).ok().map(|at| self.nodes[at])
    }

    #[must_use]
    pub fn gate(&self, name: &str) -> Option<&'a GateView> {
        self.gates.iter().copied().find(|gate| gate.name == name)
    }

    /// Counts all nodes by group.
    #[must_use]
    pub fn group_stats(&self) -> GroupStats {
        let default = RemediationPolicySpec::default();
        let spec = self.policy.map_or(&default, |policy| &policy.spec);
        let window = SignedDuration::from_secs(spec.breaker.window_seconds.into());
        GroupStats::new(self.nodes.iter().copied(), &self.gates, self.now - window)
    }

    /// Control runs are numbered by the minute in which they begin.
    #[must_use]
    pub fn run_number(&self) -> u32 {
        u32::try_from(self.now.as_second() / 60).unwrap_or_default()
    }

    /// The number of the next control run of a gate in a zone. It is higher than those of all earlier runs: the clock of
    /// another leader may have been ahead, or the gate may have changed within the minute.
    #[must_use]
    pub fn next_run_number(&self, gate: &GateView, in_zone: &str) -> u32 {
        let is_earlier =
            |control: &&&WorkerView| control.identity.gate_uid == gate.uid && self.is_in(in_zone, control);
        let numbers = self.controls.iter().filter(is_earlier).map(|control| control.identity.number);
        numbers.max().map_or(0, |newest| newest.saturating_add(1)).max(self.run_number())
    }

    fn is_in(&self, in_zone: &str, control: &WorkerView) -> bool {
        self.node(&control.node_name).is_some_and(|node| zone(node) == in_zone)
    }

    /// How verified nodes of a zone fare with the checks of a gate.
    #[must_use]
    pub fn compared(&self, gate: &GateView, in_zone: &str) -> ControlGroupResult {
        let number = self.run_number();
        let there = eligible_nodes(self.nodes.iter().copied(), gate, in_zone, number).len();
        let is_in = |node: &str| self.node(node).is_some_and(|node| zone(node) == in_zone);
        let controls = self.controls.iter().copied().filter(|control| !control.deleting);
        ControlGroupResult::new(gate, controls, is_in, there, self.elapsed, number)
    }

    /// What other nodes show about each gate of a cause. Control runs count that began after the first failure of the node.
    #[must_use]
    pub fn others(
        &self,
        remediation: &Remediation,
        node: Option<&NodeView>,
        in_zone: &str,
    ) -> BTreeMap<String, OtherNodes> {
        let since_failure =
            node.map_or(Duration::ZERO, |node| self.elapsed.saturating_sub(node.failing_since));
        let (uid, within) = (&remediation.spec.node.uid, evidence_ttl(self.policy));
        let others = |cause: &RemediationCause| {
            let gate = self.gate(&cause.name)?;
            let mut others = OtherNodes::default();
            if is_compared(cause) {
                others.compared = ControlGroupResult { since_failure, ..self.compared(gate, in_zone) };
            }
            if cause.verdict == CauseVerdict::Stuck {
                others.reported = reported_elsewhere(self.nodes.iter().copied(), gate, uid, within, self.now);
            }
            Some((cause.name.clone(), others))
        };
        remediation.gate_causes().filter_map(others).collect()
    }

    /// Gates and zones of remediations that are blocked for one of these reasons, and of known outages.
    #[must_use]
    pub fn compared_places(&self, reasons: &[BlockReason]) -> BTreeSet<(String, String)> {
        let is_blocked = |remediation: &&&Remediation| {
            let approved = remediation.condition(APPROVED);
            !remediation.is_complete()
                && approved.is_some_and(|one| reasons.iter().any(|reason| one.reason == reason.as_str()))
        };
        // Which of several causes is fresh is known only when the node is read.
        let blocked = self.remediations.iter().filter(is_blocked).flat_map(|remediation| {
            let node = self.node(&remediation.spec.node.name);
            let compared = remediation.gate_causes().filter(|cause| is_compared(cause));
            compared.filter_map(move |cause| Some((cause.name.clone(), zone(node?).to_owned())))
        });
        let outages = self.policy.map_or(&[][..], |policy| &policy.status.down);
        let outages = outages.iter().map(|outage| (outage.gate.clone(), outage.zone.clone()));
        blocked.chain(outages).filter(|(gate, _)| self.gate(gate).is_some()).collect()
    }
}

/// Whether a worker of this gate passed or failed another node within this time: its image can be run.
#[must_use]
pub fn reported_elsewhere<'a>(
    nodes: impl IntoIterator<Item = &'a NodeView>,
    gate: &GateView,
    uid: &str,
    within: SignedDuration,
    now: Timestamp,
) -> bool {
    let (uid, gate_uid) = (Id::from(uid), Id::from(&gate.uid));
    nodes.into_iter().filter(|node| node.uid != uid).any(|node| {
        let section = node.record.as_ref().and_then(|record| record.section(&gate_uid));
        section.is_some_and(|record| {
            record.scope.gate_generation == gate.generation
                && matches!(record.verdict, Some(Verdict::Passed | Verdict::Failed))
                && record.at.is_some_and(|at| now.duration_since(at) < within)
        })
    })
}
