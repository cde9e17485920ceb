//! A cloud: machines that are instance and given back. Who replaces what is [`super::karpenter`] and [`super::autoscaler`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::kubelet::{Kubelets, NodeSpec};
use crate::cluster::Cluster;
use crate::network::{Fault, Network, Outage};

/// What is wrong with the machines of a group, by their number: the first fleet has the numbers below the group's size,
/// every later one is a replacement.
#[derive(Clone)]
pub struct Flaws(Arc<dyn Fn(u64) -> Vec<Fault> + Send + Sync>);

impl Flaws {
    /// By number.
    pub fn of(flaws: impl Fn(u64) -> Vec<Fault> + Send + Sync + 'static) -> Self {
        Self(Arc::new(flaws))
    }

    /// What is wrong with a machine.
    #[must_use]
    pub fn at(&self, number: u64) -> Vec<Fault> {
        (self.0)(number)
    }
}

impl Default for Flaws {
    /// All machines are well.
    fn default() -> Self {
        Self::of(|_| Vec::new())
    }
}

impl fmt::Debug for Flaws {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Flaws")
    }
}

/// Machines that alike ones replace: a pool of Karpenter's, or a group of an autoscaler's.
#[derive(Clone, Debug, Default)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// How many machines it keeps.
    pub size: usize,
    /// The zones that its machines are spread over; none if empty.
    pub zones: Vec<String>,
    /// Labels of its nodes, besides those that say whose they are.
    pub labels: BTreeMap<String, String>,
    /// Taints that its nodes are born with; Karpenter's `startupTaints`.
    pub taints: Vec<serde_json::Value>,
    /// What is wrong with its machines.
    pub flaws: Flaws,
}

impl Group {
    /// The name of the node of its machine with this number. No other machine ever has it.
    #[must_use]
    pub fn node(&self, number: u64) -> String {
        format!("{}-{number:04}.sim.internal", self.name)
    }

    /// The machine with this number.
    pub(super) fn machine(&self, number: u64) -> NodeSpec {
        let zone = usize::try_from(number).ok().and_then(|n| self.zones.get(n % self.zones.len().max(1)));
        let zone = zone.cloned().unwrap_or_default();
        NodeSpec {
            name: self.node(number),
            provider_id: format!("sim:///{zone}/{}-{number:04}", self.name),
            zone,
            labels: self.labels.clone(),
            taints: self.taints.clone(),
        }
    }
}

/// The machines that are instance now. Clones are the same cloud.
#[derive(Clone)]
pub struct Cloud {
    kubelets: Kubelets,
    network: Network,
    machines: Arc<Mutex<BTreeMap<String, Instance>>>,
}

struct Instance {
    spec: NodeSpec,
    faults: BTreeSet<Fault>,
}

impl Cloud {
    /// A cloud for a cluster; no machines yet.
    #[must_use]
    pub fn new(cluster: &Cluster, kubelets: &Kubelets) -> Self {
        Self { kubelets: kubelets.clone(), network: cluster.network().clone(), machines: Arc::default() }
    }

    /// Rents a machine, which boots and registers, with what is wrong with it.
    pub fn launch(&self, spec: NodeSpec, faults: Vec<Fault>) {
        for fault in &faults {
            self.network.fail_at(*fault, Outage::Node(spec.name.clone()));
        }
        self.kubelets.join(spec.clone());
        let instance = Instance { spec, faults: faults.into_iter().collect() };
        self.machines().insert(instance.spec.provider_id.clone(), instance);
    }

    /// Gives a machine back, as `TerminateInstance` does: it is off, for ever.
    pub fn terminate(&self, provider_id: &str) {
        let Some(Instance { spec, faults }) = self.machines().remove(provider_id) else { return };
        self.kubelets.remove(&spec.name);
        for fault in faults {
            self.network.heal_at(fault, &Outage::Node(spec.name.clone()));
        }
    }

    /// Whether a machine is instance.
    #[must_use]
    pub fn has(&self, provider_id: &str) -> bool {
        self.machines().contains_key(provider_id)
    }

    /// All machines, by provider id.
    #[must_use]
    pub fn all(&self) -> Vec<NodeSpec> {
        self.machines().values().map(|instance| instance.spec.clone()).collect()
    }

    fn machines(&self) -> MutexGuard<'_, BTreeMap<String, Instance>> {
        self.machines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Slots of a group that are to be filled, each when its time has come.
#[derive(Default)]
pub(super) struct PendingReplacements(Vec<tokio::time::Instant>);

impl PendingReplacements {
    /// How many machines are to be made now, where so many are missing; each a while after it was first missed.
    pub(super) fn due(&mut self, missing: usize, mut pause: impl FnMut() -> std::time::Duration) -> usize {
        let now = tokio::time::Instant::now();
        self.0.truncate(missing);
        while self.0.len() < missing {
            self.0.push(now + pause());
        }
        let before = self.0.len();
        self.0.retain(|due| *due > now);
        before - self.0.len()
    }
}
