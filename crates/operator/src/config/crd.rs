//! Validates an object by the schema and the CEL rules of its CustomResourceDefinition, as the API server does.

use std::fmt;

use jiff::Timestamp;
use kube::CustomResourceExt;
use serde_json::{Map, Value};

use super::cel;
use super::section::{quoted, suggestion};

/// A field that the API server would refuse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub path: Path,
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        if self.path.0.is_empty() {
            write!(to, "{}", self.message)
        } else {
            write!(to, "`{}`: {}", self.path, self.message)
        }
    }
}

/// Where a field is in an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Path(pub Vec<Step>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Key(String),
    Index(usize),
}

impl Path {
    pub fn key(&self, key: &str) -> Self {
        self.with(Step::Key(key.to_owned()))
    }

    pub fn with(&self, step: Step) -> Self {
        Self(self.0.iter().cloned().chain([step]).collect())
    }
}

impl fmt::Display for Path {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        for (index, step) in self.0.iter().enumerate() {
            match step {
                Step::Key(key) if index == 0 => write!(to, "{key}")?,
                Step::Key(key) => write!(to, ".{key}")?,
                Step::Index(at) => write!(to, "[{at}]")?,
            }
        }
        Ok(())
    }
}

/// Returns what the API server would refuse in an object of this kind.
pub fn violations<K: CustomResourceExt>(mut object: Value) -> Vec<Violation> {
    let schema = schema::<K>();
    let root = Path::default();
    default(&mut object, &schema);
    let mut found = Vec::new();
    check(&object, &schema, &root, &mut found);
    // The server evaluates rules only if the rest is valid, because they rely on types.
    if found.is_empty() {
        evaluate_rules(&object, &schema, &root, &mut found);
    }
    found
}

/// The schema of the only version of a kind.
fn schema<K: CustomResourceExt>() -> Value {
    let versions = K::crd().spec.versions;
    let schema = versions.into_iter().next().and_then(|version| version.schema?.open_api_v3_schema);
    // Types that derive a schema can always be serialized.
    serde_json::to_value(schema).unwrap_or_default()
}

fn flag(schema: &Value, name: &str) -> bool {
    schema[name] == true
}

/// The schema of a key: its own, or that of all keys.
fn below<'s>(schema: &'s Value, key: &str) -> Option<&'s Value> {
    let all = schema.get("additionalProperties").filter(|all| all.is_object());
    schema["properties"].get(key).or(all)
}

/// The server validates these fields of every object by itself.
fn is_object_meta(path: &Path, key: &str) -> bool {
    path.0.is_empty() && matches!(key, "apiVersion" | "kind" | "metadata")
}

fn default(value: &mut Value, schema: &Value) {
    match value {
        Value::Object(fields) => {
            for (key, below) in schema["properties"].as_object().into_iter().flatten() {
                if let Some(default) = below.get("default")
                    && fields.get(key).is_none_or(|value| value.is_null() && !flag(below, "nullable"))
                {
                    fields.insert(key.clone(), default.clone());
                }
            }
            for (key, value) in fields.iter_mut() {
                if let Some(below) = below(schema, key) {
                    default(value, below);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| default(item, &schema["items"])),
        _ => {}
    }
}

fn is_of_type(value: &Value, schema: &Value) -> bool {
    if flag(schema, "x-kubernetes-int-or-string") {
        return value.is_i64() || value.is_u64() || value.is_string();
    }
    match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("number") => value.is_number(),
        _ => true,
    }
}

fn check(value: &Value, schema: &Value, path: &Path, found: &mut Vec<Violation>) {
    // A null that is not allowed stands for a field that is left out.
    if value.is_null() {
        return;
    }
    let wrong = |message: String| Violation { path: path.clone(), message };
    let shown = || quoted(&value.as_str().map_or_else(|| value.to_string(), str::to_owned));
    if !is_of_type(value, schema) {
        let wanted = schema["type"].as_str().unwrap_or("integer or a string");
        return found.push(wrong(format!("{} is not of the type {wanted}", shown())));
    }
    if let Some(choices) = schema["enum"].as_array()
        && !choices.contains(value)
    {
        let choices: Vec<&str> = choices.iter().filter_map(Value::as_str).collect();
        return found.push(wrong(format!("{} is not one of {}", shown(), choices.join(", "))));
    }
    match value {
        Value::Object(fields) => {
            if let Some(limits) = exceeded(count(fields.len()), schema, "minProperties", "maxProperties") {
                found.push(wrong(format!("has {} keys: there must be {limits}", fields.len())));
            }
            check_fields(fields, schema, path, found);
        }
        Value::Array(items) => {
            if let Some(limits) = exceeded(count(items.len()), schema, "minItems", "maxItems") {
                found.push(wrong(format!("has {} items: there must be {limits}", items.len())));
            }
            check_items(items, schema, path, found);
        }
        Value::String(text) => {
            let length = text.chars().count();
            if let Some(limits) = exceeded(count(length), schema, "minLength", "maxLength") {
                found.push(wrong(format!("has {length} characters: there must be {limits}")));
            } else if let Some(pattern) = schema["pattern"].as_str()
                && cel::matches(pattern, text) != Ok(true)
            {
                found.push(wrong(format!("{} must match {pattern}", shown())));
            } else if schema["format"] == "date-time" && !is_date_time(text) {
                let message = format!(
                    "{} is no time: write date, time and zone, such as 2030-01-31T18:00:00Z",
                    shown()
                );
                found.push(wrong(message));
            }
        }
        Value::Number(number) => {
            let number = number.as_f64().unwrap_or_default();
            if let Some(limits) = exceeded(number, schema, "minimum", "maximum") {
                found.push(wrong(format!("is {number}: it must be {limits}")));
            }
        }
        Value::Null | Value::Bool(_) => {}
    }
}

/// Whether the API server takes a text as a time. It wants seconds and a zone, which others may leave out.
fn is_date_time(text: &str) -> bool {
    const RFC_3339: &str = r"^\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2}(\.\d+)?([Zz]|[+-]\d{2}:\d{2})$";
    cel::matches(RFC_3339, text) == Ok(true) && text.parse::<Timestamp>().is_ok()
}

fn count(items: usize) -> f64 {
    u32::try_from(items).map_or(f64::MAX, f64::from)
}

/// Returns the limits if a size is outside of them.
fn exceeded(size: f64, schema: &Value, least: &str, most: &str) -> Option<String> {
    let (least, most) = (schema[least].as_f64(), schema[most].as_f64());
    if least.is_none_or(|least| size >= least) && most.is_none_or(|most| size <= most) {
        return None;
    }
    let limits = [least.map(|least| format!("at least {least}")), most.map(|most| format!("at most {most}"))];
    Some(limits.into_iter().flatten().collect::<Vec<_>>().join(" and "))
}

fn check_items(items: &[Value], schema: &Value, path: &Path, found: &mut Vec<Violation>) {
    for (index, item) in items.iter().enumerate() {
        let path = path.with(Step::Index(index));
        check(item, &schema["items"], &path, found);
        let own = identity(item, schema);
        if own.is_some() && items[..index].iter().any(|other| identity(other, schema) == own) {
            let message = "Duplicate value: another item has the same; change or remove one of them".into();
            found.push(Violation { path, message });
        }
    }
}

fn check_fields(fields: &Map<String, Value>, schema: &Value, path: &Path, found: &mut Vec<Violation>) {
    for key in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if fields.get(key).is_none_or(Value::is_null) {
            found.push(Violation { path: path.key(key), message: "is missing".into() });
        }
    }
    for (key, value) in fields {
        if is_object_meta(path, key) {
            continue;
        }
        let path = path.key(key);
        if let Some(below) = below(schema, key) {
            check(value, below, &path, found);
        } else if !flag(schema, "x-kubernetes-preserve-unknown-fields") {
            let known: Vec<&str> =
                schema["properties"].as_object().into_iter().flatten().map(|(key, _)| key.as_str()).collect();
            found.push(Violation { path, message: suggestion(key, &known) });
        }
    }
}

/// What must differ between the items of a list.
fn identity<'v>(item: &'v Value, schema: &Value) -> Option<Vec<&'v Value>> {
    match schema["x-kubernetes-list-type"].as_str()? {
        "set" => Some(vec![item]),
        "map" => {
            let keys = schema["x-kubernetes-list-map-keys"].as_array()?.iter().filter_map(Value::as_str);
            Some(keys.map(|key| &item[key]).collect())
        }
        _ => None,
    }
}

fn evaluate_rules(value: &Value, schema: &Value, path: &Path, found: &mut Vec<Violation>) {
    for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
        let text = rule["rule"].as_str().unwrap_or_default();
        // A new object has no old self, and the server does not evaluate such rules for it either.
        if text.contains("oldSelf") || cel::holds(text, value) == Ok(true) {
            continue;
        }
        let message = rule["message"].as_str().unwrap_or(text).to_owned();
        found.push(Violation { path: path.clone(), message });
    }
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                if let Some(below) = below(schema, key).filter(|_| !is_object_meta(path, key)) {
                    evaluate_rules(value, below, &path.key(key), found);
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                evaluate_rules(item, &schema["items"], &path.with(Step::Index(index)), found);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use nodekeeper_core::api::{NodeGate, NodeRemediation, RemediationPolicy};
    use serde_json::json;

    use super::*;

    fn told(spec: &Value) -> Vec<String> {
        let gate = json!({"apiVersion": "nodekeeper.dev/v1alpha1", "kind": "NodeGate", "metadata": {"name": "a"}, "spec": spec});
        violations::<NodeGate>(gate).iter().map(ToString::to_string).collect()
    }

    fn all_rules(schema: &Value, rules: &mut Vec<String>) {
        let own = schema["x-kubernetes-validations"].as_array().into_iter().flatten();
        rules.extend(own.filter_map(|rule| rule["rule"].as_str()).map(str::to_owned));
        let properties = schema["properties"].as_object().into_iter().flatten().map(|(_, below)| below);
        for below in
            properties.chain(["items", "additionalProperties"].iter().filter_map(|key| schema.get(*key)))
        {
            all_rules(below, rules);
        }
    }

    #[test]
    fn s02_every_rule_of_our_definitions_can_be_evaluated() {
        let mut rules = Vec::new();
        for schema in [schema::<NodeGate>(), schema::<RemediationPolicy>(), schema::<NodeRemediation>()] {
            all_rules(&schema, &mut rules);
        }
        assert!(rules.len() > 25, "{rules:#?}");
        for rule in rules {
            assert!(cel::parse(&rule).is_ok(), "{rule}: {:?}", cel::parse(&rule));
        }
    }

    #[test]
    fn s02_times_are_those_of_the_api_server() {
        let told = |until: &str| {
            let spec = json!({"pause": {"reason": "x", "until": until}});
            let policy = json!({"apiVersion": "nodekeeper.dev/v1alpha1", "kind": "RemediationPolicy", "metadata": {"name": "default"}, "spec": spec});
            violations::<RemediationPolicy>(policy).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        for until in ["2030-01-31T18:00:00Z", "2030-01-31t18:00:00.5+01:00"] {
            assert_eq!(told(until), [""; 0], "{until}");
        }
        for until in
            ["tomorrow", "2030-01-31", "2030-01-31T18:00Z", "2030-01-31T18:00:00", "2030-02-31T18:00:00Z"]
        {
            assert_eq!(
                told(until),
                [format!(
                    "`spec.pause.until`: '{until}' is no time: write date, time and zone, such as 2030-01-31T18:00:00Z"
                )]
            );
        }
    }

    #[test]
    fn s02_each_violation_names_field_and_fix() {
        for (spec, wanted) in [
            (json!({"zebra": 1}), "`spec.zebra`: there is no such key"),
            (json!({"onFailur": "Replace"}), "did you mean `onFailure`?"),
            (json!({"onFailure": "Delete"}), "`spec.onFailure`: 'Delete' is not one of KeepTainted, Replace"),
            (
                json!({"retry": {"maxRetries": "many"}}),
                "`spec.retry.maxRetries`: 'many' is not of the type integer",
            ),
            (
                json!({"retry": {"maxRetries": 1000}}),
                "`spec.retry.maxRetries`: is 1000: it must be at least 0 and at most 100",
            ),
            (json!({"taints": []}), "`spec.taints`: has 0 items: there must be at least 1 and at most 8"),
            (json!({"taints": [{"effect": "NoSchedule"}]}), "`spec.taints[0].key`: is missing"),
            (json!({"taints": [{"key": "a b"}]}), "`spec.taints[0].key`: 'a b' must match ^"),
            (json!({"taints": [{"key": "a"}, {"key": "a"}]}), "`spec.taints[1]`: Duplicate value"),
            (json!({"worker": {"image": ""}}), "`spec.worker.image`: has 0 characters"),
            (
                json!({"worker": {"resources": {"limits": {"cpu": "much"}}}}),
                "`spec.worker.resources.limits.cpu`: 'much' must match",
            ),
            (
                json!({"deadlines": {"workerSeconds": 700}}),
                "`spec.deadlines.gateSeconds` must not be less than",
            ),
        ] {
            let told = told(&spec);
            assert!(matches!(&told[..], [one] if one.contains(wanted)), "{spec}: {told:?}");
        }
        assert_eq!(told(&json!({})), Vec::<String>::new());
    }
}
