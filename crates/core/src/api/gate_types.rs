//! What a gate is told to do with its nodes: when, how often, for how long, and what then.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// For how long a gate looks after a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Mode {
    /// Until it is verified.
    #[default]
    Bootstrap,
    /// For ever: verified nodes are looked at again, and tainted if they keep failing.
    Continuous,
}

/// Whether a gate acts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Enforcement {
    /// It does.
    #[default]
    Enforce,
    /// It runs workers and says what it would do; it writes no Node.
    DryRun,
    /// It does nothing. Tainted nodes stay tainted.
    Paused,
}

impl Enforcement {
    /// As it is written.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Enforce => "Enforce",
            Self::DryRun => "DryRun",
            Self::Paused => "Paused",
        }
    }
}

/// What becomes of a node that does not pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FailureAction {
    /// It stays tainted and is looked at every `retry.recheckSeconds`: a node that heals is let in.
    #[default]
    KeepTainted,
    /// It is replaced.
    Replace,
}

/// What a boot means to a verified node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnReboot {
    /// A worker looks at it, and only one that fails taints it again.
    #[default]
    Verify,
    /// It is tainted at once, and verified as a new node is.
    Regate,
    /// Nothing.
    Ignore,
}

/// Whether the verdict is written as a condition of the Node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum NodeCondition {
    /// It is not.
    #[default]
    None,
    /// As the condition of this type.
    NetworkVerified,
}

/// What a node has to be before a worker is sent to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WaitFor {
    /// DaemonSets whose pod on the node is Ready: those that bring up its network. The pods of waiting nodes are
    /// watched for it, so the controller needs the right to read pods in all namespaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub daemon_sets: Vec<DaemonSetRef>,
    /// A node of Karpenter is waited for until Karpenter has registered it.
    #[serde(default)]
    pub karpenter: Awaited,
    /// A node is waited for until the cloud's controller has initialised it.
    #[serde(default)]
    pub cloud: Awaited,
}

/// Whether something is waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Awaited {
    /// It is, where the node shows that it will come.
    #[default]
    Wait,
    /// It is not.
    Ignore,
}

/// A DaemonSet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DaemonSetRef {
    /// Its namespace.
    #[schemars(length(min = 1, max = 63))]
    pub namespace: String,
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// How verified nodes are looked at again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Continuous {
    /// How often. In a large cluster it is less: no more than one worker a second is started for it.
    #[serde(default = "Continuous::period_seconds")]
    #[schemars(range(min = 300, max = 2_592_000))]
    pub period_seconds: i32,
    /// So many failures in a row taint the node. After a failure it is looked at again in `retry.recheckSeconds`.
    #[serde(default = "Continuous::failures")]
    #[schemars(range(min = 1, max = 100))]
    pub failures: i32,
}

impl Continuous {
    fn period_seconds() -> i32 {
        6 * 3600
    }

    fn failures() -> i32 {
        3
    }
}

impl Default for Continuous {
    fn default() -> Self {
        Self { period_seconds: Self::period_seconds(), failures: Self::failures() }
    }
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
    /// The gate: a node whose workers took so long in all, and none of which could tell, is stuck. Below the 15 minutes
    /// after which Cluster Autoscaler takes a node that has not started for broken.
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
