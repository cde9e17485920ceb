//! The pod of an agent, as the controller observes it.

use super::PartialPod;

/// Selects the pods of agents.
pub const AGENTS: &str = "app.kubernetes.io/name=nodekeeper,app.kubernetes.io/component=agent";

/// A trimmed view of the pod of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentView {
    pub name: String,
    pub resource_version: String,
    /// The node that the scheduler placed the pod on; empty before that.
    pub node_name: String,
    /// The pod is Ready and is not being deleted.
    pub ready: bool,
}

impl AgentView {
    #[must_use]
    pub fn new(pod: &PartialPod) -> Self {
        let metadata = &pod.metadata;
        let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let is_ready = conditions
            .any(|one| one.kind.as_deref() == Some("Ready") && one.status.as_deref() == Some("True"));
        Self {
            name: metadata.name.clone().unwrap_or_default(),
            resource_version: metadata.resource_version.clone().unwrap_or_default(),
            node_name: pod.spec.node_name.clone().unwrap_or_default(),
            ready: is_ready && metadata.deletion_timestamp.is_none(),
        }
    }
}
