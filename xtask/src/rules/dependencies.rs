//! Rules for the Cargo.toml files of workspace members.

use super::Violation;
use crate::manifest::{Kind, Manifest};
use crate::repo::Repo;

/// What each crate may depend on outside its tests.
const DIRECTION: &[(&str, &[&str])] = &[
    ("crates/core", &[]),
    ("crates/checks", &["crates/core"]),
    ("crates/operator", &["crates/core", "crates/checks"]),
    ("crates/sim", &["crates/core", "crates/checks"]),
    ("crates/demo", &["crates/core", "crates/operator", "crates/sim"]),
    ("crates/nodekeeper", &["crates/core", "crates/operator", "crates/demo"]),
];

/// These members may depend on any crate; no crate may depend on them.
const OUTSIDE: &[&str] = &["e2e", "bench", "xtask"];

pub fn direction(repo: &Repo) -> Vec<Violation> {
    let table = repo.file("Cargo.toml").map(|file| Manifest::parse(&file.text).workspace_dependencies());
    let folder_of = |name: &str| {
        let own = table.iter().flatten().find(|dependency| dependency.name == name);
        own.and_then(|dependency| dependency.get("path"))
            .map(|path| path.trim_start_matches("./").trim_end_matches('/').to_owned())
    };
    let mut found = Vec::new();
    for (member, file) in repo.members() {
        let allowed = DIRECTION.iter().find(|(folder, _)| *folder == member).map(|(_, allowed)| *allowed);
        if allowed.is_none() && !OUTSIDE.contains(&member) {
            let message = "this crate is not in the dependency order: add it to DIRECTION in xtask/src/rules/dependencies.rs";
            found.push(Violation::new(&file.path, 1, message));
            continue;
        }
        for dependency in Manifest::parse(&file.text).dependencies() {
            let Some(target) = folder_of(&dependency.name) else { continue };
            let is_outside = OUTSIDE.contains(&target.as_str());
            let wrong = match (dependency.kind, allowed) {
                (Kind::Dev, _) | (_, None) => false,
                (Kind::Normal, Some(allowed)) => is_outside || !allowed.contains(&target.as_str()),
            };
            if wrong {
                let may = match allowed {
                    Some([]) | None => "no crate of this workspace".to_owned(),
                    Some(allowed) => format!("only {}", allowed.join(", ")),
                };
                found.push(Violation::new(
                    &file.path,
                    dependency.line,
                    format!("{member} may depend on {may}, not on {target}: move shared code to a lower crate, or make it a dev-dependency"),
                ));
            }
        }
    }
    found
}

pub fn one_table(repo: &Repo) -> Vec<Violation> {
    const OWN: [&str; 7] = ["version", "path", "git", "branch", "rev", "registry", "package"];
    let mut found = Vec::new();
    for (_, file) in repo.members() {
        for dependency in Manifest::parse(&file.text).dependencies() {
            let own = OWN.iter().find(|key| dependency.get(key).is_some());
            let name = &dependency.name;
            if let Some(key) = own {
                let message = format!(
                    "{name} has a {key} of its own: put it into [workspace.dependencies] and write `{name}.workspace = true`"
                );
                found.push(Violation::new(&file.path, dependency.line, message));
            } else if dependency.get("workspace") != Some("true") {
                let message =
                    format!("{name} is not taken from the workspace: write `{name}.workspace = true`");
                found.push(Violation::new(&file.path, dependency.line, message));
            }
        }
    }
    found
}

pub fn inherited(repo: &Repo) -> Vec<Violation> {
    let mut found = Vec::new();
    for (_, file) in repo.members() {
        let manifest = Manifest::parse(&file.text);
        for key in ["version", "edition", "rust-version", "license", "publish"] {
            if manifest.value(&format!("package.{key}.workspace")) != Some("true") {
                let message = format!("{key} is not inherited: write `{key}.workspace = true` in [package]");
                found.push(Violation::new(&file.path, 1, message));
            }
        }
        if manifest.value("lints.workspace") != Some("true") {
            found.push(Violation::new(
                &file.path,
                1,
                "lints are not inherited: write `workspace = true` in [lints]",
            ));
        }
    }
    found
}
