//! What nodes that work fail as well blames nobody; who is hopeless is asked to be replaced.

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

/// A node over time: what is decided is done, as the operator does it.
struct Life {
    node: NodeView,
    gate: GateView,
    workers: Vec<WorkerView>,
    down: Vec<SharedOutage>,
    asked: Option<Timestamp>,
    fleet: Fleet,
    at: Duration,
}

impl Life {
    fn new() -> Self {
        let (mut node, mut gate) = (node(), gate());
        node.labels.insert("topology.kubernetes.io/zone", "a");
        (gate.spec.on_failure, gate.spec.on_stuck) = (FailureAction::Replace, FailureAction::Replace);
        let fleet = Fleet { ran_elsewhere: true, ..Fleet::default() };
        Self { node, gate, workers: vec![], down: vec![], asked: None, fleet, at: Duration::ZERO }
    }

    fn look(&self) -> Decision {
        let now = now() + SignedDuration::try_from(self.at).expect("short");
        let Self { down, asked, fleet, .. } = self;
        let seen = observed(&self.node, Ownership::Gated(&self.gate), &self.workers);
        decide(&Observed { down, asked: *asked, fleet: *fleet, now, elapsed: self.at, ..seen })
    }

    fn record(&self) -> Record {
        Record::read(self.node.record.as_deref(), "uid-1").unwrap_or_default()
    }

    /// One decision, done.
    fn step(&mut self) -> Decision {
        let decision = self.look();
        for effect in decision.effects.clone() {
            match effect {
                Effect::StartWorker(identity) => {
                    let first_seen = self.at;
                    self.workers
                        .push(WorkerView { first_seen, ..worker(identity.number, Progress::Running) });
                }
                Effect::RemoveWorker { uid, .. } => self.workers.retain(|worker| worker.uid != uid),
                Effect::PatchRecord(record) => {
                    remembered(&mut self.node, &record);
                    self.node.record_seen_at = self.at;
                }
                Effect::RequestRemediation(cause) => self.asked = cause.observed_at,
                _ => {}
            }
        }
        decision
    }

    /// Until a worker runs, time passes as it is asked for; then the worker ends so.
    fn attempt(&mut self, progress: impl Fn(u32) -> Progress) -> Decision {
        for _ in 0..10 {
            let decision = self.step();
            if let Some(running) = self.workers.iter_mut().find(|worker| !worker.has_ended()) {
                running.progress = progress(running.identity.number);
                return self.step();
            }
            self.at += decision.recheck_in.unwrap_or_default();
        }
        panic!("no worker comes: {:?}", self.look());
    }

    fn fail(&mut self) -> Decision {
        self.attempt(|number| reported(number, Outcome::Failed).progress)
    }
}

fn asks(decision: &Decision) -> Option<&RemediationCause> {
    decision.effects.iter().find_map(|effect| match effect {
        Effect::RequestRemediation(cause) => Some(cause),
        _ => None,
    })
}

/// All six attempts are used up, and the replacement was asked for.
fn hopeless() -> Life {
    let mut life = Life::new();
    for _ in 0..6 {
        assert_eq!(asks(&life.fail()), None);
    }
    let decision = life.step();
    let cause = asks(&decision).expect("it asks");
    assert_eq!((cause.verdict, cause.observed_at), (CauseVerdict::Failed, life.record().at));
    assert_eq!(
        (&*cause.name, &*cause.checks[0].name, &*cause.checks[0].target),
        ("default", "dns", "kubernetes.")
    );
    life
}

#[test]
fn a_hopeless_node_is_asked_for_once_for_each_verdict() {
    let mut life = hopeless();
    assert_eq!(asks(&life.step()), None);
    life.fail();
    let again = life.step();
    assert_eq!(asks(&again).expect("a new verdict").observed_at, life.record().at);
    life.gate.spec.on_failure = FailureAction::KeepTainted;
    life.fail();
    assert_eq!(asks(&life.step()), None);
}

#[test]
fn a_node_that_nobody_can_be_asked_about_is_looked_at_all_the_same() {
    let mut life = hopeless();
    for _ in 0..3 {
        life.asked = None;
        let decision = life.look();
        assert!(asks(&decision).is_some() && decision.recheck_in.is_some(), "{decision:?}");
        life.fail();
    }
    life.asked = None;
    let healed = life.attempt(|number| reported(number, Outcome::Passed).progress);
    assert!(opens(&healed));
}

#[test]
fn who_is_stuck_is_asked_for_only_where_workers_told_elsewhere() {
    for (on_stuck, ran_elsewhere, expected) in [
        (FailureAction::Replace, true, Some(CauseVerdict::Stuck)),
        (FailureAction::Replace, false, None),
        (FailureAction::KeepTainted, true, None),
    ] {
        let mut life = Life::new();
        life.gate.spec.on_stuck = on_stuck;
        life.fleet.ran_elsewhere = ran_elsewhere;
        life.attempt(|_| Progress::Inconclusive(InconclusiveReason::NotStarted, "no sandbox".into()));
        let stuck = Record { elapsed_seconds: 600, ..life.record() };
        remembered(&mut life.node, &stuck);
        assert_eq!(asks(&life.look()).map(|cause| cause.verdict), expected);
    }
}

#[test]
fn what_is_down_freezes_the_blamed_and_each_begins_anew_when_it_is_back() {
    let mut life = hopeless();
    let before = life.record();
    life.down = vec![dns_down()];
    let frozen = life.step();
    assert_eq!(frozen.state, State::Inconclusive);
    let record = life.record();
    assert_eq!(
        (record.verdict, record.cause),
        (Some(Verdict::Inconclusive), Some(InconclusiveReason::SharedDependency))
    );
    assert_eq!(
        (record.attempts, record.elapsed_seconds, record.at),
        (6, before.elapsed_seconds, before.at),
        "nothing moves"
    );
    assert_eq!(life.look().state, State::Inconclusive, "and it is not called failed");

    for _ in 0..4 {
        let from = life.at;
        life.fail();
        assert!(life.at.saturating_sub(from) >= Duration::from_mins(4), "it is looked at rarely");
        let record = life.record();
        assert_eq!(
            (record.attempts, record.elapsed_seconds),
            (6, before.elapsed_seconds),
            "attempts and deadline stand still"
        );
        assert_eq!(asks(&life.step()), None);
    }
    life.down.clear();
    assert_eq!(life.look().state, State::Pending, "it is looked at at once");
    life.fail();
    let record = life.record();
    assert_eq!((record.attempts, record.verdict), (1, Some(Verdict::Failed)), "a round of its own");
    assert_eq!(asks(&life.step()), None, "one failure is not six");
    for _ in 0..5 {
        life.fail();
    }
    assert_eq!(asks(&life.step()).expect("now it is").observed_at, life.record().at);
}

#[test]
fn what_was_asked_before_an_outage_is_not_acted_on_after_it() {
    let mut life = hopeless();
    let asked = life.asked.expect("it asked");
    life.down = vec![dns_down()];
    life.step();
    life.at += Duration::from_mins(1);
    life.down.clear();
    life.fail();
    assert_eq!(life.record().attempts, 1);
    let cause = RemediationCause {
        source: crate::api::CauseSource::Gate,
        name: "default".into(),
        verdict: CauseVerdict::Failed,
        checks: life.record().failed,
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
    let mut target = crate::remediate::Target { record: Some(life.record()), ..Default::default() };
    target.identity.boot_id = BOOT.into();
    let moment = life.record().at.expect("a time");
    let held =
        crate::remediate::check_evidence(&request, &target, None, true, moment).expect_err("it is void");
    assert_eq!(held.reason, crate::remediate::BlockReason::EvidenceExpired);
}

#[test]
fn a_worker_that_cannot_tell_does_not_thaw_what_is_frozen() {
    let mut life = hopeless();
    life.down = vec![dns_down()];
    life.step();
    life.attempt(|_| Progress::Inconclusive(InconclusiveReason::ImagePull, "no image".into()));
    assert_eq!(life.record().cause, Some(InconclusiveReason::SharedDependency));
    life.down.clear();
    life.fail();
    assert_eq!(life.record().attempts, 1, "it begins anew all the same");
}

#[test]
fn a_verdict_about_what_is_down_is_none_and_another_is_one() {
    let mut life = Life::new();
    life.down = vec![dns_down()];
    let decision = life.fail();
    assert!(decision.why.contains("nodes that work fail alike"), "{}", decision.why);
    assert_eq!(
        (life.record().attempts, life.record().cause),
        (0, Some(InconclusiveReason::SharedDependency))
    );
    for change in [
        |down: &mut SharedOutage| down.zone = "b".into(),
        |down: &mut SharedOutage| down.check = "tcp".into(),
        |down: &mut SharedOutage| down.target = "other.".into(),
    ] {
        let mut life = Life::new();
        life.down = vec![dns_down()];
        change(&mut life.down[0]);
        life.fail();
        assert_eq!((life.record().attempts, life.record().cause), (1, None));
    }
    let mut life = Life::new();
    life.down = vec![dns_down()];
    let passed = life.attempt(|number| reported(number, Outcome::Passed).progress);
    assert!(opens(&passed), "who passes is let in, whatever is down");
}

#[test]
fn a_deadline_that_is_past_does_not_make_a_frozen_node_stuck() {
    let mut life = Life::new();
    life.fail();
    let late = Record { elapsed_seconds: 9_999, ..life.record() };
    remembered(&mut life.node, &late);
    life.down = vec![dns_down()];
    life.step();
    let decision = life.look();
    assert_eq!((decision.state, asks(&decision)), (State::Inconclusive, None));
}

#[test]
fn a_record_remembers_few_checks_and_short_ones() {
    let results: Vec<CheckResult> = (0..20)
        .map(|i| CheckResult::new(&format!("c{i}"), &"x".repeat(900), Outcome::Failed, &"r".repeat(900), ""))
        .collect();
    let mut life = Life::new();
    life.attempt(|number| Progress::Reported(Report::judge(identity(number), results.clone(), 5)));
    let failed = life.record().failed;
    assert_eq!((failed.len(), failed[0].target.len(), failed[0].reason.len()), (8, 128, 64));
}
