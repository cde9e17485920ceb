//! Kubelets: they register their Nodes, renew their Leases, and run the Pods that are bound to them. One task drives
//! all kubelets of a cluster, so that hundreds of them do not wake up for each other's pods.

mod container;
mod node;
mod pod;
mod runtime;

pub use runtime::{ContainerConfig, ContainerRuntime, FakeRuntime, Terminated};

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::value::Value;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::clock::after;
use crate::cluster::{Cluster, Local};
use crate::object::{is_deleting, text, uid};
use crate::store::Change;
use node::Machine;
use pod::{PodHandle, PodOptions};

/// The configuration of a machine that joins.
#[derive(Clone, Debug, Default)]
pub struct NodeSpec {
    pub name: String,
    /// Empty for none.
    pub zone: String,
    /// Labels besides those that every node has.
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Value>,
    /// `spec.providerID`; empty for none.
    pub provider_id: String,
}

/// What a kubelet reports that is not true.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FalseReport {
    /// The status of the Ready condition.
    pub ready: Option<bool>,
    /// The exit code of every container, which is not run.
    pub exit_code: Option<i32>,
    /// Labels that the kubelet sets on its Node.
    pub labels: BTreeMap<String, String>,
}

enum Command {
    Join(NodeSpec),
    PowerOff(String),
    PowerOn(String),
    Reboot(String, Duration),
    FalseReport(String, FalseReport),
    Remove(String),
}

/// Controls all machines.
#[derive(Clone)]
pub struct Kubelets {
    commands: mpsc::UnboundedSender<Command>,
    task: Arc<Task>,
    /// Set when the task of a pod panics, which would otherwise look like a slow pod.
    pod_panicked: Arc<AtomicBool>,
}

struct Task(JoinHandle<()>);
impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Kubelets {
    /// Starts without machines.
    #[must_use]
    pub fn start(cluster: &Cluster, seed: u64, runtime: Arc<dyn ContainerRuntime>) -> Self {
        let (commands, inbox) = mpsc::unbounded_channel();
        let pod_panicked = Arc::new(AtomicBool::new(false));
        let pool = KubeletPool {
            pod_panicked: pod_panicked.clone(),
            api: cluster.local("kubelet"),
            runtime,
            random: fastrand::Rng::with_seed(seed),
            machines: BTreeMap::new(),
            timers: BTreeSet::new(),
        };
        Self { commands, task: Arc::new(Task(tokio::spawn(pool.run(inbox)))), pod_panicked }
    }

    /// Boots a machine, which registers.
    pub fn join(&self, spec: NodeSpec) {
        self.send(Command::Join(spec));
    }

    /// Powers a machine off: its kubelet stops reporting, and its containers are lost.
    pub fn power_off(&self, node: &str) {
        self.send(Command::PowerOff(node.to_owned()));
    }

    /// Boots a machine again, with a new boot id.
    pub fn power_on(&self, node: &str) {
        self.send(Command::PowerOn(node.to_owned()));
    }

    pub fn reboot(&self, node: &str, down_for: Duration) {
        self.send(Command::Reboot(node.to_owned(), down_for));
    }

    /// Powers a machine off for good.
    pub fn remove(&self, node: &str) {
        self.send(Command::Remove(node.to_owned()));
    }

    /// False once a kubelet has panicked.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !self.task.0.is_finished() && !self.pod_panicked.load(Ordering::Relaxed)
    }

    /// Makes a kubelet report what is not true; the default ends that.
    pub fn set_false_report(&self, node: &str, false_report: FalseReport) {
        self.send(Command::FalseReport(node.to_owned(), false_report));
    }

    fn send(&self, command: Command) {
        // The task lives as long as this handle.
        let _ = self.commands.send(command);
    }
}

/// The machines and timers of all kubelets.
struct KubeletPool {
    pod_panicked: Arc<AtomicBool>,
    api: Local,
    runtime: Arc<dyn ContainerRuntime>,
    random: fastrand::Rng,
    machines: BTreeMap<String, Machine>,
    timers: BTreeSet<(Instant, String, Timer)>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Heartbeat,
    Boot,
    Ready,
}

/// The period of lease renewals.
const HEARTBEAT: Duration = Duration::from_secs(10);

impl KubeletPool {
    async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Command>) {
        let mut pods = self.api.watch(&["pods"]);
        loop {
            let next = self.timers.first().map(|(at, _, _)| *at);
            let timer = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                command = inbox.recv() => match command {
                    Some(command) => self.handle_command(command),
                    None => return,
                },
                () = timer => self.on_timer(),
                changes = pods.next() => changes.iter().for_each(|change| self.on_pod(change)),
            }
        }
    }

    fn handle_command(&mut self, command: Command) {
        match command {
            Command::Join(spec) => {
                let name = spec.name.clone();
                self.machines.insert(name.clone(), Machine::new(spec));
                self.boot(&name);
            }
            Command::PowerOff(name) => self.shut_down(&name),
            Command::Remove(name) => {
                self.shut_down(&name);
                self.machines.remove(&name);
            }
            Command::PowerOn(name) => {
                if self.machines.get(&name).is_some_and(|m| !m.is_on) {
                    self.boot(&name);
                }
            }
            Command::Reboot(name, down_for) => {
                if self.machines.contains_key(&name) {
                    self.shut_down(&name);
                    self.timers.insert((after(Instant::now(), down_for), name, Timer::Boot));
                }
            }
            Command::FalseReport(name, report) => {
                if let Some(machine) = self.machines.get_mut(&name) {
                    machine.false_report = report;
                    if machine.is_on {
                        machine.report_status(&self.api);
                    }
                }
            }
        }
    }

    fn shut_down(&mut self, name: &str) {
        if let Some(machine) = self.machines.get_mut(name) {
            self.api.cluster().trace().record(|| format!("machine {name} powered off"));
            machine.is_on = false;
            machine.pods.clear();
        }
        self.timers.retain(|(_, n, _)| n != name);
    }

    fn boot(&mut self, name: &str) {
        let boot_id = format!("{:032x}", self.random.u128(..));
        let stagger = Duration::from_millis(self.random.u64(0..10_000));
        let ready_in = Duration::from_millis(self.random.u64(200..3_000));
        let Some(machine) = self.machines.get_mut(name) else { return };
        // A boot cancels all earlier timers, including another boot.
        self.timers.retain(|(_, n, _)| n != name);
        machine.pods.clear();
        self.api.cluster().trace().record(|| format!("machine {name} booted with id {boot_id}"));
        machine.boot(&self.api, boot_id);
        self.timers.insert((Instant::now() + stagger, name.to_owned(), Timer::Heartbeat));
        self.timers.insert((Instant::now() + ready_in, name.to_owned(), Timer::Ready));
        let bound = self.api.all("pods").into_iter().filter(|p| text(p, "spec.nodeName") == name);
        for pod in bound.collect::<Vec<_>>() {
            self.start(&pod, true);
        }
    }

    fn on_timer(&mut self) {
        let Some((_, name, timer)) = self.timers.pop_first() else { return };
        match timer {
            Timer::Boot => self.boot(&name),
            Timer::Ready => {
                if let Some(machine) = self.machines.get_mut(&name).filter(|m| m.is_on) {
                    machine.is_ready = true;
                    machine.report_status(&self.api);
                }
            }
            Timer::Heartbeat => {
                if let Some(machine) = self.machines.get_mut(&name).filter(|m| m.is_on) {
                    machine.heartbeat(&self.api);
                    self.timers.insert((Instant::now() + HEARTBEAT, name, Timer::Heartbeat));
                }
            }
        }
    }

    fn on_pod(&mut self, change: &Change) {
        match (&change.before, &change.after) {
            (_, Some(pod)) => {
                let node = text(pod, "spec.nodeName");
                let Some(machine) = self.machines.get_mut(node).filter(|m| m.is_on) else { return };
                match machine.pods.get(uid(pod)) {
                    Some(handle) if is_deleting(pod) => handle.stop(),
                    Some(_) => {}
                    None => self.start(pod, false),
                }
            }
            (Some(pod), None) => {
                if let Some(machine) = self.machines.get_mut(text(pod, "spec.nodeName")) {
                    machine.pods.remove(uid(pod));
                }
            }
            (None, None) => {}
        }
    }

    /// Starts a pod. After a boot, containers that were running are reported as terminated.
    fn start(&mut self, pod: &Arc<Value>, after_boot: bool) {
        let latency = Duration::from_millis(self.random.u64(50..800));
        let Some(machine) = self.machines.get_mut(text(pod, "spec.nodeName")) else { return };
        let options = PodOptions {
            zone: machine.spec.zone.clone(),
            latency,
            after_boot,
            false_exit_code: machine.false_report.exit_code,
            panicked: self.pod_panicked.clone(),
        };
        let handle = PodHandle::start(&self.api, &self.runtime, pod, options);
        if is_deleting(pod) {
            handle.stop();
        }
        machine.pods.insert(uid(pod).to_owned(), handle);
    }
}
