use super::*;

fn lines(path: &str, text: &str) -> Vec<usize> {
    let file = File { path: path.to_owned(), text: text.to_owned() };
    let repo = Repo { files: vec![file], ..Repo::default() };
    retired_words(&repo).into_iter().map(|violation| violation.line).collect()
}

#[test]
fn every_pattern_is_reported_in_its_scope() {
    for retired in RETIRED {
        for pattern in retired.patterns.split(", ") {
            let found = match retired.scope {
                Scope::Path => lines(&format!("x/{pattern}"), ""),
                Scope::Text(folders) => {
                    let folder = folders.first().copied().unwrap_or("docs/");
                    lines(&format!("{folder}x.yaml"), &format!("a\n  {pattern}: b\n"))
                }
                Scope::Code(folders) => {
                    let folder = folders.first().copied().unwrap_or("crates/core/");
                    lines(&format!("{folder}x.rs"), &format!("\n{pattern}(x)\n"))
                }
            };
            assert_eq!(found.len(), 1, "{pattern}");
        }
    }
}

#[test]
fn every_entry_names_a_replacement() {
    for retired in RETIRED {
        assert!(!retired.patterns.is_empty() && !retired.instead.is_empty(), "{}", retired.patterns);
    }
}

#[test]
fn definitions_variants_and_quoted_names_are_reported() {
    assert_eq!(lines("crates/operator/src/a.rs", "pub fn look_at(&self) {}"), [1]);
    assert_eq!(lines("e2e/tests/a/main.rs", "mod play;\nmod steps;"), [1]);
    assert_eq!(lines("crates/operator/src/a.rs", "match e { Event::Gone(name) => {} }"), [1]);
    assert_eq!(lines("docs/design.md", "A node is counted by the `Census`.\n`look_at` decides."), [1, 2]);
    assert_eq!(lines("crates/core/src/a.rs", "/// As [`Census`] counts.\nfn f() {}"), [1]);
}

#[test]
fn strings_of_the_api_are_reported_everywhere() {
    for path in ["docs/gate.md", "charts/nodekeeper/values.yaml", "crates/core/src/a.rs", "e2e/tests/a.rs"] {
        assert_eq!(lines(path, "x: \"OtherBoot\""), [1], "{path}");
        assert_eq!(lines(path, "--metrics-seed-names=true"), [1], "{path}");
    }
}

#[test]
fn ordinary_english_is_not_reported() {
    let prose = "Open the line, wait in case of a second show; a book, a seed, an eye, a stage and a line of a page.\n\
        Look at the node. The request was held. Nobody is to blame, and the census of a term begins.\n\
        `open`, `line` and `wait` are words. Its level, times and gates come back.\n";
    assert!(lines("docs/gate.md", prose).is_empty());
    let code = "// Look at the line, and wait.\nfn open(line: &str, wait: u32, book: u8) { let second = show(line, wait, book); }\n\
        mod case_insensitive;\nstruct Lines;\nstruct LineReader;\nfn look_at_all() {}\nfn f(seed: u64) {}\n";
    assert!(lines("crates/operator/src/a.rs", code).is_empty());
}

#[test]
fn common_names_are_allowed_outside_their_scope() {
    assert!(lines("e2e/tests/gate/world.rs", "pub struct Machine;").is_empty());
    assert!(lines("crates/sim/src/a.rs", "struct Request;\nmod open;\nfn follow() {}").is_empty());
    assert!(lines("charts/nodekeeper/values.yaml", "image:\n  pullPolicy: IfNotPresent\n").is_empty());
}

#[test]
fn persisted_json_keys_are_allowed() {
    let record = r#"{"round": {"bootId": "b"}, "silent": 0, "spent": 1, "regated": true, "subject": {}}"#;
    assert!(lines("crates/core/tests/records.rs", &format!("let r = json!({record});")).is_empty());
    let field = "#[serde(rename = \"silent\")]\npub inconclusive_streak: u32,\n#[serde(rename = \"spent\")]\npub elapsed_seconds: u32,\n";
    assert!(lines("crates/core/src/record.rs", field).is_empty());
}
