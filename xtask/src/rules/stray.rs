//! Rules against leftovers and machine-specific paths.

use super::Violation;
use crate::code::{self, Hide};
use crate::repo::{self, File, Repo};

const MACROS: &[&str] = &["todo!", "unimplemented!", "dbg!"];
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
        let is_rust = repo::is_rust(&file.path);
        let shown = if is_rust { code::mask(&file.text, Hide::Strings) } else { file.text.clone() };
        for word in WORDS {
            for line in code::lines_with(&shown, word) {
                let message = format!("{word} left behind: do it now, or open an issue and delete the note");
                found.push(Violation::new(&file.path, line, message));
            }
        }
        if is_rust {
            found.extend(leftovers(file));
        }
    }
    found
}

fn leftovers(file: &File) -> Vec<Violation> {
    let visible = code::mask(&file.text, Hide::StringsAndComments);
    let mut found = Vec::new();
    for name in MACROS {
        for line in code::lines_with(&visible, name) {
            found.push(Violation::new(
                &file.path,
                line,
                format!("`{name}` left behind: finish it or remove it"),
            ));
        }
    }
    for at in code::positions(&visible, "#[ignore") {
        let after: String = visible[at + "#[ignore".len()..].split_whitespace().collect();
        if !after.starts_with("=\"") {
            let message = "an ignored test without a reason: write `#[ignore = \"why, and how to run it\"]`";
            found.push(Violation::new(&file.path, code::line_of(&visible, at), message));
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
