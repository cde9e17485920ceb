//! `NodeRemediation`: a wish for one destructive act on one node, and its history.

use jiff::Timestamp;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::status::Condition;

/// What is wished for, for which node, and why.
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
    doc = "A wish to have one node replaced, and what became of it. Named after the uid of the node: there is one for each.",
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
        .message("`spec.node` must not change, but for `bootID`: make another NodeRemediation for another node"),
)]
#[serde(rename_all = "camelCase")]
pub struct NodeRemediationSpec {
    /// Which node, in which life.
    pub node: NodeIdentity,
    /// Who asks, and why. Asking again refreshes what is known.
    #[schemars(length(min = 1, max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["source".into(), "name".into()]))]
    pub causes: Vec<RemediationCause>,
    /// What is asked for.
    #[serde(default)]
    pub action: RemediationAction,
}

/// A node in one of its lives. Its name alone is not it: another machine may have that tomorrow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeIdentity {
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// uid of the Node object.
    #[schemars(length(min = 1, max = 128))]
    pub uid: String,
    /// What its cloud calls the machine; empty if nobody knows.
    #[serde(default, rename = "providerID", skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 512))]
    pub provider_id: String,
    /// The boot that the causes are about. Empty: any.
    #[serde(default, rename = "bootID", skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 128))]
    pub boot_id: String,
}

/// Who asks, and what was seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RemediationCause {
    /// What kind of asker.
    pub source: CauseSource,
    /// Name of the gate, of the recycler or of the person.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// What it comes to.
    #[serde(default)]
    pub verdict: CauseVerdict,
    /// The checks that failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub checks: Vec<FailedCheck>,
    /// For people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub message: String,
    /// When it was seen. Where it is missing, when the object was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    pub observed_at: Option<Timestamp>,
}

/// What kind of asker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum CauseSource {
    /// A gate that the node does not pass.
    Gate,
    /// A recycler that counted Events.
    Recycler,
    /// Somebody.
    Person,
}

/// What was seen comes to this.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum CauseVerdict {
    /// Nobody looked: it is asked for, no more.
    #[default]
    Asked,
    /// Checks failed.
    Failed,
    /// No worker could tell until the gate's deadline.
    Stuck,
}

/// A check that failed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct FailedCheck {
    /// Which check.
    #[schemars(length(min = 1, max = 64))]
    pub name: String,
    /// What it looked at.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 256))]
    pub target: String,
    /// Why, in one word.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub reason: String,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RemediationAction {
    /// The node is drained, and whoever provides it replaces it.
    #[default]
    Replace,
}

/// What became of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeRemediationStatus {
    /// The generation of the spec that all of this is about.
    #[serde(default)]
    pub observed_generation: i64,
    /// Who replaces the machine: `karpenter` or `kubernetes`. Empty until that is known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub provider: String,
    /// What stands for the machine there, a `NodeClaim` for example.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 512))]
    pub machine: String,
    /// When it was last approved. The budget is kept by it where the policy's status is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    pub approved_at: Option<Timestamp>,
    /// `Approved`, `Drained`, `Replaced` and `Succeeded`.
    #[serde(default)]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}
