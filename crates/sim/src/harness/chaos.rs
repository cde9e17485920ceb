//! Chaos in a cluster besides the program under test: machines reboot and die, other users write, the log is
//! compacted, clocks jump, DNS fails, admission refuses writes, watches say nothing, another controller undoes what was
//! written.

use std::sync::Arc;
use std::time::Duration;

use crate::value::json;
use jiff::SignedDuration;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout_at};

use crate::actors::cloud::Cloud;
use crate::actors::kubelet::{FalseReport, Kubelets, NodeSpec};
use crate::clock::Clock;
use crate::cluster::{Cluster, Local};
use crate::faults::{Admission, Coverage, Faults};
use crate::network::Outage;
use crate::object::{is_true, items, name, set};

use super::Scenario;

/// The clients of the program under test.
pub(super) struct Clients {
    pub faults: Arc<Mutex<Vec<Faults>>>,
    pub admission: Admission,
    pub coverage: Arc<Mutex<Coverage>>,
}

pub(super) struct Chaos {
    cluster: Cluster,
    user: Local,
    kubelets: Kubelets,
    cloud: Cloud,
    nodes: Vec<NodeSpec>,
    random: fastrand::Rng,
    false_label: (String, String),
    user_action: fn(&Local, &mut fastrand::Rng) -> Option<&'static str>,
    revert: fn(&Local, &str) -> bool,
    clients: Clients,
    outages: Vec<Outage>,
    off: Vec<String>,
    /// Until when a kind of write is refused.
    refused: Option<Instant>,
    /// Watches that say nothing, and until when.
    silent: Vec<(Instant, Faults, String)>,
    /// The node that another controller reverts, and until when.
    reverted: Option<(Instant, String)>,
}

/// What may happen next.
#[derive(Clone, Copy)]
enum ChaosEvent {
    UserWrite,
    UserAction,
    Reboot,
    PowerOff,
    PowerOn,
    DeleteNode,
    FalseReportStart,
    FalseReportEnd,
    DnsDown,
    DnsUp,
    Compaction,
    ClockJump,
    Refusal,
    SilentWatches,
    Reverting,
}

const CHAOS_EVENTS: &[(ChaosEvent, u32)] = &[
    (ChaosEvent::UserWrite, 30),
    (ChaosEvent::UserAction, 10),
    (ChaosEvent::Reboot, 4),
    (ChaosEvent::PowerOff, 3),
    (ChaosEvent::PowerOn, 4),
    (ChaosEvent::DeleteNode, 6),
    (ChaosEvent::FalseReportStart, 10),
    (ChaosEvent::FalseReportEnd, 14),
    (ChaosEvent::DnsDown, 3),
    (ChaosEvent::DnsUp, 4),
    (ChaosEvent::Compaction, 4),
    (ChaosEvent::ClockJump, 2),
    (ChaosEvent::Refusal, 2),
    (ChaosEvent::SilentWatches, 2),
    (ChaosEvent::Reverting, 2),
];

impl Chaos {
    pub(super) fn new(
        cluster: &Cluster,
        (kubelets, cloud): (&Kubelets, &Cloud),
        scenario: &Scenario,
        nodes: Vec<NodeSpec>,
        seed: u64,
        clients: Clients,
    ) -> Self {
        Self {
            cluster: cluster.clone(),
            user: cluster.local("user"),
            kubelets: kubelets.clone(),
            cloud: cloud.clone(),
            nodes,
            random: fastrand::Rng::with_seed(seed),
            false_label: scenario.false_label.clone(),
            user_action: scenario.user_action,
            revert: scenario.revert,
            clients,
            outages: Vec::new(),
            off: Vec::new(),
            refused: None,
            silent: Vec::new(),
            reverted: None,
        }
    }

    /// Injects chaos events until a time, then heals everything.
    pub(super) async fn run(mut self, clocks: Vec<Clock>, until: Instant) {
        let chaos = async {
            for node in self.nodes.clone() {
                self.kubelets.join(node);
                let pause = self.random.u64(0..3_000);
                sleep(Duration::from_millis(pause)).await;
            }
            loop {
                let pause = self.random.u64(100..4_000);
                sleep(Duration::from_millis(pause)).await;
                self.go_on();
                let event = self.choose();
                self.apply(event, &clocks);
            }
        };
        let _ = timeout_at(until, chaos).await;
        self.heal();
    }

    fn choose(&mut self) -> ChaosEvent {
        let all: u32 = CHAOS_EVENTS.iter().map(|(_, weight)| weight).sum();
        let mut dice = self.random.u32(0..all);
        for (event, weight) in CHAOS_EVENTS {
            if dice < *weight {
                return *event;
            }
            dice -= weight;
        }
        ChaosEvent::UserWrite
    }

    /// A random machine, including those of the cloud.
    fn choose_node(&mut self) -> Option<NodeSpec> {
        let rented = self.cloud.all();
        let all = self.nodes.len() + rented.len();
        let i = (all > 0).then(|| self.random.usize(..all))?;
        self.nodes.get(i).or_else(|| rented.get(i - self.nodes.len())).cloned()
    }

    fn apply(&mut self, event: ChaosEvent, clocks: &[Clock]) {
        let Some(node) = self.choose_node() else { return };
        let what = match event {
            ChaosEvent::UserWrite => self.write_as_user(&node.name),
            ChaosEvent::UserAction => (self.user_action)(&self.user, &mut self.random),
            ChaosEvent::Reboot => Some(self.reboot(&node.name)),
            ChaosEvent::PowerOff => {
                self.kubelets.power_off(&node.name);
                self.off.push(node.name.clone());
                Some("power off")
            }
            ChaosEvent::PowerOn => self.off.pop().map(|name| {
                self.kubelets.power_on(&name);
                "power on"
            }),
            ChaosEvent::DeleteNode => self.replace_machine(&node),
            ChaosEvent::FalseReportStart => {
                let false_label = [self.false_label.clone()].into();
                let lie = match self.random.u8(0..3) {
                    0 => FalseReport { ready: Some(false), ..FalseReport::default() },
                    1 => FalseReport { exit_code: Some(0), ..FalseReport::default() },
                    _ => FalseReport { labels: false_label, ..FalseReport::default() },
                };
                self.kubelets.set_false_report(&node.name, lie);
                Some("false kubelet report")
            }
            ChaosEvent::FalseReportEnd => {
                self.kubelets.set_false_report(&node.name, FalseReport::default());
                Some("true kubelet report")
            }
            ChaosEvent::DnsDown => Some(self.fail_dns(&node)),
            ChaosEvent::DnsUp => self.outages.pop().map(|outage| {
                self.cluster.network().heal(&outage);
                "DNS back"
            }),
            ChaosEvent::Compaction => {
                let mut state = self.cluster.state();
                let revision = state.store.revision().saturating_sub(self.random.u64(0..50));
                state.store.compact(revision);
                Some("log compacted (410)")
            }
            ChaosEvent::ClockJump => {
                let clock = &clocks[self.random.usize(..clocks.len())];
                clock.jump(SignedDuration::from_secs(self.random.i64(-60..60)));
                Some("clock jump")
            }
            ChaosEvent::Refusal => self.refuse_writes(),
            ChaosEvent::SilentWatches => self.silence_watches(),
            ChaosEvent::Reverting => {
                self.reverted = Some((self.later(20..120), node.name.clone()));
                Some("another controller reverts the program")
            }
        };
        if let Some(what) = what {
            self.clients.coverage.lock().count(what);
            self.cluster.trace().record(|| format!("chaos: {what} {}", node.name));
        }
    }

    fn later(&mut self, seconds: std::ops::Range<u64>) -> Instant {
        Instant::now() + Duration::from_secs(self.random.u64(seconds))
    }

    /// Continues or ends what lasts for a while.
    fn go_on(&mut self) {
        let now = Instant::now();
        if self.refused.is_some_and(|until| until <= now) {
            self.refused = None;
            self.clients.admission.lift();
        }
        for (_, faults, resource) in self.silent.extract_if(.., |(until, ..)| *until <= now) {
            faults.resume_watches(&resource);
        }
        self.reverted.take_if(|(until, _)| *until <= now);
        if let Some((_, node)) = &self.reverted
            && (self.revert)(&self.user, node)
        {
            self.clients.coverage.lock().count("write reverted by another controller");
            self.cluster.trace().record(|| format!("chaos: another controller reverts {node}"));
        }
    }

    /// Reboots a node, or in half of the cases a cordoned one, which is probably being replaced.
    fn reboot(&mut self, node: &str) -> &'static str {
        let down_for = Duration::from_millis(self.random.u64(500..60_000));
        let cordoned = self.cordoned_node().filter(|_| self.random.bool());
        self.kubelets.reboot(cordoned.as_deref().unwrap_or(node), down_for);
        if cordoned.is_some() { "reboot of a cordoned node" } else { "reboot" }
    }

    fn cordoned_node(&self) -> Option<String> {
        let nodes = self.user.all("nodes");
        nodes.iter().find(|node| is_true(node, "spec.unschedulable")).map(|node| name(node).to_owned())
    }

    /// Refuses one kind of write for a while. Never that of the Lease, without which nobody writes at all.
    fn refuse_writes(&mut self) -> Option<&'static str> {
        if self.refused.is_some() {
            return None;
        }
        let points: Vec<String> = {
            let coverage = self.clients.coverage.lock();
            coverage.write_points.iter().filter(|point| !point.contains("leases")).cloned().collect()
        };
        let point = points.get(self.random.usize(..points.len().max(1)))?;
        // A quota answers 409 while others change it.
        let codes: &[u16] = if point == "POST pods" { &[403, 409, 422, 500] } else { &[403, 422, 500] };
        let code = codes[self.random.usize(..codes.len())];
        self.clients.admission.refuse(point, code);
        self.cluster.trace().record(|| format!("chaos: {point} is refused with {code}"));
        self.refused = Some(self.later(30..180));
        Some("writes refused for minutes")
    }

    /// The watches of one replica say nothing for a while: all, or those of one kind.
    fn silence_watches(&mut self) -> Option<&'static str> {
        let alive: Vec<Faults> =
            self.clients.faults.lock().iter().filter(|faults| !faults.has_crashed()).cloned().collect();
        let faults = alive.get(self.random.usize(..alive.len().max(1)))?.clone();
        let until = self.later(30..240);
        let watched = faults.watched();
        let all = self.random.bool();
        let chosen = self.random.usize(..watched.len().max(1));
        for (i, resource) in watched.into_iter().enumerate() {
            if all || i == chosen {
                faults.stall_watches(&resource);
                self.silent.push((until, faults.clone(), resource));
            }
        }
        Some(if all { "API server vanished" } else { "silent watch" })
    }

    /// Replaces a machine by another of the same name, so that the Node has a new uid.
    fn replace_machine(&self, node: &NodeSpec) -> Option<&'static str> {
        if !node.provider_id.is_empty() {
            // A machine of the cloud never reuses a name, and its provisioner replaces it.
            return None;
        }
        let object = self.user.get("nodes", "", &node.name)?;
        self.user.delete(&object, None).ok()?;
        self.kubelets.power_off(&node.name);
        self.kubelets.join(node.clone());
        Some("node deleted and re-registered")
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

    /// Changes labels, annotations or taints of another owner on a node.
    fn write_as_user(&mut self, name: &str) -> Option<&'static str> {
        let node = self.user.get("nodes", "", name)?;
        let n = self.random.u32(0..1_000);
        let choice = self.random.u8(0..3);
        let written = self.user.change(&node, None, |node| match choice {
            0 => node["metadata"]["labels"]["user.example.com/label"] = json!(n.to_string()),
            1 => node["metadata"]["annotations"]["user.example.com/note"] = json!(n.to_string()),
            _ => {
                let mut taints = items(node, "spec.taints").to_vec();
                let key = format!("user.example.com/taint-{}", n % 3);
                if let Some(i) = taints.iter().position(|t| t["key"] == json!(key)) {
                    taints.remove(i);
                } else {
                    let effect = if n.is_multiple_of(2) { "NoSchedule" } else { "PreferNoSchedule" };
                    taints.push(json!({"key": key, "effect": effect}));
                }
                set(node, "spec.taints", json!(taints));
            }
        });
        written.ok().map(|_| "write by another user")
    }

    fn heal(&mut self) {
        self.clients.admission.lift();
        for (_, faults, resource) in self.silent.drain(..) {
            faults.resume_watches(&resource);
        }
        for outage in self.outages.drain(..) {
            self.cluster.network().heal(&outage);
        }
        for node in self.nodes.iter().chain(&self.cloud.all()) {
            self.kubelets.set_false_report(&node.name, FalseReport::default());
            self.kubelets.power_on(&node.name);
        }
    }
}
