//! Reads what the rules check: the files, and the output of the generators.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use crate::generate::{self, Output};

pub struct File {
    /// Relative to the repository root, with forward slashes.
    pub path: String,
    pub text: String,
}

/// The benchmark results.
pub const RESULTS: &str = "bench/RESULTS.md";

/// How old the benchmark results are.
#[derive(Debug, PartialEq, Eq)]
pub enum ResultsAge {
    /// So many commits lie between theirs and the last change of operator or core.
    Commits(usize),
    /// They name no commit of this repository.
    UnknownCommit,
    /// The history is not here, and why.
    NotChecked(&'static str),
}

#[derive(Default)]
pub struct Repo {
    /// Every text file that is not ignored.
    pub files: Vec<File>,
    pub generated: Vec<Output>,
    /// `None` if there are no results.
    pub results_age: Option<ResultsAge>,
}

impl Repo {
    pub fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Rust files below `folder`.
    pub fn rust_below(&self, folder: &str) -> impl Iterator<Item = &File> {
        self.files.iter().filter(move |file| {
            file.path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/')) && is_rust(&file.path)
        })
    }

    /// Rust files below `folder` that are not test files.
    pub fn production_below(&self, folder: &str) -> impl Iterator<Item = &File> {
        self.rust_below(folder).filter(|file| !is_test(&file.path))
    }

    /// The Cargo.toml of every member, with its folder.
    pub fn members(&self) -> impl Iterator<Item = (&str, &File)> {
        self.files.iter().filter_map(|file| Some((file.path.strip_suffix("/Cargo.toml")?, file)))
    }
}

pub fn is_rust(path: &str) -> bool {
    Path::new(path).extension().is_some_and(|ending| ending == "rs")
}

/// Whether a file is test code by its path: `tests/…`, `tests.rs`, `benches/…`.
pub fn is_test(path: &str) -> bool {
    path.split('/').any(|part| matches!(part, "tests" | "tests.rs" | "benches"))
}

/// A command without the variables that cargo sets for this crate: build scripts that depend on them (such as ring's) would
/// run again and force a rebuild of all dependents.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// Reads the workspace in `root`.
pub fn load(root: &Path) -> Result<Repo, String> {
    let ignored = std::fs::read_to_string(root.join(".gitignore")).unwrap_or_default();
    let mut files = Vec::new();
    walk(root, "", &ignored, &mut files)?;
    files.sort_by(|a, b| a.path.cmp(&b.path));
    let mut repo = Repo { files, generated: generate::outputs(root), ..Repo::default() };
    repo.results_age = repo.file(RESULTS).map(|file| results_age(root, &file.text));
    Ok(repo)
}

fn walk(root: &Path, folder: &str, ignored: &str, files: &mut Vec<File>) -> Result<(), String> {
    let here = root.join(folder);
    let entries = std::fs::read_dir(&here).map_err(|e| format!("cannot read {}: {e}", here.display()))?;
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
        let Ok(kind) = entry.file_type() else { continue };
        if name == ".git" || kind.is_symlink() || is_ignored(&path, &name, ignored) {
            continue;
        }
        if kind.is_dir() {
            walk(root, &path, ignored, files)?;
        } else if let Ok(text) = std::fs::read_to_string(entry.path()) {
            files.push(File { path, text });
        }
    }
    Ok(())
}

/// Supports the .gitignore patterns used here: `/path`, `*.ending`, `name`.
fn is_ignored(path: &str, name: &str, ignored: &str) -> bool {
    ignored.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).any(|line| {
        let line = line.trim_end_matches('/');
        match (line.strip_prefix('/'), line.strip_prefix('*')) {
            (Some(rooted), _) => path == rooted,
            (_, Some(ending)) => name.ends_with(ending),
            _ => name == line,
        }
    })
}

/// The age of benchmark results with this text.
pub fn results_age(root: &Path, text: &str) -> ResultsAge {
    let git = |arguments: &[&str]| {
        let output = command("git").arg("-C").arg(root).args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    match git(&["rev-parse", "--is-shallow-repository"]).as_deref() {
        Some("false") => {}
        Some(_) => return ResultsAge::NotChecked("this is a shallow clone"),
        None => return ResultsAge::NotChecked("there is no git repository"),
    }
    let commit =
        text.lines().take(5).find_map(|line| line.split("; commit ").nth(1)?.split([';', ' ']).next());
    let changed = git(&["log", "-1", "--format=%H", "HEAD", "--", "crates/operator", "crates/core"]);
    let between = |(commit, changed): (&str, String)| {
        git(&["rev-parse", "--verify", "--quiet", &format!("{commit}^{{commit}}")])?;
        git(&["rev-list", "--count", &format!("{commit}..{changed}")])?.parse().ok()
    };
    commit.zip(changed).and_then(between).map_or(ResultsAge::UnknownCommit, ResultsAge::Commits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_files_are_not_read() {
        let ignored = "# built\n/target\n*.kubeconfig\n.tools/\n";
        assert!(is_ignored("target", "target", ignored));
        assert!(is_ignored("e2e/.tools", ".tools", ignored));
        assert!(is_ignored("a/b.kubeconfig", "b.kubeconfig", ignored));
        assert!(!is_ignored("docs/target", "target", ignored));
        assert!(!is_ignored("src/main.rs", "main.rs", ignored));
    }

    #[test]
    fn test_files_are_recognised_by_path() {
        assert!(is_test("crates/sim/tests/seeds.rs"));
        assert!(is_test("crates/sim/src/store/tests.rs"));
        assert!(is_test("crates/sim/src/tests/store.rs"));
        assert!(!is_test("crates/sim/src/attests.rs"));
    }
}
