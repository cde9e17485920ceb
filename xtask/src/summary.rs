//! Counts the results that test programs print, and formats the summary table.

use std::fmt::Write as _;
use std::ops::AddAssign;
use std::time::Duration;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub passed: usize,
    /// Includes tests that should have run and could not.
    pub failed: usize,
    pub skipped: usize,
}

impl Counts {
    pub const PASSED: Self = Self { passed: 1, failed: 0, skipped: 0 };
    pub const FAILED: Self = Self { passed: 0, failed: 1, skipped: 0 };
    pub const SKIPPED: Self = Self { passed: 0, failed: 0, skipped: 1 };

    fn total(self) -> usize {
        self.passed + self.failed + self.skipped
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

/// Counts results in the output of a test program, line by line.
#[derive(Default)]
pub struct Reader {
    counts: Counts,
    saw_result: bool,
    /// Set between libtest's `running …` and `test result: …`.
    suite: Option<Suite>,
}

#[derive(Default)]
struct Suite {
    /// Tests that libtest counts as passed but that printed `SKIPPED:`.
    skipped: usize,
    in_failures: bool,
    /// How often libtest has printed `successes:`: first before the outputs, then before the names.
    successes: usize,
    /// Below the heading of a test: whether that test has been counted as skipped. `None` before the first heading, where
    /// each `SKIPPED:` line is a test of its own.
    shown: Option<bool>,
}

impl Reader {
    /// Counts one line. Returns false for the repeated names of passed tests, which need not be shown.
    pub fn line(&mut self, line: &str) -> bool {
        self.count(line.trim());
        let is_name = line.starts_with("    ") || line.is_empty();
        let suite = self.suite.as_ref().filter(|suite| !suite.in_failures);
        line != "successes:" && !suite.is_some_and(|suite| suite.successes > 1 && is_name)
    }

    fn count(&mut self, line: &str) {
        if is_running(line) {
            self.suite = Some(Suite::default());
        } else if let Some(result) = libtest_result(line) {
            let skipped = self.suite.take().map_or(0, |suite| suite.skipped).min(result.passed);
            self.counts += Counts {
                passed: result.passed - skipped,
                failed: result.failed,
                skipped: result.skipped + skipped,
            };
            self.saw_result = true;
        } else if let Some(result) = plain_result(line) {
            self.counts += result;
            self.saw_result = true;
        } else {
            self.other(line);
        }
    }

    fn other(&mut self, line: &str) {
        match &mut self.suite {
            Some(suite) => match line {
                "failures:" => suite.in_failures = true,
                "successes:" => (suite.in_failures, suite.successes) = (false, suite.successes + 1),
                _ if line.starts_with("---- ") => suite.shown = Some(false),
                _ if is_skip(line) && !suite.in_failures && suite.shown != Some(true) => {
                    suite.skipped += 1;
                    suite.shown = suite.shown.map(|_| true);
                }
                _ => {}
            },
            None if is_skip(line) => self.counts += Counts::SKIPPED,
            None => {}
        }
    }

    /// Returns the counts. A program that printed no counts is one test; one that exited with an error has at least one
    /// failure.
    pub fn finish(self, success: bool) -> Counts {
        let mut counts = self.counts;
        if !self.saw_result && counts.total() == 0 {
            counts += if success { Counts::PASSED } else { Counts::FAILED };
        } else if !success && counts.failed == 0 {
            counts += Counts::FAILED;
        }
        counts
    }
}

/// `running 3 tests`
fn is_running(line: &str) -> bool {
    let words: Vec<&str> = line.split(' ').collect();
    matches!(words.as_slice(), ["running", n, "test" | "tests"] if n.parse::<usize>().is_ok())
}

/// `SKIPPED: reason`, optionally between rulers such as `===`.
fn is_skip(line: &str) -> bool {
    line.trim_start_matches(['=', '-', '*', ' '])
        .strip_prefix("SKIPPED")
        .is_some_and(|rest| rest.starts_with([':', ',']))
}

/// `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s`
fn libtest_result(line: &str) -> Option<Counts> {
    let (_, numbers) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let number = |word: &str| {
        let part = numbers.split(';').map(str::trim).find_map(|part| part.strip_suffix(word))?;
        part.trim().parse().ok()
    };
    Some(Counts { passed: number("passed")?, failed: number("failed")?, skipped: number("ignored")? })
}

/// `3 passed, 0 failed`, optionally followed by `, 1 skipped`.
fn plain_result(line: &str) -> Option<Counts> {
    let mut parts = line.split(", ");
    let mut number =
        |word: &str| parts.next().map(|part| part.strip_suffix(word)?.strip_suffix(' ')?.parse().ok());
    let counts = Counts {
        passed: number("passed")??,
        failed: number("failed")??,
        skipped: number("skipped").unwrap_or(Some(0))?,
    };
    parts.next().is_none().then_some(counts)
}

pub struct Row {
    pub name: &'static str,
    pub counts: Counts,
    pub took: Duration,
}

/// Counts skipped tests as failed.
pub fn strict(rows: &mut [Row]) {
    for row in rows {
        row.counts.failed += row.counts.skipped;
        row.counts.skipped = 0;
    }
}

pub fn total(rows: &[Row]) -> Counts {
    rows.iter().fold(Counts::default(), |mut sum, row| {
        sum += row.counts;
        sum
    })
}

/// One line per tier; the last line is `N passed, N failed, N skipped`.
pub fn table(rows: &[Row]) -> String {
    let mut text =
        format!("{:<20} {:>7} {:>7} {:>8} {:>8}\n", "tier", "passed", "failed", "skipped", "seconds");
    for Row { name, counts: Counts { passed, failed, skipped }, took } in rows {
        let seconds = took.as_secs_f64();
        let _ = writeln!(text, "{name:<20} {passed:>7} {failed:>7} {skipped:>8} {seconds:>8.1}");
    }
    let Counts { passed, failed, skipped } = total(rows);
    let _ = writeln!(text, "{passed} passed, {failed} failed, {skipped} skipped");
    text
}

#[cfg(test)]
#[path = "tests/summary.rs"]
mod tests;
