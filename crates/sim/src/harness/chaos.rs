//! What happens to a cluster besides the program under test: machines come, reboot and die, other people write,
//! history is compacted, clocks jump, DNS goes down.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::SignedDuration;
use serde_json::json;
use tokio::time::{Instant, sleep, timeout_at};

use crate::actors::cloud::Cloud;
use crate::actors::kubelet::{Kubelets, Lie, NodeSpec};
use crate::clock::Clock;
use crate::cluster::{Cluster, Local};
use crate::faults::Coverage;
use crate::network::Outage;
use crate::object::{items, set};

use super::Scenario;

pub(super) struct Chaos {
    cluster: Cluster,
    somebody: Local,
    kubelets: Kubelets,
    cloud: Cloud,
    nodes: Vec<NodeSpec>,
    random: fastrand::Rng,
    forged: (String, String),
    meddle: fn(&Local, &mut fastrand::Rng) -> Option<&'static str>,
    coverage: Arc<Mutex<Coverage>>,
    outages: Vec<Outage>,
    off: Vec<String>,
}

/// What may happen next, and how often compared to the others.
#[derive(Clone, Copy)]
enum Misfortune {
    ForeignWrite,
    Meddling,
    Reboot,
    PowerOff,
    PowerOn,
    DeleteNode,
    LieBegins,
    LieEnds,
    DnsDown,
    DnsUp,
    Compaction,
    ClockJump,
}

const MISFORTUNES: &[(Misfortune, u32)] = &[
    (Misfortune::ForeignWrite, 30),
    (Misfortune::Meddling, 10),
    (Misfortune::Reboot, 4),
    (Misfortune::PowerOff, 3),
    (Misfortune::PowerOn, 4),
    (Misfortune::DeleteNode, 6),
    (Misfortune::LieBegins, 10),
    (Misfortune::LieEnds, 14),
    (Misfortune::DnsDown, 3),
    (Misfortune::DnsUp, 4),
    (Misfortune::Compaction, 4),
    (Misfortune::ClockJump, 2),
];

impl Chaos {
    pub(super) fn new(
        cluster: &Cluster,
        (kubelets, cloud): (&Kubelets, &Cloud),
        scenario: &Scenario,
        nodes: Vec<NodeSpec>,
        seed: u64,
        coverage: Arc<Mutex<Coverage>>,
    ) -> Self {
        Self {
            cluster: cluster.clone(),
            somebody: cluster.local("somebody"),
            kubelets: kubelets.clone(),
            cloud: cloud.clone(),
            nodes,
            random: fastrand::Rng::with_seed(seed),
            forged: scenario.forged.clone(),
            meddle: scenario.meddle,
            coverage,
            outages: Vec::new(),
            off: Vec::new(),
        }
    }

    /// Makes trouble until the given time, then makes it good.
    pub(super) async fn run(mut self, clocks: Vec<Clock>, until: Instant) {
        let trouble = async {
            for node in self.nodes.clone() {
                self.kubelets.join(node);
                let pause = self.random.u64(0..3_000);
                sleep(Duration::from_millis(pause)).await;
            }
            loop {
                let pause = self.random.u64(100..4_000);
                sleep(Duration::from_millis(pause)).await;
                let misfortune = self.choose();
                self.strike(misfortune, &clocks);
            }
        };
        let _ = timeout_at(until, trouble).await;
        self.heal();
    }

    fn choose(&mut self) -> Misfortune {
        let all: u32 = MISFORTUNES.iter().map(|(_, weight)| weight).sum();
        let mut dice = self.random.u32(0..all);
        for (misfortune, weight) in MISFORTUNES {
            if dice < *weight {
                return *misfortune;
            }
            dice -= weight;
        }
        Misfortune::ForeignWrite
    }

    /// One of the machines there are now, rented ones included.
    fn choose_node(&mut self) -> Option<NodeSpec> {
        let rented = self.cloud.all();
        let all = self.nodes.len() + rented.len();
        let i = (all > 0).then(|| self.random.usize(..all))?;
        self.nodes.get(i).or_else(|| rented.get(i - self.nodes.len())).cloned()
    }

    fn strike(&mut self, misfortune: Misfortune, clocks: &[Clock]) {
        let Some(node) = self.choose_node() else { return };
        let what = match misfortune {
            Misfortune::ForeignWrite => self.write_as_somebody(&node.name),
            Misfortune::Meddling => (self.meddle)(&self.somebody, &mut self.random),
            Misfortune::Reboot => {
                let down_for = Duration::from_millis(self.random.u64(500..60_000));
                self.kubelets.reboot(&node.name, down_for);
                Some("reboot")
            }
            Misfortune::PowerOff => {
                self.kubelets.power_off(&node.name);
                self.off.push(node.name.clone());
                Some("power off")
            }
            Misfortune::PowerOn => self.off.pop().map(|name| {
                self.kubelets.power_on(&name);
                "power on"
            }),
            Misfortune::DeleteNode => self.replace_by_namesake(&node),
            Misfortune::LieBegins => {
                let forged = [self.forged.clone()].into();
                let lie = match self.random.u8(0..3) {
                    0 => Lie { ready: Some(false), ..Lie::default() },
                    1 => Lie { exit_code: Some(0), ..Lie::default() },
                    _ => Lie { labels: forged, ..Lie::default() },
                };
                self.kubelets.lie(&node.name, lie);
                Some("kubelet lies")
            }
            Misfortune::LieEnds => {
                self.kubelets.lie(&node.name, Lie::default());
                Some("kubelet is honest again")
            }
            Misfortune::DnsDown => Some(self.fail_dns(&node)),
            Misfortune::DnsUp => self.outages.pop().map(|outage| {
                self.cluster.network().heal(&outage);
                "DNS back"
            }),
            Misfortune::Compaction => {
                let mut state = self.cluster.state();
                let revision = state.store.revision().saturating_sub(self.random.u64(0..50));
                state.store.compact(revision);
                Some("history compacted (410)")
            }
            Misfortune::ClockJump => {
                let clock = &clocks[self.random.usize(..clocks.len())];
                clock.jump(SignedDuration::from_secs(self.random.i64(-60..60)));
                Some("clock jump")
            }
        };
        if let Some(what) = what {
            self.coverage.lock().unwrap_or_else(PoisonError::into_inner).count(what);
            self.cluster.trace().line(|| format!("chaos: {what} {}", node.name));
        }
    }

    /// The machine is replaced by another of the same name: same name, another uid.
    fn replace_by_namesake(&self, node: &NodeSpec) -> Option<&'static str> {
        if !node.provider_id.is_empty() {
            // A rented machine has no namesake; who replaces it is not chaos.
            return None;
        }
        let object = self.somebody.get("nodes", "", &node.name)?;
        self.somebody.delete(&object, None).ok()?;
        self.kubelets.power_off(&node.name);
        self.kubelets.join(node.clone());
        Some("node deleted and reborn")
    }

    fn fail_dns(&mut self, node: &NodeSpec) -> &'static str {
        let (outage, what) = match self.random.u8(0..4) {
            0 => (Outage::All, "DNS down, all"),
            1 => (Outage::Zone(node.zone.clone()), "DNS down, zone"),
            _ => (Outage::Node(node.name.clone()), "DNS down, node"),
        };
        self.cluster.network().fail(outage.clone());
        self.outages.push(outage);
        what
    }

    /// Somebody else changes what is theirs on the same object.
    fn write_as_somebody(&mut self, name: &str) -> Option<&'static str> {
        let node = self.somebody.get("nodes", "", name)?;
        let n = self.random.u32(0..1_000);
        let choice = self.random.u8(0..3);
        let written = self.somebody.change(&node, None, |node| match choice {
            0 => node["metadata"]["labels"]["somebody.example.com/label"] = json!(n.to_string()),
            1 => node["metadata"]["annotations"]["somebody.example.com/note"] = json!(n.to_string()),
            _ => {
                let mut taints = items(node, "spec.taints").to_vec();
                let key = format!("somebody.example.com/taint-{}", n % 3);
                if let Some(i) = taints.iter().position(|t| t["key"] == json!(key)) {
                    taints.remove(i);
                } else {
                    let effect = if n.is_multiple_of(2) { "NoSchedule" } else { "PreferNoSchedule" };
                    taints.push(json!({"key": key, "effect": effect}));
                }
                set(node, "spec.taints", json!(taints));
            }
        });
        written.ok().map(|_| "foreign write")
    }

    fn heal(&mut self) {
        for outage in self.outages.drain(..) {
            self.cluster.network().heal(&outage);
        }
        for node in self.nodes.iter().chain(&self.cloud.all()) {
            self.kubelets.lie(&node.name, Lie::default());
            self.kubelets.power_on(&node.name);
        }
    }
}
