//! Shared outages and remediation requests.

use jiff::SignedDuration;

use super::*;
use crate::api::{CauseVerdict, FailureAction, SharedOutage};

fn dns_down() -> SharedOutage {
    SharedOutage {
        gate: "default".into(),
        zone: "a".into(),
        check: "dns".into(),
        target: "kubernetes.".into(),
        since: now(),
    }
}

/// A node over time, to which decisions are applied as the operator applies them.
struct Simulation {
    node: NodeView,
    gate: GateView,
    workers: Vec<WorkerView>,
    down: Vec<SharedOutage>,
    asked: Option<Timestamp>,
    fleet: Fleet,
    at: Duration,
}

impl Simulation {
    fn new() -> Self {
        let (mut node, mut gate) = (node(), gate());
        node.labels.insert("topology.kubernetes.io/zone", "a");
        (gate.spec.on_failure, gate.spec.on_stuck) = (FailureAction::Replace, FailureAction::Replace);
        let fleet = Fleet { ran_elsewhere: true, ..Fleet::default() };
        Self { node, gate, workers: vec![], down: vec![], asked: None, fleet, at: Duration::ZERO }
    }

    fn decide(&self) -> Decision {
        let now = now() + SignedDuration::try_from(self.at).expect("short");
        let Self { down, asked, fleet, .. } = self;
        let input = observed(&self.node, Ownership::Gated(&self.gate), &self.workers);
        decide(&Observed {
            shared_outages: down,
            remediation_requested_at: *asked,
            fleet: *fleet,
            now,
            elapsed: self.at,
            ..input
        })
    }

    fn record(&self) -> Record {
        self.node.record.as_deref().cloned().unwrap_or_default()
    }

    /// Decides once and applies the effects.
    fn step(&mut self) -> Decision {
        let decision = self.decide();
        for effect in decision.effects.clone() {
            match effect {
                Effect::StartWorker(identity) => {
                    let first_seen = self.at;
                    self.workers
                        .push(WorkerView { first_seen, ..worker(identity.number, Progress::Running) });
                }
                Effect::RemoveWorker { uid, .. } => self.workers.retain(|worker| worker.uid != uid),
                Effect::PatchRecord(record) => {
                    set_record(&mut self.node, &record);
                    self.node.record_seen_at = self.at;
                }
                Effect::RequestRemediation(cause) => self.asked = cause.observed_at,
                _ => {}
            }
        }
        decision
    }

    /// Advances time until a worker runs, and ends it with this progress.
    fn attempt(&mut self, progress: impl Fn(u32) -> Progress) -> Decision {
        for _ in 0..10 {
            let decision = self.step();
            if let Some(running) = self.workers.iter_mut().find(|worker| !worker.has_ended()) {
                running.progress = progress(running.identity.number);
                return self.step();
            }
            self.at += decision.recheck_in.unwrap_or_default();
        }
        panic!("no worker starts: {:?}", self.decide());
    }

    fn fail(&mut self) -> Decision {
        self.attempt(|number| reported(number, Outcome::Failed).progress)
    }
}

fn requests_remediation(decision: &Decision) -> Option<&RemediationCause> {
    decision.effects.iter().find_map(|effect| match effect {
        Effect::RequestRemediation(cause) => Some(cause),
        _ => None,
    })
}

/// A node whose six attempts failed and whose remediation was requested.
fn failed_node() -> Simulation {
    let mut sim = Simulation::new();
    for _ in 0..6 {
        assert_eq!(requests_remediation(&sim.fail()), None);
    }
    let decision = sim.step();
    let cause = requests_remediation(&decision).expect("a request");
    assert_eq!((cause.verdict, cause.observed_at), (CauseVerdict::Failed, sim.record().at));
    assert_eq!(
        (&*cause.name, &*cause.checks[0].name, &*cause.checks[0].target),
        ("default", "dns", "kubernetes.")
    );
    sim
}

#[test]
fn remediation_is_requested_once_for_each_verdict() {
    let mut sim = failed_node();
    assert_eq!(requests_remediation(&sim.step()), None);
    sim.fail();
    let again = sim.step();
    assert_eq!(requests_remediation(&again).expect("a new verdict").observed_at, sim.record().at);
    sim.gate.spec.on_failure = FailureAction::KeepTainted;
    sim.fail();
    assert_eq!(requests_remediation(&sim.step()), None);
}

#[test]
fn a_failing_request_does_not_stop_verification() {
    let mut sim = failed_node();
    for _ in 0..3 {
        sim.asked = None;
        let decision = sim.decide();
        assert!(requests_remediation(&decision).is_some() && decision.recheck_in.is_some(), "{decision:?}");
        sim.fail();
    }
    sim.asked = None;
    let healed = sim.attempt(|number| reported(number, Outcome::Passed).progress);
    assert!(removes_taint(&healed));
}

#[test]
fn a_stuck_node_is_remediated_only_if_workers_run_elsewhere() {
    for (on_stuck, ran_elsewhere, expected) in [
        (FailureAction::Replace, true, Some(CauseVerdict::Stuck)),
        (FailureAction::Replace, false, None),
        (FailureAction::KeepTainted, true, None),
    ] {
        let mut sim = Simulation::new();
        sim.gate.spec.on_stuck = on_stuck;
        sim.fleet.ran_elsewhere = ran_elsewhere;
        sim.attempt(|_| Progress::Inconclusive(InconclusiveReason::NotStarted, "no sandbox".into()));
        let stuck = Record { elapsed_seconds: 600, ..sim.record() };
        set_record(&mut sim.node, &stuck);
        assert_eq!(requests_remediation(&sim.decide()).map(|cause| cause.verdict), expected);
    }
}

#[test]
fn an_outage_suspends_failed_nodes_and_restarts_their_counts() {
    let mut sim = failed_node();
    let before = sim.record();
    sim.down = vec![dns_down()];
    let frozen = sim.step();
    assert_eq!(frozen.state, State::Inconclusive);
    let record = sim.record();
    assert_eq!(
        (record.verdict, record.cause),
        (Some(Verdict::Inconclusive), Some(InconclusiveReason::SharedDependency))
    );
    assert_eq!(
        (record.attempts, record.elapsed_seconds, record.at),
        (6, before.elapsed_seconds, before.at),
        "no counter changes"
    );
    assert_eq!(sim.decide().state, State::Inconclusive, "not Failed");

    for _ in 0..4 {
        let from = sim.at;
        sim.fail();
        assert!(sim.at.saturating_sub(from) >= Duration::from_mins(4), "it is rechecked slowly");
        let record = sim.record();
        assert_eq!(
            (record.attempts, record.elapsed_seconds),
            (6, before.elapsed_seconds),
            "attempts and deadline are paused"
        );
        assert_eq!(requests_remediation(&sim.step()), None);
    }
    sim.down.clear();
    assert_eq!(sim.decide().state, State::Pending, "a worker starts at once");
    sim.fail();
    let record = sim.record();
    assert_eq!((record.attempts, record.verdict), (1, Some(Verdict::Failed)), "the counts restart");
    assert_eq!(requests_remediation(&sim.step()), None, "one failed attempt of six");
    for _ in 0..5 {
        sim.fail();
    }
    assert_eq!(requests_remediation(&sim.step()).expect("a request").observed_at, sim.record().at);
}

#[test]
fn a_request_from_before_an_outage_is_not_approved_after_it() {
    let mut sim = failed_node();
    let asked = sim.asked.expect("a request");
    sim.down = vec![dns_down()];
    sim.step();
    sim.at += Duration::from_mins(1);
    sim.down.clear();
    sim.fail();
    assert_eq!(sim.record().attempts, 1);
    let cause = RemediationCause {
        source: crate::api::CauseSource::Gate,
        name: "default".into(),
        verdict: CauseVerdict::Failed,
        checks: sim.record().failed,
        message: String::new(),
        observed_at: Some(asked),
    };
    let object = crate::api::NodeRemediation::new(
        "uid-1",
        crate::api::NodeRemediationSpec {
            node: crate::api::NodeIdentity { uid: "uid-1".into(), ..Default::default() },
            causes: vec![cause],
            action: crate::api::RemediationAction::Replace,
        },
    );
    let request = crate::remediate::Remediation::new(&object);
    let mut target =
        crate::remediate::Target { record: Some(sim.record()), view: sim.node.clone(), ..Default::default() };
    target.identity.boot_id = BOOT.into();
    let shown = crate::remediate::OtherNodes { reported: true, ..Default::default() };
    let held = crate::remediate::check_evidence(&crate::remediate::EvidenceInput {
        request: &request,
        target: &target,
        policy: None,
        gates: &[&sim.gate],
        others: &[(sim.gate.name.clone(), shown)].into(),
        approved_at: None,
        now: sim.record().at.expect("a time"),
    });
    let held = held.expect_err("blocked");
    assert_eq!(held.reason, crate::remediate::BlockReason::EvidenceExpired);
    assert!(held.message.contains("another verdict"), "{}", held.message);
}

#[test]
fn an_inconclusive_worker_does_not_resume_a_suspended_node() {
    let mut sim = failed_node();
    sim.down = vec![dns_down()];
    sim.step();
    sim.attempt(|_| Progress::Inconclusive(InconclusiveReason::ImagePull, "no image".into()));
    assert_eq!(sim.record().cause, Some(InconclusiveReason::SharedDependency));
    sim.down.clear();
    sim.fail();
    assert_eq!(sim.record().attempts, 1, "the counts restart all the same");
}

#[test]
fn only_checks_of_the_outage_are_inconclusive() {
    let mut sim = Simulation::new();
    sim.down = vec![dns_down()];
    let decision = sim.fail();
    assert!(decision.why.contains("the same check fails on control nodes"), "{}", decision.why);
    assert_eq!((sim.record().attempts, sim.record().cause), (0, Some(InconclusiveReason::SharedDependency)));
    for change in [
        |down: &mut SharedOutage| down.zone = "b".into(),
        |down: &mut SharedOutage| down.check = "tcp".into(),
        |down: &mut SharedOutage| down.target = "other.".into(),
    ] {
        let mut sim = Simulation::new();
        sim.down = vec![dns_down()];
        change(&mut sim.down[0]);
        sim.fail();
        assert_eq!((sim.record().attempts, sim.record().cause), (1, None));
    }
    let mut sim = Simulation::new();
    sim.down = vec![dns_down()];
    let passed = sim.attempt(|number| reported(number, Outcome::Passed).progress);
    assert!(removes_taint(&passed), "a node that passes is verified during an outage");
}

#[test]
fn a_suspended_node_is_never_stuck() {
    let mut sim = Simulation::new();
    sim.fail();
    let late = Record { elapsed_seconds: 9_999, ..sim.record() };
    set_record(&mut sim.node, &late);
    sim.down = vec![dns_down()];
    sim.step();
    let decision = sim.decide();
    assert_eq!((decision.state, requests_remediation(&decision)), (State::Inconclusive, None));
}

#[test]
fn a_record_keeps_few_and_short_failed_checks() {
    let results: Vec<CheckResult> = (0..20)
        .map(|i| CheckResult::new(&format!("c{i}"), &"x".repeat(900), Outcome::Failed, &"r".repeat(900), ""))
        .collect();
    let mut sim = Simulation::new();
    sim.attempt(|number| Progress::Reported(Report::judge(identity(number), results.clone(), 5)));
    let failed = sim.record().failed;
    assert_eq!((failed.len(), failed[0].target.len(), failed[0].reason.len()), (8, 128, 64));
}

#[test]
fn without_the_policy_nodes_pass_and_no_failure_counts() {
    let node = Simulation::new();
    let decide_with = |node: &Simulation, workers: &[WorkerView], policy_known: bool| {
        let observed = observed(&node.node, Ownership::Gated(&node.gate), workers);
        decide(&Observed { policy_known, now: now() + SignedDuration::from_hours(1), ..observed })
    };
    assert!(removes_taint(&decide_with(&node, &[reported(1, Outcome::Passed)], false)));
    let failed = [reported(1, Outcome::Failed)];
    assert_eq!(decide_with(&node, &failed, false).effects, [], "the policy may know an outage");
    assert_ne!(decide_with(&node, &failed, true).effects, []);
    let failed = failed_node();
    let requested = |policy_known| requests_remediation(&decide_with(&failed, &[], policy_known)).is_some();
    assert!(requested(true) && !requested(false));
}
