//! Metrics computed from the `FleetIndex` at each scrape. Only the leader serves them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use nodekeeper_core::fleet::{FleetIndex, NodeStatus};
use nodekeeper_core::gate::State;
use parking_lot::{Mutex, MutexGuard};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};

use super::number;
use super::registry::{Entry, Registry, Set};
use super::table::{
    ACTIVE, COMPAT_FAILED, COMPAT_UNVERIFIED, COMPAT_VERIFIED, COMPAT_VERIFYING, DURATION, INFO, NODES,
    OLDEST, RETRIES, RETRY_COUNT, STATUS, VERIFIED,
};

/// The values of `state` that are served for every gate, with nodes or without.
const STATES: [&str; 8] =
    ["waiting", "verifying", "verified", "audited", "failed", "inconclusive", "stuck", "terminating"];

/// The totals of kube-node-ready, each with the states that it counts.
const COMPAT_TOTALS: [(Entry, &[&str]); 4] = [
    (COMPAT_UNVERIFIED, &["unverified"]),
    (COMPAT_VERIFYING, &["pending", "in_progress"]),
    (COMPAT_VERIFIED, &["verified"]),
    (COMPAT_FAILED, &["failed"]),
];

/// Reads the fleet index of the leader at each scrape.
#[derive(Clone, Debug)]
pub struct NodeCollector {
    state: Arc<Mutex<CollectorState>>,
    compat: bool,
    per_node: bool,
}

#[derive(Debug, Default)]
struct CollectorState {
    leading: bool,
    fleet: Arc<Mutex<FleetIndex>>,
    gates: BTreeSet<Box<str>>,
}

impl NodeCollector {
    pub fn new(registry: &mut Registry) -> Self {
        let (compat, per_node) = (registry.is_served(Set::Compat), registry.is_served(Set::PerNode));
        let collector = Self { state: Arc::default(), compat, per_node };
        registry.prometheus.register_collector(Box::new(collector.clone()));
        collector
    }

    fn state(&self) -> MutexGuard<'_, CollectorState> {
        self.state.lock()
    }

    pub fn set_fleet(&self, fleet: Arc<Mutex<FleetIndex>>) {
        self.state().fleet = fleet;
    }

    pub fn start_leading(&self) {
        self.state().leading = true;
    }

    /// Returns whether this replica was leading.
    pub fn stop_leading(&self) -> bool {
        let mut state = self.state();
        state.gates.clear();
        std::mem::take(&mut state.leading)
    }

    /// Returns whether this replica leads and the node is in the fleet index.
    pub fn has_node(&self, node: &str) -> bool {
        let state = self.state();
        state.leading && state.fleet.lock().get(node).is_some()
    }

    /// Returns the state of a node in the words of kube-node-ready, if the node is in the fleet index.
    pub fn compat_state(&self, node: &str) -> Option<&'static str> {
        let state = self.state();
        let fleet = state.fleet.lock();
        fleet.get(node).map(|status| compat_state(status.state))
    }

    pub fn add_gate(&self, gate: &str) {
        self.state().gates.insert(gate.into());
    }

    pub fn remove_gate(&self, gate: &str) {
        self.state().gates.remove(gate);
    }
}

impl Collector for NodeCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let state = self.state();
        if !state.leading {
            return Ok(());
        }
        let nodes = &*state.fleet.lock();
        encode_totals(nodes, &state.gates, &mut encoder)?;
        if self.compat {
            for (entry, states) in COMPAT_TOTALS {
                let count =
                    nodes.nodes().filter(|(_, seen)| states.contains(&compat_state(seen.state))).count();
                gauges(&mut encoder, &entry, [(Vec::new(), number(count))])?;
            }
        }
        if self.per_node {
            let rows = gated(nodes).map(|(name, seen)| {
                (vec![("node", name), ("gate", gate_of(seen)), ("state", state_name(seen.state))], 1.0)
            });
            gauges(&mut encoder, &INFO, rows)?;
        }
        if self.compat && self.per_node { encode_compat(nodes, &mut encoder) } else { Ok(()) }
    }
}

fn gated(nodes: &FleetIndex) -> impl Iterator<Item = (&str, &NodeStatus)> {
    nodes.nodes().filter(|(_, seen)| seen.state != State::Ungated)
}

/// For an unserved node `at` is the key of a taint, not a gate.
fn gate_of(status: &NodeStatus) -> &str {
    if status.state == State::Unserved { "" } else { &status.at }
}

fn encode_totals(
    nodes: &FleetIndex,
    gates: &BTreeSet<Box<str>>,
    encoder: &mut DescriptorEncoder,
) -> fmt::Result {
    // A gate without nodes is served as 0: an alert on a series that disappears does not resolve.
    let gates = gates.iter();
    let mut counts: BTreeMap<(&str, &str), usize> =
        gates.flat_map(|gate| STATES.map(|state| ((&**gate, state), 0))).collect();
    let mut oldest: BTreeMap<&str, i64> = BTreeMap::new();
    for (_, seen) in nodes.nodes() {
        *counts.entry((gate_of(seen), state_name(seen.state))).or_default() += 1;
        if !matches!(seen.state, State::Ungated | State::Verified | State::Audited | State::Terminating) {
            oldest
                .entry(gate_of(seen))
                .and_modify(|oldest| *oldest = seen.created_at.min(*oldest))
                .or_insert(seen.created_at);
        }
    }
    let rows = counts
        .iter()
        .map(|((gate, state), count)| (vec![("gate", *gate), ("state", *state)], number(*count)));
    gauges(encoder, &NODES, rows)?;
    #[expect(clippy::cast_precision_loss, reason = "seconds since 1970 are exact in a f64")]
    let rows = oldest.iter().map(|(gate, created_at)| (vec![("gate", *gate)], *created_at as f64));
    gauges(encoder, &OLDEST, rows)
}

fn encode_compat(nodes: &FleetIndex, encoder: &mut DescriptorEncoder) -> fmt::Result {
    let rows =
        gated(nodes).map(|(name, seen)| (vec![("node", name), ("status", compat_state(seen.state))], 1.0));
    gauges(encoder, &STATUS, rows)?;
    let rows = gated(nodes)
        .filter_map(|(name, seen)| seen.worker_ms.map(|ms| (vec![("node", name)], f64::from(ms) / 1000.0)));
    gauges(encoder, &DURATION, rows)?;
    let rows =
        |of: fn(&NodeStatus) -> f64| gated(nodes).map(move |(name, seen)| (vec![("node", name)], of(seen)));
    gauges(encoder, &RETRY_COUNT, rows(|seen| f64::from(seen.retries)))?;
    gauges(encoder, &VERIFIED, rows(|seen| (seen.state == State::Verified).into()))?;
    let active = |seen: &NodeStatus| matches!(seen.state, State::Pending | State::InProgress).into();
    gauges(encoder, &ACTIVE, rows(active))?;
    let mut out = RETRIES.encode(encoder)?;
    for (name, seen) in gated(nodes) {
        let retries = u64::from(seen.retries);
        out.encode_family(&[("node", name)])?.encode_counter::<NoLabelSet, _, f64>(&retries, None)?;
    }
    Ok(())
}

fn gauges<'a>(
    encoder: &mut DescriptorEncoder,
    entry: &Entry,
    rows: impl IntoIterator<Item = (Vec<(&'a str, &'a str)>, f64)>,
) -> fmt::Result {
    let mut out = entry.encode(encoder)?;
    for (labels, level) in rows {
        if labels.is_empty() {
            out.encode_gauge(&level)?;
        } else {
            out.encode_family(&labels)?.encode_gauge(&level)?;
        }
    }
    Ok(())
}

fn state_name(state: State) -> &'static str {
    match state {
        State::Ungated => "excluded",
        State::Unserved => "unserved",
        State::Verified => "verified",
        State::Audited => "audited",
        State::Terminating => "terminating",
        State::Waiting => "waiting",
        State::Unverified | State::Pending | State::InProgress => "verifying",
        State::Inconclusive => "inconclusive",
        State::Stuck => "stuck",
        State::Failed => "failed",
    }
}

/// Returns a state in the words of kube-node-ready, which has fewer states; the others are `unverified` there.
#[must_use]
pub fn compat_state(state: State) -> &'static str {
    match state {
        State::Ungated | State::Audited => "no_taint",
        State::Verified => "verified",
        State::Terminating => "deleting",
        State::Unserved | State::Waiting | State::Unverified | State::Inconclusive | State::Stuck => {
            "unverified"
        }
        State::Pending => "pending",
        State::InProgress => "in_progress",
        State::Failed => "failed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g12_states_have_the_names_of_the_gate_status() {
        for (state, name) in [
            (State::Waiting, "waiting"),
            (State::Unverified, "verifying"),
            (State::Pending, "verifying"),
            (State::InProgress, "verifying"),
            (State::Inconclusive, "inconclusive"),
            (State::Stuck, "stuck"),
            (State::Failed, "failed"),
            (State::Verified, "verified"),
        ] {
            assert!(state_name(state) == name && STATES.contains(&name), "{state:?}");
        }
    }
}
