//! The baseline: a client that makes only the three necessary writes per node.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use futures::StreamExt as _;
use futures::stream::{FuturesUnordered, TryStreamExt as _};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use nodekeeper_core::checks::Assignment;
use serde_json::json;
use tokio::sync::{Semaphore, oneshot};

use crate::fake_kubelet::{IN_FLIGHT, TAINT, WORKERS};
use crate::process::NAMESPACE;
use crate::real_cluster::RealCluster;
use crate::watch::watch;

/// Verifies all nodes, which are given, as the controller has them in its cache.
pub async fn run(real: &RealCluster, nodes: &[Node]) -> Result<()> {
    let turns = Semaphore::new(IN_FLIGHT);
    let mut waiting = BTreeMap::new();
    let all = FuturesUnordered::new();
    for node in nodes {
        let (ended, end) = oneshot::channel::<()>();
        waiting.insert(pod_name(node), ended);
        all.push(verify(real, node, &turns, end));
    }
    tokio::select! {
        biased;
        done = all.try_collect::<Vec<()>>() => done.map(drop),
        () = notify_ended(real.pods(), waiting) => anyhow::bail!("the watch ended"),
    }
}

/// Notifies waiting tasks when their pod has ended.
async fn notify_ended(pods: Api<Pod>, mut waiting: BTreeMap<String, oneshot::Sender<()>>) {
    let mut seen = watch(pods, WORKERS, "");
    while let Some(pod) = seen.next().await {
        let ended = pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Succeeded");
        if ended && let Some(who) = waiting.remove(&pod.name_any()) {
            let _ = who.send(());
        }
    }
}

async fn verify(
    real: &RealCluster,
    node: &Node,
    turns: &Semaphore,
    end: oneshot::Receiver<()>,
) -> Result<()> {
    let (pods, nodes) = (real.pods(), real.nodes());
    let pod = pod(node)?;
    with_permit(turns, pods.create(&PostParams::default(), &pod)).await?;
    end.await.context("the watch task ended")?;
    let patch = Patch::Json::<()>(untaint_patch(node)?);
    with_permit(turns, nodes.patch(&node.name_any(), &PatchParams::default(), &patch)).await?;
    with_permit(turns, pods.delete(&pod.name_any(), &DeleteParams::default())).await?;
    Ok(())
}

async fn with_permit<T>(turns: &Semaphore, request: impl Future<Output = kube::Result<T>>) -> Result<T> {
    let _turn = turns.acquire().await?;
    Ok(request.await?)
}

/// Removes the taint and sets the label and a record, with the controller's preconditions.
fn untaint_patch(node: &Node) -> Result<json_patch::Patch> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    let place = taints.into_iter().flatten().position(|taint| taint.key == TAINT).context("no taint")?;
    let record = json!({"uid": node.uid(), "number": 1, "round": {"bootId": node.uid(), "gateUid": node.uid(),
        "gateGeneration": 1}, "workers": 1, "attempts": 1, "silent": 0, "verdict": "Passed",
        "why": "5 checks passed in 20 ms", "at": "2026-11-15T12:00:00Z"});
    Ok(serde_json::from_value(json!([
        {"op": "test", "path": "/metadata/uid", "value": node.uid()},
        {"op": "test", "path": format!("/spec/taints/{place}/key"), "value": TAINT},
        {"op": "remove", "path": format!("/spec/taints/{place}")},
        {"op": "add", "path": "/metadata/labels/node-ready~1verified", "value": "true"},
        {"op": "add", "path": "/metadata/annotations", "value": {"nodekeeper.dev/record": record.to_string()}},
    ]))?)
}

fn pod_name(node: &Node) -> String {
    format!("baseline-{}", node.name_any())
}

/// A pod like a worker's.
fn pod(node: &Node) -> Result<Pod> {
    let name = node.name_any();
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": name, "uid": node.uid()});
    let tolerate = |key: &str, effect: &str| json!({"key": key, "operator": "Exists", "effect": effect});
    let pinned = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]},
    ]}}});
    let field = |path: &str| json!({"fieldRef": {"fieldPath": path}});
    let container = json!({
        "name": "worker",
        "image": "nodekeeper.local/nodekeeper-worker:bench",
        "imagePullPolicy": "IfNotPresent",
        "command": ["/nodekeeper-worker"],
        "env": [
            {"name": "NODE_NAME", "valueFrom": field("spec.nodeName")},
            {"name": "POD_NAMESPACE", "valueFrom": field("metadata.namespace")},
            {"name": Assignment::ENV, "value": serde_json::to_string(&Assignment::default())?},
        ],
        "securityContext": {"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]}},
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}},
    });
    let not_ready = "node.kubernetes.io/not-ready";
    Ok(serde_json::from_value(json!({
        "metadata": {
            "name": pod_name(node),
            "namespace": NAMESPACE,
            "labels": {"app.kubernetes.io/name": "baseline", "app.kubernetes.io/component": "worker"},
            "annotations": {"nodekeeper.dev/node-name": name, "nodekeeper.dev/subject": node.uid()},
            "ownerReferences": [owner],
        },
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": 120,
            "terminationGracePeriodSeconds": 1,
            "serviceAccountName": "nodekeeper-worker",
            "affinity": pinned,
            "tolerations": [tolerate(TAINT, "NoSchedule"), tolerate(not_ready, "NoSchedule"), tolerate(not_ready, "NoExecute")],
            "securityContext": {"runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
        },
    }))?)
}
