//! The `NodeGate` resource: its spec, defaults and validation rules.

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

/// The spec describes which nodes a gate holds back, what has to be verified on them, and what happens to those
/// that do not pass. Every field is optional; an empty spec is valid.
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
    doc = "NodeGate keeps a taint on new nodes until a worker pod on each node has verified that its network works.",
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
        "!has(self.spec.checks.dns) || !has(self.spec.checks.dns.names) || self.spec.checks.dns.names.all(n, !n.matches('^[0-9.]+$') && !n.contains(':'))"
    )
    .message("`spec.checks.dns.names` must be names, not IP addresses, which resolve without DNS; use `tcp` for them"),
    validation = Rule::new(
        "!has(self.spec.checks.dns) || !has(self.spec.checks.dns.optional) || self.spec.checks.dns.optional.all(n, !n.matches('^[0-9.]+$') && !n.contains(':'))"
    )
    .message("`spec.checks.dns.optional` must be names, not IP addresses, which resolve without DNS"),
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
    .message("`spec.taints` must be taints of your own: Kubernetes and autoscalers remove theirs themselves"),
    validation = Rule::new(
        "self.spec.mode != 'Continuous' || self.spec.taints.all(t, t.effect != 'NoExecute')"
    )
    .message("`spec.taints[].effect` must not be 'NoExecute' when `spec.mode` is 'Continuous': a check that fails for some time would evict all pods; use 'NoSchedule'"),
    validation = Rule::new(
        "!self.spec.verifiedLabel.key.matches('(^|[.])(kubernetes|k8s)[.]io/') || self.spec.verifiedLabel.key.contains('node-restriction.kubernetes.io/')"
    )
    .message("`spec.verifiedLabel.key` must not be a label of Kubernetes, which the gate would overwrite on every node"),
    validation = Rule::new(
        "!has(self.spec.waitFor.taints) || self.spec.waitFor.taints.all(k, self.spec.taints.all(t, t.key != k))"
    )
    .message("`spec.waitFor.taints` must not name a taint of `spec.taints`, which stays until a worker has run"),
    validation = Rule::new(
        "!has(self.spec.checks.exec) || !has(self.spec.worker.initContainers) || self.spec.checks.exec.all(e, self.spec.worker.initContainers.all(i, i.name != e.name))"
    )
    .message("`spec.checks.exec[].name` must not be the name of one of `spec.worker.initContainers`: both are names of checks; choose another"),
)]
#[serde(rename_all = "camelCase")]
pub struct NodeGateSpec {
    /// Selects the nodes that this gate applies to, by their labels. An empty selector, the default, selects all nodes.
    /// The selector is evaluated on the labels that a node has now, so labels that identify a pool must be set when the
    /// node registers.
    #[serde(default)]
    pub node_selector: NodeSelector,
    /// Decides which gate serves a node that several gates select by the same taint: the gate with the highest priority
    /// does. Among equal priorities the older gate wins, then the first by name. Gates in `Audit` always come after
    /// those in `Enforce` or `Paused`, and gates in `DryRun` after all others. Defaults to 0.
    #[serde(default)]
    #[schemars(range(min = -1_000_000, max = 1_000_000))]
    pub priority: i32,
    /// Determines how long the gate looks after a node. `Bootstrap`, the default, verifies a node once, before it
    /// accepts workloads. `Continuous` also verifies nodes again at the interval `continuous.periodSeconds`, and taints
    /// a node that fails `continuous.failureThreshold` times in a row.
    #[serde(default)]
    pub mode: Mode,
    /// Determines whether the gate acts on nodes. `Enforce`, the default, removes the taint from nodes that pass and
    /// adds it to verified nodes that fail. `Audit` runs one worker on a gated node, removes the taint whatever the worker
    /// finds, at the latest two minutes after the node is Ready, and counts in `status.audit` what it would have held; it
    /// is meant for the first days. `DryRun` runs workers and reports in Events what it would do, but writes no
    /// Node. `Paused` starts no workers and leaves all taints as they are.
    #[serde(default)]
    pub enforcement: Enforcement,
    /// Lists the taints that keep a node gated. A node that carries at least one of them is gated; all of them are
    /// removed when the node passes. Nodes that carry none are left alone. A taint is identified by key and effect,
    /// whatever its value. At least 1 and at most 8 taints; defaults to `node-ready/unverified:NoSchedule`.
    #[serde(default = "NodeGateSpec::taints")]
    #[schemars(length(min = 1, max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["key", "effect"]))]
    pub taints: Vec<GateTaint>,
    /// Names the label that a node receives in the same patch that removes its taints. The label is informational:
    /// adding it does not open the gate. Removing it from a verified node requests a new verification of that node.
    #[serde(default)]
    pub verified_label: VerifiedLabel,
    /// Configures the checks that a worker runs on the node. `dns`, `api`, `tcp`, `services` and `peers` always run,
    /// unless `skip` lists them; naming one of them changes its options. `http`, `clock`, `mtu` and `exec` run only if
    /// they are named.
    #[serde(default)]
    pub checks: Checks,
    /// Configures the worker pods that run the checks. Settings that are left out are taken from the installation of
    /// the controller.
    #[serde(default)]
    pub worker: Worker,
    /// Lists what a gated node has to show before a worker is created for it. A node always has to be Ready and
    /// schedulable. While a node waits, no attempt is counted and no deadline runs.
    #[serde(default)]
    pub wait_for: WaitFor,
    /// Controls how many attempts a node has and how long the controller waits between them.
    #[serde(default)]
    pub retry: Retry,
    /// Limits how long a check, a worker and the verification of a node may take.
    #[serde(default)]
    pub deadlines: Deadlines,
    /// Controls how verified nodes are verified again. It is used only if `mode` is `Continuous`.
    #[serde(default)]
    pub continuous: Continuous,
    /// Determines what happens to a node that failed all its attempts. `KeepTainted`, the default, leaves it tainted
    /// and verifies it again at an interval, so that a node that recovers is admitted. `Replace` also creates a
    /// NodeRemediation; the RemediationPolicy decides whether and when the node is replaced.
    #[serde(default)]
    pub on_failure: FailureAction,
    /// Determines what happens to a node for which no worker reached a verdict within `deadlines.gateSeconds`.
    /// `KeepTainted`, the default, leaves it tainted and keeps trying. `Replace` also creates a NodeRemediation, but
    /// only if workers with the same image recently reached verdicts on other nodes.
    #[serde(default)]
    pub on_stuck: FailureAction,
    /// Determines what happens when a verified node boots again. `Verify`, the default, runs a worker and taints the
    /// node only if that worker fails. `Regate` taints the node at once and verifies it like a new one. `Ignore` does
    /// nothing.
    #[serde(default)]
    pub on_reboot: OnReboot,
    /// Determines whether the verdict is also written as a condition of the Node, which costs one more write per
    /// change. `None`, the default, writes no condition. `NetworkVerified` maintains a condition of that type; the
    /// controller then needs permission to patch `nodes/status`.
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
            checks: Checks::default(),
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

/// A taint that keeps a node gated until a worker has verified the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GateTaint {
    /// The key of the taint, with an optional DNS prefix, for example `node-ready/unverified`. Keys that belong to
    /// Kubernetes or to an autoscaler are rejected.
    #[schemars(
        length(min = 1, max = 317),
        regex(pattern = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
    )]
    pub key: String,
    /// The value that the taint is given when the controller adds it to a node. It is not compared when the controller
    /// looks for the taint. Defaults to the empty string.
    #[serde(default)]
    #[schemars(length(max = 63), regex(pattern = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"))]
    pub value: String,
    /// Determines what the taint does to pods that do not tolerate it. `NoSchedule`, the default, keeps new pods off
    /// the node. `PreferNoSchedule` only makes the scheduler avoid the node. `NoExecute` also evicts running pods; it
    /// cannot be combined with the mode `Continuous`.
    #[serde(default)]
    pub effect: TaintEffect,
}

impl Default for GateTaint {
    fn default() -> Self {
        Self { key: "node-ready/unverified".into(), value: "true".into(), effect: TaintEffect::NoSchedule }
    }
}

/// The effect of a taint on pods that do not tolerate it: `NoSchedule`, `PreferNoSchedule` or `NoExecute`. A toleration
/// that leaves it out tolerates taints of every effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TaintEffect {
    /// New pods are not scheduled to the node.
    #[default]
    NoSchedule,
    /// New pods are scheduled to the node only if no other node fits.
    PreferNoSchedule,
    /// New pods are not scheduled to the node, and running pods are evicted from it.
    NoExecute,
}

impl TaintEffect {
    /// The spelling of the Kubernetes API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoSchedule => "NoSchedule",
            Self::PreferNoSchedule => "PreferNoSchedule",
            Self::NoExecute => "NoExecute",
        }
    }
}

/// The label that a verified node carries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VerifiedLabel {
    /// The key of the label, with an optional DNS prefix. Labels of Kubernetes itself are rejected. Defaults to
    /// `node-ready/verified`.
    #[serde(default = "VerifiedLabel::key")]
    #[schemars(
        length(min = 1, max = 317),
        regex(pattern = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
    )]
    pub key: String,
    /// The value that the label is set to, at most 63 characters. Defaults to `true`.
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
