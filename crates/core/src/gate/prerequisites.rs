//! What has to be there before a worker is sent to a node.

use k8s_openapi::api::core::v1::Pod;

use super::Observed;
use crate::api::{Awaited, DaemonSetRef, WaitFor};

/// Taints of those who initialise nodes: a cloud's controller, and Cluster API.
const UNINITIALISED: [&str; 2] =
    ["node.cloudprovider.kubernetes.io/uninitialized", "node.cluster.x-k8s.io/uninitialized"];

/// Labels by which Karpenter says whose a node is, and that it knows it.
pub(super) const LABELS: [&str; 2] = ["karpenter.sh/nodepool", "karpenter.sh/registered"];

/// A `DaemonSet`'s pod on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonPod {
    /// Whose it is.
    pub of: DaemonSetRef,
    /// What its kubelet says.
    pub ready: bool,
}

impl DaemonPod {
    /// Keeps what is needed of a pod; none if it is not a DaemonSet's.
    #[must_use]
    pub fn new(pod: &Pod) -> Option<Self> {
        let owners = pod.metadata.owner_references.as_ref()?;
        let owner =
            owners.iter().find(|owner| owner.kind == "DaemonSet" && owner.controller == Some(true))?;
        let mut conditions =
            pod.status.as_ref().and_then(|status| status.conditions.as_ref()).into_iter().flatten();
        Some(Self {
            of: DaemonSetRef { namespace: pod.metadata.namespace.clone()?, name: owner.name.clone() },
            ready: pod.metadata.deletion_timestamp.is_none()
                && conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True"),
        })
    }
}

/// What is waited for.
pub(super) enum Unmet {
    /// The node itself will say when it is there.
    OnNode(String),
    /// Only the node's pods say.
    OnPods(String),
}

/// Why no worker can be sent to the node, if so.
pub(super) fn unmet(seen: &Observed<'_>, wait: &WaitFor) -> Option<Unmet> {
    let node = seen.node;
    if wait.cloud == Awaited::Wait
        && let Some(taint) = UNINITIALISED.into_iter().find(|taint| node.has_taint(taint))
    {
        return Some(Unmet::OnNode(format!("the node is not initialised yet: it bears the taint {taint}")));
    }
    let [pool, registered] = LABELS.map(|key| node.labels.get(key));
    let unregistered =
        node.has_taint("karpenter.sh/unregistered") || (pool.is_some() && registered != Some("true"));
    if wait.karpenter == Awaited::Wait && unregistered {
        return Some(Unmet::OnNode("Karpenter has not registered the node yet".into()));
    }
    let is_ready = |set: &DaemonSetRef| {
        seen.daemons.is_some_and(|pods| pods.iter().any(|pod| pod.of == *set && pod.ready))
    };
    let missing = wait.daemon_sets.iter().find(|set| !is_ready(set))?;
    let DaemonSetRef { namespace, name } = missing;
    Some(Unmet::OnPods(match seen.daemons {
        Some(_) => format!("the pod of DaemonSet {namespace}/{name} on the node is not Ready"),
        None => format!("the pods of the node are not known yet; DaemonSet {namespace}/{name} is waited for"),
    }))
}
