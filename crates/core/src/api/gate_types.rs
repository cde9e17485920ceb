//! The types of a gate's spec that concern timing and the reaction to a verdict.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How long a gate looks after a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Mode {
    /// The node is verified once, before it accepts workloads.
    #[default]
    Bootstrap,
    /// The node is also verified periodically, and tainted again if it keeps failing.
    Continuous,
}

/// Whether a gate acts on nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Enforcement {
    /// The gate removes and adds taints.
    #[default]
    Enforce,
    /// The gate runs the checks and removes the taint whatever they find, at the latest 120 seconds after the node became
    /// Ready. `status.audit` and Events say which nodes it would have held. It sets the verified label only on nodes that
    /// pass, taints no node again and requests no remediation.
    Audit,
    /// The gate runs workers and reports in Events what it would do; it writes no Node.
    DryRun,
    /// The gate does nothing; tainted nodes stay tainted.
    Paused,
}

impl Enforcement {
    /// The spelling of the API field.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Enforce => "Enforce",
            Self::Audit => "Audit",
            Self::DryRun => "DryRun",
            Self::Paused => "Paused",
        }
    }
}

/// What happens to a node that is not verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FailureAction {
    /// The node stays tainted and is verified again at an interval; one that recovers is admitted.
    #[default]
    KeepTainted,
    /// A NodeRemediation requests that the node be replaced.
    Replace,
}

/// What happens when a verified node boots again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnReboot {
    /// A worker verifies the node in place, and the node is tainted only if that worker fails.
    #[default]
    Verify,
    /// The node is tainted at once and verified like a new one.
    Regate,
    /// The boot is ignored.
    Ignore,
}

/// Whether the verdict is written as a condition of the Node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum NodeCondition {
    /// No condition is written.
    #[default]
    None,
    /// A condition of the type `NetworkVerified` holds the verdict.
    NetworkVerified,
}

/// What a gated node has to show before a worker is created for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WaitFor {
    /// Lists DaemonSets whose pod on the node has to be Ready, for example the network plugin. The controller watches
    /// the pods of waiting nodes for this and needs permission to watch pods in all namespaces. At most 8; defaults to
    /// none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub daemon_sets: Vec<DaemonSetRef>,
    /// Lists conditions that the Node has to have, for example one that a network plugin or node-problem-detector sets.
    /// At most 8; defaults to none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<AwaitedCondition>,
    /// Lists keys of taints that the node must no longer carry, whatever their value and effect. Taints of the gate
    /// itself are rejected. At most 8; defaults to none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 8),
        inner(length(min = 1, max = 317)),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub taints: Vec<String>,
    /// Determines whether a node of Karpenter has to be registered first. `Wait`, the default, waits until the taint
    /// `karpenter.sh/unregistered` is gone and, for a node that belongs to a node pool, until the label
    /// `karpenter.sh/registered` is `true`. `Ignore` does not wait. Other nodes are not affected.
    #[serde(default)]
    pub karpenter: Awaited,
    /// Determines whether the node has to be initialized first. `Wait`, the default, waits until the taints
    /// `node.cloudprovider.kubernetes.io/uninitialized` and `node.cluster.x-k8s.io/uninitialized` are gone. `Ignore`
    /// does not wait.
    #[serde(default)]
    pub cloud: Awaited,
}

/// Whether a worker waits for another component.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Awaited {
    /// A worker is created only after the component has finished.
    #[default]
    Wait,
    /// A worker is created without waiting.
    Ignore,
}

/// A condition that the Node has to have before a worker is created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[x_kube(
    validation = Rule::new("self.type != 'NetworkVerified'")
        .message("`type` must not be `NetworkVerified`, which the gate sets after a worker has run"),
)]
#[serde(rename_all = "camelCase")]
pub struct AwaitedCondition {
    /// The type of the condition that is waited for.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = 316))]
    pub type_: String,
    /// The status that the condition has to have: `True`, the default, `False` or `Unknown`. A condition that the Node
    /// does not have is waited for.
    #[serde(default)]
    pub status: ConditionStatus,
}

/// The status of a condition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ConditionStatus {
    /// The condition applies.
    #[default]
    True,
    /// The condition does not apply.
    False,
    /// The component that sets the condition cannot tell.
    Unknown,
}

impl ConditionStatus {
    /// The spelling of the Kubernetes API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// A DaemonSet whose pod has to be Ready on the node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DaemonSetRef {
    /// The namespace that the DaemonSet is in.
    #[schemars(length(min = 1, max = 63))]
    pub namespace: String,
    /// The name of the DaemonSet that controls the awaited pod.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// How verified nodes are verified again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Continuous {
    /// The interval in seconds at which a verified node is verified again, from 300 to 2592000 (30 days). Nodes are spread
    /// evenly over it, so the first time comes after half to one and a half of it. It is stretched in large clusters, so that
    /// at most one such worker starts per second. Defaults to 21600 (6 hours).
    #[serde(default = "Continuous::period_seconds")]
    #[schemars(range(min = 300, max = 2_592_000))]
    pub period_seconds: i32,
    /// The number of consecutive failed verifications, from 1 to 100, after which the node is tainted again. After a
    /// failure the node is verified again after `retry.recheckPeriodSeconds`. Defaults to 3.
    #[serde(default = "Continuous::failure_threshold")]
    #[schemars(range(min = 1, max = 100))]
    pub failure_threshold: i32,
}

impl Continuous {
    fn period_seconds() -> i32 {
        6 * 3600
    }

    fn failure_threshold() -> i32 {
        3
    }
}

impl Default for Continuous {
    fn default() -> Self {
        Self { period_seconds: Self::period_seconds(), failure_threshold: Self::failure_threshold() }
    }
}

/// How many attempts a node has and how long the controller waits between them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Retry {
    /// The number of attempts after the first one, from 0 to 100. A worker that reaches no verdict does not count as an
    /// attempt. A node that used up its attempts is verified again every `recheckPeriodSeconds`. Defaults to 5.
    #[serde(default = "Retry::max_retries")]
    #[schemars(range(min = 0, max = 100))]
    pub max_retries: i32,
    /// Determines how the delay between attempts grows. `Exponential`, the default, waits 1, 2, 4, 8, 16 and then 30
    /// seconds. `Linear` waits 5, 10, 15 and so on up to 30 seconds. Up to a fifth is added at random.
    #[serde(default)]
    pub backoff: Backoff,
    /// The interval in seconds, from 10 to 86400 (1 day), at which a node is verified again after it used up its
    /// attempts. Defaults to 300.
    #[serde(default = "Retry::recheck_period_seconds")]
    #[schemars(range(min = 10, max = 86_400))]
    pub recheck_period_seconds: i32,
}

impl Retry {
    fn max_retries() -> i32 {
        5
    }

    fn recheck_period_seconds() -> i32 {
        300
    }
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            max_retries: Self::max_retries(),
            backoff: Backoff::default(),
            recheck_period_seconds: Self::recheck_period_seconds(),
        }
    }
}

/// How the delay between attempts grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Backoff {
    /// 1, 2, 4, 8, 16, 30 seconds.
    #[default]
    Exponential,
    /// 5, 10, 15 … 30 seconds.
    Linear,
}

/// How long a check, a worker and the verification of a node may take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Deadlines {
    /// The time in seconds that a single check may take, from 1 to 600. A check without an answer by then fails. It
    /// must be at least 6 seconds less than `workerSeconds`. Defaults to 10.
    #[serde(default = "Deadlines::check_seconds")]
    #[schemars(range(min = 1, max = 600))]
    pub check_seconds: i32,
    /// The time in seconds that a worker pod may take from its start to its end, from 7 to 3600, image pulls included.
    /// A worker that does not end by then reaches no verdict. It must not exceed `gateSeconds`. Defaults to 120.
    #[serde(default = "Deadlines::worker_seconds")]
    #[schemars(range(min = 7, max = 3_600))]
    pub worker_seconds: i32,
    /// The time in seconds that the workers of one node may take in total, with the delays between them, without
    /// reaching a verdict, from 30 to 86400. After that the node is stuck and `onStuck` applies. Defaults to 600, which
    /// is less than the 15 minutes after which Cluster Autoscaler considers a node broken.
    #[serde(default = "Deadlines::gate_seconds")]
    #[schemars(range(min = 30, max = 86_400))]
    pub gate_seconds: i32,
}

impl Deadlines {
    fn check_seconds() -> i32 {
        10
    }

    fn worker_seconds() -> i32 {
        120
    }

    fn gate_seconds() -> i32 {
        600
    }
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            check_seconds: Self::check_seconds(),
            worker_seconds: Self::worker_seconds(),
            gate_seconds: Self::gate_seconds(),
        }
    }
}
