//! What is counted from the nodes themselves at each scrape, so that it cannot drift: one small entry for each node.
//!
//! Only the leader knows the nodes, so only it serves these. A node's series go with its entry.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nodekeeper_core::fleet::{FleetIndex, NodeStatus};
use nodekeeper_core::gate::State;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use super::book::Stability::{Alpha, Stable};
use super::book::{Book, Entry, Set, entry};

const NODES: Entry = entry(
    Set::Ours,
    Stable,
    "nodekeeper_nodes",
    &["gate", "state"],
    "Nodes by gate and state: waiting, gated, verifying, verified, failed, inconclusive, stuck (no worker could tell until the deadline), unserved (tainted, and no gate serves it), terminating, excluded (never gated)",
);
const OLDEST: Entry = entry(
    Set::Ours,
    Stable,
    "nodekeeper_node_oldest_gated_timestamp_seconds",
    &["gate"],
    "When the node that has been before this gate for the longest time came; absent while there is none",
);
const INFO: Entry = entry(
    Set::PerNode,
    Alpha,
    "nodekeeper_node_info",
    &["node", "gate", "state"],
    "Always 1: one series for each node that a gate serves",
);

/// Every word for a state that a node before a gate can be in.
const WORDS: [&str; 8] =
    ["waiting", "gated", "verifying", "verified", "failed", "inconclusive", "stuck", "leaving"];

/// The four numbers of the seed, and which states they count.
const TOTALS: [(Entry, &[&str]); 4] = [
    (seed("kube_node_ready_controller_nodes_unverified", "Nodes that wait for a worker"), &["unverified"]),
    (seed("kube_node_ready_controller_nodes_verifying", "Nodes with a worker"), &["pending", "in_progress"]),
    (seed("kube_node_ready_controller_nodes_verified", "Nodes that were let in"), &["verified"]),
    (seed("kube_node_ready_controller_nodes_failed", "Nodes whose attempts are used up"), &["failed"]),
];

const STATUS: Entry = by_node(
    "kube_node_ready_verification_status",
    &["node", "status"],
    "Always 1: the one state a node is in: unverified, pending, in_progress, verified or failed",
);
const DURATION: Entry = by_node(
    "kube_node_ready_verification_duration_seconds",
    &["node"],
    "How long the worker took that gave this node its last verdict",
);
const RETRIES: Entry = by_node(
    "kube_node_ready_retry_attempts_total",
    &["node"],
    "Attempts after the first in this node's round, as its record says",
);
const RETRY_COUNT: Entry = by_node(
    "kube_node_ready_controller_node_retry_count",
    &["node"],
    "The same number as kube_node_ready_retry_attempts_total",
);
const VERIFIED: Entry =
    by_node("kube_node_ready_node_status", &["node"], "1 if the node was let in, otherwise 0");
const ACTIVE: Entry = by_node(
    "kube_node_ready_controller_worker_pods_active",
    &["node"],
    "1 while the node has a worker, otherwise 0",
);

const fn seed(name: &'static str, help: &'static str) -> Entry {
    entry(Set::Seed, Stable, name, &[], help)
}

const fn by_node(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Entry {
    entry(Set::SeedPerNode, Stable, name, labels, help)
}

/// All nodes, as the leader sees them.
#[derive(Clone, Debug)]
pub struct Board {
    /// Filled by whoever looks at nodes.
    fleet: Arc<Mutex<FleetIndex>>,
    state: Arc<Mutex<Leading>>,
    seed: bool,
    per_node: bool,
}

#[derive(Debug, Default)]
struct Leading {
    is: bool,
    /// Gates that there are, with nodes or without.
    gates: BTreeSet<Box<str>>,
}

impl Board {
    /// Enters what it serves. It is empty until we lead.
    pub fn new(book: &mut Book) -> Self {
        for gauge in [NODES, OLDEST, INFO, STATUS, DURATION, RETRY_COUNT, VERIFIED, ACTIVE] {
            book.note(gauge, MetricType::Gauge);
        }
        for (gauge, _) in TOTALS {
            book.note(gauge, MetricType::Gauge);
        }
        book.note(RETRIES, MetricType::Counter);
        let (seed, per_node) = (book.wanted(Set::Seed), book.wanted(Set::PerNode));
        let board = Self { fleet: Arc::default(), state: Arc::default(), seed, per_node };
        book.registry.register_collector(Box::new(board.clone()));
        board
    }

    fn state(&self) -> MutexGuard<'_, Leading> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn nodes(&self) -> MutexGuard<'_, FleetIndex> {
        self.fleet.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the nodes stand; to be filled by the leader.
    pub fn fleet(&self) -> Arc<Mutex<FleetIndex>> {
        self.fleet.clone()
    }

    /// From here on it is ours to say.
    pub fn lead(&self) {
        *self.nodes() = FleetIndex::default();
        *self.state() = Leading { is: true, ..Leading::default() };
    }

    /// From here on it is somebody else's to say. Says whether it was ours.
    pub fn step_down(&self) -> bool {
        *self.nodes() = FleetIndex::default();
        std::mem::take(&mut *self.state()).is
    }

    /// A worker gave this node its verdict.
    pub fn took(&self, node: &str, time: Duration) {
        if let Ok(milliseconds) = u32::try_from(time.as_millis()) {
            self.nodes().set_worker_ms(node, milliseconds);
        }
    }

    /// Whether it is before us, and ours to tell about.
    pub fn knows(&self, node: &str) -> bool {
        self.state().is && self.nodes().get(node).is_some()
    }

    /// What the seed would call the state of a node; none if it is not known.
    pub fn seed_state(&self, node: &str) -> Option<&'static str> {
        self.nodes().get(node).map(|status| seed_word(status.state))
    }

    /// There is such a gate.
    pub fn gate_is(&self, gate: &str) {
        self.state().gates.insert(gate.into());
    }

    /// The gate is gone. Nodes that were before it are looked at again.
    pub fn forget_gate(&self, gate: &str) {
        self.state().gates.remove(gate);
    }
}

impl Collector for Board {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let state = self.state();
        if !state.is {
            return Ok(());
        }
        let nodes = &*self.nodes();
        encode_totals(nodes, &state.gates, &mut encoder)?;
        if self.seed {
            for (entry, states) in TOTALS {
                let count = nodes.nodes().filter(|(_, seen)| states.contains(&seed_word(seen.state))).count();
                gauges(&mut encoder, &entry, [(Vec::new(), number(count))])?;
            }
        }
        if self.per_node {
            let rows = gated(nodes).map(|(name, seen)| {
                (vec![("node", name), ("gate", gate_of(seen)), ("state", word(seen.state))], 1.0)
            });
            gauges(&mut encoder, &INFO, rows)?;
        }
        if self.seed && self.per_node { encode_seed(nodes, &mut encoder) } else { Ok(()) }
    }
}

fn gated(nodes: &FleetIndex) -> impl Iterator<Item = (&str, &NodeStatus)> {
    nodes.nodes().filter(|(_, seen)| seen.state != State::Ungated)
}

/// A node that no gate serves stands at a taint, which is no gate.
fn gate_of(status: &NodeStatus) -> &str {
    if status.state == State::Unserved { "" } else { &status.at }
}

fn encode_totals(
    nodes: &FleetIndex,
    gates: &BTreeSet<Box<str>>,
    encoder: &mut DescriptorEncoder,
) -> fmt::Result {
    // A gate that holds nobody says so: an alert on a series that goes away does not end.
    let gates = gates.iter();
    let mut counts: BTreeMap<(&str, &str), usize> =
        gates.flat_map(|gate| WORDS.map(|word| ((&**gate, word), 0))).collect();
    let mut oldest: BTreeMap<&str, i64> = BTreeMap::new();
    for (_, seen) in nodes.nodes() {
        *counts.entry((gate_of(seen), word(seen.state))).or_default() += 1;
        if !matches!(seen.state, State::Ungated | State::Verified | State::Terminating) {
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

fn encode_seed(nodes: &FleetIndex, encoder: &mut DescriptorEncoder) -> fmt::Result {
    let rows =
        gated(nodes).map(|(name, seen)| (vec![("node", name), ("status", seed_word(seen.state))], 1.0));
    gauges(encoder, &STATUS, rows)?;
    let rows = gated(nodes).filter_map(|(name, seen)| {
        seen.worker_ms.map(|took| (vec![("node", name)], f64::from(took) / 1000.0))
    });
    gauges(encoder, &DURATION, rows)?;
    let rows =
        |of: fn(&NodeStatus) -> f64| gated(nodes).map(move |(name, seen)| (vec![("node", name)], of(seen)));
    gauges(encoder, &RETRY_COUNT, rows(|seen| f64::from(seen.retries)))?;
    gauges(encoder, &VERIFIED, rows(|seen| (seen.state == State::Verified).into()))?;
    let active = |seen: &NodeStatus| matches!(seen.state, State::Pending | State::InProgress).into();
    gauges(encoder, &ACTIVE, rows(active))?;
    let mut out = encoder.encode_descriptor(RETRIES.bare_name(), RETRIES.help, None, MetricType::Counter)?;
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
    let mut out = encoder.encode_descriptor(entry.name, entry.help, None, MetricType::Gauge)?;
    for (labels, level) in rows {
        if labels.is_empty() {
            out.encode_gauge(&level)?;
        } else {
            out.encode_family(&labels)?.encode_gauge(&level)?;
        }
    }
    Ok(())
}

fn number(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

fn word(state: State) -> &'static str {
    match state {
        State::Ungated => "excluded",
        State::Unserved => "unserved",
        State::Verified => "verified",
        State::Terminating => "leaving",
        State::Waiting => "waiting",
        State::Unverified => "gated",
        State::Pending | State::InProgress => "verifying",
        State::Inconclusive => "inconclusive",
        State::Stuck => "stuck",
        State::Failed => "failed",
    }
}

/// The seed knows fewer states; what it does not know is not verified yet.
#[must_use]
pub fn seed_word(state: State) -> &'static str {
    match state {
        State::Ungated => "no_taint",
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
