//! The machinery finds bugs: a controller that is right passes every seed, two that are wrong do not.
//!
//! `make sim SEEDS=n FROM=s` runs seeds, `make sim SEED=x` replays one and prints its trace.

mod labeller;

use std::env;
use std::io::Write as _;

use labeller::{Way, scenario};
use nodekeeper_sim::harness::{Scenario, run, sweep};

/// The seeds that `make test` runs.
const SEEDS: u64 = 300;

fn number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok().filter(|text| !text.is_empty())?;
    let number = text.parse().ok();
    assert!(number.is_some(), "{variable}={text}: give a whole number, such as {variable}=7");
    number
}

#[test]
fn a_guarded_controller_passes_every_seed() {
    let scenario = scenario(Way::Guarded);
    if let Some(seed) = number("SEED") {
        let report = run(&scenario, seed, true);
        print!("{}", report.trace);
        match report.violation {
            None => println!("seed {seed}: all invariants held"),
            Some(violation) => panic!("seed {seed}: {violation}"),
        }
        return;
    }
    let (from, count) = (number("FROM").unwrap_or(1), number("SEEDS").unwrap_or(SEEDS));
    println!("running {count} seeds from {from}, each 20 nodes or more for 13 virtual minutes");
    let found = sweep(&scenario, from..from + count, |done| {
        if done.is_multiple_of(100) {
            println!("  {done} of {count} seeds");
            let _ = std::io::stdout().flush();
        }
    });
    print!("{found}");
    assert!(found.failures.is_empty(), "{} of {count} seeds failed", found.failures.len());
    if count >= SEEDS {
        for fault in [
            "409",
            "429",
            "500",
            "timeout, landed",
            "timeout, not landed",
            "crash before a write",
            "crash after a write",
            "watch cut",
            "late event",
            "late request",
            "stale read",
            "history compacted (410)",
            "clock jump",
            "reboot",
            "power off",
            "kubelet lies",
            "node deleted and reborn",
            "foreign write",
            "DNS down, all",
            "DNS down, zone",
            "DNS down, node",
        ] {
            assert!(
                found.coverage.faults.contains_key(fault),
                "{fault} was never injected: the sweep shows nothing of it"
            );
        }
        let points = found.coverage.write_points.len() * 2;
        assert_eq!(found.coverage.crashed_points.len(), points, "a write was never crashed around");
    }
}

fn caught(way: Way, by: &str) {
    // One replica: two of these get in each other's way without any fault.
    let found = sweep(&Scenario { replicas: 1, ..scenario(way) }, 1..41, |_| {});
    assert!(!found.failures.is_empty(), "{way:?} passed 40 seeds");
    println!("{way:?} is caught by {} of 40 seeds", found.failures.len());
    for report in &found.failures {
        let violation = report.violation.as_deref().unwrap_or_default();
        println!("  seed {}: {:.150}", report.seed, violation);
    }
    let by_it = found.failures.iter().filter(|r| r.violation.as_deref().is_some_and(|v| v.starts_with(by)));
    assert!(by_it.count() > 0, "{way:?} was caught, but never by {by:?}");
}

#[test]
fn a_lost_update_is_caught() {
    caught(Way::LostUpdate, "nothing foreign is changed");
}

#[test]
fn acting_on_a_stale_read_is_caught() {
    caught(Way::StaleRead, "only a Ready node is labelled");
}

#[test]
fn a_seed_is_the_same_run_every_time() {
    // 10 has 200 nodes.
    for seed in [3, 10] {
        let once = run(&scenario(Way::Guarded), seed, true).trace;
        let again = run(&scenario(Way::Guarded), seed, true).trace;
        assert!(once.lines().count() > 1_000, "the trace is too short to show anything");
        let differ = once.lines().zip(again.lines()).position(|(a, b)| a != b);
        assert!(once == again, "seed {seed} differs from itself at line {differ:?}");
    }
    let other = run(&scenario(Way::Guarded), 4, true).trace;
    assert_ne!(other, run(&scenario(Way::Guarded), 3, true).trace, "two seeds gave the same run");
}
