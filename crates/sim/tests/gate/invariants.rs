//! The invariants of the gate at every step of every run: numbers 1, 2 and 6 of DESIGN §8, and what they depend on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodekeeper_core::checks::WorkerIdentity;
use nodekeeper_core::configured::LAST_APPLIED;
use nodekeeper_core::node::{CORDONED, VERIFY};
use nodekeeper_core::reasons::NETWORK_VERIFIED;
use nodekeeper_core::record::{ANNOTATION, Record};
use nodekeeper_core::report::{self, Verdict};
use nodekeeper_sim::Cluster;
use nodekeeper_sim::harness::Invariant;
use nodekeeper_sim::object::{at, condition_status, is_deleting, is_true, items, name, number, text, uid};
use nodekeeper_sim::store::Change;
use nodekeeper_sim::value::{Value, json};

use super::configuration::Configuration;
use super::two_gates::{SectionsAreKept, all_gates_verified, is_same_section, section_before};
use super::{GATES, LABEL, NAMESPACE, events, reports, writes};

pub fn all() -> Vec<Box<dyn Invariant>> {
    let mut all: Vec<Box<dyn Invariant>> = vec![
        Box::<UntaintedByVerdict>::default(),
        Box::<NothingForeign>::default(),
        Box::<TaintedForCause>::default(),
        Box::<OnlyWhenEnforced>::default(),
        Box::<CountedOnce>::default(),
        Box::<SectionsAreKept>::default(),
        Box::<OneWorkerAtATime>::default(),
        Box::new(HealthyNodesAreVerified),
    ];
    all.extend(reports());
    all
}

/// The invariants that also hold while nodes are remediated.
pub fn without_foreign_writes() -> Vec<Box<dyn Invariant>> {
    let mut all: Vec<Box<dyn Invariant>> = vec![
        Box::<UntaintedByVerdict>::default(),
        Box::<TaintedForCause>::default(),
        Box::<SectionsAreKept>::default(),
        Box::<OneWorkerAtATime>::default(),
    ];
    all.extend(reports());
    all
}

/// What the controller reports agrees with the cluster, and it neither writes nor starts more than it may.
fn reports() -> Vec<Box<dyn Invariant>> {
    vec![
        Box::<events::EventsAgree>::default(),
        Box::<writes::OnlyTheLeaderWrites>::default(),
        Box::<writes::BoundedWrites>::default(),
        Box::<reports::WithinTheWorkerLimit>::default(),
        Box::<reports::CountsAreTrue>::default(),
    ]
}

pub fn is_ours(change: &Change) -> bool {
    change.user.starts_with("replica-")
}

/// Whether the node has the taint of any gate.
pub fn is_gated(node: &Value) -> bool {
    GATES.iter().any(|(_, key)| has_taint(node, key))
}

pub fn has_taint(node: &Value, key: &str) -> bool {
    items(node, "spec.taints").iter().any(|taint| text(taint, "key") == key)
}

pub fn record(node: &Value) -> Option<Record> {
    let annotation = at(node, "metadata.annotations")?.get(ANNOTATION)?.as_str();
    Record::read(annotation, uid(node))
}

/// The identity of a worker; none for other pods and for control workers.
pub fn identity(pod: &Value) -> Option<WorkerIdentity> {
    if is_control(pod) {
        return None;
    }
    let annotation = at(pod, "metadata.annotations")?.get("nodekeeper.dev/subject")?.as_str()?;
    serde_json::from_str(annotation).ok()
}

/// Whether a pod is a worker on a control node.
pub fn is_control(pod: &Value) -> bool {
    at(pod, "metadata.labels").is_some_and(|labels| labels["app.kubernetes.io/component"] == "control")
}

/// How a worker's container terminated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorkerResult {
    /// With a verdict for its own identity.
    Reported(Verdict),
    /// Without a verdict.
    Inconclusive,
}

fn result(pod: &Value) -> Option<WorkerResult> {
    let status = items(pod, "status.containerStatuses").iter().find(|one| text(one, "name") == "worker");
    let Some(terminated) = status.and_then(|status| at(status, "state.terminated")) else {
        return matches!(text(pod, "status.phase"), "Failed" | "Succeeded")
            .then_some(WorkerResult::Inconclusive);
    };
    let report = report::parse(text(terminated, "message")).ok();
    let own = report.filter(|report| Some(&report.identity) == identity(pod).as_ref());
    let agrees = |report: &report::Report| number(terminated, "exitCode") == Some(report.exit_code().into());
    Some(
        own.filter(agrees)
            .map_or(WorkerResult::Inconclusive, |report| WorkerResult::Reported(report.verdict)),
    )
}

/// Whether a gate that audited admitted the node although it did not pass.
pub fn was_admitted_by_audit(node: &Value) -> bool {
    record(node).is_some_and(|record| record.sections().any(Record::is_admitted_by_audit))
}

/// Whether a worker has ended.
pub fn has_ended(pod: &Value) -> bool {
    result(pod).is_some()
}

/// 1. A gate taint is removed only after a Passed verdict for the node's current incarnation.
#[derive(Default)]
struct UntaintedByVerdict {
    passed: BTreeMap<(String, u32), WorkerIdentity>,
    /// By name.
    gates: BTreeMap<String, GateState>,
}

#[derive(Default)]
struct GateState {
    uid: String,
    generation: i64,
    changed: Timestamp,
    /// Until when the gate audited, and far in the future while it does. Then it admits every node.
    audits_until: Timestamp,
}

impl UntaintedByVerdict {
    fn observe_gate(&mut self, gate: &Value, at: Timestamp) {
        let state = self.gates.entry(name(gate).to_owned()).or_default();
        state.generation = number(gate, "metadata.generation").unwrap_or_default();
        (state.uid, state.changed) = (uid(gate).to_owned(), at);
        let audits = text(gate, "spec.enforcement") == "Audit";
        state.audits_until = if audits { Timestamp::MAX } else { state.audits_until.min(at) };
    }

    /// Checks the removal of the taint of this gate.
    fn check_removal(
        &self,
        change: &Change,
        gate: &str,
        before: &Value,
        after: &Value,
    ) -> Result<(), String> {
        let record = record(after).ok_or("the taint was removed without a record")?;
        let state = self.gates.get(gate).ok_or("the gate was never there")?;
        // A watch that is cut again and again is seconds behind.
        let watch_delay = SignedDuration::from_secs(20);
        let may_audit = state.audits_until == Timestamp::MAX
            || change.sent.duration_since(state.audits_until) < watch_delay;
        if record.is_admitted_by_audit() {
            let why = "admitted by an audit of a gate that does not audit";
            return if may_audit { Ok(()) } else { Err(why.into()) };
        }
        let verdict = self.passed.get(&(uid(after).to_owned(), record.number));
        let verdict = verdict.ok_or_else(|| format!("worker {} has not passed", record.number))?;
        let boot = text(before, "status.nodeInfo.bootID");
        if verdict.boot_id != boot {
            return Err(format!("the verdict is about boot {}, and this is {boot}", verdict.boot_id));
        }
        let just_changed = change.sent.duration_since(state.changed) < watch_delay;
        let same_gate = (&verdict.gate_uid, verdict.gate_generation) == (&state.uid, state.generation);
        let is_of_another = self.gates.iter().any(|(other, it)| other != gate && it.uid == verdict.gate_uid);
        if is_of_another || (!same_gate && !just_changed) {
            return Err(format!("the verdict is for {verdict:?}, and gate {gate} is {}", state.uid));
        }
        Ok(())
    }
}

impl Invariant for UntaintedByVerdict {
    fn name(&self) -> &'static str {
        "a gate taint is removed only on a Passed verdict for node, boot and gate"
    }

    fn check(&mut self, change: &Change) -> Result<(), String> {
        if let ("nodekeeper.dev/nodegates", Some(gate)) = (change.collection.as_str(), &change.after) {
            self.observe_gate(gate, change.at);
        }
        if let ("pods", Some(pod)) = (change.collection.as_str(), &change.after)
            && let (Some(identity), Some(WorkerResult::Reported(Verdict::Passed))) =
                (identity(pod), result(pod))
        {
            self.passed.insert((identity.node_uid.clone(), identity.number), identity);
        }
        let (Some(before), Some(after)) = (&change.before, &change.after) else { return Ok(()) };
        if change.collection != "nodes" || !is_ours(change) {
            return Ok(());
        }
        for (gate, key) in GATES {
            if has_taint(before, key) && !has_taint(after, key) {
                self.check_removal(change, gate, before, after)?;
            }
        }
        Ok(())
    }
}

/// 6. Nothing that belongs to others is changed.
#[derive(Default)]
struct NothingForeign {
    configuration: Configuration,
}

fn is_ours_by_key(taint: &Value) -> bool {
    GATES.iter().any(|(_, key)| text(taint, "key") == *key)
}

/// The node without our own fields and without those that every write changes.
pub fn foreign(node: &Value) -> Value {
    let mut node = node.clone();
    let taints: Vec<Value> =
        items(&node, "spec.taints").iter().filter(|taint| !is_ours_by_key(taint)).cloned().collect();
    node["spec"]["taints"] = json!(taints);
    let metadata = node["metadata"].as_object_mut().expect("every object has metadata");
    metadata.remove("resourceVersion");
    metadata.remove("managedFields");
    for (map, key) in
        [("labels", LABEL), ("annotations", ANNOTATION), ("annotations", VERIFY), ("annotations", CORDONED)]
    {
        if let Some(map) = metadata.get_mut(map).and_then(Value::as_object_mut) {
            map.remove(key);
        }
    }
    if metadata
        .get("annotations")
        .is_some_and(|map| map.as_object().is_some_and(nodekeeper_sim::value::Map::is_empty))
    {
        metadata.remove("annotations");
    }
    let conditions = items(&node, "status.conditions").iter();
    let conditions: Vec<Value> =
        conditions.filter(|one| text(one, "type") != NETWORK_VERIFIED).cloned().collect();
    node["status"]["conditions"] = json!(conditions);
    node
}

/// The gate or policy without its status, and without what marks an object of the installation.
pub fn without_status(gate: &Value) -> Value {
    let mut gate = gate.clone();
    gate["status"] = Value::Null;
    for (map, key) in [("labels", "app.kubernetes.io/managed-by"), ("annotations", LAST_APPLIED)] {
        let mut entries = gate["metadata"][map].as_object().cloned().unwrap_or_default();
        entries.remove(key);
        gate["metadata"][map] = json!(entries);
    }
    for field in ["resourceVersion", "managedFields"] {
        gate["metadata"][field] = Value::Null;
    }
    gate
}

impl Invariant for NothingForeign {
    fn name(&self) -> &'static str {
        "nothing foreign is changed"
    }

    fn begin(&mut self, cluster: &Cluster) {
        self.configuration = Configuration::of(cluster);
    }

    fn check(&mut self, change: &Change) -> Result<(), String> {
        if !is_ours(change) {
            return Ok(());
        }
        match (change.collection.as_str(), &change.before, &change.after) {
            ("nodes", Some(before), Some(after)) => {
                let (was, is) = (foreign(before), foreign(after));
                if was != is {
                    return Err(format!("{was} became {is}"));
                }
                Ok(())
            }
            ("nodekeeper.dev/nodegates", before, Some(after)) => {
                self.configuration.check(&change.key, before.as_deref(), after)
            }
            ("pods", before, after) => {
                let is_worker =
                    |pod: &Arc<Value>| identity(pod).is_some() && change.key.starts_with(NAMESPACE);
                if before.iter().chain(after).all(is_worker) {
                    Ok(())
                } else {
                    Err("a pod that is no worker".into())
                }
            }
            ("events", None, Some(_)) | ("coordination.k8s.io/leases", _, Some(_)) => Ok(()),
            _ => Err(format!("{} must not be written", change.collection)),
        }
    }
}

/// A node is tainted again only if it was verified, and only because a worker of this boot failed or the node
/// rebooted.
#[derive(Default)]
struct TaintedForCause {
    failed: BTreeSet<(String, u32, String)>,
}

impl Invariant for TaintedForCause {
    fn name(&self) -> &'static str {
        "a node is tainted again only for a failure in this boot or a reboot"
    }

    fn check(&mut self, change: &Change) -> Result<(), String> {
        if let ("pods", Some(pod)) = (change.collection.as_str(), &change.after)
            && let (Some(identity), Some(WorkerResult::Reported(Verdict::Failed))) =
                (identity(pod), result(pod))
        {
            self.failed.insert((identity.node_uid, identity.number, identity.boot_id));
        }
        let (Some(before), Some(after)) = (&change.before, &change.after) else { return Ok(()) };
        let is_tainted = |key: &str| !has_taint(before, key) && has_taint(after, key);
        if change.collection != "nodes" || !is_ours(change) || !GATES.iter().any(|(_, key)| is_tainted(key)) {
            return Ok(());
        }
        let is = record(after).ok_or("no record")?;
        let was = section_before(before, &is).ok_or("the node was not verified")?;
        if !was.is_open() || is.is_open() {
            return Err(format!("{was:?} became {is:?}"));
        }
        let boot = text(after, "status.nodeInfo.bootID").to_owned();
        let booted = was.scope.boot_id != boot && is.verdict == Some(Verdict::Inconclusive);
        if booted || self.failed.contains(&(uid(after).to_owned(), is.number, boot)) {
            return Ok(());
        }
        Err(format!("no worker of this boot failed: {is:?}"))
    }
}

/// 7. A gate that is paused or in dry-run writes no node.
#[derive(Default)]
struct OnlyWhenEnforced {
    /// By name: the uid of the gate, and since when it is not enforced.
    gates: BTreeMap<String, (String, Option<Timestamp>)>,
}

impl OnlyWhenEnforced {
    fn observe_gate(&mut self, change: &Change) {
        let Some(gate) = &change.after else {
            self.gates.remove(&change.key);
            return;
        };
        let is_idle = matches!(text(gate, "spec.enforcement"), "Paused" | "DryRun");
        let before = self.gates.get(&change.key).filter(|(before, _)| before == uid(gate));
        let since = before.and_then(|(_, since)| *since).unwrap_or(change.at);
        self.gates.insert(change.key.clone(), (uid(gate).to_owned(), is_idle.then_some(since)));
    }
}

impl Invariant for OnlyWhenEnforced {
    fn name(&self) -> &'static str {
        "a gate that is paused or in dry-run writes no node"
    }

    fn check(&mut self, change: &Change) -> Result<(), String> {
        if change.collection == "nodekeeper.dev/nodegates" {
            self.observe_gate(change);
        }
        if !is_ours(change) || change.collection != "nodes" {
            return Ok(());
        }
        // Who wrote only a condition cannot be told.
        let of = |object: &Option<Arc<Value>>| object.as_ref().and_then(|node| record(node));
        let written = of(&change.after).filter(|is| of(&change.before).as_ref() != Some(is));
        let writer = written.map(|is| is.scope.gate_uid);
        // The controller's watch may be behind.
        let is_told = |since: &Timestamp| change.sent.duration_since(*since) > SignedDuration::from_secs(20);
        let is_wrong = |(uid, since): &(String, Option<Timestamp>)| {
            since.as_ref().is_some_and(is_told) && writer.as_ref().is_none_or(|writer| *writer == *uid)
        };
        let has_writer = self.gates.values().any(|(uid, _)| writer.as_ref().is_some_and(|one| *one == *uid));
        let idle = self.gates.values().filter(|gate| is_wrong(gate)).count();
        if idle > 0 && (has_writer || idle == self.gates.len()) {
            return Err(format!("the gate is not enforced: {:?}", self.gates));
        }
        Ok(())
    }
}

/// A worker counts once, even if the controller crashes.
#[derive(Default)]
struct CountedOnce {
    endings: BTreeMap<(String, u32), WorkerResult>,
}

impl Invariant for CountedOnce {
    fn name(&self) -> &'static str {
        "an attempt is counted once, and only for a worker that ended with a verdict"
    }

    fn check(&mut self, change: &Change) -> Result<(), String> {
        if let ("pods", Some(pod)) = (change.collection.as_str(), &change.after)
            && let (Some(identity), Some(ending)) = (identity(pod), result(pod))
        {
            self.endings.insert((identity.node_uid, identity.number), ending);
        }
        let (Some(before), Some(after)) = (&change.before, &change.after) else { return Ok(()) };
        if change.collection != "nodes" || !is_ours(change) {
            return Ok(());
        }
        let (all, is) = (record(before).unwrap_or_default(), record(after).ok_or("the record is gone")?);
        if all == is {
            // Only the condition was written.
            return Ok(());
        }
        let was = Record { number: all.number, ..section_before(before, &is).unwrap_or_default() };
        let only_labelled = is.number == was.number && was.unlabelled && !is.unlabelled;
        if is_same_section(&was, &is) && (only_labelled || is.number > was.number) {
            // A withheld label was set, or the number of another gate's worker was noted.
            return Ok(());
        }
        let only_tainted = is.number == was.number && is.retainted && !was.retainted;
        if is.number <= was.number && !only_tainted {
            return Err(format!("worker {} is recorded after worker {}", is.number, was.number));
        }
        let asked =
            was.requested || at(before, "metadata.annotations").is_some_and(|all| all.get(VERIFY).is_some());
        // A request during a running verification is served by the next worker, so the current round may go on. An
        // inconclusive worker leaves its attempts as they were.
        let goes_on = is.workers > 1 && is.attempts >= was.attempts;
        let new_round = is.scope != was.scope || was.verdict == Some(Verdict::Passed) || (asked && !goes_on);
        // The failure that leads to the taint is counted, and then the attempts begin again.
        let tainted = is.retainted && !was.retainted;
        let counted = match (tainted, new_round) {
            (true, _) => is.attempts + u32::from(is.verdict == Some(Verdict::Failed)),
            (false, true) => is.attempts,
            (false, false) => is.attempts - was.attempts,
        };
        let ending = self.endings.get(&(uid(after).to_owned(), is.number));
        let earned =
            u32::from(matches!(ending, Some(WorkerResult::Reported(Verdict::Passed | Verdict::Failed))));
        // A verdict for an earlier boot or gate, or for a node that is no longer Ready, is no attempt. A recorded
        // failure is one.
        let must = u32::from(is.verdict == Some(Verdict::Failed));
        if counted > earned || counted < must {
            return Err(format!(
                "{counted} attempts were counted for worker {}, which ended {ending:?}",
                is.number
            ));
        }
        if is.attempts > is.workers && !only_tainted {
            return Err(format!("{} attempts of {} workers", is.attempts, is.workers));
        }
        Ok(())
    }
}

/// A node has one worker at a time, and no number is used twice.
///
/// A create is guarded only by its name. A delayed one may create a worker again that had ended and was removed
/// before. It has no effect: [`CountedOnce`] checks that no number is recorded twice, and [`HealthyNodesAreVerified`]
/// that the pod is removed.
/// How long a list and the watch after it may be behind, in seconds: lists may break, and are begun again after a backoff.
const WATCH_DELAY: i64 = 60;

#[derive(Default)]
struct OneWorkerAtATime {
    /// By node uid: pods that have not terminated.
    running: BTreeMap<String, BTreeSet<String>>,
    /// By node uid: the record's number.
    recorded: BTreeMap<String, u32>,
    /// By node uid: when a delayed write, of a former leader, recorded that number.
    recorded_late: BTreeMap<String, Timestamp>,
    /// By node uid: the highest number of a worker. A dry run writes no record.
    highest: BTreeMap<String, u32>,
    /// Uids of pods that a delayed create made again.
    recreated: BTreeSet<String>,
}

impl Invariant for OneWorkerAtATime {
    fn name(&self) -> &'static str {
        "one worker at a time on a node, and each number once"
    }

    fn check(&mut self, change: &Change) -> Result<(), String> {
        if change.collection == "nodes"
            && let Some(node) = &change.after
        {
            let number = record(node).map_or(0, |record| record.number);
            if self.recorded.insert(uid(node).to_owned(), number) != Some(number) {
                self.recorded_late.remove(uid(node));
                if change.is_delayed {
                    self.recorded_late.insert(uid(node).to_owned(), change.at);
                }
            }
        }
        let Some(object) = change.after.as_ref().or(change.before.as_ref()) else { return Ok(()) };
        let Some(identity) = identity(object).filter(|_| change.collection == "pods") else { return Ok(()) };
        let recorded = self.recorded.get(&identity.node_uid).copied().unwrap_or_default();
        let highest = self.highest.entry(identity.node_uid.clone()).or_default();
        // A new leader may have listed the node just before the record came, and found the pod deleted by a user. The
        // worker runs again, and its report is not counted.
        let is_late = |at: &Timestamp| change.at.duration_since(*at).as_secs() < WATCH_DELAY;
        let unknown = self.recorded_late.get(&identity.node_uid).is_some_and(is_late);
        if change.before.is_none()
            && ((change.is_delayed && identity.number <= recorded.max(*highest))
                || (unknown && identity.number == recorded))
        {
            self.recreated.insert(uid(object).to_owned());
        }
        *highest = identity.number.max(*highest);
        if self.recreated.contains(uid(object)) {
            return Ok(());
        }
        let here = self.running.entry(identity.node_uid.clone()).or_default();
        if change.after.as_ref().is_none_or(|pod| result(pod).is_some()) {
            here.remove(&change.key);
            return Ok(());
        }
        if change.before.is_none() {
            if let Some(other) = here.first() {
                return Err(format!("worker {} starts while {other} has not ended", identity.number));
            }
            if identity.number <= recorded {
                return Err(format!(
                    "worker {} starts after worker {recorded} was recorded",
                    identity.number
                ));
            }
        }
        here.insert(change.key.clone());
        Ok(())
    }
}

/// 2. A healthy node in a healthy cluster loses its gate taint in time, and no worker is left over.
struct HealthyNodesAreVerified;

impl Invariant for HealthyNodesAreVerified {
    fn name(&self) -> &'static str {
        "a healthy node in a healthy cluster is verified, and no worker is left over"
    }

    fn check(&mut self, _: &Change) -> Result<(), String> {
        Ok(())
    }

    fn check_final(&mut self, cluster: &Cluster) -> Result<(), String> {
        let nodes = cluster.local("invariant").all("nodes");
        let gates = cluster.local("invariant").all("nodekeeper.dev/nodegates");
        let ready: Vec<_> = nodes
            .iter()
            .filter(|node| condition_status(node, "Ready") == "True" && !is_deleting(node))
            .collect();
        if ready.is_empty() {
            return Err("no node is Ready".into());
        }
        for node in ready {
            let why = record(node).map(|record| format!("{record:?}"));
            if is_true(node, "spec.unschedulable") {
                continue;
            }
            if is_gated(node) {
                return Err(format!("{} is Ready and still gated: {why:?}", name(node)));
            }
            let is_labelled =
                at(node, "metadata.labels").and_then(|labels| labels.get(LABEL)) == Some(&json!("true"));
            if !is_labelled && !was_admitted_by_audit(node) {
                return Err(format!("{} is verified and has no label: {why:?}", name(node)));
            }
            all_gates_verified(node, &gates)?;
        }
        let cordoned = |node: &&Arc<Value>| is_true(node, "spec.unschedulable");
        let cordoned: BTreeSet<&str> = nodes.iter().filter(cordoned).map(|node| uid(node)).collect();
        let pods = cluster.local("invariant").all("pods");
        let now = cluster.clock().now();
        // The last worker of a gated node is kept for its logs. A continuous gate may have a running worker.
        let needed = |pod: &&Arc<Value>| {
            let made: Option<Timestamp> = text(pod, "metadata.creationTimestamp").parse().ok();
            let young = made.is_some_and(|made| now.duration_since(made) < SignedDuration::from_mins(1));
            (young && result(pod).is_none())
                || identity(pod).is_some_and(|identity| cordoned.contains(identity.node_uid.as_str()))
        };
        pods.iter()
            .find(|pod| !needed(pod))
            .map_or(Ok(()), |pod| Err(format!("{} is left over: {pod}", name(pod))))
    }
}
