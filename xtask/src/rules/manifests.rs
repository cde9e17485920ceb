//! Rules for the Cargo.toml files of members, and for the lints in the roots of crates.

use super::Violation;
use crate::repo::Repo;

const INHERITED: [&str; 5] = ["version", "edition", "rust-version", "license", "publish"];

/// Members that nothing but tests and tools depends on, so that cargo-deny has no order for them.
const TOPS: [&str; 3] = ["nodekeeper", "nodekeeper-bench", "xtask"];
const ORDER: &str = "crates/deny.toml";

/// The lints that are on in the root of each crate, because the workspace cannot turn a lint on outside of tests.
const LINTS: &[(&str, &[&str])] = &[
    ("crates/checks/src/lib.rs", &["disallowed_methods"]),
    ("crates/core/src/lib.rs", &["disallowed_methods", "disallowed_types", "print_stdout", "print_stderr"]),
    ("crates/demo/src/lib.rs", &["disallowed_methods"]),
    ("crates/nodekeeper/src/main.rs", &["disallowed_methods"]),
    ("crates/operator/src/lib.rs", &["disallowed_methods", "disallowed_types"]),
    ("crates/sim/src/lib.rs", &["disallowed_methods", "disallowed_types"]),
];

/// Cargo reports neither a version of a member's own nor a key that is not inherited.
pub fn inherited(repo: &Repo) -> Vec<Violation> {
    let mut found = Vec::new();
    for (_, file) in repo.members() {
        for key in INHERITED {
            if !file.text.contains(&format!("\n{key}.workspace = true\n")) {
                let message = format!("{key} is not inherited: write `{key}.workspace = true` in [package]");
                found.push(Violation::new(&file.path, 1, message));
            }
        }
        if !file.text.contains("\n[lints]\nworkspace = true\n") {
            let message = "lints are not inherited: write `workspace = true` in [lints]";
            found.push(Violation::new(&file.path, 1, message));
        }
        let mut table = "";
        for (index, line) in file.text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.starts_with('[') {
                table = line.trim_matches(['[', ']']);
            } else if table.contains("dependencies") && !line.is_empty() && !line.contains("workspace = true")
            {
                let message = "this dependency has a version or place of its own: put it into [workspace.dependencies], and write `x.workspace = true` on one line";
                found.push(Violation::new(&file.path, index + 1, message));
            }
        }
    }
    found
}

/// cargo-deny and clippy check the order of crates and what they may call, where they are told to.
pub fn checked(repo: &Repo) -> Vec<Violation> {
    let mut found = Vec::new();
    let order = repo.file(ORDER).map_or("", |file| file.text.as_str());
    for (member, file) in repo.members() {
        let name = file.text.lines().find_map(|line| line.strip_prefix("name = ")).unwrap_or_default();
        let name = name.trim_matches('"');
        if !TOPS.contains(&name)
            && member != "crates/core"
            && !order.contains(&format!("{{ crate = \"{name}\","))
        {
            let message =
                format!("{name} has no place in the order of crates: add to {ORDER} who may use it");
            found.push(Violation::new(&file.path, 1, message));
        }
        let root = |path: &&str| path.strip_prefix(member).is_some_and(|rest| rest.starts_with("/src/"));
        if member.starts_with("crates/") && !LINTS.iter().any(|(path, _)| root(path)) {
            let message = format!(
                "{name} is not in LINTS of xtask/src/rules/manifests.rs: say which lints are on in it"
            );
            found.push(Violation::new(&file.path, 1, message));
        }
    }
    for (path, lints) in LINTS {
        let Some(file) = repo.file(path) else { continue };
        let text: String = file.text.split_whitespace().collect();
        let on = text.split("#![cfg_attr(not(test),deny(").nth(1).and_then(|rest| rest.split("))]").next());
        for lint in *lints {
            if !on.unwrap_or_default().split(',').any(|one| one == format!("clippy::{lint}")) {
                let message = format!(
                    "clippy::{lint} is not on: write `#![cfg_attr(not(test), deny(clippy::{lint}))]`"
                );
                found.push(Violation::new(path, 1, message));
            }
        }
    }
    found
}
