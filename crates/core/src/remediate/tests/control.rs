//! The control group.

use super::*;
use crate::gate::GateView;
use crate::labels::Labels;
use crate::node::{NodeView, Taint};
use crate::record::InconclusiveReason;
use crate::remediate::control::{RUN_EXPIRES_AFTER, RUN_INTERVAL, eligible_nodes, expired_controls};
use crate::worker::WorkerView;

use Outcome::{Failed, Inconclusive, Passed, Skipped};

fn judged(age: u64, controls: Vec<Progress>) -> Comparison {
    compared(age, controls).compare(2, &[check("dns", "kubernetes.")])
}

fn silent() -> Progress {
    Progress::Inconclusive(InconclusiveReason::ImagePull, "no image".into())
}

#[test]
fn a_node_is_replaced_only_if_the_controls_pass() {
    assert_eq!(judged(10, vec![dns(Passed), dns(Passed)]), Comparison::ControlsPassed);
    let one = judged(10, vec![dns(Passed), dns(Failed)]);
    assert_eq!(
        one,
        Comparison::ControlsFailed("dns kubernetes. on control-1: Timeout".into()),
        "one of two is enough"
    );
    let early = judged(10, vec![dns(Failed), Progress::Running]);
    assert!(matches!(early, Comparison::ControlsFailed(_)), "without waiting for the other: {early:?}");
    assert_eq!(judged(10, vec![dns(Passed), Progress::Running]), Comparison::Running);
    let other = report(&[("dns", "kubernetes.", Passed), ("tcp", "x:1", Failed)]);
    assert_eq!(
        judged(10, vec![dns(Passed), other]),
        Comparison::ControlsPassed,
        "a control fails something else"
    );
    let other = report(&[("dns", "elsewhere.", Failed), ("dns", "kubernetes.", Passed)]);
    assert_eq!(judged(10, vec![dns(Passed), other]), Comparison::ControlsPassed, "or of another target");
}

#[test]
fn inconclusive_controls_do_not_count() {
    assert_eq!(judged(10, vec![dns(Passed), silent()]), Comparison::TooFewControls(1));
    assert_eq!(judged(10, vec![silent(), silent()]), Comparison::TooFewControls(0));
    for outcome in [Inconclusive, Skipped] {
        assert_eq!(judged(10, vec![dns(Passed), dns(outcome)]), Comparison::TooFewControls(1), "{outcome}");
    }
    let without = report(&[("dns", "other.", Inconclusive)]);
    assert_eq!(judged(10, vec![dns(Passed), without]), Comparison::TooFewControls(1));
}

#[test]
fn a_truncated_report_counts_by_its_verdict() {
    let cut = |outcome| {
        let Progress::Reported(mut report) = report(&[("api", "x", outcome)]) else { panic!("a report") };
        report.left_out = 40;
        Progress::Reported(report)
    };
    assert_eq!(judged(10, vec![dns(Passed), cut(Passed)]), Comparison::ControlsPassed);
    assert_eq!(judged(10, vec![dns(Passed), cut(Failed)]), Comparison::TooFewControls(1));
    let long = "x".repeat(300);
    let remembered = check("http", &"x".repeat(128));
    let run = |outcome| {
        compared(10, vec![report(&[("http", &long, outcome)]), report(&[("http", &long, outcome)])])
    };
    assert!(
        matches!(run(Failed).compare(2, std::slice::from_ref(&remembered)), Comparison::ControlsFailed(_)),
        "long targets are cut"
    );
    assert_eq!(run(Passed).compare(2, &[remembered]), Comparison::ControlsPassed);
}

#[test]
fn a_run_is_shared_for_a_minute_and_then_expires() {
    let both = || vec![dns(Passed), dns(Passed)];
    assert_eq!((judged(119, both()), judged(120, both())), (Comparison::ControlsPassed, Comparison::Due));
    let few = || vec![dns(Passed), silent()];
    assert_eq!((judged(59, few()), judged(60, few())), (Comparison::TooFewControls(1), Comparison::Due));
    let none = |eligible| {
        ControlGroupResult { eligible, ..ControlGroupResult::default() }
            .compare(2, &[check("dns", "kubernetes.")])
    };
    assert_eq!((none(2), none(1)), (Comparison::Due, Comparison::TooFewControls(1)));
    assert_eq!(
        ControlGroupResult::default().compare(0, &[check("dns", "")]),
        Comparison::ControlsPassed,
        "nothing is compared"
    );
}

#[test]
fn too_few_controls_block_the_remediation() {
    let mut world = World::with(|world| {
        world.compared = ControlGroupResult { eligible: 1, ..ControlGroupResult::default() }
    });
    let blocked = world.blocked();
    assert_eq!(
        (blocked.reason, blocked.requeue_after),
        (BlockReason::SharedDependencyDown, Some(RUN_INTERVAL))
    );
    assert!(
        blocked.message.contains("1 verified nodes of zone a")
            && blocked.message.contains("`spec.controlGroup.size`")
    );
    world.compared.eligible = 2;
    assert_eq!(world.block_reason(), Some(BlockReason::Comparing));
    world.compared = compared(10, vec![dns(Passed), dns(Failed)]);
    let blocked = world.blocked();
    assert!(
        blocked.reason == BlockReason::SharedDependencyDown && blocked.message.contains("control-1"),
        "{}",
        blocked.message
    );
    world.policy().spec.control_group.size = 0;
    assert_eq!(world.block_reason(), None);
}

#[test]
fn an_outage_blocks_its_zone_and_check_and_recyclers() {
    let blocked =
        |down: SharedOutage| World::with(|world| world.policy().status.down = vec![down]).block_reason();
    assert_eq!(blocked(down("a", "dns", "kubernetes.")), Some(BlockReason::SharedDependencyDown));
    assert_eq!(blocked(down("a", "dns", "")), Some(BlockReason::SharedDependencyDown));
    assert_eq!(blocked(down("b", "dns", "kubernetes.")), None, "in another zone");
    assert_eq!(blocked(down("a", "dns", "other.")), None);
    assert_eq!(blocked(down("a", "tcp", "kubernetes.")), None);
    let mut recycled = World::by_person();
    recycled.policy().status.down = vec![down("a", "tcp", "x:1")];
    assert_eq!(recycled.block_reason(), None, "a person knows");
    recycled.request.spec.causes = vec![cause(CauseSource::Recycler, at(0))];
    assert_eq!(recycled.block_reason(), Some(BlockReason::SharedDependencyDown));
}

/// The gate withdraws its verdict as soon as it knows of the outage.
#[test]
fn a_withdrawn_verdict_is_explained_by_the_outage() {
    let mut world = World::with(|world| {
        let record = world.target().record.as_mut().expect("there is one");
        (record.verdict, record.cause) =
            (Some(Verdict::Inconclusive), Some(InconclusiveReason::SharedDependency));
    });
    assert_eq!(world.block_reason(), Some(BlockReason::EvidenceExpired), "it is over");
    world.policy().status.down = vec![down("a", "dns", "kubernetes.")];
    let blocked = world.blocked();
    assert_eq!(blocked.reason, BlockReason::SharedDependencyDown);
    assert!(blocked.message.contains("fix this shared dependency"), "{}", blocked.message);
    world.target().record.as_mut().expect("there is one").cause = None;
    assert_eq!(world.block_reason(), Some(BlockReason::EvidenceExpired));
}

fn kept(policy: &Policy, compared: &ControlGroupResult, now: Timestamp) -> RemediationPolicyStatus {
    policy::keep(
        policy,
        &[],
        &[("default".into(), "a".into(), compared.clone())],
        NodeProgress::InReplacement,
        now,
    )
}

#[test]
fn i06_remediation_waits_after_a_recovery() {
    let mut policy = policy();
    policy.status = kept(&policy, &compared(5, vec![dns(Failed), Progress::Running]), at(0));
    let [only] = &policy.status.down[..] else { panic!("{:?}", policy.status) };
    assert_eq!((&*only.zone, &*only.check, &*only.target, only.since), ("a", "dns", "kubernetes.", at(0)));
    let said =
        policy.status.conditions.iter().find(|one| one.type_ == "SharedDependencyDown").expect("it is there");
    assert_eq!((&*said.status, &*said.reason), ("True", "ControlsFail"));
    for controls in
        [vec![dns(Failed), dns(Passed)], vec![dns(Passed), silent()], vec![dns(Passed), Progress::Running]]
    {
        let status = kept(&policy, &compared(5, controls.clone()), at(1));
        assert_eq!((status.down.len(), status.cooldown_until), (1, None), "{controls:?}");
        assert_eq!(status.down[0].since, at(0));
    }
    let back = compared(5, vec![dns(Passed), dns(Passed)]);
    policy.status = kept(&policy, &back, at(2));
    assert_eq!((policy.status.down.len(), policy.status.cooldown_until), (0, Some(at(12))));
    policy.status = kept(&policy, &back, at(5));
    assert_eq!(policy.status.cooldown_until, Some(at(12)), "the same run does not make it longer");
    let mut world = World::new();
    world.policy = Some(policy.clone());
    for (minute, expected) in
        [(5, Some(BlockReason::Recovering)), (11, Some(BlockReason::Recovering)), (12, None)]
    {
        world.now = at(minute);
        world.request.spec.causes[0].observed_at = Some(at(minute));
        world.target().record = Some(failed_record("n1", at(minute)));
        assert_eq!(world.block_reason(), expected, "minute {minute}");
    }
    assert_eq!(kept(&policy, &back, at(12)).cooldown_until, None);
}

#[test]
fn a_skipped_check_does_not_prolong_an_outage() {
    let mut policy = policy();
    policy.status = kept(&policy, &compared(5, vec![dns(Failed), dns(Skipped)]), at(0));
    let matches_outage = |controls| !kept(&policy, &compared(5, controls), at(1)).down.is_empty();
    assert!(!matches_outage(vec![dns(Passed), dns(Skipped)]));
    assert!(matches_outage(vec![dns(Skipped), dns(Skipped)]), "no control tried it");
    assert!(matches_outage(vec![dns(Passed), dns(Inconclusive)]));
    assert!(matches_outage(vec![dns(Passed)]), "too few");
}

#[test]
fn an_outage_without_a_control_group_is_dropped() {
    let mut policy = policy();
    policy.status.down = vec![down("a", "dns", "kubernetes."), down("b", "dns", "kubernetes.")];
    let running = compared(5, vec![Progress::Running]);
    assert_eq!(kept(&policy, &running, at(0)).down, [down("a", "dns", "kubernetes.")], "no run in zone b");
    policy.spec.control_group.size = 0;
    assert_eq!(kept(&policy, &running, at(0)).down, []);
    let names: Vec<String> = (0..99).map(|i| format!("x{i}:1")).collect();
    let many: Vec<(&str, &str, Outcome)> = names.iter().map(|name| ("tcp", name.as_str(), Failed)).collect();
    policy.spec.control_group.size = 2;
    assert_eq!(
        kept(&policy, &compared(5, vec![report(&many)]), at(0)).down.len(),
        64,
        "as the schema has it"
    );
}

#[test]
fn the_policy_reports_a_lack_of_controls() {
    let mut blocked = request("x", vec![cause(CauseSource::Gate, at(0))]);
    let too_few = World::with(|world| world.compared = ControlGroupResult::default()).blocked();
    blocked.status = blocked.status_with(too_few.findings(), at(0));
    let said = policy::status_of(&policy(), &[blocked]).conditions;
    let shared = said.iter().find(|one| one.type_ == "SharedDependencyDown").expect("it is there");
    assert_eq!((&*shared.status, &*shared.reason), ("True", "NothingToCompareWith"));
    assert!(shared.message.contains("1 nodes wait"), "{}", shared.message);
}

pub(super) fn gate() -> GateView {
    GateView {
        name: "default".into(),
        uid: "gate-1".into(),
        resource_version: String::new(),
        generation: 1,
        created: at(0),
        deleting: false,
        last_applied: None,
        spec: crate::api::NodeGateSpec::default(),
        status: crate::api::NodeGateStatus::default(),
    }
}

pub(super) fn verified(name: &str) -> NodeView {
    let uid = format!("uid-{name}");
    let mut labels = Labels::default();
    labels.insert("topology.kubernetes.io/zone", "a");
    let record = Record { verdict: Some(Verdict::Passed), ..failed_record(&uid, at(0)) };
    NodeView {
        name: name.into(),
        uid: uid.into(),
        ready: true,
        labels,
        record: Some(record.opened("label").into()),
        ..NodeView::default()
    }
}

#[test]
fn controls_are_verified_schedulable_nodes_of_the_zone() {
    let fits = |change: fn(&mut NodeView)| {
        let mut node = verified("n");
        change(&mut node);
        eligible_nodes([&node], &gate(), "a", 1).len() == 1
    };
    assert!(fits(|_| ()));
    assert!(!fits(|node| node.ready = false));
    assert!(!fits(|node| node.unschedulable = true));
    assert!(!fits(|node| node.terminating = true));
    assert!(!fits(|node| node.record = None));
    assert!(!fits(|node| node.labels.insert("topology.kubernetes.io/zone", "b")));
    assert!(!fits(|node| {
        node.taints = vec![Taint { key: "node-ready/unverified".into(), effect: "NoSchedule".into() }];
    }));
    assert!(!fits(|node| node.record = Some(failed_record("uid-n", at(0)).into())));
    let of_other = GateView { uid: "gate-2".into(), ..gate() };
    assert_eq!(eligible_nodes([&verified("n")], &of_other, "a", 1).len(), 0);
    let nodes: Vec<NodeView> = (0..20).map(|i| verified(&format!("n{i}"))).collect();
    let first = |number| eligible_nodes(&nodes, &gate(), "a", number)[0].name.clone();
    assert!((1..20).any(|number| first(number) != first(0)), "others each time");
    assert_eq!(first(7), first(7));
}

pub(super) fn control(node: &str, number: u32, generation: i64, seen: u64) -> WorkerView {
    WorkerView {
        name: crate::worker::control_name(node, number),
        uid: node.into(),
        resource_version: "1".into(),
        first_seen: Duration::from_secs(seen),
        unscheduled_since: Duration::ZERO,
        deleting: false,
        node_name: node.into(),
        identity: WorkerIdentity {
            node_uid: node.into(),
            boot_id: "b".into(),
            gate_uid: "gate-1".into(),
            gate_generation: generation,
            number,
        },
        progress: Progress::Running,
    }
}

#[test]
fn the_last_run_of_a_gate_in_a_zone_counts() {
    let all = [
        control("x", 1, 1, 0),
        control("y", 2, 1, 70),
        control("z", 2, 1, 65),
        control("far", 3, 1, 90),
        control("v", 4, 2, 95),
    ];
    let run_at = |elapsed, minute| {
        ControlGroupResult::new(&gate(), &all, |node| node != "far", 5, Duration::from_secs(elapsed), minute)
            .run
    };
    let run = |elapsed| run_at(elapsed, 3);
    let last = run(100).expect("a run");
    assert_eq!(last.age, Duration::from_secs(35), "since its first worker");
    assert_eq!(last.controls.iter().map(|(node, _)| &**node).collect::<Vec<_>>(), ["y", "z"]);
    assert_eq!((run(304).is_some(), run(305)), (true, None), "then it is stale");
    let age = |minute| run_at(100, minute).map(|run| run.age);
    assert_eq!(age(5), Some(Duration::from_mins(2)), "who leads since a moment saw it late");
    assert_eq!(
        (age(7), age(1)),
        (None, Some(Duration::from_secs(35))),
        "a clock behind makes nothing younger"
    );
}

#[test]
fn names_of_control_pods_are_valid_labels() {
    let uid = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0";
    let minute: Timestamp = "2400-01-01T00:00:00Z".parse().expect("a time");
    let number = u32::try_from(minute.as_second() / 60).expect("a number");
    let name = crate::worker::control_name(uid, number);
    assert!(name.len() <= 63, "{name}");
    assert_ne!(name, crate::worker::name(uid, number));
}

/// The run was over before the node failed: DNS may have gone down in between, for all.
#[test]
fn a_run_before_the_failure_does_not_count() {
    let before = ControlGroupResult {
        since_failure: Duration::from_secs(9),
        ..compared(10, vec![dns(Passed), dns(Passed)])
    };
    assert_eq!(before.compare(2, &[check("dns", "kubernetes.")]), Comparison::Running);
    let due = ControlGroupResult {
        since_failure: Duration::from_secs(9),
        ..compared(60, vec![dns(Passed), dns(Passed)])
    };
    assert_eq!(due.compare(2, &[check("dns", "kubernetes.")]), Comparison::Due);
    let after = ControlGroupResult {
        since_failure: Duration::from_secs(10),
        ..compared(10, vec![dns(Passed), dns(Passed)])
    };
    assert_eq!(after.compare(2, &[check("dns", "kubernetes.")]), Comparison::ControlsPassed);
}

#[test]
fn runs_do_not_overlap_and_start_once_a_minute() {
    assert!(ControlGroupResult::default().is_due(), "there was none");
    let due = |age, controls| compared(age, controls).is_due();
    assert_eq!((due(59, vec![dns(Failed), silent()]), due(60, vec![dns(Failed), silent()])), (false, true));
    assert!(!due(60, vec![dns(Passed), Progress::Running]), "it is not over");
}

#[test]
fn control_workers_expire_with_age_or_a_newer_run() {
    let ended = |node: &str, number| WorkerView { progress: dns(Passed), ..control(node, number, 1, 10) };
    let gone = |all: &[WorkerView], elapsed| {
        let zone_of = |node: &str| Some(node[..1].to_owned());
        let expired =
            expired_controls(&all.iter().collect::<Vec<_>>(), zone_of, Duration::from_secs(elapsed));
        expired.into_iter().map(|one| one.node_name.clone()).collect::<Vec<_>>()
    };
    let all = [ended("a1", 1), ended("a2", 2), ended("b1", 1), control("a3", 1, 1, 10)];
    assert_eq!(gone(&all, 20), ["a1"], "the last of a zone stays, and so does what still looks");
    let other_gate = |mut one: WorkerView| {
        one.identity.gate_uid = "gate-2".into();
        one
    };
    assert!(gone(&[ended("a1", 1), other_gate(ended("a2", 2))], 20).is_empty());
    let stale = 10 + RUN_EXPIRES_AFTER.as_secs();
    assert_eq!((gone(&all[3..], stale - 1).len(), gone(&all[3..], stale)), (0, vec!["a3".to_owned()]));
    let terminating = WorkerView { deleting: true, ..control("a3", 1, 1, 10) };
    assert!(gone(&[terminating], stale).is_empty(), "once is enough");
}
