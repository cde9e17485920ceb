//! Parses the subset of YAML that kubeconfigs use, JSON included. A full deserializer would be a fifth of the binary.

use granit_parser::{Event, Parser, ScalarStyle, StrInput};
use serde_json::{Map, Value};

/// Largest nesting depth.
const DEEPEST: usize = 32;

type Events<'a> = Parser<'a, StrInput<'a>>;

/// Parses the first document. Unquoted `true` and `false` are booleans, null values are left out, and all else is text, so
/// that a token of digits stays a token.
pub(super) fn read(text: &str) -> Result<Value, String> {
    let mut events = Parser::new_from_str(text);
    loop {
        match next(&mut events)? {
            Event::StreamStart | Event::DocumentStart(..) => {}
            event => return value(&event, &mut events, 0),
        }
    }
}

fn next<'a>(events: &mut Events<'a>) -> Result<Event<'a>, String> {
    loop {
        match events.next() {
            Some(Ok((Event::Comment(..), _))) => {}
            Some(Ok((event, _))) => return Ok(event),
            Some(Err(error)) => return Err(error.to_string()),
            None => return Err("it ends too early".into()),
        }
    }
}

/// Parses the value that starts with an event.
fn value(event: &Event<'_>, events: &mut Events<'_>, depth: usize) -> Result<Value, String> {
    match event {
        Event::Scalar(text, style, ..) => Ok(scalar(text, *style == ScalarStyle::Plain)),
        _ if depth > DEEPEST => Err("it goes too deep".into()),
        Event::SequenceStart(..) => {
            let mut list = Vec::new();
            loop {
                match next(events)? {
                    Event::SequenceEnd => return Ok(Value::Array(list)),
                    event => list.push(value(&event, events, depth + 1)?),
                }
            }
        }
        Event::MappingStart(..) => {
            let mut map = Map::new();
            loop {
                let key = match next(events)? {
                    Event::MappingEnd => return Ok(Value::Object(map)),
                    Event::Scalar(key, ..) => key.into_owned(),
                    _ => return Err("it has a key that is no text".into()),
                };
                let event = next(events)?;
                let value = value(&event, events, depth + 1)?;
                if !value.is_null() {
                    map.insert(key, value);
                }
            }
        }
        Event::Alias(..) | Event::Anchor(..) | Event::UnresolvedAlias(..) => {
            Err("it has aliases, which are not supported".into())
        }
        _ => Err("there is nothing in it".into()),
    }
}

fn scalar(text: &str, is_plain: bool) -> Value {
    match text {
        "true" if is_plain => Value::Bool(true),
        "false" if is_plain => Value::Bool(false),
        "" | "~" | "null" if is_plain => Value::Null,
        text => Value::String(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn documents_are_parsed() {
        let text = "# who\na: {b: [1, 'x', \"y\\n\"], c: true, d: null, e: ~}\nf:\n- g: |\n    h\n  i: 'true' # why\nj:\n";
        let expected = json!({"a": {"b": ["1", "x", "y\n"], "c": true}, "f": [{"g": "h\n", "i": "true"}]});
        assert_eq!(read(text), Ok(expected));
        assert_eq!(read("{\"a\":[{\"b\":false}]}"), Ok(json!({"a": [{"b": false}]})));
    }

    #[test]
    fn invalid_documents_are_refused() {
        for bad in [
            "",
            "a: [",
            "a: *b",
            "a: b: c",
            "{[a]: b}",
            &"[".repeat(1000),
            &format!("{}{}", "[".repeat(99), "]".repeat(99)),
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
