//! CEL rules of the NodeGate CRD, which only a real API server evaluates.

use anyhow::{Result, ensure};
use kube::Api;
use kube::api::{DynamicObject, PostParams};
use kube::core::ApiResource;
use nodekeeper_core::api::NodeGate;
use serde_json::{Value, json};

use crate::world::World;

fn exec(names: &[&str]) -> Value {
    let one = |name: &&str| json!({"name": name, "image": "i"});
    json!({"checks": {"exec": names.iter().map(one).collect::<Vec<_>>()}})
}

fn init(names: &[&str]) -> Value {
    let one = |name: &&str| json!({"name": name, "image": "i"});
    json!({"worker": {"initContainers": names.iter().map(one).collect::<Vec<_>>()}})
}

fn volume(volume: &Value) -> Value {
    json!({"worker": {"volumes": [volume]}})
}

fn selector(operator: &str, values: &[&str]) -> Value {
    json!({"nodeSelector": {"matchExpressions": [{"key": "k", "operator": operator, "values": values}]}})
}

fn toleration(toleration: &Value) -> Value {
    json!({"worker": {"tolerations": [toleration]}})
}

fn taint(key: &str, effect: &str) -> Value {
    json!([{"key": key, "effect": effect}])
}

fn good() -> Vec<Value> {
    let both = json!({"checks": exec(&["gpu"])["checks"], "worker": init(&["driver", "a"])["worker"]});
    let ports = ["10.0.0.1:443", "[fd00::1]:443", "example.com:443"];
    vec![
        json!({}),
        exec(&["gpu"]),
        both,
        volume(&json!({"name": "v", "configMap": {"name": "a"}})),
        volume(&json!({"name": "v", "emptyDir": {}})),
        selector("In", &["a"]),
        selector("Exists", &[]),
        toleration(&json!({"key": "a"})),
        toleration(&json!({"key": "a", "operator": "Equal", "value": "b"})),
        json!({"checks": {"tcp": {"targets": ports}}}),
        json!({"checks": {"http": {"targets": [{"url": "http://example.com/"}]}}}),
        json!({"taints": taint("mine/held", "NoExecute")}),
        json!({"mode": "Continuous", "continuous": {"periodSeconds": 300}}),
        json!({"onFailure": "Replace", "onStuck": "Replace"}),
    ]
}

/// Each with a part of the error message, which says the fix.
fn bad() -> Vec<(Value, &'static str)> {
    vec![
        (json!({"checks": {}}), "at least one check"),
        (exec(&[]), "at least one check"),
        (exec(&["dns"]), "exec"),
        (exec(&["worker"]), "exec"),
        (exec(&["a", "a"]), "Duplicate value"),
        (init(&["worker"]), "initContainers"),
        (init(&["check-gpu"]), "initContainers"),
        (init(&["a", "a"]), "Duplicate value"),
        (volume(&json!({"name": "v"})), "volumes"),
        (volume(&json!({"name": "v", "emptyDir": {}, "hostPath": {"path": "/x"}})), "volumes"),
        (volume(&json!({"name": "nodekeeper-access", "emptyDir": {}})), "nodekeeper-access"),
        (selector("In", &[]), "values"),
        (selector("Exists", &["a"]), "values"),
        (toleration(&json!({"key": "a", "operator": "Exists", "value": "b"})), "tolerations"),
        (json!({"checks": {"tcp": {"targets": ["example.com"]}}}), "targets"),
        (json!({"checks": {"dns": {"names": ["10.0.0.1"]}}}), "must be names, not IP addresses"),
        (json!({"checks": {"dns": {"optional": ["10.0.0.1"]}}}), "must be names, not IP addresses"),
        (json!({"checks": {"dns": {"servers": ["example.com"]}}}), "must be IP addresses"),
        (
            json!({"checks": {"http": {"targets": [{"url": "http://a/", "expectStatus": {"min": 300, "max": 200}}]}}}),
            "must not be more than `max`",
        ),
        (json!({"taints": taint("node.kubernetes.io/not-ready", "NoSchedule")}), "taints of your own"),
        (json!({"mode": "Continuous", "taints": taint("mine/held", "NoExecute")}), "must not be 'NoExecute'"),
        (json!({"verifiedLabel": {"key": "kubernetes.io/hostname"}}), "must not be a label of Kubernetes"),
        (json!({"deadlines": {"checkSeconds": 60, "workerSeconds": 60}}), "must be more than"),
        (json!({"deadlines": {"workerSeconds": 700}}), "must not be less than"),
        (json!({"onFailure": "Delete"}), "onFailure"),
        (json!({"onStuck": "Delete"}), "onStuck"),
        (json!({"continuous": {"periodSeconds": 299}}), "300"),
    ]
}

pub async fn invalid_gates_are_refused_with_a_fix(world: impl World) -> Result<()> {
    let gates: Api<DynamicObject> = Api::all_with(world.client(), &ApiResource::erase::<NodeGate>(&()));
    let only_tried = PostParams { dry_run: true, ..PostParams::default() };
    let try_it = async |spec: &Value| {
        let gate = json!({"apiVersion": "nodekeeper.dev/v1alpha1", "kind": "NodeGate", "metadata": {"name": "tried"}, "spec": spec});
        Ok::<_, anyhow::Error>(gates.create(&only_tried, &serde_json::from_value(gate)?).await)
    };
    for spec in good() {
        let answer = try_it(&spec).await?;
        ensure!(answer.is_ok(), "{spec} is refused: {answer:?}");
    }
    for (spec, words) in bad() {
        match try_it(&spec).await? {
            Ok(_) => anyhow::bail!("{spec} is taken"),
            Err(error) => ensure!(error.to_string().contains(words), "{spec}: {error}"),
        }
    }
    Ok(())
}
