mod act;
mod backoff;
mod breaker;
mod budget;
mod control;
mod decision;
mod evaluate;
mod evidence;
mod fuse;
mod housekeeping;
mod labels;
mod policy;
mod provider;
mod rights;
mod sections;
mod window;

use std::time::Duration;

use super::control::{ControlGroupResult, ControlRun};
use super::drain::PodView;
use super::housekeeping::PolicyFindings;
use super::provider::NodeClaimView;
use super::*;
use crate::api::{
    CauseSource, CauseVerdict, FailedCheck, FailureAction, NodeIdentity, NodeRemediationSpec,
    NodeRemediationStatus, Pause, RemediationPolicySpec, SharedOutage,
};
use crate::checks::WorkerIdentity;
use crate::condition::Finding;
use crate::gate::GateView;
use crate::node::{NodeView, Taint};
use crate::record::{Record, VerificationScope};
use crate::report::{CheckResult, Outcome, Report, Verdict};
use crate::worker::Progress;

/// So many minutes after noon of a Monday.
fn at(minutes: i64) -> Timestamp {
    let noon: Timestamp = "2026-11-16T12:00:00Z".parse().expect("a time");
    noon + SignedDuration::from_mins(minutes)
}

fn check(name: &str, target: &str) -> FailedCheck {
    FailedCheck { name: name.into(), target: target.into(), reason: "Timeout".into() }
}

fn cause(source: CauseSource, observed_at: Timestamp) -> RemediationCause {
    let (name, verdict, checks) = match source {
        CauseSource::Gate => ("default", CauseVerdict::Failed, vec![check("dns", "kubernetes.")]),
        CauseSource::Recycler => ("oom", CauseVerdict::Asked, vec![]),
        CauseSource::Person => ("ada", CauseVerdict::Asked, vec![]),
    };
    let (name, message) = (name.into(), "6 attempts failed".into());
    RemediationCause { source, name, verdict, checks, message, observed_at: Some(observed_at) }
}

fn request(uid: &str, causes: Vec<RemediationCause>) -> Remediation {
    let node = NodeIdentity {
        name: format!("node-{uid}"),
        uid: uid.into(),
        provider_id: String::new(),
        boot_id: "boot-1".into(),
    };
    Remediation {
        name: uid.into(),
        uid: format!("request-{uid}"),
        resource_version: "1".into(),
        generation: 1,
        created: at(0),
        spec: NodeRemediationSpec { node, causes, action: crate::api::RemediationAction::Replace },
        status: NodeRemediationStatus::default(),
    }
}

/// A node that failed its gate, as its record has it.
fn failed_record(uid: &str, recorded: Timestamp) -> Record {
    Record {
        uid: uid.into(),
        number: 6,
        scope: VerificationScope { boot_id: "boot-1".into(), gate_uid: "gate-1".into(), gate_generation: 1 },
        attempts: 6,
        verdict: Some(Verdict::Failed),
        failed: vec![check("dns", "kubernetes.")],
        at: Some(recorded),
        ..Record::default()
    }
}

fn target(uid: &str) -> Target {
    Target {
        identity: NodeIdentity { provider_id: format!("cloud://{uid}"), ..request(uid, vec![]).spec.node },
        created: at(-30),
        group: "pool".into(),
        zone: "a".into(),
        record: Some(failed_record(uid, at(0))),
        registered: true,
        is_karpenter_node: true,
        view: NodeView { ready: true, taints: vec![gate_taint()], ..NodeView::default() },
        ..Target::default()
    }
}

fn gate_taint() -> Taint {
    Taint { key: "node-ready/unverified".into(), effect: "NoSchedule".into() }
}

/// A gate that wants nodes replaced that fail or are stuck.
fn replacing_gate() -> GateView {
    let mut gate = control::gate();
    (gate.spec.on_failure, gate.spec.on_stuck) = (FailureAction::Replace, FailureAction::Replace);
    gate
}

fn claim(name: &str) -> NodeClaimView {
    NodeClaimView { name: name.into(), uid: format!("uid-{name}"), ..NodeClaimView::default() }
}

fn policy() -> Policy {
    let spec = RemediationPolicySpec { enforcement: ActEnforcement::Enforce, ..Default::default() };
    let status = RemediationPolicyStatus::default();
    Policy {
        uid: "policy".into(),
        resource_version: "1".into(),
        generation: 1,
        spec,
        status,
        ..Policy::missing()
    }
}

fn pod(name: &str) -> PodView {
    PodView {
        namespace: "shop".into(),
        name: name.into(),
        uid: name.into(),
        managed: true,
        ..Default::default()
    }
}

fn report(results: &[(&str, &str, Outcome)]) -> Progress {
    let identity = WorkerIdentity {
        node_uid: "control".into(),
        boot_id: "b".into(),
        gate_uid: "gate-1".into(),
        gate_generation: 1,
        number: 1,
    };
    let result = |(name, target, outcome): &(&str, &str, Outcome)| {
        CheckResult::new(name, target, *outcome, "Timeout", "")
    };
    Progress::Reported(Report::judge(identity, results.iter().map(result).collect(), 1))
}

fn dns(outcome: Outcome) -> Progress {
    report(&[("dns", "kubernetes.", outcome), ("api", "https://10.0.0.1", Outcome::Passed)])
}

fn compared(age: u64, controls: Vec<Progress>) -> ControlGroupResult {
    let controls = controls.into_iter().enumerate().map(|(i, one)| (format!("control-{i}"), one)).collect();
    let since_failure = Duration::from_hours(1);
    ControlGroupResult {
        eligible: 9,
        run: Some(ControlRun { age: Duration::from_secs(age), controls }),
        since_failure,
    }
}

fn group(size: u32, schedulable: u32) -> GroupStats {
    let facts = GroupCounts { size, schedulable, verdicts: vec![] };
    GroupStats { groups: [("pool".to_owned(), facts)].into(), verdicts: VerdictCounts::default() }
}

fn reservation(uid: &str, approved: Timestamp) -> Reservation {
    Reservation {
        remediation: uid.into(),
        uid: format!("request-{uid}"),
        boot_id: "boot-1".into(),
        node: format!("node-{uid}"),
        group: format!("pool-{uid}"),
        zone: format!("zone-{uid}"),
        at: approved,
        ended: None,
    }
}

fn down(zone: &str, check: &str, target: &str) -> SharedOutage {
    SharedOutage {
        gate: "default".into(),
        zone: zone.into(),
        check: check.into(),
        target: target.into(),
        since: at(-5),
    }
}

/// The input of an evaluation. By default the remediation is approved.
struct World {
    request: Remediation,
    policy: Option<Policy>,
    target: Option<Target>,
    gates: Vec<GateView>,
    pods: Vec<PodView>,
    replacement: Replacement,
    group_stats: GroupStats,
    others: Vec<Remediation>,
    /// About the gate `default`.
    compared: ControlGroupResult,
    ran_elsewhere: bool,
    /// About other gates.
    shown_by_others: BTreeMap<String, OtherNodes>,
    missing_rights: Vec<Right>,
    now: Timestamp,
}

impl World {
    fn new() -> Self {
        Self {
            request: request("n1", vec![cause(CauseSource::Gate, at(0))]),
            policy: Some(policy()),
            target: Some(target("n1")),
            gates: vec![replacing_gate()],
            pods: vec![],
            replacement: Replacement::Karpenter(claim("c1")),
            group_stats: group(20, 12),
            others: vec![],
            compared: compared(10, vec![dns(Outcome::Passed), dns(Outcome::Passed)]),
            ran_elsewhere: true,
            shown_by_others: BTreeMap::new(),
            missing_rights: vec![],
            now: at(1),
        }
    }

    fn with(change: impl FnOnce(&mut Self)) -> Self {
        let mut world = Self::new();
        change(&mut world);
        world
    }

    fn gate(&mut self) -> &mut GateView {
        &mut self.gates[0]
    }

    fn policy(&mut self) -> &mut Policy {
        self.policy.as_mut().expect("there is one")
    }

    fn target(&mut self) -> &mut Target {
        self.target.as_mut().expect("there is one")
    }

    /// A person asks for a node that works, so that nothing is compared.
    fn by_person() -> Self {
        Self::with(|world| {
            world.request.spec.causes = vec![cause(CauseSource::Person, at(0))];
            world.target().record = None;
            world.target().view.taints.clear();
        })
    }

    fn evaluate(&self) -> Approval {
        let requests: Vec<&Remediation> = self.others.iter().chain([&self.request]).collect();
        let gates: Vec<&GateView> = self.gates.iter().collect();
        let shown = OtherNodes { compared: self.compared.clone(), reported: self.ran_elsewhere };
        let mut others: BTreeMap<String, OtherNodes> = [("default".to_owned(), shown)].into();
        others.extend(self.shown_by_others.clone());
        evaluate(&EvaluationInput {
            request: &self.request,
            policy: self.policy.as_ref(),
            target: self.target.as_ref(),
            gates: &gates,
            pods: &self.pods,
            replacement: &self.replacement,
            group_stats: &self.group_stats,
            requests: &requests,
            others: &others,
            missing_rights: &self.missing_rights,
            now: self.now,
        })
    }

    fn blocked(&self) -> Blocked {
        match self.evaluate() {
            Approval::Blocked(blocked) => blocked,
            Approval::Approved(status) => panic!("approved: {status:?}"),
        }
    }

    fn block_reason(&self) -> Option<BlockReason> {
        match self.evaluate() {
            Approval::Blocked(blocked) => Some(blocked.reason),
            Approval::Approved(_) => None,
        }
    }

    fn approved(&self) -> RemediationPolicyStatus {
        match self.evaluate() {
            Approval::Approved(status) => *status,
            Approval::Blocked(blocked) => panic!("{blocked:?}"),
        }
    }
}

type Change = fn(&mut World);
