//! The namespace controller: it creates the default objects of a namespace and deletes the content of one that is
//! terminating. It also finalizes CRDs.

use std::sync::Arc;

use crate::value::{Value, json};
use tokio::time::sleep;

use super::REACTION_TIME;
use crate::cluster::Local;
use crate::object::{has_finalizer, is_deleting, items, name, namespace, set, text};
use crate::registry::CLEANUP;
use crate::store::{ANY, Change};

const DEFINITIONS: &str = "apiextensions.k8s.io/customresourcedefinitions";

pub(super) async fn run(api: Local) {
    let mut changes = api.watch(&[ANY]);
    loop {
        for space in api.all("namespaces") {
            if is_deleting(&space) { delete_content(&api, &space) } else { create_defaults(&api, &space) }
        }
        for definition in api.all(DEFINITIONS) {
            finalize_crd(&api, &definition);
        }
        while !changes.next().await.iter().any(|change| concerns(change)) {}
        sleep(REACTION_TIME).await;
        changes.drain();
    }
}

/// Whether a change may let a namespace or a CRD be finalized.
fn concerns(change: &Change) -> bool {
    change.after.is_none() || matches!(change.collection.as_str(), "namespaces" | DEFINITIONS)
}

fn all_collections(api: &Local) -> Vec<String> {
    api.cluster().state().resources().filter(|r| !r.is_view()).map(|r| r.collection().to_owned()).collect()
}

fn create_defaults(api: &Local, space: &Value) {
    let home = name(space);
    if api.get("serviceaccounts", home, "default").is_none() {
        let _ = api.create("v1", "ServiceAccount", home, json!({"metadata": {"name": "default"}}));
    }
    if api.get("configmaps", home, "kube-root-ca.crt").is_none() {
        let map = json!({"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": ""}});
        let _ = api.create("v1", "ConfigMap", home, map);
    }
}

fn delete_content(api: &Local, space: &Value) {
    let content: Vec<Arc<Value>> = all_collections(api)
        .iter()
        .flat_map(|collection| api.all(collection))
        .filter(|object| namespace(object) == name(space))
        .collect();
    for object in content.iter().filter(|o| !is_deleting(o)) {
        let _ = api.delete(object, None);
    }
    // Pods of dead kubelets block a real namespace too.
    if content.is_empty() {
        let _ = api.change(space, Some("finalize"), |space| set(space, "spec.finalizers", json!([])));
    }
}

fn finalize_crd(api: &Local, definition: &Value) {
    if !is_deleting(definition) {
        return;
    }
    let collection = format!("{}/{}", text(definition, "spec.group"), text(definition, "spec.names.plural"));
    let objects = api.all(&collection);
    for object in objects.iter().filter(|o| !is_deleting(o)) {
        let _ = api.delete(object, None);
    }
    if objects.is_empty() && has_finalizer(definition, CLEANUP) {
        let _ = api.change(definition, None, |d| {
            let kept: Vec<Value> =
                items(d, "metadata.finalizers").iter().filter(|f| *f != CLEANUP).cloned().collect();
            set(d, "metadata.finalizers", json!(kept));
        });
    }
}
