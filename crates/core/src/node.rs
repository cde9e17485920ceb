//! The few fields of a Node that we keep.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;

use crate::api::GateTaint;
use crate::record;

/// Taints by which an autoscaler says that it is removing the node.
const LEAVING: [&str; 3] =
    ["ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted", "karpenter.sh/disruption"];

/// Whoever puts this on a node asks for a worker now, whatever its value.
pub const VERIFY: &str = "nodekeeper.dev/verify";
/// The type of the condition that a gate may write on its nodes.
pub const CONDITION: &str = "NetworkVerified";

/// A taint as a node bears it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taint {
    /// Its key.
    pub key: String,
    /// Its effect.
    pub effect: String,
}

/// A Node, as far as anything here is decided by it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own, as Kubernetes has them")]
pub struct NodeView {
    /// Its name, which another machine may have tomorrow.
    pub name: String,
    /// Its uid: with `boot_id` it says which machine this is, in which life.
    pub uid: String,
    /// Changes with each boot.
    pub boot_id: String,
    /// For guarded writes.
    pub resource_version: String,
    /// When it was made.
    pub created: Timestamp,
    /// Somebody deleted it, or an autoscaler is about to.
    pub leaving: bool,
    /// What its kubelet says.
    pub ready: bool,
    /// Cordoned.
    pub unschedulable: bool,
    /// In the order in which the node bears them.
    pub taints: Vec<Taint>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Whether it has any annotation at all; JSON Patch must know.
    pub has_annotations: bool,
    /// Our annotation, as it stands there.
    pub record: Option<String>,
    /// When we first saw it so, on our own clock.
    pub record_seen: Duration,
    /// Somebody asks for a worker now; with which word.
    pub verify: Option<String>,
    /// Status and reason of our condition, as they stand there.
    pub published: Option<(String, String)>,
}

impl NodeView {
    /// Keeps what is needed of a Node.
    #[must_use]
    pub fn new(node: &Node) -> Self {
        let (metadata, spec, status) = (&node.metadata, node.spec.as_ref(), node.status.as_ref());
        let taints: Vec<Taint> = spec
            .and_then(|spec| spec.taints.as_ref())
            .into_iter()
            .flatten()
            .map(|taint| Taint { key: taint.key.clone(), effect: taint.effect.clone() })
            .collect();
        let leaving = metadata.deletion_timestamp.is_some()
            || taints.iter().any(|taint| LEAVING.contains(&taint.key.as_str()));
        let conditions = || status.and_then(|status| status.conditions.as_ref()).into_iter().flatten();
        let annotations = metadata.annotations.as_ref();
        Self {
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            boot_id: status
                .and_then(|status| status.node_info.as_ref())
                .map(|info| info.boot_id.clone())
                .unwrap_or_default(),
            resource_version: metadata.resource_version.clone().unwrap_or_default(),
            created: metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            leaving,
            ready: conditions().any(|condition| condition.type_ == "Ready" && condition.status == "True"),
            unschedulable: spec.and_then(|spec| spec.unschedulable).unwrap_or(false),
            taints,
            labels: metadata.labels.clone().unwrap_or_default(),
            has_annotations: annotations.is_some(),
            record: annotations.and_then(|all| all.get(record::ANNOTATION)).cloned(),
            record_seen: Duration::ZERO,
            verify: annotations.and_then(|all| all.get(VERIFY)).cloned(),
            published: conditions()
                .find(|condition| condition.type_ == CONDITION)
                .map(|own| (own.status.clone(), own.reason.clone().unwrap_or_default())),
        }
    }

    /// Whether it bears a taint of this key.
    #[must_use]
    pub fn bears(&self, key: &str) -> bool {
        self.taints.iter().any(|taint| taint.key == key)
    }

    /// Where in the node's list the given taints are, lowest first.
    #[must_use]
    pub fn positions(&self, taints: &[GateTaint]) -> Vec<usize> {
        let is_one = |taint: &Taint| {
            taints.iter().any(|own| own.key == taint.key && own.effect.as_str() == taint.effect)
        };
        (0..self.taints.len()).filter(|i| is_one(&self.taints[*i])).collect()
    }
}
