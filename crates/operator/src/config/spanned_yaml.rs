//! Parses YAML, and so JSON, into a tree that knows the line of every value.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Options, Spanned};

/// No configuration is nested deeper, and parsing this deep does not exhaust the stack.
const MAX_DEPTH: usize = 48;

/// A value with its line.
#[derive(Clone, Debug)]
pub struct Node {
    /// Counted from 1.
    pub line: u64,
    pub value: Value,
}

/// Scalars stay as they were typed: `1.10` can be a tag as well as a number.
#[derive(Clone, Debug)]
pub enum Value {
    Null,
    /// A string, a number or a boolean.
    Text(String),
    List(Vec<Node>),
    /// In the order of the file.
    Map(Vec<Entry>),
}

#[derive(Clone, Debug)]
pub struct Entry {
    pub key: String,
    /// The line of the key.
    pub line: u64,
    pub node: Node,
}

impl Node {
    /// Returns the entry at the end of a path of keys.
    pub fn find(&self, keys: &[&str]) -> Option<&Entry> {
        let (first, rest) = keys.split_first()?;
        let Value::Map(entries) = &self.value else { return None };
        let entry = entries.iter().find(|entry| entry.key == *first)?;
        if rest.is_empty() { Some(entry) } else { entry.node.find(rest) }
    }

    /// Replaces all lines.
    pub fn map_lines(&mut self, line: &impl Fn(u64) -> u64) {
        self.line = line(self.line);
        match &mut self.value {
            Value::List(items) => items.iter_mut().for_each(|item| item.map_lines(line)),
            Value::Map(entries) => {
                for entry in entries {
                    entry.line = line(entry.line);
                    entry.node.map_lines(line);
                }
            }
            Value::Null | Value::Text(_) => {}
        }
    }
}

/// A syntax error: its line, or 0 if that is not known, and the reason.
pub type Broken = (u64, String);

pub fn parse(text: &str) -> Result<Node, Broken> {
    let mut options = Options::default();
    options.with_snippet = false;
    if let Some(budget) = &mut options.budget {
        budget.max_depth = MAX_DEPTH;
        budget.max_events = 100_000;
    }
    let read = serde_saphyr::from_str_with_options::<Spanned<Raw>>(text, options);
    let raw = read.map_err(|error| {
        let line = error.location().map_or(0, |location| location.line());
        (line, error.to_string())
    })?;
    Ok(settle(raw, text))
}

/// A value as the parser returns it. The original spelling of numbers and booleans is looked up afterwards.
enum Raw {
    Null,
    Plain(String),
    Text(String),
    List(Vec<Spanned<Raw>>),
    Map(Vec<(Spanned<String>, Spanned<Raw>)>),
}

fn settle(raw: Spanned<Raw>, text: &str) -> Node {
    let Spanned { value, referenced, defined } = raw;
    let value = match value {
        Raw::Null => Value::Null,
        Raw::Plain(read) => Value::Text(as_typed(text, defined).map_or(read, str::to_owned)),
        Raw::Text(read) => Value::Text(read),
        Raw::List(items) => Value::List(items.into_iter().map(|item| settle(item, text)).collect()),
        Raw::Map(entries) => {
            let entry = |(key, node): (Spanned<String>, Spanned<Raw>)| Entry {
                line: key.referenced.line(),
                key: key.value,
                node: settle(node, text),
            };
            Value::Map(entries.into_iter().map(entry).collect())
        }
    };
    Node { line: referenced.line(), value }
}

fn as_typed(text: &str, at: Location) -> Option<&str> {
    let span = at.span();
    let from = usize::try_from(span.byte_offset()?).ok()?;
    let length = usize::try_from(span.byte_len()?).ok()?;
    let typed = text.get(from..from.checked_add(length)?)?.trim();
    (!typed.is_empty()).then_some(typed)
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Any)
    }
}

struct Any;

impl<'de> Visitor<'de> for Any {
    type Value = Raw;

    fn expecting(&self, to: &mut fmt::Formatter) -> fmt::Result {
        to.write_str("anything")
    }

    fn visit_unit<E>(self) -> Result<Raw, E> {
        Ok(Raw::Null)
    }

    fn visit_none<E>(self) -> Result<Raw, E> {
        Ok(Raw::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Raw, D::Error> {
        Raw::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Raw, E> {
        Ok(Raw::Plain(value.to_string()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Raw, E> {
        Ok(Raw::Plain(value.to_string()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Raw, E> {
        Ok(Raw::Plain(value.to_string()))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Raw, E> {
        Ok(Raw::Plain(value.to_string()))
    }

    fn visit_u128<E>(self, value: u128) -> Result<Raw, E> {
        Ok(Raw::Plain(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Raw, E> {
        Ok(Raw::Plain(value.to_string()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Raw, E> {
        Ok(Raw::Text(value.to_owned()))
    }

    fn visit_bytes<E>(self, value: &[u8]) -> Result<Raw, E> {
        Ok(Raw::Text(String::from_utf8_lossy(value).into_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Raw, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Raw::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Raw::Map(entries))
    }
}
