//! Nodes with heartbeats: a Ready Node object whose Lease is renewed for as long as the case needs.

use std::time::Duration;

use anyhow::{Result, ensure};
use http::Method;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::check::tainted;
use super::ctx::Ctx;
use super::http::{Call, MERGE_PATCH};
use super::objects::{self, with};

/// The interval of lease renewals. The control plane's grace period is 10 s.
const HEARTBEAT: Duration = Duration::from_secs(2);

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

pub(super) const NOT_READY: &str = "node.kubernetes.io/not-ready";

/// A node with heartbeats, which stop when this is dropped.
pub(super) struct FakeKubelet {
    pub name: String,
    pub path: String,
    heartbeat: JoinHandle<()>,
}

impl Drop for FakeKubelet {
    fn drop(&mut self) {
        self.heartbeat.abort();
    }
}

impl FakeKubelet {
    /// Creates the node with a taint for the case, and waits until it is ready for pods that tolerate `case`.
    pub async fn start(c: &Ctx, suffix: &str, change: Value) -> Result<Self> {
        let name = c.name(suffix);
        let path = format!("/api/v1/nodes/{name}");
        // A zone of its own: how the node lifecycle controller treats a dead node depends on the other nodes in its
        // zone.
        let zone = json!({"metadata": {"labels": {"topology.kubernetes.io/zone": c.ns()}}});
        c.create("/api/v1/nodes", with(with(objects::node(&name, c.ns()), zone), change)).await?;
        c.create(LEASES, with(objects::lease(&name), json!({"spec": {"holderIdentity": name}}))).await?;
        let heartbeat = tokio::spawn(beat(c.client().clone(), format!("{LEASES}/{name}"), 0));
        let kubelet = Self { name, path, heartbeat };
        kubelet.ready(c, "True").await?;
        c.until(&kubelet.path, |node| {
            !tainted(node, NOT_READY, "NoSchedule") && !tainted(node, NOT_READY, "NoExecute")
        })
        .await?;
        Ok(kubelet)
    }

    /// Patches the node status like a kubelet.
    pub async fn ready(&self, c: &Ctx, ready: &str) -> Result<Value> {
        let size = json!({"cpu": "4", "memory": "8Gi", "pods": "110"});
        let condition =
            |kind: &str, status: &str| json!({"type": kind, "status": status, "reason": "FakeKubelet"});
        let status = json!({"status": {
            "capacity": size, "allocatable": size,
            "conditions": [
                condition("MemoryPressure", "False"), condition("DiskPressure", "False"),
                condition("PIDPressure", "False"), condition("Ready", ready),
            ],
        }});
        c.strategic(&format!("{}/status", self.path), status).await?.ok(200)
    }

    /// Stops renewing the lease.
    pub fn stop(&self) {
        self.heartbeat.abort();
    }

    pub fn resume_heartbeat(&mut self, c: &Ctx) {
        self.heartbeat.abort();
        self.heartbeat = tokio::spawn(beat(c.client().clone(), format!("{LEASES}/{}", self.name), 5000));
    }

    /// Creates a pod that tolerates the case's taint and selects its nodes; returns its path.
    pub async fn pod(c: &Ctx, name: &str, change: Value) -> Result<String> {
        let spec = json!({"spec": {
            "nodeSelector": {"case": c.ns()}, "tolerations": [{"key": "case", "operator": "Exists"}],
        }});
        let (path, _) = c.pod_of(with(with(objects::bare_pod(name), spec), change)).await?;
        Ok(path)
    }

    /// Waits until the pod is bound to this node.
    pub async fn gets(&self, c: &Ctx, pod: &str) -> Result<Value> {
        let bound = c.until(pod, |pod| pod["spec"]["nodeName"].is_string()).await?;
        ensure!(bound["spec"]["nodeName"] == self.name, "bound to {}", bound["spec"]["nodeName"]);
        Ok(bound)
    }
}

/// Renews the lease. The time only has to advance: it is not the wall clock.
async fn beat(client: kube::Client, path: String, mut beats: u32) {
    loop {
        let time = format!("2026-01-01T{:02}:{:02}:{:02}.000000Z", beats / 3600, beats / 60 % 60, beats % 60);
        let renewed = json!({"spec": {"renewTime": time}});
        drop(Call::new(Method::PATCH, &path).body(MERGE_PATCH, &renewed).send(&client).await);
        beats += 1;
        sleep(HEARTBEAT).await;
    }
}
