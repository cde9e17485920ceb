mod act;
mod breaker;
mod budget;
mod control;
mod evidence;
mod fuse;
mod labels;
mod policy;
mod provider;
mod window;

use std::time::Duration;

use super::control::ControlRun;
use super::drain::PodView;
use super::provider::NodeClaimView;
use super::*;
use crate::api::{
    CauseVerdict, FailedCheck, NodeIdentity, NodeRemediationSpec, NodeRemediationStatus, Pause,
    RemediationPolicySpec, SharedOutage,
};
use crate::checks::WorkerIdentity;
use crate::condition::Finding;
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
        round: VerificationScope { boot_id: "boot-1".into(), gate_uid: "gate-1".into(), gate_generation: 1 },
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
        ..Target::default()
    }
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

/// All that is considered. As it is made, the act goes ahead.
struct World {
    request: Remediation,
    policy: Option<Policy>,
    target: Option<Target>,
    pods: Vec<PodView>,
    replacement: Replacement,
    group_stats: GroupStats,
    others: Vec<Remediation>,
    compared: ControlGroupResult,
    ran_elsewhere: bool,
    now: Timestamp,
}

impl World {
    fn new() -> Self {
        Self {
            request: request("n1", vec![cause(CauseSource::Gate, at(0))]),
            policy: Some(policy()),
            target: Some(target("n1")),
            pods: vec![],
            replacement: Replacement::Karpenter(claim("c1")),
            group_stats: group(20, 12),
            others: vec![],
            compared: compared(10, vec![dns(Outcome::Passed), dns(Outcome::Passed)]),
            ran_elsewhere: true,
            now: at(1),
        }
    }

    fn with(change: impl FnOnce(&mut Self)) -> Self {
        let mut world = Self::new();
        change(&mut world);
        world
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
        })
    }

    fn evaluate(&self) -> Approval {
        let requests: Vec<&Remediation> = self.others.iter().chain([&self.request]).collect();
        evaluate(&EvaluationInput {
            request: &self.request,
            policy: self.policy.as_ref(),
            target: self.target.as_ref(),
            pods: &self.pods,
            replacement: &self.replacement,
            group_stats: &self.group_stats,
            requests: &requests,
            compared: &self.compared,
            ran_elsewhere: self.ran_elsewhere,
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
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn an_allowed_remediation_is_approved_and_reserved() {
    let status = World::new().approved();
    let [one] = &status.reservations[..] else { panic!("{status:?}") };
    assert_eq!((&*one.remediation, &*one.node, &*one.group, &*one.zone), ("n1", "node-n1", "pool", "a"));
    assert_eq!((one.at, one.ended), (at(1), None));
    assert_eq!(World::by_person().block_reason(), None);
}

type Change = fn(&mut World);

/// What leads to each reason, and what its message has to say: the field and the fix.
const BLOCKS: [(BlockReason, Change, &[&str]); 20] = [
    (BlockReason::NodeGone, |world| world.target = None, &["no node node-n1"]),
    (
        BlockReason::NodeTerminating,
        |world| world.target().terminating = true,
        &["another controller is deleting the node"],
    ),
    (
        BlockReason::NodeRebooted,
        |world| world.target().identity.boot_id = "boot-2".into(),
        &["rebooted since"],
    ),
    (
        BlockReason::NodeRecovered,
        |world| world.target().record = Some(failed_record("n1", at(0)).opened("label")),
        &["has passed its gate"],
    ),
    (BlockReason::EvidenceExpired, |world| world.now = at(11), &["gate default", "600 s", "observed again"]),
    (
        BlockReason::Paused,
        |world| world.policy().spec.pause = Some(Pause { reason: "sale".into(), until: at(60) }),
        &["`spec.pause`", "sale", "13:00"],
    ),
    (
        BlockReason::OptedOut,
        |world| world.target().opted_out = Some("nodekeeper.dev/do-not-disrupt"),
        &["nodekeeper.dev/do-not-disrupt", "remove it"],
    ),
    (
        BlockReason::ControlPlane,
        |world| world.target().control_plane = true,
        &["`spec.allowedControlPlaneNodes`", "add the node"],
    ),
    (
        BlockReason::NotRegistered,
        |world| world.target().registered = false,
        &["Karpenter has not registered"],
    ),
    (BlockReason::NoProvider, |world| world.replacement = Replacement::None, &["`spec.deleteNodeObjectFor`"]),
    (
        BlockReason::ProviderUnreadable,
        |world| world.replacement = Replacement::Unknown("403".into()),
        &["403"],
    ),
    (
        BlockReason::PodNotEvictable,
        |world| world.pods = vec![PodView { managed: false, ..pod("p") }],
        &["shop/p", "`spec.drain.unmanagedPods`", "'Evict'"],
    ),
    (
        BlockReason::OutsideWindow,
        |world| {
            *world = World::by_person();
            world.policy().spec.windows = vec![window::between("22:00", "23:00")];
        },
        &["`spec.windows`"],
    ),
    (
        BlockReason::Recovering,
        |world| world.policy().status.cooldown_until = Some(at(5)),
        &["12:05", "`spec.controlGroup.recoverySeconds`"],
    ),
    (
        BlockReason::SharedDependencyDown,
        |world| world.policy().status.down = vec![down("a", "dns", "kubernetes.")],
        &["dns kubernetes.", "fix this shared dependency"],
    ),
    (
        BlockReason::BreakerOpen,
        |world| world.group_stats.verdicts = VerdictCounts { total: 10, failed: 4 },
        &["4 of 10", "10 %", "600 s", "`spec.breaker`"],
    ),
    (
        BlockReason::FuseBlown,
        fuse::blow,
        &["group pool", "check dns", "nodekeeper.dev/reset-fuse", "`spec.fuse.resetAt`"],
    ),
    (
        BlockReason::BudgetSpent,
        |world| world.policy().spec.budget.max_per_hour = 0,
        &["`spec.budget.maxPerHour`", "is 0"],
    ),
    (
        BlockReason::LastOpenNode,
        |world| {
            *world = World::by_person();
            world.group_stats = group(20, 1);
        },
        &["last schedulable node of group pool", "add another"],
    ),
    (
        BlockReason::Comparing,
        |world| world.compared.run = None,
        &["2 verified nodes of zone a", "gate default"],
    ),
];

#[test]
fn every_block_has_a_reason_and_says_what_to_do() {
    for (reason, change, words) in BLOCKS {
        let blocked = World::with(change).blocked();
        assert_eq!(blocked.reason, reason, "{}", blocked.message);
        for word in words {
            assert!(blocked.message.contains(word), "{reason:?} does not say {word}: {}", blocked.message);
        }
        let [approved, succeeded] = &blocked.findings()[..] else { panic!("two findings") };
        assert_eq!(
            (approved.type_, approved.status, approved.reason),
            ("Approved", "False", reason.as_str())
        );
        assert_eq!(reason.as_str(), format!("{reason:?}"));
        let ends =
            matches!(reason, BlockReason::NodeGone | BlockReason::NodeRebooted | BlockReason::NodeRecovered);
        assert_eq!(
            (succeeded.type_, succeeded.status),
            ("Succeeded", if ends { "False" } else { "Unknown" })
        );
    }
}

#[test]
fn a_dry_run_reports_what_would_happen() {
    let dry: Change = |world| world.policy().spec.enforcement = ActEnforcement::DryRun;
    let missing: Change = |world| world.policy = None;
    for (change, words) in [(dry, "`spec.enforcement`"), (missing, "there is no RemediationPolicy 'default'")]
    {
        let blocked = World::with(change).blocked();
        assert_eq!(blocked.reason, BlockReason::DryRun);
        assert!(blocked.message.contains(words), "{}", blocked.message);
        assert!(blocked.message.contains("replaced if they pass"), "{}", blocked.message);
        let blocked = World::with(|world| {
            change(world);
            world.replacement = Replacement::None;
        })
        .blocked();
        assert_eq!(blocked.reason, BlockReason::DryRun);
        assert!(
            blocked.message.contains("the node would not be replaced: NoProvider"),
            "{}",
            blocked.message
        );
    }
}

#[test]
fn a_dry_run_reports_only_ended_remediations_otherwise() {
    for (reason, change, _) in BLOCKS {
        let world = World::with(|world| {
            change(world);
            world.policy().spec.enforcement = ActEnforcement::DryRun;
        });
        let voids = matches!(
            reason,
            BlockReason::NodeGone
                | BlockReason::NodeTerminating
                | BlockReason::NodeRebooted
                | BlockReason::NodeRecovered
                | BlockReason::EvidenceExpired
        );
        assert_eq!(world.block_reason(), Some(if voids { reason } else { BlockReason::DryRun }));
    }
}

#[test]
fn a_node_is_identified_by_uid_and_machine() {
    let gone = |change: Change| assert_eq!(World::with(change).block_reason(), Some(BlockReason::NodeGone));
    gone(|world| world.target().identity.uid = "n2".into());
    gone(|world| world.request.spec.node.provider_id = "cloud://other".into());
    let same = World::with(|world| world.request.spec.node.provider_id = "cloud://n1".into());
    assert_eq!(same.block_reason(), None);
    let any_boot = World::with(|world| world.request.spec.node.boot_id = String::new());
    assert_eq!(any_boot.block_reason(), None);
}

#[test]
fn a_pause_ends_at_its_time_and_blocks_persons_too() {
    let paused = |now: i64| {
        let mut world = World::by_person();
        world.policy().spec.pause = Some(Pause { reason: "sale".into(), until: at(5) });
        world.now = at(now);
        world.block_reason()
    };
    assert_eq!((paused(4), paused(5)), (Some(BlockReason::Paused), None));
}

#[test]
fn do_not_disrupt_pods_block_and_allowed_control_planes_do_not() {
    let opted = PodView { opted_out: Some("karpenter.sh/do-not-disrupt"), ..pod("p") };
    let blocked = World::with(|world| world.pods = vec![pod("q"), opted]).blocked();
    assert_eq!(blocked.reason, BlockReason::OptedOut);
    assert!(blocked.message.contains("shop/p") && blocked.message.contains("karpenter.sh/do-not-disrupt"));
    let named = World::with(|world| {
        world.target().control_plane = true;
        world.policy().spec.allowed_control_plane_nodes = vec!["node-n1".into()];
    });
    assert_eq!(named.block_reason(), None);
}

#[test]
fn cluster_blocks_are_found_without_the_node() {
    let still = |policy: &Policy, verdicts| {
        let group_stats = GroupStats { verdicts, ..GroupStats::default() };
        cluster_block(Some(policy), &[], &group_stats, at(1)).map(|blocked| blocked.reason)
    };
    let calm = VerdictCounts::default();
    assert_eq!(still(&policy(), calm), None);
    assert_eq!(still(&policy(), VerdictCounts { total: 5, failed: 5 }), Some(BlockReason::BreakerOpen));
    let mut spent = policy();
    spent.status.reservations = vec![reservation("x", at(0)), reservation("y", at(0))];
    assert_eq!(still(&spent, calm), Some(BlockReason::BudgetSpent));
    spent.spec.enforcement = ActEnforcement::DryRun;
    assert_eq!(still(&spent, calm), None, "a dry run says what would happen to each");
}
