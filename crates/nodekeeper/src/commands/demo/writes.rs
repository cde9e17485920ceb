//! Counts what the controller writes, and about whom.

use std::collections::BTreeMap;

use nodekeeper_sim::object::{is_deleting, text};
use nodekeeper_sim::store::Change;
use serde_json::Value;

use super::stage::CONTROLLER;

/// Writes that landed, but for those to the lease, which go on whether anybody joins or not.
#[derive(Clone, Debug, Default)]
pub struct Writes {
    /// Pods made.
    pub started: u32,
    /// Pods deleted.
    pub removed: u32,
    /// Nodes patched.
    pub patched: u32,
    /// Events written.
    pub told: u32,
    by_node: BTreeMap<String, u32>,
}

impl Writes {
    /// Counts a change, if the controller made it.
    pub fn count(&mut self, change: &Change) {
        let Some(object) = change.after.as_ref().or(change.before.as_ref()) else { return };
        if change.user != CONTROLLER {
            return;
        }
        let (counter, node) = match change.collection.as_str() {
            "nodes" => (&mut self.patched, change.key.as_str()),
            "pods" if change.before.is_none() => (&mut self.started, worker_of(object)),
            "pods" if change.before.as_ref().is_some_and(|before| !is_deleting(before)) => {
                (&mut self.removed, worker_of(object))
            }
            "events" => (&mut self.told, text(object, "involvedObject.name")),
            _ => return,
        };
        *counter += 1;
        *self.by_node.entry(node.to_owned()).or_default() += 1;
    }

    /// All of them.
    pub fn all(&self) -> u32 {
        self.started + self.removed + self.patched + self.told
    }

    /// Those about one node.
    pub fn about(&self, node: &str) -> u32 {
        self.by_node.get(node).copied().unwrap_or_default()
    }
}

fn worker_of(pod: &Value) -> &str {
    pod["metadata"]["annotations"]["nodekeeper.dev/node-name"].as_str().unwrap_or_default()
}
