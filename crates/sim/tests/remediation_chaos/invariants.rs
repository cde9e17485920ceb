//! The invariants of remediation at every step of every run: numbers 3, 6, 7, 9 and 10 of DESIGN §8.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use nodekeeper_sim::Cluster;
use nodekeeper_sim::harness::Invariant;
use nodekeeper_sim::network::Network;
use nodekeeper_sim::object::{
    at, condition_status, is_deleting, is_true, items, name, number, take, text, uid,
};
use nodekeeper_sim::store::Change;
use nodekeeper_sim::value::Value;

use super::history::{History, approved, is_cordon, mark, released};
use super::wanted::Wanted;
use super::windows::WithinTheWindows;
use super::{CLAIMS, POLICIES, REMEDIATIONS, reserved};
use crate::gate::configuration::Configuration;
use crate::gate::invariants::{
    foreign, identity, is_control, is_gated, is_ours, without_foreign_writes, without_status,
};

pub const BUDGET: &str = "disruptions are approved, and within the budget";
pub const FOREIGN: &str = "remediation changes nothing foreign";
pub const DRY: &str = "a policy in dry-run disrupts nothing";
pub const PAUSED: &str = "nothing is disrupted during a pause";
pub const FRESH: &str = "nothing is approved on expired evidence";
pub const OUTAGE: &str = "no node is remediated for a cluster-wide DNS outage";

const HOUR: SignedDuration = SignedDuration::from_hours(1);

pub fn all() -> Vec<Box<dyn Invariant>> {
    let mut all = without_foreign_writes();
    all.push(Box::<NothingForeign>::default());
    all.push(Box::<NotInADryRun>::default());
    all.push(Box::<NotInAPause>::default());
    all.push(Box::<OnFreshEvidence>::default());
    all.push(Box::<NotForTheOutage>::default());
    all.push(Box::<WithinTheBudget>::default());
    all.push(Box::<Wanted>::default());
    all.push(Box::<WithinTheWindows>::default());
    all.push(Box::<Settled>::default());
    all
}

/// 3. Disruptions are approved within the budget, and only what is reserved is done.
#[derive(Default)]
struct WithinTheBudget {
    history: History,
    /// The time of each approval, and the remediation.
    approved: Vec<(Timestamp, String)>,
    /// Uids of disrupted nodes.
    touched: BTreeSet<String>,
}

impl WithinTheBudget {
    fn check_approval(&mut self, change: &Change) -> Result<(), String> {
        let Some(policy) = &change.after else {
            // A reservation that was neither acted on nor recorded elsewhere is lost with the policy. A request records its
            // last approval.
            let last: BTreeMap<String, Timestamp> =
                self.approved.iter().map(|(at, name)| (name.clone(), *at)).collect();
            let is_known = |name: &String| {
                self.touched.contains(name)
                    || self
                        .history
                        .requests
                        .get(name)
                        .is_some_and(|one| at(one, "status.approvedAt").is_some())
            };
            self.approved.retain(|(at, name)| is_known(name) && last.get(name) == Some(at));
            return Ok(());
        };
        for one in released(change, &self.history) {
            let position = self.approved.iter().rposition(|(_, name)| *name == text(one, "remediation"));
            position.map(|position| self.approved.remove(position));
        }
        for one in approved(change) {
            self.approved.push((change.at, text(one, "remediation").to_owned()));
            let lately = self.approved.iter().filter(|(at, _)| change.at.duration_since(*at) < HOUR).count();
            let in_flight = reserved(policy).filter(|one| at(one, "ended").is_none()).count();
            for (count, field) in [(lately, "maxPerHour"), (in_flight, "maxInFlight")] {
                let most = number(policy, &format!("spec.budget.{field}")).unwrap_or_default();
                if i64::try_from(count).unwrap_or(i64::MAX) > most {
                    return Err(format!(
                        "{count} disruptions exceed `{field}` of {most}: {:?}",
                        self.approved
                    ));
                }
            }
        }
        Ok(())
    }

    fn check_disruption(&mut self, change: &Change) -> Result<(), String> {
        let Some(node) = self.history.disruption(change) else { return Ok(()) };
        let is_reserved = |policy: Option<&Value>| {
            // One that was restored names neither request nor boot, and permits nothing. [`Wanted`] compares both.
            let is_it = |one: &Value| {
                let is_complete = !text(one, "uid").is_empty() && !text(one, "bootID").is_empty();
                text(one, "remediation") == uid(&node) && at(one, "ended").is_none() && is_complete
            };
            policy.is_some_and(|policy| reserved(policy).any(is_it))
        };
        if !self.history.possibly_observed(change, is_reserved) {
            return Err(format!("the disruption of {} was not approved", name(&node)));
        }
        self.touched.insert(uid(&node).to_owned());
        Ok(())
    }
}

impl Invariant for WithinTheBudget {
    fn name(&self) -> &'static str {
        BUDGET
    }

    fn check(&mut self, change: &Change) -> Result<(), String> {
        let wrong = if change.collection == POLICIES {
            self.check_approval(change)
        } else {
            self.check_disruption(change)
        };
        self.history.record(change);
        wrong
    }
}

/// 6. Only our own annotations and cordons change, claims are only deleted, pods only evicted.
#[derive(Default)]
struct NothingForeign {
    configuration: Configuration,
}

fn without_cordon(node: &Value) -> Value {
    let mut node = foreign(node);
    take(&mut node, "spec.unschedulable");
    node
}

fn check_node(change: &Change, before: &Value, after: &Value) -> Result<(), String> {
    if change.deleted().is_some() {
        return Ok(());
    }
    let (was, is) = (without_cordon(before), without_cordon(after));
    if was != is {
        return Err(format!("{was} became {is}"));
    }
    let cordoned = |node: &Value| is_true(node, "spec.unschedulable");
    match (cordoned(before), cordoned(after)) {
        (true, false) if mark(before).is_none() => Err("a foreign cordon was reverted".into()),
        (false, true) if mark(after).is_none() => Err("a cordon without our annotation".into()),
        _ => Ok(()),
    }
}

fn check_pod(change: &Change) -> Result<(), String> {
    let is_own = |pod: &Value| identity(pod).is_some() || is_control(pod);
    let evicted = |pod: &Value| condition_status(pod, "DisruptionTarget") == "True";
    let pod = change.before.as_ref().or(change.after.as_ref()).ok_or("no pod")?;
    if is_own(pod) || change.is_eviction() || change.after.as_ref().is_some_and(|pod| evicted(pod)) {
        return Ok(());
    }
    Err("a pod that is no worker was deleted without eviction".into())
}

impl Invariant for NothingForeign {
    fn name(&self) -> &'static str {
        FOREIGN
    }

    fn begin(&mut self, cluster: &Cluster) {
        self.configuration = Configuration::of(cluster);
    }

    fn check(&mut self, change: &Change) -> Result<(), String> {
        if !is_ours(change) {
            return Ok(());
        }
        match (change.collection.as_str(), &change.before, &change.after) {
            ("nodes", Some(before), Some(after)) => check_node(change, before, after),
            ("nodekeeper.dev/nodegates", before, Some(after)) => {
                self.configuration.check(&change.key, before.as_deref(), after)
            }
            (POLICIES, Some(before), Some(after)) => {
                let same = without_status(before) == without_status(after);
                same.then_some(()).ok_or_else(|| format!("{before} became {after}"))
            }
            ("pods", ..) => check_pod(change),
            ("nodes", Some(_), None)
            | (REMEDIATIONS, ..)
            | ("events", None, Some(_))
            | ("coordination.k8s.io/leases", _, Some(_)) => Ok(()),
            (CLAIMS, Some(_), _) if change.deleted().is_some() => Ok(()),
            _ => Err(format!("{} must not be written", change.collection)),
        }
    }
}

/// 7. Without a policy, or with one in dry-run, nothing is deleted, evicted or cordoned.
#[derive(Default)]
struct NotInADryRun(History);

impl Invariant for NotInADryRun {
    fn name(&self) -> &'static str {
        DRY
    }

    fn check(&mut self, change: &Change) -> Result<(), String> {
        let enforces =
            |policy: Option<&Value>| policy.is_some_and(|one| text(one, "spec.enforcement") == "Enforce");
        let wrong = match self.0.disruption(change) {
            Some(node) if !self.0.possibly_observed(change, enforces) => {
                Err(format!("{} is disrupted", name(&node)))
            }
            _ => Ok(()),
        };
        self.0.record(change);
        wrong
    }
}

/// 9. Nothing is disrupted during a pause that the controller could know of.
#[derive(Default)]
struct NotInAPause(History);

impl Invariant for NotInAPause {
    fn name(&self) -> &'static str {
        PAUSED
    }

    fn check(&mut self, change: &Change) -> Result<(), String> {
        let goes_on = |policy: Option<&Value>| policy.is_none_or(|one| at(one, "spec.pause").is_none());
        let wrong = match self.0.disruption(change) {
            Some(node) if !self.0.possibly_observed(change, goes_on) => {
                Err(format!("{} is disrupted", name(&node)))
            }
            _ => Ok(()),
        };
        self.0.record(change);
        wrong
    }
}

/// 9. Expired evidence is not acted on.
#[derive(Default)]
struct OnFreshEvidence(History);

/// Clocks jump by up to a minute, possibly more than once.
pub const CLOCK_JUMPS: SignedDuration = SignedDuration::from_mins(4);

impl Invariant for OnFreshEvidence {
    fn name(&self) -> &'static str {
        FRESH
    }

    fn check(&mut self, change: &Change) -> Result<(), String> {
        let mut wrong = Ok(());
        for one in approved(change) {
            let allowed = change.after.as_ref().and_then(|policy| number(policy, "spec.evidenceSeconds"));
            let allowed = SignedDuration::from_secs(allowed.unwrap_or_default()) + CLOCK_JUMPS;
            let request = self.0.requests.get(text(one, "remediation"));
            let seen = request.and_then(|request| self.0.evidence(request));
            let is_fresh = seen.is_some_and(|seen| change.sent.duration_since(seen) <= allowed);
            if !is_fresh {
                wrong = Err(format!("{one} is approved on evidence of {seen:?}"));
            }
        }
        self.0.record(change);
        wrong
    }
}

/// 10. No node is remediated for a cluster-wide DNS outage, unless that was approved before it could be detected.
#[derive(Default)]
struct NotForTheOutage {
    history: History,
    network: Option<Network>,
    since: Option<Timestamp>,
}

/// An approval may rest on what a watch told before, which may be behind.
const STALENESS: SignedDuration = SignedDuration::from_secs(45);

/// How long a control result from before the outage stays valid.
const CONTROL_RESULT_VALIDITY: SignedDuration = SignedDuration::from_mins(2);

impl NotForTheOutage {
    fn update_outage(&mut self, now: Timestamp) {
        let works = self.network.as_ref().is_none_or(|network| network.resolves("", ""));
        self.since = if works { None } else { self.since.or(Some(now)) };
    }

    /// Whether a remediation was requested by a gate alone, and for DNS alone.
    fn is_for_dns(&self, request: &str) -> bool {
        let Some(request) = self.history.requests.get(request) else { return false };
        items(request, "spec.causes").iter().all(|cause| {
            let checks = items(cause, "checks");
            text(cause, "source") == "Gate"
                && !checks.is_empty()
                && checks.iter().all(|one| text(one, "name") == "dns")
        })
    }

    fn check_outage(&self, change: &Change) -> Result<(), String> {
        let Some(since) = self.since else { return Ok(()) };
        let lasts = change.sent.duration_since(since);
        for one in approved(change) {
            let request = text(one, "remediation");
            if lasts > CONTROL_RESULT_VALIDITY + STALENESS && self.is_for_dns(request) {
                return Err(format!("{one} is approved during a DNS outage since {since}"));
            }
        }
        let Some(node) = self.history.disruption(change).filter(|_| !is_cordon(change)) else {
            return Ok(());
        };
        let zone = &node["metadata"]["labels"]["topology.kubernetes.io/zone"];
        let unknown = |policy: Option<&Value>| {
            let is_it = |down: &Value| down["zone"] == *zone && text(down, "check") == "dns";
            !policy.is_some_and(|policy| items(policy, "status.down").iter().any(is_it))
        };
        if self.is_for_dns(uid(&node)) && !self.history.possibly_observed(change, unknown) {
            return Err(format!("{} is disrupted for a known shared outage", name(&node)));
        }
        Ok(())
    }
}

impl Invariant for NotForTheOutage {
    fn name(&self) -> &'static str {
        OUTAGE
    }

    fn begin(&mut self, cluster: &Cluster) {
        self.network = Some(cluster.network().clone());
    }

    fn check(&mut self, change: &Change) -> Result<(), String> {
        self.update_outage(change.at);
        let wrong = self.check_outage(change);
        self.history.record(change);
        wrong
    }
}

/// In the end healthy nodes are verified, no cordon of ours is left, disruptions have ended, and no control worker is
/// left.
#[derive(Default)]
struct Settled;

const MAX_DISRUPTION: SignedDuration = SignedDuration::from_mins(4);
const MAX_CONTROL_RUN: SignedDuration = SignedDuration::from_mins(5);

fn age(cluster: &Cluster, object: &Value, path: &str) -> SignedDuration {
    let since: Option<Timestamp> = text(object, path).parse().ok();
    since.map_or(SignedDuration::MAX, |since| cluster.clock().now().duration_since(since))
}

fn check_final_node(
    cluster: &Cluster,
    node: &Value,
    disruptions: &BTreeMap<&str, &Value>,
) -> Result<(), String> {
    let act = disruptions.get(uid(node));
    if mark(node).is_some() && act.is_none() {
        return Err(format!("{} has our cordon without a disruption", name(node)));
    }
    let zone = node["metadata"]["labels"]["topology.kubernetes.io/zone"].as_str().unwrap_or_default();
    let is_well = condition_status(node, "Ready") == "True" && cluster.network().resolves(name(node), zone);
    let is_expected = is_well && !is_true(node, "spec.unschedulable") && act.is_none();
    // A new node is still being verified.
    let is_new = age(cluster, node, "metadata.creationTimestamp") < MAX_DISRUPTION;
    if is_expected && !is_new && is_gated(node) {
        return Err(format!("{} is Ready, healthy and still gated", name(node)));
    }
    Ok(())
}

impl Invariant for Settled {
    fn name(&self) -> &'static str {
        "healthy nodes are verified, and disruptions and control runs end"
    }

    fn check(&mut self, _: &Change) -> Result<(), String> {
        Ok(())
    }

    fn check_final(&mut self, cluster: &Cluster) -> Result<(), String> {
        let api = cluster.local("invariant");
        let policy = api.get(POLICIES, "", "default");
        let in_flight =
            policy.iter().flat_map(|policy| reserved(policy)).filter(|one| at(one, "ended").is_none());
        let disruptions: BTreeMap<&str, &Value> =
            in_flight.map(|one| (text(one, "remediation"), one)).collect();
        for (request, act) in &disruptions {
            // Deleting a remediation does not end its reservation, which lasts for two hours.
            if api.get(REMEDIATIONS, "", request).is_some()
                && age(cluster, act, "at") > MAX_DISRUPTION + CLOCK_JUMPS
            {
                return Err(format!("{act} has not ended"));
            }
        }
        for node in api.all("nodes").iter().filter(|node| !is_deleting(node)) {
            check_final_node(cluster, node, &disruptions)?;
        }
        let is_old =
            |pod: &&std::sync::Arc<Value>| age(cluster, pod, "metadata.creationTimestamp") > MAX_CONTROL_RUN;
        let left = api.all("pods");
        left.iter()
            .find(|pod| is_control(pod) && is_old(pod))
            .map_or(Ok(()), |pod| Err(format!("{} is left over", name(pod))))
    }
}
