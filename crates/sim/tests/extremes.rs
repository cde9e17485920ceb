//! Extreme values from clients crash no component of the cluster.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use kube::api::{Api, WatchParams};
use nodekeeper_sim::actors::kubelet::{FakeRuntime, Kubelets, NodeSpec};
use nodekeeper_sim::actors::{self, Timing};
use nodekeeper_sim::object::{condition_status, text};
use nodekeeper_sim::value::{Value, json};
use nodekeeper_sim::{Cluster, Options};
use tokio::time::sleep;

#[tokio::test(start_paused = true)]
async fn huge_numbers_crash_no_component() {
    let cluster = Cluster::new(Options::simulated(1));
    let mut actors = actors::start(&cluster, Timing::default());
    let started = actors.running();
    let kubelets = Kubelets::start(&cluster, 1, Arc::new(FakeRuntime));
    kubelets.join(NodeSpec { name: "n1".into(), ..NodeSpec::default() });
    let api = cluster.local("test");
    sleep(Duration::from_secs(10)).await;
    assert_eq!(condition_status(&api.get("nodes", "", "n1").unwrap(), "Ready"), "True");

    let pod = |name: &str, spec: Value| {
        let mut body = json!({"metadata": {"name": name}, "spec": {"containers": [
            {"name": "main", "image": "x:1", "command": ["stubborn"]}]}});
        for (key, value) in spec.as_object().unwrap() {
            body["spec"][key] = value.clone();
        }
        api.create("v1", "Pod", "default", body)
    };
    let for_ever = json!([{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": i64::MAX}]);
    pod("tolerant", json!({"tolerations": for_ever})).unwrap();
    pod("patient", json!({"terminationGracePeriodSeconds": i64::MAX})).unwrap();
    pod("lasting", json!({"activeDeadlineSeconds": i32::MAX})).unwrap();
    for (name, cpu) in [("greedy", "1e29"), ("greedier", "999999999999999999999999999E")] {
        let container =
            json!({"name": "main", "image": "x:1", "resources": {"requests": {"cpu": cpu, "memory": cpu}}});
        let _ = pod(name, json!({"containers": vec![container]}));
    }
    for absurd in ["1.5e-2147483648", "1e-2000000000", "1e999"] {
        let container = json!({"name": "main", "image": "x:1", "resources": {"requests": {"cpu": absurd}}});
        assert_eq!(pod("absurd", json!({"containers": [container]})).unwrap_err().code, 400, "{absurd}");
    }
    sleep(Duration::from_secs(10)).await;
    let node = api.get("nodes", "", "n1").unwrap();
    api.change(&node, None, |node| node["spec"]["taints"] = json!([{"key": "x", "effect": "NoExecute"}]))
        .unwrap();
    api.delete(&api.get("pods", "default", "patient").unwrap(), None).unwrap();

    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(cluster.client("test"));
    let mut ahead =
        nodes.watch(&WatchParams::default().timeout(290), &u64::MAX.to_string()).await.unwrap().boxed();
    assert!(ahead.next().await.is_none(), "a watch from a future version got an event");
    let path = format!("/api/v1/nodes?watch=true&timeoutSeconds={}", i64::MAX);
    let request = http::Request::get(path).body(Vec::new()).unwrap();
    drop(cluster.client("test").request_events::<Value>(request).await.unwrap());

    sleep(Duration::from_mins(10)).await;
    assert!(kubelets.is_running(), "a kubelet died");
    assert_eq!(actors.running(), started, "a controller died");
    assert_eq!(text(&api.get("pods", "default", "tolerant").unwrap(), "status.phase"), "Running");
}

#[tokio::test(start_paused = true)]
async fn events_expire_an_hour_after_their_last_change() {
    let cluster = Cluster::new(Options::simulated(1));
    let _actors = actors::start(&cluster, Timing::default());
    let api = cluster.local("test");
    for name in ["once", "again"] {
        let about = json!({"kind": "Node", "name": "n1"});
        let event =
            json!({"metadata": {"name": name}, "involvedObject": about, "reason": "Why", "type": "Normal"});
        api.create("v1", "Event", "default", event).unwrap();
    }
    sleep(Duration::from_mins(50)).await;
    let again = api.get("events", "default", "again").unwrap();
    api.change(&again, None, |event| event["count"] = json!(2)).unwrap();
    sleep(Duration::from_mins(20)).await;
    assert!(api.get("events", "default", "once").is_none());
    assert!(api.get("events", "default", "again").is_some());
}
