//! Parses dependencies and inherited keys from a Cargo.toml, with line numbers.

use crate::code::split_top;

#[derive(Debug)]
struct Entry {
    table: Vec<String>,
    key: Vec<String>,
    value: String,
    line: usize,
}

pub struct Manifest {
    entries: Vec<Entry>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `dependencies` and `build-dependencies`.
    Normal,
    /// `dev-dependencies`.
    Dev,
}

#[derive(Debug)]
pub struct Dependency {
    pub name: String,
    pub kind: Kind,
    /// Keys and values. A bare string is stored as `version`.
    pub spec: Vec<(String, String)>,
    pub line: usize,
}

impl Dependency {
    /// The value of one key, without quotes.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.spec.iter().find(|(k, _)| k == key).map(|(_, value)| value.trim_matches('"'))
    }
}

impl Manifest {
    /// Parses the subset of TOML that Cargo.toml files use. Values are kept as written.
    pub fn parse(text: &str) -> Self {
        let (mut entries, mut table) = (Vec::new(), Vec::new());
        let mut lines = text.lines().enumerate();
        while let Some((index, raw)) = lines.next() {
            let line = without_comment(raw).trim();
            if line.starts_with('[') {
                table = keys(line.trim_matches(['[', ']']));
            } else if let Some((key, value)) = split_assignment(line) {
                let mut value = value.trim().to_owned();
                while open_brackets(&value) > 0 {
                    let Some((_, more)) = lines.next() else { break };
                    value.push(' ');
                    value.push_str(without_comment(more).trim());
                }
                entries.push(Entry { table: table.clone(), key: keys(key), value, line: index + 1 });
            }
        }
        Self { entries }
    }

    /// Every dependency, of every kind and target, in the order of the file.
    pub fn dependencies(&self) -> Vec<Dependency> {
        let mut found: Vec<Dependency> = Vec::new();
        for entry in &self.entries {
            let path: Vec<&str> = entry.table.iter().chain(&entry.key).map(String::as_str).collect();
            let (kind, rest) = match path.as_slice() {
                ["target", _, table, rest @ ..] | [table, rest @ ..] if kind_of(table).is_some() => {
                    (kind_of(table), rest)
                }
                _ => continue,
            };
            add(&mut found, kind.unwrap_or(Kind::Normal), rest, entry);
        }
        found
    }

    /// The workspace's own dependency table.
    pub fn workspace_dependencies(&self) -> Vec<Dependency> {
        let mut found = Vec::new();
        for entry in &self.entries {
            let path: Vec<&str> = entry.table.iter().chain(&entry.key).map(String::as_str).collect();
            if let ["workspace", "dependencies", rest @ ..] = path.as_slice() {
                add(&mut found, Kind::Normal, rest, entry);
            }
        }
        found
    }

    /// The value at a dotted path, such as `package.edition.workspace`.
    pub fn value(&self, path: &str) -> Option<&str> {
        let wanted: Vec<&str> = path.split('.').collect();
        let (parent, last) = path.rsplit_once('.').unwrap_or(("", path));
        self.entries.iter().find_map(|entry| {
            let own: Vec<&str> = entry.table.iter().chain(&entry.key).map(String::as_str).collect();
            if own == wanted {
                return Some(entry.value.as_str());
            }
            // `edition = { workspace = true }` equals `edition.workspace = true`.
            (own.join(".") == parent).then(|| inline(&entry.value, last)).flatten()
        })
    }
}

fn add(found: &mut Vec<Dependency>, kind: Kind, path: &[&str], entry: &Entry) {
    let [name, keys @ ..] = path else { return };
    let spec = match keys {
        [] if entry.value.starts_with('{') => inline_pairs(&entry.value),
        [] => vec![("version".to_owned(), entry.value.clone())],
        keys => vec![(keys.join("."), entry.value.clone())],
    };
    // `[dependencies.x]` and `x.workspace = true` spread one dependency over several entries.
    match found.iter_mut().find(|known| known.name == *name && known.kind == kind && !keys.is_empty()) {
        Some(known) => known.spec.extend(spec),
        None => found.push(Dependency { name: (*name).to_owned(), kind, spec, line: entry.line }),
    }
}

fn kind_of(table: &str) -> Option<Kind> {
    match table {
        "dependencies" | "build-dependencies" => Some(Kind::Normal),
        "dev-dependencies" => Some(Kind::Dev),
        _ => None,
    }
}

fn inline_pairs(value: &str) -> Vec<(String, String)> {
    let inner = value.trim().trim_start_matches('{').trim_end_matches('}');
    split_top(inner, ',')
        .into_iter()
        .filter_map(split_assignment)
        .map(|(key, value)| (keys(key).join("."), value.trim().to_owned()))
        .collect()
}

fn inline<'a>(value: &'a str, key: &str) -> Option<&'a str> {
    let inner = value.trim().strip_prefix('{')?.strip_suffix('}')?;
    split_top(inner, ',')
        .into_iter()
        .filter_map(split_assignment)
        .find(|(k, _)| k.trim() == key)
        .map(|(_, v)| v.trim())
}

/// The parts of a dotted key, without quotes; a quoted part may hold dots.
fn keys(dotted: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut quote = None;
    for c in dotted.trim().chars() {
        match (quote, c) {
            (None, '.') => parts.push(String::new()),
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), _) if c == open => quote = None,
            (None, _) if c.is_whitespace() => {}
            _ => {
                if let Some(part) = parts.last_mut() {
                    part.push(c);
                }
            }
        }
    }
    parts
}

fn split_assignment(line: &str) -> Option<(&str, &str)> {
    let at = outside_quotes(line, '=')?;
    Some((&line[..at], &line[at + 1..]))
}

fn without_comment(line: &str) -> &str {
    outside_quotes(line, '#').map_or(line, |at| &line[..at])
}

fn outside_quotes(line: &str, wanted: char) -> Option<usize> {
    let mut quote = None;
    for (at, c) in line.char_indices() {
        match quote {
            None if c == wanted => return Some(at),
            None if c == '"' || c == '\'' => quote = Some(c),
            Some(open) if c == open => quote = None,
            _ => {}
        }
    }
    None
}

fn open_brackets(value: &str) -> i32 {
    let mut quote = false;
    value.chars().fold(0, |depth, c| {
        quote ^= c == '"';
        match c {
            '[' | '{' if !quote => depth + 1,
            ']' | '}' if !quote => depth - 1,
            _ => depth,
        }
    })
}

#[cfg(test)]
#[path = "tests/manifest.rs"]
mod tests;
