//! Reads a file key by key. Problems are collected with their line, so that a user sees all of them at once. Keys that
//! are not read are unknown.

use std::cell::RefCell;
use std::fmt;
use std::ops::RangeInclusive;

use nodekeeper_core::text::clean;

use super::source::Document;
use super::spanned_yaml::{Node, Value};
use super::validators;

/// A problem in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub file: File,
    /// Counted from 1; 0 if it is not known.
    pub line: u64,
    /// The path of the key; empty for the file as a whole.
    pub key: String,
    /// What is wrong, and how to fix it.
    pub message: String,
}

/// One of the two files of kube-node-ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum File {
    /// The controller's `config.yaml`.
    Config,
    /// The `worker-config.yaml`.
    Worker,
}

impl fmt::Display for Problem {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        if self.key.is_empty() {
            write!(to, "{}", self.message)
        } else {
            write!(to, "`{}`: {}", self.key, self.message)
        }
    }
}

/// Everything that was found while reading.
#[derive(Debug, Default)]
pub struct Findings {
    /// Reasons to reject the file.
    pub problems: Vec<Problem>,
    /// Keys without effect.
    pub idle: Vec<String>,
    pub warnings: Vec<String>,
}

/// A value in a file, with its path and line.
#[derive(Clone)]
pub struct Field<'a> {
    findings: &'a RefCell<Findings>,
    file: File,
    pub path: String,
    /// The line of the key or of the list item.
    pub line: u64,
    node: &'a Node,
}

impl<'a> Field<'a> {
    pub fn root(findings: &'a RefCell<Findings>, document: &'a Document) -> Self {
        let Document { file, path, node } = document;
        Self { findings, file: *file, path: path.clone(), line: node.line, node }
    }

    /// Reports a problem with this value.
    pub fn wrong(&self, message: impl Into<String>) {
        let problem =
            Problem { file: self.file, line: self.line, key: self.path.clone(), message: message.into() };
        self.findings.borrow_mut().problems.push(problem);
    }

    /// Reports a warning about this value.
    pub fn warn(&self, message: &str) {
        self.findings.borrow_mut().warnings.push(format!("`{}`: {message}", self.path));
    }

    /// Reports that this key has no effect, and why.
    pub fn idle(&self, why: &str) {
        let why = if why.is_empty() { String::new() } else { format!(" ({why})") };
        self.findings.borrow_mut().idle.push(format!("`{}`{why}", self.path));
    }

    fn is_null(&self) -> bool {
        matches!(self.node.value, Value::Null)
    }

    /// Whether the value is missing or an empty string.
    pub fn is_blank(&self) -> bool {
        self.is_null() || matches!(&self.node.value, Value::Text(text) if text.is_empty())
    }

    fn what(&self) -> String {
        match &self.node.value {
            Value::Null => "nothing".into(),
            Value::Text(text) => quoted(text),
            Value::List(_) => "a list".into(),
            Value::Map(_) => "a block of keys".into(),
        }
    }

    /// Returns a scalar as text.
    pub fn text(&self) -> Option<String> {
        if let Value::Text(text) = &self.node.value {
            return Some(text.clone());
        }
        self.wrong(format!("is {}: write one word or one text", self.what()));
        None
    }

    /// Returns text that `right` accepts; otherwise reports the text and `fix`.
    pub fn checked(&self, right: impl Fn(&str) -> bool, fix: &str) -> Option<String> {
        let text = self.text()?;
        if right(&text) {
            return Some(text);
        }
        self.wrong(format!("{} {fix}", quoted(&text)));
        None
    }

    /// Returns the choice that the text names.
    pub fn choice<T: Copy>(&self, choices: &[(&str, T)]) -> Option<T> {
        let text = self.text()?;
        let chosen = choices.iter().find(|(word, _)| *word == text).map(|(_, choice)| *choice);
        if chosen.is_none() {
            let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
            self.wrong(format!("{} is not one of {}", quoted(&text), words.join(", ")));
        }
        chosen
    }

    /// Returns an integer within the range.
    pub fn int(&self, range: RangeInclusive<i32>) -> Option<i32> {
        let number = match &self.node.value {
            Value::Text(text) => text.parse().ok().filter(|number| range.contains(number)),
            _ => None,
        };
        if number.is_none() {
            let (least, most) = (range.start(), range.end());
            self.wrong(format!("is {}: write a whole number from {least} to {most}", self.what()));
        }
        number
    }

    /// Returns the seconds of a duration of Go, such as `1m30s`, within the range. Fractions of a second are rounded up.
    pub fn duration(&self, range: RangeInclusive<i32>) -> Option<i32> {
        let seconds = match &self.node.value {
            Value::Text(text) => validators::duration_seconds(text).filter(|seconds| range.contains(seconds)),
            _ => None,
        };
        if seconds.is_none() {
            let (least, most) = (range.start(), range.end());
            self.wrong(format!(
                "is {}: write a duration from {least}s to {most}s, such as {least}s",
                self.what()
            ));
        }
        seconds
    }

    /// Returns a boolean in any spelling of YAML 1.1.
    pub fn bool(&self) -> Option<bool> {
        let told = match &self.node.value {
            Value::Text(text) => match text.to_lowercase().as_str() {
                "true" | "yes" | "on" => Some(true),
                "false" | "no" | "off" => Some(false),
                _ => None,
            },
            _ => None,
        };
        if told.is_none() {
            self.wrong(format!("is {}: write true or false", self.what()));
        }
        told
    }

    /// Returns the items of a list, and reports a list with more than `most`.
    pub fn items(&self, most: usize) -> Vec<Field<'a>> {
        let Value::List(items) = &self.node.value else {
            self.wrong(format!(
                "is {}: write a list, each item on a line that begins with `- `",
                self.what()
            ));
            return Vec::new();
        };
        if items.len() > most {
            self.wrong(format!("has {} items: there may be {most} at most", items.len()));
        }
        let item = |(index, node): (usize, &'a Node)| Field {
            path: format!("{}[{index}]", self.path),
            line: node.line,
            node,
            ..self.clone()
        };
        items.iter().enumerate().map(item).collect()
    }

    /// Returns the keys of a mapping.
    pub fn section(&self) -> Section<'a> {
        let entries = match &self.node.value {
            Value::Map(entries) => entries
                .iter()
                .map(|entry| {
                    let dot = if self.path.is_empty() { "" } else { "." };
                    let path = format!("{}{dot}{}", self.path, clean(&entry.key, 80));
                    (entry.key.as_str(), Field { path, line: entry.line, node: &entry.node, ..self.clone() })
                })
                .collect(),
            Value::Null => Vec::new(),
            Value::Text(_) | Value::List(_) => {
                self.wrong(format!("is {}: write keys, each as `key: value`", self.what()));
                Vec::new()
            }
        };
        Section { entries, asked: Vec::new() }
    }

    pub fn is_map(&self) -> bool {
        matches!(self.node.value, Value::Map(_))
    }

    pub fn is_list(&self) -> bool {
        matches!(self.node.value, Value::List(_))
    }
}

/// The keys of one mapping, each to be taken once.
pub struct Section<'a> {
    entries: Vec<(&'a str, Field<'a>)>,
    asked: Vec<&'static str>,
}

impl<'a> Section<'a> {
    /// Removes a key and returns its value; none if the value is null.
    pub fn take(&mut self, key: &'static str) -> Option<Field<'a>> {
        self.asked.push(key);
        self.take_unlisted(key)
    }

    /// Returns the value of a key without removing it.
    pub fn peek(&self, key: &str) -> Option<Field<'a>> {
        self.entries.iter().find(|(known, _)| *known == key).map(|(_, field)| field.clone())
    }

    /// Removes a key and returns the mapping below it; an empty one if it is left out.
    pub fn section(&mut self, key: &'static str) -> Section<'a> {
        let field = self.take(key);
        field.map_or(Section { entries: Vec::new(), asked: Vec::new() }, |field| field.section())
    }

    /// Removes and returns the value of a key that [`Section::end`] does not suggest; none if the value is null.
    pub fn take_unlisted(&mut self, key: &str) -> Option<Field<'a>> {
        let at = self.entries.iter().position(|(known, _)| *known == key)?;
        Some(self.entries.remove(at).1).filter(|field| !field.is_null())
    }

    /// Lets [`Section::end`] suggest these keys, too.
    pub fn list(&mut self, keys: impl IntoIterator<Item = &'static str>) {
        self.asked.extend(keys);
    }

    /// Removes and returns all keys that are left.
    pub fn rest(&mut self) -> Vec<(&'a str, Field<'a>)> {
        std::mem::take(&mut self.entries)
    }

    /// Reports all keys that are left as unknown, each with a suggestion.
    pub fn end(self) {
        for (key, field) in &self.entries {
            field.wrong(suggestion(key, &self.asked));
        }
    }
}

/// Says that a key is unknown, and which one may be meant.
pub fn suggestion(key: &str, known: &[&str]) -> String {
    let lower = |key: &str| clean(key, 80).to_lowercase();
    let near = known.iter().map(|known| (strsim::damerau_levenshtein(&lower(key), &lower(known)), known));
    let near = near.min().filter(|(distance, _)| *distance <= 2.max(key.len() / 4));
    let fix = near.map_or_else(
        || format!("the keys here are {}", known.join(", ")),
        |(_, known)| format!("did you mean `{known}`?"),
    );
    format!("there is no such key: {fix}")
}

/// Quotes text and cuts it to fit on a line.
pub fn quoted(text: &str) -> String {
    format!("'{}'", clean(text, 80))
}
