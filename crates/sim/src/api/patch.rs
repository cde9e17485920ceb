//! JSON patch, merge patch and strategic merge patch.

use std::collections::VecDeque;
use std::sync::Arc;

use serde_json::Value as Plain;

use super::status::ApiError;
use crate::resource::{PRIMITIVE, Resource};
use crate::value::{Map, Value};

/// The supported content types.
pub const TYPES: &[&str] = &[JSON, MERGE, STRATEGIC];
const JSON: &str = "application/json-patch+json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";

pub fn apply(
    resource: &Resource,
    content_type: &str,
    object: &Value,
    body: &[u8],
) -> Result<Value, ApiError> {
    let malformed = |e: serde_json::Error| ApiError::bad_request(format!("error decoding patch: {e}"));
    match content_type {
        JSON => {
            let operations: Vec<Plain> = serde_json::from_slice(body).map_err(malformed)?;
            let mut patched = Plain::from(object);
            for operation in operations {
                apply_operation(&mut patched, operation).ok_or_else(ApiError::patch_failed)?;
            }
            Ok(patched.into())
        }
        MERGE => {
            let patch: serde_json::Map<String, Plain> = serde_json::from_slice(body).map_err(malformed)?;
            let mut patched = Plain::from(object);
            json_patch::merge(&mut patched, &Plain::Object(patch));
            Ok(patched.into())
        }
        STRATEGIC if !resource.is_custom() => {
            let patch: Map = serde_json::from_slice(body).map_err(malformed)?;
            let mut patched = object.clone();
            merge_value(resource, &mut patched, Value::Object(patch), "")?;
            Ok(patched)
        }
        _ if resource.is_custom() => Err(ApiError::unsupported_media_type(&[JSON, MERGE])),
        _ => Err(ApiError::unsupported_media_type(TYPES)),
    }
}

/// Applies one operation of a JSON patch as leniently as the library of the real server.
fn apply_operation(object: &mut Plain, mut operation: Plain) -> Option<()> {
    let path = operation.get("path")?.as_str()?.to_owned();
    let (parent, key) = path.rsplit_once('/').unwrap_or_default();
    let key = key.replace("~1", "/").replace("~0", "~");
    let missing = |object: &Plain| {
        object.pointer(parent).and_then(Plain::as_object).is_some_and(|parent| !parent.contains_key(&key))
    };
    match operation.get("op")?.as_str()? {
        // A missing field equals null.
        "test" if missing(object) && operation.get("value").is_none_or(Plain::is_null) => return Some(()),
        "replace" if missing(object) => operation["op"] = "add".into(),
        _ => {}
    }
    if matches!(operation["op"].as_str(), Some("add" | "replace" | "test"))
        && operation.get("value").is_none()
    {
        operation["value"] = Plain::Null;
    }
    // -1 is the last element.
    if let Some(list) = object.pointer(parent).and_then(Plain::as_array)
        && let Ok(back) = key.parse::<i64>()
        && back < 0
    {
        let index = i64::try_from(list.len()).ok()?.checked_add(back)?;
        operation["path"] = format!("{parent}/{index}").into();
    }
    let operation: json_patch::PatchOperation = serde_json::from_value(operation).ok()?;
    json_patch::patch(object, &[operation]).ok()
}

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const SET_ORDER: &str = "$setElementOrder/";
const DELETE_PRIMITIVES: &str = "$deleteFromPrimitiveList/";

fn merge_value(resource: &Resource, target: &mut Value, patch: Value, path: &str) -> Result<(), ApiError> {
    match patch {
        Value::Object(patch) => merge_object(resource, target, patch, path),
        Value::Array(patch) => merge_list(resource, target, Arc::unwrap_or_clone(patch), path),
        plain => {
            *target = plain;
            Ok(())
        }
    }
}

fn merge_object(resource: &Resource, target: &mut Value, mut patch: Map, path: &str) -> Result<(), ApiError> {
    match patch.remove(DIRECTIVE).as_ref().map(Value::as_str) {
        None | Some(Some("merge")) => {}
        Some(Some("replace")) => {
            *target = Value::Object(patch);
            return Ok(());
        }
        Some(Some("delete")) => {
            *target = Map::default().into();
            return Ok(());
        }
        Some(other) => {
            return Err(ApiError::unclassified(&format!(
                "Unknown patch type: {}",
                other.unwrap_or("not a string")
            )));
        }
    }
    let target = crate::object::map(target);
    if let Some(Value::Array(keep)) = patch.remove(RETAIN_KEYS) {
        target.retain(|key, _| keep.iter().any(|k| k == key));
    }
    let mut orders = Vec::new();
    for (key, value) in patch {
        if let Some(list) = key.strip_prefix(SET_ORDER) {
            orders.push((list.to_owned(), value));
        } else if let Some(list) = key.strip_prefix(DELETE_PRIMITIVES) {
            if let (Some(Value::Array(current)), Value::Array(gone)) = (target.get_mut(list), value) {
                Arc::make_mut(current).retain(|item| !gone.contains(item));
            }
        } else if value.is_null() {
            target.remove(&key);
        } else {
            let path = if path.is_empty() { key.to_string() } else { format!("{path}.{key}") };
            let is_new = !target.contains_key(&key);
            let slot = target.entry(&key);
            if resource.is_replaced(&path) {
                *slot = value;
                continue;
            }
            if is_new && value.is_object() {
                *slot = Map::default().into();
            }
            merge_value(resource, slot, value, &path)?;
        }
    }
    for (list, order) in orders {
        let path = if path.is_empty() { list.clone() } else { format!("{path}.{list}") };
        if let (Some(Value::Array(current)), Value::Array(order)) = (target.get_mut(&list), order) {
            put_in_order(
                Arc::<Vec<Value>>::make_mut(current),
                &order,
                resource.merge_key(&path).unwrap_or(PRIMITIVE),
            );
        }
    }
    Ok(())
}

fn merge_list(
    resource: &Resource,
    target: &mut Value,
    patch: Vec<Value>,
    path: &str,
) -> Result<(), ApiError> {
    let Some(key) = resource.merge_key(path) else {
        *target = patch.into();
        return Ok(());
    };
    let replace = |item: &Value| item.get(DIRECTIVE).is_some_and(|d| d == "replace");
    if patch.iter().any(replace) {
        *target = patch.into_iter().filter(|item| !replace(item)).collect();
        return Ok(());
    }
    if target.as_array().is_none() {
        *target = Vec::new().into();
    }
    let Some(items) = target.as_array_mut() else { return Ok(()) };
    let id_of = |item: &Value| if key == PRIMITIVE { item.clone() } else { item[key].clone() };
    let (before, named): (Vec<Value>, Vec<Value>) =
        (items.iter().map(id_of).collect(), patch.iter().map(id_of).collect());
    for mut item in patch {
        if key == PRIMITIVE {
            if !items.contains(&item) {
                items.push(item);
            }
            continue;
        }
        let Some(id) = item.get(key).cloned() else {
            return Err(ApiError::unclassified(&format!(
                "map: {item} does not contain declared merge key: {key}"
            )));
        };
        if item.get(DIRECTIVE).is_some_and(|d| d == "delete") {
            items.retain(|i| i.get(key) != Some(&id));
        } else if let Some(existing) = items.iter_mut().find(|i| i.get(key) == Some(&id)) {
            merge_value(resource, existing, item, path)?;
        } else {
            // A new element is merged too, so that its directives are not stored.
            let mut fresh = Map::default().into();
            let inner = std::mem::take(crate::object::map(&mut item));
            merge_object(resource, &mut fresh, inner, path)?;
            items.push(fresh);
        }
    }
    interleave(items, &before, &named, id_of);
    Ok(())
}

/// Orders a merged list as the real server does: elements of the patch in the order of the patch, the others in
/// theirs. One of the others precedes an element of the patch only if it did so before.
fn interleave(items: &mut Vec<Value>, before: &[Value], named: &[Value], id_of: impl Fn(&Value) -> Value) {
    let place = |list: &[Value], item: &Value| list.iter().position(|id| *id == id_of(item));
    let (mut of_patch, mut others): (VecDeque<Value>, VecDeque<Value>) =
        std::mem::take(items).into_iter().partition(|item| place(named, item).is_some());
    of_patch.make_contiguous().sort_by_key(|item| place(named, item));
    while let (Some(ours), Some(theirs)) = (of_patch.front(), others.front()) {
        let stood_before = place(before, ours).is_some_and(|o| place(before, theirs) < Some(o));
        items.extend(if stood_before { others.pop_front() } else { of_patch.pop_front() });
    }
    items.extend(of_patch);
    items.extend(others);
}

/// Applies `$setElementOrder`; elements that it does not name come last, in their order.
fn put_in_order(items: &mut [Value], order: &[Value], key: &str) {
    let id = |v: &Value| if key == PRIMITIVE { Some(v.clone()) } else { v.get(key).cloned() };
    let wanted: Vec<Option<Value>> = order.iter().map(id).collect();
    items.sort_by_key(|item| wanted.iter().position(|w| *w == id(item)).unwrap_or(usize::MAX));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::json;

    fn strategic(plural: &str, object: &Value, patch: &Value) -> Value {
        let resource = crate::resources::builtin().into_iter().find(|r| r.plural == plural).unwrap();
        apply(&resource, STRATEGIC, object, patch.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn taints_are_replaced_and_conditions_are_merged() {
        let node = json!({"spec": {"taints": [{"key": "a"}, {"key": "b"}]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Disk", "status": "False"}]}});
        let patched = strategic(
            "nodes",
            &node,
            &json!({"spec": {"taints": [{"key": "c"}]},
            "status": {"conditions": [{"type": "Ready", "status": "False"}]}}),
        );
        assert_eq!(patched["spec"]["taints"], json!([{"key": "c"}]));
        assert_eq!(
            patched["status"]["conditions"],
            json!([{"type": "Ready", "status": "False"}, {"type": "Disk", "status": "False"}])
        );
    }

    #[test]
    fn directives_delete_replace_and_order() {
        let pod = json!({"metadata": {"finalizers": ["x", "y"]}, "spec": {"containers": [
            {"name": "a", "env": [{"name": "K", "value": "1"}]}, {"name": "b"}]}});
        let patched = strategic(
            "pods",
            &pod,
            &json!({
            "metadata": {"$deleteFromPrimitiveList/finalizers": ["x"], "finalizers": ["z"]},
            "spec": {"$setElementOrder/containers": [{"name": "c"}, {"name": "a"}], "containers": [
                {"name": "b", "$patch": "delete"}, {"name": "c"}, {"name": "a", "env": [{"name": "L", "value": "2"}]}]}}),
        );
        assert_eq!(patched["metadata"]["finalizers"], json!(["z", "y"]));
        assert_eq!(
            patched["spec"]["containers"],
            json!([{"name": "c"}, {"name": "a", "env": [{"name": "L", "value": "2"}, {"name": "K", "value": "1"}]}])
        );
    }
}
