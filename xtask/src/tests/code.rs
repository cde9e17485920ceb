use super::*;

fn hidden(text: &str) -> String {
    mask(text, Hide::StringsAndComments)
}

#[test]
fn comments_and_strings_are_hidden_and_line_numbers_kept() {
    let text = "let a = \"now\\\" // no\"; // now\n/* now /* nested */ now */ let b = 1;\n";
    let masked = hidden(text);
    assert!(!masked.contains("now"), "{masked}");
    assert!(masked.contains("let a ="), "{masked}");
    assert!(masked.contains("let b = 1;"), "{masked}");
    assert_eq!(masked.lines().count(), text.lines().count());
}

#[test]
fn comments_stay_when_only_strings_are_hidden() {
    let masked = mask("a(\"later\"); // later", Hide::Strings);
    assert_eq!(lines_with(&masked, "later").len(), 1, "{masked}");
}

#[test]
fn masked_strings_keep_their_quotes() {
    assert_eq!(hidden("f(\"a, b\", c)"), "f(\"    \", c)");
    assert_eq!(split_top(&hidden("\"a, (\", c, r\"d, \", 'e', '\"'"), ',').len(), 5);
}

#[test]
fn raw_strings_end_at_their_own_hashes() {
    for text in ["r\"x \\\" ; y", "r#\"x \" x\"# ; y", "br##\"x \"# x\"## ; y", "b\"x\\\"x\" ; y"] {
        let masked = hidden(text);
        assert!(!masked.contains('x'), "{text} -> {masked}");
        assert!(masked.contains('y'), "{text} -> {masked}");
    }
}

#[test]
fn names_are_not_mistaken_for_raw_strings() {
    assert_eq!(hidden("for r in r#type {}"), "for r in r#type {}");
    assert!(hidden("var\"x\"").contains("var"));
}

#[test]
fn lifetimes_are_not_mistaken_for_characters() {
    let masked = hidden("fn f<'a>(x: &'a str, y: char) { y == '\"' || y == '\\'' || y == '\\u{1F}'; now() }");
    assert!(masked.contains("fn f<'a>(x: &'a str"), "{masked}");
    assert!(masked.contains("now()"), "{masked}");
}

#[test]
fn test_modules_are_removed_anywhere_in_a_file() {
    let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() { let x = [1; 2]; }\n}\nfn c() {}\n";
    let code = production(text);
    assert!(code.contains("fn a()") && code.contains("fn c()") && !code.contains("fn b()"), "{code}");
    assert_eq!(lines_with(&code, "c"), [6]);
}

#[test]
fn removed_items_end_at_the_right_place() {
    for text in [
        "#[cfg(test)] use cut::{now, then}; fn kept() {}",
        "#[cfg(test)] #[path = \"a]\"] mod cut; fn kept() {}",
        "#[cfg(test)] fn cut<A, B>(x: [u8; 2]) -> A { now() } fn kept() {}",
        "struct S { #[cfg(test)] cut: Vec<u8>, kept: u8 }",
        "struct S { kept: u8, #[cfg(test)] cut: u8 }",
    ] {
        let code = production(text);
        assert!(
            code.contains("kept") && !code.contains("cut:") && !code.contains("now()"),
            "{text} -> {code}"
        );
    }
}

#[test]
fn a_word_does_not_match_inside_a_longer_one() {
    assert!(lines_with("fastrand::u8(..)", "rand::").is_empty());
    assert!(lines_with("MyTimestamp::now()", "Timestamp::now").is_empty());
    assert!(lines_with("Timestamp::nowhere()", "Timestamp::now").is_empty());
    assert_eq!(lines_with("\njiff::Timestamp::now()", "Timestamp::now"), [2]);
}

#[test]
fn grouped_imports_are_expanded() {
    let found = imports("use a;\nuse std::{env::{self, var}, time::Instant as Clock,\n    fmt};\n");
    let paths: Vec<_> = found.iter().map(|i| (i.path.as_str(), i.alias.as_deref(), i.line)).collect();
    assert_eq!(
        paths,
        [
            ("a", None, 1),
            ("std::env", None, 2),
            ("std::env::var", None, 2),
            ("std::time::Instant", Some("Clock"), 2),
            ("std::fmt", None, 2)
        ]
    );
}
