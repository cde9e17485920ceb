//! The assignment of a worker: its checks, the node that they are for, and the time that they may take.

use serde::{Deserialize, Serialize};

use super::Checks;

/// Identifies what a worker verifies. The report repeats it, so that the controller can match a verdict to the current
/// state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
// Workers outlive releases: one made by the next is still recognised after a rollback.
#[serde(rename_all = "camelCase", default)]
pub struct WorkerIdentity {
    pub node_uid: String,
    /// The boot of the node that is verified.
    pub boot_id: String,
    pub gate_uid: String,
    pub gate_generation: i64,
    /// Numbers the workers of a node, from 1.
    pub number: u32,
}

/// What a worker has to do. The controller passes it as JSON in an environment variable of the worker container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Assignment {
    /// The default if the worker is run by hand.
    #[serde(default, rename = "subject")]
    pub identity: WorkerIdentity,
    /// The time that one check may take.
    pub check_timeout_seconds: u32,
    /// The time that all checks may take together.
    pub deadline_seconds: u32,
    /// The maximum size of the report, where it is less than the limit of a termination message: the kubelet truncates
    /// the termination messages of all containers of a pod together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report_bytes: Option<u32>,
    pub checks: Checks,
}

impl Assignment {
    /// The environment variable that holds the assignment.
    pub const ENV: &'static str = "NODEKEEPER_ASSIGNMENT";
}

impl Default for Assignment {
    fn default() -> Self {
        Self {
            identity: WorkerIdentity::default(),
            check_timeout_seconds: 10,
            deadline_seconds: 120,
            report_bytes: None,
            checks: Checks::default().resolve(),
        }
    }
}
