//! The reasons of Events and conditions: users match them and look them up, so the pages have each of them and no other.

use super::Violation;
use crate::code;
use crate::repo::{File, Repo};

const SOURCE: &str = "crates/core/src/reasons.rs";
const GATE: &str = "docs/gate.md";
const REMEDIATION: &str = "docs/remediation.md";
/// Documents the condition that gates and policies share: their own pages may name it.
const CONFIGURATION: &str = "docs/configuration.md";

/// The line of [`SOURCE`] that begins the constants of a page, and the page. Those before the first line belong to [`GATE`].
const SECTIONS: &[(&str, &str)] = &[
    ("// The condition of objects that the installation brings", CONFIGURATION),
    ("pub mod remediation", REMEDIATION),
];

/// Headings of columns in which what is between backticks is a condition type or a reason.
const COLUMNS: &[&str] = &["condition", "reason", "status, reason"];

/// A constant of [`SOURCE`] and the page that documents it.
struct Constant<'a> {
    line: usize,
    value: &'a str,
    page: &'static str,
}

pub fn documented_reasons(repo: &Repo) -> Vec<Violation> {
    let Some(source) = repo.file(SOURCE) else { return Vec::new() };
    let constants = constants(&source.text);
    let mut found = Vec::new();
    for one in &constants {
        let page = repo.file(one.page).map_or("", |file| &file.text);
        let is_documented = page.lines().flat_map(quoted).any(|text| code::has_word(text, one.value));
        if !is_documented {
            let Constant { line, value, page } = one;
            let message = format!("`{value}` is not in {page}: add what it means and what to do about it");
            found.push(Violation::new(SOURCE, *line, message));
        }
    }
    for file in [GATE, REMEDIATION, CONFIGURATION].into_iter().filter_map(|page| repo.file(page)) {
        found.extend(unknown(file, &constants));
    }
    found
}

fn constants(text: &str) -> Vec<Constant<'_>> {
    let mut page = GATE;
    let mut all = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if let Some((_, next)) = SECTIONS.iter().find(|(start, _)| line.starts_with(start)) {
            page = next;
        }
        let value = line.trim_start().strip_prefix("pub const ").and_then(|rest| rest.split('"').nth(1));
        all.extend(value.map(|value| Constant { line: index + 1, value, page }));
    }
    all
}

/// What the tables and sentences of a page take for a reason, and what is none.
fn unknown(file: &File, constants: &[Constant<'_>]) -> Vec<Violation> {
    let is_known = |text: &str, page: Option<&str>| {
        constants
            .iter()
            .any(|one| one.value == text && page.is_none_or(|page| [page, CONFIGURATION].contains(&one.page)))
    };
    let mut found = Vec::new();
    let mut wrong = |index: usize, text: &str| {
        let message = format!("there is no reason `{text}` in {SOURCE}: correct or remove it");
        found.push(Violation::new(&file.path, index + 1, message));
    };
    let lines: Vec<&str> = file.text.lines().collect();
    let mut headings: Vec<&str> = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let events = line.match_indices("Event `").filter_map(|(at, _)| quoted(&line[at..]).next());
        events.filter(|text| !is_known(text, None)).for_each(|text| wrong(index, text));
        if !line.starts_with('|') {
            headings.clear();
            continue;
        }
        if lines.get(index + 1).is_some_and(|next| next.starts_with("|---")) {
            headings = cells(line).collect();
            continue;
        }
        let columns = headings.iter().zip(cells(line)).filter(|(heading, _)| COLUMNS.contains(heading));
        for text in columns.flat_map(|(_, cell)| quoted(cell)) {
            if is_camel_case(text) && !is_known(text, Some(&file.path)) {
                wrong(index, text);
            }
        }
    }
    found
}

/// The texts between backticks.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

fn cells(row: &str) -> impl Iterator<Item = &str> {
    row.trim().trim_matches('|').split('|').map(str::trim)
}

fn is_camel_case(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_uppercase()) && text.chars().all(char::is_alphanumeric)
}
