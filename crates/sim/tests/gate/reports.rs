//! What the controller reports agrees with the cluster, and it neither writes nor starts more than it may.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use jiff::{SignedDuration, Timestamp};
use nodekeeper_core::record::Record;
use nodekeeper_sim::Cluster;
use nodekeeper_sim::harness::Invariant;
use nodekeeper_sim::object::{at, is_deleting, items, name, text, uid};
use nodekeeper_sim::store::Change;
use nodekeeper_sim::value::Value;

use super::invariants::{has_ended, identity, is_gated, is_ours, record, was_admitted_by_audit};
use super::{LABEL, MAX_WORKERS};

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
        if change.collection == "nodes" && !is_gated(after) && labels(after) {
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

/// So many writes of one object, and Events about one, a minute.
const MAX_WRITES: usize = 16;
/// The same for a gate and the policy, whose status is about all nodes and is written every two seconds at most.
const MAX_STATUS_WRITES: usize = 35;

/// Whatever others do and the server answers, nothing is written without end.
#[derive(Default)]
struct BoundedWrites {
    last: BTreeMap<String, VecDeque<Timestamp>>,
}

impl Invariant for BoundedWrites {
    fn name(&self) -> &'static str {
        "writes of one object, and Events about it, are bounded"
    }

    fn check(&mut self, change: &Change) -> Result<(), String> {
        // A Lease is renewed every two seconds.
        if !is_ours(change) || change.collection.ends_with("/leases") {
            return Ok(());
        }
        let object = match (change.collection.as_str(), &change.after) {
            ("events", Some(event)) => format!("events about {}", text(event, "involvedObject.uid")),
            (collection, _) => format!("{collection}/{}", change.key),
        };
        let writes = self.last.entry(object.clone()).or_default();
        while writes.front().is_some_and(|at| change.at.duration_since(*at) > SignedDuration::from_mins(1)) {
            writes.pop_front();
        }
        writes.push_back(change.at);
        let has_status = ["nodekeeper.dev/nodegates", "nodekeeper.dev/remediationpolicies"];
        let most =
            if has_status.contains(&change.collection.as_str()) { MAX_STATUS_WRITES } else { MAX_WRITES };
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

/// The status of the gate counts no node as verified that has its taint, and in the end what is there.
#[derive(Default)]
struct CountsAreTrue {
    /// By node uid: when it was last without a taint of the gate; none if it is now.
    open: BTreeMap<String, Option<Timestamp>>,
}

impl CountsAreTrue {
    fn observe_node(&mut self, change: &Change) {
        let Some(node) = change.after.as_ref().or(change.before.as_ref()) else { return };
        let was_open = self.open.get(uid(node)).is_some_and(Option::is_none);
        if change.after.is_some() && !is_gated(node) {
            self.open.insert(uid(node).to_owned(), None);
        } else if was_open {
            self.open.insert(uid(node).to_owned(), Some(change.at));
        }
    }
}

impl Invariant for CountsAreTrue {
    fn name(&self) -> &'static str {
        "the status of the gate counts what is there"
    }

    fn check(&mut self, change: &Change) -> Result<(), String> {
        if change.collection == "nodes" {
            self.observe_node(change);
        }
        let Some(gate) = change.after.as_ref().filter(|_| is_ours(change)) else { return Ok(()) };
        if change.collection != "nodekeeper.dev/nodegates" {
            return Ok(());
        }
        let is_recent = |last: &&Option<Timestamp>| {
            last.is_none_or(|last| change.sent().duration_since(last) < STALENESS)
        };
        let verified = u64::try_from(self.open.values().filter(is_recent).count()).unwrap_or_default();
        let told = gate["status"]["nodes"]["verified"].as_u64().unwrap_or_default();
        if told > verified {
            return Err(format!("{told} nodes are verified, and {verified} had no taint"));
        }
        Ok(())
    }

    fn check_final(&mut self, cluster: &Cluster) -> Result<(), String> {
        let user = cluster.local("invariant");
        let Some(gate) = user.get("nodekeeper.dev/nodegates", "", "default") else { return Ok(()) };
        let nodes: Vec<_> = user.all("nodes").into_iter().filter(|node| !is_terminating(node)).collect();
        let gated = nodes.iter().filter(|node| is_gated(node)).count();
        // The gate has a node if it verified it, or if it sets the same label as the gate that did.
        let has = |record: &Record| *record.label == *LABEL || record.scope.gate_uid == *uid(&gate);
        let is_open = |node: &Value| record(node).is_some_and(|record| record.is_open() && has(&record));
        let is_verified = |node: &Value| !is_gated(node) && is_open(node) && !was_admitted_by_audit(node);
        let verified = nodes.iter().filter(|node| is_verified(node)).count();
        let count = |field: &str| gate["status"]["nodes"][field].as_u64().unwrap_or_default();
        let told = (count("gated"), count("verified"));
        let found = (u64::try_from(gated).unwrap_or_default(), u64::try_from(verified).unwrap_or_default());
        if told != found {
            let nodes: Vec<&str> = nodes.iter().map(|node| name(node)).collect();
            let status = &gate["status"];
            return Err(format!("gated and verified are {found:?} of {nodes:?}, and the status is {status}"));
        }
        Ok(())
    }
}

fn is_terminating(node: &Value) -> bool {
    let disrupted = |key: &str| key.starts_with("karpenter.sh/disrupt") || key.starts_with("ToBeDeleted");
    is_deleting(node) || items(node, "spec.taints").iter().any(|taint| disrupted(text(taint, "key")))
}
