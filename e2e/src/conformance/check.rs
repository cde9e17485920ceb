//! Assertions on JSON by pointer, whose failure says what was there instead.

use anyhow::{Result, ensure};
use serde_json::Value;

use super::http::brief;

/// The value at `pointer` equals `want`.
pub(super) fn is(value: &Value, pointer: &str, want: impl Into<Value>) -> Result<()> {
    let want = want.into();
    let got = value.pointer(pointer).unwrap_or(&Value::Null);
    ensure!(*got == want, "{pointer} is {got}, wanted {want}, in {}", brief(value));
    Ok(())
}

/// There is nothing at `pointer`.
pub(super) fn absent(value: &Value, pointer: &str) -> Result<()> {
    let got = value.pointer(pointer);
    ensure!(got.is_none(), "{pointer} is {}, wanted it absent", got.unwrap_or(&Value::Null));
    Ok(())
}

/// There is something other than null at `pointer`.
pub(super) fn present(value: &Value, pointer: &str) -> Result<()> {
    ensure!(value.pointer(pointer).is_some_and(|v| !v.is_null()), "no {pointer} in {}", brief(value));
    Ok(())
}

/// The non-empty string at `pointer`.
pub(super) fn text<'a>(value: &'a Value, pointer: &str) -> Result<&'a str> {
    let text = value.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    ensure!(!text.is_empty(), "no text at {pointer} in {}", brief(value));
    Ok(text)
}

/// The array at `pointer`.
pub(super) fn list<'a>(value: &'a Value, pointer: &str) -> Result<&'a Vec<Value>> {
    let list = value.pointer(pointer).and_then(Value::as_array);
    list.ok_or_else(|| anyhow::anyhow!("no list at {pointer} in {}", brief(value)))
}

/// The names of a list's items, in order.
pub(super) fn names(value: &Value) -> Result<Vec<&str>> {
    Ok(list(value, "/items")?.iter().filter_map(|item| item["metadata"]["name"].as_str()).collect())
}

/// The condition of a type.
pub(super) fn condition<'a>(value: &'a Value, kind: &str) -> Option<&'a Value> {
    value.pointer("/status/conditions")?.as_array()?.iter().find(|c| c["type"] == kind)
}

/// Whether a Node has a taint of this key and effect.
pub(super) fn tainted(node: &Value, key: &str, effect: &str) -> bool {
    let taints = node.pointer("/spec/taints").and_then(Value::as_array);
    taints.is_some_and(|taints| taints.iter().any(|t| t["key"] == key && t["effect"] == effect))
}

/// The resource version, which is opaque: it may be compared for equality, and parsed here only to be made stale or
/// impossible.
pub(super) fn rv(value: &Value) -> Result<&str> {
    text(value, "/metadata/resourceVersion")
}

/// The uid.
pub(super) fn uid(value: &Value) -> Result<&str> {
    text(value, "/metadata/uid")
}
