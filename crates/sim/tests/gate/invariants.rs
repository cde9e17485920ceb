//! The invariants of the gate at every step of every run: numbers 1, 2 and 6 of DESIGN §8, and what they depend on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodekeeper_core::checks::WorkerIdentity;
use nodekeeper_core::node::{CORDONED, VERIFY};
use nodekeeper_core::reasons::NETWORK_VERIFIED;
use nodekeeper_core::record::{ANNOTATION, Record};
use nodekeeper_core::report::{self, Verdict};
use nodekeeper_sim::Cluster;
use nodekeeper_sim::harness::Invariant;
use nodekeeper_sim::object::{at, condition_status, is_deleting, is_true, items, name, number, text, uid};
use nodekeeper_sim::store::Change;
use nodekeeper_sim::value::{Value, json};

use super::{LABEL, NAMESPACE, TAINT, reports};

pub fn all() -> Vec<Box<dyn Invariant>> {
    let mut all: Vec<Box<dyn Invariant>> = vec![
        Box::<UntaintedByVerdict>::default(),
        Box::new(NothingForeign),
        Box::<TaintedForCause>::default(),
        Box::<OnlyWhenEnforced>::default(),
        Box::<CountedOnce>::default(),
        Box::<OneWorkerAtATime>::default(),
        Box::<OnlyTheLeaderWrites>::default(),
        Box::new(HealthyNodesAreVerified),
    ];
    all.extend(reports::all());
    all
}

/// The invariants that also hold while nodes are remediated.
pub fn without_foreign_writes() -> Vec<Box<dyn Invariant>> {
    let mut all: Vec<Box<dyn Invariant>> = vec![
        Box::<UntaintedByVerdict>::default(),
        Box::<TaintedForCause>::default(),
        Box::<OneWorkerAtATime>::default(),
        Box::<OnlyTheLeaderWrites>::default(),
    ];
    all.extend(reports::all());
    all
}

pub fn is_ours(change: &Change) -> bool {
    change.writer().starts_with("replica-")
}

pub fn is_gated(node: &Value) -> bool {
    items(node, "spec.taints").iter().any(|taint| text(taint, "key") == TAINT)
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
    record(node).is_some_and(|record| record.audited && record.verdict != Some(Verdict::Passed))
}

/// Whether a worker has ended.
pub fn has_ended(pod: &Value) -> bool {
    result(pod).is_some()
}

/// 1. A gate taint is removed only after a Passed verdict for the node's current incarnation.
#[derive(Default)]
struct UntaintedByVerdict {
    passed: BTreeMap<(String, u32), WorkerIdentity>,
    /// Uid and generation of the gate, and the time of its last change.
    gate: (String, i64, Timestamp),
    /// Until when the gate audited, and far in the future while it does. Then it admits every node.
    audits_until: Timestamp,
}

impl Invariant for UntaintedByVerdict {
    fn name(&self) -> &'static str {
        "a gate taint is removed only on a Passed verdict for node, boot and gate"
    }

    fn check(&mut self, change: &Change) -> Result<(), String> {
        if let ("nodekeeper.dev/nodegates", Some(gate)) = (change.collection.as_str(), &change.after) {
            let generation = number(gate, "metadata.generation").unwrap_or_default();
            self.gate = (uid(gate).to_owned(), generation, change.at);
            let audits = text(gate, "spec.enforcement") == "Audit";
            self.audits_until = if audits { Timestamp::MAX } else { self.audits_until.min(change.at) };
        }
        if let ("pods", Some(pod)) = (change.collection.as_str(), &change.after)
            && let (Some(identity), Some(WorkerResult::Reported(Verdict::Passed))) =
                (identity(pod), result(pod))
        {
            self.passed.insert((identity.node_uid.clone(), identity.number), identity);
        }
        let (Some(before), Some(after)) = (&change.before, &change.after) else { return Ok(()) };
        if change.collection != "nodes" || !is_ours(change) || !is_gated(before) || is_gated(after) {
            return Ok(());
        }
        let record = record(after).ok_or("the taint was removed without a record")?;
        // A watch that is cut again and again is seconds behind.
        let watch_delay = SignedDuration::from_secs(20);
        let may_audit = self.audits_until == Timestamp::MAX
            || change.sent().duration_since(self.audits_until) < watch_delay;
        if record.audited && record.verdict != Some(Verdict::Passed) {
            let why = "admitted by an audit of a gate that does not audit";
            return if may_audit { Ok(()) } else { Err(why.into()) };
        }
        let verdict = self.passed.get(&(uid(after).to_owned(), record.number));
        let verdict = verdict.ok_or_else(|| format!("worker {} has not passed", record.number))?;
        let boot = text(before, "status.nodeInfo.bootID");
        if verdict.boot_id != boot {
            return Err(format!("the verdict is about boot {}, and this is {boot}", verdict.boot_id));
        }
        let just_changed = change.sent().duration_since(self.gate.2) < watch_delay;
        let same_gate = (&verdict.gate_uid, verdict.gate_generation) == (&self.gate.0, self.gate.1);
        if !same_gate && !just_changed {
            return Err(format!("the verdict is for {verdict:?}, and the gate is {:?}", self.gate));
        }
        Ok(())
    }
}

/// 6. Nothing that belongs to others is changed.
struct NothingForeign;

/// The node without our own fields and without those that every write changes.
pub fn foreign(node: &Value) -> Value {
    let mut node = node.clone();
    let taints: Vec<Value> =
        items(&node, "spec.taints").iter().filter(|taint| text(taint, "key") != TAINT).cloned().collect();
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

/// The gate or policy without its status.
pub fn without_status(gate: &Value) -> Value {
    let mut gate = gate.clone();
    gate["status"] = Value::Null;
    for field in ["resourceVersion", "managedFields"] {
        gate["metadata"][field] = Value::Null;
    }
    gate
}

impl Invariant for NothingForeign {
    fn name(&self) -> &'static str {
        "nothing foreign is changed"
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
            ("nodekeeper.dev/nodegates", Some(before), Some(after)) => {
                let same = without_status(before) == without_status(after);
                same.then_some(()).ok_or_else(|| format!("{before} became {after}"))
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
        if change.collection != "nodes" || !is_ours(change) || is_gated(before) || !is_gated(after) {
            return Ok(());
        }
        let (was, is) =
            (record(before).ok_or("the node was not verified")?, record(after).ok_or("no record")?);
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
    /// Since when the gate is not enforced.
    idle: Option<Timestamp>,
}

impl Invariant for OnlyWhenEnforced {
    fn name(&self) -> &'static str {
        "a gate that is paused or in dry-run writes no node"
    }

    fn check(&mut self, change: &Change) -> Result<(), String> {
        if change.collection == "nodekeeper.dev/nodegates" {
            let is_idle = |gate: &Value| matches!(text(gate, "spec.enforcement"), "Paused" | "DryRun");
            let idle = change.after.as_ref().is_some_and(|gate| is_idle(gate));
            self.idle = if idle { self.idle.or(Some(change.at)) } else { None };
        }
        // The controller's watch may be behind.
        let told = self
            .idle
            .is_some_and(|since| change.sent().duration_since(since) > SignedDuration::from_secs(20));
        if told && is_ours(change) && change.collection == "nodes" {
            return Err(format!("the gate is not enforced since {:?}", self.idle));
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
        let (was, is) = (record(before).unwrap_or_default(), record(after).ok_or("the record is gone")?);
        if was == is {
            // Only the condition was written.
            return Ok(());
        }
        let only_tainted = is.number == was.number && is.retainted && !was.retainted;
        if is.number <= was.number && !only_tainted {
            return Err(format!("worker {} is recorded after worker {}", is.number, was.number));
        }
        let asked = at(before, "metadata.annotations").is_some_and(|all| all.get(VERIFY).is_some());
        // A request during a running verification is served by the next worker, so the current round may go on. An
        // inconclusive worker leaves its attempts as they were.
        let goes_on = is.workers > 1 && is.attempts >= was.attempts;
        let new_round = is.scope != was.scope || was.verdict == Some(Verdict::Passed) || (asked && !goes_on);
        let counted = is.attempts - if new_round { 0 } else { was.attempts };
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
                if change.was_delayed() {
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
            && ((change.was_delayed() && identity.number <= recorded.max(*highest))
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

/// Only the holder of the lease sends writes. A write that is not delayed is also applied within that time; the other
/// invariants cover delayed ones.
#[derive(Default)]
struct OnlyTheLeaderWrites {
    /// The holder at each write of the lease.
    holders: Vec<(Timestamp, String)>,
}

impl Invariant for OnlyTheLeaderWrites {
    fn name(&self) -> &'static str {
        "only the holder of the lease writes"
    }

    fn check(&mut self, change: &Change) -> Result<(), String> {
        if change.collection == "coordination.k8s.io/leases" && change.key.starts_with(NAMESPACE) {
            let lease = change.after.as_deref().cloned().unwrap_or_default();
            self.holders.push((change.at, text(&lease, "spec.holderIdentity").to_owned()));
            return Ok(());
        }
        if !is_ours(change) {
            return Ok(());
        }
        let sent = change.sent();
        let (renewed, holder) =
            self.holders.iter().rev().find(|(at, _)| *at <= sent).ok_or("the lease had no holder")?;
        if !holder.starts_with(&format!("{}_", change.writer())) {
            return Err(format!("the holder was {holder:?} when it was sent"));
        }
        let age = sent.duration_since(*renewed);
        if age >= SignedDuration::from_secs(15) {
            return Err(format!("its lease had been renewed {age:?} ago"));
        }
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
