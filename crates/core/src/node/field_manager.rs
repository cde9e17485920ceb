//! Who wrote the taints of a node.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;

/// The field manager that wrote the taints last. Taints are one list, so that it has one writer at a time.
#[must_use]
pub fn taints_manager(entries: &[ManagedFieldsEntry]) -> Option<&str> {
    let wrote_taints = |entry: &&ManagedFieldsEntry| {
        entry.fields_v1.as_ref().is_some_and(|fields| fields.0["f:spec"].get("f:taints").is_some())
    };
    let last =
        entries.iter().filter(wrote_taints).max_by_key(|entry| entry.time.as_ref().map(|time| time.0))?;
    last.manager.as_deref()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn g03_the_last_writer_of_the_taints_is_named() {
        let entry = |manager: &str, time: &str, fields| -> ManagedFieldsEntry {
            serde_json::from_value(json!({"manager": manager, "time": time, "fieldsV1": fields}))
                .expect("an entry")
        };
        let taints = json!({"f:spec": {"f:taints": {}}});
        let entries = [
            entry("kubelet", "2026-01-01T00:00:03Z", json!({"f:status": {}})),
            entry("nodelink-controller", "2026-01-01T00:00:02Z", taints.clone()),
            entry("kubectl-taint", "2026-01-01T00:00:01Z", taints),
        ];
        assert_eq!(taints_manager(&entries), Some("nodelink-controller"));
        assert_eq!(taints_manager(&entries[..1]), None);
    }
}
