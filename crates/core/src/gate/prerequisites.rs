//! What a node must have before a worker starts on it (`spec.waitFor`).

use k8s_openapi::api::core::v1::Pod;

use super::Observed;
use crate::api::{Awaited, DaemonSetRef, WaitFor};
use crate::node::NodeView;

/// The taint of a Ready node whose routes or CNI are not set up. A check would blame the node for it.
const NETWORK_UNAVAILABLE: &str = "node.kubernetes.io/network-unavailable";

/// The taints of controllers that initialise nodes: a cloud controller manager and Cluster API.
const UNINITIALIZED: [&str; 2] =
    ["node.cloudprovider.kubernetes.io/uninitialized", "node.cluster.x-k8s.io/uninitialized"];

/// The labels that name a node's Karpenter pool and say that Karpenter registered it.
pub(super) const KARPENTER_LABELS: [&str; 2] = ["karpenter.sh/nodepool", "karpenter.sh/registered"];

/// A DaemonSet's pod on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonPod {
    pub of: DaemonSetRef,
    pub ready: bool,
}

impl DaemonPod {
    /// A view of the pod; none if no DaemonSet controls it.
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

pub(super) enum Unmet {
    /// A change of the Node will show that the prerequisite is met.
    OnNode(String),
    /// Only the node's pods show it, so they have to be watched.
    OnPods(String),
}

/// What every node must have, gated or verified: a verified one that was rebooted may not have its network yet.
pub(super) fn network_missing(node: &NodeView) -> Option<Unmet> {
    let why = || format!("the node's network is not set up yet: it has the taint {NETWORK_UNAVAILABLE}");
    node.has_taint(NETWORK_UNAVAILABLE).then(|| Unmet::OnNode(why()))
}

/// The first prerequisite that a gated node does not meet.
pub(super) fn unmet(observed: &Observed<'_>, wait: &WaitFor) -> Option<Unmet> {
    let node = observed.node;
    if let Some(unmet) = network_missing(node) {
        return Some(unmet);
    }
    if wait.cloud == Awaited::Wait
        && let Some(taint) = UNINITIALIZED.into_iter().find(|taint| node.has_taint(taint))
    {
        return Some(Unmet::OnNode(format!("the node is not initialised yet: it has the taint {taint}")));
    }
    let [pool, registered] = KARPENTER_LABELS.map(|key| node.labels.get(key));
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
        observed.daemon_pods.is_some_and(|pods| pods.iter().any(|pod| pod.of == *set && pod.ready))
    };
    let missing = wait.daemon_sets.iter().find(|set| !is_ready(set))?;
    let DaemonSetRef { namespace, name } = missing;
    Some(Unmet::OnPods(match observed.daemon_pods {
        Some(_) => format!("the pod of DaemonSet {namespace}/{name} on the node is not Ready"),
        None => format!("the node's pods are not watched yet, and DaemonSet {namespace}/{name} is required"),
    }))
}
