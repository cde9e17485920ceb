//! `make soak`: many seeds, in as many runs as it takes. A file keeps how far they are, so that a run can be ended at any time
//! and the next one continues.

use std::path::Path;
use std::time::{Duration, Instant};

use nodekeeper_sim::harness::soak::Progress;
use nodekeeper_sim::harness::sweep;
use parking_lot::Mutex;

use super::{Meter, Scenarios, fresh, span};

/// In the target folder.
const FILE: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/soak");

/// Runs what is left of `count` seeds. Returns false if any of them failed, also in an earlier run.
pub fn run(scenarios: &Scenarios, from: Option<u64>, count: u64) -> Result<bool, String> {
    let file = Path::new(FILE);
    let begun = Progress::resume(Progress::read(file), from, count, fresh());
    begun.save(file)?;
    let (done, end) = (begun.next - begun.from, begun.from.saturating_add(count));
    println!(
        "soak: {count} seeds from {}, of which {done} are done; Ctrl-C ends it, and `make soak SEEDS={count}` goes on",
        begun.from
    );
    let meter = Meter::new(end.saturating_sub(begun.next), Duration::from_mins(1));
    let saved = Mutex::new((Instant::now(), 0));
    let found = sweep(
        |seed| scenarios.of(seed),
        begun.next..end,
        |found| {
            let mut saved = saved.lock();
            if saved.0.elapsed() >= Duration::from_secs(1) || found.failures.len() > saved.1 {
                *saved = (Instant::now(), found.failures.len());
                if let Err(error) = begun.after(found).save(file) {
                    println!("{error}");
                }
            }
            meter.show(found);
        },
    );
    let ended = begun.after(&found);
    ended.save(file)?;
    for report in &found.failures {
        println!("FAILED seed {}: {}", report.seed, report.violation.as_deref().unwrap_or_default());
    }
    for seed in &ended.failed {
        println!("replay: make sim SEED={seed}");
    }
    println!(
        "{} of {count} seeds failed; {} ran now, in {}",
        ended.failed.len(),
        found.runs,
        span(meter.start.elapsed())
    );
    Ok(ended.failed.is_empty())
}
