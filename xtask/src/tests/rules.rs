//! Every rule has a fixture that passes and one that fails.

use super::*;
use crate::generate::Output;
use crate::repo::File;

/// A repository of a few files, and the place (`file:line`) where the rule must report a violation, if any.
struct Fixture {
    rule: &'static str,
    files: Vec<(&'static str, String)>,
    tree: Option<Result<&'static str, &'static str>>,
    generated: Option<(&'static str, Result<&'static str, &'static str>)>,
    violation: Option<&'static str>,
}

fn holds(rule: &'static str, path: &'static str, text: impl Into<String>) -> Fixture {
    Fixture { rule, files: vec![(path, text.into())], tree: None, generated: None, violation: None }
}

fn breaks(
    rule: &'static str,
    path: &'static str,
    text: impl Into<String>,
    violation: &'static str,
) -> Fixture {
    Fixture { violation: Some(violation), ..holds(rule, path, text) }
}

fn tree(tree: Result<&'static str, &'static str>, violation: Option<&'static str>) -> Fixture {
    Fixture { tree: Some(tree), violation, ..holds("core-no-io", "crates/core/Cargo.toml", "") }
}

fn output(
    committed: &str,
    now: Result<&'static str, &'static str>,
    violation: Option<&'static str>,
) -> Fixture {
    Fixture { generated: Some(("docs/x.md", now)), violation, ..holds("generated", "docs/x.md", committed) }
}

/// A member that depends on `sim` through the workspace's table.
fn depends(member: &'static str, table: &str, violation: Option<&'static str>) -> Fixture {
    let mut fixture = holds(
        "dependency-direction",
        member,
        format!("[{table}]\nserde.workspace = true\nthe-sim.workspace = true\n"),
    );
    let root = "[workspace.dependencies]\nserde = \"1\"\nthe-sim = { path = \"crates/sim\", package = \"nodekeeper-sim\" }\n";
    fixture.files.push(("Cargo.toml", root.to_owned()));
    Fixture { violation, ..fixture }
}

impl Fixture {
    fn repo(&self) -> Repo {
        let own = |result: Result<&str, &str>| result.map(str::to_owned).map_err(str::to_owned);
        let generated = self.generated.map(|(file, now)| Output { file: file.to_owned(), text: own(now) });
        Repo {
            files: self
                .files
                .iter()
                .map(|(path, text)| File { path: (*path).to_owned(), text: text.clone() })
                .collect(),
            core_tree: self.tree.map(own),
            generated: generated.into_iter().collect(),
        }
    }
}

fn core() -> Vec<Fixture> {
    const CORE: &str = "crates/core/src/gate.rs";
    vec![
        tree(
            Ok(
                "nodekeeper-core v0.1.0 (x)\nserde v1.0.0\nfutures-core v0.3.0\nkube-core v5.0.0\nhttp v1.4.0\n",
            ),
            None,
        ),
        tree(
            Ok("nodekeeper-core v0.1.0 (x)\nserde v1.0.0\ntokio v1.54.0\n"),
            Some("crates/core/Cargo.toml:1"),
        ),
        tree(Ok("kube v5.0.0\nkube-client v5.0.0 (*)\n"), Some("crates/core/Cargo.toml:1")),
        tree(Ok("hickory-resolver v0.26.0\n"), Some("crates/core/Cargo.toml:1")),
        tree(Err("no such package"), Some("crates/core/Cargo.toml:1")),
        holds("core-pure", CORE, "//! Not Timestamp::now().\nfn f(now: Timestamp) { g(\"SystemTime\") }\n"),
        holds(
            "core-pure",
            CORE,
            "use std::net::IpAddr;\nfn f(a: IpAddr) {}\n#[cfg(test)]\nmod tests { use std::fs; }\n",
        ),
        holds("core-pure", "crates/core/tests/table.rs", "use std::fs;"),
        breaks(
            "core-pure",
            CORE,
            "fn f() {\n    let now = jiff::Timestamp::now();\n}\n",
            "crates/core/src/gate.rs:2",
        ),
        breaks("core-pure", CORE, "fn f() -> SystemTime {}", "crates/core/src/gate.rs:1"),
        breaks("core-pure", CORE, "\nuse std::{fmt, fs};\n", "crates/core/src/gate.rs:2"),
        breaks("core-pure", CORE, "use std::{env::{var}};\n", "crates/core/src/gate.rs:1"),
        breaks("core-pure", CORE, "fn f() { std::thread::spawn(g); }", "crates/core/src/gate.rs:1"),
        breaks("core-pure", CORE, "fn f(r: &mut fastrand::Rng) {}", "crates/core/src/gate.rs:1"),
        breaks(
            "core-pure",
            CORE,
            "//! Edge: not here.\nfn f() { Instant::now() }",
            "crates/core/src/gate.rs:2",
        ),
        breaks("core-pure", CORE, "fn f() { tokio::time::Instant::now() }", "crates/core/src/gate.rs:1"),
    ]
}

fn edges() -> Vec<Fixture> {
    const SIM: &str = "crates/sim/src/clock.rs";
    vec![
        holds(
            "edges",
            SIM,
            "//! The clock.\n//!\n//! Edge: time enters here.\n\nfn f() { Instant::now() }\n",
        ),
        holds("edges", SIM, "fn f(seed: u64) { fastrand::Rng::with_seed(seed) } // Instant::now\n"),
        holds("edges", SIM, "fn f() {}\n#[cfg(test)]\nmod tests { fn g() { Instant::now() } }\n"),
        holds(
            "edges",
            SIM,
            "use tokio::time::{self, Instant};\nfn f() { Instant::now(); time::Instant::now() }",
        ),
        holds("edges", SIM, "fn f() { tokio::time::Instant::now() }"),
        breaks(
            "edges",
            SIM,
            "use std::time::Instant;\nfn f() { Instant::now() }",
            "crates/sim/src/clock.rs:2",
        ),
        breaks("edges", SIM, "use std::time;\nfn f() { time::Instant::now() }", "crates/sim/src/clock.rs:2"),
        holds("edges", "e2e/src/lib.rs", "fn f() { Instant::now() }"),
        breaks("edges", SIM, "fn f() {\n    std::time::Instant::now()\n}\n", "crates/sim/src/clock.rs:2"),
        breaks("edges", SIM, "//! Edge:\nfn f() { Instant::now() }", "crates/sim/src/clock.rs:2"),
        breaks(
            "edges",
            SIM,
            "fn f() {}\n//! Edge: too late.\nfn g() { env::var(\"A\") }",
            "crates/sim/src/clock.rs:3",
        ),
        breaks("edges", SIM, "fn f() { fastrand::u8(..) }", "crates/sim/src/clock.rs:1"),
        breaks("edges", SIM, "fn f() { fastrand::Rng::new() }", "crates/sim/src/clock.rs:1"),
        breaks(
            "edges",
            "crates/operator/src/a.rs",
            "use jiff::Timestamp as T;\nfn f() { T::now() }",
            "crates/operator/src/a.rs:1",
        ),
        breaks(
            "edges",
            "crates/nodekeeper/src/main.rs",
            "fn f() { env::var(\"A\") }",
            "crates/nodekeeper/src/main.rs:1",
        ),
        breaks(
            "edges",
            "crates/checks/src/lib.rs",
            "fn f() { rand::random() }",
            "crates/checks/src/lib.rs:1",
        ),
    ]
}

fn writer() -> Vec<Fixture> {
    const GATE: &str = "crates/operator/src/gate/mod.rs";
    let patch = "fn f() {\n    nodes\n        .patch(\n            name,\n            &params,\n            &patch,\n        )\n        .await;\n}\n";
    let broken = |text: &str| breaks("one-writer", GATE, text, "crates/operator/src/gate/mod.rs:1");
    vec![
        holds("one-writer", "crates/operator/src/apply/node.rs", patch),
        holds("one-writer", "crates/operator/src/apply/taints.rs", patch),
        holds("one-writer", "crates/operator/src/runtime/leader.rs", patch),
        holds("one-writer", "crates/sim/src/kubelet.rs", patch),
        holds(
            "one-writer",
            GATE,
            "fn f() { text.replace(\"a\", \"b\"); text.replace(&a, b); map.delete(key); File::create(path); }",
        ),
        holds(
            "one-writer",
            GATE,
            "// api.delete(name, &params)\nfn f() { say(\"api.delete(name, &params)\") }",
        ),
        breaks("one-writer", GATE, patch, "crates/operator/src/gate/mod.rs:3"),
        breaks(
            "one-writer",
            "crates/operator/src/gate/apply.rs",
            patch,
            "crates/operator/src/gate/apply.rs:3",
        ),
        broken("fn f() { pods.create(&PostParams::default(), &pod) }"),
        broken("fn f() { nodes.replace(&name, &params, &node) }"),
        broken("fn f() { gates.patch_status(&name, &params, &Patch::Merge(json)) }"),
        broken("fn f() { gates.replace_status(&name, &params, data) }"),
        broken("fn f() { pods.delete(&name, &params) }"),
        broken("fn f() { pods.delete(\"a, (b\", &params) }"),
        broken("fn f() { nodes.patch(\"n\", &params, &patch) }"),
        broken("fn f() { pods.delete_collection(&params, &list) }"),
        broken("fn f() { pods.evict(&name, &params) }"),
        broken("fn f() { Api::<Pod>::delete(&pods, &name, &params) }"),
    ]
}

fn dependencies() -> Vec<Fixture> {
    const MEMBER: &str = "crates/sim/Cargo.toml";
    const PACKAGE: &str = "[package]\nname = \"x\"\nversion.workspace = true\nedition.workspace = true\nrust-version.workspace = true\nlicense.workspace = true\npublish.workspace = true\n";
    let table = |text: &str, violation| Fixture { violation, ..holds("one-dependency-table", MEMBER, text) };
    vec![
        depends("crates/demo/Cargo.toml", "dependencies", None),
        depends("crates/operator/Cargo.toml", "dev-dependencies", None),
        depends("e2e/Cargo.toml", "dependencies", None),
        depends("crates/operator/Cargo.toml", "dependencies", Some("crates/operator/Cargo.toml:3")),
        depends(
            "crates/core/Cargo.toml",
            "target.'cfg(unix)'.dependencies",
            Some("crates/core/Cargo.toml:3"),
        ),
        depends("crates/checks/Cargo.toml", "build-dependencies", Some("crates/checks/Cargo.toml:3")),
        depends("crates/unknown/Cargo.toml", "dependencies", Some("crates/unknown/Cargo.toml:1")),
        table(
            "[dependencies]\na.workspace = true\nb = { workspace = true, features = [\"x\"], optional = true }\n",
            None,
        ),
        table("[dependencies]\na = \"1.0\"\n", Some("crates/sim/Cargo.toml:2")),
        table("[dev-dependencies]\na = { path = \"../a\" }\n", Some("crates/sim/Cargo.toml:2")),
        table("[dependencies.a]\ngit = \"https://example.org\"\n", Some("crates/sim/Cargo.toml:2")),
        table("[dependencies]\na = { features = [\"x\"] }\n", Some("crates/sim/Cargo.toml:2")),
        holds("inherited", MEMBER, format!("{PACKAGE}[lints]\nworkspace = true\n")),
        breaks("inherited", MEMBER, PACKAGE, "crates/sim/Cargo.toml:1"),
        breaks(
            "inherited",
            MEMBER,
            format!(
                "{}[lints]\nworkspace = true\n",
                PACKAGE.replace("edition.workspace = true", "edition = \"2021\"")
            ),
            "crates/sim/Cargo.toml:1",
        ),
    ]
}

fn determinism() -> Vec<Fixture> {
    const SIM: &str = "crates/sim/src/store.rs";
    let held = |text: &str| holds("deterministic", SIM, text);
    let broken = |text: &str| breaks("deterministic", SIM, text, "crates/sim/src/store.rs:2");
    vec![
        held("fn f() { tokio::select! {\n    biased;\n    _ = a => {}\n} }"),
        held("// no HashMap\nfn f(s: &str) { s == \"HashMap\" }"),
        held("// deterministic: looked up, never walked\nuse std::collections::HashMap;\n"),
        held("fn f() { g(spawn_blocking) } // deterministic: only in the demo\n"),
        held("//! The store.\n//! deterministic: looked up, never walked\nuse std::collections::HashMap;\n"),
        held("fn f(watch: Watch) { watch.next() }"),
        holds("deterministic", "e2e/src/lib.rs", "use std::collections::HashMap;"),
        broken("\nuse std::collections::{BTreeMap, HashMap};\n"),
        broken("\nfn f() -> HashSet<u8> {}"),
        broken("// deterministic:\nuse std::collections::HashMap;"),
        broken("\nfn f() { tokio::select! { _ = a => {} } }"),
        broken("\nuse tokio::sync::{mpsc, watch};"),
        broken("\nfn f() { tokio::task::spawn_blocking(g) }"),
        breaks(
            "deterministic",
            "crates/operator/src/queue.rs",
            "fn f() { select! { a = b => {} } }",
            "crates/operator/src/queue.rs:1",
        ),
        breaks(
            "deterministic",
            "crates/core/src/gate.rs",
            "use std::collections::HashMap;",
            "crates/core/src/gate.rs:1",
        ),
    ]
}

fn stray() -> Vec<Fixture> {
    const FILE: &str = "e2e/tests/conformance.rs";
    let broken = |text: &str| breaks("no-stray", FILE, text, "e2e/tests/conformance.rs:2");
    let (home, mirror) = (concat!("/ho", "me/"), concat!("sparse+", "https://mirror.example/"));
    vec![
        holds("no-stray", FILE, "fn f() { g(\"TODO\") }\n#[ignore = \"needs a cluster\"]\nfn h() { todo() }"),
        holds("no-stray", "CONTRIBUTING.md", "We leave no TODO."),
        broken("\n    todo!()"),
        broken("\n    unimplemented!(\"later\")"),
        broken("\n    dbg!(x);"),
        broken("\n#[ignore]"),
        broken("\n#[ignore = 1]"),
        broken("\n// TODO: later"),
        broken("\nlet a = 1; /* FIXME */"),
        breaks("no-stray", "Makefile", "all: # XXX\n", "Makefile:1"),
        holds("no-addresses", "README.md", format!("$HOME{home} and ..{home} and https://example.org{home}")),
        holds("no-addresses", "Cargo.lock", mirror),
        breaks("no-addresses", "README.md", format!("see\n`{home}me/x`"), "README.md:2"),
        breaks("no-addresses", FILE, format!("const X: &str = \"{home}me\";"), "e2e/tests/conformance.rs:1"),
        breaks("no-addresses", ".cargo/config.toml", format!("index = \"{mirror}\""), ".cargo/config.toml:1"),
        breaks(
            "no-addresses",
            ".cargo/config.toml",
            concat!("replace", "-with = \"mirror\""),
            ".cargo/config.toml:1",
        ),
    ]
}

fn file_size() -> Vec<Fixture> {
    const FILE: &str = "crates/sim/src/store.rs";
    let lines = |n: usize| "fn f() {}\n".repeat(n);
    let test = |path, violation| {
        let mut fixture = holds("every-test-runs", path, "");
        fixture.files.extend([("e2e/Cargo.toml", String::new()), ("crates/core/Cargo.toml", String::new())]);
        Fixture { violation, ..fixture }
    };
    vec![
        holds(
            "file-size",
            FILE,
            format!(
                "{}{}#[cfg(test)]\nmod tests {{\n{}}}\n",
                lines(400),
                "// more\n\n".repeat(50),
                lines(500)
            ),
        ),
        holds("file-size", "crates/sim/tests/seeds.rs", lines(900)),
        breaks("file-size", FILE, lines(401), "crates/sim/src/store.rs:1"),
        breaks("file-size", "crates/nodekeeper/src/main.rs", lines(61), "crates/nodekeeper/src/main.rs:1"),
        output("a\nb\n", Ok("a\nb\n"), None),
        output("a\nb\n", Ok("a\nc\n"), Some("docs/x.md:2")),
        output("", Ok("a\n"), Some("docs/x.md:1")),
        output("a\n", Err("no such command"), Some("docs/x.md:1")),
        test("e2e/tests/conformance.rs", None),
        test("e2e/tests/common/mod.rs", None),
        test("e2e/tests/forgotten.rs", Some("e2e/tests/forgotten.rs:1")),
        test("e2e/tests/forgotten/main.rs", Some("e2e/tests/forgotten/main.rs:1")),
        test("crates/core/tests/tables.rs", Some("crates/core/tests/tables.rs:1")),
    ]
}

/// A CRD with the properties `a` and `b` of one type, each with a property `x`.
fn crd(a: &str, x: &str, b: &str) -> String {
    let property = |name: &str, text: &str| {
        format!(
            "  {name}:\n    description: {text}\n    properties:\n      x:\n        description: >-\n          {x}\n        type: string\n"
        )
    };
    format!("properties:\n{}{}", property("a", a), property("b", b))
}

fn descriptions() -> Vec<Fixture> {
    const FILE: &str = "charts/nodekeeper/files/crds/nodegates.yaml";
    const RULE: &str = "api-descriptions";
    let [a, b] = ["Limits how long a worker may take.", "Lists the names that have to resolve."];
    let x = "The time in seconds until a check fails.";
    vec![
        holds(RULE, FILE, crd(a, x, b)),
        holds(RULE, FILE, "spec:\n  description:\n    type: string\n"),
        holds(RULE, "charts/nodekeeper/values.yaml", "description: Short.\n"),
        breaks(RULE, FILE, crd(a, x, "Its name."), "charts/nodekeeper/files/crds/nodegates.yaml:10"),
        breaks(
            RULE,
            FILE,
            crd("The namespace of the Service of peers.", x, b),
            "charts/nodekeeper/files/crds/nodegates.yaml:3",
        ),
        breaks(RULE, FILE, crd(a, x, a), "charts/nodekeeper/files/crds/nodegates.yaml:10"),
    ]
}

fn cycles() -> Vec<Fixture> {
    let with = |text: &str, violation| {
        let mut fixture = holds("core-no-cycles", "crates/core/src/gate.rs", "use crate::node::NodeView;\n");
        fixture.files.push(("crates/core/src/node/view.rs", text.to_owned()));
        Fixture { violation, ..fixture }
    };
    vec![
        with("use crate::text::clean;\n", None),
        with("#[cfg(test)]\nmod tests {\n    use crate::gate::decide;\n}\n", None),
        with(
            "\n\nuse crate::text::clean;\nfn f() { crate::gate::decide() }\n",
            Some("crates/core/src/gate.rs:1"),
        ),
    ]
}

fn retired_words() -> Vec<Fixture> {
    const FILE: &str = "crates/operator/src/queue.rs";
    vec![
        holds(
            "retired-words",
            FILE,
            "//! Waits for the next line.\nfn open(line: &str) { show(\"struct Line\") }\n",
        ),
        breaks("retired-words", FILE, "\nstruct Line;\n", "crates/operator/src/queue.rs:2"),
    ]
}

fn fixtures() -> Vec<Fixture> {
    [
        core(),
        edges(),
        writer(),
        dependencies(),
        determinism(),
        stray(),
        cycles(),
        descriptions(),
        file_size(),
        retired_words(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn rule(name: &str) -> &'static Rule {
    RULES.iter().find(|rule| rule.name == name).unwrap()
}

#[test]
fn fixtures_pass_or_fail_as_stated() {
    let mut wrong = Vec::new();
    for fixture in fixtures() {
        let found = (rule(fixture.rule).check)(&fixture.repo());
        let places: Vec<String> = found.iter().map(|v| format!("{}:{}", v.file, v.line)).collect();
        let expected: Vec<&str> = fixture.violation.into_iter().collect();
        if places != expected {
            wrong.push(format!(
                "{}: {:?}\n  expected {expected:?}, found {found:?}",
                fixture.rule, fixture.files
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_rule_has_a_passing_and_a_failing_fixture() {
    for rule in RULES {
        let own: Vec<bool> =
            fixtures().iter().filter(|f| f.rule == rule.name).map(|f| f.violation.is_some()).collect();
        assert!(own.contains(&true), "{} has no fixture that must fail", rule.name);
        assert!(own.contains(&false), "{} has no fixture that passes", rule.name);
    }
}

#[test]
fn a_message_names_the_file_the_line_and_the_rule() {
    let fixture = breaks("no-stray", "Makefile", "# TODO\n", "Makefile:1");
    let found = (rule("no-stray").check)(&fixture.repo());
    let line = found[0].line_for(rule("no-stray"));
    assert!(line.starts_with("Makefile:1: no-stray: TODO left behind: "), "{line}");
}

#[test]
fn the_page_lists_every_rule_once() {
    let page = page();
    for rule in RULES {
        assert_eq!(page.matches(&format!("| `{}` |", rule.name)).count(), 1, "{}", rule.name);
        assert!(
            !rule.requires.contains('|') && !rule.why.contains('|'),
            "{} would break the table",
            rule.name
        );
    }
}
