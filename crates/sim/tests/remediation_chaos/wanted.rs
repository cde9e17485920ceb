//! A node is disrupted only while its request is approved, and while what the request is about is still so.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use nodekeeper_core::record::Record;
use nodekeeper_core::report::Verdict;
use nodekeeper_sim::harness::Invariant;
use nodekeeper_sim::object::{at, condition_status, is_deleting, items, name, number, text, uid};
use nodekeeper_sim::store::Change;
use nodekeeper_sim::value::Value;

use super::history::{History, States, has_new_record, observed_at};
use super::invariants::CLOCK_JUMPS;
use super::{REMEDIATIONS, reserved};
use crate::gate::GATES as GATES_AND_TAINTS;
use crate::gate::invariants::{has_taint, is_ours, record};

pub const WANTED: &str = "a node is disrupted only while an approved request and its gate want it";

const GATES: &str = "nodekeeper.dev/nodegates";

/// The reads for a confirmation take this long at most: the request, then policy, gates and node at once, then the rights.
const CONFIRMED_WITHIN: SignedDuration = SignedDuration::from_secs(20);

/// A conclusive verdict of a gate.
struct Told {
    at: Timestamp,
    node: String,
    gate: String,
    generation: i64,
}

#[derive(Default)]
pub struct Wanted {
    history: History,
    gates: BTreeMap<String, States>,
    /// By the uid of the node, which is the name of its request.
    requests: BTreeMap<String, States>,
    nodes: BTreeMap<String, States>,
    told: Vec<Told>,
}

/// What the controller may have read for a disruption.
struct Seen<'a> {
    change: &'a Change,
    node: &'a str,
    nodes: &'a States,
}

/// Whether a change requests the replacement of a stuck node.
pub fn is_for_a_stuck_node(change: &Change) -> bool {
    let is_stuck =
        |request: &Value| items(request, "spec.causes").iter().any(|cause| text(cause, "verdict") == "Stuck");
    let was = change.before.as_ref().is_some_and(|before| is_stuck(before));
    !was && change.after.as_ref().is_some_and(|after| is_stuck(after))
}

/// Whether a reservation approves this request in this boot.
fn is_reserved_for(reservation: &Value, request: &Value, boot: &str) -> bool {
    at(reservation, "ended").is_none()
        && text(reservation, "remediation") == name(request)
        && text(reservation, "uid") == uid(request)
        && text(reservation, "at") == text(request, "status.approvedAt")
        && text(reservation, "bootID") == boot
}

/// Whether the attempts of a node are used up, or its deadline has passed.
fn has_given_up(gate: &Value, judged: &Record, is_stuck: bool) -> bool {
    let (count, path) = if is_stuck {
        (judged.elapsed_seconds, "spec.deadlines.gateSeconds")
    } else {
        (judged.attempts.saturating_sub(1), "spec.retry.maxRetries")
    };
    number(gate, path).is_some_and(|least| i64::from(count) >= least)
}

impl Wanted {
    /// A reservation for this request comes first, then the request says that it is approved.
    fn check_approval(&self, change: &Change) -> Result<(), String> {
        let Some(request) = change.after.as_ref().filter(|_| is_ours(change)) else { return Ok(()) };
        let state = |request: &Value| {
            (condition_status(request, "Approved") == "True", text(request, "status.approvedAt").to_owned())
        };
        if !state(request).0 || change.before.as_deref().map(state) == Some(state(request)) {
            return Ok(());
        }
        let boot = text(request, "spec.node.bootID");
        let is_it = |one: &Value| {
            let boot = if boot.is_empty() { text(one, "bootID") } else { boot };
            is_reserved_for(one, request, boot)
        };
        let mut policies = self.history.policies.seen(change, CONFIRMED_WITHIN).flatten();
        if policies.any(|policy| reserved(policy).any(is_it)) {
            return Ok(());
        }
        Err(format!("the request for {} is approved without a reservation", text(request, "spec.node.name")))
    }

    fn check_disruption(&self, change: &Change, node: &Value) -> Result<(), String> {
        let none = States::default();
        let nodes = self.nodes.get(uid(node)).unwrap_or(&none);
        let requests = self.requests.get(uid(node)).unwrap_or(&none);
        let seen = Seen { change, node: uid(node), nodes };
        let booted =
            |boot: &str| nodes.existing(change).any(|node| text(node, "status.nodeInfo.bootID") == boot);
        let is_approved = |request: &&Value| {
            let boot = text(request, "spec.node.bootID");
            let has_reservation = |policy: &Value| {
                let mut reserved = reserved(policy).filter(|one| booted(text(one, "bootID")));
                reserved.any(|one| is_reserved_for(one, request, text(one, "bootID")))
            };
            condition_status(request, "Approved") == "True"
                && text(request, "spec.node.uid") == uid(node)
                && (boot.is_empty() || booted(boot))
                && self.history.policies.existing(change).any(has_reservation)
        };
        let mut approved = requests.existing(change).filter(is_approved).peekable();
        if approved.peek().is_none() {
            return Err(format!("no request for {} is approved", name(node)));
        }
        let wants = |request: &Value| {
            items(request, "spec.causes").iter().any(|one| self.is_true(&seen, request, one))
        };
        if !approved.any(wants) {
            return Err(format!("no cause for the replacement of {} is true", name(node)));
        }
        Ok(())
    }

    /// Whether a cause was recent when the request was approved, and is still so.
    fn is_true(&self, seen: &Seen<'_>, request: &Value, cause: &Value) -> bool {
        let Ok(approved) = text(request, "status.approvedAt").parse::<Timestamp>() else { return false };
        let Some(observed) = observed_at(request, cause) else { return false };
        let is_recent = |policy: &Value| {
            let allowed = number(policy, "spec.evidenceSeconds").unwrap_or_default();
            approved.duration_since(observed) <= SignedDuration::from_secs(allowed) + CLOCK_JUMPS
        };
        if !self.history.policies.existing(seen.change).any(is_recent) {
            return false;
        }
        match text(cause, "source") {
            "Gate" => self.gate_wants(seen, cause, approved),
            _ => true,
        }
    }

    /// Whether the node had the taint, and the gate that judged it wanted it to be replaced for that verdict.
    fn gate_wants(&self, seen: &Seen<'_>, cause: &Value, approved: Timestamp) -> bool {
        let (gate, is_stuck) = (text(cause, "name"), text(cause, "verdict") == "Stuck");
        let (verdict, field) = if is_stuck {
            (Verdict::Inconclusive, "spec.onStuck")
        } else {
            (Verdict::Failed, "spec.onFailure")
        };
        let has_its_taint =
            |node: &&Value| GATES_AND_TAINTS.iter().any(|(name, key)| *name == gate && has_taint(node, key));
        let sections = |record: Record| record.sections().cloned().collect::<Vec<_>>();
        let held = seen.nodes.existing(seen.change).filter(has_its_taint);
        let judged: Vec<Record> =
            held.filter_map(record).flat_map(sections).filter(|one| one.verdict == Some(verdict)).collect();
        let Some(states) = self.gates.get(gate) else { return false };
        states.existing(seen.change).any(|gate| {
            let generation = number(gate, "metadata.generation").unwrap_or_default();
            let is_it = |judged: &&Record| {
                judged.scope.gate_uid == *uid(gate) && judged.scope.gate_generation == generation
            };
            judged.iter().filter(is_it).any(|judged| has_given_up(gate, judged, is_stuck))
                && text(gate, field) == "Replace"
                && matches!(text(gate, "spec.enforcement"), "" | "Enforce")
                && !is_deleting(gate)
                && (!is_stuck || self.reported_elsewhere(seen, gate, approved))
        })
    }

    /// Whether a worker of the gate came to a verdict about another node, not too long before an approval.
    fn reported_elsewhere(&self, seen: &Seen<'_>, gate: &Value, approved: Timestamp) -> bool {
        let generation = number(gate, "metadata.generation").unwrap_or_default();
        let allowed = self.history.policies.existing(seen.change);
        let allowed = allowed.filter_map(|policy| number(policy, "spec.evidenceSeconds")).max();
        let allowed = SignedDuration::from_secs(allowed.unwrap_or_default()) + CLOCK_JUMPS;
        self.told.iter().any(|told| {
            (told.gate.as_str(), told.generation) == (uid(gate), generation)
                && told.node != seen.node
                && approved.duration_since(told.at).abs() <= allowed
        })
    }

    fn record_verdicts(&mut self, change: &Change) {
        let Some(node) = change.after.as_ref().filter(|_| has_new_record(change)) else { return };
        for section in record(node).iter().flat_map(Record::sections) {
            if matches!(section.verdict, Some(Verdict::Passed | Verdict::Failed)) {
                self.told.push(Told {
                    at: change.at,
                    node: uid(node).to_owned(),
                    gate: section.scope.gate_uid.to_string(),
                    generation: section.scope.gate_generation,
                });
            }
        }
    }
}

impl Invariant for Wanted {
    fn name(&self) -> &'static str {
        WANTED
    }

    fn check(&mut self, change: &Change) -> Result<(), String> {
        let wrong = match self.history.disruption(change) {
            Some(node) => self.check_disruption(change, &node),
            None if change.collection == REMEDIATIONS => self.check_approval(change),
            None => Ok(()),
        };
        let states = match change.collection.as_str() {
            GATES => self.gates.entry(change.key.clone()).or_default(),
            REMEDIATIONS => self.requests.entry(change.key.clone()).or_default(),
            "nodes" => {
                self.record_verdicts(change);
                let node = change.after.as_ref().or(change.before.as_ref());
                self.nodes.entry(node.map(|node| uid(node).to_owned()).unwrap_or_default()).or_default()
            }
            _ => {
                self.history.record(change);
                return wrong;
            }
        };
        states.push(change.at, change.after.clone());
        self.history.record(change);
        wrong
    }
}
