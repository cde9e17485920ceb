//! The benchmark results belong to the code that they stand beside.

use super::Violation;
use crate::repo::{RESULTS, Repo, ResultsAge};

/// How many commits the results may be behind.
const MAX_COMMITS: usize = 50;
/// The line of the results that names their commit.
const LINE: usize = 3;

pub fn results_current(repo: &Repo) -> Vec<Violation> {
    let message = match &repo.results_age {
        None | Some(ResultsAge::NotChecked(_)) => return Vec::new(),
        Some(ResultsAge::Commits(count)) if *count <= MAX_COMMITS => return Vec::new(),
        Some(ResultsAge::Commits(count)) => {
            format!(
                "{count} commits older than the last change of crates/operator or crates/core, at most {MAX_COMMITS} are allowed: run `make bench`"
            )
        }
        Some(ResultsAge::UnknownCommit) => "names no commit of this repository: run `make bench`".to_owned(),
    };
    vec![Violation::new(RESULTS, LINE, message)]
}
