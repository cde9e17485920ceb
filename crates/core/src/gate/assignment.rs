//! Which gate a node stands before.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;

use crate::api::{Enforcement, GateTaint, NodeGate, NodeGateSpec, NodeGateStatus};
use crate::node::NodeView;
use crate::record::Record;
use crate::topology::TOPOLOGY_LABELS;

/// A gate, as far as anything here is decided by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateView {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Changes with its spec.
    pub generation: i64,
    /// The older one wins.
    pub created: Timestamp,
    /// Somebody deleted it: it serves no more.
    pub deleting: bool,
    /// What it asks for.
    pub spec: NodeGateSpec,
    /// What it says about itself.
    pub status: NodeGateStatus,
}

impl GateView {
    /// Keeps what is needed of a gate.
    #[must_use]
    pub fn new(gate: &NodeGate) -> Self {
        let metadata = &gate.metadata;
        Self {
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            generation: metadata.generation.unwrap_or_default(),
            created: metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            deleting: metadata.deletion_timestamp.is_some(),
            spec: gate.spec.clone(),
            status: gate.status.clone().unwrap_or_default(),
        }
    }

    /// The first of two gates for the same node serves it: by priority, then by age, then by name. One that only looks
    /// comes last: trying it out must not hold what another would let in.
    fn precedence(&self) -> (bool, Reverse<i32>, Timestamp, &str) {
        let only_looks = self.spec.enforcement == Enforcement::DryRun;
        (only_looks, Reverse(self.spec.priority), self.created, &self.name)
    }

    /// Whether this one is ahead of another.
    #[must_use]
    pub fn goes_before(&self, other: &Self) -> bool {
        self.precedence() < other.precedence()
    }

    /// Whether it is for this node, tainted or not.
    #[must_use]
    pub fn selects(&self, node: &NodeView) -> bool {
        !self.deleting && self.spec.node_selector.matches(&node.labels)
    }

    /// Whether it is for this node and the node bears a taint of it.
    #[must_use]
    pub fn holds(&self, node: &NodeView) -> bool {
        self.selects(node) && !node.positions(&self.spec.taints).is_empty()
    }
}

/// Who looks after a node.
#[derive(Clone, Copy, Debug)]
pub enum Ownership<'a> {
    /// It bears a taint of this gate.
    Gated(&'a GateView),
    /// It was let in, and this gate is for it.
    Verified(&'a GateView),
    /// It bears a taint that is a gate's, and no gate serves it; the taint.
    Unserved(&'a str, &'static str),
    /// It was let in, and its gate is gone or no longer for it.
    Released,
    /// It is nobody's.
    Unmanaged,
}

impl<'a> Ownership<'a> {
    /// The gate, if any.
    #[must_use]
    pub fn gate(self) -> Option<&'a GateView> {
        match self {
            Self::Gated(gate) | Self::Verified(gate) => Some(gate),
            Self::Unserved(..) | Self::Released | Self::Unmanaged => None,
        }
    }
}

/// The labels and condition types that decisions read: those of the gates, Karpenter's, and those of groups and zones.
#[must_use]
pub fn wanted_labels<'a>(gates: impl IntoIterator<Item = &'a GateView>) -> BTreeSet<Arc<str>> {
    let asked = gates.into_iter().flat_map(|gate| {
        let conditions = gate.spec.wait_for.conditions.iter().map(|condition| condition.type_.as_str());
        gate.spec.node_selector.keys().chain([gate.spec.verified_label.key.as_str()]).chain(conditions)
    });
    // And the word that most of them have for a value.
    asked.chain(super::prerequisites::LABELS).chain(TOPOLOGY_LABELS).chain(["true"]).map(Arc::from).collect()
}

/// Who looks after this node.
#[must_use]
pub fn ownership<'a>(gates: impl IntoIterator<Item = &'a GateView>, node: &'a NodeView) -> Ownership<'a> {
    let gates: Vec<&GateView> = gates.into_iter().collect();
    let first = |fits: &dyn Fn(&GateView) -> bool| {
        gates.iter().copied().filter(|gate| fits(gate)).min_by_key(|gate| gate.precedence())
    };
    if let Some(gate) = first(&|gate| gate.holds(node)) {
        return Ownership::Gated(gate);
    }
    let usual = GateTaint::default();
    let is_gates_own = |key: &str, effect: &str| {
        let mut known = gates.iter().flat_map(|gate| &gate.spec.taints);
        let same = |taint: &GateTaint| taint.key == key && taint.effect.as_str() == effect;
        same(&usual) || known.any(same)
    };
    if let Some(taint) = node.taints.iter().find(|taint| is_gates_own(&taint.key, &taint.effect)) {
        let known = |gate: &GateView| gate.spec.taints.iter().any(|own| *own.key == *taint.key);
        let why = if first(&known).is_some() {
            "no gate with this taint selects the node"
        } else {
            "there is no gate with this taint"
        };
        return Ownership::Unserved(&taint.key, why);
    }
    let Some(record) = Record::read(node.record.as_deref(), &node.uid) else { return Ownership::Unmanaged };
    if !record.is_open() {
        // Of a gate that is no more.
        let held_by = node.taints.iter().find(|taint| *taint.key == *record.taint);
        return held_by
            .map_or(Ownership::Unmanaged, |taint| Ownership::Unserved(&taint.key, "its gate is gone"));
    }
    // The gate that let it in, if it still is for it.
    let same = first(&|gate| gate.selects(node) && gate.uid == record.round.gate_uid);
    // Or its successor, which gives the same label: one with other taints and labels has nothing to do with it.
    let heir = |gate: &GateView| gate.selects(node) && gate.spec.verified_label.key == record.label;
    same.or_else(|| first(&heir)).map_or(Ownership::Released, Ownership::Verified)
}
