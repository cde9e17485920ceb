//! The network as the nodes have it: who can resolve names, who cannot, and since when.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

/// Where DNS is down.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outage {
    /// On one node.
    Node(String),
    /// In one zone.
    Zone(String),
    /// Everywhere.
    All,
}

/// The outages there are now. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Network(Arc<Mutex<BTreeSet<Outage>>>);

impl Network {
    /// Begins an outage.
    pub fn fail(&self, outage: Outage) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(outage);
    }

    /// Ends an outage.
    pub fn heal(&self, outage: &Outage) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(outage);
    }

    /// Whether names resolve on a node in a zone.
    #[must_use]
    pub fn resolves(&self, node: &str, zone: &str) -> bool {
        let outages = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        !outages.iter().any(|outage| match outage {
            Outage::Node(name) => name == node,
            Outage::Zone(name) => name == zone,
            Outage::All => true,
        })
    }
}
