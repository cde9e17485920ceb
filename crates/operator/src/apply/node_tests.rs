use jiff::Timestamp;
use nodekeeper_core::api::{GateTaint, NodeGateSpec};
use nodekeeper_core::report::Verdict;

use super::*;

fn object() -> Value {
    json!({
        "metadata": {"name": "n", "uid": "u", "resourceVersion": "7", "labels": {"a/b": "c"}},
        "spec": {"taints": [
            {"key": "first", "effect": "NoSchedule"},
            {"key": "ours/a", "effect": "NoSchedule", "value": "true"},
            {"key": "ours/a", "effect": "NoExecute"},
            {"key": "foreign", "effect": "NoSchedule"},
            {"key": "ours/b", "effect": "NoSchedule"},
            {"key": "last", "effect": "NoExecute"},
        ]},
        "status": {"nodeInfo": {"bootID": "boot"}},
    })
}

fn view(object: &Value) -> NodeView {
    let mut object = object.clone();
    for field in [
        "machineID",
        "systemUUID",
        "kernelVersion",
        "osImage",
        "containerRuntimeVersion",
        "kubeletVersion",
        "kubeProxyVersion",
        "operatingSystem",
        "architecture",
    ] {
        object["status"]["nodeInfo"][field] = json!("");
    }
    NodeView::new(&serde_json::from_value(object).expect("a node"))
}

fn gate() -> GateView {
    let taint = |key: &str| GateTaint { key: key.into(), ..GateTaint::default() };
    let spec = NodeGateSpec { taints: vec![taint("ours/b"), taint("ours/a")], ..NodeGateSpec::default() };
    GateView {
        name: "g".into(),
        uid: "g".into(),
        resource_version: String::new(),
        generation: 1,
        created: Timestamp::UNIX_EPOCH,
        deleting: false,
        last_applied: None,
        spec,
        status: nodekeeper_core::api::NodeGateStatus::default(),
    }
}

fn record() -> Record {
    Record { uid: "u".into(), number: 1, verdict: Some(Verdict::Passed), ..Record::default() }
}

/// Applies a patch as the API server does.
fn patched(object: &Value, operations: &[Value]) -> Result<Value, json_patch::PatchError> {
    let patch: json_patch::Patch = serde_json::from_value(json!(operations)).expect("a patch");
    let mut object = object.clone();
    json_patch::patch(&mut object, &patch).map(|()| object)
}

fn keys(object: &Value) -> Vec<(&str, &str)> {
    let taints = object["spec"]["taints"].as_array().expect("a list").iter();
    taints
        .map(|taint| (taint["key"].as_str().unwrap_or(""), taint["effect"].as_str().unwrap_or("")))
        .collect()
}

#[test]
fn f03_only_our_taints_are_removed() {
    let verified =
        patched(&object(), &remove_taint(&view(&object()), &gate(), &record())).expect("it applies");
    let left =
        [("first", "NoSchedule"), ("ours/a", "NoExecute"), ("foreign", "NoSchedule"), ("last", "NoExecute")];
    assert_eq!(keys(&verified), left);
    assert_eq!(verified["metadata"]["labels"], json!({"a/b": "c", "node-ready/verified": "true"}));
    assert_eq!(verified["metadata"]["annotations"][record::ANNOTATION], json!(record().to_annotation()));
}

#[test]
fn g14_a_node_that_an_audit_admits_gets_no_label() {
    let mut patch = without_taints(&view(&object()), &gate());
    patch.extend(record_operations(&view(&object()), &record()));
    let admitted = patched(&object(), &patch).expect("it applies");
    assert!(!keys(&admitted).contains(&("ours/b", "NoSchedule")));
    assert_eq!(admitted["metadata"]["labels"], json!({"a/b": "c"}));
}

#[test]
fn g08_a_withheld_label_is_not_set() {
    let withheld = Record { unlabelled: true, ..record() };
    let opened = patched(&object(), &remove_taint(&view(&object()), &gate(), &withheld)).expect("it applies");
    assert!(!keys(&opened).contains(&("ours/b", "NoSchedule")));
    assert_eq!(opened["metadata"]["labels"], json!({"a/b": "c"}));
}

#[test]
fn f03_a_changed_taint_list_is_a_conflict() {
    let decided = remove_taint(&view(&object()), &gate(), &record());
    for change in [
        (|node: &mut Value| drop(node["spec"]["taints"].as_array_mut().expect("a list").remove(0)))
            as fn(&mut Value),
        |node| {
            node["spec"]["taints"]
                .as_array_mut()
                .expect("a list")
                .insert(0, json!({"key": "new", "effect": "NoSchedule"}));
        },
        |node| node["spec"]["taints"][4]["effect"] = json!("NoExecute"),
        |node| node["metadata"]["uid"] = json!("reborn"),
        |node| node["status"]["nodeInfo"]["bootID"] = json!("rebooted"),
    ] {
        let mut node = object();
        change(&mut node);
        assert!(patched(&node, &decided).is_err(), "{node}");
    }
}

#[test]
fn a_foreign_taint_added_at_the_end_is_kept() {
    let mut node = object();
    // With a record, so that only the positions of our taints are tested.
    node["metadata"]["annotations"] = json!({record::ANNOTATION: "{}"});
    let decided = remove_taint(&view(&node), &gate(), &record());
    node["metadata"]["resourceVersion"] = json!("8");
    node["spec"]["taints"]
        .as_array_mut()
        .expect("a list")
        .push(json!({"key": "late", "effect": "NoSchedule"}));
    let verified = patched(&node, &decided).expect("it applies");
    assert!(
        keys(&verified).contains(&("late", "NoSchedule"))
            && !keys(&verified).contains(&("ours/b", "NoSchedule"))
    );
}

#[test]
fn a_record_replaces_only_the_one_it_was_made_from() {
    for annotations in [json!(null), json!({"other": "x"}), json!({record::ANNOTATION: "old", "other": "x"})]
    {
        let mut node = object();
        if !annotations.is_null() {
            node["metadata"]["annotations"] = annotations.clone();
        }
        let decided = patch_record(&view(&node), &record());
        let written = patched(&node, &decided).expect("it applies");
        assert_eq!(written["metadata"]["annotations"][record::ANNOTATION], json!(record().to_annotation()));
        assert_eq!(written["metadata"]["annotations"]["other"], annotations["other"]);
        // Another writer was first, which changes the resourceVersion too.
        node["metadata"]["annotations"] = json!({record::ANNOTATION: "newer"});
        node["metadata"]["resourceVersion"] = json!("8");
        assert!(patched(&node, &decided).is_err(), "{annotations}");
    }
}

#[test]
fn the_first_label_of_a_node_is_guarded() {
    let mut node = object();
    node["metadata"].as_object_mut().expect("metadata").remove("labels");
    let decided = remove_taint(&view(&node), &gate(), &record());
    let verified = patched(&node, &decided).expect("it applies");
    assert_eq!(verified["metadata"]["labels"], json!({"node-ready/verified": "true"}));
    node["metadata"]["labels"] = json!({"foreign": "x"});
    node["metadata"]["resourceVersion"] = json!("8");
    assert!(patched(&node, &decided).is_err(), "it would remove the label that was added meanwhile");
}
