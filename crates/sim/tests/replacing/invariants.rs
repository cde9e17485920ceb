//! What must hold at every step where nodes are replaced, whatever goes wrong: DESIGN §8, numbers 3, 6, 7, 9 and 10.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use nodekeeper_sim::Cluster;
use nodekeeper_sim::harness::Invariant;
use nodekeeper_sim::network::Network;
use nodekeeper_sim::object::{
    at, condition_status, is_deleting, is_true, items, name, number, take, text, uid,
};
use nodekeeper_sim::store::Change;
use serde_json::Value;

use super::ledger::{BEHIND, Ledger, approved, is_cordon, mark};
use super::{CLAIMS, POLICIES, REQUESTS, reserved};
use crate::gate::invariants::{asked_for, foreign, identity, is_control, is_gated, is_ours, of_opening};

pub const BUDGET: &str = "no more is done than the budget allows, and only what was approved";
pub const FOREIGN: &str = "nothing foreign is changed where nodes are replaced";
pub const DRY: &str = "who only looks does nothing destructive";
pub const PAUSED: &str = "nothing destructive happens in a pause";
pub const FRESH: &str = "nothing is approved for what was seen too long ago";
pub const OUTAGE: &str = "nobody is replaced for DNS that is down for all";

const HOUR: SignedDuration = SignedDuration::from_hours(1);

pub fn all() -> Vec<Box<dyn Invariant>> {
    let mut all = of_opening();
    all.push(Box::<NothingForeign>::default());
    all.push(Box::<NotInADryRun>::default());
    all.push(Box::<NotInAPause>::default());
    all.push(Box::<OnFreshEvidence>::default());
    all.push(Box::<NotForTheOutage>::default());
    all.push(Box::<WithinTheBudget>::default());
    all.push(Box::<Settled>::default());
    all
}

/// 3. Acts are approved within the budget, and only what is reserved is done.
#[derive(Default)]
struct WithinTheBudget {
    ledger: Ledger,
    /// By request: when it was approved.
    approved: Vec<(Timestamp, String)>,
    /// Nodes that something was done to.
    touched: BTreeSet<String>,
}

impl WithinTheBudget {
    fn check_approval(&mut self, change: &Change) -> Result<(), String> {
        let Some(policy) = &change.after else {
            // What never began and was never written elsewhere is forgotten with the policy.
            let is_known = |name: &String| {
                self.touched.contains(name)
                    || self
                        .ledger
                        .requests
                        .get(name)
                        .is_some_and(|one| at(one, "status.approvedAt").is_some())
            };
            self.approved.retain(|(_, name)| is_known(name));
            return Ok(());
        };
        for one in approved(change) {
            self.approved.push((change.at, text(one, "remediation").to_owned()));
            let lately = self.approved.iter().filter(|(at, _)| change.at.duration_since(*at) < HOUR).count();
            let in_flight = reserved(policy).filter(|one| at(one, "ended").is_none()).count();
            for (count, field) in [(lately, "maxPerHour"), (in_flight, "maxInFlight")] {
                let most = number(policy, &format!("spec.budget.{field}")).unwrap_or_default();
                if i64::try_from(count).unwrap_or(i64::MAX) > most {
                    return Err(format!("{count} acts, and `{field}` is {most}: {:?}", self.approved));
                }
            }
        }
        Ok(())
    }

    fn check_act(&mut self, change: &Change) -> Result<(), String> {
        let Some(node) = self.ledger.act(change) else { return Ok(()) };
        let is_reserved = |policy: Option<&Value>| {
            let is_it = |one: &Value| text(one, "remediation") == uid(&node) && at(one, "ended").is_none();
            policy.is_some_and(|policy| reserved(policy).any(is_it))
        };
        if !self.ledger.may_have_seen(change, is_reserved) {
            return Err(format!("nobody approved anything for {}", name(&node)));
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
        let wrong =
            if change.collection == POLICIES { self.check_approval(change) } else { self.check_act(change) };
        self.ledger.learn(change);
        wrong
    }
}

/// 6. Only our own marks and cordons are changed, claims are only deleted, pods only evicted.
#[derive(Default)]
struct NothingForeign;

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
        (true, false) if mark(before).is_none() => Err("a cordon that is not ours was undone".into()),
        (false, true) if mark(after).is_none() => Err("a cordon without our mark".into()),
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
    Err("a pod that is no worker was not evicted".into())
}

impl Invariant for NothingForeign {
    fn name(&self) -> &'static str {
        FOREIGN
    }

    fn check(&mut self, change: &Change) -> Result<(), String> {
        if !is_ours(change) {
            return Ok(());
        }
        match (change.collection.as_str(), &change.before, &change.after) {
            ("nodes", Some(before), Some(after)) => check_node(change, before, after),
            ("nodekeeper.dev/nodegates" | POLICIES, Some(before), Some(after)) => {
                let same = asked_for(before) == asked_for(after);
                same.then_some(()).ok_or_else(|| format!("{before} became {after}"))
            }
            ("pods", ..) => check_pod(change),
            ("nodes", Some(_), None)
            | (REQUESTS, ..)
            | ("events", None, Some(_))
            | ("coordination.k8s.io/leases", _, Some(_)) => Ok(()),
            (CLAIMS, Some(_), _) if change.deleted().is_some() => Ok(()),
            _ => Err(format!("{} is not ours to touch", change.collection)),
        }
    }
}

/// 7. A policy that is missing or only looks: nothing is deleted, evicted or cordoned.
#[derive(Default)]
struct NotInADryRun(Ledger);

impl Invariant for NotInADryRun {
    fn name(&self) -> &'static str {
        DRY
    }

    fn check(&mut self, change: &Change) -> Result<(), String> {
        let enforces =
            |policy: Option<&Value>| policy.is_some_and(|one| text(one, "spec.enforcement") == "Enforce");
        let wrong = match self.0.act(change) {
            Some(node) if !self.0.may_have_seen(change, enforces) => {
                Err(format!("something is done to {}", name(&node)))
            }
            _ => Ok(()),
        };
        self.0.learn(change);
        wrong
    }
}

/// 9. Nothing is issued in a pause that its writer can know of.
#[derive(Default)]
struct NotInAPause(Ledger);

impl Invariant for NotInAPause {
    fn name(&self) -> &'static str {
        PAUSED
    }

    fn check(&mut self, change: &Change) -> Result<(), String> {
        let goes_on = |policy: Option<&Value>| policy.is_none_or(|one| at(one, "spec.pause").is_none());
        let wrong = match self.0.act(change) {
            Some(node) if !self.0.may_have_seen(change, goes_on) => {
                Err(format!("something is done to {}", name(&node)))
            }
            _ => Ok(()),
        };
        self.0.learn(change);
        wrong
    }
}

/// 9. What was seen too long ago is not acted on.
#[derive(Default)]
struct OnFreshEvidence(Ledger);

/// Clocks jump by a minute, some of them more than once.
const JUMPS: SignedDuration = SignedDuration::from_mins(4);

impl Invariant for OnFreshEvidence {
    fn name(&self) -> &'static str {
        FRESH
    }

    fn check(&mut self, change: &Change) -> Result<(), String> {
        let mut wrong = Ok(());
        for one in approved(change) {
            let allowed = change.after.as_ref().and_then(|policy| number(policy, "spec.evidenceSeconds"));
            let allowed = SignedDuration::from_secs(allowed.unwrap_or_default()) + JUMPS;
            let request = self.0.requests.get(text(one, "remediation"));
            let seen = request.and_then(|request| self.0.evidence(request));
            let is_fresh = seen.is_some_and(|seen| change.sent().duration_since(seen) <= allowed);
            if !is_fresh {
                wrong = Err(format!("{one} is approved, and what it is for was seen at {seen:?}"));
            }
        }
        self.0.learn(change);
        wrong
    }
}

/// 10. While DNS is down for all nobody is replaced for it, but for what was approved before anybody could tell.
#[derive(Default)]
struct NotForTheOutage {
    ledger: Ledger,
    network: Option<Network>,
    since: Option<Timestamp>,
}

/// What nodes that work told after the failure, and before it began, may be believed for so long.
const TOLD: SignedDuration = SignedDuration::from_mins(2);

impl NotForTheOutage {
    fn look_at_dns(&mut self, now: Timestamp) {
        let works = self.network.as_ref().is_none_or(|network| network.resolves("", ""));
        self.since = if works { None } else { self.since.or(Some(now)) };
    }

    /// Whether a gate alone asks for it, for DNS alone.
    fn is_for_dns(&self, request: &str) -> bool {
        let Some(request) = self.ledger.requests.get(request) else { return false };
        items(request, "spec.causes").iter().all(|cause| {
            let checks = items(cause, "checks");
            text(cause, "source") == "Gate"
                && !checks.is_empty()
                && checks.iter().all(|one| text(one, "name") == "dns")
        })
    }

    fn look_at(&self, change: &Change) -> Result<(), String> {
        let Some(since) = self.since else { return Ok(()) };
        let lasts = change.sent().duration_since(since);
        for one in approved(change) {
            let request = text(one, "remediation");
            if lasts > TOLD + BEHIND && self.is_for_dns(request) {
                return Err(format!("{one} is approved, and DNS is down since {since}"));
            }
        }
        let Some(node) = self.ledger.act(change).filter(|_| !is_cordon(change)) else { return Ok(()) };
        let zone = &node["metadata"]["labels"]["topology.kubernetes.io/zone"];
        let unknown = |policy: Option<&Value>| {
            let is_it = |down: &Value| down["zone"] == *zone && text(down, "check") == "dns";
            !policy.is_some_and(|policy| items(policy, "status.down").iter().any(is_it))
        };
        if self.is_for_dns(uid(&node)) && !self.ledger.may_have_seen(change, unknown) {
            return Err(format!("{} is known not to be the one that is wrong", name(&node)));
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
        self.look_at_dns(change.at);
        let wrong = self.look_at(change);
        self.ledger.learn(change);
        wrong
    }
}

/// In the end nodes that are well are open, no cordon of ours is left without an act, acts have come to their ends,
/// and nobody is compared with for nothing.
#[derive(Default)]
struct Settled;

const ACT: SignedDuration = SignedDuration::from_mins(4);
const COMPARISON: SignedDuration = SignedDuration::from_mins(5);

fn age(cluster: &Cluster, object: &Value, path: &str) -> SignedDuration {
    let since: Option<Timestamp> = text(object, path).parse().ok();
    since.map_or(SignedDuration::MAX, |since| cluster.clock().now().duration_since(since))
}

fn check_node_in_the_end(
    cluster: &Cluster,
    node: &Value,
    acts: &BTreeMap<&str, &Value>,
) -> Result<(), String> {
    let act = acts.get(uid(node));
    if mark(node).is_some() && act.is_none() {
        return Err(format!("{} is cordoned by us, and nothing is done to it", name(node)));
    }
    let zone = node["metadata"]["labels"]["topology.kubernetes.io/zone"].as_str().unwrap_or_default();
    let is_well = condition_status(node, "Ready") == "True" && cluster.network().resolves(name(node), zone);
    let is_waited_for = is_well && !is_true(node, "spec.unschedulable") && act.is_none();
    // One that came a moment ago is on its way.
    let is_new = age(cluster, node, "metadata.creationTimestamp") < ACT;
    if is_waited_for && !is_new && is_gated(node) {
        return Err(format!("{} is Ready, well and still gated", name(node)));
    }
    Ok(())
}

impl Invariant for Settled {
    fn name(&self) -> &'static str {
        "healthy nodes are open, and acts and comparisons come to an end"
    }

    fn check(&mut self, _: &Change) -> Result<(), String> {
        Ok(())
    }

    fn finally(&mut self, cluster: &Cluster) -> Result<(), String> {
        let api = cluster.local("invariant");
        let policy = api.get(POLICIES, "", "default");
        let in_flight =
            policy.iter().flat_map(|policy| reserved(policy)).filter(|one| at(one, "ended").is_none());
        let acts: BTreeMap<&str, &Value> = in_flight.map(|one| (text(one, "remediation"), one)).collect();
        for (request, act) in &acts {
            // Who deletes the request of an act ends nothing: it is reserved for two hours.
            if api.get(REQUESTS, "", request).is_some() && age(cluster, act, "at") > ACT + JUMPS {
                return Err(format!("{act} has not come to an end"));
            }
        }
        for node in api.all("nodes").iter().filter(|node| !is_deleting(node)) {
            check_node_in_the_end(cluster, node, &acts)?;
        }
        let is_old =
            |pod: &&std::sync::Arc<Value>| age(cluster, pod, "metadata.creationTimestamp") > COMPARISON;
        let left = api.all("pods");
        left.iter()
            .find(|pod| is_control(pod) && is_old(pod))
            .map_or(Ok(()), |pod| Err(format!("{} is left over", name(pod))))
    }
}
