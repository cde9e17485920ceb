//! The status of a gate.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The status describes the observed state of a gate and of the nodes that it serves. The controller writes it at
/// most every 2 seconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeGateStatus {
    /// The generation of the NodeGate that this status was computed from.
    #[serde(default)]
    pub observed_generation: i64,
    /// Counts the nodes that this gate serves, by state.
    #[serde(default)]
    pub nodes: NodeCounts,
    /// Lists up to 20 of the gated nodes, those that have been gated longest first.
    #[serde(default)]
    #[schemars(length(max = 20))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub gated_nodes: Vec<GatedNode>,
    /// Counts what a gate with `enforcement: Audit` would have done. Absent if it audited none of the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audit: Option<AuditCounts>,
    /// Lists the current conditions of the gate: `Ready`, `WorkersCannotRun`, `WritesRefused`, `ClusterDNSNotRunning`,
    /// `Shadowed`, `NodesUnserved` and `AutoscalerCompatible`; and `ConfigurationApplied` if the installation brought the
    /// gate.
    #[serde(default)]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// A node that carries a taint of the gate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GatedNode {
    /// The name of the Node that is gated.
    #[schemars(length(max = 253))]
    pub name: String,
    /// The state that keeps the node gated: `Waiting`, `Verifying`, `Inconclusive`, `Stuck` or `Failed`, as counted in
    /// `nodes`. The Events of the Node have the details.
    #[schemars(length(max = 63))]
    pub reason: String,
    /// The time since which the node has been gated, in RFC 3339 format. For a new node that is its creation; for one
    /// that had been verified before, it is the time of its last verdict.
    #[schemars(extend("format" = "date-time"))]
    pub since: String,
}

/// The nodes that a gate admitted while it audited.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AuditCounts {
    /// The number of nodes that passed.
    #[serde(default)]
    pub passed: i32,
    /// The number of nodes that an enforcing gate would have held, because they failed or reached no verdict. An audit makes
    /// one attempt, so nodes are among them that a retry would have verified. To audit a node again, add the taint to it.
    #[serde(default)]
    pub would_hold: i32,
    /// The names of up to 20 of the nodes that would have been held.
    #[serde(default)]
    #[schemars(length(max = 20), inner(length(max = 253)))]
    pub nodes: Vec<String>,
}

/// The nodes of a gate, counted by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeCounts {
    /// The number of nodes that carry a taint of the gate. It is the sum of `waiting`, `verifying`, `inconclusive`,
    /// `stuck` and `failed`.
    #[serde(default)]
    pub gated: i32,
    /// The number of gated nodes that cannot be verified yet: they are not Ready, are cordoned, or wait for what
    /// `waitFor` lists.
    #[serde(default)]
    pub waiting: i32,
    /// The number of gated nodes that have a worker or are about to get one.
    #[serde(default)]
    pub verifying: i32,
    /// The number of gated nodes whose last worker reached no verdict and that are tried again.
    #[serde(default)]
    pub inconclusive: i32,
    /// The number of gated nodes for which no worker reached a verdict within `deadlines.gateSeconds`.
    #[serde(default)]
    pub stuck: i32,
    /// The number of gated nodes that failed all their attempts.
    #[serde(default)]
    pub failed: i32,
    /// The number of nodes that this gate verified and that carry none of its taints.
    #[serde(default)]
    pub verified: i32,
}

/// A condition describes one aspect of the current state of the object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// The type of the condition in CamelCase, which is unique within the list.
    #[serde(rename = "type")]
    #[schemars(length(max = 316))]
    pub type_: String,
    /// The status of the condition, which is one of `True`, `False` and `Unknown`.
    #[schemars(length(max = 7))]
    pub status: String,
    /// The generation of the object that the condition was set for.
    #[serde(default)]
    pub observed_generation: i64,
    /// The time at which `status` last changed, in RFC 3339 format.
    #[schemars(extend("format" = "date-time"))]
    pub last_transition_time: String,
    /// The reason for the last transition as a CamelCase identifier that programs can compare.
    #[schemars(length(min = 1, max = 1024))]
    pub reason: String,
    /// A message for people that explains the condition and says what to do about it.
    #[schemars(length(max = 32768))]
    pub message: String,
}
