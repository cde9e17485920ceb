//! Decoding of request bodies as Go's decoder does it: checks, dropped fields and normalization.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use crate::value::{Value, json};
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};

use super::quantity;
use super::status::ApiError;
use crate::object::take;

/// Go omits these maps when they are empty. An empty object elsewhere (`emptyDir: {}`) is kept.
const OMITTED_WHEN_EMPTY: &[&str] = &[
    "labels",
    "annotations",
    "data",
    "binaryData",
    "nodeSelector",
    "matchLabels",
    "limits",
    "requests",
    "capacity",
    "allocatable",
    "disruptedPods",
];
const QUANTITIES: &[&str] = &["limits", "requests", "capacity", "allocatable"];

fn is_omitted(key: &str, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty() && OMITTED_WHEN_EMPTY.contains(&key),
        _ => false,
    }
}

/// Drops what Go's encoder omits: nulls, empty lists and some empty maps.
pub fn normalize(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|key, child| {
                normalize(child);
                !is_omitted(key, child)
            });
        }
        Value::Array(list) => Arc::make_mut(list).iter_mut().for_each(normalize),
        _ => {}
    }
}

/// Normalizes what differs from an earlier version.
pub fn normalize_changes(value: &mut Value, earlier: &Value) {
    if value.is_same(earlier) {
        return;
    }
    let (Value::Object(map), Value::Object(before)) = (&mut *value, earlier) else { return normalize(value) };
    map.retain(|key, child| {
        match before.get(key) {
            Some(before) => normalize_changes(child, before),
            None => normalize(child),
        }
        !is_omitted(key, child)
    });
}

/// Normalizes only the metadata of a custom resource; the rest belongs to its schema.
pub fn normalize_metadata(object: &mut Value) {
    if let Some(metadata) = object.get_mut("metadata") {
        normalize(metadata);
    }
}

/// Turns quantities that are JSON numbers into strings.
pub fn quote_quantities(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (key, child) in map.iter_mut() {
                match child.as_object_mut() {
                    Some(quantities) if QUANTITIES.contains(&key) => {
                        for quantity in quantities.values_mut().filter(|q| q.is_number()) {
                            *quantity = json!(quantity.to_string());
                        }
                    }
                    _ => quote_quantities(child),
                }
            }
        }
        Value::Array(list) => Arc::make_mut(list).iter_mut().for_each(quote_quantities),
        _ => {}
    }
}

/// Validates all quantities and stores them in canonical form.
pub fn read_quantities(value: &mut Value) -> Result<(), ApiError> {
    match value {
        Value::Object(map) => map.iter_mut().try_for_each(|(key, child)| match child.as_object_mut() {
            Some(quantities) if QUANTITIES.contains(&key) => {
                quantities.values_mut().try_for_each(|quantity| {
                    let text = quantity.as_str().unwrap_or_default();
                    let bad = || {
                        ApiError::bad_request(format!(
                            "quantities must match the regular expression of a quantity, found {text:?}"
                        ))
                    };
                    *quantity = json!(quantity::canonical(text).ok_or_else(bad)?);
                    Ok(())
                })
            }
            _ => read_quantities(child),
        }),
        Value::Array(list) => Arc::make_mut(list).iter_mut().try_for_each(read_quantities),
        _ => Ok(()),
    }
}

/// Go requires exactly six fractional digits in a `MicroTime`.
pub fn check_micro_times(body: &Value) -> Result<(), ApiError> {
    for path in ["spec.renewTime", "spec.acquireTime", "eventTime", "series.lastObservedTime"] {
        let time = crate::object::text(body, path);
        let fraction = time.rsplit_once('.').map(|(_, f)| f.chars().take_while(char::is_ascii_digit).count());
        if !time.is_empty() && fraction != Some(6) {
            return Err(ApiError::bad_request(format!(
                "{path}: {time:?} is no time with six digits behind the point"
            )));
        }
    }
    Ok(())
}

/// The paths of fields that decoding dropped.
#[must_use]
pub fn lost_fields(before: &Value, after: &Value) -> Vec<String> {
    let mut lost = Vec::new();
    compare(before, after, "", &mut lost);
    lost
}

fn compare(before: &Value, after: &Value, path: &str, lost: &mut Vec<String>) {
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => {
            for (key, value) in before {
                let path = if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
                match after.get(key) {
                    Some(kept) => compare(value, kept, &path, lost),
                    None if value.is_null() => {}
                    None => lost.push(path),
                }
            }
        }
        (Value::Array(before), Value::Array(after)) => {
            for (i, (b, a)) in before.iter().zip(after.iter()).enumerate() {
                compare(b, a, &format!("{path}[{i}]"), lost);
            }
        }
        _ => {}
    }
}

/// The paths of duplicate fields, which `serde_json` does not report.
#[must_use]
pub fn duplicate_fields(json: &[u8]) -> Vec<String> {
    let mut found = Duplicates::default();
    // A body that does not parse was refused before.
    let _ = serde_json::Deserializer::from_slice(json)
        .deserialize_any(Walk { path: String::new(), found: &mut found });
    found.0
}

#[derive(Default)]
struct Duplicates(Vec<String>);

struct Walk<'d> {
    path: String,
    found: &'d mut Duplicates,
}

impl<'de> serde::de::DeserializeSeed<'de> for Walk<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }
    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }
    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }
    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }
    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let mut i = 0;
        while list
            .next_element_seed(Walk { path: format!("{}[{i}]", self.path), found: self.found })?
            .is_some()
        {
            i += 1;
        }
        Ok(())
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen = BTreeSet::new();
        while let Some(key) = map.next_key::<String>()? {
            let path = if self.path.is_empty() { key.clone() } else { format!("{}.{key}", self.path) };
            if !seen.insert(key) {
                self.found.0.push(path.clone());
            }
            map.next_value_seed(Walk { path, found: self.found })?;
        }
        Ok(())
    }
}

/// The strict decoding error of `fieldValidation=Strict`.
pub fn refuse_fields(
    kind: &str,
    version: &str,
    unknown: &[String],
    duplicate: &[String],
) -> Result<(), ApiError> {
    let unknown = unknown.iter().map(|f| format!("unknown field \"{f}\""));
    let duplicate = duplicate.iter().map(|f| format!("duplicate field \"{f}\""));
    let all: Vec<String> = unknown.chain(duplicate).collect();
    if all.is_empty() {
        return Ok(());
    }
    let list = all.join(", ");
    let message = format!(
        "{kind} in version \"{version}\" cannot be handled as a {kind}: strict decoding error: {list}"
    );
    Err(ApiError::bad_request(message))
}

/// Checks the metadata of a custom resource, which is not decoded by a type.
pub fn check_metadata(object: &mut Value) -> Result<(), ApiError> {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    let metadata = take(object, "metadata").unwrap_or_else(|| json!({}));
    let metadata: ObjectMeta =
        metadata.decode().map_err(|e| ApiError::bad_request(format!("invalid metadata: {e}")))?;
    object["metadata"] = json!(metadata);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicate_fields_are_found_at_any_depth() {
        assert_eq!(
            duplicate_fields(br#"{"a":1,"b":{"c":1,"c":2},"d":[{"e":1},{"e":1,"e":null}],"a":2}"#),
            ["b.c", "d[1].e", "a"]
        );
        assert!(duplicate_fields(br#"{"a":{"b":"x"},"c":[1.5,true,-1]}"#).is_empty());
    }
}
