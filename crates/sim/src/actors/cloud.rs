//! A cloud provider: machines are launched and terminated. [`super::karpenter`] and [`super::autoscaler`] replace
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::kubelet::{Kubelets, NodeSpec};
use crate::cluster::Cluster;
use crate::network::{Fault, Network, Outage};

/// The network faults of a group's machines, by machine number. Numbers below the group's size are the first fleet,
/// later ones are replacements.
#[derive(Clone)]
pub struct Flaws(Arc<dyn Fn(u64) -> Vec<Fault> + Send + Sync>);

impl Flaws {
    pub fn of(flaws: impl Fn(u64) -> Vec<Fault> + Send + Sync + 'static) -> Self {
        Self(Arc::new(flaws))
    }

    #[must_use]
    pub fn at(&self, number: u64) -> Vec<Fault> {
        (self.0)(number)
    }
}

impl Default for Flaws {
    fn default() -> Self {
        Self::of(|_| Vec::new())
    }
}

impl fmt::Debug for Flaws {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Flaws")
    }
}

/// Machines that replace each other: a Karpenter `NodePool`, or a group of an autoscaler.
#[derive(Clone, Debug, Default)]
pub struct Group {
    pub name: String,
    pub size: usize,
    /// Machines are spread over these zones; they have no zone if it is empty.
    pub zones: Vec<String>,
    /// Labels of its nodes besides the group label.
    pub labels: BTreeMap<String, String>,
    /// Taints that its nodes register with; `startupTaints` of a Karpenter `NodePool`.
    pub taints: Vec<crate::value::Value>,
    pub flaws: Flaws,
}

impl Group {
    /// The node name of the machine with this number. Names are never reused.
    #[must_use]
    pub fn node(&self, number: u64) -> String {
        format!("{}-{number:04}.sim.internal", self.name)
    }

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

/// The machines that run now. Clones share them.
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
    #[must_use]
    pub fn new(cluster: &Cluster, kubelets: &Kubelets) -> Self {
        Self { kubelets: kubelets.clone(), network: cluster.network().clone(), machines: Arc::default() }
    }

    /// Launches a machine, which boots and registers with these network faults.
    pub fn launch(&self, spec: NodeSpec, faults: Vec<Fault>) {
        for fault in &faults {
            self.network.fail_at(*fault, Outage::Node(spec.name.clone()));
        }
        self.kubelets.join(spec.clone());
        let instance = Instance { spec, faults: faults.into_iter().collect() };
        self.machines().insert(instance.spec.provider_id.clone(), instance);
    }

    /// Terminates a machine for good, as `TerminateInstances` does.
    pub fn terminate(&self, provider_id: &str) {
        let Some(Instance { spec, faults }) = self.machines().remove(provider_id) else { return };
        self.kubelets.remove(&spec.name);
        for fault in faults {
            self.network.heal_at(fault, &Outage::Node(spec.name.clone()));
        }
    }

    #[must_use]
    pub fn has(&self, provider_id: &str) -> bool {
        self.machines().contains_key(provider_id)
    }

    #[must_use]
    pub fn all(&self) -> Vec<NodeSpec> {
        self.machines().values().map(|instance| instance.spec.clone()).collect()
    }

    fn machines(&self) -> MutexGuard<'_, BTreeMap<String, Instance>> {
        self.machines.lock()
    }
}

/// When each missing machine of a group is due.
#[derive(Default)]
pub(super) struct PendingReplacements(Vec<tokio::time::Instant>);

impl PendingReplacements {
    /// How many machines to create now. Each is due a pause after it was first missing.
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
