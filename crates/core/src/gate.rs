//! The gate's decision about one node: a pure function of what is observed now.

mod agent;
mod assignment;
mod audit;
mod backoff;
mod dry_run;
mod enforce;
mod evaluate;
mod node_condition;
mod outage;
mod prerequisites;
mod schedule;
mod verified;

use std::borrow::Cow;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::api::{Enforcement, RemediationCause, SharedOutage};
use crate::checks::WorkerIdentity;
use crate::node::NodeView;
use crate::reasons;
use crate::record::{Record, VerificationScope};
use crate::worker::WorkerView;

use agent::LeftToAgent;
use enforce::ManagedNode;

pub use agent::{AgentPod, AgentTiming, confirms, needs_worker_pod, of_agent};
pub use assignment::{GateView, Ownership, ownership, record_for, wanted_labels};
pub use evaluate::{Counted, Evaluated, NodeInputs, Surroundings, evaluate};
pub use node_condition::ConditionUpdate;
pub use prerequisites::DaemonPod;

/// The input of a decision.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    pub node: &'a NodeView,
    /// The gate that decides, if one serves the node.
    pub ownership: Ownership<'a>,
    /// All gates. Others may serve the node too.
    pub gates: &'a [&'a GateView],
    /// The workers created for this node's uid, in any order.
    pub workers: &'a [WorkerView],
    /// The node's DaemonSet pods; none if the node's pods are not watched.
    pub daemon_pods: Option<&'a [DaemonPod]>,
    pub slots: Slots,
    pub fleet: Fleet,
    /// Checks that fail on control nodes too.
    pub shared_outages: &'a [SharedOutage],
    /// Whether the RemediationPolicy and all remediations were read. Until then no failure is counted and no
    /// remediation is requested: the policy may know an outage that all nodes share.
    pub policy_known: bool,
    /// The observation time of the verdict for which the gate last requested a remediation.
    pub remediation_requested_at: Option<Timestamp>,
    /// The agent of the node, which verifies the node instead of worker pods.
    pub agent: AgentPod,
    /// When a worker last passed whose result is not recorded, because the record says the same already; on the monotonic
    /// clock. Only agents have such workers.
    pub confirmed_at: Option<Duration>,
    /// When this process first observed the node Ready and tainted, on the monotonic clock.
    pub ready_since: Duration,
    /// Wall-clock time.
    pub now: Timestamp,
    /// Time on the monotonic clock that [`WorkerView::first_seen`] uses.
    pub elapsed: Duration,
}

impl<'a> Observed<'a> {
    /// The other gates that hold the node or verified it.
    fn other_gates(&self, gate: &GateView) -> impl Iterator<Item = &'a GateView> {
        let (node, uid) = (self.node, gate.uid.clone());
        self.gates.iter().copied().filter(move |other| other.uid != uid && other.serves(node))
    }

    /// The workers that a gate may remove after their end: those of other gates are theirs.
    fn own_workers(&self, gate: &GateView) -> impl Iterator<Item = &'a WorkerView> {
        let others: Vec<&str> = self.other_gates(gate).map(|other| other.uid.as_str()).collect();
        self.workers.iter().filter(move |worker| !others.contains(&&*worker.identity.gate_uid))
    }

    /// Whether another gate with the same verified label holds the node, so that the label would be wrong.
    fn is_label_withheld(&self, gate: &GateView) -> bool {
        let key = &gate.spec.verified_label.key;
        self.other_gates(gate).any(|other| other.spec.verified_label.key == *key && other.gates(self.node))
    }
}

/// Whether the worker limits allow one more worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    /// For the first worker of a node.
    pub first: bool,
    /// For a later worker of a gated node. New nodes come first.
    pub another: bool,
    /// For a periodic worker on a verified node.
    pub periodic: bool,
}

/// What the other nodes of a gate mean for one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fleet {
    /// Workers cannot run for a common reason: the nodes' deadlines are suspended.
    pub cannot_run: bool,
    /// Number of verified nodes.
    pub open: u32,
    /// Number of nodes that were verified and are tainted again.
    pub retainted: u32,
    /// A worker of the gate came to a verdict on another node recently, so its image can run.
    pub ran_elsewhere: bool,
    /// The numbers lack nodes: this leader is new and has not decided about all of them yet.
    pub is_partial: bool,
}

impl Fleet {
    /// Whether one more verified node may be tainted again. Where many nodes fail at once the cause is shared: at most a
    /// tenth of them is tainted, and always one.
    #[must_use]
    pub fn may_retaint(&self) -> bool {
        self.retainted < ((self.open + self.retainted) / 10).max(1)
    }
}

/// The state of a node. It is derived for each decision and never stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// The node has no taint of a gate and no gate verified it.
    Ungated,
    /// The node has a gate's taint and no gate serves it.
    Unserved,
    /// The gate removed the taint.
    Verified,
    /// The gate audits: it removed the taint although the node did not pass.
    Audited,
    Terminating,
    /// No worker can start yet: the node is not Ready, is cordoned, or misses a prerequisite.
    Waiting,
    /// The node waits for the end of a backoff or for a free worker slot.
    Unverified,
    /// The worker has not started.
    Pending,
    /// The worker runs.
    InProgress,
    /// The last worker came to no verdict.
    Inconclusive,
    /// No worker came to a verdict within the gate's deadline.
    Stuck,
    /// All attempts failed; the node is verified again every `recheckPeriodSeconds`.
    Failed,
}

/// One action of a decision. Effects are applied in order; the first that fails ends the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Create the worker pod.
    StartWorker(WorkerIdentity),
    /// Delete the worker pod. The uid is a precondition.
    RemoveWorker {
        name: String,
        uid: String,
    },
    /// Remove the gate's taints, set the verified label unless the record says that it is withheld, and write the record in
    /// one guarded patch.
    RemoveTaint(Record),
    /// Remove the gate's taints and write the record in one guarded patch, without the verified label.
    Admit(Record),
    /// Add the gate's taints, remove the verified label and write the record in one guarded patch.
    Retaint(Record),
    PatchRecord(Record),
    SetNodeCondition(ConditionUpdate),
    /// Request the node's replacement, or refresh the cause of the request.
    RequestRemediation(RemediationCause),
    /// Emit an Event on the node.
    EmitEvent(EventSpec),
}

impl Effect {
    /// Whether it is an Event that is decided again and again, and emitted once.
    fn is_repeated(&self) -> bool {
        matches!(self, Self::EmitEvent(event) if event.dedup_key.is_some())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventSpec {
    pub warning: bool,
    pub reason: &'static str,
    pub action: String,
    pub note: String,
    /// Set for an Event that comes with no other write and is therefore decided repeatedly: it is emitted once for each
    /// key.
    pub dedup_key: Option<u32>,
}

impl EventSpec {
    /// An Event that is emitted each time it is decided.
    #[must_use]
    pub fn new(warning: bool, reason: &'static str, action: &str, note: impl Into<String>) -> Self {
        Self { warning, reason, action: action.to_owned(), note: note.into(), dedup_key: None }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub state: State,
    pub effects: Vec<Effect>,
    /// When to decide again although nothing changed.
    pub recheck_in: Option<Duration>,
    /// A worker is due and there is no slot for it; the number of workers that the node had.
    pub wants_slot: Option<u32>,
    /// The worker that starts is a periodic one.
    pub periodic: bool,
    /// The worker that is given up because nothing was heard of it for too long. The pod is read once more before that:
    /// the watch may be behind.
    pub gives_up_on: Option<String>,
    /// The node's pods have to be watched, because a DaemonSet is waited for.
    pub wants_pods: bool,
    /// The explanation, for logs and messages.
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
            gives_up_on: None,
            wants_pods: false,
            why: why.into(),
        }
    }

    fn with(mut self, effects: impl IntoIterator<Item = Effect>) -> Self {
        self.effects.extend(effects);
        self
    }

    /// Decided again when the agent's pod changes, and after a while if it is not Ready.
    fn left_to_agent(self, left: &LeftToAgent) -> Self {
        match left.for_at_most {
            Some(wait) => self.requeue_after(wait),
            None => self,
        }
    }

    fn requeue_after(self, wait: SignedDuration) -> Self {
        Self { recheck_in: Some(Duration::try_from(wait).unwrap_or_default()), ..self }
    }
}

/// Decides what happens to a node now.
#[must_use]
pub fn decide(observed: &Observed<'_>) -> Decision {
    let record = match observed.ownership.gate() {
        Some(gate) => record_for(observed.node, gate, observed.gates),
        None => Cow::Owned(Record::default()),
    };
    let record = &*record;
    let enforce = |gate, gated| {
        let decision = ManagedNode { observed, gate, record, gated }.decide();
        // Until a worker has passed, nothing good is known of a node that an audit admitted.
        let is_audited = record.is_admitted_by_audit() && decision.state == State::Verified;
        let state = if is_audited { State::Audited } else { decision.state };
        node_condition::with(Decision { state, ..decision }, observed, gate, record)
    };
    if observed.node.terminating {
        return Decision::new(State::Terminating, "the node is being deleted")
            .with(remove_workers(observed.workers));
    }
    match observed.ownership {
        Ownership::Gated(gate) => match gate.spec.enforcement {
            Enforcement::Paused => paused(observed, gate),
            Enforcement::DryRun => dry_run::decide(observed, gate, record),
            Enforcement::Audit => ManagedNode { observed, gate, record, gated: true }.audit(),
            Enforcement::Enforce => enforce(gate, true),
        },
        // A gate that is enforced later leaves it alone, unless a user or a reboot asked for another verdict.
        Ownership::Verified(gate)
            if record.is_admitted_by_audit()
                && !(gate.spec.enforcement == Enforcement::Enforce
                    && (!record.audited
                        || ManagedNode { observed, gate, record, gated: false }.is_asked_again())) =>
        {
            let why = format!("gate {} audited the node and would have held it", gate.name);
            Decision::new(State::Audited, why).with(remove_workers(observed.own_workers(gate)))
        }
        Ownership::Verified(gate) if gate.spec.enforcement == Enforcement::Enforce => enforce(gate, false),
        Ownership::Verified(gate) => Decision::new(State::Verified, "the node is verified")
            .with(remove_workers(observed.own_workers(gate))),
        Ownership::Released => {
            let sections = observed.node.record.iter().flat_map(|record| record.sections());
            let (state, why) =
                if sections.filter(|section| section.is_open()).all(Record::is_admitted_by_audit) {
                    (State::Audited, "an audit admitted the node, and would have held it")
                } else {
                    (State::Verified, "the node is verified")
                };
            Decision::new(state, why).with(remove_workers(observed.workers))
        }
        Ownership::Unserved(taint, why) => unserved(observed, taint, why),
        Ownership::Unmanaged => Decision::new(State::Ungated, "the node has no taint of a gate")
            .with(remove_workers(observed.workers)),
    }
}

/// Whether a user requests another verdict. The annotation is removed by the first gate that answers.
fn is_requested(node: &NodeView, record: &Record) -> bool {
    node.verify.is_some() || record.requested
}

fn paused(observed: &Observed<'_>, gate: &GateView) -> Decision {
    let note = format!(
        "gate {0} is paused: the node stays tainted until `spec.enforcement` is `Enforce` (kubectl edit nodegate {0})",
        gate.name
    );
    // One Event for each time that the gate is paused.
    let dedup_key = u32::try_from(gate.generation).ok().or(Some(0));
    let event =
        EventSpec { dedup_key, ..EventSpec::new(true, reasons::NODE_GATE_PAUSED, "KeepTaint", note.clone()) };
    // Workers that have not ended would keep their slots.
    let unfinished = observed.workers.iter().filter(|worker| !worker.has_ended());
    Decision::new(State::Waiting, note).with(remove_workers(unfinished)).with([Effect::EmitEvent(event)])
}

/// No gate will ever remove the taint: one Event says how to free the node.
fn unserved(observed: &Observed<'_>, taint: &str, why: &str) -> Decision {
    let node = &observed.node.name;
    let note = format!(
        "the node has the taint {taint}, and {why}: create or change a gate, or free the node with `kubectl taint node {node} {taint}-`"
    );
    let event = EventSpec {
        dedup_key: Some(0),
        ..EventSpec::new(true, reasons::NODE_UNSERVED, "SelectGate", note.clone())
    };
    Decision::new(State::Unserved, note)
        .with(remove_workers(observed.workers))
        .with([Effect::EmitEvent(event)])
}

/// Deletes the workers that are not being deleted already.
fn remove_workers<'a>(workers: impl IntoIterator<Item = &'a WorkerView>) -> Vec<Effect> {
    let present = workers.into_iter().filter(|worker| !worker.deleting);
    present
        .map(|worker| Effect::RemoveWorker { name: worker.name.clone(), uid: worker.uid.clone() })
        .collect()
}

/// What a verdict about this node must be about to count now.
fn scope(node: &NodeView, gate: &GateView) -> VerificationScope {
    VerificationScope {
        boot_id: node.boot_id.clone(),
        gate_uid: (&gate.uid).into(),
        gate_generation: gate.generation,
    }
}

fn scope_of(identity: &WorkerIdentity) -> VerificationScope {
    VerificationScope {
        boot_id: (&identity.boot_id).into(),
        gate_uid: (&identity.gate_uid).into(),
        gate_generation: identity.gate_generation,
    }
}

fn identity(node: &NodeView, gate: &GateView, number: u32) -> WorkerIdentity {
    WorkerIdentity {
        node_uid: node.uid.to_string(),
        boot_id: node.boot_id.to_string(),
        gate_uid: gate.uid.clone(),
        gate_generation: gate.generation,
        number,
    }
}

#[cfg(test)]
mod tests;
