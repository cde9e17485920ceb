//! Reading and changing objects as JSON, the way the API server and its controllers look at them.

use serde_json::{Map, Value, json};

/// The value at a dotted path such as `spec.nodeName`.
#[must_use]
pub fn at<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
    path.split('.').try_fold(value, |v, key| v.get(key))
}

/// The string at a dotted path; the empty string where there is none.
#[must_use]
pub fn text<'v>(value: &'v Value, path: &str) -> &'v str {
    at(value, path).and_then(Value::as_str).unwrap_or_default()
}

/// The number at a dotted path.
#[must_use]
pub fn number(value: &Value, path: &str) -> Option<i64> {
    at(value, path).and_then(Value::as_i64)
}

/// The list at a dotted path; empty where there is none.
#[must_use]
pub fn items<'v>(value: &'v Value, path: &str) -> &'v [Value] {
    at(value, path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Whether the value at a dotted path is `true`.
#[must_use]
pub fn is_true(value: &Value, path: &str) -> bool {
    at(value, path).and_then(Value::as_bool) == Some(true)
}

/// Sets the value at a dotted path, making objects on the way.
pub fn set(value: &mut Value, path: &str, new: Value) {
    let mut here = value;
    for key in path.split('.') {
        // Mostly there: `entry` would want a key of its own just to look.
        if here.get(key).is_none() {
            map(here).insert(key.to_owned(), Value::Null);
        }
        here = &mut here[key];
    }
    *here = new;
}

/// Sets the value at a dotted path unless there is one.
pub fn default(value: &mut Value, path: &str, new: Value) {
    if at(value, path).is_none_or(Value::is_null) {
        set(value, path, new);
    }
}

/// Removes the value at a dotted path and gives it back.
pub fn take(value: &mut Value, path: &str) -> Option<Value> {
    let (parent, key) = path.rsplit_once('.').map_or((None, path), |(p, k)| (Some(p), k));
    let holder = match parent {
        Some(parent) => parent.split('.').try_fold(value, |v, k| v.get_mut(k))?,
        None => value,
    };
    holder.as_object_mut()?.remove(key)
}

/// Copies a path from one object to another: set where the source has it, removed where it has not.
pub fn copy(from: &Value, to: &mut Value, path: &str) {
    match at(from, path) {
        // To compare is cheaper than to copy, and mostly nothing has changed.
        Some(v) if at(to, path) == Some(v) => {}
        Some(v) => set(to, path, v.clone()),
        None => drop(take(to, path)),
    }
}

/// The value as an object; anything else is replaced by an empty one.
pub fn map(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = json!({});
    }
    match value {
        Value::Object(map) => map,
        _ => unreachable!("it was made an object above"),
    }
}

/// `metadata.name`.
#[must_use]
pub fn name(object: &Value) -> &str {
    text(object, "metadata.name")
}

/// `metadata.namespace`; empty for cluster-scoped objects.
#[must_use]
pub fn namespace(object: &Value) -> &str {
    text(object, "metadata.namespace")
}

/// `metadata.uid`.
#[must_use]
pub fn uid(object: &Value) -> &str {
    text(object, "metadata.uid")
}

/// Whether the object has a deletion timestamp.
#[must_use]
pub fn is_deleting(object: &Value) -> bool {
    at(object, "metadata.deletionTimestamp").is_some_and(|v| !v.is_null())
}

/// Whether a finalizer of this name holds the object.
#[must_use]
pub fn has_finalizer(object: &Value, finalizer: &str) -> bool {
    items(object, "metadata.finalizers").iter().any(|f| f == finalizer)
}

/// The condition of this type in `status.conditions`.
#[must_use]
pub fn condition<'v>(object: &'v Value, kind: &str) -> Option<&'v Value> {
    items(object, "status.conditions").iter().find(|c| text(c, "type") == kind)
}

/// The status (`True`, `False`, `Unknown`) of a condition; empty where there is none.
#[must_use]
pub fn condition_status<'v>(object: &'v Value, kind: &str) -> &'v str {
    condition(object, kind).map_or("", |c| text(c, "status"))
}

/// Puts a condition in place of the one of its type, keeping the transition time where the status stays.
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
    set(object, "status.conditions", Value::Array(all));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_can_be_set_read_copied_and_taken() {
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
    fn a_condition_keeps_its_transition_time_while_its_status_stays() {
        let mut node = json!({});
        set_condition(&mut node, json!({"type": "Ready", "status": "True"}), "t1");
        set_condition(&mut node, json!({"type": "Ready", "status": "True", "reason": "Again"}), "t2");
        assert_eq!(text(condition(&node, "Ready").unwrap(), "lastTransitionTime"), "t1");
        set_condition(&mut node, json!({"type": "Ready", "status": "False"}), "t3");
        assert_eq!(text(condition(&node, "Ready").unwrap(), "lastTransitionTime"), "t3");
        assert_eq!(items(&node, "status.conditions").len(), 1);
    }
}
