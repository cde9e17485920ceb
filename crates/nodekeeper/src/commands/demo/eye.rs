//! Follows what is committed in the cluster and says where each machine stands, by the controller's own decision.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use nodekeeper_core::gate::{Fleet, GateView, Observed, Ownership, Slots, State, decide, ownership};
use nodekeeper_core::node::NodeView;
use nodekeeper_core::record::Record;
use nodekeeper_core::report::Verdict;
use nodekeeper_core::worker::WorkerView;
use nodekeeper_sim::cluster::Local;
use nodekeeper_sim::store::Change;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::cast::{Machine, Part};
use super::writes::Writes;

/// Where a machine stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// Its zone.
    pub zone: String,
    /// Its part in the demo.
    pub part: Part,
    /// Its state, in the words of the controller.
    pub state: State,
    /// Attempts in this boot, and how many there are before it is looked at but rarely.
    pub attempts: (u32, u32),
    /// The highest number of a worker.
    pub worker: u32,
    /// For people.
    pub why: String,
    /// The same where there is little room.
    pub brief: String,
}

/// What happened to a machine.
#[derive(Clone, Debug, Default)]
pub struct Tale {
    /// Its boot ids, the first first.
    pub boots: Vec<String>,
    /// When it was first Ready in this boot.
    pub ready: Option<Timestamp>,
    /// When the gate opened.
    pub open: Option<Timestamp>,
    /// Numbers of the workers that could not tell anything.
    pub thrown_away: Vec<u32>,
    told: Option<Row>,
}

/// Sees everything.
pub struct Eye {
    machines: Vec<Machine>,
    nodes: BTreeMap<String, NodeView>,
    workers: BTreeMap<String, WorkerView>,
    gates: BTreeMap<String, GateView>,
    tales: BTreeMap<String, Tale>,
    /// What the controller wrote.
    pub writes: Writes,
}

impl Eye {
    /// Knows the gates there are; everything else is yet to come.
    pub fn new(machines: &[Machine], cluster: &Local) -> Self {
        let gates = cluster.all(GATES);
        let gates = gates.iter().filter_map(read).map(|gate| GateView::new(&gate));
        Self {
            machines: machines.to_vec(),
            nodes: BTreeMap::new(),
            workers: BTreeMap::new(),
            gates: gates.map(|gate| (gate.name.clone(), gate)).collect(),
            tales: BTreeMap::new(),
            writes: Writes::default(),
        }
    }

    /// One more machine is about to join.
    pub fn meet(&mut self, machine: &Machine) {
        self.machines.push(machine.clone());
    }

    /// Takes a change in; where it brings a machine into another state, says so.
    pub fn take(&mut self, change: &Change) -> Option<Row> {
        self.writes.count(change);
        let key = &change.key;
        let touched = match change.collection.as_str() {
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
        self.follow(&touched, change.at)
    }

    /// Brings the tale of a machine up to date.
    fn follow(&mut self, name: &str, at: Timestamp) -> Option<Row> {
        let node = self.nodes.get(name)?;
        let held = matches!(ownership(self.gates.values(), node), Ownership::Gated(_));
        let record = record_of(node);
        let (row, is_settled) = self.look(node, at);
        let tale = self.tales.entry(name.to_owned()).or_default();
        if !node.boot_id.is_empty() && tale.boots.last().map(String::as_str) != Some(&*node.boot_id) {
            tale.boots.push(node.boot_id.to_string());
            tale.ready = None;
        }
        if node.ready {
            tale.ready.get_or_insert(at);
        }
        if held {
            tale.open = None;
        } else if row.state == State::Verified {
            tale.open.get_or_insert(at);
        }
        if record.verdict == Some(Verdict::Inconclusive) && !tale.thrown_away.contains(&record.number) {
            tale.thrown_away.push(record.number);
        }
        let same =
            |told: &Row| (told.state, told.worker, told.attempts) == (row.state, row.worker, row.attempts);
        if !is_settled || tale.told.as_ref().is_some_and(same) {
            return None;
        }
        tale.told = Some(row.clone());
        Some(row)
    }

    /// Where a machine stands, and whether it stays there until something happens. What the controller is about to do
    /// within milliseconds is not worth showing.
    fn look(&self, node: &NodeView, now: Timestamp) -> (Row, bool) {
        let served = ownership(self.gates.values(), node);
        let workers: Vec<WorkerView> =
            self.workers.values().filter(|worker| *worker.identity.node_uid == *node.uid).cloned().collect();
        let decision = decide(&Observed {
            node,
            ownership: served,
            workers: &workers,
            daemon_pods: None,
            slots: Slots { first: true, another: true, periodic: true },
            fleet: Fleet::default(),
            shared_outages: &[],
            policy_known: true,
            // That a replacement is asked for is told by the second act.
            remediation_requested_at: Some(Timestamp::MAX),
            now,
            // No worker of the demo is ever overdue.
            elapsed: Duration::ZERO,
        });
        let record = record_of(node);
        let same_boot = *record.scope.boot_id == *node.boot_id;
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
            part: machine.map_or(Part::Healthy, |machine| machine.part),
            state: decision.state,
            attempts: (if same_boot { record.attempts } else { 0 }, self.attempts_allowed(served)),
            worker: newest.max(record.number),
            why,
            brief,
        };
        (row, served.gate().is_none() || decision.effects.is_empty())
    }

    fn attempts_allowed(&self, served: Ownership<'_>) -> u32 {
        let gate = served.gate().or(self.gates.values().next());
        gate.map_or(0, |gate| gate.spec.retry.max_retries.unsigned_abs() + 1)
    }

    /// Where every machine that has joined stands now, in the order of joining.
    pub fn rows(&self, now: Timestamp) -> Vec<Row> {
        let row = |machine: &Machine| self.row(&machine.name, now);
        self.machines.iter().filter_map(row).collect()
    }

    fn row(&self, name: &str, now: Timestamp) -> Option<Row> {
        let (row, is_settled) = self.look(self.nodes.get(name)?, now);
        let told = self.tales.get(name).and_then(|tale| tale.told.clone());
        if is_settled { Some(row) } else { told.or(Some(row)) }
    }

    /// Where the machine with this part stands.
    pub fn part(&self, part: Part, now: Timestamp) -> Option<Row> {
        let machine = self.machines.iter().find(|machine| machine.part == part)?;
        self.row(&machine.name, now)
    }

    /// What happened to a machine.
    pub fn tale(&self, name: &str) -> Option<&Tale> {
        self.tales.get(name)
    }

    /// What is remembered of the machine with this part.
    pub fn record(&self, part: Part) -> Record {
        let machine = self.machines.iter().find(|machine| machine.part == part);
        machine.and_then(|machine| self.nodes.get(&machine.name)).map(record_of).unwrap_or_default()
    }

    /// How many machines are open and have no worker left.
    pub fn at_rest(&self) -> usize {
        let is_at_rest = |node: &&NodeView| {
            self.tales.get(&*node.name).is_some_and(|tale| tale.open.is_some())
                && !self.workers.values().any(|worker| *worker.identity.node_uid == *node.uid)
        };
        self.nodes.values().filter(is_at_rest).count()
    }
}

/// What failed and why, without what it was tried on: `dns x.y.: Timeout (z)` is `dns: Timeout (z)`.
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
    T::deserialize(&**object).ok()
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
    fn what_failed_is_said_in_few_words() {
        let why = "dns kubernetes.default.: Timeout (no answer within 2 s)";
        assert_eq!(shortened(why), "dns: Timeout (no answer within 2 s)");
        for why in ["nothing was checked", "the node was booted: again"] {
            assert_eq!(shortened(why), why);
        }
    }
}
