//! The node that an act is about, read from the server just before.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;

use crate::api::NodeIdentity;
use crate::node::{CORDONED, NodeView};
use crate::record::{self, Record};
use crate::topology::{self, GROUPS};

/// Whoever puts one of these on a node or a pod, with `true`, keeps it from being disrupted.
pub(super) const OPT_OUT: [&str; 2] = ["nodekeeper.dev/do-not-disrupt", "karpenter.sh/do-not-disrupt"];
const CONTROL_PLANE: [&str; 2] = ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];
const TYPE: &str = "node.kubernetes.io/instance-type";
/// What says which image a machine was made from, best first.
const IMAGES: [&str; 3] = [
    "karpenter.k8s.aws/instance-ami-id",
    "eks.amazonaws.com/nodegroup-image",
    "kubernetes.azure.com/node-image-version",
];
/// What says from which version of its pool's template a machine was made.
const TEMPLATES: [&str; 2] = ["karpenter.sh/nodepool-hash", "eks.amazonaws.com/sourceLaunchTemplateVersion"];

/// A node, as it is now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own, as Kubernetes has them")]
pub struct Target {
    /// Which node, in which life.
    pub identity: NodeIdentity,
    /// For guarded writes.
    pub resource_version: String,
    /// When it was made.
    pub created: Timestamp,
    /// Somebody deleted it, or an autoscaler is about to.
    pub terminating: bool,
    /// Cordoned.
    pub unschedulable: bool,
    /// By us, for this `NodeRemediation`.
    pub cordoned_for: Option<String>,
    /// The annotation by which it is not to be disrupted.
    pub opted_out: Option<&'static str>,
    /// The control plane runs on it.
    pub control_plane: bool,
    /// Its group.
    pub group: String,
    /// Its zone.
    pub zone: String,
    /// What its group makes nodes from; empty if nobody says.
    pub template: String,
    /// What it may have in common with others that fail.
    pub attributes: BTreeMap<String, String>,
    /// What we remember of it.
    pub record: Option<Record>,
    /// The same as it stands there.
    pub record_text: Option<String>,
    /// Its `NodeClaim`, name and uid, where it says so.
    pub owner: Option<(String, String)>,
    /// It is Karpenter's, by whatever it bears.
    pub is_karpenters: bool,
    /// Karpenter has registered it.
    pub registered: bool,
    /// Whether it has any annotation at all; JSON Patch must know.
    pub has_annotations: bool,
}

impl Target {
    /// Keeps what is needed of a Node.
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
        let known = [("image", image), ("type", label(TYPE).cloned()), ("zone", Some(zone.clone()))];
        let known = known.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
        let owner = metadata.owner_references.iter().flatten().find(|owner| {
            owner.kind == "NodeClaim" && owner.api_version.split('/').next() == Some("karpenter.sh")
        });
        let is_karpenters = owner.is_some()
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
            opted_out: opts_out(|key| annotation(key).map(String::as_str)),
            control_plane: CONTROL_PLANE.into_iter().any(|key| label(key).is_some() || view.has_taint(key)),
            group: topology::group(&view).to_owned(),
            template: TEMPLATES.into_iter().find_map(either).unwrap_or_default(),
            attributes: known.filter(|(_, value)| !value.is_empty()).collect(),
            record: view.record.as_deref().cloned(),
            record_text: annotation(record::ANNOTATION).cloned(),
            owner: owner.map(|owner| (owner.name.clone(), owner.uid.clone())),
            is_karpenters,
            registered: label("karpenter.sh/registered").is_some_and(|value| value == "true")
                && !view.has_taint("karpenter.sh/unregistered"),
            has_annotations: view.has_annotations,
            zone,
        }
    }
}

/// The annotation by which something is not to be disrupted.
pub(super) fn opts_out<'a>(annotation: impl Fn(&str) -> Option<&'a str>) -> Option<&'static str> {
    // Karpenter takes durations for pods as well; whatever is not a plain no is a wish to be left alone.
    OPT_OUT.into_iter().find(|key| annotation(key).is_some_and(|value| value != "false"))
}
