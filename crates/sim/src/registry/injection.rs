//! A stand-in for webhooks that add containers to pods, such as those of a service mesh.

use super::{AdmissionContext, pod_spec};
use crate::object::{items, namespace, set};
use crate::value::{Value, json};

/// Pods of a namespace with this label get a container; its value is one of [`INJECTED`].
pub const LABEL: &str = "injection.example.com/container";

/// The containers by name: the list that they are added to, their command, and whether they are restarted when they end.
pub const INJECTED: [(&str, &str, &str, bool); 6] = [
    ("init", "initContainers", "sleep 1", false),
    ("failing-init", "initContainers", "false", false),
    ("sidecar", "containers", "serve", false),
    ("crashing-sidecar", "containers", "exit 1", false),
    ("native-sidecar", "initContainers", "serve", true),
    ("crashing-native-sidecar", "initContainers", "false", true),
];

pub fn inject(pod: &mut Value, ctx: &AdmissionContext<'_>) {
    let Some(of) = ctx.store.get("namespaces", namespace(pod)) else { return };
    let wanted = of["metadata"]["labels"].get(LABEL).and_then(Value::as_str).unwrap_or_default();
    let Some((name, list, command, restarts)) = INJECTED.iter().find(|(name, ..)| *name == wanted) else {
        return;
    };
    let command: Vec<&str> = command.split(' ').collect();
    let mut container = json!({"name": name, "image": "mesh.example.com/proxy:1", "command": command});
    if *restarts {
        container["restartPolicy"] = json!("Always");
    }
    let mut all = items(pod, &format!("spec.{list}")).to_vec();
    // Injectors put theirs first: nobody may take the first container for the pod's own.
    all.insert(0, container);
    set(pod, &format!("spec.{list}"), json!(all));
    pod_spec::default(pod, "spec");
}
