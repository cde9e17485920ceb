//! A node is disrupted only while its request is approved, and while what the request is about is still so.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodekeeper_sim::harness::Invariant;
use nodekeeper_sim::object::{condition_status, is_deleting, items, name, number, text, uid};
use nodekeeper_sim::store::Change;
use nodekeeper_sim::value::Value;

use super::REMEDIATIONS;
use super::history::History;
use crate::gate::GATES as GATES_AND_TAINTS;
use crate::gate::invariants::{has_taint, record};

pub const WANTED: &str = "a node is disrupted only while an approved request and its gate want it";

const GATES: &str = "nodekeeper.dev/nodegates";

/// The controller reads gate, node, policy and request at most 5 s before a disruption. That request may be late.
const WINDOW: SignedDuration = SignedDuration::from_secs(10);

/// The states of one object, each with the time since which it was so. None after its deletion.
#[derive(Default)]
struct States(Vec<(Timestamp, Option<Arc<Value>>)>);

impl States {
    /// Those that the controller may have read for a change.
    fn seen(&self, change: &Change) -> impl Iterator<Item = &Value> {
        let from = change.sent - WINDOW;
        let first = self.0.iter().rposition(|(since, _)| *since <= from).unwrap_or_default();
        self.0[first.min(self.0.len())..].iter().filter_map(|(_, state)| state.as_deref())
    }
}

#[derive(Default)]
pub struct Wanted {
    history: History,
    gates: BTreeMap<String, States>,
    /// By the uid of the node, which is the name of its request.
    requests: BTreeMap<String, States>,
    nodes: BTreeMap<String, States>,
}

impl Wanted {
    fn check_disruption(&self, change: &Change, node: &Value) -> Result<(), String> {
        let none = States::default();
        let nodes = self.nodes.get(uid(node)).unwrap_or(&none);
        let requests = self.requests.get(uid(node)).unwrap_or(&none);
        let had_booted = |boot: &str| {
            boot.is_empty() || nodes.seen(change).any(|node| text(node, "status.nodeInfo.bootID") == boot)
        };
        let is_approved = |request: &&Value| {
            condition_status(request, "Approved") == "True" && had_booted(text(request, "spec.node.bootID"))
        };
        let mut approved = requests.seen(change).filter(is_approved).peekable();
        if approved.peek().is_none() {
            return Err(format!("no request for {} is approved", name(node)));
        }
        let wants = |request: &Value| {
            let mut causes = items(request, "spec.causes").iter();
            causes.any(|cause| {
                text(cause, "source") != "Gate" || self.gate_wants(change, nodes, text(cause, "name"))
            })
        };
        if !approved.any(wants) {
            return Err(format!("the gate of {} does not want its replacement", name(node)));
        }
        Ok(())
    }

    /// Whether the node bore the taint, and the gate that judged it wanted it to be replaced.
    fn gate_wants(&self, change: &Change, nodes: &States, gate: &str) -> bool {
        let judged: Vec<(String, i64)> = nodes
            .seen(change)
            .filter(|node| GATES_AND_TAINTS.iter().any(|(name, key)| *name == gate && has_taint(node, key)))
            .filter_map(record)
            .flat_map(|record| record.sections().map(|one| one.scope.clone()).collect::<Vec<_>>())
            .map(|scope| (scope.gate_uid.to_string(), scope.gate_generation))
            .collect();
        let Some(states) = self.gates.get(gate) else { return false };
        states.seen(change).any(|gate| {
            let generation = number(gate, "metadata.generation").unwrap_or_default();
            let replaces =
                ["spec.onFailure", "spec.onStuck"].iter().any(|field| text(gate, field) == "Replace");
            let enforces = matches!(text(gate, "spec.enforcement"), "" | "Enforce");
            let is_it = judged.iter().any(|judged| (judged.0.as_str(), judged.1) == (uid(gate), generation));
            is_it && replaces && enforces && !is_deleting(gate)
        })
    }
}

impl Invariant for Wanted {
    fn name(&self) -> &'static str {
        WANTED
    }

    fn check(&mut self, change: &Change) -> Result<(), String> {
        let wrong = match self.history.disruption(change) {
            Some(node) => self.check_disruption(change, &node),
            None => Ok(()),
        };
        let states = match change.collection.as_str() {
            GATES => self.gates.entry(change.key.clone()).or_default(),
            REMEDIATIONS => self.requests.entry(change.key.clone()).or_default(),
            "nodes" => {
                let node = change.after.as_ref().or(change.before.as_ref());
                self.nodes.entry(node.map(|node| uid(node).to_owned()).unwrap_or_default()).or_default()
            }
            _ => return wrong,
        };
        states.0.push((change.at, change.after.clone()));
        self.history.record(change);
        wrong
    }
}
