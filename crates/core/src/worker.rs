//! The worker: the pod that looks at one node, and what it came to.

mod outcome;
mod pod;

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;

use crate::checks::WorkerIdentity;
use crate::node::NodeView;
use crate::record::InconclusiveReason;
use crate::report::Report;

pub use pod::{Allowed, Forbidden, NoPod, Template, control_pod, pod};

/// The container whose termination message is the report.
pub const CONTAINER: &str = "worker";
/// How the names of containers begin that are checks of the user's. Others, a mesh's for example, say nothing.
pub const CHECK_PREFIX: &str = "check-";
/// Selects all workers in their namespace.
pub const SELECTOR: &str = "app.kubernetes.io/name=nodekeeper,app.kubernetes.io/component=worker";
/// Selects all workers in their namespace that only compare.
pub const CONTROLS: &str = "app.kubernetes.io/name=nodekeeper,app.kubernetes.io/component=control";
/// Label and annotations of a worker: for which node, in which boot, for which gate, as which one.
pub const NODE_UID: &str = "nodekeeper.dev/node-uid";
const NODE_NAME: &str = "nodekeeper.dev/node-name";
const SUBJECT: &str = "nodekeeper.dev/subject";

/// What a worker is for.
#[derive(Clone, Copy)]
enum Role {
    /// The node is let in if it passes.
    Verify,
    /// Others are compared with the node. Nothing follows from it for the node itself.
    Control,
}

impl Role {
    fn component(self) -> &'static str {
        match self {
            Self::Verify => "worker",
            Self::Control => "control",
        }
    }

    fn name(self, node_uid: &str, number: u32) -> String {
        match self {
            Self::Verify => name(node_uid, number),
            Self::Control => control_name(node_uid, number),
        }
    }
}

/// How far a worker is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The scheduler finds that it cannot run there; why.
    Unscheduled(String),
    /// It has not started; why, where the kubelet says so.
    Waiting(InconclusiveReason, String),
    /// It looks.
    Running,
    /// It ended with a report that is its own.
    Reported(Report),
    /// It ended and cannot tell anything; why.
    Inconclusive(InconclusiveReason, String),
}

impl Progress {
    /// Whether there is no more to come.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        matches!(self, Self::Reported(_) | Self::Inconclusive(..))
    }
}

/// A worker pod, as far as anything here is decided by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerView {
    /// Name of the pod.
    pub name: String,
    /// uid of the pod.
    pub uid: String,
    /// For guarded writes and for order.
    pub resource_version: String,
    /// When we first saw it, on our own clock: nobody's time of day says how old it is.
    pub first_seen: Duration,
    /// Somebody deleted it.
    pub deleting: bool,
    /// Name of the node.
    pub node_name: String,
    /// For whom it works.
    pub identity: WorkerIdentity,
    /// How far it is.
    pub progress: Progress,
}

impl WorkerView {
    /// Keeps what is needed of a worker pod; none if it is not one of ours.
    #[must_use]
    pub fn new(pod: &Pod) -> Option<Self> {
        Self::read(pod, Role::Verify)
    }

    /// The same of a worker that only compares.
    #[must_use]
    pub fn control(pod: &Pod) -> Option<Self> {
        Self::read(pod, Role::Control)
    }

    fn read(pod: &Pod, role: Role) -> Option<Self> {
        let metadata = &pod.metadata;
        let annotations = metadata.annotations.as_ref()?;
        let identity: WorkerIdentity = serde_json::from_str(annotations.get(SUBJECT)?).ok()?;
        let node_name = annotations.get(NODE_NAME)?.clone();
        // The name is what reserves the number: a pod under another is not the one that was made.
        let pod_name =
            metadata.name.clone().filter(|is| *is == role.name(&identity.node_uid, identity.number))?;
        let runs_on = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
        let progress = match runs_on.filter(|node| **node != node_name) {
            Some(other) => Progress::Inconclusive(InconclusiveReason::Other, format!("it ran on {other}")),
            None => outcome::progress(pod, &identity),
        };
        Some(Self {
            name: pod_name,
            uid: metadata.uid.clone()?,
            resource_version: metadata.resource_version.clone().unwrap_or_default(),
            first_seen: Duration::ZERO,
            deleting: metadata.deletion_timestamp.is_some(),
            node_name,
            identity,
            progress,
        })
    }

    /// A pod that has a worker's name and cannot be read as one: its number is used up.
    #[must_use]
    pub fn unreadable(pod: &Pod, node: &NodeView, identity: &WorkerIdentity) -> Self {
        let metadata = &pod.metadata;
        Self {
            name: name(&identity.node_uid, identity.number),
            uid: metadata.uid.clone().unwrap_or_default(),
            resource_version: metadata.resource_version.clone().unwrap_or_default(),
            first_seen: Duration::ZERO,
            deleting: metadata.deletion_timestamp.is_some(),
            node_name: node.name.to_string(),
            identity: identity.clone(),
            progress: Progress::Inconclusive(
                InconclusiveReason::Other,
                "there is a pod of its name that is no worker".into(),
            ),
        }
    }

    /// Whether its container ended, or never will have run.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.progress.has_ended()
    }
}

/// The name of a worker's pod. The name reserves the number: two controllers cannot both make it.
#[must_use]
pub fn name(node_uid: &str, number: u32) -> String {
    format!("{}{number}", name_prefix(node_uid))
}

/// The name of a worker's pod that only compares; the number is the minute in which the run began.
#[must_use]
pub fn control_name(node_uid: &str, number: u32) -> String {
    format!("nodekeeper-control-{node_uid}-{number:x}")
}

/// How the names of all workers of a node begin.
#[must_use]
pub fn name_prefix(node_uid: &str) -> String {
    format!("nodekeeper-{node_uid}-")
}

#[cfg(test)]
mod tests;
