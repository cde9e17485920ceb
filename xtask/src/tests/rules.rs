//! Every rule has a fixture that passes and one that fails.

use super::*;
use crate::generate::Output;
use crate::repo::{File, RESULTS, ResultsAge, command, results_age};

/// A repository of a few files, and the place (`file:line`) where the rule must report a violation, if any.
struct Fixture {
    rule: &'static str,
    files: Vec<(&'static str, String)>,
    generated: Option<(&'static str, Result<&'static str, &'static str>)>,
    age: Option<fn() -> ResultsAge>,
    violation: Option<&'static str>,
}

fn holds(rule: &'static str, path: &'static str, text: impl Into<String>) -> Fixture {
    Fixture { rule, files: vec![(path, text.into())], generated: None, age: None, violation: None }
}

fn breaks(
    rule: &'static str,
    path: &'static str,
    text: impl Into<String>,
    violation: &'static str,
) -> Fixture {
    Fixture { violation: Some(violation), ..holds(rule, path, text) }
}

fn output(
    committed: &str,
    now: Result<&'static str, &'static str>,
    violation: Option<&'static str>,
) -> Fixture {
    Fixture { generated: Some(("docs/x.md", now)), violation, ..holds("generated", "docs/x.md", committed) }
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
            generated: generated.into_iter().collect(),
            results_age: self.age.map(|age| age()),
        }
    }
}

fn manifests() -> Vec<Fixture> {
    const MEMBER: &str = "crates/sim/Cargo.toml";
    const PACKAGE: &str = "[package]\nname = \"nodekeeper-sim\"\nversion.workspace = true\nedition.workspace = true\nrust-version.workspace = true\nlicense.workspace = true\npublish.workspace = true\n\n[lints]\nworkspace = true\n";
    let table = |text: &str| format!("{PACKAGE}\n{text}");
    let owns = |text: &str| breaks("inherited", MEMBER, table(text), "crates/sim/Cargo.toml:13");
    let edition = PACKAGE.replace("edition.workspace = true", "edition = \"2021\"");
    let checked = |order: &'static str, root: &str, violation| {
        let mut fixture = holds("checked-by-tools", MEMBER, PACKAGE);
        fixture.files.push(("crates/deny.toml", order.to_owned()));
        fixture.files.push(("crates/sim/src/lib.rs", root.to_owned()));
        Fixture { violation, ..fixture }
    };
    let order = "deny = [\n    { crate = \"nodekeeper-sim\", wrappers = [] },\n]\n";
    let both =
        "#![cfg_attr(\n    not(test),\n    deny(clippy::disallowed_methods, clippy::disallowed_types)\n)]\n";
    let one = "#![cfg_attr(not(test), deny(clippy::disallowed_methods))]\n";
    vec![
        holds(
            "inherited",
            MEMBER,
            table(
                "[dependencies]\n# Why.\na.workspace = true\nb = { workspace = true, features = [\"x\"], optional = true }\n",
            ),
        ),
        owns("[dependencies]\na = \"1.0\"\n"),
        owns("[dev-dependencies]\na = { path = \"../a\" }\n"),
        owns("[dependencies.a]\ngit = \"https://example.org\"\n"),
        owns("[target.'cfg(unix)'.dependencies]\na = { features = [\"x\"] }\n"),
        breaks("inherited", MEMBER, PACKAGE.replace("[lints]\n", "[other]\n"), "crates/sim/Cargo.toml:1"),
        breaks("inherited", MEMBER, edition, "crates/sim/Cargo.toml:1"),
        checked(order, both, None),
        checked("", both, Some("crates/sim/Cargo.toml:1")),
        checked(order, one, Some("crates/sim/src/lib.rs:1")),
        breaks(
            "checked-by-tools",
            "crates/new/Cargo.toml",
            "name = \"nodekeeper\"\n",
            "crates/new/Cargo.toml:1",
        ),
    ]
}

fn selects() -> Vec<Fixture> {
    const SIM: &str = "crates/sim/src/store.rs";
    let held = |text: &str| holds("biased-select", SIM, text);
    let broken = |text: &str| breaks("biased-select", SIM, text, "crates/sim/src/store.rs:2");
    vec![
        held("fn f() { tokio::select! {\n    biased;\n    _ = a => {}\n} }"),
        held("fn f() { select! { biased; _ = a => {} } }\n// not a select! {\n"),
        holds("biased-select", "e2e/src/lib.rs", "fn f() { select! { _ = a => {} } }"),
        broken("\nfn f() { tokio::select! { _ = a => {} } }"),
        broken("\nlet x = select! {\n    a = b => {}\n};"),
    ]
}

fn stray() -> Vec<Fixture> {
    const FILE: &str = "e2e/tests/conformance.rs";
    let later = concat!("TO", "DO");
    let (home, mirror) = (concat!("/ho", "me/"), concat!("sparse+", "https://mirror.example/"));
    vec![
        holds("no-stray", FILE, format!("fn f() {{ g(\"{later}\") }}")),
        holds("no-stray", "CONTRIBUTING.md", format!("We leave no {later}.")),
        breaks("no-stray", FILE, format!("\nlet a = 1; // {later}: b"), "e2e/tests/conformance.rs:2"),
        breaks("no-stray", "Makefile", format!("all: # {later}\n"), "Makefile:1"),
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

const REASONS: &str = "crates/core/src/reasons.rs";

fn reasons() -> Vec<Fixture> {
    let constants = "/// Why.\npub const A: &str = \"NodeVerified\";\npub mod remediation {\n    pub const B: &str = \"DryRun\";\n}\n";
    let pages = |gate: &str, remediation: &str, violation| {
        let mut fixture = holds("documented-reasons", REASONS, constants);
        fixture.files.push(("docs/gate.md", gate.to_owned()));
        fixture.files.push(("docs/remediation.md", remediation.to_owned()));
        Fixture { violation, ..fixture }
    };
    let table = |reason: &str| {
        format!(
            "| reason | action |\n|---|---|\n| `{reason}` | `RemoveTaint` |\n\n| a | b |\n|---|---|\n| `Other` | |\n"
        )
    };
    let (gate, remediation) = (table("NodeVerified"), table("DryRun"));
    vec![
        pages(&gate, &remediation, None),
        pages("An Event `NodeVerified` says so.", "Set `enforcement: DryRun`.", None),
        pages("NodeVerified and `NodeVerifiedAgain`", &remediation, Some("crates/core/src/reasons.rs:2")),
        pages(&gate, &gate.replace("NodeVerified", "dry run"), Some("crates/core/src/reasons.rs:4")),
        pages(&format!("{gate}{}", table("NodeGone")), &remediation, Some("docs/gate.md:10")),
        pages(&gate, &format!("{remediation}an Event `Gone`\n"), Some("docs/remediation.md:8")),
    ]
}

/// What a rule finds in these files of this repository.
fn found_here(name: &str, paths: &[&str]) -> Vec<Violation> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let file = |path: &&str| {
        let text = std::fs::read_to_string(root.join(path)).unwrap();
        File { path: (*path).to_owned(), text }
    };
    (rule(name).check)(&Repo { files: paths.iter().map(file).collect(), ..Repo::default() })
}

#[test]
fn u10_every_reason_is_documented_and_no_other() {
    let pages = ["docs/gate.md", "docs/remediation.md", "docs/configuration.md"];
    let found = found_here("documented-reasons", &[&[REASONS], &pages[..]].concat());
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn u04_every_field_of_the_crds_is_described() {
    let crds = ["nodegates", "noderemediations", "remediationpolicies"];
    let crds = crds.map(|name| format!("charts/nodekeeper/files/crds/{name}.yaml"));
    let found = found_here("api-descriptions", &crds.each_ref().map(String::as_str));
    assert!(found.is_empty(), "{found:#?}");
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
        holds("retired-words", FILE, "//! Waits for the next line.\nfn open(line: &str) {} // struct Line\n"),
        breaks("retired-words", FILE, "\nstruct Line;\n", "crates/operator/src/queue.rs:2"),
    ]
}

fn results() -> Vec<Fixture> {
    let fixture = |age: fn() -> ResultsAge, violation| Fixture {
        age: Some(age),
        violation,
        ..holds("results-current", RESULTS, "")
    };
    let violation = Some("bench/RESULTS.md:3");
    vec![
        fixture(|| ResultsAge::Commits(50), None),
        fixture(|| ResultsAge::Commits(51), violation),
        fixture(|| ResultsAge::UnknownCommit, violation),
        fixture(|| ResultsAge::NotChecked("this is a shallow clone"), None),
    ]
}

/// A repository in which each of these files was committed after the other, and the hash of the first commit.
fn repository(files: &[&str]) -> (std::path::PathBuf, String) {
    let number = FOLDERS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("xtask-results-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let git = |arguments: &[&str]| {
        let identity = ["-c", "user.name=n", "-c", "user.email=e", "-c", "init.defaultBranch=main"];
        let output = command("git").arg("-C").arg(&folder).args(identity).args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    git(&["init", "--quiet"]);
    for (number, file) in files.iter().enumerate() {
        let path = folder.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, number.to_string()).unwrap();
        git(&["add", "."]);
        git(&["commit", "--quiet", "--message", "m"]);
    }
    let first = git(&["rev-list", "--max-parents=0", "HEAD"]);
    (folder, first)
}

static FOLDERS: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

#[test]
fn u08_the_age_of_results_is_counted_to_the_last_change_of_operator_or_core() {
    let (folder, first) = repository(&["a", "crates/core/x", "b", "crates/operator/y", "docs/z", "docs/z"]);
    let text = |commit: &str| format!("# Benchmark results\n\nload 1; commit {commit}; 2026-11-16.\n");
    assert_eq!(results_age(&folder, &text(&first[..10])), ResultsAge::Commits(3));
    assert_eq!(results_age(&folder, &text(&format!("{first} and changes"))), ResultsAge::Commits(3));
    assert_eq!(results_age(&folder, &text("HEAD")), ResultsAge::Commits(0), "newer than the last change");
    for unknown in ["0123456789", "unknown", "--all"] {
        assert_eq!(results_age(&folder, &text(unknown)), ResultsAge::UnknownCommit, "{unknown}");
    }
    assert_eq!(results_age(&folder, "no commit"), ResultsAge::UnknownCommit);
    let clone = folder.join("clone");
    let cloned = command("git")
        .args(["clone", "--quiet", "--depth", "1"])
        .arg(format!("file://{}", folder.display()))
        .arg(&clone)
        .status();
    assert!(cloned.unwrap().success());
    assert!(
        matches!(results_age(&clone, &text(&first)), ResultsAge::NotChecked(why) if why.contains("shallow"))
    );
    std::fs::remove_dir_all(folder.join(".git")).unwrap();
    assert!(
        matches!(results_age(&folder, &text(&first)), ResultsAge::NotChecked(why) if why.contains("no git"))
    );
    std::fs::remove_dir_all(folder).unwrap();
}

fn fixtures() -> Vec<Fixture> {
    let all = [
        manifests(),
        selects(),
        stray(),
        cycles(),
        descriptions(),
        reasons(),
        file_size(),
        retired_words(),
        results(),
    ];
    all.into_iter().flatten().collect()
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
    let fixture = breaks("no-stray", "Makefile", concat!("# TO", "DO\n"), "Makefile:1");
    let found = (rule("no-stray").check)(&fixture.repo());
    let line = found[0].line_for(rule("no-stray"));
    assert!(line.starts_with(concat!("Makefile:1: no-stray: TO", "DO left behind: ")), "{line}");
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
