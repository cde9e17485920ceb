//! The interface between the scenarios and the cluster they run in. Everything else goes through the API.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use kube::Client;
use nodekeeper_operator::clock::Clock;
use parking_lot::Mutex;
use serde_json::{Value, json};

pub const TAINT: &str = "node-ready/unverified";
pub const LABEL: &str = "node-ready/verified";
pub const NAMESPACE: &str = "nodekeeper-system";
/// The namespace of pods that are not workers.
pub const WORKLOADS: &str = "default";
pub const IMAGE: &str = "nodekeeper.local/worker:1";
pub const MISSING: &str = "nodekeeper.local/missing:1";

/// A cluster with DNS and a namespace for workers, without nodes, gates and controllers.
#[expect(async_fn_in_trait, reason = "only tests use it, and no caller needs the futures to be Send")]
pub trait World {
    /// A client with all rights.
    fn client(&self) -> Client;

    fn clock(&self) -> Clock;

    /// The timeout of all expectations.
    fn patience(&self) -> Duration;

    /// Scales a number of nodes down for worlds with a real API server and clock.
    fn about(&self, nodes: usize) -> usize;

    fn behaviours(&self) -> &WorkerBehaviours;

    /// Registers a node, which becomes Ready unless `machine` says otherwise.
    async fn join(&self, machine: Machine) -> Result<()>;

    async fn say_ready(&self, node: &str, ready: bool) -> Result<()>;

    async fn reboot(&self, node: &str) -> Result<()>;

    /// Switches the machine off: its kubelet reports nothing more.
    async fn power_off(&self, node: &str) -> Result<()>;

    /// Debugging information for failed expectations.
    fn hint(&self) -> String;
}

#[derive(Clone, Debug)]
pub struct Machine {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Value>,
    pub ready: bool,
}

/// A machine that registers with the gate's taint.
pub fn machine(name: &str) -> Machine {
    Machine { name: name.to_owned(), labels: BTreeMap::new(), taints: vec![taint(TAINT)], ready: true }
}

impl Machine {
    pub fn labelled(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.to_owned(), value.to_owned());
        self
    }
}

pub fn taint(key: &str) -> Value {
    json!({"key": key, "value": "true", "effect": "NoSchedule"})
}

/// How the workers on a node behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerBehaviour {
    /// The first workers report that DNS fails; later ones pass.
    Fails { first: u32 },
    /// Workers run until the check timeout, and fail.
    TimesOut,
    /// Workers run and do not end.
    Hangs,
}

pub const WORKS: WorkerBehaviour = WorkerBehaviour::Fails { first: 0 };
pub const BROKEN: WorkerBehaviour = WorkerBehaviour::Fails { first: u32::MAX };

/// Workers pass on nodes that are not set.
#[derive(Clone, Debug, Default)]
pub struct WorkerBehaviours(Arc<Mutex<BTreeMap<String, WorkerBehaviour>>>);

impl WorkerBehaviours {
    pub fn set(&self, node: &str, behaviour: WorkerBehaviour) {
        self.0.lock().insert(node.to_owned(), behaviour);
    }

    pub fn of(&self, node: &str) -> WorkerBehaviour {
        self.get(node).unwrap_or(WORKS)
    }

    pub fn get(&self, node: &str) -> Option<WorkerBehaviour> {
        self.0.lock().get(node).copied()
    }
}
