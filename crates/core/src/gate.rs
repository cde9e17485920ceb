//! What happens to a node at the gate: one pure decision from what is seen now.

mod assignment;
mod backoff;
mod dry_run;
mod enforce;
mod node_condition;
mod observe;
mod outage;
mod prerequisites;
mod verified;

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::api::{Enforcement, RemediationCause, SharedOutage};
use crate::checks::WorkerIdentity;
use crate::node::NodeView;
use crate::reasons;
use crate::record::{Record, VerificationScope};
use crate::worker::WorkerView;

use enforce::GatedNode;

pub use assignment::{GateView, Ownership, ownership, wanted_labels};
pub use node_condition::ConditionUpdate;
pub use observe::{NodeInputs, Surroundings, observe};
pub use prerequisites::DaemonPod;

/// All that a decision is made from.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// The node.
    pub node: &'a NodeView,
    /// Who looks after it.
    pub served: Ownership<'a>,
    /// The workers made for this uid, in any order.
    pub workers: &'a [WorkerView],
    /// The DaemonSets' pods on the node; none if they are not watched.
    pub daemons: Option<&'a [DaemonPod]>,
    /// Whether one more worker may run in the cluster.
    pub slots: Slots,
    /// What the other nodes of its gate say.
    pub fleet: Fleet,
    /// What does not work on nodes that work either.
    pub down: &'a [SharedOutage],
    /// Whether the RemediationPolicy and the NodeRemediations were read. Until then no failure is counted and no
    /// replacement is requested: an outage that all nodes share may be known there.
    pub policy_known: bool,
    /// When what its gate last asked to be replaced for was seen; never if none.
    pub asked: Option<Timestamp>,
    /// The time of day.
    pub now: Timestamp,
    /// The time by the clock on which [`WorkerView::first_seen`] is.
    pub elapsed: Duration,
}

/// Whether one more worker may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    /// The first one of a node.
    pub first: bool,
    /// Another one: nodes that keep failing must not keep newcomers waiting.
    pub another: bool,
    /// One that nobody asked for, on a node that works.
    pub periodic: bool,
}

/// What the nodes of a gate say together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fleet {
    /// Workers cannot run at all: no node is to blame, and no clock runs.
    pub cannot_run: bool,
    /// How many nodes it let in.
    pub open: u32,
    /// How many of those that it had let in are tainted again.
    pub retainted: u32,
    /// A worker of its event something about another node lately: its image can be run.
    pub ran_elsewhere: bool,
}

impl Fleet {
    /// Whether one more open node may be tainted. Where many fail at once it is not the nodes: at most a tenth of them
    /// is taken out of service, and always one.
    #[must_use]
    pub fn may_retaint(&self) -> bool {
        self.retainted < ((self.open + self.retainted) / 10).max(1)
    }
}

/// Where a node stands. Derived each time, never stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// It bears no taint of a gate and never did: left alone.
    Ungated,
    /// It bears a gate's taint, and no gate serves it.
    Unserved,
    /// It was let in.
    Verified,
    /// It is being deleted.
    Terminating,
    /// Nothing can be looked at yet: not Ready, cordoned, or something else is waited for.
    Waiting,
    /// It waits for a worker: for the end of a pause, or for a free slot.
    Unverified,
    /// Its worker has not started.
    Pending,
    /// Its worker looks.
    InProgress,
    /// Its last worker could not tell.
    Inconclusive,
    /// No worker could tell until the gate's deadline.
    Stuck,
    /// Its attempts are used up; it is looked at again, but rarely.
    Failed,
}

/// One thing to do. Effects are done in their order; one that fails ends the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Make this worker.
    StartWorker(WorkerIdentity),
    /// Delete this pod.
    RemoveWorker {
        /// Its name.
        name: String,
        /// Its uid: a namesake is left alone.
        uid: String,
    },
    /// Take our taints, give the label, write the record: all in one guarded patch.
    RemoveTaint(Record),
    /// Put our taints back, take the label, write the record: all in one guarded patch.
    Retaint(Record),
    /// Write the record.
    PatchRecord(Record),
    /// Write the verdict as a condition of the node.
    SetNodeCondition(ConditionUpdate),
    /// Ask for the node to be replaced, or refresh what was seen.
    RequestRemediation(RemediationCause),
    /// Say it in an Event on the node.
    EmitEvent(EventSpec),
}

/// An Event to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventSpec {
    /// Whether it is a warning.
    pub warning: bool,
    /// In one word.
    pub reason: &'static str,
    /// What was done.
    pub action: String,
    /// For people.
    pub note: String,
    /// It goes with no other write, so it is decided again and again: it is event once for this number.
    pub dedup_key: Option<u32>,
}

impl EventSpec {
    /// One that is event each time.
    #[must_use]
    pub fn new(warning: bool, reason: &'static str, action: &str, note: impl Into<String>) -> Self {
        Self { warning, reason, action: action.to_owned(), note: note.into(), dedup_key: None }
    }
}

/// What to do about a node now, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Where it stands.
    pub state: State,
    /// What to do.
    pub effects: Vec<Effect>,
    /// When to look again though nothing changed.
    pub recheck_in: Option<Duration>,
    /// A worker is due, and there is no slot for it; how many the node had.
    pub wants_slot: Option<u32>,
    /// The worker that starts was asked for by nobody: its time had come.
    pub periodic: bool,
    /// The node's pods have to be watched: DaemonSets are waited for.
    pub wants_pods: bool,
    /// For people.
    pub why: String,
}

impl Decision {
    fn new(state: State, why: impl Into<String>) -> Self {
        Self {
            state,
            effects: Vec::new(),
            recheck_in: None,
            wants_slot: None,
            periodic: false,
            wants_pods: false,
            why: why.into(),
        }
    }

    fn with(mut self, effects: impl IntoIterator<Item = Effect>) -> Self {
        self.effects.extend(effects);
        self
    }

    fn requeue_after(self, wait: SignedDuration) -> Self {
        Self { recheck_in: Some(Duration::try_from(wait).unwrap_or_default()), ..self }
    }
}

/// Decides what happens to a node now.
#[must_use]
pub fn decide(seen: &Observed<'_>) -> Decision {
    let no_record = Record::default();
    let record = seen.node.record.as_deref().unwrap_or(&no_record);
    if seen.node.terminating {
        return Decision::new(State::Terminating, "the node is being deleted")
            .with(remove_workers(seen.workers));
    }
    match seen.served {
        Ownership::Gated(gate) => match gate.spec.enforcement {
            Enforcement::Paused => paused(gate),
            Enforcement::DryRun => dry_run::decide(seen, gate, record),
            Enforcement::Enforce => {
                node_condition::with(GatedNode { seen, gate, record, gated: true }.decide(), seen, gate)
            }
        },
        Ownership::Verified(gate) if gate.spec.enforcement == Enforcement::Enforce => {
            node_condition::with(GatedNode { seen, gate, record, gated: false }.decide(), seen, gate)
        }
        Ownership::Verified(_) | Ownership::Released => {
            Decision::new(State::Verified, "the node was verified").with(remove_workers(seen.workers))
        }
        Ownership::Unserved(taint, why) => unserved(seen, taint, why),
        Ownership::Unmanaged => Decision::new(State::Ungated, "the node bears no taint of a gate")
            .with(remove_workers(seen.workers)),
    }
}

fn paused(gate: &GateView) -> Decision {
    let note = format!(
        "gate {0} is paused: the node stays tainted until somebody sets `spec.enforcement: Enforce` (kubectl edit nodegate {0})",
        gate.name
    );
    // Each pause is event.
    let dedup_key = u32::try_from(gate.generation).ok().or(Some(0));
    let event =
        EventSpec { dedup_key, ..EventSpec::new(true, reasons::NODE_GATE_PAUSED, "KeepTaint", note.clone()) };
    Decision::new(State::Waiting, note).with([Effect::EmitEvent(event)])
}

/// A taint that nobody will ever take: said dedup_key, with what frees the node.
fn unserved(seen: &Observed<'_>, taint: &str, why: &str) -> Decision {
    let node = &seen.node.name;
    let note = format!(
        "the node bears the taint {taint}, and {why}: make or change a gate, or free the node with `kubectl taint node {node} {taint}-`"
    );
    let event = EventSpec {
        dedup_key: Some(0),
        ..EventSpec::new(true, reasons::NODE_UNSERVED, "SelectGate", note.clone())
    };
    Decision::new(State::Unserved, note).with(remove_workers(seen.workers)).with([Effect::EmitEvent(event)])
}

/// Deletes these workers, but for those that somebody deleted already.
fn remove_workers<'a>(workers: impl IntoIterator<Item = &'a WorkerView>) -> Vec<Effect> {
    let doomed = workers.into_iter().filter(|worker| !worker.deleting);
    doomed.map(|worker| Effect::RemoveWorker { name: worker.name.clone(), uid: worker.uid.clone() }).collect()
}

/// What a verdict about this node has to be about to count now.
fn scope(node: &NodeView, gate: &GateView) -> VerificationScope {
    VerificationScope {
        boot_id: node.boot_id.to_string(),
        gate_uid: gate.uid.clone(),
        gate_generation: gate.generation,
    }
}

fn scope_of(identity: &WorkerIdentity) -> VerificationScope {
    VerificationScope {
        boot_id: identity.boot_id.clone(),
        gate_uid: identity.gate_uid.clone(),
        gate_generation: identity.gate_generation,
    }
}

fn identity(node: &NodeView, gate: &GateView, number: u32) -> WorkerIdentity {
    let VerificationScope { boot_id, gate_uid, gate_generation } = scope(node, gate);
    WorkerIdentity { node_uid: node.uid.to_string(), boot_id, gate_uid, gate_generation, number }
}

#[cfg(test)]
mod tests;
