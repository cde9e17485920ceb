//! The rules of the house, one table: what each asks for, why, and the function that checks it.

mod dependencies;
mod descriptions;
mod determinism;
mod purity;
mod rooms;
mod stray;
mod writer;

use std::fmt::Write as _;

use crate::repo::Repo;

/// A place where a rule is broken.
#[derive(Debug, PartialEq, Eq)]
pub struct Violation {
    /// From the root.
    pub file: String,
    /// Counted from 1.
    pub line: usize,
    /// What is wrong, and what to do.
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

/// One rule of the house.
pub struct Rule {
    /// As messages call it.
    pub name: &'static str,
    /// What it asks for.
    pub asks: &'static str,
    /// What would go wrong without it.
    pub why: &'static str,
    check: fn(&Repo) -> Vec<Violation>,
}

/// Every rule. Adding one is an entry here and, in `tests/rules.rs`, a fixture that passes and one that must not.
pub const RULES: &[Rule] = &[
    Rule {
        name: "core-no-io",
        asks: "The dependency tree of `crates/core` has no async runtime, no HTTP, no TLS, no DNS and no Kubernetes client.",
        why: "Decisions stay pure because there is nothing in reach to be impure with.",
        check: purity::core_no_io,
    },
    Rule {
        name: "core-pure",
        asks: "`crates/core/src` reads no clock, environment, file, socket or process, starts no thread and draws no random number.",
        why: "`decide(observed, now)` gives the same answer in the controller, in a dry run and in the simulator.",
        check: purity::core_pure,
    },
    Rule {
        name: "edges",
        asks: "In the other crates, clock, environment and randomness are read only by files that say so in their first lines: `//! Edge: why`. tokio's `Instant` follows a paused clock and is no edge.",
        why: "Time and chance are passed in; that is what makes a simulated run repeat byte for byte.",
        check: purity::edges,
    },
    Rule {
        name: "one-writer",
        asks: "In `crates/operator/src` only `apply.rs` (or `apply/`) and `leader.rs` create, patch, replace, delete or evict.",
        why: "Every write is guarded, so there is one place to look for the guard.",
        check: writer::one_writer,
    },
    Rule {
        name: "dependency-direction",
        asks: "core ← checks ← operator ← nodekeeper, and core ← checks ← sim ← nodekeeper; operator and sim do not know each other. Tests may use everything.",
        why: "The operator gets a client and never learns what is behind it.",
        check: dependencies::direction,
    },
    Rule {
        name: "one-dependency-table",
        asks: "Members write `x.workspace = true`, never a version, path or git address of their own.",
        why: "One place to upgrade, and no second version by accident.",
        check: dependencies::one_table,
    },
    Rule {
        name: "inherited",
        asks: "Each member takes version, edition, rust-version, licence, publish and lints from the workspace.",
        why: "A new crate cannot forget the lints.",
        check: dependencies::inherited,
    },
    Rule {
        name: "deterministic",
        asks: "In core, sim and operator: no `HashMap` or `HashSet`, no `select!` without `biased;`, no `tokio::sync::watch`, no `spawn_blocking`, unless a comment says `// deterministic: why` (or `//! deterministic: why` for a file).",
        why: "Each of them takes its order from a random number or from another thread, and then a seed does not replay.",
        check: determinism::deterministic,
    },
    Rule {
        name: "no-stray",
        asks: "No `todo!`, `unimplemented!`, `dbg!`, no `#[ignore]` without a reason, no TODO, FIXME or XXX in source files.",
        why: "What is not done is an issue, not a comment.",
        check: stray::no_stray,
    },
    Rule {
        name: "no-addresses",
        asks: "No path of one machine's home or work folder, and no address of a package mirror, in any file but lock files.",
        why: "The repository builds anywhere.",
        check: stray::no_addresses,
    },
    Rule {
        name: "small-rooms",
        asks: "A source file has at most 400 lines of code without its tests; the `main.rs` of a crate at most 60. Exceptions stand in a table with their reason.",
        why: "A file should be read in one sitting.",
        check: rooms::small_rooms,
    },
    Rule {
        name: "api-descriptions",
        asks: "Each description in `charts/nodekeeper/files/crds` has at least 30 characters and a verb (a word of the lists in `xtask/src/rules/descriptions.rs`, or one that ends like `-ed` or `-ates`), and repeats no other of its CRD, unless both are the same property of one type.",
        why: "`kubectl explain` is the reference of the API, and each field has to be understood on its own.",
        check: descriptions::descriptions,
    },
    Rule {
        name: "generated",
        asks: "Generated files are what their generator says now; `make generate` writes them.",
        why: "A stale generated file is a lie with a good reputation.",
        check: rooms::generated,
    },
    Rule {
        name: "every-test-runs",
        asks: "Each file in a member's `tests/` folder is run by a tier of `make test`.",
        why: "A test that nobody runs is worse than none.",
        check: rooms::every_test_runs,
    },
];

/// Every rule with what it found.
pub fn check_all(repo: &Repo) -> Vec<(&'static Rule, Vec<Violation>)> {
    RULES.iter().map(|rule| (rule, (rule.check)(repo))).collect()
}

/// docs/rules.md.
pub fn page() -> String {
    let mut page = "# The rules of the house\n\n\
        Written by `make generate` from the table in `xtask/src/rules.rs`; do not edit. `make lint` checks every rule and\n\
        prints each breach as `file:line: rule: what is wrong and what to do`.\n\n\
        | rule | what it asks | why |\n|---|---|---|\n"
        .to_owned();
    for rule in RULES {
        let _ = writeln!(page, "| `{}` | {} | {} |", rule.name, rule.asks, rule.why);
    }
    page
}

#[cfg(test)]
#[path = "tests/rules.rs"]
mod tests;
