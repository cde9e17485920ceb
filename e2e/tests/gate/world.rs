//! What a scenario needs of the cluster it runs in, and no more: machines that join, what becomes of the workers on
//! them, and a client. Everything else is done through the API, as people and other controllers do it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use kube::Client;
use nodekeeper_operator::clock::Clock;
use serde_json::{Value, json};

pub const TAINT: &str = "node-ready/unverified";
pub const LABEL: &str = "node-ready/verified";
pub const NAMESPACE: &str = "nodekeeper-system";
/// Where pods are that are no workers.
pub const WORKLOADS: &str = "default";
pub const IMAGE: &str = "nodekeeper.local/worker:1";
/// No kubelet can pull this one.
pub const MISSING: &str = "nodekeeper.local/missing:1";

/// A cluster whose DNS runs, with a place for workers, and without nodes, gates and controllers.
pub trait World {
    /// A client that may do everything.
    fn client(&self) -> Client;

    /// The time by which controllers are to live.
    fn clock(&self) -> Clock;

    /// Whatever comes true at all comes true within this.
    fn patience(&self) -> Duration;

    /// How many nodes stand here for so many: a real API server on the real clock has fewer.
    fn about(&self, nodes: usize) -> usize;

    /// What becomes of the workers.
    fn behaviours(&self) -> &WorkerBehaviours;

    /// A machine registers, and is Ready soon unless it is told not to be.
    async fn join(&self, machine: Machine) -> Result<()>;

    /// A kubelet says whether its node is Ready.
    async fn say_ready(&self, node: &str, ready: bool) -> Result<()>;

    /// A machine boots again.
    async fn reboot(&self, node: &str) -> Result<()>;

    /// A machine loses its power: nothing more is heard of it.
    async fn power_off(&self, node: &str) -> Result<()>;

    /// What to look at when something did not come true.
    fn hint(&self) -> String;
}

/// A machine that joins.
#[derive(Clone, Debug)]
pub struct Machine {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Value>,
    pub ready: bool,
}

/// A machine before the gate.
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

/// What becomes of the workers on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerBehaviour {
    /// The first of them find that names do not resolve; those after them that all is well.
    Fails { first: u32 },
    /// They wait for an answer as long as a check may, and fail: their slots are taken meanwhile.
    TimesOut,
    /// They run, and do not end.
    Hangs,
}

pub const WORKS: WorkerBehaviour = WorkerBehaviour::Fails { first: 0 };
pub const BROKEN: WorkerBehaviour = WorkerBehaviour::Fails { first: u32::MAX };

/// The behaviour of each node. Where nothing is said, all is well.
#[derive(Clone, Debug, Default)]
pub struct WorkerBehaviours(Arc<Mutex<BTreeMap<String, WorkerBehaviour>>>);

impl WorkerBehaviours {
    pub fn set(&self, node: &str, behaviour: WorkerBehaviour) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(node.to_owned(), behaviour);
    }

    pub fn of(&self, node: &str) -> WorkerBehaviour {
        self.told(node).unwrap_or(WORKS)
    }

    /// What was said of it, if anything.
    pub fn told(&self, node: &str) -> Option<WorkerBehaviour> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(node).copied()
    }
}
