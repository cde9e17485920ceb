//! Runs many seeds on all cores and sums up their coverage.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::{Report, Scenario, run};
use crate::faults::Coverage;

#[derive(Debug, Default)]
pub struct Sweep {
    pub runs: u64,
    /// Every seed of the range before this one has been run, so that a sweep can be resumed from here.
    pub next: u64,
    /// Sorted by seed when the sweep has ended.
    pub failures: Vec<Report>,
    pub coverage: Coverage,
    /// Seeds after `next` that have been run.
    ahead: BTreeSet<u64>,
}

impl Sweep {
    pub(super) fn starting_at(next: u64) -> Self {
        Self { next, ..Self::default() }
    }

    fn add(&mut self, mut report: Report) {
        self.runs += 1;
        self.ahead.insert(report.seed);
        while self.ahead.remove(&self.next) {
            self.next += 1;
        }
        self.coverage.add(std::mem::take(&mut report.coverage));
        if report.violation.is_some() {
            self.failures.push(report);
        }
    }
}

/// Runs every seed of a range, including those after a failure. `progress` is called after each run.
pub fn sweep<'s>(
    scenario: impl Fn(u64) -> &'s Scenario + Sync,
    seeds: Range<u64>,
    progress: impl Fn(&Sweep) + Sync,
) -> Sweep {
    let next = AtomicU64::new(seeds.start);
    let result = Mutex::new(Sweep::starting_at(seeds.start));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    // A panic must not lose its seed.
                    let run = AssertUnwindSafe(|| run(scenario(seed), seed, false));
                    let report = catch_unwind(run).unwrap_or_else(|_| Report {
                        seed,
                        violation: Some("the run panicked: see the output above".into()),
                        coverage: Coverage::default(),
                        trace: String::new(),
                    });
                    let mut result = result.lock();
                    result.add(report);
                    progress(&result);
                }
            });
        }
    });
    let mut sweep = result.into_inner();
    sweep.failures.sort_by_key(|report| report.seed);
    sweep
}

impl fmt::Display for Sweep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "covered in {} runs:", self.runs)?;
        writeln!(f, "  observations")?;
        for (what, n) in &self.coverage.observations {
            writeln!(f, "    {what:<26} {n:>9}")?;
        }
        writeln!(f, "  faults injected")?;
        for (fault, n) in &self.coverage.faults {
            writeln!(f, "    {fault:<26} {n:>9}")?;
        }
        let crashed = self.coverage.crashed_points.len();
        let points = self.coverage.write_points.len() * 2;
        writeln!(f, "  write points crashed: {crashed} of {points} (before and after each)")?;
        for point in &self.coverage.crashed_points {
            writeln!(f, "    {point}")?;
        }
        writeln!(f, "  invariants checked")?;
        for (invariant, n) in &self.coverage.checks {
            writeln!(f, "    {invariant:<40} {n:>9}")?;
        }
        for report in &self.failures {
            let violation = report.violation.as_deref().unwrap_or_default();
            writeln!(f, "FAILED seed {}: {violation}", report.seed)?;
            writeln!(f, "    replay: make sim SEED={}", report.seed)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_resumes_at_the_first_seed_that_has_not_run() {
        let mut sweep = Sweep::starting_at(5);
        let mut next_after = |seed| {
            let (coverage, trace) = (Coverage::default(), String::new());
            sweep.add(Report { seed, violation: None, coverage, trace });
            sweep.next
        };
        assert_eq!([6, 5, 7, 9, 8].map(&mut next_after), [5, 7, 8, 8, 10]);
    }
}
