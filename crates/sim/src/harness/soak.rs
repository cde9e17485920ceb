//! How far a soak is: a sweep of many seeds that takes more than one run.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::Sweep;

/// How far a soak is. As text: a line for each number and for each failing seed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    pub from: u64,
    /// Every seed before this one has been run.
    pub next: u64,
    /// The seeds that failed, in ascending order.
    pub failed: Vec<u64>,
}

impl Progress {
    fn new(from: u64) -> Self {
        Self { from, next: from, failed: Vec::new() }
    }

    /// Reads a file that [`Progress::save`] has written.
    #[must_use]
    pub fn read(file: &Path) -> Option<Self> {
        Self::parse(&fs::read_to_string(file).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut progress = Self::default();
        for line in text.lines() {
            let (key, seed) = line.split_once(' ')?;
            let seed = seed.parse().ok()?;
            match key {
                "from" => progress.from = seed,
                "next" => progress.next = seed,
                "failed" => progress.failed.push(seed),
                _ => return None,
            }
        }
        (progress.next >= progress.from && progress.from > 0).then_some(progress)
    }

    fn text(&self) -> String {
        let mut text = format!("from {}\nnext {}\n", self.from, self.next);
        for seed in &self.failed {
            let _ = writeln!(text, "failed {seed}");
        }
        text
    }

    /// Goes on with an earlier soak that is not over, unless another one is asked for.
    /// `fresh` is the first seed of a new one.
    #[must_use]
    pub fn resume(earlier: Option<Self>, from: Option<u64>, count: u64, fresh: u64) -> Self {
        let wanted = |earlier: &Self| match from {
            Some(from) => earlier.from == from,
            None => earlier.next < earlier.from.saturating_add(count),
        };
        earlier.filter(wanted).unwrap_or_else(|| Self::new(from.unwrap_or(fresh)))
    }

    /// What is known after a part of a sweep that began with `self`.
    #[must_use]
    pub fn after(&self, found: &Sweep) -> Self {
        let mut failed = self.failed.clone();
        failed.extend(found.failures.iter().map(|report| report.seed));
        // A seed that was run ahead of `next` runs again after an end in between.
        failed.sort_unstable();
        failed.dedup();
        Self { from: self.from, next: found.next, failed }
    }

    /// Written to another file first, so that the end of the process leaves the old text or the new one.
    pub fn save(&self, file: &Path) -> Result<(), String> {
        let unfinished = file.with_extension("new");
        fs::write(&unfinished, self.text())
            .and_then(|()| fs::rename(&unfinished, file))
            .map_err(|error| format!("cannot write {}: {error}", file.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(from: u64, next: u64) -> Progress {
        Progress { from, next, failed: vec![from] }
    }

    #[test]
    fn a_saved_soak_is_read_again() {
        let saved = Progress { from: 7, next: 9, failed: vec![7, 8] };
        assert_eq!(Progress::parse(&saved.text()), Some(saved));
        for broken in ["", "from 7\n", "from 7\nnext 6\n", "from 7\nnext x\n", "from 7\nnext 8\nother 9\n"] {
            assert_eq!(Progress::parse(broken), None, "{broken}");
        }
    }

    #[test]
    fn a_soak_goes_on_until_it_is_over_or_another_is_asked_for() {
        let earlier = progress(100, 150);
        let resume = |from, count| Progress::resume(Some(earlier.clone()), from, count, 9_000);
        assert_eq!(resume(None, 51), earlier);
        assert_eq!(resume(None, 50), Progress::new(9_000));
        assert_eq!(resume(Some(100), 50), earlier);
        assert_eq!(resume(Some(200), 50), Progress::new(200));
        assert_eq!(Progress::resume(None, None, 50, 9_000), Progress::new(9_000));
    }

    #[test]
    fn failures_of_earlier_runs_are_kept() {
        assert_eq!(progress(10, 11).after(&Sweep::starting_at(12)), progress(10, 12));
    }
}
