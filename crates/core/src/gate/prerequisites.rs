//! What a node has to show before a worker is created for it.

use k8s_openapi::api::core::v1::Pod;

use super::Observed;
use crate::api::{Awaited, DaemonSetRef, WaitFor};

/// The taints of components that initialize nodes: the cloud controller manager and Cluster API.
const UNINITIALIZED: [&str; 2] =
    ["node.cloudprovider.kubernetes.io/uninitialized", "node.cluster.x-k8s.io/uninitialized"];

/// The labels that Karpenter sets on its nodes: the pool, and whether the node is registered.
pub(super) const LABELS: [&str; 2] = ["karpenter.sh/nodepool", "karpenter.sh/registered"];

/// The pod of a DaemonSet on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonPod {
    /// The DaemonSet that controls the pod.
    pub of: DaemonSetRef,
    /// Whether the pod is Ready and not being deleted.
    pub ready: bool,
}

impl DaemonPod {
    /// Returns none if the pod does not belong to a DaemonSet.
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

/// A prerequisite that a node does not meet, with the reason.
pub(super) enum Unmet {
    /// A change of the Node will end the wait.
    OnNode(String),
    /// A change of the node's pods will end the wait.
    OnPods(String),
}

/// The first prerequisite that the node does not meet.
pub(super) fn unmet(seen: &Observed<'_>, wait: &WaitFor) -> Option<Unmet> {
    let node = seen.node;
    if wait.cloud == Awaited::Wait
        && let Some(taint) = UNINITIALIZED.into_iter().find(|taint| node.has_taint(taint))
    {
        return Some(Unmet::OnNode(format!("the node is not initialized yet: it carries the taint {taint}")));
    }
    let [pool, registered] = LABELS.map(|key| node.labels.get(key));
    let unregistered =
        node.has_taint("karpenter.sh/unregistered") || (pool.is_some() && registered != Some("true"));
    if wait.karpenter == Awaited::Wait && unregistered {
        return Some(Unmet::OnNode("Karpenter has not registered the node yet".into()));
    }
    if let Some(taint) = wait.taints.iter().find(|taint| node.has_taint(taint)) {
        return Some(Unmet::OnNode(format!("the node still carries the taint {taint}")));
    }
    let lacks = wait
        .conditions
        .iter()
        .find(|condition| node.conditions.get(&condition.type_) != Some(condition.status.as_str()));
    if let Some(condition) = lacks {
        let (type_, status) = (&condition.type_, condition.status.as_str());
        return Some(Unmet::OnNode(format!("the condition {type_} of the node is not {status}")));
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
