//! Rules: files are small, generated files are current, and every test target is run by a tier.

use super::Violation;
use crate::code;
use crate::repo::{self, Repo};
use crate::tiers;

const MOST: usize = 400;
const MOST_IN_MAIN: usize = 60;

/// Files that may be longer, with the reason.
const LARGE: &[(&str, &str)] = &[];

pub fn file_size(repo: &Repo) -> Vec<Violation> {
    let mut found = Vec::new();
    for file in repo.files.iter().filter(|file| is_source(&file.path) && !repo::is_test(&file.path)) {
        let lines = code::production(&file.text).filter(|(_, line)| !line.is_empty()).count();
        let is_main = file.path.starts_with("crates/") && file.path.ends_with("/src/main.rs");
        let most = if is_main { MOST_IN_MAIN } else { MOST };
        let excused = LARGE.iter().any(|(path, why)| *path == file.path && !why.is_empty());
        if lines > most && !excused {
            let message = format!(
                "{lines} lines of code, at most {most} are allowed: split it by what it does, or add it to LARGE in xtask/src/rules/file_size.rs with the reason"
            );
            found.push(Violation::new(&file.path, 1, message));
        }
    }
    found.extend(stale_exceptions(repo));
    found
}

/// An exception for a deleted file would apply to the next file of that name.
fn stale_exceptions(repo: &Repo) -> Vec<Violation> {
    let gone = LARGE.iter().filter(|(path, _)| repo.file(path).is_none());
    gone.map(|(path, _)| Violation::new(path, 1, "this file does not exist: remove it from LARGE")).collect()
}

fn is_source(path: &str) -> bool {
    repo::is_rust(path) && (path.starts_with("src/") || path.contains("/src/"))
}

pub fn generated(repo: &Repo) -> Vec<Violation> {
    let mut found = Vec::new();
    for output in &repo.generated {
        let committed = repo.file(&output.file).map(|file| file.text.as_str());
        let message = match (&output.text, committed) {
            (Ok(now), Some(committed)) if now == committed => continue,
            (Ok(_), Some(_)) => "differs from the output of its generator: run `make generate`".to_owned(),
            (Ok(_), None) => "is missing: run `make generate`".to_owned(),
            (Err(error), _) => format!("cannot be generated: {error}"),
        };
        let line =
            first_difference(output.text.as_deref().unwrap_or_default(), committed.unwrap_or_default());
        found.push(Violation::new(&output.file, line, message));
    }
    found
}

fn first_difference(now: &str, committed: &str) -> usize {
    now.lines().zip(committed.lines()).take_while(|(a, b)| a == b).count() + 1
}

pub fn every_test_runs(repo: &Repo) -> Vec<Violation> {
    let mut found = Vec::new();
    for (member, _) in repo.members() {
        let folder = format!("{member}/tests/");
        for file in &repo.files {
            let name = file.path.strip_prefix(&folder).and_then(|rest| rest.strip_suffix(".rs"));
            // A file in a sub-folder is a module of a test, unless it is the main file of one.
            let target = name.and_then(|name| match name.split_once('/') {
                None => Some(name),
                Some((target, "main")) => Some(target),
                Some(_) => None,
            });
            if let Some(target) = target
                && !tiers::runs(member, target)
            {
                let message = "no tier of `make test` runs this file: add it to one in xtask/src/tiers.rs";
                found.push(Violation::new(&file.path, 1, message));
            }
        }
    }
    found
}
