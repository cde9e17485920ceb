//! Nodes without a machine on a real API server, and a fake kubelet that reports the results of their workers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use futures::StreamExt as _;
use futures::stream::{self, TryStreamExt as _};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use nodekeeper_core::checks::Assignment;
use nodekeeper_core::report::{CheckResult, MESSAGE_LIMIT, Outcome, Report};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::process::NAMESPACE;
use crate::watch::watch;

pub const TAINT: &str = "node-ready/unverified";
pub const WORKERS: &str = "app.kubernetes.io/component=worker";
/// The concurrent requests of the bench, the baseline and the controller, each.
pub const IN_FLIGHT: usize = 32;

/// Creates Ready nodes with the gate's taint.
pub async fn join(client: &Client, names: &[String]) -> Result<()> {
    stream::iter(names)
        .map(|name| join_one(client.clone(), name))
        .buffer_unordered(IN_FLIGHT)
        .try_collect::<Vec<()>>()
        .await?;
    Ok(())
}

async fn join_one(client: Client, name: &str) -> Result<()> {
    let taints = json!([{"key": TAINT, "value": "true", "effect": "NoSchedule"}]);
    let labels = json!({"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"});
    let node = json!({"metadata": {"name": name, "labels": labels}, "spec": {"taints": taints}});
    nodekeeper_e2e::fake_kubelet::join(&client, name, node, &format!("boot-of-{name}"), true).await
}

pub fn has_gate_taint(node: &Node) -> bool {
    taints(node).any(|key| key == TAINT)
}

pub fn has_no_other_taint(node: &Node) -> bool {
    taints(node).all(|key| key == TAINT)
}

fn taints(node: &Node) -> impl Iterator<Item = &str> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    taints.into_iter().flatten().map(|taint| taint.key.as_str())
}

/// A fake kubelet for all nodes that ends every worker at once, with one write per pod.
pub struct Kubelets {
    task: JoinSet<()>,
    reports: Reports,
}

/// By node: when the API server had accepted the report of its worker.
type Reports = Arc<Mutex<BTreeMap<String, Instant>>>;

impl Kubelets {
    pub fn start(client: &Client) -> Self {
        let (mut task, reports) = (JoinSet::new(), Reports::default());
        task.spawn(serve(Api::namespaced(client.clone(), NAMESPACE), reports.clone()));
        Self { task, reports }
    }

    /// When the report of each node's worker was accepted, since the last call.
    pub fn take_reports(&self) -> BTreeMap<String, Instant> {
        std::mem::take(&mut *self.reports.lock())
    }

    /// Fails if the task has ended: then nothing was measured.
    pub fn check(&mut self) -> Result<()> {
        anyhow::ensure!(self.task.try_join_next().is_none(), "the fake kubelet ended");
        Ok(())
    }
}

async fn serve(pods: Api<Pod>, reports: Reports) {
    let mut known = BTreeSet::new();
    let mut ends = JoinSet::new();
    let turns = Arc::new(Semaphore::new(IN_FLIGHT));
    let mut bound = watch(pods.clone(), WORKERS, "spec.nodeName!=");
    while let Some(pod) = bound.next().await {
        while ends.try_join_next().is_some() {}
        if !known.insert(pod.uid()) {
            continue;
        }
        let (pods, turns, reports) = (pods.clone(), turns.clone(), reports.clone());
        ends.spawn(async move {
            let _turn = turns.acquire_owned().await;
            if let Err(error) = pass(&pods, &pod).await {
                eprintln!("bench: {}: {error:#}", pod.name_any());
            }
            let node = pod.spec.and_then(|spec| spec.node_name).unwrap_or_default();
            reports.lock().insert(node, Instant::now());
        });
    }
}

/// Reports that all checks of the worker in this pod passed.
pub async fn pass(pods: &Api<Pod>, pod: &Pod) -> Result<()> {
    let state = json!({"terminated": {"exitCode": 0, "message": report(pod)?, "reason": "Completed"}});
    let container = json!({"name": "worker", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state});
    let status = json!({"status": {"phase": "Succeeded", "containerStatuses": [container]}});
    pods.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(status)).await?;
    Ok(())
}

/// The report of a worker whose checks all passed, with the identity of its pod.
fn report(pod: &Pod) -> Result<String> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut variables = containers.flat_map(|container| container.env.iter().flatten());
    let assignment = variables.find(|variable| variable.name == Assignment::ENV);
    let assignment = assignment.and_then(|variable| variable.value.as_deref()).context("no assignment")?;
    let assignment: Assignment = serde_json::from_str(assignment)?;
    let passed = |name, target| CheckResult::new(name, target, Outcome::Passed, "", "");
    let results = vec![
        passed("dns", "kubernetes.default.svc.cluster.local."),
        passed("api", ""),
        passed("tcp", "kubernetes.default.svc.cluster.local.:443"),
        passed("services", "default/kubernetes"),
        passed("services", "kube-system/kube-dns"),
    ];
    Ok(Report::judge(assignment.identity, results, 20).to_message(MESSAGE_LIMIT))
}
