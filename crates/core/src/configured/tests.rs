//! What the leader writes about configured objects, and what it reports.

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::*;

fn configured(kind: ObjectKind, spec: &Value) -> ConfiguredObject {
    let key = ObjectKey { kind, name: "default".into() };
    ConfiguredObject { key, spec: spec.clone(), adoption: Adoption::KeepLive }
}

fn gate(spec: &Value) -> ConfiguredObject {
    configured(ObjectKind::NodeGate, spec)
}

fn policy(spec: &Value) -> ConfiguredObject {
    configured(ObjectKind::RemediationPolicy, spec)
}

/// The object that the API server has after a creation with this body: with defaults, and with a uid.
fn stored(kind: ObjectKind, body: &Value) -> DynamicObject {
    let mut object: DynamicObject = serde_json::from_value(body.clone()).expect("the body is an object");
    let spec = &mut object.data["spec"];
    *spec = kind.defaulted(spec).unwrap_or_else(|| spec.clone());
    object
}

fn created(object: &ConfiguredObject) -> DynamicObject {
    match next_step(object, None) {
        ApplyStep::Create(body) => stored(object.key.kind, &body),
        other => panic!("{other:?}"),
    }
}

fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in patch {
        let fields = target.as_object_mut().expect("it was made one");
        if value.is_null() {
            fields.remove(key);
        } else {
            merge(fields.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

/// The object after one step.
fn applied(object: &ConfiguredObject, live: &DynamicObject) -> DynamicObject {
    match next_step(object, Some(live)) {
        ApplyStep::Nothing => live.clone(),
        ApplyStep::Patch(patch) => {
            let mut whole = serde_json::to_value(live).expect("objects can be serialized");
            merge(&mut whole, &patch);
            stored(object.key.kind, &whole)
        }
        other => panic!("{other:?}"),
    }
}

fn edited(live: &DynamicObject, edit: &Value) -> DynamicObject {
    let mut live = live.clone();
    merge(&mut live.data["spec"], edit);
    live
}

/// The condition that the object has, as status, reason and message.
fn told(object: &ConfiguredObject, live: &DynamicObject) -> (&'static str, &'static str, String) {
    let annotation = live.metadata.annotations.as_ref().and_then(|all| all.get(LAST_APPLIED));
    let annotation = annotation.map(String::as_str);
    let found = finding(&object.key, Some(object), annotation, &live.data["spec"], None);
    let found = found.expect("the object is configured");
    (found.status, found.reason, found.message)
}

#[test]
fn an_absent_object_is_created_without_ownership_of_tools() {
    let object = gate(&json!({"priority": 3}));
    let ApplyStep::Create(body) = next_step(&object, None) else { panic!("nothing is created") };
    assert_eq!(
        body,
        json!({
            "apiVersion": "nodekeeper.dev/v1alpha1", "kind": "NodeGate",
            "metadata": {"name": "default", "labels": {"app.kubernetes.io/managed-by": "nodekeeper"},
                "annotations": {"nodekeeper.dev/last-applied": "{\"priority\":3}"}},
            "spec": {"priority": 3},
        })
    );
    let live = created(&object);
    assert_eq!(next_step(&object, Some(&live)), ApplyStep::Nothing);
    assert_eq!((told(&object, &live).0, told(&object, &live).1), ("True", reasons::APPLIED));
}

#[test]
fn only_fields_that_the_configuration_changed_are_patched() {
    let live = created(&gate(&json!({"priority": 3, "retry": {"maxRetries": 2}, "checks": {"clock": {}}})));
    let live = edited(&live, &json!({"onFailure": "Replace", "retry": {"backoff": "Linear"}}));
    let next = gate(&json!({"priority": 3, "retry": {"maxRetries": 4}}));
    let ApplyStep::Patch(patch) = next_step(&next, Some(&live)) else { panic!("nothing is patched") };
    assert_eq!(patch["spec"], json!({"retry": {"maxRetries": 4}, "checks": {"clock": null}}));
    let live = applied(&next, &live);
    let (status, reason, message) = told(&next, &live);
    assert_eq!((status, reason), ("False", reasons::EDITED_BY_HAND), "{message}");
    for part in [
        "`spec.onFailure` is Replace, configured is KeepTainted",
        "`spec.retry.backoff` is Linear, configured is Exponential",
    ] {
        assert!(message.contains(part), "{message}");
    }
    assert!(!message.contains("clock") && !message.contains("priority"), "{message}");
    let dropped = gate(&json!({}));
    let reset = &applied(&dropped, &live).data["spec"];
    let default = ObjectKind::NodeGate.defaulted(&json!({})).expect("it is valid");
    assert_eq!((&reset["priority"], &reset["onFailure"]), (&default["priority"], &json!("Replace")));
}

#[test]
fn u02_a_configuration_that_cannot_be_parsed_resets_no_edit() {
    let object = policy(&json!({"enforcement": "Enforce"}));
    let live = edited(&created(&object), &json!({"budget": {"maxPerHour": 0}}));
    let no_time = json!({"enforcement": "Enforce", "pause": {"reason": "x", "until": "tomorrow"}});
    let mut live = live;
    for next in [policy(&no_time), object.clone(), policy(&json!({"enforcement": "Enforce", "breaker": 3}))] {
        live = applied(&next, &live);
        assert_eq!(live.data["spec"]["budget"]["maxPerHour"], 0, "{next:?}");
        let (_, reason, message) = told(&next, &live);
        assert!(reason == reasons::EDITED_BY_HAND || reason == reasons::APPLIED, "{reason}: {message}");
    }
    assert_eq!(
        live.data["spec"]["breaker"], 3,
        "what the configuration changed is sent, and refused by the server"
    );
}

#[test]
fn u02_an_earlier_release_resets_no_edit() {
    let newer = gate(&json!({"priority": 3, "checks": {"quantum": {}}}));
    let live = edited(&created(&newer), &json!({"retry": {"maxRetries": 9}}));
    let older = gate(&json!({"priority": 4}));
    let live = applied(&older, &live);
    let spec = &live.data["spec"];
    assert_eq!((&spec["priority"], &spec["retry"]["maxRetries"]), (&json!(4), &json!(9)));
}

#[test]
fn a_pause_is_written_only_at_the_creation() {
    let pause = |reason: &str| json!({"pause": {"reason": reason, "until": "2030-01-31T18:00:00Z"}});
    let live = created(&policy(&pause("values")));
    assert_eq!(live.data["spec"]["pause"]["reason"], "values");
    let live = edited(&live, &json!({"pause": null}));
    assert_eq!(next_step(&policy(&pause("values")), Some(&live)), ApplyStep::Nothing);
    let (_, reason, message) = told(&policy(&pause("values")), &live);
    assert!(reason == reasons::EDITED_BY_HAND && message.contains("`spec.pause` is not set"), "{message}");

    let live = created(&policy(&json!({})));
    let paused = edited(&live, &pause("a person"));
    for next in [json!({}), pause("values"), json!({"enforcement": "Enforce"})] {
        let next = policy(&next);
        let live = applied(&next, &paused);
        assert_eq!(live.data["spec"]["pause"]["reason"], "a person", "{next:?}");
    }
    assert_eq!(told(&policy(&json!({})), &paused).1, reasons::APPLIED, "Paused says so already");
}

/// What the chart of an earlier release left behind.
fn of_an_old_hook(spec: &Value) -> DynamicObject {
    stored(
        ObjectKind::NodeGate,
        &json!({
            "apiVersion": "nodekeeper.dev/v1alpha1", "kind": "NodeGate",
            "metadata": {"name": "default",
                "labels": {"helm.sh/chart": "nodekeeper-0.1.0", "app.kubernetes.io/name": "nodekeeper",
                    "app.kubernetes.io/instance": "nodekeeper", "app.kubernetes.io/managed-by": "Helm",
                    "argocd.argoproj.io/instance": "nodekeeper", "team": "a"},
                "annotations": {"helm.sh/hook": "post-install", "helm.sh/hook-delete-policy": "hook-failed",
                    "argocd.argoproj.io/tracking-id": "x", "note": "b"}},
            "spec": spec,
        }),
    )
}

#[test]
fn an_object_of_an_old_hook_keeps_its_fields_and_loses_its_owners() {
    let object = gate(&json!({"priority": 3, "onFailure": "Replace"}));
    let live = of_an_old_hook(&json!({"priority": 3}));
    assert_eq!(told(&object, &live).1, reasons::APPLY_PENDING);
    let live = applied(&object, &live);
    let metadata = serde_json::to_value(&live.metadata).expect("metadata can be serialized");
    assert_eq!(
        metadata["labels"],
        json!({"app.kubernetes.io/name": "nodekeeper", "app.kubernetes.io/managed-by": "nodekeeper", "team": "a"})
    );
    let keys: Vec<&String> = live.metadata.annotations.iter().flat_map(BTreeMap::keys).collect();
    assert_eq!(keys, [LAST_APPLIED, "note"]);
    assert_eq!(live.data["spec"]["onFailure"], "KeepTainted", "a person may have set it");
    let (_, reason, message) = told(&object, &live);
    assert!(reason == reasons::EDITED_BY_HAND && message.contains("`spec.onFailure`"), "{message}");
    assert_eq!(next_step(&object, Some(&live)), ApplyStep::Nothing);
}

#[test]
fn the_configuration_wins_where_an_earlier_release_kept_it() {
    let object = ConfiguredObject { adoption: Adoption::TakeConfigured, ..gate(&json!({"priority": 3})) };
    let live = applied(&object, &of_an_old_hook(&json!({"priority": 9, "onFailure": "Replace"})));
    assert_eq!(Some(&live.data["spec"]), ObjectKind::NodeGate.defaulted(&object.spec).as_ref());
    let live = edited(&live, &json!({"priority": 1}));
    assert_eq!(next_step(&object, Some(&live)), ApplyStep::Nothing, "from now on edits stay");
}

#[test]
fn a_manager_that_somebody_named_stays() {
    let object = gate(&json!({}));
    let mut live = created(&object);
    live.metadata.labels = Some([(MANAGED_BY.to_owned(), "team-a".to_owned())].into());
    assert_eq!(next_step(&object, Some(&live)), ApplyStep::Nothing);
}

#[test]
fn an_object_that_is_being_deleted_is_awaited() {
    let object = gate(&json!({}));
    let mut live = created(&object);
    live.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-31T18:00:00Z")).ok();
    assert_eq!(next_step(&object, Some(&live)), ApplyStep::AwaitDeletion);
}

#[test]
fn an_annotation_that_cannot_be_read_counts_as_none() {
    let object = gate(&json!({"priority": 3}));
    let mut live = edited(&created(&object), &json!({"priority": 5}));
    live.metadata.annotations = Some([(LAST_APPLIED.to_owned(), "{".to_owned())].into());
    let live = applied(&object, &live);
    assert_eq!(live.data["spec"]["priority"], 5);
    assert_eq!(told(&object, &live).1, reasons::EDITED_BY_HAND);
}

#[test]
fn conditions_say_what_became_of_the_configuration() {
    let key = gate(&json!({})).key;
    let found = |annotation: Option<&str>, object: Option<&ConfiguredObject>, failure: Option<&str>| {
        finding(&key, object, annotation, &json!({}), failure)
    };
    assert_eq!(found(None, None, None), None, "nobody configured it");
    let dropped = found(Some("{}"), None, None).expect("it was configured");
    assert_eq!((dropped.status, dropped.reason), ("False", reasons::NO_LONGER_CONFIGURED));
    assert!(dropped.message.contains("kubectl delete nodegate/default"), "{}", dropped.message);
    let object = gate(&json!({}));
    let refused = found(Some("{}"), Some(&object), Some("quota")).expect("it is configured");
    assert_eq!((refused.status, refused.reason), ("False", reasons::APPLY_REFUSED));
    assert!(refused.message.contains("quota"), "{}", refused.message);
}

#[test]
fn a_condition_names_some_of_many_fields() {
    let object = policy(&json!({}));
    let edit = json!({"enforcement": "Enforce", "evidenceSeconds": 60, "history": {"maxCount": 1, "ttlSeconds": 3600},
        "budget": {"maxInFlight": 9, "maxInFlightPerGroup": 9, "maxInFlightPerZone": 9, "maxPerHour": 9, "maxGroupPercentPerHour": 9}});
    let (_, _, message) = told(&object, &edited(&created(&object), &edit));
    assert!(
        message.matches("configured is").count() == MAX_NAMED && message.contains("; and 1 more."),
        "{message}"
    );
}

/// Renderings of a gate. Each field may be absent.
fn gate_specs() -> impl Strategy<Value = Value> {
    let number = |from, to| prop::option::of(from..to).boxed();
    let backoff = prop::option::of(prop::sample::select(vec!["Linear", "Exponential"]));
    let names = prop::option::of(prop::collection::vec("[a-c]\\.d", 1..3));
    let labels = prop::option::of(prop::collection::btree_map("[a-c]", "[x-z]", 0..3));
    let clock = prop::option::of(number(1, 4));
    let taints = prop::option::of(prop::collection::vec("[a-b]/[a-b]", 1..3));
    (number(0, 3), number(0, 3), backoff, names, labels, clock, taints).prop_map(
        |(priority, retries, backoff, names, labels, clock, taints)| {
            let mut spec =
                json!({"priority": priority, "retry": {"maxRetries": retries, "backoff": backoff}});
            if let Some(names) = names {
                spec["checks"]["dns"] = json!({"names": names});
            }
            if let Some(seconds) = clock {
                spec["checks"]["clock"] = json!({"maxSkewSeconds": seconds});
            }
            if let Some(labels) = labels {
                spec["nodeSelector"] = json!({"matchLabels": labels});
            }
            if let Some(taints) = taints {
                spec["taints"] = taints.iter().map(|key| json!({"key": key})).collect();
            }
            remove_nulls(&mut spec);
            spec
        },
    )
}

/// Renderings of a policy, with and without a pause.
fn policy_specs() -> impl Strategy<Value = Value> {
    let pause = prop::option::of("[a-c]");
    let enforcement = prop::option::of(prop::sample::select(vec!["DryRun", "Enforce"]));
    let windows = prop::option::of(prop::sample::select(vec!["01:00", "02:00"]));
    (pause, enforcement, prop::option::of(0..3), windows).prop_map(|(pause, enforcement, budget, start)| {
        let pause = pause.map(|reason| json!({"reason": reason, "until": "2030-01-31T18:00:00Z"}));
        let windows = start.map(|start| json!([{"start": start, "end": "04:00"}]));
        let mut spec = json!({"pause": pause, "enforcement": enforcement, "windows": windows,
            "budget": {"maxPerHour": budget}});
        remove_nulls(&mut spec);
        spec
    })
}

/// The values of all fields, by path. Lists are values.
fn leaves(path: &str, value: &Value, all: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(key, value)| leaves(&format!("{path}.{key}"), value, all));
        }
        other => drop(all.insert(path.to_owned(), other.clone())),
    }
}

fn fields(kind: ObjectKind, spec: &Value) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    leaves("spec", &kind.defaulted(spec).expect("it is valid"), &mut all);
    all
}

/// Applies `old`, lets a person make the spec `live`, applies `new`, and compares each field.
fn check(kind: ObjectKind, old: &Value, new: &Value, live: &Value) -> Result<(), TestCaseError> {
    let mut object = created(&configured(kind, old));
    prop_assert_eq!(edited_fields(&configured(kind, old), &object.data["spec"]), [], "defaults are no edits");
    object.data["spec"] = kind.defaulted(live).expect("it is valid");
    let next = configured(kind, new);
    let after = applied(&next, &object);
    prop_assert_eq!(next_step(&next, Some(&after)), ApplyStep::Nothing, "twice is as once");
    let [before, old, new, after] =
        [&object.data["spec"], old, new, &after.data["spec"]].map(|spec| fields(kind, spec));
    let optional = ["spec.checks.", "spec.nodeSelector"];
    for path in [&before, &old, &new, &after].into_iter().flat_map(BTreeMap::keys) {
        let is_pause = path.starts_with("spec.pause");
        if is_pause || old.get(path) == new.get(path) {
            // What belongs to an optional part comes and goes with it.
            let comes_with_its_part = optional.iter().any(|part| path.starts_with(part)) && {
                !after.contains_key(path) || after.get(path) == new.get(path)
            };
            let stays = after.get(path) == before.get(path);
            prop_assert!(stays || comes_with_its_part, "{path}: {before:?} {after:?}");
        } else {
            prop_assert_eq!(after.get(path), new.get(path), "{}", path);
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn changed_fields_of_a_gate_are_set_and_others_stay(
        old in gate_specs(), new in gate_specs(), live in gate_specs()
    ) {
        check(ObjectKind::NodeGate, &old, &new, &live)?;
    }

    #[test]
    fn changed_fields_of_a_policy_are_set_and_its_pause_stays(
        old in policy_specs(), new in policy_specs(), live in policy_specs()
    ) {
        check(ObjectKind::RemediationPolicy, &old, &new, &live)?;
    }

    #[test]
    fn the_order_of_fields_in_the_annotation_does_not_matter(spec in gate_specs()) {
        let object = gate(&spec);
        let mut live = created(&object);
        let Value::Object(fields) = &spec else { unreachable!("specs are objects") };
        let reversed: Vec<String> = fields.iter().rev().map(|(key, value)| format!(" {key:?} : {value}")).collect();
        let annotation = format!("{{{}}}", reversed.join(","));
        live.metadata.annotations = Some([(LAST_APPLIED.to_owned(), annotation)].into());
        prop_assert_eq!(next_step(&object, Some(&live)), ApplyStep::Nothing);
    }
}
