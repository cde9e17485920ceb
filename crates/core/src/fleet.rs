//! The index of all nodes' states, and the status of a NodeGate that is derived from it.

mod failed_writes;
mod gate_status;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::api::NodeCounts;
use crate::gate::{Fleet, State};
use crate::record::InconclusiveReason;

pub use failed_writes::{FailedWrites, FailedWritesSummary};
pub use gate_status::{GateStatusInput, Unserved, audit, gated_nodes, shadowing_gate, status};

/// So many nodes whose workers cannot run for the same reason are a common failure, if they are the majority of the nodes
/// that are being verified.
const MIN_COMMON_FAILURES: u32 = 3;

/// The state of one node. It is kept small, because there is one for each node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// The name of the node's gate; the taint's key if no gate serves the node; empty if it has no gate.
    pub at: Arc<str>,
    pub state: State,
    /// Why the last worker was inconclusive.
    pub cause: Option<InconclusiveReason>,
    /// The node was verified and is tainted again.
    pub retainted: bool,
    /// The names of other gates that verified the node too.
    pub also_verified_by: Box<[Arc<str>]>,
    /// The Node's creation time, in seconds since 1970.
    pub created_at: i64,
    /// Attempts after the first in the record's scope.
    pub retries: u32,
    /// The duration of the worker with the last verdict, in milliseconds.
    pub worker_ms: Option<u32>,
}

/// The nodes of one gate, counted by state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GateCounts {
    states: BTreeMap<State, u32>,
    causes: BTreeMap<InconclusiveReason, u32>,
    retainted: u32,
    /// Nodes that the gate verified, and that count for another gate, which verified them too.
    also_verified: u32,
}

impl GateCounts {
    #[must_use]
    pub fn count(&self, state: State) -> u32 {
        self.states.get(&state).copied().unwrap_or_default()
    }

    /// The common reason why workers cannot run, and the number of nodes.
    #[must_use]
    pub fn cannot_run(&self) -> Option<(InconclusiveReason, u32)> {
        let (cause, count) =
            self.causes.iter().filter(|(cause, _)| cause.prevents_running()).max_by_key(|all| all.1)?;
        let unverified = [
            State::Unverified,
            State::Pending,
            State::InProgress,
            State::Inconclusive,
            State::Stuck,
            State::Failed,
        ];
        let unverified: u32 = unverified.into_iter().map(|state| self.count(state)).sum();
        (*count >= MIN_COMMON_FAILURES && count * 2 > unverified).then_some((*cause, *count))
    }

    /// Adds the node's state to the counts, or removes it.
    fn update(&mut self, status: &NodeStatus, add: bool) {
        update(self.states.entry(status.state).or_default(), add);
        if let Some(cause) = status.cause {
            update(self.causes.entry(cause).or_default(), add);
        }
        if status.retainted {
            update(&mut self.retainted, add);
        }
    }

    /// Whether the gate has no nodes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.also_verified == 0 && self.states.values().all(|count| *count == 0)
    }

    fn counts(&self) -> NodeCounts {
        let count = |states: &[State]| {
            let sum: u32 = states.iter().map(|state| self.count(*state)).sum();
            i32::try_from(sum).unwrap_or(i32::MAX)
        };
        let waiting = count(&[State::Waiting]);
        let verifying = count(&[State::Unverified, State::Pending, State::InProgress]);
        let (inconclusive, stuck) = (count(&[State::Inconclusive]), count(&[State::Stuck]));
        let failed = count(&[State::Failed]);
        NodeCounts {
            gated: waiting + verifying + inconclusive + stuck + failed,
            waiting,
            verifying,
            inconclusive,
            stuck,
            failed,
            verified: count(&[State::Verified]),
        }
    }
}

/// The states of all nodes, with counts by gate.
#[derive(Debug, Default)]
pub struct FleetIndex {
    /// In the order of their names. A list takes half of the memory of a map, and nodes seldom come or go.
    nodes: Vec<(Arc<str>, NodeStatus)>,
    by_gate: BTreeMap<Arc<str>, GateCounts>,
    /// Gate names and taint keys, shared by all nodes.
    names: BTreeSet<Arc<str>>,
}

impl FleetIndex {
    /// The shared copy of a gate's name or a taint's key.
    pub fn name(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.names.get(name) {
            return known.clone();
        }
        let new: Arc<str> = name.into();
        self.names.insert(new.clone());
        new
    }

    /// Sets or removes the state of a node. Returns the gates whose counts changed.
    pub fn set(&mut self, node: &Arc<str>, mut now: Option<NodeStatus>) -> Vec<Arc<str>> {
        let place = self.find(node);
        let before = place.ok().map(|index| &self.nodes[index].1);
        if let (Some(now), Some(before)) = (&mut now, before) {
            now.worker_ms = before.worker_ms;
        }
        if before == now.as_ref() {
            return Vec::new();
        }
        let before = match (place, now.clone()) {
            (Ok(index), Some(status)) => Some(std::mem::replace(&mut self.nodes[index].1, status)),
            (Ok(index), None) => Some(self.nodes.remove(index).1),
            (Err(index), status) => {
                self.nodes.splice(index..index, status.map(|status| (node.clone(), status)));
                None
            }
        };
        let mut changed = Vec::new();
        for (status, add) in [(before, false), (now, true)] {
            let Some(status) = status else { continue };
            self.update(&status.at, |counts| counts.update(&status, add));
            for gate in &status.also_verified_by {
                self.update(gate, |counts| update(&mut counts.also_verified, add));
            }
            if !changed.contains(&status.at) {
                changed.push(status.at);
            }
        }
        changed
    }

    fn update(&mut self, gate: &Arc<str>, change: impl FnOnce(&mut GateCounts)) {
        let counts = self.by_gate.entry(gate.clone()).or_default();
        change(counts);
        if counts.is_empty() {
            self.by_gate.remove(gate);
        }
    }

    /// Sets the duration of the worker that came to the node's last verdict.
    pub fn set_worker_ms(&mut self, node: &str, milliseconds: u32) {
        if let Ok(index) = self.find(node) {
            self.nodes[index].1.worker_ms = Some(milliseconds);
        }
    }

    /// The place of a node, or where it would be.
    fn find(&self, node: &str) -> Result<usize, usize> {
        self.nodes.binary_search_by(|(name, _)| (**name).cmp(node))
    }

    #[must_use]
    pub fn get(&self, node: &str) -> Option<&NodeStatus> {
        self.find(node).ok().map(|index| &self.nodes[index].1)
    }

    pub fn nodes(&self) -> impl Iterator<Item = (&str, &NodeStatus)> {
        self.nodes.iter().map(|(name, status)| (&**name, status))
    }

    #[must_use]
    pub fn counts(&self, gate: &str) -> GateCounts {
        self.by_gate.get(gate).cloned().unwrap_or_default()
    }

    /// What the nodes of a gate mean for one of them. `refused`: the API server refuses worker pods.
    #[must_use]
    pub fn fleet(&self, gate: &str, refused: bool) -> Fleet {
        let Some(counts) = self.by_gate.get(gate) else {
            return Fleet { cannot_run: refused, ..Fleet::default() };
        };
        Fleet {
            cannot_run: refused || counts.cannot_run().is_some(),
            open: counts.count(State::Verified).saturating_add(counts.also_verified),
            retainted: counts.retainted,
            ..Fleet::default()
        }
    }

    /// The number of nodes that were decided about.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// One node of a gate in this state, for messages.
    #[must_use]
    pub fn example(&self, at: &str, state: State) -> Option<&str> {
        self.nodes().find(|(_, status)| *status.at == *at && status.state == state).map(|(name, _)| name)
    }
}

fn update(count: &mut u32, add: bool) {
    *count = if add { count.saturating_add(1) } else { count.saturating_sub(1) };
}

#[cfg(test)]
mod tests;
