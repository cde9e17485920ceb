//! The harness finds bugs: variants of a toy controller with one bug each do not pass the seeds. And a seed is
//! deterministic.

mod gate;
mod remediation_chaos;
mod toy_controller;

use gate::events::EVENTS;
use gate::reports::COUNTS;
use gate::writes::{BOUNDED, LEASE};
use nodekeeper_sim::actors::cloud::Group;
use nodekeeper_sim::cluster::Local;
use nodekeeper_sim::harness::{Report, Scenario, run, sweep};
use nodekeeper_sim::object::name;
use remediation_chaos::invariants::{BUDGET, DRY, FOREIGN, FRESH, PAUSED};
use remediation_chaos::sabotage::{self, Sabotage};
use remediation_chaos::wanted::WANTED;
use toy_controller::{Bug, scenario};

fn assert_caught(bug: Bug, by: &str) {
    assert_caught_in(&scenario(bug), &format!("{bug:?}"), &[by]);
}

/// Checks that among forty seeds each of these violations occurs.
fn assert_caught_in(scenario: &Scenario, bug: &str, by_each: &[&str]) {
    let found = sweep(|_| scenario, 1..41, |_| {});
    assert!(!found.failures.is_empty(), "{bug} passed 40 seeds");
    println!("{bug} is caught by {} of 40 seeds", found.failures.len());
    for report in &found.failures {
        let violation = report.violation.as_deref().unwrap_or_default();
        println!("  seed {}: {violation:.150}", report.seed);
    }
    for by in by_each {
        let by_it = |r: &&Report| r.violation.as_deref().is_some_and(|v| v.starts_with(by));
        assert!(found.failures.iter().any(|r| by_it(&r)), "{bug} was caught, but never by {by:?}");
    }
}

#[test]
fn unapproved_deletions_are_caught() {
    assert_caught_in(&sabotage::scenario(Sabotage::Blind), "Blind", &[BUDGET, DRY, PAUSED]);
}

#[test]
fn reverting_a_cordon_of_a_user_is_caught() {
    assert_caught_in(&sabotage::scenario(Sabotage::Uncordons), "Uncordons", &[FOREIGN]);
}

#[test]
fn acting_on_expired_evidence_is_caught() {
    assert_caught_in(&sabotage::scenario(Sabotage::Late), "Late", &[FRESH]);
}

/// Checks that among twenty seeds this invariant says this of a sabotage.
fn assert_sabotage_caught(kind: Sabotage, by: &str, wrong: &str) {
    let scenario = sabotage::scenario(kind);
    let found = sweep(|_| &scenario, 1..21, |_| {});
    let violations: Vec<&str> = found.failures.iter().filter_map(|one| one.violation.as_deref()).collect();
    println!("{kind:?} is caught by {} of 20 seeds", violations.len());
    for violation in &violations {
        println!("  {violation:.200}");
    }
    let is_it = |violation: &&str| violation.starts_with(by) && violation.contains(wrong);
    assert!(violations.iter().any(is_it), "{kind:?} was never caught by {by:?} with {wrong:?}");
}

#[test]
fn acting_on_a_freed_node_is_caught() {
    assert_sabotage_caught(Sabotage::ActsOnFreedNodes, WANTED, "no cause");
}

#[test]
fn acting_without_approval_is_caught() {
    assert_sabotage_caught(Sabotage::ActsWithoutApproval, WANTED, "no request");
}

#[test]
fn an_approval_without_a_reservation_is_caught() {
    assert_sabotage_caught(Sabotage::ApprovesWithoutReservation, WANTED, "without a reservation");
}

#[test]
fn an_event_before_the_act_is_caught() {
    assert_sabotage_caught(Sabotage::SpeaksTooEarly, EVENTS, "NodeVerified");
}

#[test]
fn a_write_after_the_lease_is_caught() {
    assert_sabotage_caught(Sabotage::WritesAfterTheLease, LEASE, "its last renewal had been sent 11");
}

#[test]
fn a_storm_of_refused_writes_is_caught() {
    assert_sabotage_caught(Sabotage::RepeatsRefusedWrites, BOUNDED, "refused or lost");
}

#[test]
fn metrics_that_count_gated_nodes_as_verified_are_caught() {
    assert_sabotage_caught(Sabotage::ServesFalseMetrics, COUNTS, "has the taint");
}

#[test]
fn a_lost_update_is_caught() {
    assert_caught(Bug::LostUpdate, "nothing foreign is changed");
}

#[test]
fn acting_on_a_stale_read_is_caught() {
    assert_caught(Bug::StaleRead, "only a Ready node is labelled");
}

#[test]
fn a_panic_of_the_program_is_caught() {
    assert_caught(Bug::Panic, "the program under test panicked");
}

#[test]
fn a_busy_loop_is_caught() {
    assert_caught(Bug::Busy, "replica-0 sent more than");
}

#[test]
fn a_seed_is_deterministic() {
    let (small, real, remediation_chaos) =
        (scenario(Bug::None), gate::scenario(), remediation_chaos::scenario());
    // Seed 100 has more than a hundred nodes.
    for (scenario, seed) in [(&small, 3), (&small, 100), (&real, 3), (&real, 100), (&remediation_chaos, 3)] {
        let once = run(scenario, seed, true).trace;
        let again = run(scenario, seed, true).trace;
        assert!(once.lines().count() > 1_000, "the trace is too short");
        let differ = once.lines().zip(again.lines()).position(|(a, b)| a != b);
        let line = |text: &str| differ.and_then(|i| text.lines().nth(i).map(str::to_owned));
        assert!(once == again, "seed {seed} is not deterministic: {:?} and {:?}", line(&once), line(&again));
    }
    let other = run(&scenario(Bug::None), 4, true).trace;
    assert_ne!(other, run(&scenario(Bug::None), 3, true).trace, "two seeds have the same trace");
}

/// Deletes a Node or a `NodeClaim` of a group.
fn delete_cloud_machine(api: &Local, random: &mut fastrand::Rng) -> Option<&'static str> {
    let collection = if random.bool() { "nodes" } else { "karpenter.sh/nodeclaims" };
    let rented: Vec<_> = api.all(collection).into_iter().filter(|o| !name(o).starts_with('n')).collect();
    let victim = random.choice(rented)?;
    api.delete(&victim, None).ok().map(|_| "cloud machine deleted")
}

#[test]
fn a_seed_with_karpenter_and_autoscaler_is_deterministic() {
    let group =
        |name: &str| Group { name: name.into(), size: 4, zones: vec!["a".into()], ..Group::default() };
    let mut scenario = scenario(Bug::None);
    (scenario.karpenter, scenario.autoscaled) = (vec![group("claimed")], vec![group("grouped")]);
    scenario.user_action = delete_cloud_machine;
    for fixed in [true, false] {
        scenario.fixed = fixed;
        let (once, again) = (run(&scenario, 3, true), run(&scenario, 3, true));
        assert_eq!(once.violation, None);
        assert!(
            once.coverage.faults.get("cloud machine deleted").is_some_and(|n| *n > 5),
            "{:?}",
            once.coverage
        );
        assert!(once.trace.contains("karpenter: claimed-0005.sim.internal boots"), "nothing was replaced");
        assert!(
            once.trace.contains("autoscaler: launches grouped-0005.sim.internal"),
            "nothing was replaced"
        );
        assert!(once.trace == again.trace, "the seed is not deterministic");
    }
}
