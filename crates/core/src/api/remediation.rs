//! `NodeRemediation` requests the replacement of one node and records what happened.

use jiff::Timestamp;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::status::Condition;

/// `NodeRemediationSpec` identifies the node to replace and states the causes.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "nodekeeper.dev",
    version = "v1alpha1",
    kind = "NodeRemediation",
    plural = "noderemediations",
    shortname = "nrem",
    category = "nodekeeper",
    derive = "PartialEq",
    status = "NodeRemediationStatus",
    doc = "NodeRemediation requests the replacement of one node and records what happened. Its name is the uid of the Node, so each Node has at most one.",
    printcolumn = r#"{"name": "Node", "type": "string", "jsonPath": ".spec.node.name"}"#,
    printcolumn = r#"{"name": "Approved", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Approved\")].status"}"#,
    printcolumn = r#"{"name": "Reason", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Approved\")].reason"}"#,
    printcolumn = r#"{"name": "Drained", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Drained\")].status"}"#,
    printcolumn = r#"{"name": "Succeeded", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Succeeded\")].status"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name": "Cause", "type": "string", "priority": 1, "jsonPath": ".spec.causes[0].message"}"#,
    printcolumn = r#"{"name": "Message", "type": "string", "priority": 1, "jsonPath": ".status.conditions[?(@.type==\"Approved\")].message"}"#,
    validation = Rule::new("self.metadata.name == self.spec.node.uid")
        .message("`metadata.name` must be `spec.node.uid`, the uid of the Node: kubectl get node NAME -o jsonpath={.metadata.uid}"),
    validation = Rule::new("self.spec.node.name == oldSelf.spec.node.name && self.spec.node.uid == oldSelf.spec.node.uid && (!has(oldSelf.spec.node.providerID) || (has(self.spec.node.providerID) && self.spec.node.providerID == oldSelf.spec.node.providerID))")
        .message("`spec.node` must not change, except for `bootID`: create another NodeRemediation for another node"),
)]
#[serde(rename_all = "camelCase")]
pub struct NodeRemediationSpec {
    /// The node to replace. Only `bootID` may change after the creation.
    pub node: NodeIdentity,
    /// Who requests the replacement and why, from 1 to 8 causes. A requester updates its own cause, which is found by
    /// `source` and `name`.
    #[schemars(length(min = 1, max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["source".into(), "name".into()]))]
    pub causes: Vec<RemediationCause>,
    /// What is done with the node. Defaults to Replace, which is the only action.
    #[serde(default)]
    pub action: RemediationAction,
}

/// `NodeIdentity` identifies a node beyond its name, which another machine may get later.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeIdentity {
    /// Names the Node object, with 1 to 253 characters.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// The uid of the Node object. If the Node has another uid, the remediation ends with `NodeGone`.
    #[schemars(length(min = 1, max = 128))]
    pub uid: String,
    /// The `spec.providerID` of the Node, which identifies its machine. If the Node has another one, the remediation ends
    /// with `NodeGone`. Empty matches every machine.
    #[serde(default, rename = "providerID", skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 512))]
    pub provider_id: String,
    /// The `status.nodeInfo.bootID` of the Node at the time of the observation. If the node has rebooted since, the
    /// remediation ends with `NodeRebooted`. Empty matches every boot.
    #[serde(default, rename = "bootID", skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 128))]
    pub boot_id: String,
}

/// `RemediationCause` states who requests the replacement of a node and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RemediationCause {
    /// The kind of requester that reports the cause: Gate, Recycler or Person.
    pub source: CauseSource,
    /// Name of the `NodeGate`, recycler or person that requests the replacement.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// What the requester found out about the node. Defaults to Asked.
    #[serde(default)]
    pub verdict: CauseVerdict,
    /// The checks that the node failed, at most 16. They run on the control group before the node is replaced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub checks: Vec<FailedCheck>,
    /// Explanation for people, at most 1024 characters. It is repeated in Events.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub message: String,
    /// The time of the observation, in RFC 3339. The cause expires `spec.evidenceSeconds` of the `RemediationPolicy` later.
    /// Defaults to the creation time of the `NodeRemediation`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    pub observed_at: Option<Timestamp>,
}

/// `CauseSource` is the kind of requester of a remediation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum CauseSource {
    /// A `NodeGate` whose verification the node failed.
    Gate,
    /// A recycler that counted Events of the node.
    Recycler,
    /// A user who created the `NodeRemediation`.
    Person,
}

/// `CauseVerdict` is what the requester found out about the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum CauseVerdict {
    /// No check ran. The replacement is requested for another reason.
    #[default]
    Asked,
    /// One or more checks failed in every attempt.
    Failed,
    /// No worker reported a result until the deadline of the gate.
    Stuck,
}

/// `FailedCheck` identifies a check that the node failed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct FailedCheck {
    /// Names the check, such as `dns`, with 1 to 64 characters.
    #[schemars(length(min = 1, max = 64))]
    pub name: String,
    /// What the check tested, such as a DNS name or an address. Empty for every target of the check.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 256))]
    pub target: String,
    /// Says in one `CamelCase` word why the check failed, such as `Timeout`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub reason: String,
}

/// `RemediationAction` is what is done with the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RemediationAction {
    /// The node is cordoned and drained, and its provider replaces the machine.
    #[default]
    Replace,
}

/// `NodeRemediationStatus` is what the controller did about the request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeRemediationStatus {
    /// The generation of the spec that the controller saw when it last wrote this status.
    #[serde(default)]
    pub observed_generation: i64,
    /// The provider that replaces the machine: Karpenter, or `NodeObject` if the Node object is deleted. Empty if no
    /// provider is known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub provider: String,
    /// Name of the provider's object for the machine, such as a `NodeClaim` of Karpenter. Empty if there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 512))]
    pub machine: String,
    /// The time of the last approval. The budget counts it even if the status of the `RemediationPolicy` is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    pub approved_at: Option<Timestamp>,
    /// Delays the next attempt after attempts that failed because the node could not be drained or replaced. Absent if
    /// there were none. Delete the `NodeRemediation` to have the node replaced earlier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backoff: Option<RemediationBackoff>,
    /// Current conditions of the remediation: Approved, Drained, Replaced and Succeeded.
    #[serde(default)]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// `RemediationBackoff` says why and until when the next attempt to replace the node is delayed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RemediationBackoff {
    /// How many attempts failed in a row. The delay is one hour after the first, doubles with each, and is at most 24 hours.
    pub failures: i32,
    /// The reason for which the last attempt failed, such as `DrainTimedOut`.
    #[schemars(length(max = 64))]
    pub reason: String,
    /// The time before which the replacement of the node is not attempted again.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub until: Timestamp,
}
