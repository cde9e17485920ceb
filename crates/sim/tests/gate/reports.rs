//! The controller starts no more workers than it may, and what it counts is there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodekeeper_core::record::Record;
use nodekeeper_sim::Cluster;
use nodekeeper_sim::harness::Invariant;
use nodekeeper_sim::object::{is_deleting, items, name, text, uid};
use nodekeeper_sim::store::Change;
use nodekeeper_sim::value::Value;

use super::invariants::{
    has_ended, has_taint, identity, is_control, is_gated, is_ours, record, was_admitted_by_audit,
};
use super::{GATES, LABEL, MAX_WORKERS};

pub const LIMIT: &str = "the workers that run are within the limit";
pub const COUNTS: &str = "the status of the gate and the metrics count what is there";

/// Workers whose creation was applied and not answered are not known to the controller until its watch shows them.
const UNKNOWN_WORKERS: usize = 3;
/// Control workers have slots of their own.
const MAX_CONTROLS: usize = 5;
/// The same for control workers, of which a run has two.
const UNKNOWN_CONTROLS: usize = 0;
/// A worker that has not started after this frees its slot.
const START_TIMEOUT: SignedDuration = SignedDuration::from_secs(60);

/// Pods by key: when each was created, and whether it runs.
type Active = BTreeMap<String, (Timestamp, bool)>;

/// The limits of workers and of control workers hold, whatever their nodes are like.
#[derive(Default)]
pub struct WithinTheWorkerLimit {
    workers: Active,
    controls: Active,
}

impl Invariant for WithinTheWorkerLimit {
    fn name(&self) -> &'static str {
        LIMIT
    }

    fn check(&mut self, change: &Change) -> Result<(), String> {
        let Some(pod) = change.after.as_ref().or(change.before.as_ref()) else { return Ok(()) };
        if change.collection != "pods" {
            return Ok(());
        }
        let (active, what, limit, unknown) = if is_control(pod) {
            (&mut self.controls, "control workers", MAX_CONTROLS, UNKNOWN_CONTROLS)
        } else if identity(pod).is_some() {
            (&mut self.workers, "workers", MAX_WORKERS, UNKNOWN_WORKERS)
        } else {
            return Ok(());
        };
        if change.after.is_none() || is_deleting(pod) || has_ended(pod) {
            active.remove(&change.key);
            return Ok(());
        }
        let is_new = change.before.is_none();
        let runs = text(pod, "status.phase") == "Running";
        active.entry(change.key.clone()).or_insert((change.at, false)).1 |= runs;
        let takes_slot = |(created, runs): &&(Timestamp, bool)| {
            *runs || change.at.duration_since(*created) < START_TIMEOUT
        };
        let count = active.values().filter(takes_slot).count();
        if is_new && !change.is_delayed && count > limit + unknown {
            return Err(format!("{count} {what}, and the limit is {limit}"));
        }
        Ok(())
    }
}

/// How long the controller may know an earlier state of a node: a watch that says nothing is opened again after 150 s, and the
/// lists that follow may break several times.
const STALENESS: SignedDuration = SignedDuration::from_secs(300);

/// For so long the status may lag behind a change in the end of a run.
const GATHERED: SignedDuration = SignedDuration::from_secs(5);

/// By name: when the node was last open; none if it is now.
#[derive(Default)]
struct OpenNodes(BTreeMap<String, Option<Timestamp>>);

impl OpenNodes {
    fn observe(&mut self, change: &Change, is_gated: impl Fn(&Value) -> bool) {
        let is_open = change.after.as_ref().is_some_and(|node| !is_gated(node));
        match (self.0.get_mut(&change.key), is_open) {
            (Some(since), true) => *since = None,
            (Some(since @ None), false) => *since = Some(change.at),
            (None, true) => drop(self.0.insert(change.key.clone(), None)),
            _ => {}
        }
    }

    /// How many nodes the controller may know as open.
    fn count(&self, at: Timestamp) -> u64 {
        let count = self.0.values().filter(|last| is_recent(**last, at)).count();
        u64::try_from(count).unwrap_or_default()
    }

    fn may_be_open(&self, node: &str, at: Timestamp) -> bool {
        self.0.get(node).is_some_and(|last| is_recent(*last, at))
    }
}

fn is_recent(last: Option<Timestamp>, at: Timestamp) -> bool {
    last.is_none_or(|last| at.duration_since(last) < STALENESS)
}

/// The status of the gates and the metrics count no node as verified that has the taint of its gate, and in the end what is
/// there.
#[derive(Default)]
pub struct CountsAreTrue {
    /// Without the taint of any gate.
    open: OpenNodes,
    /// Without the taint of each gate.
    open_for: [OpenNodes; GATES.len()],
    /// By the name of a gate: until when it was missing; none if it is. Its taint is that of no gate then.
    missing: BTreeMap<String, Option<Timestamp>>,
    /// The gate of each node that the metrics have as verified in the end, and as gated.
    served: Served,
    /// When the counts last changed: a node came or went, or was tainted or admitted.
    changed_at: Option<Timestamp>,
}

/// The nodes in the metrics of the leader, each with its gate.
#[derive(Debug, Default)]
struct Served {
    verified: BTreeSet<(String, String)>,
    gated: BTreeSet<(String, String)>,
    /// The series `nodekeeper_nodes`, by gate, of nodes that are verified.
    counts: BTreeMap<String, usize>,
}

impl Served {
    fn read(text: &str) -> Self {
        let mut served = Self::default();
        for line in text.lines() {
            let Some((series, value)) = line.rsplit_once(' ') else { continue };
            let (node, gate, state) = (label(series, "node"), label(series, "gate"), label(series, "state"));
            if series.starts_with("nodekeeper_node_info{") {
                let row = (node.to_owned(), gate.to_owned());
                match state {
                    "verified" => drop(served.verified.insert(row)),
                    "waiting" | "verifying" | "inconclusive" | "stuck" | "failed" => {
                        served.gated.insert(row);
                    }
                    _ => {}
                }
            } else if series.starts_with("nodekeeper_nodes{") && state == "verified" {
                // Counts are written as 3.0.
                let count = value.split('.').next().and_then(|whole| whole.parse().ok());
                served.counts.insert(gate.to_owned(), count.unwrap_or_default());
            }
        }
        served
    }

    fn verified_of(&self, gate: &str) -> usize {
        self.verified.iter().filter(|(_, of)| of == gate).count()
    }
}

/// The value of a label of a series; empty if it has none.
fn label<'t>(series: &'t str, name: &str) -> &'t str {
    let value = series.split([',', '{']).find_map(|part| part.strip_prefix(name)?.strip_prefix("=\""));
    value.and_then(|value| value.split('"').next()).unwrap_or_default()
}

impl CountsAreTrue {
    fn observe_gate(&mut self, change: &Change) {
        if change.after.is_none() {
            self.missing.insert(change.key.clone(), None);
        } else if let Some(until @ None) = self.missing.get_mut(&change.key) {
            *until = Some(change.at);
        }
    }

    fn check_status(&self, change: &Change, gate: &Value) -> Result<(), String> {
        let own = GATES.iter().position(|(gate_name, _)| *gate_name == name(gate));
        let is_alone = self.missing.values().any(|until| is_recent(*until, change.sent));
        let open = own.filter(|_| is_alone).map_or(&self.open, |own| &self.open_for[own]);
        let (told, verified) = (count_of(gate, "verified"), open.count(change.sent));
        if told > verified {
            return Err(format!("{told} nodes are verified, and {verified} had no taint"));
        }
        Ok(())
    }

    /// In the end the metrics have the same nodes as the cluster.
    fn check_served(&self, nodes: &[Arc<Value>], gates: &[Arc<Value>]) -> Result<(), String> {
        let Served { verified, gated, counts } = &self.served;
        if counts.is_empty() && !gates.is_empty() {
            return Err("no replica serves metrics of the gates".into());
        }
        for node in nodes {
            let in_metrics =
                |rows: &BTreeSet<(String, String)>| rows.iter().any(|(row, _)| row == name(node));
            let (is_verified, is_held) = (in_metrics(verified), in_metrics(gated));
            if (is_verified && is_gated(node)) || (is_held && !is_gated(node)) {
                let record = record(node);
                return Err(format!(
                    "{}: verified is {is_verified} and gated {is_held} in the metrics: {record:?}",
                    name(node)
                ));
            }
        }
        for gate in gates {
            let told = count_of(gate, "verified");
            let served = counts.get(name(gate)).copied().unwrap_or_default();
            if u64::try_from(served).unwrap_or_default() != told {
                return Err(format!(
                    "{served} nodes of {} are verified, and {told} in its status",
                    name(gate)
                ));
            }
        }
        Ok(())
    }
}

fn count_of(gate: &Value, field: &str) -> u64 {
    gate["status"]["nodes"][field].as_u64().unwrap_or_default()
}

impl Invariant for CountsAreTrue {
    fn name(&self) -> &'static str {
        COUNTS
    }

    fn check(&mut self, change: &Change) -> Result<(), String> {
        match change.collection.as_str() {
            "nodes" => {
                let counted = |node: &Arc<Value>| (is_gated(node), is_terminating(node));
                if change.before.as_ref().map(counted) != change.after.as_ref().map(counted) {
                    self.changed_at = Some(change.at);
                }
                self.open.observe(change, is_gated);
                for ((_, key), open) in GATES.iter().zip(&mut self.open_for) {
                    open.observe(change, |node| has_taint(node, key));
                }
                Ok(())
            }
            "nodekeeper.dev/nodegates" => {
                self.observe_gate(change);
                let gate = change.after.as_ref().filter(|_| is_ours(change));
                gate.map_or(Ok(()), |gate| self.check_status(change, gate))
            }
            _ => Ok(()),
        }
    }

    fn check_metrics(&mut self, cluster: &Cluster, text: &str, is_final: bool) -> Result<(), String> {
        let served = Served::read(text);
        let now = cluster.clock().now();
        // A node keeps what it was verified for when the gate is deleted.
        for (node, gate) in served.verified.iter().filter(|(_, gate)| !gate.is_empty()) {
            let Some(own) = GATES.iter().position(|(gate_name, _)| gate_name == gate) else {
                return Err(format!("{node} is verified by gate {gate}, which never was"));
            };
            if !self.open_for[own].may_be_open(node, now) {
                return Err(format!("{node} is verified, and has the taint of gate {gate}"));
            }
        }
        for (gate, count) in &served.counts {
            if served.verified_of(gate) != *count {
                return Err(format!(
                    "{count} nodes of gate {gate} are verified, and not {:?}",
                    served.verified
                ));
            }
        }
        if is_final && !served.counts.is_empty() {
            self.served = served;
        }
        Ok(())
    }

    fn check_final(&mut self, cluster: &Cluster) -> Result<(), String> {
        // The controller gathers changes before it writes them.
        let now = cluster.clock().now();
        if self.changed_at.is_some_and(|at| now.duration_since(at) < GATHERED) {
            return Ok(());
        }
        let user = cluster.local("invariant");
        let gates = user.all("nodekeeper.dev/nodegates");
        let nodes: Vec<_> = user.all("nodes").into_iter().filter(|node| !is_terminating(node)).collect();
        let gated = nodes.iter().filter(|node| is_gated(node)).count();
        // The gates have a node if one of them verified it, or if it sets the same label as the gate that did.
        let has =
            |one: &Record| *one.label == *LABEL || gates.iter().any(|gate| one.scope.gate_uid == *uid(gate));
        let has_open = |record: Record| record.sections().any(|section| section.is_open() && has(section));
        let is_open = |node: &&Arc<Value>| !is_gated(node) && record(node).is_some_and(has_open);
        let open = nodes.iter().filter(is_open).count();
        // Of two gates one may have admitted a node that the other verified.
        let audited = nodes.iter().filter(is_open).filter(|node| was_admitted_by_audit(node)).count();
        let told = |field: &str| gates.iter().map(|gate| count_of(gate, field)).sum::<u64>();
        let found = |count: usize| u64::try_from(count).unwrap_or_default();
        let least = open - audited;
        let most = if gates.len() > 1 { open } else { least };
        if told("gated") != found(gated) || !(found(least)..=found(most)).contains(&told("verified")) {
            let nodes: Vec<_> = nodes.iter().map(|node| (name(node), record(node))).collect();
            let status: Vec<String> = gates.iter().map(|gate| gate["status"].to_string()).collect();
            return Err(format!(
                "{gated} gated and {least} verified of {nodes:?}, and the status is {status:?}"
            ));
        }
        let listed = |gate: &Arc<Value>| {
            let listed = items(gate, "status.gatedNodes").iter();
            listed.map(|one| text(one, "name").to_owned()).collect::<Vec<_>>()
        };
        let is_held = |name: &String| user.get("nodes", "", name).is_some_and(|node| is_gated(&node));
        if let Some(free) = gates.iter().flat_map(listed).find(|name| !is_held(name)) {
            return Err(format!("{free} is listed as gated and has no taint"));
        }
        self.check_served(&nodes, &gates)
    }
}

fn is_terminating(node: &Value) -> bool {
    let disrupted = |key: &str| key.starts_with("karpenter.sh/disrupt") || key.starts_with("ToBeDeleted");
    is_deleting(node) || items(node, "spec.taints").iter().any(|taint| disrupted(text(taint, "key")))
}
