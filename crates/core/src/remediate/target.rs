//! The node of a remediation, read from the API server just before a decision.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;

use crate::api::NodeIdentity;
use crate::gate::{GateView, Ownership, ownership};
use crate::labels::Labels;
use crate::node::{CORDONED, NodeView};
use crate::record::{self, Record};
use crate::topology::{self, GROUPS, IMAGES, INSTANCE_TYPE, ZONE};

/// Annotations that forbid the disruption of a node or a pod.
pub(super) const DO_NOT_DISRUPT: [&str; 2] = ["nodekeeper.dev/do-not-disrupt", "karpenter.sh/do-not-disrupt"];
/// Labels and taints of nodes that run the control plane or its etcd.
/// Older distributions write `controlplane`.
const CONTROL_PLANE: [&str; 4] = [
    "node-role.kubernetes.io/control-plane",
    "node-role.kubernetes.io/master",
    "node-role.kubernetes.io/controlplane",
    "node-role.kubernetes.io/etcd",
];
/// Labels and annotations with the version of the template that the machine was created from.
const TEMPLATES: [&str; 2] = ["karpenter.sh/nodepool-hash", "eks.amazonaws.com/sourceLaunchTemplateVersion"];

/// Keys of [`Target::attributes`], beside `zone`.
const IMAGE: &str = "image";
const TYPE: &str = "type";

/// The node of a remediation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "the facts are independent of each other")]
pub struct Target {
    pub identity: NodeIdentity,
    pub resource_version: String,
    pub created: Timestamp,
    /// The Node is being deleted, or an autoscaler has marked it for removal.
    pub terminating: bool,
    pub unschedulable: bool,
    /// The `NodeRemediation` for which we cordoned the node.
    pub cordoned_for: Option<String>,
    /// The annotation that forbids the disruption of the node.
    pub opted_out: Option<&'static str>,
    pub control_plane: bool,
    pub group: String,
    pub zone: String,
    /// Version of the template that the group's nodes are created from; empty if unknown.
    pub template: String,
    /// What the node may have in common with others that fail.
    pub attributes: BTreeMap<String, String>,
    pub record: Option<Record>,
    /// The record as it is in the annotation, for guarded writes.
    pub record_text: Option<String>,
    /// Name and uid of the `NodeClaim` that owns the node.
    pub owner: Option<(String, String)>,
    /// Whether an owner, label, taint or finalizer says that Karpenter created the node.
    pub is_karpenter_node: bool,
    /// Whether Karpenter has registered the node.
    pub registered: bool,
    /// JSON Patch can add an annotation only if the map exists.
    pub has_annotations: bool,
    /// The node as gates see it, with its taints and all its labels.
    pub view: NodeView,
}

impl Target {
    /// Whether pods can be scheduled on the node, as [`super::GroupStats`] counts it.
    pub(super) fn is_schedulable(&self, gates: &[&GateView]) -> bool {
        let ownership = ownership(gates.iter().copied(), &self.view);
        let is_gated = matches!(ownership, Ownership::Gated(_) | Ownership::Unserved(..));
        self.view.ready && !self.unschedulable && !is_gated
    }

    #[must_use]
    pub fn new(node: &Node) -> Self {
        let view = NodeView::new(node);
        let (metadata, spec) = (&node.metadata, node.spec.as_ref());
        let annotation = |key: &str| metadata.annotations.as_ref().and_then(|all| all.get(key));
        let label = |key: &str| metadata.labels.as_ref().and_then(|all| all.get(key));
        let either = |key: &str| annotation(key).or_else(|| label(key)).cloned();
        let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
        let image = IMAGES.into_iter().find_map(either).or_else(|| info.map(|info| info.os_image.clone()));
        let zone = topology::zone(&view).to_owned();
        let known = [(IMAGE, image), (TYPE, label(INSTANCE_TYPE).cloned()), ("zone", Some(zone.clone()))];
        let known = known.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
        let owner = metadata.owner_references.iter().flatten().find(|owner| {
            owner.kind == "NodeClaim" && owner.api_version.split('/').next() == Some("karpenter.sh")
        });
        let is_karpenter_node = owner.is_some()
            || label(GROUPS[0]).is_some()
            || view.has_taint("karpenter.sh/unregistered")
            || metadata.finalizers.iter().flatten().any(|one| one == "karpenter.sh/termination");
        Self {
            identity: NodeIdentity {
                name: view.name.to_string(),
                uid: view.uid.to_string(),
                provider_id: spec.and_then(|spec| spec.provider_id.clone()).unwrap_or_default(),
                boot_id: view.boot_id.to_string(),
            },
            resource_version: metadata.resource_version.clone().unwrap_or_default(),
            created: view.created,
            terminating: view.terminating,
            unschedulable: view.unschedulable,
            cordoned_for: annotation(CORDONED).cloned(),
            opted_out: do_not_disrupt(|key| annotation(key).map(String::as_str)),
            control_plane: CONTROL_PLANE.into_iter().any(|key| label(key).is_some() || view.has_taint(key)),
            group: topology::group(&view).to_owned(),
            template: TEMPLATES.into_iter().find_map(either).unwrap_or_default(),
            attributes: known.filter(|(_, value)| !value.is_empty()).collect(),
            record: view.record.as_deref().cloned(),
            record_text: annotation(record::ANNOTATION).cloned(),
            owner: owner.map(|owner| (owner.name.clone(), owner.uid.clone())),
            is_karpenter_node,
            registered: label("karpenter.sh/registered").is_some_and(|value| value == "true")
                && !view.has_taint("karpenter.sh/unregistered"),
            has_annotations: view.has_annotations,
            zone,
            view,
        }
    }
}

/// Whether a node with these labels may have all of these [`Target::attributes`]. One that its labels do not tell counts
/// as the same: the cache does not know the image of a machine that only `status.nodeInfo` or an annotation names.
pub(super) fn may_have(labels: &Labels, attributes: &BTreeMap<String, String>) -> bool {
    attributes.iter().all(|(key, value)| {
        let known = match key.as_str() {
            IMAGE => IMAGES.into_iter().find_map(|key| labels.get(key)),
            TYPE => labels.get(INSTANCE_TYPE),
            _ => labels.get(ZONE),
        };
        known.is_none_or(|known| known == value)
    })
}

/// The annotation that forbids the disruption.
pub(super) fn do_not_disrupt<'a>(annotation: impl Fn(&str) -> Option<&'a str>) -> Option<&'static str> {
    // Karpenter also accepts durations on pods. Every value except `false` forbids the disruption.
    DO_NOT_DISRUPT.into_iter().find(|key| annotation(key).is_some_and(|value| value != "false"))
}
