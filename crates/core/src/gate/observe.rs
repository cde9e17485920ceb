//! Builds what a decision about a node is made from: the same for the controller, the demo and `explain`.

use std::time::Duration;

use jiff::Timestamp;

use super::{DaemonPod, Fleet, GateView, Observed, Ownership, Slots, ownership};
use crate::api::SharedOutage;
use crate::node::NodeView;
use crate::worker::WorkerView;

/// What surrounds a node: the cluster as far as it matters to the node's gate.
pub trait Surroundings {
    /// Whether one more worker of this gate may run.
    fn slots(&self, gate: &str) -> Slots;
    /// What the other nodes of this gate show.
    fn fleet(&self, gate: &GateView, node: &NodeView, gated: bool) -> Fleet;
    /// When the evidence was observed for which this gate last requested the replacement of the node.
    fn requested_at(&self, gate: &str, node: &NodeView) -> Option<Timestamp>;
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
    pub now: Timestamp,
    /// The time by the clock of [`WorkerView::first_seen`].
    pub elapsed: Duration,
}

/// Finds the gate of a node and what is known around it.
pub fn observe<'a>(
    inputs: NodeInputs<'a>,
    gates: impl IntoIterator<Item = &'a GateView>,
    around: &impl Surroundings,
) -> Observed<'a> {
    let NodeInputs { node, workers, daemons, outages, ready_since, now, elapsed } = inputs;
    let owner = ownership(gates, node);
    let gate = owner.gate();
    let name = gate.map_or("", |gate| gate.name.as_str());
    let gated = matches!(owner, Ownership::Gated(_));
    Observed {
        node,
        ownership: owner,
        workers,
        daemon_pods: daemons,
        slots: around.slots(name),
        fleet: gate.map_or_else(Fleet::default, |gate| around.fleet(gate, node, gated)),
        shared_outages: outages.unwrap_or_default(),
        policy_known: outages.is_some(),
        remediation_requested_at: around.requested_at(name, node),
        ready_since,
        now,
        elapsed,
    }
}
