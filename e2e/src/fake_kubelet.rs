//! Nodes without a machine on a real control plane: creates Node objects and patches their status as a kubelet would.

use std::fmt::Debug;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub async fn create<K>(api: &Api<K>, body: Value) -> Result<K>
where
    K: Resource + Clone + Debug + DeserializeOwned + Serialize,
{
    Ok(api.create(&PostParams::default(), &serde_json::from_value(body)?).await?)
}

/// Creates a node like its kubelet would. `node` contains its metadata and spec.
pub async fn join(client: &Client, name: &str, node: Value, boot: &str, is_ready: bool) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    create(&nodes, node).await?;
    let resources = json!({"cpu": "4", "memory": "8Gi", "pods": "110"});
    let info = json!({"bootID": boot, "machineID": "", "systemUUID": "", "kernelVersion": "",
        "osImage": "", "containerRuntimeVersion": "", "kubeletVersion": "v1.36.4", "kubeProxyVersion": "",
        "operatingSystem": "linux", "architecture": "amd64"});
    let status = json!({"conditions": [ready_condition(is_ready)], "capacity": resources, "allocatable": resources, "nodeInfo": info});
    patch_node_status(&nodes, name, status).await
}

pub async fn patch_node_status(nodes: &Api<Node>, name: &str, status: Value) -> Result<()> {
    let status = Patch::Merge(json!({"status": status}));
    nodes.patch_status(name, &PatchParams::default(), &status).await?;
    Ok(())
}

#[must_use]
pub fn ready_condition(is: bool) -> Value {
    json!({"type": "Ready", "status": if is { "True" } else { "False" }, "reason": "FakeKubelet", "message": "",
        "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

/// The worker binary, which cargo builds next to the tests.
pub fn worker() -> Result<PathBuf> {
    binary("nodekeeper-worker")
}

/// A binary of the workspace, which cargo builds next to the tests.
pub fn binary(name: &str) -> Result<PathBuf> {
    let test = std::env::current_exe()?;
    let folder = test.ancestors().nth(2).context("tests are in target/debug/deps")?;
    let binary = folder.join(name);
    ensure!(binary.exists(), "{} is not there: run `cargo build --workspace` first", binary.display());
    Ok(binary)
}
