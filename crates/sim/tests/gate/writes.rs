//! What the controller sends: only while it holds the lease, and never without end.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use http::Method;
use jiff::{SignedDuration, Timestamp};
use nodekeeper_sim::harness::Invariant;
use nodekeeper_sim::object::{number, text, uid};
use nodekeeper_sim::store::Change;
use nodekeeper_sim::transport::SentWrite;
use nodekeeper_sim::value::Value;

use super::NAMESPACE;
use super::invariants::is_ours;

pub const LEASE: &str = "only the holder of the lease writes";
pub const BOUNDED: &str = "writes of one object, and Events about it, are bounded";

/// A leader sends no write so long after it sent its last successful renewal.
const RENEW_DEADLINE: SignedDuration = SignedDuration::from_secs(10);

struct Renewal {
    landed: Timestamp,
    sent: Timestamp,
    holder: String,
}

/// Only the holder of the lease sends writes, and only soon after it sent its last successful renewal. Some land after
/// another replica took over: then the other invariants must hold all the same.
#[derive(Default)]
pub struct OnlyTheLeaderWrites {
    renewals: Vec<Renewal>,
}

impl Invariant for OnlyTheLeaderWrites {
    fn name(&self) -> &'static str {
        LEASE
    }

    fn check(&mut self, change: &Change) -> Result<(), String> {
        if change.collection == "coordination.k8s.io/leases" && change.key.starts_with(NAMESPACE) {
            let holder = change.after.as_ref().map(|lease| text(lease, "spec.holderIdentity").to_owned());
            let (landed, sent) = (change.at, change.sent);
            self.renewals.push(Renewal { landed, sent, holder: holder.unwrap_or_default() });
        }
        Ok(())
    }

    fn check_write(&mut self, write: SentWrite<'_>) -> Result<(), String> {
        if !is_guarded(write) {
            return Ok(());
        }
        let mut known = self.renewals.iter().rev().filter(|renewal| renewal.landed <= write.sent);
        let last = known.next().ok_or("the lease had no holder")?;
        let holder = &last.holder;
        if !holder.strip_prefix(write.user).is_some_and(|rest| rest.starts_with('_')) {
            return Err(format!("the holder was {holder:?} when it was sent"));
        }
        // A renewal that was under way for long may land after a later one was sent.
        let renewed = known.take_while(|one| one.holder == *holder).map(|one| one.sent);
        let renewed = renewed.fold(last.sent, Timestamp::max);
        let age = write.sent.duration_since(renewed);
        if age >= RENEW_DEADLINE {
            return Err(format!("its last renewal had been sent {age:?} before"));
        }
        Ok(())
    }
}

/// Questions about rights, which are sent like writes.
const REVIEWS: &str = "/apis/authorization.k8s.io/";

/// Whether a write needs the lease.
fn is_guarded(write: SentWrite<'_>) -> bool {
    let path = write.request.uri().path();
    !path.contains("/leases") && !path.starts_with(REVIEWS)
}

/// So many writes of one object, and Events about one, a minute, for each gate.
const MAX_WRITES: usize = 16;
/// The same for a gate and the policy, whose status is about all nodes and is written every two seconds at most.
const MAX_STATUS_WRITES: usize = 35;
/// Each change of a gate begins the verification of a node anew. Three workers follow without a long backoff, each with an
/// Event at its start and at its end.
const MORE_FOR_A_CHANGED_GATE: usize = 6;
/// So many requests about one object a minute may be refused or lost, besides those that are accepted.
const MAX_REFUSED: usize = 24;
/// So many more Events about one object than may be accepted. All of them may be refused, and each tells of another act; only
/// those that no other write remembers are repeated, ever more rarely.
const MAX_REPEATED_EVENTS: usize = 8;
/// The lease is renewed every two seconds by one replica, and another one may try to take it.
const MAX_LEASE_WRITES: usize = 80;

/// Whatever others do and the server answers, nothing is written without end, and no request is repeated without a pause.
#[derive(Default)]
pub struct BoundedWrites {
    changes: BTreeMap<String, VecDeque<Timestamp>>,
    refused: BTreeMap<String, VecDeque<Timestamp>>,
    sent: BTreeMap<String, VecDeque<Timestamp>>,
    /// The names of all gates that there were.
    gates: BTreeSet<String>,
    /// When users, or the configuration, changed a gate.
    gate_changes: VecDeque<Timestamp>,
}

/// Counts one more at this time. Returns how many there were within a minute.
fn count(all: &mut VecDeque<Timestamp>, now: Timestamp) -> usize {
    forget_old(all, now);
    all.push_back(now);
    all.len()
}

fn forget_old(all: &mut VecDeque<Timestamp>, now: Timestamp) {
    while all.front().is_some_and(|at| now.duration_since(*at) > SignedDuration::from_mins(1)) {
        all.pop_front();
    }
}

/// The same, without a new name for each request about one object.
fn count_in(all: &mut BTreeMap<String, VecDeque<Timestamp>>, object: &str, now: Timestamp) -> usize {
    match all.get_mut(object) {
        Some(times) => count(times, now),
        None => count(all.entry(object.to_owned()).or_default(), now),
    }
}

impl BoundedWrites {
    fn observe_gate(&mut self, change: &Change) {
        let state = |gate: &Value| (uid(gate).to_owned(), number(gate, "metadata.generation"));
        if change.before.as_deref().map(state) != change.after.as_deref().map(state) {
            self.gate_changes.push_back(change.at);
            self.gates.insert(change.key.clone());
        }
    }

    /// How many accepted writes of one object, or about one, are allowed a minute.
    fn most(&mut self, has_status: bool, now: Timestamp) -> usize {
        forget_old(&mut self.gate_changes, now);
        if has_status {
            return MAX_STATUS_WRITES;
        }
        MAX_WRITES * self.gates.len().max(1) + MORE_FOR_A_CHANGED_GATE * self.gate_changes.len()
    }
}

impl Invariant for BoundedWrites {
    fn name(&self) -> &'static str {
        BOUNDED
    }

    fn check(&mut self, change: &Change) -> Result<(), String> {
        if change.collection == "nodekeeper.dev/nodegates" {
            self.observe_gate(change);
        }
        if !is_ours(change) || change.collection.ends_with("/leases") {
            return Ok(());
        }
        let object = match (change.collection.as_str(), &change.after) {
            ("events", Some(event)) => format!("{ABOUT}{}", text(event, "involvedObject.uid")),
            (collection, _) => format!("{collection}/{}", change.key),
        };
        let has_status = ["nodekeeper.dev/nodegates", "nodekeeper.dev/remediationpolicies"];
        let most = self.most(has_status.contains(&change.collection.as_str()), change.at);
        let writes = count_in(&mut self.changes, &object, change.at);
        if writes > most {
            return Err(format!("{writes} writes of {object} in a minute"));
        }
        Ok(())
    }

    fn check_write(&mut self, write: SentWrite<'_>) -> Result<(), String> {
        let object = object_of(write);
        let is_refused = write.code.is_none_or(|code| code >= 400);
        let is_lease = object.contains("/leases/");
        let has_status = object.contains("/nodegates/") || object.contains("/remediationpolicies/");
        let accepted = if is_lease { MAX_LEASE_WRITES } else { self.most(has_status, write.at) };
        let refused = if is_refused { count_in(&mut self.refused, &object, write.at) } else { 0 };
        let sent = count_in(&mut self.sent, &object, write.at);
        let is_event = object.starts_with(ABOUT);
        let most = if is_event { accepted + MAX_REPEATED_EVENTS } else { MAX_REFUSED };
        if refused > most {
            return Err(format!("{refused} requests about {object} were refused or lost in a minute"));
        }
        if sent > accepted + MAX_REFUSED {
            return Err(format!("{sent} requests about {object} in a minute"));
        }
        Ok(())
    }
}

const ABOUT: &str = "events about ";

/// What a write is about: the path of its object, for Events the object that they are about.
fn object_of(write: SentWrite<'_>) -> String {
    let path = write.request.uri().path();
    if write.request.method() != Method::POST || path.ends_with("/eviction") {
        let parts = ["/status", "/eviction"];
        let object = parts.iter().find_map(|part| path.strip_suffix(part)).unwrap_or(path);
        return object.to_owned();
    }
    let body: Value = serde_json::from_slice(write.request.body()).unwrap_or_default();
    if path.ends_with("/events") {
        return format!("{ABOUT}{}", text(&body, "regarding.uid"));
    }
    if path.starts_with(REVIEWS) {
        let [verb, resource, part] = ["verb", "resource", "subresource"]
            .map(|field| body["spec"]["resourceAttributes"][field].as_str().unwrap_or_default());
        return format!("the right to {verb} {resource}/{part}");
    }
    format!("{path}/{}", text(&body, "metadata.name"))
}
