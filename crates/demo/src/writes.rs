//! Counts the writes of the controller, in total and by node.

use std::collections::BTreeMap;

use nodekeeper_sim::object::{is_deleting, text};
use nodekeeper_sim::store::Change;
use nodekeeper_sim::value::Value;

use crate::cluster::CONTROLLER;

/// Writes that the API server accepted, except those to the Lease.
#[derive(Clone, Debug, Default)]
pub struct Writes {
    pub pods_created: u32,
    pub pods_deleted: u32,
    pub node_patches: u32,
    pub events: u32,
    by_node: BTreeMap<String, u32>,
}

impl Writes {
    /// Counts a change that the controller made.
    pub fn count(&mut self, change: &Change) {
        let Some(object) = change.after.as_ref().or(change.before.as_ref()) else { return };
        if change.user != CONTROLLER {
            return;
        }
        let (counter, node) = match change.collection.as_str() {
            "nodes" => (&mut self.node_patches, change.key.as_str()),
            "pods" if change.before.is_none() => (&mut self.pods_created, worker_node(object)),
            "pods" if change.before.as_ref().is_some_and(|before| !is_deleting(before)) => {
                (&mut self.pods_deleted, worker_node(object))
            }
            "events" => (&mut self.events, text(object, "involvedObject.name")),
            _ => return,
        };
        *counter += 1;
        *self.by_node.entry(node.to_owned()).or_default() += 1;
    }

    pub fn total(&self) -> u32 {
        self.pods_created + self.pods_deleted + self.node_patches + self.events
    }

    pub fn for_node(&self, node: &str) -> u32 {
        self.by_node.get(node).copied().unwrap_or_default()
    }
}

fn worker_node(pod: &Value) -> &str {
    pod["metadata"]["annotations"]["nodekeeper.dev/node-name"].as_str().unwrap_or_default()
}
