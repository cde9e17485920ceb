//! What the controller reports agrees with the cluster, and it neither writes nor starts more than it may.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodekeeper_core::record::Record;
use nodekeeper_sim::Cluster;
use nodekeeper_sim::harness::Invariant;
use nodekeeper_sim::object::{at, is_deleting, items, name, text, uid};
use nodekeeper_sim::store::Change;
use nodekeeper_sim::value::Value;

use super::invariants::{has_ended, has_taint, identity, is_gated, is_ours, record, was_admitted_by_audit};
use super::{GATES, LABEL, MAX_WORKERS, TAINT};

pub fn all() -> Vec<Box<dyn Invariant>> {
    vec![
        Box::<EventsAgree>::default(),
        Box::<BoundedWrites>::default(),
        Box::<WithinTheWorkerLimit>::default(),
        Box::<CountsAreTrue>::default(),
    ]
}

/// An Event that says that a node was verified comes after that.
#[derive(Default)]
struct EventsAgree {
    /// Uids of nodes that the controller verified.
    verified: BTreeSet<String>,
}

impl Invariant for EventsAgree {
    fn name(&self) -> &'static str {
        "an Event comes after what it says was done"
    }

    fn check(&mut self, change: &Change) -> Result<(), String> {
        let Some(after) = change.after.as_ref().filter(|_| is_ours(change)) else { return Ok(()) };
        let labels =
            |node: &Value| at(node, "metadata.labels").is_some_and(|labels| labels.get(LABEL).is_some());
        let is_opened = |key: &str| {
            let was_tainted = change.before.as_ref().is_some_and(|before| has_taint(before, key));
            was_tainted && !has_taint(after, key)
        };
        let is_verified = || !is_gated(after) && labels(after);
        if change.collection == "nodes" && (is_verified() || GATES.iter().any(|(_, key)| is_opened(key))) {
            self.verified.insert(uid(after).to_owned());
        }
        let node = text(after, "involvedObject.uid");
        if change.collection == "events"
            && text(after, "reason") == "NodeVerified"
            && !self.verified.contains(node)
        {
            return Err(format!("node {node} was never verified"));
        }
        Ok(())
    }
}

/// So many writes of one object, and Events about one, a minute, for each gate.
const MAX_WRITES: usize = 16;
/// The same for a gate and the policy, whose status is about all nodes and is written every two seconds at most.
const MAX_STATUS_WRITES: usize = 35;

/// Each change of a gate begins the verification of a node anew. Three workers follow without a long backoff, each with an
/// Event at its start and at its end.
const MORE_FOR_A_CHANGED_GATE: usize = 6;

/// Whatever others do and the server answers, nothing is written without end.
#[derive(Default)]
struct BoundedWrites {
    last: BTreeMap<String, VecDeque<Timestamp>>,
    /// The names of all gates that there were.
    gates: BTreeSet<String>,
    /// When users changed a gate.
    gate_changes: VecDeque<Timestamp>,
}

impl Invariant for BoundedWrites {
    fn name(&self) -> &'static str {
        "writes of one object, and Events about it, are bounded"
    }

    fn check(&mut self, change: &Change) -> Result<(), String> {
        if !is_ours(change) && change.collection == "nodekeeper.dev/nodegates" {
            self.gate_changes.push_back(change.at);
            self.gates.insert(change.key.clone());
        }
        // A Lease is renewed every two seconds.
        if !is_ours(change) || change.collection.ends_with("/leases") {
            return Ok(());
        }
        let is_old = |at: &Timestamp| change.at.duration_since(*at) > SignedDuration::from_mins(1);
        while self.gate_changes.front().is_some_and(is_old) {
            self.gate_changes.pop_front();
        }
        let object = match (change.collection.as_str(), &change.after) {
            ("events", Some(event)) => format!("events about {}", text(event, "involvedObject.uid")),
            (collection, _) => format!("{collection}/{}", change.key),
        };
        let writes = self.last.entry(object.clone()).or_default();
        while writes.front().is_some_and(is_old) {
            writes.pop_front();
        }
        writes.push_back(change.at);
        let has_status = ["nodekeeper.dev/nodegates", "nodekeeper.dev/remediationpolicies"];
        let most = match change.collection.as_str() {
            kind if has_status.contains(&kind) => MAX_STATUS_WRITES,
            _ => MAX_WRITES * self.gates.len().max(1) + MORE_FOR_A_CHANGED_GATE * self.gate_changes.len(),
        };
        if writes.len() > most {
            return Err(format!("{} writes of {object} in a minute", writes.len()));
        }
        Ok(())
    }
}

/// Workers whose creation was applied and not answered are not known to the controller until its watch shows them.
const UNKNOWN_WORKERS: usize = 3;
/// A worker that has not started after this frees its slot.
const START_TIMEOUT: SignedDuration = SignedDuration::from_secs(60);

/// The limit of workers holds, whatever their nodes are like.
#[derive(Default)]
struct WithinTheWorkerLimit {
    /// By key: when the pod was created, and whether it runs.
    active: BTreeMap<String, (Timestamp, bool)>,
}

impl Invariant for WithinTheWorkerLimit {
    fn name(&self) -> &'static str {
        "the workers that run are within the limit"
    }

    fn check(&mut self, change: &Change) -> Result<(), String> {
        let Some(pod) = change.after.as_ref().or(change.before.as_ref()) else { return Ok(()) };
        if change.collection != "pods" || identity(pod).is_none() {
            return Ok(());
        }
        if change.after.is_none() || is_deleting(pod) || has_ended(pod) {
            self.active.remove(&change.key);
            return Ok(());
        }
        let is_new = change.before.is_none();
        let runs = text(pod, "status.phase") == "Running";
        self.active.entry(change.key.clone()).or_insert((change.at, false)).1 |= runs;
        let takes_slot = |(created, runs): &&(Timestamp, bool)| {
            *runs || change.at.duration_since(*created) < START_TIMEOUT
        };
        let count = self.active.values().filter(takes_slot).count();
        if is_new && !change.was_delayed() && count > MAX_WORKERS + UNKNOWN_WORKERS {
            return Err(format!("{count} workers, and the limit is {MAX_WORKERS}"));
        }
        Ok(())
    }
}

/// How long the controller may know an earlier state of a node: a watch that says nothing is opened again after 150 s.
const STALENESS: SignedDuration = SignedDuration::from_secs(200);

/// By node uid: when the node was last open; none if it is now.
#[derive(Default)]
struct OpenNodes(BTreeMap<String, Option<Timestamp>>);

impl OpenNodes {
    fn observe(&mut self, change: &Change, is_gated: impl Fn(&Value) -> bool) {
        let Some(node) = change.after.as_ref().or(change.before.as_ref()) else { return };
        let was_open = self.0.get(uid(node)).is_some_and(Option::is_none);
        if change.after.is_some() && !is_gated(node) {
            self.0.insert(uid(node).to_owned(), None);
        } else if was_open {
            self.0.insert(uid(node).to_owned(), Some(change.at));
        }
    }

    /// How many nodes the controller may know as open.
    fn count(&self, change: &Change) -> u64 {
        let is_recent = |last: &&Option<Timestamp>| {
            last.is_none_or(|last| change.sent().duration_since(last) < STALENESS)
        };
        u64::try_from(self.0.values().filter(is_recent).count()).unwrap_or_default()
    }
}

/// The status of the gates counts no node as verified that has the taint of a gate, and in the end what is there.
#[derive(Default)]
struct CountsAreTrue {
    /// Without the taint of any gate.
    open: OpenNodes,
    /// Without the taint of the first gate.
    open_for_one: OpenNodes,
    /// When a gate was last deleted: until there is another, its taint is that of no gate.
    deleted: Option<Timestamp>,
}

impl Invariant for CountsAreTrue {
    fn name(&self) -> &'static str {
        "the status of the gate counts what is there"
    }

    fn check(&mut self, change: &Change) -> Result<(), String> {
        if change.collection == "nodes" {
            self.open.observe(change, is_gated);
            self.open_for_one.observe(change, |node| has_taint(node, TAINT));
        }
        if change.collection == "nodekeeper.dev/nodegates" && change.after.is_none() {
            self.deleted = Some(change.at);
        }
        let Some(gate) = change.after.as_ref().filter(|_| is_ours(change)) else { return Ok(()) };
        if change.collection != "nodekeeper.dev/nodegates" {
            return Ok(());
        }
        let is_one = self.deleted.is_some_and(|at| change.sent().duration_since(at) < STALENESS);
        let verified = if is_one { self.open_for_one.count(change) } else { self.open.count(change) };
        let told = gate["status"]["nodes"]["verified"].as_u64().unwrap_or_default();
        if told > verified {
            return Err(format!("{told} nodes are verified, and {verified} had no taint"));
        }
        Ok(())
    }

    fn check_final(&mut self, cluster: &Cluster) -> Result<(), String> {
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
        let count = |gate: &Value, field: &str| gate["status"]["nodes"][field].as_u64().unwrap_or_default();
        let told = |field: &str| gates.iter().map(|gate| count(gate, field)).sum::<u64>();
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
        Ok(())
    }
}

fn is_terminating(node: &Value) -> bool {
    let disrupted = |key: &str| key.starts_with("karpenter.sh/disrupt") || key.starts_with("ToBeDeleted");
    is_deleting(node) || items(node, "spec.taints").iter().any(|taint| disrupted(text(taint, "key")))
}
