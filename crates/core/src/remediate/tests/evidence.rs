//! Evidence.

use std::collections::BTreeMap;

use super::*;
use crate::api::Enforcement;
use crate::remediate::evidence::{EvidenceInput, check_evidence};

#[test]
fn evidence_expires_after_its_ttl() {
    let blocked = |world: &mut World, seconds: i64| {
        world.now = at(0) + SignedDuration::from_secs(seconds);
        world.block_reason()
    };
    for world in [&mut World::new(), &mut World::by_person()] {
        assert_eq!(
            (blocked(world, 0), blocked(world, 600), blocked(world, 601)),
            (None, None, Some(BlockReason::EvidenceExpired))
        );
        world.policy().spec.evidence_seconds = 60;
        assert_eq!((blocked(world, 60), blocked(world, 61)), (None, Some(BlockReason::EvidenceExpired)));
    }
}

#[test]
fn evidence_from_the_future_is_refused() {
    let mut world = World::by_person();
    world.request.spec.causes = vec![cause(CauseSource::Person, at(60))];
    world.now = at(59);
    assert_eq!(world.block_reason(), None, "a minute is forgiven");
    world.now = at(59) - SignedDuration::from_secs(1);
    let blocked = world.blocked();
    assert_eq!(blocked.reason, BlockReason::EvidenceExpired);
    assert!(
        blocked.message.contains("person ada") && blocked.message.contains("`observedAt`"),
        "{}",
        blocked.message
    );
}

#[test]
fn without_observed_at_the_creation_time_counts() {
    let mut world = World::by_person();
    world.request.spec.causes[0].observed_at = None;
    world.request.created = at(0);
    assert_eq!(world.block_reason(), None);
    world.now = at(11);
    assert_eq!(world.block_reason(), Some(BlockReason::EvidenceExpired));
}

#[test]
fn a_cause_of_a_gate_has_to_match_the_record() {
    let gate = |change: fn(&mut Record)| {
        World::with(|world| change(world.target().record.as_mut().expect("there is one"))).block_reason()
    };
    assert_eq!(gate(|_| ()), None);
    assert_eq!(
        gate(|record| record.verdict = Some(Verdict::Inconclusive)),
        Some(BlockReason::EvidenceExpired)
    );
    assert_eq!(gate(|record| record.at = None), Some(BlockReason::EvidenceExpired));
    assert_eq!(gate(|record| record.scope.boot_id = "boot-0".into()), Some(BlockReason::NodeRebooted));
    assert_eq!(gate(|record| record.open = true), Some(BlockReason::NodeRecovered));
    assert_eq!(gate(|record| record.verdict = Some(Verdict::Passed)), Some(BlockReason::NodeRecovered));
    assert_eq!(
        World::with(|world| world.target().record = None).block_reason(),
        Some(BlockReason::EvidenceExpired)
    );
}

/// How a user withdraws a gate's request, and what the message says about it.
pub(super) const WITHDRAWALS: [(Change, &str); 8] = [
    (|world| world.target().view.taints.clear(), "no longer has a taint of gate default"),
    (|world| world.gate().spec.enforcement = Enforcement::Paused, "`spec.enforcement` of gate default"),
    (|world| world.gate().spec.enforcement = Enforcement::DryRun, "`spec.enforcement` of gate default"),
    (|world| world.gate().spec.on_failure = FailureAction::KeepTainted, "`spec.onFailure` of gate default"),
    (|world| world.gate().generation = 2, "was changed after the verdict"),
    (|world| world.gate().deleting = true, "was deleted"),
    (|world| world.gate().uid = "gate-2".into(), "was deleted"),
    (|world| world.gates.clear(), "was deleted"),
];

#[test]
fn r01_a_gate_cause_counts_only_while_its_gate_wants_it() {
    for (change, words) in WITHDRAWALS {
        let blocked = World::with(change).blocked();
        assert_eq!(blocked.reason, BlockReason::EvidenceExpired, "{words}");
        assert!(blocked.message.contains(words), "{}", blocked.message);
    }
    let other_taint = World::with(|world| world.target().view.taints[0].effect = "NoExecute".into());
    assert_eq!(other_taint.block_reason(), Some(BlockReason::EvidenceExpired));
    let mut stuck = stuck(true);
    assert_eq!(stuck.block_reason(), None);
    stuck.gate().spec.on_stuck = FailureAction::KeepTainted;
    assert!(stuck.blocked().message.contains("`spec.onStuck`"), "though it replaces nodes that fail");
}

#[test]
fn another_verdict_needs_another_request() {
    let blocked = World::with(|world| world.target().record = Some(failed_record("n1", at(1)))).blocked();
    assert_eq!(blocked.reason, BlockReason::EvidenceExpired);
    assert!(blocked.message.contains("request the remediation again"), "{}", blocked.message);
}

/// The gate was changed after the approval. A worker that still ran was recorded under the changed gate.
#[test]
fn an_approved_cause_ends_when_its_gate_verifies_the_node_anew() {
    let after_a_change = |mut world: World, change: fn(&mut Record)| {
        world.gate().generation = 2;
        let record = world.target().record.as_mut().expect("there is one");
        (record.scope.gate_generation, record.at) = (2, Some(at(1)));
        change(record);
        let (gate, target) = (world.gate().clone(), world.target().clone());
        check_evidence(&EvidenceInput {
            request: &world.request,
            target: &target,
            policy: Some(&policy()),
            gates: &[&gate],
            others: &BTreeMap::new(),
            approved_at: Some(at(0)),
            now: at(1),
        })
        .err()
        .map(|blocked| blocked.message)
    };
    let anew = Some("gate default verifies the node anew, and has not given up on it since".to_owned());
    assert_eq!(after_a_change(World::new(), |_| ()), None, "it has failed under the changed gate too");
    assert_eq!(after_a_change(World::new(), |record| record.attempts = 1), anew);
    assert_eq!(after_a_change(stuck(true), |_| ()), None);
    assert_eq!(after_a_change(stuck(true), |record| record.elapsed_seconds = 15), anew);
}

/// A node about which no worker of its gate reported.
fn stuck(ran_elsewhere: bool) -> World {
    let mut world = World::new();
    world.request.spec.causes[0].verdict = CauseVerdict::Stuck;
    world.request.spec.causes[0].checks = vec![];
    let inconclusive = Record {
        attempts: 0,
        elapsed_seconds: 600,
        verdict: Some(Verdict::Inconclusive),
        failed: vec![],
        ..failed_record("n1", at(0))
    };
    world.target().record = Some(inconclusive);
    world.ran_elsewhere = ran_elsewhere;
    world.compared = ControlGroupResult::default();
    world
}

#[test]
fn r08_a_stuck_node_waits_for_every_outage_of_its_zone() {
    let mut world = stuck(true);
    world.policy().status.down = vec![down("b", "dns", "kubernetes.")];
    assert_eq!(world.block_reason(), None);
    world.policy().status.down = vec![down("a", "tcp", "x:1")];
    assert_eq!(world.block_reason(), Some(BlockReason::SharedDependencyDown));
}

#[test]
fn a_stuck_node_needs_reports_from_other_nodes() {
    let fuse_state = stuck(true).approved().fuses;
    assert_eq!(
        (fuse_state.len(), &*fuse_state[0].check),
        (1, "Stuck"),
        "stuck replacements are a repeated failure, too"
    );
    let blocked = stuck(false).blocked();
    assert!(
        blocked.reason == BlockReason::EvidenceExpired && blocked.message.contains("same image"),
        "{}",
        blocked.message
    );
}

#[test]
fn an_ended_remediation_needs_a_new_observation() {
    let mut world = World::by_person();
    let given_up = vec![Finding::new("Succeeded", "False", "Paused", "")];
    world.request.status = world.request.status_with(given_up, at(0));
    let blocked = world.blocked();
    assert!(
        blocked.reason == BlockReason::EvidenceExpired && blocked.message.contains("not observed again"),
        "{}",
        blocked.message
    );
    world.request.spec.causes[0].observed_at = Some(at(0) + SignedDuration::from_secs(1));
    assert_eq!(world.block_reason(), None);
}

#[test]
fn only_fresh_causes_decide() {
    let mut world = World::by_person();
    let stale = RemediationCause { checks: vec![check("tcp", "x:1")], ..cause(CauseSource::Gate, at(-90)) };
    world.request.spec.causes.insert(0, stale);
    world.compared = ControlGroupResult::default();
    assert_eq!(world.approved().fuses, vec![], "what the gate said then is neither compared nor counted");
    world.policy().status.down = vec![down("a", "tcp", "x:1")];
    assert_eq!(world.block_reason(), None);
    world.request.spec.causes = vec![];
    assert_eq!(world.block_reason(), Some(BlockReason::EvidenceExpired));
}

#[test]
fn i05_evidence_expires_during_a_pause() {
    let mut world = World::by_person();
    world.policy().spec.pause = Some(Pause { reason: "sale".into(), until: at(30) });
    assert_eq!(world.block_reason(), Some(BlockReason::Paused));
    world.now = at(30);
    assert_eq!(world.block_reason(), Some(BlockReason::EvidenceExpired));
}

#[test]
fn i04_evidence_of_another_boot_is_void() {
    let mut world = World::new();
    world.target().identity.boot_id = "boot-2".into();
    assert_eq!(world.block_reason(), Some(BlockReason::NodeRebooted));
    world.request.spec.node.boot_id = String::new();
    assert_eq!(
        world.block_reason(),
        Some(BlockReason::NodeRebooted),
        "the record says which boot it is about"
    );
}

#[test]
fn the_latest_gate_cause_counts() {
    let mut older = cause(CauseSource::Gate, at(0));
    older.name = "older".into();
    let request =
        request("n1", vec![older, cause(CauseSource::Person, at(9)), cause(CauseSource::Gate, at(1))]);
    assert_eq!(request.newest_gate(), Some("default"));
}

/// Otherwise it would end again, and be written, in each reconcile.
#[test]
fn an_end_is_never_before_the_request() {
    let mut request = request("x", vec![cause(CauseSource::Gate, at(10))]);
    let over = Blocked::new(BlockReason::NodeRecovered, "it passed").findings();
    request.status = request.status_with(over.clone(), at(5));
    assert!(request.is_complete());
    assert_eq!(request.status_with(over, at(6)), request.status, "nothing new");
    request.spec.causes[0].observed_at = Some(at(11));
    assert!(!request.is_complete(), "it was requested again");
}
