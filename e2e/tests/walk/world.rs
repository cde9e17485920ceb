//! What a scenario needs of the cluster it runs in, and no more.

use std::time::Duration;

use anyhow::Result;
use kube::Client;
use nodekeeper_core::api::{Deadlines, NodeGateSpec, Retry};

pub const TAINT: &str = "node-ready/unverified";
pub const LABEL: &str = "node-ready/verified";
pub const NAMESPACE: &str = "nodekeeper-system";

/// Whether cluster DNS runs when a world begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dns {
    Runs,
    NotYet,
}

/// A cluster of three nodes that are Ready and bear the gate's taint, without a controller.
pub trait World {
    /// The names of the nodes.
    fn nodes(&self) -> Vec<String>;

    /// A client that may do everything.
    fn client(&self) -> Client;

    /// Whatever comes true at all comes true within this.
    fn patience(&self) -> Duration;

    /// Installs the gate and starts the controller.
    async fn start_controller(&mut self, gate: &NodeGateSpec) -> Result<()>;

    /// From now on no name resolves on this node.
    async fn break_dns(&self, node: &str) -> Result<()>;

    /// Names resolve again.
    async fn heal_dns(&self, node: &str) -> Result<()>;

    /// Cluster DNS, which was [`Dns::NotYet`], is started.
    async fn start_cluster_dns(&self) -> Result<()>;

    /// What to look at when something did not come true.
    fn hint(&self) -> String;
}

/// A gate as a user would write it, but more impatient.
pub fn gate() -> NodeGateSpec {
    NodeGateSpec {
        retry: Retry { recheck_period_seconds: 10, ..Retry::default() },
        deadlines: Deadlines { check_seconds: 2, worker_seconds: 60, ..Deadlines::default() },
        ..NodeGateSpec::default()
    }
}
