//! The group and the zone of a node, read from its labels, and the labels of its type and image.

use crate::node::NodeView;

/// Labels that name the group of a node, for Karpenter, EKS, GKE and AKS.
pub const GROUPS: [&str; 5] = [
    "karpenter.sh/nodepool",
    "eks.amazonaws.com/nodegroup",
    "cloud.google.com/gke-nodepool",
    "kubernetes.azure.com/agentpool",
    "agentpool",
];
pub const ZONE: &str = "topology.kubernetes.io/zone";
pub const INSTANCE_TYPE: &str = "node.kubernetes.io/instance-type";
/// Labels and annotations with the image of the machine, the most precise first.
pub const IMAGES: [&str; 3] = [
    "karpenter.k8s.aws/instance-ami-id",
    "eks.amazonaws.com/nodegroup-image",
    "kubernetes.azure.com/node-image-version",
];

/// The group of a node; `ungrouped` if no label names one.
#[must_use]
pub fn group(node: &NodeView) -> &str {
    GROUPS.into_iter().find_map(|key| node.labels.get(key)).unwrap_or("ungrouped")
}

/// The zone of a node; empty if it has none.
#[must_use]
pub fn zone(node: &NodeView) -> &str {
    node.labels.get(ZONE).unwrap_or_default()
}

/// The labels that say where a node belongs and what it is made of.
pub const TOPOLOGY_LABELS: [&str; 10] = [
    GROUPS[0],
    GROUPS[1],
    GROUPS[2],
    GROUPS[3],
    GROUPS[4],
    ZONE,
    INSTANCE_TYPE,
    IMAGES[0],
    IMAGES[1],
    IMAGES[2],
];
