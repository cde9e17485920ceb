//! Finds the gate that decides about a node, and what its decision is made from: the same for the controller, the demo and
//! `explain`.

use std::borrow::Cow;
use std::time::Duration;

use jiff::Timestamp;

use super::assignment::{record_for, verifiers};
use super::{
    AgentPod, DaemonPod, Decision, Effect, Fleet, GateView, Observed, Ownership, Slots, State, decide,
    ownership,
};
use crate::api::{Enforcement, SharedOutage};
use crate::node::NodeView;
use crate::record::Record;
use crate::worker::WorkerView;

/// What surrounds a node: the cluster as far as it matters to the node's gate.
pub trait Surroundings {
    /// Whether one more worker of this gate may run.
    fn slots(&self, gate: &str) -> Slots;
    /// What the other nodes of this gate show.
    fn fleet(&self, gate: &GateView, node: &NodeView, gated: bool) -> Fleet;
    /// When the evidence was observed for which this gate last requested the replacement of the node.
    fn requested_at(&self, gate: &str, node: &NodeView) -> Option<Timestamp>;
    /// The agent that verifies the node for this gate.
    fn agent(&self, gate: &str, node: &NodeView) -> AgentPod;
}

/// What is known of one node.
#[derive(Clone, Copy, Debug)]
pub struct NodeInputs<'a> {
    pub node: &'a NodeView,
    /// The workers of this node uid, in any order.
    pub workers: &'a [WorkerView],
    /// The pods of DaemonSets on the node; none if they are not watched.
    pub daemons: Option<&'a [DaemonPod]>,
    /// Known outages that are not the fault of a node; none if the RemediationPolicy was not read yet.
    pub outages: Option<&'a [SharedOutage]>,
    /// When this process first observed the node Ready and tainted.
    pub ready_since: Duration,
    /// When a worker last passed whose result only confirms the record, and is not recorded.
    pub confirmed_at: Option<Duration>,
    pub now: Timestamp,
    /// The time by the clock of [`WorkerView::first_seen`].
    pub elapsed: Duration,
}

/// What is to be done with a node, and how the node counts.
#[derive(Clone, Debug)]
pub struct Evaluated<'a> {
    /// The gate that decided, if one serves the node.
    pub ownership: Ownership<'a>,
    /// The node's record, with the section of that gate first.
    pub record: Cow<'a, Record>,
    pub decision: Decision,
    pub counted: Counted<'a>,
}

/// How a node counts: for the gate that holds it, or for the first by precedence of those that verified it.
#[derive(Clone, Debug)]
pub struct Counted<'a> {
    pub ownership: Ownership<'a>,
    /// The node's record, with the section of that gate first.
    pub record: Cow<'a, Record>,
    pub state: State,
    /// The other gates that verified the node, if none holds it.
    pub also_verified_by: Vec<&'a GateView>,
}

/// Finds the gate that decides about a node now, and lets it decide.
pub fn evaluate<'a>(
    inputs: NodeInputs<'a>,
    gates: impl IntoIterator<Item = &'a GateView>,
    around: &impl Surroundings,
) -> Evaluated<'a> {
    let gates: Vec<&GateView> = gates.into_iter().collect();
    let node = inputs.node;
    let first = ownership(gates.iter().copied(), node);
    let verifiers = match first {
        Ownership::Verified(_) => verifiers(&gates, node),
        _ => Vec::new(),
    };
    let decided = |owner| (owner, decide(&observe(inputs, &gates, owner, around)));
    let others = verifiers.iter().skip(1).map(|gate| decided(Ownership::Verified(gate)));
    let (owner, decision) =
        worker_gate(&gates, &inputs, first).map_or_else(|| first_to_act(decided(first), others), decided);
    let is_retainted = decision.effects.iter().any(|effect| matches!(effect, Effect::Retaint(_)));
    // A node that is about to be tainted counts for the gate that does it: the others are decided meanwhile.
    let counted = if is_retainted { owner } else { first };
    let record = |owner: Ownership<'a>| match owner.gate() {
        Some(gate) => record_for(node, gate, &gates),
        None => node.record.as_deref().map_or_else(|| Cow::Owned(Record::default()), Cow::Borrowed),
    };
    let state = if is_same_gate(owner, counted) {
        decision.state
    } else {
        counted_state(decision.state, counted, &record(counted))
    };
    let is_also = |gate: &&GateView| counted.gate().is_some_and(|counted| counted.uid != gate.uid);
    let also_verified_by = verifiers.into_iter().filter(|gate| !is_retainted && is_also(gate)).collect();
    Evaluated {
        ownership: owner,
        record: record(owner),
        counted: Counted { ownership: counted, record: record(counted), state, also_verified_by },
        decision,
    }
}

/// The gate that created a worker whose result is not recorded yet, if it can evaluate it. Otherwise another one would judge
/// the worker. A gate whose taint another one with precedence holds evaluates nothing: it would remove that taint.
fn worker_gate<'a>(
    gates: &[&'a GateView],
    inputs: &NodeInputs<'a>,
    first: Ownership<'a>,
) -> Option<Ownership<'a>> {
    let recorded = inputs.node.record.as_ref().map_or(0, |record| record.number);
    let newest = inputs.workers.iter().max_by_key(|worker| worker.identity.number)?;
    let worker = Some(newest).filter(|worker| worker.identity.number > recorded && first.gate().is_some())?;
    let gate = gates.iter().find(|gate| gate.uid == worker.identity.gate_uid)?;
    let taints = inputs.node.positions(&gate.spec.taints);
    let shares_taint = |other: &GateView| {
        inputs.node.positions(&other.spec.taints).iter().any(|position| taints.contains(position))
    };
    if gates.iter().any(|other| other.precedes(gate) && other.gates(inputs.node) && shares_taint(other)) {
        return None;
    }
    match gate.spec.enforcement {
        Enforcement::Enforce | Enforcement::Audit if gate.gates(inputs.node) => Some(Ownership::Gated(gate)),
        Enforcement::Enforce if verifiers(gates, inputs.node).iter().any(|one| one.uid == gate.uid) => {
            Some(Ownership::Verified(gate))
        }
        _ => None,
    }
}

/// Of the decisions, by precedence, the first that does something; otherwise the first that waits for a slot, that has an
/// Event to emit, or that does nothing. The node is decided about again when any of the gates wants it.
fn first_to_act<'a>(
    mut first: (Ownership<'a>, Decision),
    others: impl Iterator<Item = (Ownership<'a>, Decision)>,
) -> (Ownership<'a>, Decision) {
    let rank = |decision: &Decision| {
        // What is decided again until it is done must not keep another gate from its turn: Events about a state, and a
        // condition that the API server may refuse.
        let is_repeated =
            |effect: &Effect| effect.is_repeated() || matches!(effect, Effect::SetNodeCondition(_));
        match decision {
            _ if !decision.effects.iter().all(is_repeated) => 0,
            _ if decision.wants_slot.is_some() => 1,
            _ if !decision.effects.is_empty() => 2,
            _ => 3,
        }
    };
    for mut next in others {
        let recheck_in = [first.1.recheck_in, next.1.recheck_in].into_iter().flatten().min();
        if rank(&next.1) < rank(&first.1) {
            std::mem::swap(&mut first, &mut next);
        }
        first.1.recheck_in = recheck_in;
    }
    first
}

fn is_same_gate(one: Ownership<'_>, other: Ownership<'_>) -> bool {
    one.gate().map(|gate| &gate.uid) == other.gate().map(|gate| &gate.uid)
}

/// The state of a node for the gate that it counts for, while another gate decides.
fn counted_state(decided: State, counted: Ownership<'_>, record: &Record) -> State {
    match counted {
        Ownership::Verified(_) if record.is_admitted_by_audit() => State::Audited,
        Ownership::Verified(_) => State::Verified,
        // The gate holds the node, and waits for the other one.
        _ if matches!(decided, State::Verified | State::Audited) => State::Unverified,
        _ => decided,
    }
}

/// What is known of a node and around the gate that decides.
fn observe<'a>(
    inputs: NodeInputs<'a>,
    gates: &'a [&'a GateView],
    owner: Ownership<'a>,
    around: &impl Surroundings,
) -> Observed<'a> {
    let NodeInputs { node, workers, daemons, outages, ready_since, confirmed_at, now, elapsed } = inputs;
    let gate = owner.gate();
    let name = gate.map_or("", |gate| gate.name.as_str());
    let gated = matches!(owner, Ownership::Gated(_));
    Observed {
        node,
        ownership: owner,
        gates,
        workers,
        daemon_pods: daemons,
        slots: around.slots(name),
        fleet: gate.map_or_else(Fleet::default, |gate| around.fleet(gate, node, gated)),
        shared_outages: outages.unwrap_or_default(),
        policy_known: outages.is_some(),
        remediation_requested_at: around.requested_at(name, node),
        agent: around.agent(name, node),
        confirmed_at,
        ready_since,
        now,
        elapsed,
    }
}
