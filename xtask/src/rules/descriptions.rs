//! The descriptions of the custom resources, which `kubectl explain` shows.

use std::collections::BTreeMap;

use super::Violation;
use crate::repo::Repo;

const FOLDER: &str = "charts/nodekeeper/files/crds/";
const MIN_CHARS: usize = 30;

/// Verbs that descriptions use in a form without an ending of [`ENDINGS`].
const VERBS: &str = "\
    are be become began begin can come did do does give go had has have held hold is keep kept let made \
    make may must put ran run saw set show stood take took use was went were written";

/// Endings of verbs in the third person, the past and the passive.
const ENDINGS: &[&str] = &["ed", "ies", "izes", "ates", "ifies"];

/// Verbs in the third person, which end like the plural of a noun.
const THIRD_PERSON: &str = "\
    adds allows applies asks becomes begins belongs carries causes changes combines configures contains \
    controls counts covers creates decides defaults deletes describes determines ends excludes fails \
    forbids gives goes happens holds keeps lets limits lists makes maps matches means mounts names needs \
    opens orders overrides owns passes pauses performs permits points prevents protects reads receives \
    records refuses removes replaces reports requests requires resets runs says selects serves sets \
    shows starts stops takes tells uses verifies waits wins works writes";

/// A property of the schema and its description.
struct Described {
    line: usize,
    /// The keys from the root to the owner of the description.
    path: Vec<String>,
    text: String,
}

pub fn descriptions(repo: &Repo) -> Vec<Violation> {
    let mut found = Vec::new();
    for file in repo.files.iter().filter(|file| file.path.starts_with(FOLDER)) {
        let (described, keys) = read(&file.text);
        let mut first: BTreeMap<&str, &Described> = BTreeMap::new();
        for one in &described {
            let name = one.path.last().map_or("", String::as_str);
            let mut wrong = |message: String| found.push(Violation::new(&file.path, one.line, message));
            if one.text.chars().count() < MIN_CHARS {
                wrong(format!(
                    "the description of `{name}` has less than {MIN_CHARS} characters: say what it does, its unit, its default and its limits"
                ));
            } else if !has_verb(&one.text) {
                wrong(format!("the description of `{name}` has no verb: write full sentences"));
            }
            match first.get(one.text.as_str()) {
                Some(other) if !same_type(one, other, &keys) => {
                    let line = other.line;
                    wrong(format!(
                        "the description of `{name}` repeats that of line {line}: say what is different"
                    ));
                }
                Some(_) => {}
                None => drop(first.insert(&one.text, one)),
            }
        }
    }
    found
}

/// A type that is used in two places has its descriptions in both: the properties have the same name and siblings.
fn same_type(one: &Described, other: &Described, keys: &BTreeMap<Vec<String>, Vec<String>>) -> bool {
    let siblings = |path: &[String]| path.split_last().and_then(|(_, parent)| keys.get(parent).cloned());
    one.path.last() == other.path.last() && siblings(&one.path) == siblings(&other.path)
}

fn has_verb(text: &str) -> bool {
    let words = text.split(|c: char| !c.is_alphanumeric()).map(str::to_lowercase);
    words.into_iter().any(|word| {
        [VERBS, THIRD_PERSON].iter().any(|list| list.split_whitespace().any(|verb| verb == word))
            || (word.len() > 4 && ENDINGS.iter().any(|ending| word.ends_with(ending)))
    })
}

/// Reads the descriptions of a generated CRD, and the keys below each path. Its YAML is regular: block style, one key a
/// line, and lists of objects only outside of the schema.
fn read(text: &str) -> (Vec<Described>, BTreeMap<Vec<String>, Vec<String>>) {
    let lines: Vec<&str> = text.lines().collect();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let (mut described, mut keys) = (Vec::new(), BTreeMap::<Vec<String>, Vec<String>>::new());
    let mut open: Vec<(usize, String)> = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let (line, depth) = (lines[at], indent(lines[at]));
        at += 1;
        let Some((key, value)) = line.trim_start().split_once(':') else { continue };
        if key.starts_with(['-', '#', '"']) {
            continue;
        }
        open.retain(|(outer, _)| *outer < depth);
        let parent: Vec<String> = open.iter().map(|(_, key)| key.clone()).collect();
        keys.entry(parent.clone()).or_default().push(key.to_owned());
        open.push((depth, key.to_owned()));
        let value = value.trim();
        // A property can be called `description` too: then its value is a block.
        if key != "description" || value.is_empty() {
            continue;
        }
        let line = at;
        let mut parts = Vec::new();
        if !matches!(value, ">-" | "|-" | ">" | "|") {
            parts.push(value.trim_matches('"'));
        }
        while at < lines.len() && indent(lines[at]) > depth {
            parts.push(lines[at].trim());
            at += 1;
        }
        described.push(Described { line, path: parent, text: parts.join(" ") });
    }
    (described, keys)
}
