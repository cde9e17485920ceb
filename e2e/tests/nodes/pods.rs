//! Runs pods on given nodes.

use std::sync::atomic::{AtomicU32, Ordering};

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use nodekeeper_e2e::{Cluster, nodes::TOOL_IMAGE};
use serde_json::json;

use super::eventually;

pub struct Runner {
    pods: Api<Pod>,
}

/// The end state of a container.
pub struct End {
    pub code: i32,
    pub message: String,
}

impl Runner {
    pub fn new(cluster: &Cluster) -> anyhow::Result<Self> {
        Ok(Self { pods: Api::namespaced(cluster.client()?, "default") })
    }

    /// Binds the pod to the node directly, with tolerations for every taint.
    pub async fn start(&self, name: &str, node: &str, image: &str, args: &[&str]) -> anyhow::Result<String> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let name = format!("{name}-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let pod = json!({
            "metadata": {"name": name},
            "spec": {
                "nodeName": node,
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
                "containers": [
                    {"name": "main", "image": image, "args": args, "imagePullPolicy": "Never"},
                ],
            },
        });
        self.pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        Ok(name)
    }

    pub async fn end_of(&self, pod: &str) -> anyhow::Result<End> {
        let mut end = None;
        eventually("the pod to end", async || {
            let status = self.pods.get(pod).await?.status.unwrap_or_default();
            let container = status.container_statuses.into_iter().flatten().next();
            let terminated =
                container.and_then(|container| container.state).and_then(|state| state.terminated);
            end = terminated.map(|it| End { code: it.exit_code, message: it.message.unwrap_or_default() });
            Ok(end.is_some())
        })
        .await?;
        Ok(end.expect("it was waited for"))
    }

    pub async fn phase_of(&self, pod: &str) -> anyhow::Result<String> {
        Ok(self.pods.get(pod).await?.status.and_then(|status| status.phase).unwrap_or_default())
    }

    pub async fn remove(&self, pod: &str) -> anyhow::Result<()> {
        self.pods.delete(pod, &DeleteParams::default().grace_period(0)).await?;
        Ok(())
    }

    /// Whether a pod on that node resolves the name to this address.
    pub async fn resolves(&self, name: &str, address: &str, node: &str) -> anyhow::Result<bool> {
        let pod = self.start("lookup", node, TOOL_IMAGE, &["lookup", name]).await?;
        let end = self.end_of(&pod).await?;
        self.remove(&pod).await?;
        Ok(end.code == 0 && end.message == address)
    }
}
