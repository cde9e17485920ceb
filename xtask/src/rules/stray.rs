//! Rules against leftovers and machine-specific paths.

use super::Violation;
use crate::code;
use crate::repo::{self, Repo};

const WORDS: &[&str] = &["TODO", "FIXME", "XXX"];

/// Folders that exist on one machine only. Written in parts so that this file does not violate its own rule.
const PLACES: &[&str] =
    &[concat!("/ro", "ot/"), concat!("/ho", "me/"), concat!("/wo", "rk/"), concat!("/Us", "ers/")];

/// Settings of cargo, Go, Python and npm that contain the address of a package mirror.
const MIRRORS: &[&str] = &[
    concat!("sparse+", "http"),
    concat!("replace", "-with"),
    concat!("GOPROXY", "=http"),
    concat!("index", "-url"),
    concat!("npm_config_", "registry"),
];

/// Whether the file is source code. Prose may mention what these rules search for.
fn is_source(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending);
    matches!(
        ending,
        "rs" | "toml" | "sh" | "go" | "yaml" | "yml" | "json" | "py" | "js" | "html" | "css" | "tpl"
    ) || matches!(name, "Makefile" | "Dockerfile" | "run")
}

fn is_lock(path: &str) -> bool {
    path.ends_with("Cargo.lock") || path.ends_with("go.sum") || path.ends_with("package-lock.json")
}

pub fn no_stray(repo: &Repo) -> Vec<Violation> {
    let mut found = Vec::new();
    for file in repo.files.iter().filter(|file| is_source(&file.path) && !is_lock(&file.path)) {
        let comment = if repo::is_rust(&file.path) { "//" } else { "" };
        for (index, line) in file.text.lines().enumerate() {
            let comment = line.find(comment).map_or("", |at| &line[at..]);
            for word in WORDS.iter().filter(|word| code::has_word(comment, word)) {
                let message = format!("{word} left behind: do it now, or open an issue and delete the note");
                found.push(Violation::new(&file.path, index + 1, message));
            }
        }
    }
    found
}

pub fn no_addresses(repo: &Repo) -> Vec<Violation> {
    let mut found = Vec::new();
    for file in repo.files.iter().filter(|file| !is_lock(&file.path)) {
        for (index, line) in file.text.lines().enumerate() {
            if let Some(place) = PLACES.iter().find(|place| has_path(line, place)) {
                let message =
                    format!("a path of one machine (`{place}`): make it relative, or find it at run time");
                found.push(Violation::new(&file.path, index + 1, message));
            }
            if let Some(mirror) = MIRRORS.iter().find(|mirror| line.contains(**mirror)) {
                let message = format!(
                    "the address of a package mirror (`{mirror}`): it belongs into the settings of the machine"
                );
                found.push(Violation::new(&file.path, index + 1, message));
            }
        }
    }
    found
}

/// Whether `line` contains an absolute path that begins with `place`; `$x/place`, `a/place` and URL paths do not count.
fn has_path(line: &str, place: &str) -> bool {
    line.match_indices(place).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '}' | ')' | '*' | '~'))
    })
}
