//! Label and field selectors.

use crate::value::Value;

use super::status::ApiError;
use crate::object::{at, items, text};
use crate::resource::Resource;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Label {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Absent(String),
    Greater(String, i64),
    Less(String, i64),
}

/// An empty selector matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels(Vec<Label>);

impl Labels {
    /// Parses the query form: `a=b,c!=d,e in (f,g),h notin (i),j,!k`.
    pub fn parse(selector: &str) -> Result<Self, ApiError> {
        let bad = |detail: &str| ApiError::bad_request(format!("unable to parse requirement: {detail}"));
        let mut requirements = Vec::new();
        for part in split_outside_parentheses(selector) {
            let part = part.trim();
            if part.is_empty() {
                return Err(bad(&format!("found '', expected: identifier in {selector:?}")));
            }
            requirements.push(parse_label(part).ok_or_else(|| bad(&format!("{part:?} is no requirement")))?);
        }
        Ok(Self(requirements))
    }

    /// Reads `matchLabels` and `matchExpressions`. Returns none, which selects nothing, if the selector is missing or
    /// invalid; an empty one selects everything.
    #[must_use]
    pub fn of(selector: Option<&Value>) -> Option<Self> {
        let selector = selector.filter(|s| s.is_object())?;
        let values =
            |e: &Value| items(e, "values").iter().filter_map(|v| v.as_str().map(str::to_owned)).collect();
        let labels = at(selector, "matchLabels").and_then(Value::as_object).into_iter().flatten();
        let labels =
            labels.map(|(key, value)| Some(Label::In(key.to_owned(), vec![value.as_str()?.to_owned()])));
        let expressions = items(selector, "matchExpressions").iter().map(|e| {
            let key = text(e, "key").to_owned();
            match text(e, "operator") {
                "In" => Some(Label::In(key, values(e))),
                "NotIn" => Some(Label::NotIn(key, values(e))),
                "Exists" => Some(Label::Exists(key)),
                "DoesNotExist" => Some(Label::Absent(key)),
                _ => None,
            }
        });
        labels.chain(expressions).collect::<Option<_>>().map(Self)
    }

    #[must_use]
    pub fn matches(&self, object: &Value) -> bool {
        let labels = at(object, "metadata.labels");
        let value = |key: &str| labels.and_then(|l| l.get(key)).and_then(Value::as_str);
        self.0.iter().all(|label| match label {
            Label::In(key, values) => value(key).is_some_and(|v| values.iter().any(|w| w == v)),
            Label::NotIn(key, values) => !value(key).is_some_and(|v| values.iter().any(|w| w == v)),
            Label::Exists(key) => value(key).is_some(),
            Label::Absent(key) => value(key).is_none(),
            Label::Greater(key, n) => value(key).and_then(|v| v.parse().ok()).is_some_and(|v: i64| v > *n),
            Label::Less(key, n) => value(key).and_then(|v| v.parse().ok()).is_some_and(|v: i64| v < *n),
        })
    }
}

fn split_outside_parentheses(text: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0_i32, 0, Vec::new());
    if text.trim().is_empty() {
        return parts;
    }
    for (i, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn parse_label(part: &str) -> Option<Label> {
    if let Some(key) = part.strip_prefix('!') {
        return Some(Label::Absent(label_key(key.trim())?));
    }
    if let Some((head, list)) = part.split_once('(') {
        let list = list.trim_end().strip_suffix(')')?;
        let values = list.split(',').map(|v| label_value(v.trim())).collect::<Option<Vec<_>>>()?;
        let (key, operator) = head.trim().rsplit_once(char::is_whitespace)?;
        let key = label_key(key.trim())?;
        return match operator {
            "in" => Some(Label::In(key, values)),
            "notin" => Some(Label::NotIn(key, values)),
            _ => None,
        };
    }
    for (operator, equal) in [("!=", false), ("==", true), ("=", true)] {
        if let Some((key, value)) = part.split_once(operator) {
            let (key, values) = (label_key(key.trim())?, vec![label_value(value.trim())?]);
            return Some(if equal { Label::In(key, values) } else { Label::NotIn(key, values) });
        }
    }
    if let Some((key, n)) = part.split_once('>') {
        return Some(Label::Greater(label_key(key.trim())?, n.trim().parse().ok()?));
    }
    if let Some((key, n)) = part.split_once('<') {
        return Some(Label::Less(label_key(key.trim())?, n.trim().parse().ok()?));
    }
    Some(Label::Exists(label_key(part)?))
}

fn label_key(key: &str) -> Option<String> {
    let (prefix, name) = key.split_once('/').map_or(("", key), |(p, n)| (p, n));
    (is_label_text(prefix, 253) && !name.is_empty() && is_label_text(name, 63)).then(|| key.to_owned())
}

fn label_value(value: &str) -> Option<String> {
    is_label_text(value, 63).then(|| value.to_owned())
}

/// Alphanumeric at both ends, `-_.` between them, or empty.
fn is_label_text(text: &str, longest: usize) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    text.len() <= longest
        && text.chars().all(inner)
        && text.chars().next().is_none_or(|c| c.is_ascii_alphanumeric())
        && text.chars().last().is_none_or(|c| c.is_ascii_alphanumeric())
}

/// An empty selector matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields(Vec<(String, bool, String)>);

impl Fields {
    /// Parses `metadata.name=x,status.phase!=Running`; the resource must support each field.
    pub fn parse(selector: &str, resource: &Resource) -> Result<Self, ApiError> {
        let mut requirements = Vec::new();
        for part in selector.split(',').map(str::trim).filter(|p| !p.is_empty()) {
            let (field, equal, value) = [("!=", false), ("==", true), ("=", true)]
                .iter()
                .find_map(|(operator, equal)| part.split_once(operator).map(|(f, v)| (f, *equal, v)))
                .ok_or_else(|| {
                    ApiError::bad_request(format!(
                        "invalid selector: {selector:?}; can't understand {part:?}"
                    ))
                })?;
            if !resource.is_selectable(field) {
                return Err(ApiError::bad_request(format!("field label not supported: {field}")));
            }
            requirements.push((field.to_owned(), equal, value.to_owned()));
        }
        Ok(Self(requirements))
    }

    #[must_use]
    pub fn matches(&self, object: &Value) -> bool {
        self.0.iter().all(|(field, equal, value)| (field_text(object, field) == *value) == *equal)
    }
}

fn field_text(object: &Value, field: &str) -> String {
    match at(object, field) {
        // An Event is selected by the component of its source.
        Some(Value::Object(source)) if field == "source" => {
            source.get("component").and_then(Value::as_str).unwrap_or_default().to_owned()
        }
        Some(Value::String(s)) => s.to_string(),
        Some(Value::Bool(b)) => b.to_string(),
        Some(Value::Number(n)) => n.to_string(),
        // A missing boolean is false.
        _ if field == "spec.unschedulable" || field == "spec.hostNetwork" => "false".into(),
        _ => text(object, field).to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::json;

    #[test]
    fn label_selectors_of_kubectl_are_supported() {
        let object = json!({"metadata": {"labels": {"app": "web", "tier": "1", "a.b/c": ""}}});
        for (selector, expected) in [
            ("", true),
            ("app=web", true),
            ("app==web,tier=1", true),
            ("app!=web", false),
            ("missing!=x", true),
            ("app in (db, web)", true),
            ("app notin (db,web),tier", false),
            ("missing notin (x)", true),
            ("a.b/c", true),
            ("a.b/c=", true),
            ("!app", false),
            ("!missing", true),
            ("tier>0", true),
            ("tier<1", false),
        ] {
            assert_eq!(Labels::parse(selector).unwrap().matches(&object), expected, "{selector}");
        }
    }

    #[test]
    fn a_bad_label_selector_is_refused() {
        for selector in ["a=b,,c", "a in (b", "a=b c", "=x", "a!!b", "-a"] {
            assert_eq!(Labels::parse(selector).unwrap_err().code, 400, "{selector}");
        }
    }
}
