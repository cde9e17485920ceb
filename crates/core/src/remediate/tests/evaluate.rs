//! The evaluation of a remediation against all limits.

use super::*;

#[test]
fn an_allowed_remediation_is_approved_and_reserved() {
    let status = World::new().approved();
    let [one] = &status.reservations[..] else { panic!("{status:?}") };
    assert_eq!((&*one.remediation, &*one.node, &*one.group, &*one.zone), ("n1", "node-n1", "pool", "a"));
    assert_eq!((one.at, one.ended), (at(1), None));
    assert_eq!(World::by_person().block_reason(), None);
}

/// What leads to each reason, and what its message has to say: the field and the fix.
const BLOCKS: [(BlockReason, Change, &[&str]); 22] = [
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
        BlockReason::MissingRights,
        |world| world.missing_rights = needed_rights(&world.policy().spec)[1..2].to_vec(),
        &["create pods/eviction", "`remediation.enforcement: Enforce`"],
    ),
    (
        BlockReason::BackOff,
        |world| world.request.status.backoff = Some(backoff::paused_until(at(70))),
        &["2 attempts", "DrainTimedOut", "13:10", "Delete the NodeRemediation"],
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

/// The reasons of the limits in the order in which the page has them.
fn documented_reasons() -> Vec<&'static str> {
    let page = include_str!("../../../../../docs/remediation.md");
    let limits = page.split("\n## ").find(|section| section.starts_with("The limits\n")).expect("a section");
    let rows = limits.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    rows.collect()
}

#[test]
fn u10_the_limits_are_documented_in_the_order_of_the_checks() {
    use BlockReason as Reason;
    let mut blocks = Vec::new();
    for name in documented_reasons().into_iter().filter(|name| *name != Reason::DryRun.as_str()) {
        let block = BLOCKS.into_iter().find(|(reason, ..)| reason.as_str() == name);
        blocks.push(block.unwrap_or_else(|| panic!("{name} blocks nothing")));
    }
    assert_eq!(blocks.len(), BLOCKS.len(), "{:?}", documented_reasons());
    // These are about a request of a person, and these need one of a gate.
    let by_person = [Reason::OutsideWindow, Reason::LastOpenNode];
    let by_gate = [Reason::NodeRecovered, Reason::SharedDependencyDown, Reason::FuseBlown, Reason::Comparing];
    // A node has one answer of its provider.
    let provider = [Reason::NotRegistered, Reason::ProviderUnreadable, Reason::NoProvider];
    for (index, (first, change_first, _)) in blocks.iter().enumerate() {
        for (second, change_second, _) in &blocks[index + 1..] {
            let is_both = |one: &[Reason], other: &[Reason]| one.contains(first) && other.contains(second);
            let is_impossible = is_both(&by_person, &by_gate)
                || is_both(&by_gate, &by_person)
                || is_both(&by_person, &by_person)
                || is_both(&provider, &provider);
            if is_impossible {
                continue;
            }
            let mut changes = [change_second, change_first];
            if by_person.contains(first) {
                // It begins with another world.
                changes.reverse();
            }
            let world = World::with(|world| changes.iter().for_each(|change| change(world)));
            assert_eq!(world.block_reason(), Some(*first), "before {second:?}");
        }
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
