//! `NodeGate`: which nodes, which taint, which checks, how often to try.

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
    doc = "A gate keeps a taint on each new node until workers have proved the node's network.",
    printcolumn = r#"{"name": "Taint", "type": "string", "jsonPath": ".spec.taints[0].key"}"#,
    printcolumn = r#"{"name": "Retries", "type": "integer", "jsonPath": ".spec.retry.maxRetries"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#,
    // A worker keeps five seconds for itself; a check that cannot time out before then could never fail a node.
    validation = Rule::new("self.spec.deadlines.checkSeconds + 5 < self.spec.deadlines.workerSeconds")
        .message("`spec.deadlines.workerSeconds` must be more than `spec.deadlines.checkSeconds` plus 5"),
    validation = Rule::new(
        "!has(self.spec.checks.dns) || self.spec.checks.dns.names.all(n, !n.matches('^[0-9.]+$') && !n.contains(':'))"
    )
    .message("`spec.checks.dns.names` must be names, not IP addresses: those resolve without any DNS; use `tcp` for them"),
    validation = Rule::new(
        "self.spec.taints.all(t, !t.key.matches('^(node|node-role|node.cloudprovider)[.]kubernetes[.]io/|^karpenter[.]sh/|^ToBeDeleted'))"
    )
    .message("`spec.taints` must be taints of your own: those of Kubernetes and of autoscalers are theirs to remove"),
    validation = Rule::new(
        "!self.spec.verifiedLabel.key.matches('(^|[.])(kubernetes|k8s)[.]io/') || self.spec.verifiedLabel.key.contains('node-restriction.kubernetes.io/')"
    )
    .message("`spec.verifiedLabel.key` must not be a label of Kubernetes: it would be overwritten on every node"),
    validation = Rule::new(
        "has(self.spec.checks.dns) || has(self.spec.checks.api) || has(self.spec.checks.tcp) || has(self.spec.checks.services)"
    )
    .message("`spec.checks` must name at least one check; leave it out for the default set"),
)]
#[serde(rename_all = "camelCase")]
pub struct NodeGateSpec {
    /// The nodes that this gate is for: those that bear all of these labels. None: all nodes.
    #[serde(default)]
    pub node_selector: NodeSelector,
    /// The taints that hold a node. A node that bears none of them is left alone.
    #[serde(default = "NodeGateSpec::taints")]
    #[schemars(length(min = 1, max = 8))]
    pub taints: Vec<GateTaint>,
    /// The label that a verified node is given. A courtesy to those who select by it; it opens nothing.
    #[serde(default)]
    pub verified_label: VerifiedLabel,
    /// What a worker checks on the node.
    #[serde(default = "Checks::standard")]
    pub checks: Checks,
    /// How a worker is run.
    #[serde(default)]
    pub worker: Worker,
    /// How often, and how soon again.
    #[serde(default)]
    pub retry: Retry,
    /// How long things may take.
    #[serde(default)]
    pub deadlines: Deadlines,
}

impl NodeGateSpec {
    fn taints() -> Vec<GateTaint> {
        vec![GateTaint::default()]
    }

    /// Whether the gate is for a node with these labels.
    #[must_use]
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        self.node_selector.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
    }
}

impl Default for NodeGateSpec {
    fn default() -> Self {
        Self {
            node_selector: NodeSelector::default(),
            taints: Self::taints(),
            verified_label: VerifiedLabel::default(),
            checks: Checks::standard(),
            worker: Worker::default(),
            retry: Retry::default(),
            deadlines: Deadlines::default(),
        }
    }
}

/// Selects nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeSelector {
    /// Labels that a node must bear, all of them.
    #[serde(default)]
    pub match_labels: BTreeMap<String, String>,
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

/// How a worker is run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Worker {
    /// Its image. None: the one that the controller was installed with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512), regex(pattern = r"^[^\s]+$"))]
    pub image: Option<String>,
}

/// How often a node is tried, and how soon again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Retry {
    /// Attempts after the first. A node that failed them all is tried again every `recheckSeconds`.
    #[serde(default = "Retry::max_retries")]
    #[schemars(range(min = 0, max = 100))]
    pub max_retries: i32,
    /// How the pause between attempts grows, up to 30 seconds.
    #[serde(default)]
    pub backoff: Backoff,
    /// The pause after all attempts are used up.
    #[serde(default = "Retry::recheck_seconds")]
    #[schemars(range(min = 10, max = 86_400))]
    pub recheck_seconds: i32,
}

impl Retry {
    fn max_retries() -> i32 {
        5
    }

    fn recheck_seconds() -> i32 {
        300
    }
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            max_retries: Self::max_retries(),
            backoff: Backoff::default(),
            recheck_seconds: Self::recheck_seconds(),
        }
    }
}

/// How a pause grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Backoff {
    /// 1, 2, 4, 8, 16, 30 seconds.
    #[default]
    Exponential,
    /// 5, 10, 15 … 30 seconds.
    Linear,
}

/// How long things may take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Deadlines {
    /// One check.
    #[serde(default = "Deadlines::check_seconds")]
    #[schemars(range(min = 1, max = 600))]
    pub check_seconds: i32,
    /// A worker, from its start to its end.
    #[serde(default = "Deadlines::worker_seconds")]
    #[schemars(range(min = 7, max = 3_600))]
    pub worker_seconds: i32,
}

impl Deadlines {
    fn check_seconds() -> i32 {
        10
    }

    fn worker_seconds() -> i32 {
        120
    }
}

impl Default for Deadlines {
    fn default() -> Self {
        Self { check_seconds: Self::check_seconds(), worker_seconds: Self::worker_seconds() }
    }
}
