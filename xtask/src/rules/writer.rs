//! Rule: only the writer and leader election write to the API server.

use super::Violation;
use crate::code;
use crate::repo::Repo;

/// The methods of `kube::Api` that write, with their minimum number of arguments, which distinguishes
/// `api.replace(name, &params, &object)` from `text.replace("a", "b")`.
const WRITES: &[(&str, usize)] = &[
    ("create", 2),
    ("create_subresource", 3),
    ("patch", 3),
    ("patch_status", 3),
    ("patch_metadata", 3),
    ("patch_metadata_status", 3),
    ("patch_scale", 3),
    ("patch_subresource", 4),
    ("patch_ephemeral_containers", 3),
    ("replace", 3),
    ("replace_status", 3),
    ("replace_scale", 3),
    ("replace_subresource", 4),
    ("delete", 2),
    ("delete_collection", 2),
    ("evict", 2),
    ("cordon", 1),
    ("uncordon", 1),
    ("restart", 1),
];

pub fn one_writer(repo: &Repo) -> Vec<Violation> {
    const ROOT: &str = "crates/operator/src";
    let may_write = |path: &str| {
        let name = path.strip_prefix(ROOT).unwrap_or_default();
        name == "/runtime/leader.rs" || name.starts_with("/apply/")
    };
    let mut found = Vec::new();
    for file in repo.production_below(ROOT).filter(|file| !may_write(&file.path)) {
        for (line, method) in writes(&code::production(&file.text)) {
            found.push(Violation::new(
                &file.path,
                line,
                format!(
                    "`{method}` writes to the API server: return an effect and let apply/ write it, guarded"
                ),
            ));
        }
    }
    found
}

fn writes(production: &str) -> Vec<(usize, &'static str)> {
    let mut found = Vec::new();
    for &(method, least) in WRITES {
        for at in code::positions(production, method) {
            let after = &production[at + method.len()..];
            let receiver = receiver_arguments(&production[..at]);
            if let (Some(receiver), Some(arguments)) = (receiver, arguments(after))
                && arguments >= least + receiver
            {
                found.push((code::line_of(production, at), method));
            }
        }
    }
    found.sort_unstable();
    found
}

/// How many arguments the receiver takes: none in `api.patch(…)`, one in `Api::patch(&api, …)`; `None` if the name is not
/// called as a method.
fn receiver_arguments(before: &str) -> Option<usize> {
    let before = before.trim_end();
    if before.ends_with('.') && !before.ends_with("..") {
        return Some(0);
    }
    let path = before.strip_suffix("::")?;
    let path = path.strip_suffix('>').map_or(path, |generic| generic.split("::<").next().unwrap_or(generic));
    path.ends_with("Api").then_some(1)
}

/// The number of arguments of the call that `after` begins with, past a turbofish.
fn arguments(after: &str) -> Option<usize> {
    let after = match after.strip_prefix("::<") {
        Some(generic) => &generic[generic.find('(')?..],
        None => after,
    };
    let inner = after.strip_prefix('(')?;
    let mut depth = 0_i32;
    let end = inner.find(|c| {
        depth += i32::from(matches!(c, '(' | '[' | '{')) - i32::from(matches!(c, ')' | ']' | '}'));
        depth < 0
    })?;
    Some(code::split_top(&inner[..end], ',').into_iter().filter(|part| !part.trim().is_empty()).count())
}
