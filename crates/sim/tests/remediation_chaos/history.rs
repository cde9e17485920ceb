//! The history of policies, remediations and nodes that invariants check against.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodekeeper_core::node::CORDONED;
use nodekeeper_core::record::{ANNOTATION, Record};
use nodekeeper_sim::object::{at, is_true, items, name, text, uid};
use nodekeeper_sim::store::Change;
use nodekeeper_sim::value::Value;

use super::{CLAIMS, POLICIES, REMEDIATIONS, reserved};
use crate::gate::invariants::{is_ours, record};

/// The controller reads node, gates, policy and request past all caches, and sends a disruption no later than this after
/// it began to read them.
pub const LIVE_FOR: SignedDuration = SignedDuration::from_secs(5);

/// The states of one object, each with the time since which it was so. None before its creation and after its deletion.
#[derive(Default)]
pub struct States(Vec<(Timestamp, Option<Arc<Value>>)>);

impl States {
    pub fn push(&mut self, at: Timestamp, state: Option<Arc<Value>>) {
        self.0.push((at, state));
    }

    /// Those that the controller may have read, if it began so long before it sent a write.
    pub fn seen(&self, change: &Change, within: SignedDuration) -> impl Iterator<Item = Option<&Value>> {
        let from = change.sent - within;
        let first = self.0.iter().rposition(|(since, _)| *since <= from);
        let known = self.0[first.unwrap_or_default()..].iter().take_while(|(at, _)| *at <= change.sent);
        let unknown = first.is_none().then_some(None);
        unknown.into_iter().chain(known.map(|(_, state)| state.as_deref()))
    }

    /// The same without those in which there was no object.
    pub fn existing(&self, change: &Change) -> impl Iterator<Item = &Value> {
        self.seen(change, LIVE_FOR).flatten()
    }
}

#[derive(Default)]
pub struct History {
    pub policies: States,
    pub requests: BTreeMap<String, Arc<Value>>,
    /// By name, including deleted nodes.
    nodes: BTreeMap<String, Arc<Value>>,
    /// By node uid and the time in a record: when it was committed.
    recorded: BTreeMap<(String, String), Timestamp>,
}

pub fn mark(node: &Value) -> Option<&str> {
    at(node, "metadata.annotations")?.get(CORDONED)?.as_str()
}

pub fn is_cordon(change: &Change) -> bool {
    let (Some(before), Some(after)) = (&change.before, &change.after) else { return false };
    change.collection == "nodes"
        && !is_true(before, "spec.unschedulable")
        && is_true(after, "spec.unschedulable")
}

impl History {
    /// Call it after all checks of a change.
    pub fn record(&mut self, change: &Change) {
        match (change.collection.as_str(), &change.after) {
            (POLICIES, after) => self.policies.push(change.at, after.clone()),
            (REMEDIATIONS, Some(request)) => drop(self.requests.insert(change.key.clone(), request.clone())),
            ("nodes", Some(node)) => {
                if has_new_record(change) {
                    for at in record(node).iter().flat_map(Record::sections).filter_map(|section| section.at)
                    {
                        self.recorded.entry((uid(node).to_owned(), at.to_string())).or_insert(change.at);
                    }
                }
                self.nodes.insert(name(node).to_owned(), node.clone());
            }
            _ => {}
        }
    }

    /// The node of a disruption by the controller; none if the change is no disruption.
    pub fn disruption(&self, change: &Change) -> Option<Arc<Value>> {
        let object = change.before.as_ref().filter(|_| is_ours(change))?;
        let node = match (change.collection.as_str(), change.deleted()) {
            ("nodes", Some(node)) => name(node),
            (CLAIMS, Some(claim)) => text(claim, "status.nodeName"),
            ("pods", Some(pod)) if change.is_eviction() => text(pod, "spec.nodeName"),
            _ if is_cordon(change) => change.key.as_str(),
            _ => return None,
        };
        Some(self.nodes.get(node).unwrap_or(object).clone())
    }

    /// Whether the condition held for any policy that the controller may have read.
    pub fn possibly_observed(&self, change: &Change, so: impl Fn(Option<&Value>) -> bool) -> bool {
        self.policies.seen(change, LIVE_FOR).any(so)
    }

    /// When the newest evidence of a remediation was committed.
    pub fn evidence(&self, request: &Value) -> Option<Timestamp> {
        let of = |cause: &Value| match text(cause, "source") {
            "Gate" => {
                let at: Timestamp = text(cause, "observedAt").parse().ok()?;
                self.recorded.get(&(name(request).to_owned(), at.to_string())).copied()
            }
            _ => observed_at(request, cause),
        };
        items(request, "spec.causes").iter().filter_map(of).max()
    }
}

/// When the cause of a person or recycler was observed.
pub fn observed_at(request: &Value, cause: &Value) -> Option<Timestamp> {
    let observed = text(cause, "observedAt").parse().ok();
    observed.or_else(|| text(request, "metadata.creationTimestamp").parse().ok())
}

/// Whether a change of a node changes the record on it.
pub fn has_new_record(change: &Change) -> bool {
    fn annotation(node: Option<&Arc<Value>>) -> Option<&str> {
        at(node?, "metadata.annotations")?.get(ANNOTATION)?.as_str()
    }
    annotation(change.before.as_ref()) != annotation(change.after.as_ref())
}

/// The disruptions that a change of the policy approves. Those that are restored from remediations have no group.
pub fn approved(change: &Change) -> Vec<&Value> {
    let (POLICIES, Some(after)) = (change.collection.as_str(), &change.after) else { return Vec::new() };
    let known = |one: &Value| {
        let same = |other: &Value| other["remediation"] == one["remediation"] && other["at"] == one["at"];
        change.before.as_ref().is_some_and(|before| reserved(before).any(same))
    };
    let is_new = |one: &&Value| !text(one, "group").is_empty() && at(one, "ended").is_none() && !known(one);
    if is_ours(change) { reserved(after).filter(is_new).collect() } else { Vec::new() }
}

/// The reservations that a change of the policy releases: their remediations never said that they were approved.
pub fn released<'a>(change: &'a Change, history: &History) -> Vec<&'a Value> {
    let (Some(before), Some(after)) = (&change.before, &change.after) else { return Vec::new() };
    let is_released = |one: &&Value| {
        let same = |other: &Value| other["remediation"] == one["remediation"] && other["at"] == one["at"];
        let request = history.requests.get(text(one, "remediation"));
        let is_confirmed =
            request.is_some_and(|request| text(request, "status.approvedAt") == text(one, "at"));
        at(one, "ended").is_none() && !reserved(after).any(same) && !is_confirmed
    };
    if is_ours(change) { reserved(before).filter(is_released).collect() } else { Vec::new() }
}
