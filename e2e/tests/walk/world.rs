//! The interface between the scenarios and the cluster they run in.

use std::time::Duration;

use anyhow::Result;
use kube::Client;
use nodekeeper_core::api::{Deadlines, NodeGateSpec, Retry};

pub const TAINT: &str = "node-ready/unverified";
pub const LABEL: &str = "node-ready/verified";
pub const NAMESPACE: &str = "nodekeeper-system";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dns {
    Runs,
    NotYet,
}

/// A cluster of three Ready nodes with the gate's taint, without a controller.
pub trait World {
    fn nodes(&self) -> Vec<String>;

    /// A client with all rights.
    fn client(&self) -> Client;

    /// The timeout of all expectations.
    fn patience(&self) -> Duration;

    /// Creates the gate and starts the controller.
    async fn start_controller(&mut self, gate: &NodeGateSpec) -> Result<()>;

    async fn break_dns(&self, node: &str) -> Result<()>;

    async fn heal_dns(&self, node: &str) -> Result<()>;

    /// Starts cluster DNS in a world with [`Dns::NotYet`].
    async fn start_cluster_dns(&self) -> Result<()>;

    /// Debugging information for failed expectations.
    fn hint(&self) -> String;
}

/// A gate like a user's, with shorter timeouts.
pub fn gate() -> NodeGateSpec {
    NodeGateSpec {
        retry: Retry { recheck_period_seconds: 10, ..Retry::default() },
        deadlines: Deadlines { check_seconds: 2, worker_seconds: 60, ..Deadlines::default() },
        ..NodeGateSpec::default()
    }
}
