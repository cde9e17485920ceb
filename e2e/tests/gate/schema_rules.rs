//! CEL rules of the NodeGate CRD, which only a real API server evaluates.

use anyhow::{Result, ensure};
use kube::Api;
use kube::api::{DynamicObject, PostParams};
use kube::core::ApiResource;
use nodekeeper_core::api::NodeGate;
use nodekeeper_e2e::scenario::world::World;
use nodekeeper_operator::config::check_manifest;
use serde_json::{Value, json};

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

fn env(source: &Value) -> Value {
    json!({"worker": {"env": [{"name": "A", "valueFrom": source}]}})
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
        toleration(&json!({"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5})),
        volume(&json!({"name": "v", "secret": {"secretName": "a", "items": [{"key": "k", "path": "p"}]}})),
        volume(
            &json!({"name": "v", "projected": {"sources": [{"configMap": {"name": "a"}}, {"secret": {"name": "b"}},
            {"downwardAPI": {"items": [{"path": "n", "fieldRef": {"fieldPath": "metadata.name"}}]}}]}}),
        ),
        env(&json!({"secretKeyRef": {"name": "a", "key": "k"}})),
        env(&json!({"fieldRef": {"fieldPath": "metadata.labels['a/b']"}})),
        json!({"worker": {"resources": {"requests": {"cpu": 1, "memory": "64Mi"}}, "imagePullSecrets": [{"name": "a"}]}}),
        json!({"checks": {}}),
        json!({"checks": {"skip": ["dns", "peers"]}}),
        json!({"checks": {"skip": ["dns", "api", "tcp", "services", "peers"], "mtu": {}}}),
        json!({"checks": {"dns": {"clusterDomain": "example.org"}}}),
        json!({"checks": {"http": {"targets": [{"url": "https://a/", "ca": {"name": "a"}}]}}}),
        json!({"waitFor": {"conditions": [{"type": "NetworkUnavailable", "status": "False"}], "taints": ["cni/starting"]}}),
        json!({"taints": [{"key": "mine/held"}, {"key": "mine/held", "effect": "NoExecute"}]}),
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
        (json!({"checks": {"skip": ["dns", "api", "tcp", "services", "peers"]}}), "at least one check"),
        (json!({"checks": {"skip": ["dns"], "dns": {}}}), "must not name a check that is configured"),
        (json!({"checks": {"skip": ["http"]}}), "skip"),
        (json!({"checks": {"skip": ["dns", "dns"]}}), "Duplicate value"),
        (
            json!({"checks": {"http": {"targets": [{"url": "https://a/", "ca": {"name": "a", "key": "../b"}}]}}}),
            "ca.key",
        ),
        (env(&json!({})), "exactly one of"),
        (env(&json!({"fieldRef": {"fieldPath": "spec.containers"}})), "fieldPath"),
        (toleration(&json!({"operator": "Equal"})), "must be 'Exists' if `key` is empty"),
        (toleration(&json!({"key": "a", "operator": "Near"})), "operator"),
        (toleration(&json!({"key": "a", "tolerationSeconds": 5})), "must be 'NoExecute'"),
        (json!({"worker": {"resources": {"requests": {"cpu": "much"}}}}), "cpu"),
        (json!({"worker": {"imagePullSecrets": [{"name": "a"}, {"name": "a"}]}}), "Duplicate value"),
        (json!({"waitFor": {"taints": ["node-ready/unverified"]}}), "must not name a taint of `spec.taints`"),
        (json!({"waitFor": {"conditions": [{"type": "NetworkVerified"}]}}), "must not be `NetworkVerified`"),
        (json!({"taints": [{"key": "a/b"}, {"key": "a/b"}]}), "Duplicate value"),
        (exec(&["dns"]), "exec"),
        (exec(&["worker"]), "exec"),
        (exec(&["a", "a"]), "Duplicate value"),
        (init(&["worker"]), "initContainers"),
        (init(&["check-gpu"]), "initContainers"),
        (init(&["a", "a"]), "Duplicate value"),
        (volume(&json!({"name": "v"})), "volumes"),
        (volume(&json!({"name": "v", "emptyDir": {}, "hostPath": {"path": "/x"}})), "volumes"),
        (volume(&json!({"name": "nodekeeper-access", "emptyDir": {}})), "must not begin with `nodekeeper-`"),
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

fn gate(spec: &Value) -> Value {
    json!({"apiVersion": "nodekeeper.dev/v1alpha1", "kind": "NodeGate", "metadata": {"name": "tried"}, "spec": spec})
}

/// The same cases without a server: both have to agree.
#[test]
fn s02_config_check_refuses_what_the_server_refuses() {
    for spec in good() {
        assert_eq!(check_manifest(&gate(&spec).to_string()), Some(Ok("NodeGate")), "{spec}");
    }
    for (spec, words) in bad() {
        let Some(Err(problems)) = check_manifest(&gate(&spec).to_string()) else { panic!("{spec} is taken") };
        assert!(problems.iter().any(|problem| problem.to_string().contains(words)), "{spec}: {problems:?}");
    }
}

pub async fn invalid_gates_are_refused_with_a_fix(world: impl World) -> Result<()> {
    let gates: Api<DynamicObject> = Api::all_with(world.client(), &ApiResource::erase::<NodeGate>(&()));
    let only_tried = PostParams { dry_run: true, ..PostParams::default() };
    let try_it = async |spec: &Value| {
        Ok::<_, anyhow::Error>(gates.create(&only_tried, &serde_json::from_value(gate(spec))?).await)
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
