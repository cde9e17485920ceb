//! Rules: `core` reads no clock, environment, randomness or I/O; other crates do so only in files marked as edges.

use super::Violation;
use crate::code::{self, Import};
use crate::repo::{File, Repo};

/// Crates that do I/O; a trailing `*` stands for any ending.
const IO_CRATES: &[&str] = &[
    "tokio*",
    "hyper*",
    "reqwest",
    "tower*",
    "futures*",
    "kube-client",
    "kube-runtime",
    "hickory*",
    "rustls*",
    "native-tls",
    "openssl*",
    "mio",
    "socket2",
    "h2",
    "axum*",
    "ureq*",
    "async-*",
    "rand",
    "fastrand",
];

/// Reads of a clock, the environment or randomness.
const AMBIENT: &[&str] = &[
    "Timestamp::now",
    "Zoned::now",
    "SystemTime",
    "Instant::now",
    "Utc::now",
    "Local::now",
    "env::var",
    "env::vars",
    "env::var_os",
    "env::vars_os",
    "env::args",
    "env::args_os",
    "env::temp_dir",
    "env::current_dir",
    "rand::",
    "getrandom::",
    "RandomState",
    "Rng::new()",
];

/// Further APIs that `core` must not use. Types such as `IpAddr` are data and allowed.
const CORE_ONLY: &[&str] = &[
    "fastrand",
    "env::",
    "std::fs",
    "fs::",
    "File::",
    "TcpStream",
    "TcpListener",
    "UdpSocket",
    "ToSocketAddrs",
    "to_socket_addrs",
    "thread::",
    "process::",
    "tokio::",
    "stdin",
    "stdout",
    "println!",
    "eprintln!",
];

/// Types whose `now` reads a clock.
const CLOCKS: &[&str] = &["Timestamp", "Zoned", "SystemTime", "Instant"];

pub fn core_no_io(repo: &Repo) -> Vec<Violation> {
    const MANIFEST: &str = "crates/core/Cargo.toml";
    match &repo.core_tree {
        None => Vec::new(),
        Some(Err(error)) => vec![Violation::new(MANIFEST, 1, format!("cargo tree failed: {}", error.trim()))],
        Some(Ok(tree)) => io_crates(tree)
            .into_iter()
            .map(|name| {
                let advice = format!("cargo tree -p nodekeeper-core -e normal -i {name}");
                Violation::new(
                    MANIFEST,
                    1,
                    format!(
                        "core depends on {name}; `{advice}` shows the path: remove it, or disable the feature"
                    ),
                )
            })
            .collect(),
    }
}

/// The crates in a tree (one `name vX.Y.Z` a line) that do I/O, each once.
fn io_crates(tree: &str) -> Vec<&str> {
    let mut found: Vec<&str> =
        tree.lines().filter_map(|line| line.split_whitespace().next()).filter(|n| does_io(n)).collect();
    found.sort_unstable();
    found.dedup();
    found
}

fn does_io(name: &str) -> bool {
    // These contain only data types or compile-time macros.
    const HARMLESS: [&str; 3] = ["rustls-pki-types", "tower-service", "futures-core"];
    !HARMLESS.contains(&name)
        && IO_CRATES.iter().any(|known| match known.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => name == *known,
        })
}

pub fn core_pure(repo: &Repo) -> Vec<Violation> {
    let mut found = Vec::new();
    for file in repo.production_below("crates/core/src") {
        let words: Vec<&str> = AMBIENT.iter().chain(CORE_ONLY).copied().collect();
        for (line, word) in ambient(&file.text, &words, |_, _| false) {
            found.push(Violation::new(
                &file.path,
                line,
                format!("`{word}` in core, which is pure: take the value as an argument, and read it in the operator"),
            ));
        }
    }
    found
}

pub fn edges(repo: &Repo) -> Vec<Violation> {
    let mut found = Vec::new();
    for folder in ["crates/checks/src", "crates/operator/src", "crates/sim/src", "crates/nodekeeper/src"] {
        for file in repo.production_below(folder).filter(|file| !is_edge(file)) {
            let mut places = ambient(&file.text, AMBIENT, follows_paused_clock);
            places.extend(free_random(&file.text));
            for (line, word) in places {
                let message = format!(
                    "`{word}` outside an edge: pass the value in, or begin the file with `//! Edge: why it must be here`"
                );
                found.push(Violation::new(&file.path, line, message));
            }
        }
    }
    found
}

/// Whether the header comment of the file marks it as an edge with a reason.
fn is_edge(file: &File) -> bool {
    let head = file.text.lines().take_while(|line| line.starts_with("//") || line.trim().is_empty());
    head.filter_map(|line| line.strip_prefix("//! Edge:")).any(|why| !why.trim().is_empty())
}

/// The lines that use or import `words` outside tests, comments and strings, unless `fine` accepts the position.
fn ambient(text: &str, words: &[&str], fine: fn(&str, usize) -> bool) -> Vec<(usize, String)> {
    let production = code::production(text);
    let mut found: Vec<(usize, String)> = Vec::new();
    for word in words {
        let places = code::positions(&production, word).filter(|at| !fine(&production, *at));
        found.extend(places.map(|at| (code::line_of(&production, at), (*word).to_owned())));
    }
    for import in code::imports(&production) {
        if let Some(word) = words.iter().find(|word| names(&import, word)) {
            found.push((import.line, (*word).to_owned()));
        } else if let Some(alias) = renamed_clock(&import) {
            found.push((import.line, alias));
        }
    }
    found.sort();
    found.dedup_by_key(|(line, _)| *line);
    found
}

/// Whether the word at `at` is tokio's `Instant`, which follows a paused runtime clock. The standard library's does not.
fn follows_paused_clock(production: &str, at: usize) -> bool {
    let imported = |path: &str| code::imports(production).iter().any(|import| import.path == path);
    let before = &production[..at];
    let start = before.rfind(|c: char| !c.is_alphanumeric() && c != '_' && c != ':').map_or(0, |end| end + 1);
    production[at..].starts_with("Instant::now")
        && match &before[start..] {
            "" => imported("tokio::time::Instant") && !imported("std::time::Instant"),
            "time::" => imported("tokio::time"),
            path => path == "tokio::time::",
        }
}

/// Whether an import names `word`: `use std::{env::{var}}` names `env::var`.
fn names(import: &Import, word: &str) -> bool {
    let whole = format!("::{}::", import.path);
    whole.contains(&format!("::{}::", word.trim_end_matches(':')))
}

/// `Instant as Clock` would hide `Clock::now()` from this rule.
fn renamed_clock(import: &Import) -> Option<String> {
    let last = import.path.rsplit("::").next()?;
    let alias = import.alias.as_deref().filter(|alias| *alias != "_")?;
    CLOCKS.contains(&last).then(|| format!("{last} as {alias}"))
}

/// `fastrand::u8(..)` uses a thread-local generator; `fastrand::Rng::with_seed` takes its seed as an argument.
fn free_random(text: &str) -> Vec<(usize, String)> {
    let production = code::production(text);
    code::positions(&production, "fastrand::")
        .filter_map(|at| {
            let name: String = production[at + "fastrand::".len()..]
                .chars()
                .take_while(|c| c.is_alphanumeric() || *c == '_')
                .collect();
            let free = name.starts_with(|c: char| c.is_lowercase());
            free.then(|| (code::line_of(&production, at), format!("fastrand::{name}")))
        })
        .collect()
}
