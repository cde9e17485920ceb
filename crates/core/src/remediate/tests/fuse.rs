//! The generation fuse.

use super::*;
use crate::api::{Fuse, FuseState};
use crate::remediate::fuse::settle;

/// Two generations of replacements failed before this node was made.
pub(super) fn blow(world: &mut World) {
    world.policy().status.fuses = vec![burnt(&[-90, -60])];
}

fn burnt(minutes: &[i64]) -> FuseState {
    FuseState {
        group: "pool".into(),
        check: "dns".into(),
        generations: minutes.iter().map(|minute| at(*minute)).collect(),
        template: String::new(),
        shared: [("image".to_owned(), "ami-1".to_owned()), ("zone".to_owned(), "a".to_owned())].into(),
    }
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
        Approval::Approve(status) => {
            policy.status = *status;
            None
        }
        Approval::BlockReason(held) | Approval::Compare(held) => Some(held.hold),
    }
}

#[test]
fn the_second_generation_of_replacements_is_not_replaced() {
    let mut policy = policy();
    assert_eq!(replace(&mut policy, 0, |_| ()), None, "generation 0");
    assert_eq!(policy.status.fuses[0].generations, [at(10)]);
    assert_eq!(replace(&mut policy, 5, |_| ()), None, "made before the first act: the same generation");
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
fn the_key_is_group_and_check_whatever_machine_it_is() {
    let mut one = policy();
    for (minute, kind) in [(0, "m5"), (20, "c6")] {
        let mut world = World::new();
        world.target().attributes = [("type".to_owned(), kind.to_owned())].into();
        world.target().created = at(minute);
        let names = ["dns"];
        let target = world.target.expect("one");
        crate::remediate::fuse::burn(
            &mut one.status.fuses,
            &Fuse::default(),
            &names,
            &target,
            at(minute + 10),
        );
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
fn it_says_what_all_of_them_have_in_common() {
    let mut world = World::with(blow);
    world.target().attributes = [("image", "ami-1"), ("type", "m5"), ("zone", "b")]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    let message = world.held().message;
    assert!(
        message.contains("2 generations") && message.contains("all of them have image ami-1."),
        "{message}"
    );
    world.target().attributes.clear();
    assert!(world.held().message.contains("neither image nor type nor zone"));
}

#[test]
fn a_person_resets_it_for_what_happened_before() {
    let mut reset = World::with(blow);
    reset.policy().spec.fuse.reset_at = Some(at(-60));
    let status = reset.approved();
    assert_eq!(status.fuses[0].generations, [at(1)], "it begins anew");
    let mut between = World::with(blow);
    between.policy().spec.fuse.reset_at = Some(at(-61));
    assert_eq!(between.hold(), None, "one generation is left of two");
    let mut before = World::with(blow);
    before.policy().spec.fuse.reset_at = Some(at(-91));
    assert_eq!(before.hold(), Some(BlockReason::FuseBlown));
    let mut to_come = World::with(blow);
    to_come.policy().spec.fuse.reset_at = Some(at(2));
    assert_eq!(to_come.hold(), Some(BlockReason::FuseBlown), "a time to come does not switch it off");
}

#[test]
fn another_template_and_a_group_that_is_well_begin_anew() {
    let mut world = World::with(blow);
    world.policy().status.fuses[0].template = "hash-1".into();
    assert_eq!(world.hold(), Some(BlockReason::FuseBlown), "nobody knows the node's");
    world.target().template = "hash-1".into();
    assert_eq!(world.hold(), Some(BlockReason::FuseBlown));
    world.target().template = "hash-2".into();
    let fuses = world.approved().fuses;
    assert_eq!((&*fuses[0].template, &fuses[0].generations[..]), ("hash-2", &[at(1)][..]));

    let well = |judged: &[(i64, bool)]| {
        let mut world = World::with(blow);
        let facts = world.group_stats.groups.get_mut("pool").expect("it is there");
        facts.judged = judged.iter().map(|(minute, passed)| (at(*minute), *passed)).collect();
        world.hold().is_none()
    };
    assert!(well(&[(-10, true), (-20, true), (-30, false)]));
    assert!(!well(&[(-10, true), (-30, false)]), "half of them is not most");
    assert!(!well(&[(-70, true), (-80, true), (-30, false)]), "those of before do not count");
}

#[test]
fn each_check_that_fails_is_counted_and_one_is_enough() {
    let mut world = World::new();
    world.request.spec.causes[0].checks =
        vec![check("tcp", "x:1"), check("dns", "kubernetes."), check("dns", "b.")];
    world.compared = compared(1, vec![]);
    world.policy().spec.control_group.size = 0;
    let fuses = world.approved().fuses;
    assert_eq!(fuses.iter().map(|fuse| &*fuse.check).collect::<Vec<_>>(), ["dns", "tcp"]);
    blow(&mut world);
    assert_eq!(world.hold(), Some(BlockReason::FuseBlown));
}

#[test]
fn it_is_forgotten_after_a_week_and_never_outgrows_its_schema() {
    let mut fuses = vec![burnt(&[0])];
    let week = 7 * 24 * 60;
    settle(&mut fuses, &Fuse::default(), &GroupStats::default(), at(week) - SignedDuration::from_secs(1));
    assert_eq!(fuses.len(), 1);
    settle(&mut fuses, &Fuse::default(), &GroupStats::default(), at(week));
    assert_eq!(fuses.len(), 0);
    for i in 0..200 {
        let target = Target { group: format!("pool-{i}"), ..target("n1") };
        crate::remediate::fuse::burn(&mut fuses, &Fuse::default(), &["dns"], &target, at(i));
    }
    assert_eq!((fuses.len(), &*fuses[127].group), (128, "pool-199"));
}
