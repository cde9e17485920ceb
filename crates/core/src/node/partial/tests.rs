//! A node that is read in part is the same as one that was read as a whole.

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use super::*;
use crate::labels::NodeTexts;
use crate::node::NodeView;

const UID: &str = "0b6f6f1c-52b5-4f0e-9d3a-0b6f6f1c9d11";
const RECORD: &str = r#"{"uid":"0b6f6f1c-52b5-4f0e-9d3a-0b6f6f1c9d11","number":3,"round":{"bootId":"b","gateUid":"g","gateGeneration":2},"workers":2,"attempts":1,"verdict":"Failed","why":"dns","at":"2026-11-15T12:00:00Z","label":"l","taint":"t"}"#;

/// Reads the text in part and as a whole, and returns the view if it can be read as a whole.
fn read(text: &str) -> Option<NodeView> {
    let whole: Node = serde_json::from_str(text).ok()?;
    let part: PartialNode = serde_json::from_str(text).expect("the part can be read where the whole can be");
    assert_eq!(part.metadata.name, whole.metadata.name);
    assert_eq!(part.metadata.resource_version, whole.metadata.resource_version);
    let mut texts = NodeTexts::default();
    let labels = whole.metadata.labels.iter().flat_map(|labels| labels.keys().map(String::as_str));
    let conditions = whole.status.iter().flat_map(|status| status.conditions.iter().flatten());
    texts.wanted =
        labels.chain(conditions.map(|condition| condition.type_.as_str())).map(Into::into).collect();
    let view = NodeView::trimmed(&part, &mut texts);
    assert_eq!(view, NodeView::trimmed(&PartialNode::from(&whole), &mut texts), "{text}");
    // All that it has is wanted here.
    assert_eq!(view, NodeView::new(&whole), "{text}");
    Some(view)
}

fn keys() -> Vec<&'static str> {
    vec!["zone", "a/b", "é\"\\\n", "", "Ready", NETWORK_VERIFIED, "Other"]
}

#[test]
fn a_node_is_read_with_all_that_a_view_needs() {
    let labels = json!({"zone": "a", "a/b": "c"});
    let annotations = json!({"other": "x", "nodekeeper.dev/record": RECORD, "nodekeeper.dev/verify": "now",
        "nodekeeper.dev/cordoned-for": "r"});
    let conditions = json!([
        {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": "2026-11-15T12:00:00Z"},
        {"type": NETWORK_VERIFIED, "status": "False", "reason": "Failed"},
        {"type": NETWORK_VERIFIED, "status": "True", "reason": "Second"},
    ]);
    let node = json!({
        "kind": "Node", "apiVersion": "v1",
        "metadata": {"name": "n", "uid": UID, "resourceVersion": "77", "creationTimestamp": "2026-11-01T08:00:00Z",
            "deletionTimestamp": "2026-11-02T08:00:00Z", "labels": labels, "annotations": annotations,
            "managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {}}}]},
        "spec": {"unschedulable": true, "taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}, {"key": "l", "effect": ""}]},
        "status": {"conditions": conditions, "nodeInfo": {"bootID": "boot", "kernelVersion": "6"}, "images": [{"names": ["x"]}]},
    });
    let view = read(&node.to_string()).expect("it is a node");
    let record = view.record.as_deref().expect("it has a record");
    assert_eq!((&*view.name, view.resource_version, view.created.as_second()), ("n", 77, 1_793_520_000));
    assert!(view.uid == UID && view.boot_id == "boot" && record.uid == view.uid && *record.label == *"l");
    assert!(view.terminating && view.ready && view.unschedulable && view.marked);
    assert!(view.has_labels && view.has_annotations && view.record_text.is_none());
    assert_eq!((view.labels.get("zone"), view.labels.get("a/b")), (Some("a"), Some("c")));
    assert_eq!((view.conditions.get("Ready"), view.verify.as_deref()), (Some("True"), Some("now")));
    assert_eq!(view.network_verified.as_deref(), Some(&("False".to_owned(), "Failed".to_owned())));
    assert_eq!((&*view.taints[0].key, &*view.taints[0].effect, view.taints.len()), ("k", "NoSchedule", 2));
}

#[test]
fn the_last_of_equal_keys_counts() {
    let text = r#"{"metadata":{"name":"x"},"metadata":{"name":"a","name":"b","labels":{"zone":"1","zone":"2"},
        "annotations":{"nodekeeper.dev/verify":"1","nodekeeper.dev/verify":"2"}},
        "spec":{"unschedulable":true,"unschedulable":null},"status":{"nodeInfo":{"bootID":"1","bootID":"2"}}}"#;
    let view = read(text).expect("it is a node");
    assert_eq!((&*view.name, view.labels.get("zone"), view.verify.as_deref()), ("b", Some("2"), Some("2")));
    assert!(!view.unschedulable && view.boot_id == "2");
}

#[test]
fn wrong_types_are_errors() {
    for text in [
        "",
        "[]",
        "null",
        "7",
        r#"{"metadata":[]}"#,
        r#"{"metadata":{"name":7}}"#,
        r#"{"metadata":{"labels":{"a":1}}}"#,
        r#"{"metadata":{"labels":{"a":null}}}"#,
        r#"{"metadata":{"annotations":{"nodekeeper.dev/record":{}}}}"#,
        r#"{"metadata":{"creationTimestamp":"yesterday"}}"#,
        r#"{"spec":{"taints":{}}}"#,
        r#"{"spec":{"taints":[null]}}"#,
        r#"{"spec":{"unschedulable":"true"}}"#,
        r#"{"status":{"conditions":[[]]}}"#,
        r#"{"status":{"nodeInfo":"x"}}"#,
        r#"{"metadata":{"name":"a"}"#,
    ] {
        assert!(serde_json::from_str::<Node>(text).is_err(), "{text}");
        assert!(serde_json::from_str::<PartialNode>(text).is_err(), "{text}");
    }
}

#[test]
fn a_large_annotation_is_read() {
    let why = "é\\\"".repeat(60_000);
    let record = json!({"uid": UID, "number": 1, "why": why}).to_string();
    let annotations = json!({"other": "x".repeat(250_000), "nodekeeper.dev/record": record});
    let node = json!({"metadata": {"name": "n", "uid": UID, "annotations": annotations}});
    let view = read(&node.to_string()).expect("it is a node");
    assert!(view.record.is_some_and(|record| *record.why == *why));
    assert_eq!(view.record_text.as_deref(), Some(&*record), "it does not serialise to the same text");
}

/// JSON of any type and depth, as a field may hold by mistake.
fn anything() -> BoxedStrategy<Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,6}".prop_map(Value::from),
    ];
    let nested = leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::vec((".{0,4}", inner), 0..3)
                .prop_map(|all| Value::Object(all.into_iter().collect())),
        ]
    });
    nested.boxed()
}

/// Mostly what `usual` gives, sometimes null, seldom anything.
fn mostly(usual: impl Strategy<Value = Value> + 'static) -> BoxedStrategy<Value> {
    prop_oneof![20 => usual, 2 => Just(Value::Null), 1 => anything()].boxed()
}

fn text() -> BoxedStrategy<Value> {
    let odd = select(vec!["", "é", "a\"b\\c\n", "\u{0}\u{1f}", "True", "77", UID]);
    mostly(prop_oneof![odd.prop_map(Value::from), ".{0,8}".prop_map(Value::from)])
}

/// An object as JSON text with some of these keys, in any order, some of them twice, and others between them.
fn object(fields: Vec<(&'static str, BoxedStrategy<String>)>) -> BoxedStrategy<String> {
    let (keys, values): (Vec<&str>, Vec<_>) = fields.into_iter().unzip();
    let chosen = prop::collection::vec((0..keys.len(), prop::bool::weighted(0.1)), 0..keys.len() + 3);
    (chosen, values.clone(), values, anything())
        .prop_map(move |(chosen, first, second, other)| {
            let mut parts = Vec::new();
            for (nth, (index, unknown)) in chosen.into_iter().enumerate() {
                if unknown {
                    parts.push(format!(r#""un\u006bnown {nth}":{other}"#));
                }
                let value = if nth % 2 == 0 { &first[index] } else { &second[index] };
                parts.push(format!("{}:{value}", Value::from(keys[index])));
            }
            format!("{{{}}}", parts.join(" , "))
        })
        .boxed()
}

fn or_odd(usual: BoxedStrategy<String>) -> BoxedStrategy<String> {
    prop_oneof![20 => usual, 1 => Just("null".to_owned()), 1 => anything().prop_map(|json| json.to_string())]
        .boxed()
}

fn json_text(strategy: BoxedStrategy<Value>) -> BoxedStrategy<String> {
    strategy.prop_map(|value| value.to_string()).boxed()
}

fn list(item: BoxedStrategy<String>) -> BoxedStrategy<String> {
    or_odd(prop::collection::vec(item, 0..4).prop_map(|all| format!("[{}]", all.join(","))).boxed())
}

fn node() -> BoxedStrategy<String> {
    let string = || json_text(text());
    let time = || {
        let usual =
            select(vec!["2026-11-01T08:00:00Z", "2026-11-01T08:00:00.123+01:00", "1970-01-01T00:00:00Z"]);
        json_text(mostly(usual.prop_map(Value::from)))
    };
    let labels = object(keys().into_iter().map(|key| (key, string())).collect());
    let record = json_text(mostly(select(vec![RECORD, "", "{}", "x"]).prop_map(Value::from)));
    let annotations = object(vec![
        (record::ANNOTATION, record),
        (VERIFY, string()),
        (CORDONED, string()),
        ("node.alpha.kubernetes.io/ttl", string()),
    ]);
    let metadata = object(vec![
        ("name", string()),
        ("uid", string()),
        ("resourceVersion", string()),
        ("creationTimestamp", time()),
        ("deletionTimestamp", time()),
        ("labels", or_odd(labels)),
        ("annotations", or_odd(annotations)),
        ("generateName", string()),
    ]);
    let effect = select(vec!["NoSchedule", "NoExecute"]).prop_map(Value::from);
    let key = select(vec!["karpenter.sh/disrupted", "k"]).prop_map(Value::from);
    let taint = object(vec![
        ("key", json_text(mostly(key))),
        ("effect", json_text(mostly(effect))),
        ("value", string()),
    ]);
    let unschedulable = json_text(mostly(any::<bool>().prop_map(Value::from)));
    let spec = object(vec![
        ("unschedulable", unschedulable),
        ("taints", list(or_odd(taint))),
        ("podCIDR", string()),
    ]);
    let kind = select(vec!["Ready", NETWORK_VERIFIED, "Other"]).prop_map(Value::from);
    let state = select(vec!["True", "False"]).prop_map(Value::from);
    let condition = object(vec![
        ("type", json_text(mostly(kind))),
        ("status", json_text(mostly(state))),
        ("reason", string()),
        ("lastHeartbeatTime", time()),
    ]);
    let info = object(vec![("bootID", string()), ("kernelVersion", string())]);
    let status = object(vec![
        ("conditions", list(or_odd(condition))),
        ("nodeInfo", or_odd(info)),
        ("phase", string()),
    ]);
    object(vec![
        ("metadata", or_odd(metadata)),
        ("spec", or_odd(spec)),
        ("status", or_odd(status)),
        ("kind", Just("\"Node\"".to_owned()).boxed()),
        ("apiVersion", Just("\"v1\"".to_owned()).boxed()),
    ])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn a_part_is_read_as_the_whole_is(text in node(), cut in 0..200_usize) {
        read(&text);
        // Whatever is not a node is an error and no panic.
        let end = text.char_indices().map(|(at, _)| at).nth(cut).unwrap_or(text.len());
        let _ = serde_json::from_str::<PartialNode>(&text[..end]);
    }

    #[test]
    fn anything_else_is_an_error_and_no_panic(json in anything()) {
        read(&json.to_string());
        let _ = serde_json::from_str::<PartialNode>(&json.to_string());
    }
}
