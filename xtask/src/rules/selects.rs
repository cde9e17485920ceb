//! Rule: nothing makes a simulated run differ between two runs with one seed. Clippy checks the rest of it.

use super::Violation;
use crate::code;
use crate::repo::Repo;

pub fn biased_select(repo: &Repo) -> Vec<Violation> {
    let mut found = Vec::new();
    for folder in ["crates/checks/src", "crates/core/src", "crates/operator/src", "crates/sim/src"] {
        for file in repo.production_below(folder) {
            let mut lines = code::production(&file.text).peekable();
            while let Some((number, line)) = lines.next() {
                let Some(at) = code::positions(line, "select!").next() else { continue };
                let body = line[at + "select!".len()..].trim_start().trim_start_matches(['{', '(', '[']);
                let first = if body.is_empty() { lines.peek().map_or("", |(_, next)| next) } else { body };
                if !first.trim_start().starts_with("biased;") {
                    let message = "`select!` starts at a random branch: begin it with `biased;`";
                    found.push(Violation::new(&file.path, number, message));
                }
            }
        }
    }
    found
}
