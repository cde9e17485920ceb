//! What others do to the namespace of the workers: webhooks that add containers, quotas.

use nodekeeper_sim::cluster::Local;
use nodekeeper_sim::registry::injection::{INJECTED, LABEL};
use nodekeeper_sim::value::json;

use super::NAMESPACE;

/// Lets a webhook add a container to every new worker, or ends that.
pub fn toggle_injection(user: &Local, random: &mut fastrand::Rng) -> Option<&'static str> {
    let namespace = user.get("namespaces", "", NAMESPACE)?;
    if namespace["metadata"]["labels"].get(LABEL).is_some() {
        return set_injection(user, None).then_some("injection of containers ends");
    }
    let (container, ..) = INJECTED[random.usize(..INJECTED.len())];
    set_injection(user, Some(container)).then_some(match container {
        "init" => "injected init container",
        "failing-init" => "injected init container that fails",
        "sidecar" => "injected sidecar",
        "crashing-sidecar" => "injected sidecar that crashes",
        "native-sidecar" => "injected native sidecar",
        _ => "injected native sidecar that crashes",
    })
}

/// Limits the workers to two by a quota, or ends that.
pub fn toggle_quota(user: &Local) -> Option<&'static str> {
    if let Some(quota) = user.get("resourcequotas", NAMESPACE, "few") {
        return user.delete(&quota, None).ok().map(|_| "quota of workers deleted");
    }
    let quota = json!({"metadata": {"name": "few"}, "spec": {"hard": {"pods": "2"}}});
    user.create("v1", "ResourceQuota", NAMESPACE, quota).ok().map(|_| "quota of two workers")
}

pub fn heal(user: &Local) {
    for quota in user.all("resourcequotas") {
        user.delete(&quota, None).expect("it is there");
    }
    assert!(set_injection(user, None), "no other user writes");
}

fn set_injection(user: &Local, container: Option<&str>) -> bool {
    let Some(namespace) = user.get("namespaces", "", NAMESPACE) else { return false };
    let mut labels = namespace["metadata"]["labels"].as_object().cloned().unwrap_or_default();
    labels.remove(LABEL);
    let mut labels = json!(labels);
    if let Some(container) = container {
        labels[LABEL] = json!(container);
    }
    user.change(&namespace, None, |namespace| namespace["metadata"]["labels"] = labels).is_ok()
}
