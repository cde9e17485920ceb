//! The worker: the pod that verifies one node, and its progress.

mod agent_pod;
mod outcome;
mod partial;
mod pod;

use std::time::Duration;

use crate::checks::WorkerIdentity;
use crate::node::NodeView;
use crate::record::InconclusiveReason;
use crate::report::Report;

pub use agent_pod::{AGENTS, AgentView};
pub use partial::PartialPod;
pub use pod::{Allowed, Forbidden, NoPod, Template, assignment, control_pod, pod};

/// The container whose termination message is the report.
pub const CONTAINER: &str = "worker";
/// Name prefix of containers that are exec checks. Other containers, such as a mesh's sidecar, are ignored.
pub const CHECK_PREFIX: &str = "check-";
pub const SELECTOR: &str = "app.kubernetes.io/name=nodekeeper,app.kubernetes.io/component=worker";
/// Selects the workers that run on control nodes.
pub const CONTROLS: &str = "app.kubernetes.io/name=nodekeeper,app.kubernetes.io/component=control";
/// Label with the uid of the worker's node.
pub const NODE_UID: &str = "nodekeeper.dev/node-uid";
const NODE_NAME: &str = "nodekeeper.dev/node-name";
/// Annotation with the names of the init containers that the gate asked for, separated by commas.
const INIT_CONTAINERS: &str = "nodekeeper.dev/init-containers";
/// The same for the names of its exec checks.
const EXEC_CHECKS: &str = "nodekeeper.dev/exec-checks";
/// Annotation with the worker's identity, as JSON.
const SUBJECT: &str = "nodekeeper.dev/subject";

#[derive(Clone, Copy)]
enum Role {
    /// The worker verifies the node.
    Verify,
    /// The worker runs on a control node, which failed nodes are compared with. Its verdict does not affect the node.
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

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The scheduler could not place the pod; its message.
    Unscheduled(String),
    /// The worker has not started; the kubelet's message, if any.
    Waiting(InconclusiveReason, String),
    Running,
    /// The worker ended with a valid report.
    Reported(Report),
    /// The worker ended without a verdict; why.
    Inconclusive(InconclusiveReason, String),
}

impl Progress {
    #[must_use]
    pub fn has_ended(&self) -> bool {
        matches!(self, Self::Reported(_) | Self::Inconclusive(..))
    }
}

/// A trimmed view of a worker pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerView {
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    /// When this process first observed the pod, on its monotonic clock. The pod's age is not read from wall clocks.
    pub first_seen: Duration,
    /// When this process first observed that the scheduler does not place the pod. Zero unless that is its progress.
    pub unscheduled_since: Duration,
    /// The pod has a deletion timestamp.
    pub deleting: bool,
    pub node_name: String,
    pub identity: WorkerIdentity,
    pub progress: Progress,
}

impl WorkerView {
    /// None if the pod is no worker of this controller.
    #[must_use]
    pub fn new(pod: &PartialPod) -> Option<Self> {
        Self::read(pod, Role::Verify)
    }

    /// The view of a worker on a control node; none if the pod is not one.
    #[must_use]
    pub fn control(pod: &PartialPod) -> Option<Self> {
        Self::read(pod, Role::Control)
    }

    fn read(pod: &PartialPod, role: Role) -> Option<Self> {
        let metadata = &pod.metadata;
        let annotations = metadata.annotations.as_ref()?;
        let identity: WorkerIdentity = serde_json::from_str(annotations.get(SUBJECT)?).ok()?;
        let node_name = annotations.get(NODE_NAME)?.clone();
        // The name reserves the number, so a pod with another name is no worker.
        let pod_name =
            metadata.name.clone().filter(|is| *is == role.name(&identity.node_uid, identity.number))?;
        let progress = match pod.spec.node_name.as_ref().filter(|node| **node != node_name) {
            Some(other) => {
                Progress::Inconclusive(InconclusiveReason::Other, format!("the pod ran on node {other}"))
            }
            None => outcome::progress(pod, &identity),
        };
        Some(Self {
            name: pod_name,
            uid: metadata.uid.clone()?,
            resource_version: metadata.resource_version.clone().unwrap_or_default(),
            first_seen: Duration::ZERO,
            unscheduled_since: Duration::ZERO,
            deleting: metadata.deletion_timestamp.is_some(),
            node_name,
            identity,
            progress,
        })
    }

    /// The view of a pod that has a worker's name and is no worker. The number counts as used.
    #[must_use]
    pub fn unreadable(pod: &PartialPod, node: &NodeView, identity: &WorkerIdentity) -> Self {
        let metadata = &pod.metadata;
        Self {
            name: name(&identity.node_uid, identity.number),
            uid: metadata.uid.clone().unwrap_or_default(),
            resource_version: metadata.resource_version.clone().unwrap_or_default(),
            first_seen: Duration::ZERO,
            unscheduled_since: Duration::ZERO,
            deleting: metadata.deletion_timestamp.is_some(),
            node_name: node.name.to_string(),
            identity: identity.clone(),
            progress: Progress::Inconclusive(
                InconclusiveReason::Other,
                "another pod has the worker's name".into(),
            ),
        }
    }

    /// Keeps the times at which the pod was observed before this view of it.
    pub fn observe(&mut self, before: Option<&Self>, now: Duration) {
        let before = before.filter(|before| before.uid == self.uid);
        self.first_seen = before.map_or(now, |before| before.first_seen);
        if matches!(self.progress, Progress::Unscheduled(_)) {
            let known = before.filter(|before| matches!(before.progress, Progress::Unscheduled(_)));
            self.unscheduled_since = known.map_or(now, |before| before.unscheduled_since);
        }
    }

    /// Whether the worker ended or can never run.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.progress.has_ended()
    }
}

/// The name of a worker pod. It reserves the number: two controllers cannot both create it.
#[must_use]
pub fn name(node_uid: &str, number: u32) -> String {
    format!("{}{number}", name_prefix(node_uid))
}

/// The name of a worker pod on a control node; the number is the minute in which the comparison began, or a later one.
#[must_use]
pub fn control_name(node_uid: &str, number: u32) -> String {
    format!("nodekeeper-control-{node_uid}-{number:x}")
}

/// The prefix of the names of all workers of a node.
#[must_use]
pub fn name_prefix(node_uid: &str) -> String {
    format!("nodekeeper-{node_uid}-")
}

#[cfg(test)]
mod tests;
