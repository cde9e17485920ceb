//! The node lifecycle controller: taints from conditions, nodes without heartbeats, and their pods.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::check::{absent, condition, is, present, tainted};
use super::ctx::{Ctx, PATIENCE, eventually};
use super::fake_kubelet::{FakeKubelet, NOT_READY};
use super::objects::{self, with};

cases!["lifecycle":
    node_that_says_nothing_loses_its_taint,
    node_that_is_not_ready_keeps_its_taint,
    ready_removes_the_taint,
    not_ready_again_is_tainted,
    cordon_is_a_taint,
    pressure_is_a_taint,
    foreign_taints_are_left_alone,
    no_execute_evicts,
    no_execute_spares_those_who_tolerate_it,
    no_execute_waits_for_the_seconds_tolerated,
    no_execute_removed_in_time,
    pod_that_comes_to_a_tainted_node;
    slow: silent_node_becomes_unknown, pods_of_a_silent_node_are_not_ready, silent_node_comes_back,
    pods_of_a_deleted_node_are_removed,
];

const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

async fn node_that_says_nothing_loses_its_taint(c: &Ctx) -> Result<()> {
    let (path, made) = c.node("a").await?;
    ensure!(tainted(&made, NOT_READY, "NoSchedule"), "{}", made["spec"]);
    // Without a Ready condition there is nothing to derive the taint from.
    let node = c.until(&path, |node| !tainted(node, NOT_READY, "NoSchedule")).await?;
    absent(&node, "/status/conditions")
}

async fn node_that_is_not_ready_keeps_its_taint(c: &Ctx) -> Result<()> {
    let status = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    c.create("/api/v1/nodes", with(objects::node(&c.name("a"), c.ns()), status)).await?;
    let path = format!("/api/v1/nodes/{}", c.name("a"));
    // When this taint is set, the controller has processed the other conditions too.
    c.merge(&path, json!({"spec": {"unschedulable": true}})).await?.ok(200)?;
    let node = c.until(&path, |node| tainted(node, UNSCHEDULABLE, "NoSchedule")).await?;
    ensure!(tainted(&node, NOT_READY, "NoSchedule"), "{}", node["spec"]);
    Ok(())
}

async fn ready_removes_the_taint(c: &Ctx) -> Result<()> {
    let node =
        FakeKubelet::start(c, "a", json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}))
            .await?;
    let read = c.read(&node.path).await?;
    is(&read, "/spec/taints", json!([{"key": "case", "value": c.ns(), "effect": "NoSchedule"}]))
}

async fn not_ready_again_is_tainted(c: &Ctx) -> Result<()> {
    let _other = FakeKubelet::start(c, "b", json!({})).await?;
    let node = FakeKubelet::start(c, "a", json!({})).await?;
    node.ready(c, "False").await?;
    let both = |node: &Value| tainted(node, NOT_READY, "NoSchedule") && tainted(node, NOT_READY, "NoExecute");
    let read = c.until(&node.path, both).await?;
    let added = read["spec"]["taints"].as_array().into_iter().flatten().filter(|t| t["key"] == NOT_READY);
    ensure!(added.clone().all(|t| t["timeAdded"].is_string()), "{}", read["spec"]);
    node.ready(c, "True").await?;
    let free =
        |node: &Value| !tainted(node, NOT_READY, "NoSchedule") && !tainted(node, NOT_READY, "NoExecute");
    c.until(&node.path, free).await.map(drop)
}

async fn cordon_is_a_taint(c: &Ctx) -> Result<()> {
    let node = FakeKubelet::start(c, "a", json!({})).await?;
    c.merge(&node.path, json!({"spec": {"unschedulable": true}})).await?.ok(200)?;
    c.until(&node.path, |node| tainted(node, UNSCHEDULABLE, "NoSchedule")).await?;
    c.merge(&node.path, json!({"spec": {"unschedulable": null}})).await?.ok(200)?;
    let read = c.until(&node.path, |node| !tainted(node, UNSCHEDULABLE, "NoSchedule")).await?;
    ensure!(tainted(&read, "case", "NoSchedule"), "{}", read["spec"]);
    Ok(())
}

async fn pressure_is_a_taint(c: &Ctx) -> Result<()> {
    let node = FakeKubelet::start(c, "a", json!({})).await?;
    let set = |status: &str| {
        json!({"status": {"conditions": [
            {"type": "MemoryPressure", "status": status}, {"type": "DiskPressure", "status": status},
            {"type": "PIDPressure", "status": status}, {"type": "NetworkUnavailable", "status": status},
        ]}})
    };
    let taints = ["memory-pressure", "disk-pressure", "pid-pressure", "network-unavailable"]
        .map(|name| format!("node.kubernetes.io/{name}"));
    c.strategic(&format!("{}/status", node.path), set("True")).await?.ok(200)?;
    c.until(&node.path, |node| taints.iter().all(|taint| tainted(node, taint, "NoSchedule"))).await?;
    c.strategic(&format!("{}/status", node.path), set("False")).await?.ok(200)?;
    c.until(&node.path, |node| !taints.iter().any(|taint| tainted(node, taint, "NoSchedule"))).await.map(drop)
}

async fn foreign_taints_are_left_alone(c: &Ctx) -> Result<()> {
    let gate = json!({"spec": {"taints": [
        {"key": "example.com/gate", "effect": "NoSchedule"}, {"key": "node.kubernetes.io/mine", "effect": "NoSchedule"},
    ]}});
    let node = FakeKubelet::start(c, "a", gate.clone()).await?;
    node.ready(c, "False").await?;
    c.until(&node.path, |node| tainted(node, NOT_READY, "NoSchedule")).await?;
    node.ready(c, "True").await?;
    let free =
        |node: &Value| !tainted(node, NOT_READY, "NoSchedule") && !tainted(node, NOT_READY, "NoExecute");
    let read = c.until(&node.path, free).await?;
    is(&read, "/spec/taints", gate["spec"]["taints"].clone())
}

/// Creates a pod on a node, bypassing the scheduler, and returns its path.
async fn pod_on(c: &Ctx, node: &str, name: &str, tolerations: Value) -> Result<String> {
    let mut spec = json!({"spec": {"nodeName": node}});
    spec["spec"]["tolerations"] = tolerations;
    Ok(c.pod_of(with(objects::pod(name), spec)).await?.0)
}

/// Puts a `NoExecute` taint on a node.
async fn expel(c: &Ctx, path: &str) -> Result<()> {
    let taint = json!({"key": "example.com/out", "effect": "NoExecute"});
    let patch = json!([{"op": "add", "path": "/spec/taints/0", "value": taint}]);
    c.json_patch(path, patch).await?.ok(200).map(drop)
}

fn leaving(pod: &Value) -> bool {
    pod["metadata"]["deletionTimestamp"].is_string()
}

async fn no_execute_evicts(c: &Ctx) -> Result<()> {
    let (path, _) = c.node("a").await?;
    let pod = pod_on(c, &c.name("a"), "p", json!([])).await?;
    expel(c, &path).await?;
    let gone = c.until(&pod, leaving).await?;
    // It is a deletion like any other, with the pod's own grace.
    is(&gone, "/metadata/deletionGracePeriodSeconds", 30)?;
    let target = condition(&gone, "DisruptionTarget").cloned().unwrap_or_default();
    is(&target, "/status", "True")?;
    is(&target, "/reason", "DeletionByTaintManager")
}

async fn no_execute_spares_those_who_tolerate_it(c: &Ctx) -> Result<()> {
    let (path, _) = c.node("a").await?;
    let one = json!([{"key": "example.com/out", "operator": "Exists", "effect": "NoExecute"}]);
    let spared = pod_on(c, &c.name("a"), "spared", one).await?;
    let all = pod_on(c, &c.name("a"), "all", json!([{"operator": "Exists"}])).await?;
    let other = pod_on(c, &c.name("a"), "other", json!([{"key": "x", "operator": "Exists"}])).await?;
    expel(c, &path).await?;
    c.until(&other, leaving).await?;
    for pod in [spared, all] {
        absent(&c.read(&pod).await?, "/metadata/deletionTimestamp")?;
    }
    Ok(())
}

async fn no_execute_waits_for_the_seconds_tolerated(c: &Ctx) -> Result<()> {
    let (path, _) = c.node("a").await?;
    let some = |seconds: u32| json!([{"key": "example.com/out", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}]);
    let now = pod_on(c, &c.name("a"), "now", some(0)).await?;
    let soon = pod_on(c, &c.name("a"), "soon", some(5)).await?;
    let late = pod_on(c, &c.name("a"), "late", some(3600)).await?;
    expel(c, &path).await?;
    c.until(&now, leaving).await?;
    absent(&c.read(&soon).await?, "/metadata/deletionTimestamp")?;
    c.until(&soon, leaving).await?;
    absent(&c.read(&late).await?, "/metadata/deletionTimestamp")
}

async fn no_execute_removed_in_time(c: &Ctx) -> Result<()> {
    let (path, _) = c.node("a").await?;
    let some = |seconds: u32| json!([{"key": "example.com/out", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}]);
    let pod = pod_on(c, &c.name("a"), "p", some(4)).await?;
    let witness = pod_on(c, &c.name("a"), "w", some(0)).await?;
    expel(c, &path).await?;
    c.until(&witness, leaving).await?;
    c.json_patch(&path, json!([{"op": "remove", "path": "/spec/taints/0"}])).await?.ok(200)?;
    tokio::time::sleep(std::time::Duration::from_secs(6)).await;
    absent(&c.read(&pod).await?, "/metadata/deletionTimestamp")
}

async fn pod_that_comes_to_a_tainted_node(c: &Ctx) -> Result<()> {
    let (path, _) = c.node("a").await?;
    expel(c, &path).await?;
    let pod = pod_on(c, &c.name("a"), "p", json!([])).await?;
    c.until(&pod, leaving).await.map(drop)
}

/// The conditions a control plane gives up on.
fn unknown(node: &Value) -> bool {
    ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"]
        .iter()
        .all(|kind| condition(node, kind).is_some_and(|c| c["status"] == "Unknown"))
}

fn unreachable(node: &Value) -> bool {
    tainted(node, UNREACHABLE, "NoSchedule") && tainted(node, UNREACHABLE, "NoExecute")
}

async fn silent_node_becomes_unknown(c: &Ctx) -> Result<()> {
    let other = FakeKubelet::start(c, "b", json!({})).await?;
    let node = FakeKubelet::start(c, "a", json!({})).await?;
    node.stop();
    let read = c.until(&node.path, |node| unknown(node) && unreachable(node)).await?;
    let ready = condition(&read, "Ready").cloned().unwrap_or_default();
    is(&ready, "/reason", "NodeStatusUnknown")?;
    present(&ready, "/lastTransitionTime")?;
    ensure!(!tainted(&read, NOT_READY, "NoSchedule"), "{}", read["spec"]);
    ensure!(tainted(&read, "case", "NoSchedule"), "{}", read["spec"]);
    let alive = c.read(&other.path).await?;
    ensure!(condition(&alive, "Ready").is_some_and(|c| c["status"] == "True"), "{}", alive["status"]);
    Ok(())
}

async fn pods_of_a_silent_node_are_not_ready(c: &Ctx) -> Result<()> {
    let _other = FakeKubelet::start(c, "b", json!({})).await?;
    let node = FakeKubelet::start(c, "a", json!({})).await?;
    let pod = pod_on(c, &node.name, "p", json!([])).await?;
    let stays = pod_on(c, &node.name, "stays", json!([])).await?;
    let up = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    c.strategic(&format!("{pod}/status"), up).await?.ok(200)?;
    node.stop();
    c.until(&pod, |pod| condition(pod, "Ready").is_some_and(|c| c["status"] == "False")).await?;
    // By default pods tolerate it for five minutes.
    let stays = c.read(&stays).await?;
    absent(&stays, "/metadata/deletionTimestamp")
}

async fn silent_node_comes_back(c: &Ctx) -> Result<()> {
    let _other = FakeKubelet::start(c, "b", json!({})).await?;
    let mut node = FakeKubelet::start(c, "a", json!({})).await?;
    node.stop();
    c.until(&node.path, |node| unknown(node) && unreachable(node)).await?;
    // The first status may arrive before its lease is seen and be overwritten: a kubelet repeats it.
    node.resume_heartbeat(c);
    let read = eventually(PATIENCE, || async {
        node.ready(c, "True").await?;
        let node = c.read(&node.path).await?;
        let free = !tainted(&node, UNREACHABLE, "NoSchedule") && !tainted(&node, UNREACHABLE, "NoExecute");
        ensure!(free, "still unreachable: {}", node["spec"]);
        Ok(node)
    })
    .await?;
    is(&read, "/spec/taints", json!([{"key": "case", "value": c.ns(), "effect": "NoSchedule"}]))
}

async fn pods_of_a_deleted_node_are_removed(c: &Ctx) -> Result<()> {
    let (path, _) = c.node("a").await?;
    let pod = pod_on(c, &c.name("a"), "p", json!([])).await?;
    let all = c.path("v1/pods");
    let since = c.read(&all).await?;
    c.delete(&path).await?.ok(200)?;
    let mut patience = 0;
    loop {
        // A quiet watch is given up after a while, and the garbage collector takes longer.
        let url = format!("{all}?watch=true&resourceVersion={}", super::check::rv(&since)?);
        let mut watch = c.watch(&url).await?;
        match watch.until("DELETED", "p").await {
            Ok(last) => {
                is(&last, "/status/phase", "Failed")?;
                let target = condition(&last, "DisruptionTarget").cloned().unwrap_or_default();
                is(&target, "/reason", "DeletionByPodGC")?;
                return c.get(&pod).await?.fails(404, "NotFound").map(drop);
            }
            Err(error) if patience > 8 => return Err(error),
            Err(_) => patience += 1,
        }
    }
}
