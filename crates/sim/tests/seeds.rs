//! The machinery finds bugs: a small controller that is wrong in one of four ways does not pass the seeds. And a seed
//! is the same run every time, of that one and of the real one.

mod gate;
mod remediation_chaos;
mod toy_controller;

use nodekeeper_sim::actors::cloud::Group;
use nodekeeper_sim::cluster::Local;
use nodekeeper_sim::harness::{Report, Scenario, run, sweep};
use nodekeeper_sim::object::name;
use remediation_chaos::invariants::{BUDGET, DRY, FOREIGN, FRESH, PAUSED};
use remediation_chaos::sabotage;
use toy_controller::{Bug, scenario};

fn caught(way: Bug, by: &str) {
    caught_in(&scenario(way), &format!("{way:?}"), &[by]);
}

/// Some seed of forty ends with each of these.
fn caught_in(scenario: &Scenario, way: &str, by_each: &[&str]) {
    let found = sweep(|_| scenario, 1..41, |_| {});
    assert!(!found.failures.is_empty(), "{way} passed 40 seeds");
    println!("{way} is caught by {} of 40 seeds", found.failures.len());
    for report in &found.failures {
        let violation = report.violation.as_deref().unwrap_or_default();
        println!("  seed {}: {violation:.150}", report.seed);
    }
    for by in by_each {
        let by_it = |r: &&Report| r.violation.as_deref().is_some_and(|v| v.starts_with(by));
        assert!(found.failures.iter().any(|r| by_it(&r)), "{way} was caught, but never by {by:?}");
    }
}

#[test]
fn deleting_what_nobody_approved_is_caught() {
    caught_in(&sabotage::scenario(sabotage::Bug::Blind), "Blind", &[BUDGET, DRY, PAUSED]);
}

#[test]
fn undoing_a_cordon_of_somebody_is_caught() {
    caught_in(&sabotage::scenario(sabotage::Bug::Uncordons), "Uncordons", &[FOREIGN]);
}

#[test]
fn acting_on_what_was_seen_long_ago_is_caught() {
    caught_in(&sabotage::scenario(sabotage::Bug::Late), "Late", &[FRESH]);
}

#[test]
fn a_lost_update_is_caught() {
    caught(Bug::LostUpdate, "nothing foreign is changed");
}

#[test]
fn acting_on_a_stale_read_is_caught() {
    caught(Bug::StaleRead, "only a Ready node is labelled");
}

#[test]
fn a_panic_of_the_program_is_caught() {
    caught(Bug::Panic, "the program under test panicked");
}

#[test]
fn a_busy_loop_is_caught() {
    caught(Bug::Busy, "replica-0 sent more than");
}

#[test]
fn a_seed_is_the_same_run_every_time() {
    let (small, real, remediation_chaos) =
        (scenario(Bug::None), gate::scenario(), remediation_chaos::scenario());
    // 100 has 200 nodes.
    for (scenario, seed) in [(&small, 3), (&small, 100), (&real, 3), (&real, 100), (&remediation_chaos, 3)] {
        let once = run(scenario, seed, true).trace;
        let again = run(scenario, seed, true).trace;
        assert!(once.lines().count() > 1_000, "the trace is too short to show anything");
        let differ = once.lines().zip(again.lines()).position(|(a, b)| a != b);
        let line = |text: &str| differ.and_then(|i| text.lines().nth(i).map(str::to_owned));
        assert!(once == again, "seed {seed} differs from itself: {:?} and {:?}", line(&once), line(&again));
    }
    let other = run(&scenario(Bug::None), 4, true).trace;
    assert_ne!(other, run(&scenario(Bug::None), 3, true).trace, "two seeds gave the same run");
}

/// Somebody deletes what is replaced: a Node of a group, a claim of Karpenter's or its Node.
fn delete_something(api: &Local, random: &mut fastrand::Rng) -> Option<&'static str> {
    let collection = if random.bool() { "nodes" } else { "karpenter.sh/nodeclaims" };
    let rented: Vec<_> = api.all(collection).into_iter().filter(|o| !name(o).starts_with('n')).collect();
    let victim = random.choice(rented)?;
    api.delete(&victim, None).ok().map(|_| "rented machine deleted")
}

#[test]
fn a_seed_with_stand_ins_is_the_same_run_every_time() {
    let group =
        |name: &str| Group { name: name.into(), size: 4, zones: vec!["a".into()], ..Group::default() };
    let mut scenario = scenario(Bug::None);
    (scenario.karpenter, scenario.autoscaled) = (vec![group("claimed")], vec![group("grouped")]);
    scenario.user_action = delete_something;
    for fixed in [true, false] {
        scenario.fixed = fixed;
        let (once, again) = (run(&scenario, 3, true), run(&scenario, 3, true));
        assert_eq!(once.violation, None);
        assert!(
            once.coverage.faults.get("rented machine deleted").is_some_and(|n| *n > 5),
            "{:?}",
            once.coverage
        );
        assert!(once.trace.contains("karpenter: claimed-0005.sim.internal boots"), "nothing was replaced");
        assert!(
            once.trace.contains("autoscaler: launches grouped-0005.sim.internal"),
            "nothing was replaced"
        );
        assert!(once.trace == again.trace, "the same seed gave two runs");
    }
}
