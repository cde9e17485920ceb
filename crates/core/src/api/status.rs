//! What a gate says about itself. Counts and conditions, never a list of nodes.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a gate fares.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeGateStatus {
    /// The generation of the spec that all of this is about.
    #[serde(default)]
    pub observed_generation: i64,
    /// How many of its nodes stand where.
    #[serde(default)]
    pub nodes: NodeCounts,
    /// What holds now.
    #[serde(default)]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// How many nodes stand where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeCounts {
    /// Held by the gate: all of those that follow, but for `verified`.
    #[serde(default)]
    pub gated: i32,
    /// Nothing can be looked at yet.
    #[serde(default)]
    pub waiting: i32,
    /// A worker looks, or is about to.
    #[serde(default)]
    pub verifying: i32,
    /// The last worker could not tell.
    #[serde(default)]
    pub inconclusive: i32,
    /// No worker could tell until the gate's deadline.
    #[serde(default)]
    pub stuck: i32,
    /// All attempts failed.
    #[serde(default)]
    pub failed: i32,
    /// Let in.
    #[serde(default)]
    pub verified: i32,
}

/// One thing that holds, does not, or is not known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Which.
    #[serde(rename = "type")]
    #[schemars(length(max = 316))]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    #[schemars(length(max = 7))]
    pub status: String,
    /// The generation of the spec that it is about.
    #[serde(default)]
    pub observed_generation: i64,
    /// When `status` last changed, as RFC 3339.
    #[schemars(extend("format" = "date-time"))]
    pub last_transition_time: String,
    /// Why, in one word.
    #[schemars(length(min = 1, max = 1024))]
    pub reason: String,
    /// Why, for people, and what to do about it.
    #[schemars(length(max = 32768))]
    pub message: String,
}
