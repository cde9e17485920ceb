//! The group and the zone of a node, read from its labels.

use crate::node::NodeView;

/// Labels that say to which group a node belongs: Karpenter's, EKS's, GKE's and AKS's.
pub const GROUPS: [&str; 5] = [
    "karpenter.sh/nodepool",
    "eks.amazonaws.com/nodegroup",
    "cloud.google.com/gke-nodepool",
    "kubernetes.azure.com/agentpool",
    "agentpool",
];
/// The label that names the zone of a node.
pub const ZONE: &str = "topology.kubernetes.io/zone";

/// The group that a node belongs to.
#[must_use]
pub fn group(node: &NodeView) -> &str {
    GROUPS.into_iter().find_map(|key| node.labels.get(key)).unwrap_or("ungrouped")
}

/// The zone that a node is in; empty if it has none.
#[must_use]
pub fn zone(node: &NodeView) -> &str {
    node.labels.get(ZONE).unwrap_or_default()
}

/// The labels that [`group`] and [`zone`] read.
pub const TOPOLOGY_LABELS: [&str; 6] = [GROUPS[0], GROUPS[1], GROUPS[2], GROUPS[3], GROUPS[4], ZONE];
