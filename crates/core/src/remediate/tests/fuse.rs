//! The generation fuse.

use super::*;
use crate::api::FuseState;
use crate::remediate::fuse::{prune, record_replacement};

/// Two generations of replacements failed before this node was made.
pub(super) fn blow(world: &mut World) {
    world.policy().status.fuses = vec![fuse_state(&[-90, -60])];
}

fn fuse_state(minutes: &[i64]) -> FuseState {
    FuseState {
        group: "pool".into(),
        check: "dns".into(),
        generations: minutes.iter().map(|minute| at(*minute)).collect(),
        template: String::new(),
        shared: [("image".to_owned(), "ami-1".to_owned()), ("zone".to_owned(), "a".to_owned())].into(),
    }
}

/// A node of this type, which is not known if it is empty.
fn verdict(created: i64, passed: bool, kind: &str) -> NodeVerdict {
    let labels = [(crate::topology::INSTANCE_TYPE, kind)].into_iter().filter(|(_, kind)| !kind.is_empty());
    NodeVerdict { created: at(created), passed, labels: labels.collect() }
}

/// A node that is made now fails, and is replaced if it may be.
fn replace(policy: &mut Policy, created: i64, change: fn(&mut World)) -> Option<BlockReason> {
    let mut world = World::new();
    let now = at(created + 10);
    world.target().created = at(created);
    world.target().record = Some(failed_record("n1", now));
    world.request.spec.causes = vec![cause(CauseSource::Gate, now)];
    policy.spec.budget = crate::api::Budget {
        max_in_flight_per_group: 99,
        max_in_flight_per_zone: 99,
        max_in_flight: 99,
        max_per_hour: 99,
        max_group_percent_per_hour: 100,
    };
    policy.status.reservations.clear();
    (world.policy, world.now) = (Some(policy.clone()), now);
    change(&mut world);
    match world.evaluate() {
        Approval::Approved(status) => {
            policy.status = *status;
            None
        }
        Approval::Blocked(blocked) => Some(blocked.reason),
    }
}

#[test]
fn the_second_generation_of_replacements_is_not_replaced() {
    let mut policy = policy();
    assert_eq!(replace(&mut policy, 0, |_| ()), None, "generation 0");
    assert_eq!(policy.status.fuses[0].generations, [at(10)]);
    assert_eq!(
        replace(&mut policy, 5, |_| ()),
        None,
        "created before the first replacement: the same generation"
    );
    assert_eq!(policy.status.fuses[0].generations, [at(10)]);
    assert_eq!(replace(&mut policy, 20, |_| ()), None, "generation 1");
    assert_eq!(policy.status.fuses[0].generations, [at(10), at(30)]);
    assert_eq!(replace(&mut policy, 25, |_| ()), None, "another of generation 1");
    assert_eq!(policy.status.fuses[0].generations, [at(10), at(30)]);
    assert_eq!(replace(&mut policy, 40, |_| ()), Some(BlockReason::FuseBlown), "generation 2");
    assert_eq!(replace(&mut policy, 28, |_| ()), None, "a straggler of generation 1 goes on");
    policy.spec.fuse.generations = 3;
    assert_eq!(replace(&mut policy, 40, |_| ()), None, "as many as the policy allows");
}

#[test]
fn a_fuse_belongs_to_a_group_and_a_check() {
    let mut one = policy();
    for (minute, kind) in [(0, "m5"), (20, "c6")] {
        let mut world = World::new();
        world.target().attributes = [("type".to_owned(), kind.to_owned())].into();
        world.target().created = at(minute);
        let names = ["dns"];
        let target = world.target.expect("one");
        let group = GroupCounts::default();
        record_replacement(&mut one.status.fuses, &policy(), &names, &target, &group, at(minute + 10));
    }
    assert_eq!((one.status.fuses.len(), one.status.fuses[0].shared.len()), (1, 0), "they share no type");
    assert_eq!(replace(&mut one, 40, |world| world.target().zone = "b".into()), Some(BlockReason::FuseBlown));
    assert_eq!(replace(&mut one.clone(), 40, |world| world.target().group = "other".into()), None);
    let other_check: fn(&mut World) = |world| {
        world.request.spec.causes[0].checks = vec![check("tcp", "x:1")];
        world.compared = compared(
            10,
            vec![report(&[("tcp", "x:1", Outcome::Passed)]), report(&[("tcp", "x:1", Outcome::Passed)])],
        );
    };
    assert_eq!(replace(&mut one, 40, other_check), None);
}

#[test]
fn a_blown_fuse_names_common_attributes() {
    let mut world = World::with(blow);
    world.target().attributes = [("image", "ami-1"), ("type", "m5"), ("zone", "b")]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    let message = world.blocked().message;
    assert!(
        message.contains("2 generations") && message.contains("all of them have image ami-1."),
        "{message}"
    );
    world.target().attributes.clear();
    assert!(world.blocked().message.contains("neither image nor type nor zone"));
}

#[test]
fn a_reset_forgets_earlier_replacements() {
    let mut reset = World::with(blow);
    reset.policy().spec.fuse.reset_at = Some(at(-60));
    let status = reset.approved();
    assert_eq!(status.fuses[0].generations, [at(1)], "it begins anew");
    let mut between = World::with(blow);
    between.policy().spec.fuse.reset_at = Some(at(-61));
    assert_eq!(between.block_reason(), None, "one generation is left of two");
    let mut before = World::with(blow);
    before.policy().spec.fuse.reset_at = Some(at(-91));
    assert_eq!(before.block_reason(), Some(BlockReason::FuseBlown));
    let mut to_come = World::with(blow);
    to_come.policy().spec.fuse.reset_at = Some(at(2));
    assert_eq!(to_come.block_reason(), Some(BlockReason::FuseBlown), "a time to come does not switch it off");
}

#[test]
fn an_annotation_resets_one_fuse_or_all() {
    let reset = |value: &str, minute: i64| {
        let mut world = World::with(blow);
        world.policy().annotations.reset_fuse = Some(format!("{value}@{}", at(minute)));
        world.block_reason()
    };
    assert_eq!((reset("*", -60), reset("pool/dns", -60)), (None, None));
    assert_eq!(reset("*", -91), Some(BlockReason::FuseBlown), "the replacements were later");
    assert_eq!(reset("*", 2), Some(BlockReason::FuseBlown), "a time in the future does not turn it off");
    assert_eq!(reset("pool/tcp", -60), Some(BlockReason::FuseBlown), "another check");
    assert_eq!(reset("other/dns", -60), Some(BlockReason::FuseBlown), "another group");
    let mut policy = policy();
    policy.status.fuses = vec![fuse_state(&[-90, -60])];
    policy.annotations.reset_fuse = Some(format!("pool/dns@{}", at(0)));
    policy.status = policy::status_of(&policy, &[]);
    assert_eq!(policy.status.fuses, vec![], "the reset lasts after the annotation was removed");
}

#[test]
fn a_new_template_or_passing_nodes_reset_the_fuse() {
    let mut world = World::with(blow);
    world.policy().status.fuses[0].template = "hash-1".into();
    assert_eq!(world.block_reason(), Some(BlockReason::FuseBlown), "the template of the node is unknown");
    world.target().template = "hash-1".into();
    assert_eq!(world.block_reason(), Some(BlockReason::FuseBlown));
    world.target().template = "hash-2".into();
    let fuses = world.approved().fuses;
    assert_eq!((&*fuses[0].template, &fuses[0].generations[..]), ("hash-2", &[at(1)][..]));

    let well = |judged: &[(i64, bool)]| {
        let mut world = World::with(blow);
        let facts = world.group_stats.groups.get_mut("pool").expect("it is there");
        facts.verdicts = judged.iter().map(|(minute, passed)| verdict(*minute, *passed, "")).collect();
        world.block_reason().is_none()
    };
    assert!(well(&[(-10, true), (-20, true), (-30, false)]));
    assert!(!well(&[(-10, true), (-30, false)]), "half of them is not most");
    assert!(!well(&[(-70, true), (-80, true), (-30, false)]), "those of before do not count");
}

#[test]
fn each_failed_check_has_a_fuse() {
    let mut world = World::new();
    world.request.spec.causes[0].checks =
        vec![check("tcp", "x:1"), check("dns", "kubernetes."), check("dns", "b.")];
    world.compared = compared(1, vec![]);
    world.policy().spec.control_group.size = 0;
    let fuses = world.approved().fuses;
    assert_eq!(fuses.iter().map(|fuse| &*fuse.check).collect::<Vec<_>>(), ["dns", "tcp"]);
    blow(&mut world);
    assert_eq!(world.block_reason(), Some(BlockReason::FuseBlown));
}

#[test]
fn fuses_expire_after_a_week_and_fit_the_schema() {
    let mut fuses = vec![fuse_state(&[0])];
    let week = 7 * 24 * 60;
    prune(&mut fuses, &policy(), &GroupStats::default(), at(week) - SignedDuration::from_secs(1));
    assert_eq!(fuses.len(), 1);
    prune(&mut fuses, &policy(), &GroupStats::default(), at(week));
    assert_eq!(fuses.len(), 0);
    for i in 0..200 {
        let target = Target { group: format!("pool-{i}"), ..target("n1") };
        record_replacement(&mut fuses, &policy(), &["dns"], &target, &GroupCounts::default(), at(i));
    }
    assert_eq!((fuses.len(), &*fuses[127].group), (128, "pool-199"));
}

/// The machine types of a group whose newer nodes of type m5 fail and of type c6 pass.
fn mixed_group(world: &mut World) {
    let newer = [(-20, false, "m5"), (-10, true, "c6"), (-11, true, "c6"), (-12, true, "c6")];
    let facts = world.group_stats.groups.get_mut("pool").expect("it is there");
    facts.verdicts =
        newer.into_iter().map(|(created, passed, kind)| verdict(created, passed, kind)).collect();
}

fn of_type(kind: &str) -> std::collections::BTreeMap<String, String> {
    [("type".to_owned(), kind.to_owned()), ("image".to_owned(), "ami-1".to_owned())].into()
}

#[test]
fn r09_a_type_that_always_fails_is_not_replaced_for_ever() {
    let mut world = World::with(|world| {
        blow(world);
        mixed_group(world);
        world.policy().status.fuses[0].shared = of_type("m5");
        world.target().attributes = of_type("m5");
    });
    assert_eq!(world.block_reason(), Some(BlockReason::FuseBlown), "that c6 passes says nothing about m5");
    let mut fuses = world.policy().status.fuses.clone();
    prune(&mut fuses, &policy(), &world.group_stats, at(1));
    assert_eq!(fuses.len(), 1, "and the fuse is not forgotten");
    for minute in [-5, -6] {
        let facts = world.group_stats.groups.get_mut("pool").expect("it is there");
        facts.verdicts.push(verdict(minute, true, "m5"));
    }
    assert_eq!(world.block_reason(), None, "most newer nodes of type m5 pass");
    prune(&mut fuses, &policy(), &world.group_stats, at(1));
    assert_eq!(fuses.len(), 0);
}

#[test]
fn r09_a_bad_machine_of_another_type_has_a_fuse_of_its_own() {
    let world = World::with(|world| {
        blow(world);
        mixed_group(world);
        world.policy().status.fuses[0].shared = of_type("m5");
        world.target().attributes = of_type("c6");
    });
    let fuses = world.approved().fuses;
    let kinds: Vec<_> = fuses.iter().map(|fuse| (&*fuse.shared["type"], fuse.generations.len())).collect();
    assert_eq!(kinds, [("m5", 2), ("c6", 1)], "what the others have in common is not forgotten");
    let mut all_fail = World::with(|world| {
        blow(world);
        world.policy().status.fuses[0].generations.pop();
        world.policy().status.fuses[0].shared = of_type("m5");
        world.target().attributes = of_type("c6");
    });
    let facts = all_fail.group_stats.groups.get_mut("pool").expect("it is there");
    facts.verdicts = vec![verdict(-10, false, "m5"), verdict(-10, false, "c6")];
    let fuses = all_fail.approved().fuses;
    assert_eq!((fuses.len(), fuses[0].generations.len()), (1, 2), "where all types fail, they share a fuse");
    assert_eq!(fuses[0].shared.keys().collect::<Vec<_>>(), ["image"]);
}

#[test]
fn r09_type_and_image_of_each_node_are_cached() {
    let wanted = crate::gate::wanted_labels([]);
    for key in ["node.kubernetes.io/instance-type", "karpenter.k8s.aws/instance-ami-id"] {
        assert!(wanted.contains(key), "{key}");
    }
    let labels = |pairs: &[(&str, &str)]| pairs.iter().copied().collect::<crate::labels::Labels>();
    let attributes = of_type("m5");
    let may_have = |pairs| crate::remediate::target::may_have(&labels(pairs), &attributes);
    assert!(may_have(&[]) && may_have(&[("node.kubernetes.io/instance-type", "m5")]));
    assert!(!may_have(&[("node.kubernetes.io/instance-type", "c6")]));
    assert!(!may_have(&[("kubernetes.azure.com/node-image-version", "other")]));
}
