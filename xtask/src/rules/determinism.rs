//! Rule: nothing makes a simulated run differ between two runs with one seed.

use super::Violation;
use crate::code;
use crate::repo::Repo;

/// Identifiers that are not deterministic, and what to use instead.
const WORDS: &[(&str, &str)] = &[
    ("HashMap", "its order is random: use BTreeMap"),
    ("HashSet", "its order is random: use BTreeSet"),
    ("spawn_blocking", "another thread decides when it ends: do the work in the task"),
    ("sync::watch", "it wakes its receivers in random order: use Notify or mpsc"),
    ("watch::channel", "it wakes its receivers in random order: use Notify or mpsc"),
];

pub fn deterministic(repo: &Repo) -> Vec<Violation> {
    let mut found = Vec::new();
    for folder in ["crates/core/src", "crates/operator/src", "crates/sim/src"] {
        for file in repo.production_below(folder) {
            let lines: Vec<&str> = file.text.lines().collect();
            if explained_for_file(&lines) {
                continue;
            }
            for (line, what, instead) in places(&code::production(&file.text)) {
                if !explained(&lines, line) {
                    let message = format!("`{what}`: {instead}, or add a comment `// deterministic: why`");
                    found.push(Violation::new(&file.path, line, message));
                }
            }
        }
    }
    found
}

fn places(production: &str) -> Vec<(usize, &'static str, &'static str)> {
    let mut found = Vec::new();
    for &(word, instead) in WORDS {
        found.extend(code::lines_with(production, word).into_iter().map(|line| (line, word, instead)));
    }
    for import in code::imports(production) {
        if import.path.ends_with("tokio::sync::watch") || import.path.contains("tokio::sync::watch::") {
            found.push((
                import.line,
                "sync::watch",
                "it wakes its receivers in random order: use Notify or mpsc",
            ));
        }
    }
    for at in code::positions(production, "select!") {
        let body = production[at + "select!".len()..].trim_start();
        let body = body.trim_start_matches(['{', '(', '[']).trim_start();
        if !body.starts_with("biased;") {
            let line = code::line_of(production, at);
            found.push((line, "select!", "it starts at a random branch: begin it with `biased;`"));
        }
    }
    found.sort_unstable();
    found.dedup_by_key(|(line, ..)| *line);
    found
}

fn reason(comment: &str, marker: &str) -> bool {
    comment.split_once(marker).is_some_and(|(_, why)| !why.trim().is_empty())
}

/// On the line itself, or in the comment right above it.
fn explained(lines: &[&str], line: usize) -> bool {
    let own = lines.get(line - 1).is_some_and(|text| reason(text, "// deterministic:"));
    let above = lines[..line - 1].iter().rev().take_while(|text| text.trim_start().starts_with("//"));
    own || above.into_iter().any(|text| reason(text, "// deterministic:"))
}

/// In the file's own documentation.
fn explained_for_file(lines: &[&str]) -> bool {
    lines.iter().take_while(|line| line.starts_with("//!")).any(|line| reason(line, "//! deterministic:"))
}
