use super::*;

const TEXT: &str = r#"
[package]
name = "x"            # a comment
edition.workspace = true
license = { workspace = true }
version = "1"

[dependencies]
plain = "1.2"
short.workspace = true
table = { workspace = true, features = [
    "a",  # not a , separator
    "b",
] }
git = { git = "https://example.org/#x", rev = "1" }

[dependencies.long]
workspace = true
features = ["c"]

[target.'cfg(unix)'.dependencies]
unixy = { path = "../unixy" }

[dev-dependencies]
plain.workspace = true

[build-dependencies]
builder.workspace = true
"#;

#[test]
fn all_dependency_syntaxes_are_parsed() {
    let found = Manifest::parse(TEXT).dependencies();
    let brief: Vec<_> =
        found.iter().map(|d| (d.name.as_str(), d.kind, d.get("workspace").is_some(), d.line)).collect();
    assert_eq!(
        brief,
        [
            ("plain", Kind::Normal, false, 9),
            ("short", Kind::Normal, true, 10),
            ("table", Kind::Normal, true, 11),
            ("git", Kind::Normal, false, 15),
            ("long", Kind::Normal, true, 18),
            ("unixy", Kind::Normal, false, 22),
            ("plain", Kind::Dev, true, 25),
            ("builder", Kind::Normal, true, 28),
        ]
    );
    assert_eq!(found[0].get("version"), Some("1.2"));
    assert_eq!(found[3].get("git"), Some("https://example.org/#x"));
    assert_eq!(found[4].get("features"), Some("[\"c\"]"));
    assert_eq!(found[5].get("path"), Some("../unixy"));
}

#[test]
fn inherited_keys_are_parsed_in_both_forms() {
    let manifest = Manifest::parse(TEXT);
    assert_eq!(manifest.value("package.edition.workspace"), Some("true"));
    assert_eq!(manifest.value("package.license.workspace"), Some("true"));
    assert_eq!(manifest.value("package.version.workspace"), None);
    assert_eq!(manifest.value("package.name"), Some("\"x\""));
}

#[test]
fn workspace_dependencies_are_separate() {
    let manifest =
        Manifest::parse("[workspace.dependencies]\na = { path = \"crates/a\", package = \"long-a\" }\n");
    assert!(manifest.dependencies().is_empty());
    let table = manifest.workspace_dependencies();
    assert_eq!((table[0].name.as_str(), table[0].get("path")), ("a", Some("crates/a")));
}
