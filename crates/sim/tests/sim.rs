//! `make sim`: runs seeds of the real controller and prints their coverage. It has its own `main`, so that a replay
//! prints only its trace, identical each time.
//!
//! - Without variables it runs the fixed seeds of `make test`, and fresh ones.
//! - `SEEDS=n FROM=s` runs n seeds from s on.
//! - `SEED=x` replays one and prints its trace.
//! - `SOAK=1 SEEDS=n` is `make soak`: n fresh seeds, in as many runs as it takes.

mod gate;
mod remediation_chaos;
mod soak;

use std::env;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nodekeeper_sim::harness::{Scenario, Sweep, run, sweep};
use parking_lot::Mutex;

/// Runs allocate many small objects, for which mimalloc is faster.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The number of seeds of `make test`: the same each time, and others each time.
const SEEDS: u64 = 2_000;
const FRESH: u64 = 50;

/// The faults that a sweep of that size must have injected.
const FAULTS: &[&str] = &[
    "409",
    "429",
    "500",
    "timeout, applied",
    "timeout, not applied",
    "delayed write applied",
    "delayed write refused",
    "write applied after its writer's lease",
    "crash before a write",
    "crash after a write",
    "watch cut",
    "late event",
    "late request",
    "log compacted (410)",
    "clock jump",
    "reboot",
    "power off",
    "false kubelet report",
    "node deleted and re-registered",
    "write by another user",
    "worker deleted by user",
    "gate changed",
    "node tainted again",
    "gate deleted and recreated",
    "node deleted",
    "node cordoned",
    "DNS down, all",
    "DNS down, zone",
    "DNS down, node",
    "pod deployed",
    "policy paused",
    "policy deleted",
    "policy in dry-run",
    "budget changed",
    "node opted out",
    "remediation deleted by user",
    "remediation requested by user",
    "taint removed by user",
    "gate keeps its nodes",
    "writes refused for minutes",
    "write refused for minutes",
    "silent watch",
    "API server vanished",
    "write reverted by another controller",
    "second budget created",
    "gate audits",
    "gate paused",
    "gate in dry-run",
    "gate deleted",
    "gate created",
    "gate keeps stuck nodes",
    "gate of a requested replacement changed",
    "injected init container",
    "injected init container that fails",
    "injected sidecar",
    "injected sidecar that crashes",
    "injected native sidecar",
    "injected native sidecar that crashes",
    "quota of two workers",
    "write refused for minutes with 409",
    "reboot of a cordoned node",
    "cordoned node opted out",
    "approved remediation deleted by user",
    "remediation requested by recycler",
];

/// The observations that it must have made.
const OBSERVATIONS: &[&str] = &[
    "nodes verified",
    "NodeClaims deleted",
    "Nodes deleted",
    "pods evicted",
    "nodes cordoned",
    "stuck nodes reported",
    "gates created by the leader",
    "gates patched by the leader",
];

fn main() -> ExitCode {
    let scenarios = Scenarios { gate: gate::scenario(), remediation_chaos: remediation_chaos::scenario() };
    let done = number("SEED").and_then(|seed| {
        if let Some(seed) = seed {
            return Ok(replay(scenarios.of(seed), seed));
        }
        let (from, count) = (number("FROM")?, number("SEEDS")?);
        if env::var("SOAK").is_ok_and(|soak| !soak.is_empty()) {
            return soak::run(&scenarios, from, count.unwrap_or(100_000));
        }
        if from.or(count).is_some() {
            return Ok(run_all(&scenarios, from.unwrap_or(1), count.unwrap_or(SEEDS)));
        }
        let fixed = run_all(&scenarios, 1, SEEDS);
        println!("fresh seeds, which no run had before:");
        Ok(run_all(&scenarios, fresh(), FRESH) && fixed)
    });
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(wrong) => {
            eprintln!("{wrong}");
            ExitCode::FAILURE
        }
    }
}

/// Even seeds run the gate alone, odd ones remediation too.
struct Scenarios {
    gate: Scenario,
    remediation_chaos: Scenario,
}

impl Scenarios {
    fn of(&self, seed: u64) -> &Scenario {
        if seed.is_multiple_of(2) { &self.gate } else { &self.remediation_chaos }
    }
}

fn number(variable: &str) -> Result<Option<u64>, String> {
    match env::var(variable).unwrap_or_default().as_str() {
        "" => Ok(None),
        text => match text.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(format!("{variable}={text}: give a whole number, such as {variable}=7")),
        },
    }
}

/// The first of the seeds that no run had before: the time in milliseconds.
fn fresh() -> u64 {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn replay(scenario: &Scenario, seed: u64) -> bool {
    let report = run(scenario, seed, true);
    print!("{}", report.trace);
    match &report.violation {
        None => println!("seed {seed}: all invariants held"),
        Some(violation) => println!("seed {seed} FAILED: {violation}"),
    }
    report.violation.is_none()
}

fn run_all(scenarios: &Scenarios, from: u64, count: u64) -> bool {
    println!("running {count} seeds from {from}: each 6 nodes or more, for 14 virtual minutes or more");
    let meter = Meter::new(count, Duration::from_secs(5));
    let found = sweep(|seed| scenarios.of(seed), from..from.saturating_add(count), |found| meter.show(found));
    print!("{found}");
    println!("in {} at {} seeds a second", span(meter.start.elapsed()), meter.rate(found.runs));
    let missing = if count >= SEEDS { missing_coverage(&found) } else { Vec::new() };
    for missing in &missing {
        println!("FAILED: {missing}, so the sweep does not cover it");
    }
    println!(
        "{} passed, {} failed",
        found.runs - found.failures.len() as u64,
        found.failures.len() + missing.len()
    );
    found.failures.is_empty() && missing.is_empty()
}

/// Prints progress now and then, and failures at once.
struct Meter {
    count: u64,
    every: Duration,
    start: Instant,
    /// The time of the last line, and the number of failed seeds then.
    last: Mutex<(Instant, usize)>,
}

impl Meter {
    fn new(count: u64, every: Duration) -> Self {
        let start = Instant::now();
        Self { count, every, start, last: Mutex::new((start, 0)) }
    }

    fn show(&self, found: &Sweep) {
        let mut last = self.last.lock();
        let failed = found.failures.len();
        for report in &found.failures[last.1..] {
            println!("  seed {} FAILED, replay with: make sim SEED={0}", report.seed);
        }
        last.1 = failed;
        if last.0.elapsed() >= self.every {
            last.0 = Instant::now();
            let (done, count) = (found.runs, self.count);
            let left = self.millis().saturating_mul(count - done) / done;
            let (rate, left) = (self.rate(done), span(Duration::from_millis(left)));
            println!("  {done} of {count} seeds, {rate} a second, {failed} failed, {left} left");
        }
    }

    /// Seeds per second, with one decimal.
    fn rate(&self, done: u64) -> String {
        let tenths = done.saturating_mul(10_000) / self.millis().max(1);
        format!("{}.{}", tenths / 10, tenths % 10)
    }

    fn millis(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

fn span(time: Duration) -> String {
    let seconds = time.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}

/// Evictions and deletions of Nodes and `NodeClaims` are too rare in a sweep for a crash around each of them. A
/// scenario of its own covers those.
const RARE: usize = 3;

fn missing_coverage(found: &Sweep) -> Vec<String> {
    let met = |fault: &&&str| !found.coverage.faults.contains_key(**fault);
    let mut missing: Vec<String> =
        FAULTS.iter().filter(met).map(|f| format!("{f} was never injected")).collect();
    let never = |what: &&&str| !found.coverage.observations.contains_key(**what);
    missing.extend(OBSERVATIONS.iter().filter(never).map(|what| format!("{what}: there were none")));
    if found.coverage.crashed_points.len() + RARE * 2 < found.coverage.write_points.len() * 2 {
        missing.push("some writes had no crash before or after them".into());
    }
    missing
}
