//! An Event agrees with the object that it is about, and comes after what it says was done.

use std::collections::BTreeMap;

use nodekeeper_core::reasons::remediation::{
    NODE_REPLACEMENT_REQUESTED, REMEDIATION_APPROVED, REMEDIATION_GIVEN_UP,
};
use nodekeeper_core::reasons::{
    NODE_AUDITED, NODE_CHECK_FAILED, NODE_GATED, NODE_RETAINT_SKIPPED, NODE_VERIFICATION_FAILED,
    NODE_VERIFICATION_INCONCLUSIVE, NODE_VERIFICATION_STARTED, NODE_VERIFICATION_STUCK, NODE_VERIFIED,
};
use nodekeeper_core::record::Record;
use nodekeeper_core::report::Verdict;
use nodekeeper_sim::harness::Invariant;
use nodekeeper_sim::object::{condition_status, name, text, uid};
use nodekeeper_sim::store::Change;
use nodekeeper_sim::value::Value;

use super::GATES;
use super::invariants::{has_taint, identity, is_ours, record};

pub const EVENTS: &str = "an Event comes after what it says was done";

/// What the controller does and says afterwards in an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fact {
    /// The taint of a gate was removed after a pass.
    Opened,
    /// A node passed that had no taint.
    VerifiedAgain,
    /// The taint of a gate was removed by an audit.
    Admitted,
    TaintedAgain,
    RecordedFailure,
    RecordedInconclusive,
    WorkerCreated,
    Approved,
    GivenUp,
    /// The deletion of the Node or its `NodeClaim` began, whoever asked for it.
    DeletionBegan,
}

/// What an Event says was done; none if it says nothing of the kind. A worker that was created before may be adopted more
/// than once.
fn claim(event: &Value) -> Option<Fact> {
    Some(match text(event, "reason") {
        NODE_VERIFIED if text(event, "action") == "RemoveTaint" => Fact::Opened,
        NODE_VERIFIED => Fact::VerifiedAgain,
        NODE_AUDITED => Fact::Admitted,
        NODE_GATED => Fact::TaintedAgain,
        NODE_CHECK_FAILED | NODE_RETAINT_SKIPPED | NODE_VERIFICATION_FAILED => Fact::RecordedFailure,
        NODE_VERIFICATION_INCONCLUSIVE | NODE_VERIFICATION_STUCK => Fact::RecordedInconclusive,
        NODE_VERIFICATION_STARTED => Fact::WorkerCreated,
        REMEDIATION_APPROVED => Fact::Approved,
        REMEDIATION_GIVEN_UP => Fact::GivenUp,
        NODE_REPLACEMENT_REQUESTED => Fact::DeletionBegan,
        _ => return None,
    })
}

/// An Event is about a node that was there, and no more Events say that something was done than it was done before.
#[derive(Default)]
pub struct EventsAgree {
    /// The name of each node by its uid, and the uid of the last one by its name.
    names: BTreeMap<String, String>,
    uids: BTreeMap<String, String>,
    /// By the uid of the node.
    facts: BTreeMap<String, BTreeMap<Fact, u32>>,
    /// By the uid of the node: the Events with each reason and action.
    events: BTreeMap<String, BTreeMap<(String, Fact), u32>>,
}

impl EventsAgree {
    fn add(&mut self, node: &str, fact: Fact) {
        *self.facts.entry(node.to_owned()).or_default().entry(fact).or_default() += 1;
    }

    fn observe_node(&mut self, change: &Change) {
        let Some(node) = change.after.as_ref().or(change.before.as_ref()) else { return };
        if self.uids.get(name(node)).is_none_or(|known| known != uid(node)) {
            self.uids.insert(name(node).to_owned(), uid(node).to_owned());
            self.names.insert(uid(node).to_owned(), name(node).to_owned());
        }
        if change.deleted().is_some() {
            self.add(uid(node), Fact::DeletionBegan);
        }
        let (Some(before), Some(after)) = (&change.before, &change.after) else { return };
        if is_ours(change) {
            self.observe_verdict(before, after);
        }
    }

    fn observe_verdict(&mut self, before: &Value, after: &Value) {
        let (was, Some(is)) = (record(before), record(after)) else { return };
        let mut was_opened = false;
        for (_, key) in GATES {
            match (has_taint(before, key), has_taint(after, key)) {
                (true, false) => {
                    was_opened = true;
                    let fact = if is.is_admitted_by_audit() { Fact::Admitted } else { Fact::Opened };
                    self.add(uid(after), fact);
                }
                (false, true) => self.add(uid(after), Fact::TaintedAgain),
                _ => {}
            }
        }
        if was.as_ref() == Some(&is) {
            return;
        }
        let has = |verdict| is.sections().any(|section: &Record| section.verdict == Some(verdict));
        if !was_opened && has(Verdict::Passed) {
            self.add(uid(after), Fact::VerifiedAgain);
        }
        if has(Verdict::Failed) {
            self.add(uid(after), Fact::RecordedFailure);
        }
        if has(Verdict::Inconclusive) {
            self.add(uid(after), Fact::RecordedInconclusive);
        }
    }

    /// Counts an approval, and an end without success.
    fn observe_request(&mut self, change: &Change) {
        let Some(after) = change.after.as_ref().filter(|_| is_ours(change)) else { return };
        let has_changed = |field: &str| {
            change.before.as_ref().is_none_or(|before| text(before, field) != text(after, field))
        };
        let status = |kind: &str| {
            let before = change.before.as_ref().map(|before| condition_status(before, kind));
            (before.unwrap_or_default(), condition_status(after, kind))
        };
        let (was, is) = status("Approved");
        if is == "True" && (was != "True" || has_changed("status.approvedAt")) {
            self.add(&change.key, Fact::Approved);
        }
        let (_, is) = status("Succeeded");
        if is == "False" && change.before.as_ref().is_none_or(|before| before["status"] != after["status"]) {
            self.add(&change.key, Fact::GivenUp);
        }
    }

    fn check_event(&mut self, event: &Value) -> Result<(), String> {
        let (node, reason) = (text(event, "involvedObject.uid"), text(event, "reason"));
        let (kind, about) = (text(event, "involvedObject.kind"), text(event, "involvedObject.name"));
        if kind != "Node" || self.names.get(node).is_none_or(|name| name != about) {
            return Err(format!("{reason} is about {kind} {about} with uid {node}, which was never there"));
        }
        let Some(fact) = claim(event) else { return Ok(()) };
        let done = self.facts.get(node).and_then(|facts| facts.get(&fact)).copied().unwrap_or_default();
        let events = self.events.entry(node.to_owned()).or_default();
        let said = events.entry((reason.to_owned(), fact)).or_default();
        *said += 1;
        let most = if fact == Fact::WorkerCreated && done > 0 { u32::MAX } else { done };
        if *said > most {
            return Err(format!("{said} Events {reason} about {about}, and {fact:?} happened {done} times"));
        }
        Ok(())
    }
}

impl Invariant for EventsAgree {
    fn name(&self) -> &'static str {
        EVENTS
    }

    fn check(&mut self, change: &Change) -> Result<(), String> {
        match (change.collection.as_str(), &change.after) {
            ("nodes", _) => self.observe_node(change),
            ("karpenter.sh/nodeclaims", _) => {
                let node = change.deleted().and_then(|claim| self.uids.get(text(claim, "status.nodeName")));
                if let Some(node) = node.cloned() {
                    self.add(&node, Fact::DeletionBegan);
                }
            }
            ("nodekeeper.dev/noderemediations", _) => self.observe_request(change),
            ("pods", Some(pod)) if change.before.is_none() && is_ours(change) => {
                if let Some(identity) = identity(pod) {
                    self.add(&identity.node_uid, Fact::WorkerCreated);
                }
            }
            ("events", Some(event)) if change.before.is_none() && is_ours(change) => {
                return self.check_event(event);
            }
            _ => {}
        }
        Ok(())
    }
}
