//! Access to objects as JSON.

use crate::value::{Map, Value, json};

/// The value at a dotted path such as `spec.nodeName`.
#[must_use]
pub fn at<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
    let (mut here, mut rest) = (value, path);
    while let Some(dot) = rest.bytes().position(|byte| byte == b'.') {
        here = here.get(&rest[..dot])?;
        rest = &rest[dot + 1..];
    }
    here.get(rest)
}

/// The string at a dotted path; empty if it is missing.
#[must_use]
pub fn text<'v>(value: &'v Value, path: &str) -> &'v str {
    at(value, path).and_then(Value::as_str).unwrap_or_default()
}

#[must_use]
pub fn number(value: &Value, path: &str) -> Option<i64> {
    at(value, path).and_then(Value::as_i64)
}

/// The list at a dotted path; empty if it is missing.
#[must_use]
pub fn items<'v>(value: &'v Value, path: &str) -> &'v [Value] {
    at(value, path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

#[must_use]
pub fn is_true(value: &Value, path: &str) -> bool {
    at(value, path).and_then(Value::as_bool) == Some(true)
}

/// Sets the value at a dotted path and creates missing parents. An equal value is left, so that it stays shared.
pub fn set(value: &mut Value, path: &str, new: Value) {
    if at(value, path) == Some(&new) {
        return;
    }
    let mut here = value;
    for key in path.split('.') {
        here = map(here).entry(key);
    }
    *here = new;
}

/// Sets the value at a dotted path if it is missing or null.
pub fn default(value: &mut Value, path: &str, new: Value) {
    if at(value, path).is_none_or(Value::is_null) {
        set(value, path, new);
    }
}

/// Removes and returns the value at a dotted path.
pub fn take(value: &mut Value, path: &str) -> Option<Value> {
    at(value, path)?;
    let (parent, key) = path.rsplit_once('.').map_or((None, path), |(p, k)| (Some(p), k));
    let holder = match parent {
        Some(parent) => parent.split('.').try_fold(value, |v, k| v.get_mut(k))?,
        None => value,
    };
    holder.as_object_mut()?.remove(key)
}

/// Copies the value at a path to another object, or removes it there if it is missing.
pub fn copy(from: &Value, to: &mut Value, path: &str) {
    match at(from, path) {
        // Comparing is cheaper than cloning, and most values are equal.
        Some(v) if at(to, path) == Some(v) => {}
        Some(v) => set(to, path, v.clone()),
        None => drop(take(to, path)),
    }
}

/// The value as an object; any other value is replaced by an empty one.
pub fn map(value: &mut Value) -> &mut Map {
    if !value.is_object() {
        *value = json!({});
    }
    match value {
        Value::Object(map) => map,
        _ => unreachable!("it was replaced by an object above"),
    }
}

#[must_use]
pub fn name(object: &Value) -> &str {
    text(object, "metadata.name")
}

/// Empty for cluster-scoped objects.
#[must_use]
pub fn namespace(object: &Value) -> &str {
    text(object, "metadata.namespace")
}

#[must_use]
pub fn uid(object: &Value) -> &str {
    text(object, "metadata.uid")
}

#[must_use]
pub fn is_deleting(object: &Value) -> bool {
    at(object, "metadata.deletionTimestamp").is_some_and(|v| !v.is_null())
}

#[must_use]
pub fn has_finalizer(object: &Value, finalizer: &str) -> bool {
    items(object, "metadata.finalizers").iter().any(|f| f == finalizer)
}

#[must_use]
pub fn condition<'v>(object: &'v Value, kind: &str) -> Option<&'v Value> {
    items(object, "status.conditions").iter().find(|c| text(c, "type") == kind)
}

/// `True`, `False` or `Unknown`; empty if the condition is missing.
#[must_use]
pub fn condition_status<'v>(object: &'v Value, kind: &str) -> &'v str {
    condition(object, kind).map_or("", |c| text(c, "status"))
}

/// Replaces the condition of its type and keeps `lastTransitionTime` while the status does not change.
pub fn set_condition(object: &mut Value, mut new: Value, now: &str) {
    let kind = text(&new, "type").to_owned();
    let same = condition(object, &kind).filter(|old| text(old, "status") == text(&new, "status"));
    let since = same.map_or(now, |old| text(old, "lastTransitionTime")).to_owned();
    set(&mut new, "lastTransitionTime", json!(since));
    let mut all = items(object, "status.conditions").to_vec();
    match all.iter_mut().find(|c| text(c, "type") == kind) {
        Some(old) => *old = new,
        None => all.push(new),
    }
    set(object, "status.conditions", all.into());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dotted_path_is_set_read_copied_and_removed() {
        let mut object = json!({"metadata": {"name": "a"}});
        set(&mut object, "spec.nodeName", json!("n1"));
        assert_eq!(text(&object, "spec.nodeName"), "n1");
        let mut other = json!({"spec": {"nodeName": "n2", "x": 1}});
        copy(&object, &mut other, "spec.nodeName");
        copy(&object, &mut other, "spec.x");
        assert_eq!(other, json!({"spec": {"nodeName": "n1"}}));
        assert_eq!(take(&mut other, "spec.nodeName"), Some(json!("n1")));
        assert_eq!(take(&mut other, "status.phase"), None);
    }

    #[test]
    fn transition_time_changes_only_with_the_status() {
        let mut node = json!({});
        set_condition(&mut node, json!({"type": "Ready", "status": "True"}), "t1");
        set_condition(&mut node, json!({"type": "Ready", "status": "True", "reason": "Again"}), "t2");
        assert_eq!(text(condition(&node, "Ready").unwrap(), "lastTransitionTime"), "t1");
        set_condition(&mut node, json!({"type": "Ready", "status": "False"}), "t3");
        assert_eq!(text(condition(&node, "Ready").unwrap(), "lastTransitionTime"), "t3");
        assert_eq!(items(&node, "status.conditions").len(), 1);
    }
}
