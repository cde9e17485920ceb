//! The table of repository rules: what each requires, why, and the function that checks it.

mod cycles;
mod descriptions;
mod file_size;
mod manifests;
mod reasons;
mod results;
mod retired_words;
mod selects;
mod stray;

use std::fmt::Write as _;

use crate::repo::Repo;

#[derive(Debug, PartialEq, Eq)]
pub struct Violation {
    /// Relative to the repository root.
    pub file: String,
    /// Counted from 1.
    pub line: usize,
    /// Says what is wrong and how to fix it.
    pub message: String,
}

impl Violation {
    fn new(file: &str, line: usize, message: impl Into<String>) -> Self {
        Self { file: file.to_owned(), line, message: message.into() }
    }

    /// `file:line: rule: what is wrong and what to do`
    pub fn line_for(&self, rule: &Rule) -> String {
        format!("{}:{}: {}: {}", self.file, self.line, rule.name, self.message)
    }
}

pub struct Rule {
    pub name: &'static str,
    pub requires: &'static str,
    pub why: &'static str,
    check: fn(&Repo) -> Vec<Violation>,
}

/// Every rule. A new rule needs an entry here and, in `tests/rules.rs`, a fixture that passes and one that fails.
pub const RULES: &[Rule] = &[
    Rule {
        name: "core-no-cycles",
        requires: "The modules of `crates/core/src` do not use each other in a cycle.",
        why: "A module can be read and tested with only those below it.",
        check: cycles::core_no_cycles,
    },
    Rule {
        name: "inherited",
        requires: "Each member takes version, edition, rust-version, licence, publish, lints and every dependency from the workspace.",
        why: "A new crate cannot forget the lints, there is one place to upgrade, and no second version by accident. Cargo has no lint for it.",
        check: manifests::inherited,
    },
    Rule {
        name: "checked-by-tools",
        requires: "Each crate is in the order of `crates/deny.toml`, and the lints that are for it are on in its root.",
        why: "cargo-deny and clippy say nothing about a crate that nobody told them about.",
        check: manifests::checked,
    },
    Rule {
        name: "biased-select",
        requires: "In checks, core, operator and sim, `select!` begins with `biased;`.",
        why: "It starts at a random branch otherwise, so a seed would not replay. Clippy does not see into a macro.",
        check: selects::biased_select,
    },
    Rule {
        name: "no-stray",
        requires: "No TODO, FIXME or XXX in the comments of source files.",
        why: "Open work is an issue, not a comment. Clippy has no lint for it; `todo!`, `dbg!` and `#[ignore]` without a reason are its.",
        check: stray::no_stray,
    },
    Rule {
        name: "no-addresses",
        requires: "No path of one machine's home or work folder and no address of a package mirror, except in lock files.",
        why: "The repository builds anywhere.",
        check: stray::no_addresses,
    },
    Rule {
        name: "file-size",
        requires: "A source file has at most 400 lines of code without its tests; the `main.rs` of a crate at most 60. Exceptions are listed in a table with their reason.",
        why: "A reader can understand a small file as a whole.",
        check: file_size::file_size,
    },
    Rule {
        name: "api-descriptions",
        requires: "Each description in `charts/nodekeeper/files/crds` has at least 30 characters and a verb (a word of the lists in `xtask/src/rules/descriptions.rs`, or one that ends like `-ed` or `-ates`), and repeats no other of its CRD, unless both are the same property of one type.",
        why: "`kubectl explain` is the reference of the API, and each field has to be understood on its own.",
        check: descriptions::descriptions,
    },
    Rule {
        name: "documented-reasons",
        requires: "Each condition type and reason of `crates/core/src/reasons.rs` is in `docs/gate.md` or, if it is one of remediation, in `docs/remediation.md`, and their tables and sentences name no other.",
        why: "A reason is what a user sees first and looks up.",
        check: reasons::documented_reasons,
    },
    Rule {
        name: "generated",
        requires: "Generated files equal the output of their generator; `make generate` writes them.",
        why: "Users and tests rely on generated files being current.",
        check: file_size::generated,
    },
    Rule {
        name: "results-current",
        requires: "The commit that `bench/RESULTS.md` names is at most 50 commits older than the last change of `crates/operator` or `crates/core`. Not checked in a shallow clone or without git.",
        why: "Budgets are kept by those who see the figures of what they change.",
        check: results::results_current,
    },
    Rule {
        name: "every-test-runs",
        requires: "Each file in a member's `tests/` folder is run by a tier of `make test`.",
        why: "A test that never runs proves nothing.",
        check: file_size::every_test_runs,
    },
    Rule {
        name: "retired-words",
        requires: "Identifiers, reasons, API fields and phrases listed in `xtask/src/rules/retired_words.rs` are not used in code, logs, docs, chart and CRDs. Persisted JSON keys may keep their names.",
        why: "The repository uses the terms of Kubernetes; replaced words must not come back.",
        check: retired_words::retired_words,
    },
];

/// Every rule with what it found.
pub fn check_all(repo: &Repo) -> Vec<(&'static Rule, Vec<Violation>)> {
    RULES.iter().map(|rule| (rule, (rule.check)(repo))).collect()
}

/// What other tools check: the rule, the reason, and where it is configured.
const BY_TOOLS: &[(&str, &str, &str)] = &[
    (
        "`crates/core` has nothing in its dependency tree that does I/O.",
        "Decisions stay pure because there is nothing in reach to be impure with.",
        "cargo-deny, `crates/core/deny.toml`",
    ),
    (
        "`crates/core` reads no clock, environment, file, socket or process, starts no thread, prints nothing and draws no random number.",
        "`decide(observed, now)` gives the same answer in the controller, in a dry run and in the simulator.",
        "clippy, `crates/core/clippy.toml`",
    ),
    (
        "In the other crates, only modules that `#![expect(clippy::disallowed_methods, reason = \"…\")]` read a clock, the environment or randomness. tokio's `Instant` follows a paused clock and is allowed.",
        "Time and randomness are passed in, so that a simulated run repeats byte for byte.",
        "clippy, `clippy.toml`",
    ),
    (
        "In `crates/operator` only `apply/` and `runtime/leader.rs` write to the API server.",
        "Every write needs a guard against lost leadership and changed objects; one place is easy to review.",
        "clippy, `clippy.toml`",
    ),
    (
        "No `HashMap` or `HashSet` in core, sim and operator; no `tokio::sync::watch` and no `spawn_blocking`.",
        "Their order depends on a random number or on another thread, so a seed would not replay.",
        "clippy, `clippy.toml`",
    ),
    (
        "core ← checks ← sim ← demo ← nodekeeper, and core ← operator ← demo; operator and sim do not depend on each other. Tests may use every crate.",
        "The operator gets a client and cannot tell a simulated API server from a real one.",
        "cargo-deny, `crates/deny.toml`",
    ),
    (
        "No `unsafe`, `unwrap`, `panic!`, `todo!`, `dbg!`; no `#[ignore]`, `#[allow]` or `#[expect]` without a reason; functions have at most 60 lines.",
        "What is left behind is found by the compiler.",
        "rustc and clippy, `Cargo.toml` and `clippy.toml`",
    ),
    (
        "Licences, sources, banned crates, one version of each crate.",
        "What is shipped is known.",
        "cargo-deny, `deny.toml`",
    ),
];

/// docs/rules.md.
pub fn page() -> String {
    let mut page = "# Repository rules\n\n\
        Written by `make generate` from the table in `xtask/src/rules.rs`; do not edit. `make lint` checks every rule.\n\
        Those of the first table print each violation as `file:line: rule: what is wrong and what to do`.\n\n\
        | rule | requirement | reason |\n|---|---|---|\n"
        .to_owned();
    for rule in RULES {
        let _ = writeln!(page, "| `{}` | {} | {} |", rule.name, rule.requires, rule.why);
    }
    page.push_str("\n## Checked by other tools\n\n| requirement | reason | by |\n|---|---|---|\n");
    for (requires, why, by) in BY_TOOLS {
        let _ = writeln!(page, "| {requires} | {why} | {by} |");
    }
    page
}

#[cfg(test)]
#[path = "tests/rules.rs"]
mod tests;
