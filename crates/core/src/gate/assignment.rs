//! Which gates serve a node, and which section of its record belongs to which of them.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;

use crate::api::{Enforcement, GateTaint, NodeGate, NodeGateSpec, NodeGateStatus};
use crate::configured::LAST_APPLIED;
use crate::id::Id;
use crate::node::NodeView;
use crate::record::{InconclusiveReason, Record};
use crate::report::Verdict;
use crate::topology::TOPOLOGY_LABELS;

/// A trimmed view of a NodeGate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateView {
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    pub generation: i64,
    pub created: Timestamp,
    /// A gate that is being deleted serves no node.
    pub deleting: bool,
    /// The annotation of an object that the installation brings.
    pub last_applied: Option<String>,
    pub spec: NodeGateSpec,
    pub status: NodeGateStatus,
}

impl GateView {
    #[must_use]
    pub fn new(gate: &NodeGate) -> Self {
        let metadata = &gate.metadata;
        Self {
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            resource_version: metadata.resource_version.clone().unwrap_or_default(),
            generation: metadata.generation.unwrap_or_default(),
            created: metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            deleting: metadata.deletion_timestamp.is_some(),
            last_applied: metadata.annotations.as_ref().and_then(|all| all.get(LAST_APPLIED)).cloned(),
            spec: gate.spec.clone(),
            status: gate.status.clone().unwrap_or_default(),
        }
    }

    /// How many attempts a node has before it counts as failed.
    #[must_use]
    pub fn attempts_allowed(&self) -> u32 {
        self.spec.retry.max_retries.unsigned_abs().saturating_add(1)
    }

    /// Whether a record says that all attempts are used up and the last one failed.
    #[must_use]
    pub fn has_failed(&self, record: &Record) -> bool {
        record.attempts >= self.attempts_allowed() && record.verdict == Some(Verdict::Failed)
    }

    /// Whether a record says that the deadline has passed and the last worker was inconclusive.
    #[must_use]
    pub fn is_stuck(&self, record: &Record) -> bool {
        record.attempts < self.attempts_allowed()
            && record.verdict == Some(Verdict::Inconclusive)
            && record.cause != Some(InconclusiveReason::SharedDependency)
            && record.elapsed_seconds >= self.spec.deadlines.gate_seconds.unsigned_abs()
    }

    /// The least of the gates for the same node serves it: by enforcement, then by priority, by age and by name. Trying a
    /// gate out admits no node that another one holds, and does not keep another one from verifying nodes.
    fn precedence(&self) -> (u8, Reverse<i32>, Timestamp, &str) {
        let enforcement = match self.spec.enforcement {
            Enforcement::Enforce | Enforcement::Paused => 0,
            Enforcement::Audit => 1,
            Enforcement::DryRun => 2,
        };
        (enforcement, Reverse(self.spec.priority), self.created, &self.name)
    }

    /// Whether this gate has precedence over another one.
    #[must_use]
    pub fn precedes(&self, other: &Self) -> bool {
        self.precedence() < other.precedence()
    }

    /// Whether the gate selects this node, tainted or not.
    #[must_use]
    pub fn selects(&self, node: &NodeView) -> bool {
        !self.deleting && self.spec.node_selector.matches(&node.labels)
    }

    /// Whether the gate selects this node and the node has one of its taints.
    #[must_use]
    pub fn gates(&self, node: &NodeView) -> bool {
        self.selects(node) && !node.positions(&self.spec.taints).is_empty()
    }

    /// Whether the node has one of the gate's taints, or the gate verified it.
    pub(super) fn serves(&self, node: &NodeView) -> bool {
        let verified = || node.record.as_ref().and_then(|record| record.section(&*self.uid));
        self.gates(node) || (self.selects(node) && verified().is_some_and(Record::is_open))
    }

    /// The key of the gate's first taint, by which its section of a record is known after the gate is deleted.
    pub(super) fn taint_key(&self) -> &str {
        self.spec.taints.first().map(|taint| taint.key.as_str()).unwrap_or_default()
    }
}

/// Which gate serves a node.
#[derive(Clone, Copy, Debug)]
pub enum Ownership<'a> {
    /// The gate selects the node, and the node has one of its taints.
    Gated(&'a GateView),
    /// The node is verified, and the gate selects it.
    Verified(&'a GateView),
    /// The node has a gate's taint, and no gate serves it: the taint's key, and why.
    Unserved(&'a str, &'static str),
    /// The node is verified, and no gate selects it any more.
    Released,
    /// The node never had a gate.
    Unmanaged,
}

impl<'a> Ownership<'a> {
    #[must_use]
    pub fn gate(self) -> Option<&'a GateView> {
        match self {
            Self::Gated(gate) | Self::Verified(gate) => Some(gate),
            Self::Unserved(..) | Self::Released | Self::Unmanaged => None,
        }
    }
}

/// The label keys that decisions need: those of the gates, of Karpenter and of the topology.
#[must_use]
pub fn wanted_labels<'a>(gates: impl IntoIterator<Item = &'a GateView>) -> BTreeSet<Arc<str>> {
    let keys = gates.into_iter().flat_map(|gate| {
        let conditions = gate.spec.wait_for.conditions.iter().map(|condition| condition.type_.as_str());
        gate.spec.node_selector.keys().chain([gate.spec.verified_label.key.as_str()]).chain(conditions)
    });
    keys.chain(super::prerequisites::KARPENTER_LABELS).chain(TOPOLOGY_LABELS).map(Arc::from).collect()
}

#[must_use]
pub fn ownership<'a>(gates: impl IntoIterator<Item = &'a GateView>, node: &'a NodeView) -> Ownership<'a> {
    let gates: Vec<&GateView> = gates.into_iter().collect();
    let first = |fits: &dyn Fn(&GateView) -> bool| {
        gates.iter().copied().filter(|gate| fits(gate)).min_by_key(|gate| gate.precedence())
    };
    if let Some(gate) = first(&|gate| gate.gates(node)) {
        return Ownership::Gated(gate);
    }
    let default_taint = GateTaint::default();
    let is_gate_taint = |key: &str, effect: &str| {
        let mut known = gates.iter().flat_map(|gate| &gate.spec.taints);
        let same = |taint: &GateTaint| taint.key == key && taint.effect.as_str() == effect;
        same(&default_taint) || known.any(same)
    };
    if let Some(taint) = node.taints.iter().find(|taint| is_gate_taint(&taint.key, &taint.effect)) {
        let known = |gate: &GateView| gate.spec.taints.iter().any(|own| *own.key == *taint.key);
        let why = if first(&known).is_some() {
            "no gate with this taint selects the node"
        } else {
            "there is no gate with this taint"
        };
        return Ownership::Unserved(&taint.key, why);
    }
    let Some(record) = node.record.as_deref() else { return Ownership::Unmanaged };
    // The gate that wrote the section may be deleted.
    let mut closed = record.sections().filter(|section| !section.is_open());
    let left = closed.find_map(|section| node.taints.iter().find(|taint| *taint.key == *section.taint));
    if let Some(taint) = left {
        return Ownership::Unserved(&taint.key, "its gate is gone");
    }
    match verifiers(&gates, node).first() {
        Some(gate) => Ownership::Verified(gate),
        None if record.sections().any(Record::is_open) => Ownership::Released,
        None => Ownership::Unmanaged,
    }
}

/// The gates that verified the node and still select it, by precedence. A gate that was deleted has a successor, which
/// sets the same label.
pub(super) fn verifiers<'a>(gates: &[&'a GateView], node: &NodeView) -> Vec<&'a GateView> {
    let Some(record) = node.record.as_deref() else { return Vec::new() };
    let is_verifier = |gate: &&&GateView| {
        let section = section_of(record, gate, gates, node).and_then(|index| record.sections().nth(index));
        gate.selects(node) && section.is_some_and(|section| section.is_open() && is_known(section, gate))
    };
    let mut verifiers: Vec<&GateView> = gates.iter().filter(is_verifier).copied().collect();
    verifiers.sort_by(|a, b| a.precedence().cmp(&b.precedence()));
    verifiers
}

/// The record of the node with the section of this gate first: its own, the one of a gate that was deleted and that it
/// succeeds, or a new one.
#[must_use]
pub fn record_for<'a>(node: &'a NodeView, gate: &GateView, gates: &[&GateView]) -> Cow<'a, Record> {
    let Some(record) = node.record.as_deref() else { return Cow::Owned(Record::default()) };
    let taint_of =
        |uid: &Id| gates.iter().find(|gate| !gate.deleting && *uid == gate.uid).map(|gate| gate.taint_key());
    match section_of(record, gate, gates, node) {
        Some(index) => record.with_first(index),
        None => Cow::Owned(record.with_new(taint_of)),
    }
}

/// The index of the gate's section.
fn section_of(record: &Record, gate: &GateView, gates: &[&GateView], node: &NodeView) -> Option<usize> {
    let own = |gate: &GateView| record.sections().position(|section| section.scope.gate_uid == gate.uid);
    let exists =
        |section: &Record| gates.iter().any(|other| !other.deleting && section.scope.gate_uid == other.uid);
    let inherited = || {
        let is_heir = |gate: &GateView, section: &Record| own(gate).is_none() && is_known(section, gate);
        // Of several heirs the one with precedence inherits.
        let is_first_heir = |section: &Record| {
            let precedes = |other: &&&GateView| other.precedes(gate) && other.selects(node);
            is_heir(gate, section) && !gates.iter().filter(precedes).any(|other| is_heir(other, section))
        };
        let is_blank = |section: &Record| section.label.is_empty() && section.taint.is_empty();
        record
            .sections()
            .position(|section| !exists(section) && is_first_heir(section))
            .or_else(|| record.sections().position(|section| !exists(section) && is_blank(section)))
    };
    own(gate).or_else(inherited)
}

/// Whether a section may be about this gate: about the gate itself, or about a deleted one with the same taint or label.
fn is_known(section: &Record, gate: &GateView) -> bool {
    let has_taint = || gate.spec.taints.iter().any(|taint| *taint.key == *section.taint);
    let has_label = || section.taint.is_empty() && *section.label == *gate.spec.verified_label.key;
    section.scope.gate_uid == gate.uid || has_taint() || has_label()
}
