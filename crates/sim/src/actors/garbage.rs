//! The garbage collector: it deletes objects whose owners are gone, and completes orphaning and foreground deletion.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::value::{Value, json};
use tokio::time::sleep;

use super::REACTION_TIME;
use crate::api::{DeleteOptions, Propagation};
use crate::cluster::Local;
use crate::object::{self, has_finalizer, is_deleting, is_true, items, name, namespace, set, text, uid};
use crate::store::{ANY, Change};

const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";

pub(super) async fn run(api: Local) {
    let mut changes = api.watch(&[ANY]);
    loop {
        let mut news = changes.next().await;
        sleep(REACTION_TIME).await;
        news.extend(changes.drain());
        process_changes(&api, &news);
    }
}

/// Processes the objects that the changes concern.
fn process_changes(api: &Local, changes: &[Arc<Change>]) {
    let mut pending: Vec<Arc<Value>> = Vec::new();
    let mut owners_gone = BTreeSet::new();
    for change in changes {
        match (&change.before, &change.after) {
            (Some(before), None) => {
                owners_gone.insert(uid(before).to_owned());
            }
            (before, Some(after)) => {
                let owners = object::at(after, "metadata.ownerReferences");
                let owned_before = before.as_ref().and_then(|b| object::at(b, "metadata.ownerReferences"));
                let adopted = owners.is_some() && owned_before != owners;
                let going =
                    is_deleting(after) && (has_finalizer(after, FOREGROUND) || has_finalizer(after, ORPHAN));
                if adopted || going {
                    pending.push(after.clone());
                }
            }
            (None, None) => {}
        }
    }
    if !owners_gone.is_empty() {
        pending
            .extend(all_objects(api).into_iter().filter(|o| owner_uids(o).any(|u| owners_gone.contains(u))));
        // A foreground deletion waits for its last dependent.
        pending
            .extend(all_objects(api).into_iter().filter(|o| is_deleting(o) && has_finalizer(o, FOREGROUND)));
    }
    for object in pending {
        process(api, &object);
    }
}

fn all_objects(api: &Local) -> Vec<Arc<Value>> {
    let state = api.cluster().state();
    let collections: Vec<String> = state.store.collections().cloned().collect();
    collections.iter().flat_map(|c| state.store.all(c).map(|(_, o)| o.clone()).collect::<Vec<_>>()).collect()
}

fn owner_uids(object: &Value) -> impl Iterator<Item = &str> {
    items(object, "metadata.ownerReferences").iter().map(|r| text(r, "uid"))
}

fn dependents(api: &Local, owner: &Value) -> Vec<Arc<Value>> {
    let id = uid(owner);
    all_objects(api).into_iter().filter(|o| owner_uids(o).any(|u| u == id)).collect()
}

fn process(api: &Local, stale: &Value) {
    let Some(object) = current(api, stale) else { return };
    if is_deleting(&object) && has_finalizer(&object, ORPHAN) {
        for dependent in dependents(api, &object) {
            forget_owners(api, &dependent, &[uid(&object).to_owned()]);
        }
        return drop_finalizer(api, &object, ORPHAN);
    }
    if is_deleting(&object) && has_finalizer(&object, FOREGROUND) {
        return delete_dependents_first(api, &object);
    }
    let references = items(&object, "metadata.ownerReferences");
    let (there, gone): (Vec<&Value>, Vec<&Value>) =
        references.iter().partition(|r| owner_exists(api, r, &object));
    if gone.is_empty() {
        return;
    }
    if !there.is_empty() {
        let gone: Vec<String> = gone.iter().map(|r| text(r, "uid").to_owned()).collect();
        forget_owners(api, &object, &gone);
    } else if !is_deleting(&object) {
        delete(api, &object, Propagation::Background);
    }
}

fn delete_dependents_first(api: &Local, owner: &Value) {
    let all = dependents(api, owner);
    let id = uid(owner);
    let blocks = |o: &&Arc<Value>| {
        items(o, "metadata.ownerReferences")
            .iter()
            .any(|r| text(r, "uid") == id && is_true(r, "blockOwnerDeletion"))
    };
    if all.iter().find(blocks).is_none() {
        return drop_finalizer(api, owner, FOREGROUND);
    }
    for dependent in all.iter().filter(|d| !is_deleting(d)) {
        let others = items(dependent, "metadata.ownerReferences").iter().filter(|r| text(r, "uid") != id);
        let has_another = others.into_iter().any(|r| owner_exists(api, r, dependent));
        if has_another {
            forget_owners(api, dependent, &[id.to_owned()]);
        } else {
            delete(api, dependent, Propagation::Foreground);
        }
    }
}

fn current(api: &Local, object: &Value) -> Option<Arc<Value>> {
    let state = api.cluster().state();
    let resource = state.resource_of(text(object, "apiVersion"), text(object, "kind"))?;
    let found = state.get(&resource, namespace(object), name(object)).ok()?;
    (uid(&found) == uid(object)).then_some(found)
}

/// An owner of an unknown kind counts as present, as for the real collector, which retries.
fn owner_exists(api: &Local, reference: &Value, dependent: &Value) -> bool {
    let state = api.cluster().state();
    let Some(resource) = state.resource_of(text(reference, "apiVersion"), text(reference, "kind")) else {
        return true;
    };
    let home = if resource.namespaced { namespace(dependent) } else { "" };
    let found = state.get(&resource, home, text(reference, "name"));
    found.is_ok_and(|owner| uid(&owner) == text(reference, "uid"))
}

fn delete(api: &Local, object: &Value, propagation: Propagation) {
    let cluster = api.cluster();
    let caller = crate::api::Caller::new("generic-garbage-collector", cluster.clock().now());
    let mut state = cluster.state();
    let Some(resource) = state.resource_of(text(object, "apiVersion"), text(object, "kind")) else {
        return;
    };
    let options = DeleteOptions {
        uid: Some(uid(object).to_owned()),
        propagation: Some(propagation),
        ..DeleteOptions::default()
    };
    // The object may be gone or replaced already.
    let _ = state.delete(&resource, (namespace(object), name(object)), &options, &caller);
}

fn forget_owners(api: &Local, object: &Value, owners: &[String]) {
    let forget = |object: &mut Value| {
        let kept: Vec<Value> = items(object, "metadata.ownerReferences")
            .iter()
            .filter(|r| !owners.iter().any(|o| o == text(r, "uid")))
            .cloned()
            .collect();
        if kept.is_empty() {
            object::take(object, "metadata.ownerReferences");
        } else {
            set(object, "metadata.ownerReferences", json!(kept));
        }
    };
    let _ = api.change(object, None, forget);
}

fn drop_finalizer(api: &Local, object: &Value, finalizer: &str) {
    let drop = |object: &mut Value| {
        let kept: Vec<Value> =
            items(object, "metadata.finalizers").iter().filter(|f| *f != finalizer).cloned().collect();
        set(object, "metadata.finalizers", json!(kept));
    };
    let _ = api.change(object, None, drop);
}
