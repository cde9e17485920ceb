//! `NodeGate`: which nodes, which taint, which checks, how often to try.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::gate_types::{
    Continuous, Deadlines, Enforcement, FailureAction, Mode, NodeCondition, OnReboot, Retry, WaitFor,
};
use super::selector::NodeSelector;
use super::status::NodeGateStatus;
use super::worker::Worker;
use crate::checks::Checks;

/// What a gate asks for.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "nodekeeper.dev",
    version = "v1alpha1",
    kind = "NodeGate",
    plural = "nodegates",
    shortname = "ngate",
    category = "nodekeeper",
    derive = "PartialEq",
    status = "NodeGateStatus",
    doc = "A gate keeps a taint on each new node until workers have proved the node's network.",
    printcolumn = r#"{"name": "Mode", "type": "string", "jsonPath": ".spec.mode"}"#,
    printcolumn = r#"{"name": "Enforcement", "type": "string", "jsonPath": ".spec.enforcement"}"#,
    printcolumn = r#"{"name": "Gated", "type": "integer", "jsonPath": ".status.nodes.gated"}"#,
    printcolumn = r#"{"name": "Verified", "type": "integer", "jsonPath": ".status.nodes.verified"}"#,
    printcolumn = r#"{"name": "Failed", "type": "integer", "jsonPath": ".status.nodes.failed"}"#,
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name": "Taint", "type": "string", "priority": 1, "jsonPath": ".spec.taints[0].key"}"#,
    printcolumn = r#"{"name": "Reason", "type": "string", "priority": 1, "jsonPath": ".status.conditions[?(@.type==\"Ready\")].reason"}"#,
    // A worker keeps five seconds for itself; a check that cannot time out before then could never fail a node.
    validation = Rule::new("self.spec.deadlines.checkSeconds + 5 < self.spec.deadlines.workerSeconds")
        .message("`spec.deadlines.workerSeconds` must be more than `spec.deadlines.checkSeconds` plus 5"),
    validation = Rule::new("self.spec.deadlines.workerSeconds <= self.spec.deadlines.gateSeconds")
        .message("`spec.deadlines.gateSeconds` must not be less than `spec.deadlines.workerSeconds`"),
    validation = Rule::new(
        "!has(self.spec.checks.dns) || self.spec.checks.dns.names.all(n, !n.matches('^[0-9.]+$') && !n.contains(':'))"
    )
    .message("`spec.checks.dns.names` must be names, not IP addresses: those resolve without any DNS; use `tcp` for them"),
    validation = Rule::new(
        "!has(self.spec.checks.dns) || !has(self.spec.checks.dns.optional) || self.spec.checks.dns.optional.all(n, !n.matches('^[0-9.]+$') && !n.contains(':'))"
    )
    .message("`spec.checks.dns.optional` must be names, not IP addresses: those resolve without any DNS"),
    validation = Rule::new(
        "!has(self.spec.checks.dns) || !has(self.spec.checks.dns.servers) || self.spec.checks.dns.servers.all(s, s.matches('^[0-9.]+$') || s.contains(':'))"
    )
    .message("`spec.checks.dns.servers` must be IP addresses of DNS servers; put names into `spec.checks.dns.names`"),
    validation = Rule::new(
        "!has(self.spec.checks.http) || self.spec.checks.http.targets.all(t, t.expectStatus.min <= t.expectStatus.max)"
    )
    .message("`spec.checks.http.targets[].expectStatus.min` must not be more than `max`"),
    validation = Rule::new(
        "self.spec.taints.all(t, !t.key.matches('^(node|node-role|node.cloudprovider)[.]kubernetes[.]io/|^karpenter[.]sh/|^ToBeDeleted'))"
    )
    .message("`spec.taints` must be taints of your own: those of Kubernetes and of autoscalers are theirs to remove"),
    validation = Rule::new(
        "self.spec.mode != 'Continuous' || self.spec.taints.all(t, t.effect != 'NoExecute')"
    )
    .message("`spec.taints[].effect` must not be 'NoExecute' when `spec.mode` is 'Continuous': a check that fails for a while would evict everything; use 'NoSchedule'"),
    validation = Rule::new(
        "!self.spec.verifiedLabel.key.matches('(^|[.])(kubernetes|k8s)[.]io/') || self.spec.verifiedLabel.key.contains('node-restriction.kubernetes.io/')"
    )
    .message("`spec.verifiedLabel.key` must not be a label of Kubernetes: it would be overwritten on every node"),
    validation = Rule::new(
        "has(self.spec.checks.dns) || has(self.spec.checks.api) || has(self.spec.checks.tcp) || has(self.spec.checks.services) || has(self.spec.checks.peers) || has(self.spec.checks.http) || has(self.spec.checks.clock) || has(self.spec.checks.mtu) || (has(self.spec.checks.exec) && size(self.spec.checks.exec) > 0)"
    )
    .message("`spec.checks` must name at least one check; leave it out for the default set"),
    validation = Rule::new(
        "!has(self.spec.checks.exec) || !has(self.spec.worker.initContainers) || self.spec.checks.exec.all(e, self.spec.worker.initContainers.all(i, i.name != e.name))"
    )
    .message("`spec.checks.exec[].name` must not be the name of one of `spec.worker.initContainers`: both name a check; choose another"),
)]
#[serde(rename_all = "camelCase")]
pub struct NodeGateSpec {
    /// The nodes that this gate is for. Empty: all nodes.
    #[serde(default)]
    pub node_selector: NodeSelector,
    /// Of two gates for the same node and taint the one with the higher priority serves it; then the older one.
    #[serde(default)]
    #[schemars(range(min = -1_000_000, max = 1_000_000))]
    pub priority: i32,
    /// Whether a node is done once it is verified, or looked at again and again.
    #[serde(default)]
    pub mode: Mode,
    /// Whether the gate acts.
    #[serde(default)]
    pub enforcement: Enforcement,
    /// The taints that hold a node. A node that bears none of them is left alone.
    #[serde(default = "NodeGateSpec::taints")]
    #[schemars(length(min = 1, max = 8))]
    pub taints: Vec<GateTaint>,
    /// The label that a verified node is given. A courtesy to those who select by it; it opens nothing. Who removes it
    /// from a verified node asks for the node to be verified again.
    #[serde(default)]
    pub verified_label: VerifiedLabel,
    /// What a worker checks on the node.
    #[serde(default = "Checks::standard")]
    pub checks: Checks,
    /// How a worker is run.
    #[serde(default)]
    pub worker: Worker,
    /// What a node has to be before a worker is sent to it, besides Ready and not cordoned.
    #[serde(default)]
    pub wait_for: WaitFor,
    /// How often, and how soon again.
    #[serde(default)]
    pub retry: Retry,
    /// How long things may take.
    #[serde(default)]
    pub deadlines: Deadlines,
    /// How verified nodes are looked at again in the mode `Continuous`.
    #[serde(default)]
    pub continuous: Continuous,
    /// What becomes of a node all of whose attempts failed. `Replace` asks for it with a NodeRemediation: the
    /// RemediationPolicy says whether and how fast.
    #[serde(default)]
    pub on_failure: FailureAction,
    /// What becomes of a node that no worker could tell anything about until the gate's deadline. `Replace` asks for it
    /// only if workers with the same image told something about other nodes lately.
    #[serde(default)]
    pub on_stuck: FailureAction,
    /// What a boot means to a node that was verified before it.
    #[serde(default)]
    pub on_reboot: OnReboot,
    /// Whether the verdict is also written as a condition of the Node: one more write a node, for those who read it.
    #[serde(default)]
    pub node_condition: NodeCondition,
}

impl NodeGateSpec {
    fn taints() -> Vec<GateTaint> {
        vec![GateTaint::default()]
    }
}

impl Default for NodeGateSpec {
    fn default() -> Self {
        Self {
            node_selector: NodeSelector::default(),
            priority: 0,
            mode: Mode::default(),
            enforcement: Enforcement::default(),
            taints: Self::taints(),
            verified_label: VerifiedLabel::default(),
            checks: Checks::standard(),
            worker: Worker::default(),
            wait_for: WaitFor::default(),
            retry: Retry::default(),
            deadlines: Deadlines::default(),
            continuous: Continuous::default(),
            on_failure: FailureAction::default(),
            on_stuck: FailureAction::default(),
            on_reboot: OnReboot::default(),
            node_condition: NodeCondition::default(),
        }
    }
}

/// A taint that holds a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GateTaint {
    /// Its key.
    #[schemars(
        length(min = 1, max = 317),
        regex(pattern = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
    )]
    pub key: String,
    /// Its value, for those who put it on nodes. A taint is told by key and effect, whatever its value.
    #[serde(default)]
    #[schemars(length(max = 63), regex(pattern = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"))]
    pub value: String,
    /// Its effect.
    #[serde(default)]
    pub effect: TaintEffect,
}

impl Default for GateTaint {
    fn default() -> Self {
        Self { key: "node-ready/unverified".into(), value: "true".into(), effect: TaintEffect::NoSchedule }
    }
}

/// What a taint does to pods that do not tolerate it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TaintEffect {
    /// They are not scheduled to the node.
    #[default]
    NoSchedule,
    /// They are scheduled to the node only if there is no other.
    PreferNoSchedule,
    /// They are evicted as well.
    NoExecute,
}

impl TaintEffect {
    /// As Kubernetes writes it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoSchedule => "NoSchedule",
            Self::PreferNoSchedule => "PreferNoSchedule",
            Self::NoExecute => "NoExecute",
        }
    }
}

/// The label of a verified node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VerifiedLabel {
    /// Its key.
    #[serde(default = "VerifiedLabel::key")]
    #[schemars(
        length(min = 1, max = 317),
        regex(pattern = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
    )]
    pub key: String,
    /// Its value.
    #[serde(default = "VerifiedLabel::value")]
    #[schemars(length(max = 63), regex(pattern = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"))]
    pub value: String,
}

impl VerifiedLabel {
    fn key() -> String {
        "node-ready/verified".into()
    }

    fn value() -> String {
        "true".into()
    }
}

impl Default for VerifiedLabel {
    fn default() -> Self {
        Self { key: Self::key(), value: Self::value() }
    }
}
