//! Structural schemas of custom resources: defaulting, pruning, validation.
//!
//! Not enforced: CEL rules (`x-kubernetes-validations`), `format`, `uniqueItems`, `x-kubernetes-list-type`, and
//! `allOf`, `anyOf`, `oneOf`, `not`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::value::{Value, json};
use regex::Regex;

use super::status::StatusCause;

/// The `openAPIV3Schema` of one version of a custom resource.
#[derive(Clone, Debug)]
pub struct Schema(Arc<Value>);

const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";
const INT_OR_STRING: &str = "x-kubernetes-int-or-string";
const EMBEDDED: &str = "x-kubernetes-embedded-resource";

fn flag(schema: &Value, name: &str) -> bool {
    schema.get(name).and_then(Value::as_bool) == Some(true)
}

/// The schema of a named property, else `additionalProperties`.
fn property<'s>(schema: &'s Value, key: &str) -> Option<&'s Value> {
    let named = schema.get("properties").and_then(|p| p.get(key));
    named.or_else(|| schema.get("additionalProperties").filter(|a| a.is_object()))
}

fn is_object_meta(path: &str, key: &str) -> bool {
    path.is_empty() && matches!(key, "apiVersion" | "kind" | "metadata")
}

impl Schema {
    #[must_use]
    pub fn new(schema: Value) -> Self {
        Self(Arc::new(schema))
    }

    pub fn default(&self, object: &mut Value) {
        default(object, &self.0);
    }

    /// Drops unknown fields and returns their paths.
    pub fn prune(&self, object: &mut Value) -> Vec<String> {
        let mut dropped = Vec::new();
        prune(object, &self.0, "", &mut dropped);
        dropped
    }

    #[must_use]
    pub fn validate(&self, object: &Value) -> Vec<StatusCause> {
        let mut causes = Vec::new();
        validate(object, &self.0, "", &mut causes);
        causes
    }
}

fn default(value: &mut Value, schema: &Value) {
    match value {
        Value::Object(map) => {
            if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
                for (key, sub) in properties {
                    let Some(fallback) = sub.get("default") else { continue };
                    // A null is kept if it is allowed, and defaulted otherwise.
                    if map.get(key).is_none_or(|v| v.is_null() && !flag(sub, "nullable")) {
                        map.insert(key, fallback.clone());
                    }
                }
            }
            for (key, child) in map.iter_mut() {
                if let Some(sub) = property(schema, key) {
                    default(child, sub);
                }
            }
        }
        Value::Array(items) => {
            if let Some(sub) = schema.get("items") {
                for item in Arc::make_mut(items) {
                    default(item, sub);
                }
            }
        }
        _ => {}
    }
}

fn prune(value: &mut Value, schema: &Value, path: &str, dropped: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            let keep_unknown = flag(schema, PRESERVE);
            let embedded = flag(schema, EMBEDDED);
            let keys: Vec<String> = map.keys().map(str::to_owned).collect();
            for key in keys {
                if is_object_meta(path, &key) || (embedded && is_object_meta("", &key)) {
                    continue;
                }
                let here = join(path, &key);
                match (property(schema, &key), map.get_mut(&key)) {
                    // A null that is not allowed means that the field is not set.
                    (Some(sub), Some(child)) if child.is_null() && !flag(sub, "nullable") => {
                        map.remove(&key);
                    }
                    (Some(sub), Some(child)) => prune(child, sub, &here, dropped),
                    (None, _) if !keep_unknown => {
                        map.remove(&key);
                        dropped.push(here);
                    }
                    _ => {}
                }
            }
        }
        Value::Array(items) => {
            if let Some(sub) = schema.get("items") {
                for (i, item) in Arc::make_mut(items).iter_mut().enumerate() {
                    prune(item, sub, &format!("{path}[{i}]"), dropped);
                }
            }
        }
        _ => {}
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_i64() || n.is_u64() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn has_type(value: &Value, schema: &Value) -> bool {
    if flag(schema, INT_OR_STRING) {
        return matches!(type_name(value), "integer" | "string");
    }
    match (schema.get("type").and_then(Value::as_str), type_name(value)) {
        (None, _) | (Some("number"), "integer") => true,
        (Some("integer"), "number") => value.as_f64().is_some_and(|n| n.fract() == 0.0),
        (Some(wanted), found) => wanted == found,
    }
}

fn validate(value: &Value, schema: &Value, path: &str, causes: &mut Vec<StatusCause>) {
    if value.is_null() && flag(schema, "nullable") {
        return;
    }
    if !has_type(value, schema) {
        let wanted = schema.get("type").and_then(Value::as_str).unwrap_or("integer or string");
        let detail = format!("{path} in body must be of type {wanted}: {:?}", type_name(value));
        causes.push(StatusCause::wrong_type(path, &json!(type_name(value)), &detail));
        return;
    }
    if let Some(allowed) = schema.get("enum").and_then(Value::as_array)
        && !allowed.contains(value)
    {
        let allowed: Vec<String> = allowed.iter().map(ToString::to_string).collect();
        causes.push(StatusCause::unsupported(path, value, &allowed));
    }
    match value {
        Value::Object(map) => {
            for key in schema.get("required").and_then(Value::as_array).into_iter().flatten() {
                let key = key.as_str().unwrap_or_default();
                if !map.contains_key(key) {
                    causes.push(StatusCause::required(join(path, key), ""));
                }
            }
            check_count(schema, "minProperties", "maxProperties", map.len(), value, path, causes);
            for (key, child) in map {
                if !is_object_meta(path, key)
                    && let Some(sub) = property(schema, key)
                {
                    validate(child, sub, &join(path, key), causes);
                }
            }
        }
        Value::Array(items) => {
            check_count(schema, "minItems", "maxItems", items.len(), value, path, causes);
            if let Some(sub) = schema.get("items") {
                for (i, item) in items.iter().enumerate() {
                    validate(item, sub, &format!("{path}[{i}]"), causes);
                }
            }
        }
        Value::String(s) => {
            check_count(schema, "minLength", "maxLength", s.chars().count(), value, path, causes);
            if let Some(pattern) = schema.get("pattern").and_then(Value::as_str)
                && !matches(pattern, s)
            {
                let detail = format!("{path} in body should match '{pattern}'");
                causes.push(StatusCause::invalid(path, value, &detail));
            }
        }
        Value::Number(n) => check_range(schema, n.as_f64().unwrap_or_default(), value, path, causes),
        _ => {}
    }
}

/// Whether a text matches a pattern. Compiled patterns are kept, since every write of an object needs them.
fn matches(pattern: &str, text: &str) -> bool {
    thread_local! {
        static COMPILED: RefCell<BTreeMap<String, Option<Regex>>> = RefCell::default();
    }
    COMPILED.with_borrow_mut(|all| {
        if !all.contains_key(pattern) {
            all.insert(pattern.to_owned(), Regex::new(pattern).ok());
        }
        all.get(pattern).and_then(Option::as_ref).is_some_and(|regex| regex.is_match(text))
    })
}

fn check_count(
    schema: &Value,
    min: &str,
    max: &str,
    count: usize,
    value: &Value,
    path: &str,
    causes: &mut Vec<StatusCause>,
) {
    let limit = |name: &str| schema.get(name).and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
    if let Some(limit) = limit(min).filter(|limit| count < *limit) {
        causes.push(StatusCause::invalid(
            path,
            value,
            &format!("{path} in body should be at least {limit} long"),
        ));
    }
    if let Some(limit) = limit(max).filter(|limit| count > *limit) {
        let message = match max {
            "maxLength" => format!("Too long: may not be more than {limit} bytes"),
            _ => format!("Too many: {count}: must have at most {limit} items"),
        };
        let mut cause = StatusCause::too_long(path, message);
        if max != "maxLength" {
            cause.reason = "FieldValueTooMany";
        }
        causes.push(cause);
    }
}

fn check_range(schema: &Value, number: f64, value: &Value, path: &str, causes: &mut Vec<StatusCause>) {
    let limit = |name: &str| schema.get(name).and_then(Value::as_f64);
    if let Some(min) = limit("minimum") {
        let exclusive = flag(schema, "exclusiveMinimum");
        if number < min || (exclusive && number <= min) {
            let detail = format!("{path} in body should be greater than or equal to {min}");
            causes.push(StatusCause::invalid(path, value, &detail));
        }
    }
    if let Some(max) = limit("maximum") {
        let exclusive = flag(schema, "exclusiveMaximum");
        if number > max || (exclusive && number >= max) {
            let detail = format!("{path} in body should be less than or equal to {max}");
            causes.push(StatusCause::invalid(path, value, &detail));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema() -> Schema {
        Schema::new(json!({"type": "object", "required": ["spec"], "properties": {"spec": {
        "type": "object", "required": ["mode"], "properties": {
            "mode": {"type": "string", "enum": ["On", "Off"]},
            "count": {"type": "integer", "minimum": 1, "maximum": 5, "default": 3},
            "names": {"type": "array", "maxItems": 2, "items": {"type": "string", "maxLength": 3}},
            "port": {"x-kubernetes-int-or-string": true},
            "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "map": {"type": "object", "additionalProperties": {"type": "integer"}},
            "maybe": {"type": "string", "nullable": true},
        }}}}))
    }

    #[test]
    fn a_valid_object_is_defaulted() {
        let mut object = json!({"metadata": {"name": "x"}, "spec": {"mode": "On", "port": "http", "maybe": null,
            "any": {"x": {"y": 1}}, "map": {"a": 1}}});
        assert!(schema().prune(&mut object).is_empty());
        schema().default(&mut object);
        assert_eq!(schema().validate(&object), []);
        assert_eq!(object["spec"]["count"], 3);
        assert_eq!(object["spec"]["any"]["x"]["y"], 1);
    }

    #[test]
    fn unknown_fields_are_pruned_and_reported() {
        let mut object = json!({"spec": {"mode": "On", "extra": {"a": 1}}, "more": 1});
        assert_eq!(schema().prune(&mut object), ["more", "spec.extra"]);
        assert_eq!(object, json!({"spec": {"mode": "On"}}));
    }

    #[test]
    fn each_cause_names_its_field() {
        let object = json!({"spec": {"mode": "Maybe", "count": 9, "names": ["a", "b", "long"], "port": 1.5, "map": {"a": "x"}}});
        let causes = schema().validate(&object);
        let fields: Vec<_> = causes.iter().map(|c| (c.field.as_str(), c.reason)).collect();
        assert!(fields.contains(&("spec.mode", "FieldValueNotSupported")));
        assert!(fields.contains(&("spec.count", "FieldValueInvalid")));
        assert!(fields.contains(&("spec.names", "FieldValueTooMany")));
        assert!(fields.contains(&("spec.names[2]", "FieldValueTooLong")));
        assert!(fields.contains(&("spec.port", "FieldValueTypeInvalid")));
        assert!(fields.contains(&("spec.map.a", "FieldValueTypeInvalid")));
        assert_eq!(schema().validate(&json!({"spec": {}}))[0].field, "spec.mode");
    }
}
