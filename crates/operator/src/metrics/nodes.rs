//! What is counted from the nodes themselves at each scrape, so that it cannot drift: one small entry for each node.
//!
//! Only the leader knows the nodes, so only it serves these. A node's series go with its entry.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
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
    "Nodes by gate and state: waiting, gated, verifying, verified, failed, inconclusive, unserved (tainted, and no gate serves it), leaving, excluded (never gated)",
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
    ["waiting", "gated", "verifying", "verified", "failed", "inconclusive", "unserved", "leaving"];

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

/// Where a node stands.
#[derive(Debug)]
struct Seen {
    gate: Arc<str>,
    state: State,
    /// In seconds since 1970.
    came: i64,
    retries: u32,
    /// In milliseconds.
    took: Option<u32>,
}

/// All nodes, as the leader sees them.
#[derive(Clone, Debug)]
pub struct Board {
    seen: Arc<Mutex<Option<Nodes>>>,
    seed: bool,
    per_node: bool,
}

#[derive(Debug, Default)]
struct Nodes {
    by_name: BTreeMap<Box<str>, Seen>,
    gates: BTreeSet<Arc<str>>,
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
        let board = Self { seen: Arc::default(), seed, per_node };
        book.registry.register_collector(Box::new(board.clone()));
        board
    }

    fn seen(&self) -> MutexGuard<'_, Option<Nodes>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From here on it is ours to say.
    pub fn lead(&self) {
        *self.seen() = Some(Nodes::default());
    }

    /// From here on it is somebody else's to say. Says whether it was ours.
    pub fn step_down(&self) -> bool {
        self.seen().take().is_some()
    }

    /// A node was looked at.
    pub fn is(&self, node: &str, gate: &str, state: State, came: Timestamp, attempts: u32) {
        let mut seen = self.seen();
        let Some(nodes) = seen.as_mut() else { return };
        let gate = if let Some(known) = nodes.gates.get(gate) {
            known.clone()
        } else {
            let new: Arc<str> = gate.into();
            nodes.gates.insert(new.clone());
            new
        };
        let (came, retries) = (came.as_second(), attempts.saturating_sub(1));
        if let Some(known) = nodes.by_name.get_mut(node) {
            *known = Seen { gate, state, came, retries, took: known.took };
        } else {
            nodes.by_name.insert(node.into(), Seen { gate, state, came, retries, took: None });
        }
    }

    /// A worker gave this node its verdict.
    pub fn took(&self, node: &str, time: Duration) {
        if let Some(known) = self.seen().as_mut().and_then(|nodes| nodes.by_name.get_mut(node)) {
            known.took = u32::try_from(time.as_millis()).ok();
        }
    }

    /// Whether it is before us, and ours to tell about.
    pub fn knows(&self, node: &str) -> bool {
        self.seen().as_ref().is_some_and(|nodes| nodes.by_name.contains_key(node))
    }

    /// What the seed would call the state of a node; none if it is not known.
    pub fn seed_state(&self, node: &str) -> Option<&'static str> {
        self.seen().as_ref()?.by_name.get(node).map(|seen| seed_word(seen.state))
    }

    /// The node is gone.
    pub fn forget(&self, node: &str) {
        if let Some(nodes) = self.seen().as_mut() {
            nodes.by_name.remove(node);
        }
    }

    /// The gate is gone. Nodes that were before it are looked at again.
    pub fn forget_gate(&self, gate: &str) {
        if let Some(nodes) = self.seen().as_mut() {
            nodes.gates.remove(gate);
        }
    }
}

impl Collector for Board {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let seen = self.seen();
        let Some(nodes) = seen.as_ref() else { return Ok(()) };
        encode_totals(nodes, &mut encoder)?;
        let nodes = &nodes.by_name;
        if self.seed {
            for (entry, states) in TOTALS {
                let count = nodes.values().filter(|seen| states.contains(&seed_word(seen.state))).count();
                gauges(&mut encoder, &entry, [(Vec::new(), number(count))])?;
            }
        }
        if self.per_node {
            let rows = gated(nodes).map(|(name, seen)| {
                (vec![("node", name), ("gate", &*seen.gate), ("state", word(seen.state))], 1.0)
            });
            gauges(&mut encoder, &INFO, rows)?;
        }
        if self.seed && self.per_node { encode_seed(nodes, &mut encoder) } else { Ok(()) }
    }
}

fn gated(nodes: &BTreeMap<Box<str>, Seen>) -> impl Iterator<Item = (&str, &Seen)> {
    nodes.iter().filter(|(_, seen)| seen.state != State::Ungated).map(|(name, seen)| (&**name, seen))
}

fn encode_totals(nodes: &Nodes, encoder: &mut DescriptorEncoder) -> fmt::Result {
    // A gate that holds nobody says so: an alert on a series that goes away does not end.
    let gates = nodes.gates.iter().filter(|gate| !gate.is_empty());
    let mut counts: BTreeMap<(&str, &str), usize> =
        gates.flat_map(|gate| WORDS.map(|word| ((&**gate, word), 0))).collect();
    let mut oldest: BTreeMap<&str, i64> = BTreeMap::new();
    for seen in nodes.by_name.values() {
        *counts.entry((&seen.gate, word(seen.state))).or_default() += 1;
        if !matches!(seen.state, State::Ungated | State::Verified | State::Leaving) {
            oldest.entry(&seen.gate).and_modify(|came| *came = seen.came.min(*came)).or_insert(seen.came);
        }
    }
    let rows = counts
        .iter()
        .map(|((gate, state), count)| (vec![("gate", *gate), ("state", *state)], number(*count)));
    gauges(encoder, &NODES, rows)?;
    #[expect(clippy::cast_precision_loss, reason = "seconds since 1970 are exact in a f64")]
    let rows = oldest.iter().map(|(gate, came)| (vec![("gate", *gate)], *came as f64));
    gauges(encoder, &OLDEST, rows)
}

fn encode_seed(nodes: &BTreeMap<Box<str>, Seen>, encoder: &mut DescriptorEncoder) -> fmt::Result {
    let rows =
        gated(nodes).map(|(name, seen)| (vec![("node", name), ("status", seed_word(seen.state))], 1.0));
    gauges(encoder, &STATUS, rows)?;
    let rows = gated(nodes)
        .filter_map(|(name, seen)| seen.took.map(|took| (vec![("node", name)], f64::from(took) / 1000.0)));
    gauges(encoder, &DURATION, rows)?;
    let rows = |of: fn(&Seen) -> f64| gated(nodes).map(move |(name, seen)| (vec![("node", name)], of(seen)));
    gauges(encoder, &RETRY_COUNT, rows(|seen| f64::from(seen.retries)))?;
    gauges(encoder, &VERIFIED, rows(|seen| (seen.state == State::Verified).into()))?;
    let active = |seen: &Seen| matches!(seen.state, State::Pending | State::InProgress).into();
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
        State::Leaving => "leaving",
        State::Waiting => "waiting",
        State::Unverified => "gated",
        State::Pending | State::InProgress => "verifying",
        State::Inconclusive => "inconclusive",
        State::Failed => "failed",
    }
}

/// The seed knows fewer states; what it does not know is not verified yet.
fn seed_word(state: State) -> &'static str {
    match state {
        State::Ungated => "no_taint",
        State::Verified => "verified",
        State::Leaving => "deleting",
        State::Unserved | State::Waiting | State::Unverified | State::Inconclusive => "unverified",
        State::Pending => "pending",
        State::InProgress => "in_progress",
        State::Failed => "failed",
    }
}
