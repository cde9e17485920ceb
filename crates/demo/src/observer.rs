//! Follows the changes in the cluster and derives the state of each machine with the controller's own decision.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use nodekeeper_core::gate::{
    AgentPod, Evaluated, Fleet, GateView, NodeInputs, Ownership, Slots, State, Surroundings, evaluate,
    ownership,
};
use nodekeeper_core::node::NodeView;
use nodekeeper_core::record::Record;
use nodekeeper_core::report::Verdict;
use nodekeeper_core::worker::WorkerView;
use nodekeeper_sim::cluster::Local;
use nodekeeper_sim::store::Change;
use nodekeeper_sim::value::Value;
use serde::de::DeserializeOwned;

use crate::machines::{Machine, Scenario};
use crate::writes::Writes;

/// The state of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub name: String,
    pub zone: String,
    pub scenario: Scenario,
    pub state: State,
    /// Attempts since the last boot, and how many the gate allows.
    pub attempts: (u32, u32),
    /// The highest number of a worker.
    pub worker: u32,
    pub why: String,
    /// A shorter `why` for the table.
    pub brief: String,
}

/// What happened to a machine so far.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Its boot IDs, the first one first.
    pub boots: Vec<String>,
    /// When it first was Ready since the last boot.
    pub ready: Option<Timestamp>,
    /// When its taint was removed.
    pub verified: Option<Timestamp>,
    /// Numbers of the workers that were inconclusive.
    pub discarded: Vec<u32>,
    shown: Option<Row>,
}

pub struct Observer {
    machines: Vec<Machine>,
    nodes: BTreeMap<String, NodeView>,
    workers: BTreeMap<String, WorkerView>,
    gates: BTreeMap<String, GateView>,
    histories: BTreeMap<String, History>,
    pub writes: Writes,
}

/// The demo shows each machine on its own.
struct NoSurroundings;

impl Surroundings for NoSurroundings {
    fn slots(&self, _gate: &str) -> Slots {
        Slots { first: true, another: true, periodic: true }
    }

    fn fleet(&self, _gate: &GateView, _node: &NodeView, _gated: bool) -> Fleet {
        Fleet::default()
    }

    /// Remediation is shown by the second act.
    fn requested_at(&self, _gate: &str, _node: &NodeView) -> Option<Timestamp> {
        Some(Timestamp::MAX)
    }

    fn agent(&self, _gate: &str, _node: &NodeView) -> AgentPod {
        AgentPod::NotExpected
    }
}

impl Observer {
    /// Reads the gates; everything else arrives as changes.
    pub fn new(machines: &[Machine], cluster: &Local) -> Self {
        let gates = cluster.all(GATES);
        let gates = gates.iter().filter_map(read).map(|gate| GateView::new(&gate));
        Self {
            machines: machines.to_vec(),
            nodes: BTreeMap::new(),
            workers: BTreeMap::new(),
            gates: gates.map(|gate| (gate.name.clone(), gate)).collect(),
            histories: BTreeMap::new(),
            writes: Writes::default(),
        }
    }

    pub fn add_machine(&mut self, machine: &Machine) {
        self.machines.push(machine.clone());
    }

    /// Applies a change; returns the new state of a machine if it changed.
    pub fn apply(&mut self, change: &Change) -> Option<Row> {
        self.writes.count(change);
        let key = &change.key;
        let node = match change.collection.as_str() {
            "nodes" => {
                let node = change.after.as_ref().and_then(read).map(|node| NodeView::new(&node));
                replace(&mut self.nodes, key, node);
                key.clone()
            }
            "pods" => {
                let worker = change.after.as_ref().and_then(read).and_then(|pod| WorkerView::new(&pod));
                let before = replace(&mut self.workers, key, worker);
                self.workers.get(key).or(before.as_ref())?.node_name.clone()
            }
            GATES => {
                let gate = change.after.as_ref().and_then(read).map(|gate| GateView::new(&gate));
                replace(&mut self.gates, key, gate);
                return None;
            }
            _ => return None,
        };
        self.update_history(&node, change.at)
    }

    fn update_history(&mut self, name: &str, at: Timestamp) -> Option<Row> {
        let node = self.nodes.get(name)?;
        let gated = matches!(ownership(self.gates.values(), node), Ownership::Gated(_));
        let record = record_of(node);
        let (row, is_stable) = self.evaluate(node, at);
        let history = self.histories.entry(name.to_owned()).or_default();
        if !node.boot_id.is_empty() && history.boots.last().is_none_or(|last| *last != node.boot_id) {
            history.boots.push(node.boot_id.to_string());
            history.ready = None;
        }
        if node.ready {
            history.ready.get_or_insert(at);
        }
        if gated {
            history.verified = None;
        } else if row.state == State::Verified {
            history.verified.get_or_insert(at);
        }
        if record.verdict == Some(Verdict::Inconclusive) && !history.discarded.contains(&record.number) {
            history.discarded.push(record.number);
        }
        let same = |shown: &Row| {
            (shown.state, shown.worker, shown.attempts) == (row.state, row.worker, row.attempts)
        };
        if !is_stable || history.shown.as_ref().is_some_and(same) {
            return None;
        }
        history.shown = Some(row.clone());
        Some(row)
    }

    /// Returns the state of a machine, and whether it is stable: a state that the controller is about to change is not
    /// shown.
    fn evaluate(&self, node: &NodeView, now: Timestamp) -> (Row, bool) {
        let workers: Vec<WorkerView> =
            self.workers.values().filter(|worker| worker.identity.node_uid == node.uid).cloned().collect();
        let Evaluated { ownership, decision, .. } = evaluate(
            NodeInputs {
                node,
                workers: &workers,
                daemons: None,
                ready_since: Duration::ZERO,
                confirmed_at: None,
                outages: Some(&[]),
                now,
                // No worker of the demo is ever overdue.
                elapsed: Duration::ZERO,
            },
            self.gates.values(),
            &NoSurroundings,
        );
        let gate = ownership.gate();
        let record = record_of(node);
        let same_boot = record.scope.boot_id == node.boot_id;
        let newest = workers.iter().map(|worker| worker.identity.number).max().unwrap_or_default();
        let before = match record.verdict {
            Some(Verdict::Failed | Verdict::Inconclusive) => Some(&record),
            Some(Verdict::Passed) | None => None,
        };
        let brief = match (decision.state, before, decision.recheck_in) {
            (State::Verified, ..) => format!("worker {}: {}", record.number, record.why),
            (State::Pending, Some(before), _) => {
                format!("worker {newest} starts; {}: {}", before.number, shortened(&before.why))
            }
            (State::InProgress, Some(before), _) => {
                format!("worker {newest} runs; {}: {}", before.number, shortened(&before.why))
            }
            (State::Pending, None, _) => format!("worker {newest} starts"),
            (State::Waiting, Some(before), _) => {
                format!("not Ready; {}: {}", before.number, shortened(&before.why))
            }
            (State::Unverified | State::Inconclusive | State::Failed, Some(before), Some(wait)) => {
                format!("{}; next in {} s", shortened(&before.why), wait.as_secs() + 1)
            }
            _ => decision.why.clone(),
        };
        let why = match (decision.state, before) {
            (State::Verified, _) => brief.clone(),
            (State::Waiting | State::Pending | State::InProgress, Some(before)) => {
                format!("{}; worker {}: {}", decision.why, before.number, before.why)
            }
            _ => decision.why,
        };
        let machine = self.machines.iter().find(|machine| *machine.name == *node.name);
        let row = Row {
            name: node.name.to_string(),
            zone: node.labels.get("topology.kubernetes.io/zone").unwrap_or_default().to_owned(),
            scenario: machine.map_or(Scenario::Healthy, |machine| machine.scenario),
            state: decision.state,
            attempts: (if same_boot { record.attempts } else { 0 }, self.attempts_allowed(gate)),
            worker: newest.max(record.number),
            why,
            brief,
        };
        (row, gate.is_none() || decision.effects.is_empty())
    }

    fn attempts_allowed(&self, gate: Option<&GateView>) -> u32 {
        let gate = gate.or(self.gates.values().next());
        gate.map_or(0, |gate| gate.spec.retry.max_retries.unsigned_abs() + 1)
    }

    /// Returns the state of every machine that has joined, in the order of joining.
    pub fn rows(&self, now: Timestamp) -> Vec<Row> {
        let row = |machine: &Machine| self.row(&machine.name, now);
        self.machines.iter().filter_map(row).collect()
    }

    fn row(&self, name: &str, now: Timestamp) -> Option<Row> {
        let (row, is_stable) = self.evaluate(self.nodes.get(name)?, now);
        let shown = self.histories.get(name).and_then(|history| history.shown.clone());
        if is_stable { Some(row) } else { shown.or(Some(row)) }
    }

    /// Returns the state of the machine with this scenario.
    pub fn scenario(&self, scenario: Scenario, now: Timestamp) -> Option<Row> {
        let machine = self.machines.iter().find(|machine| machine.scenario == scenario)?;
        self.row(&machine.name, now)
    }

    pub fn history(&self, name: &str) -> Option<&History> {
        self.histories.get(name)
    }

    /// Returns the record of the machine with this scenario.
    pub fn record(&self, scenario: Scenario) -> Record {
        let machine = self.machines.iter().find(|machine| machine.scenario == scenario);
        machine.and_then(|machine| self.nodes.get(&machine.name)).map(record_of).unwrap_or_default()
    }

    /// Returns how many machines are verified and have no worker pod left.
    pub fn count_finished(&self) -> usize {
        let is_finished = |node: &&NodeView| {
            self.histories.get(&*node.name).is_some_and(|history| history.verified.is_some())
                && !self.workers.values().any(|worker| worker.identity.node_uid == node.uid)
        };
        self.nodes.values().filter(is_finished).count()
    }
}

/// Removes the target of the check: `dns x.y.: Timeout (z)` becomes `dns: Timeout (z)`.
pub fn shortened(why: &str) -> String {
    match why.split_once(": ") {
        Some((check, rest)) if check.split(' ').count() == 2 => {
            format!("{}: {rest}", check.split(' ').next().unwrap_or_default())
        }
        _ => why.to_owned(),
    }
}

const GATES: &str = "nodekeeper.dev/nodegates";

fn read<T: DeserializeOwned>(object: &Arc<Value>) -> Option<T> {
    object.decode().ok()
}

fn replace<T>(all: &mut BTreeMap<String, T>, key: &str, new: Option<T>) -> Option<T> {
    match new {
        Some(new) => all.insert(key.to_owned(), new),
        None => all.remove(key),
    }
}

fn record_of(node: &NodeView) -> Record {
    node.record.as_deref().cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_target_is_removed_from_a_failure() {
        let why = "dns kubernetes.default.: Timeout (no answer within 2 s)";
        assert_eq!(shortened(why), "dns: Timeout (no answer within 2 s)");
        for why in ["nothing was checked", "the node was booted: again"] {
            assert_eq!(shortened(why), why);
        }
    }
}
