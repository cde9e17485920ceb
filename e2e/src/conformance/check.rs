//! Assertions on JSON by pointer whose failure messages contain the actual value.

use anyhow::{Result, ensure};
use serde_json::Value;

use super::http::brief;

pub(super) fn is(value: &Value, pointer: &str, want: impl Into<Value>) -> Result<()> {
    let want = want.into();
    let got = value.pointer(pointer).unwrap_or(&Value::Null);
    ensure!(*got == want, "{pointer} is {got}, wanted {want}, in {}", brief(value));
    Ok(())
}

pub(super) fn absent(value: &Value, pointer: &str) -> Result<()> {
    let got = value.pointer(pointer);
    ensure!(got.is_none(), "{pointer} is {}, wanted it absent", got.unwrap_or(&Value::Null));
    Ok(())
}

pub(super) fn present(value: &Value, pointer: &str) -> Result<()> {
    ensure!(value.pointer(pointer).is_some_and(|v| !v.is_null()), "no {pointer} in {}", brief(value));
    Ok(())
}

pub(super) fn text<'a>(value: &'a Value, pointer: &str) -> Result<&'a str> {
    let text = value.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    ensure!(!text.is_empty(), "no text at {pointer} in {}", brief(value));
    Ok(text)
}

pub(super) fn list<'a>(value: &'a Value, pointer: &str) -> Result<&'a Vec<Value>> {
    let list = value.pointer(pointer).and_then(Value::as_array);
    list.ok_or_else(|| anyhow::anyhow!("no list at {pointer} in {}", brief(value)))
}

/// The names of a list's items, in order.
pub(super) fn names(value: &Value) -> Result<Vec<&str>> {
    Ok(list(value, "/items")?.iter().filter_map(|item| item["metadata"]["name"].as_str()).collect())
}

pub(super) fn condition<'a>(value: &'a Value, kind: &str) -> Option<&'a Value> {
    value.pointer("/status/conditions")?.as_array()?.iter().find(|c| c["type"] == kind)
}

pub(super) fn tainted(node: &Value, key: &str, effect: &str) -> bool {
    let taints = node.pointer("/spec/taints").and_then(Value::as_array);
    taints.is_some_and(|taints| taints.iter().any(|t| t["key"] == key && t["effect"] == effect))
}

/// The resource version. It is opaque: it may be compared for equality, and is parsed here only to make a stale or
/// impossible one.
pub(super) fn rv(value: &Value) -> Result<&str> {
    text(value, "/metadata/resourceVersion")
}

pub(super) fn uid(value: &Value) -> Result<&str> {
    text(value, "/metadata/uid")
}
