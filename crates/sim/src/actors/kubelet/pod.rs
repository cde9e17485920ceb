//! One pod on one machine, from its binding to its termination.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::value::{Value, json};
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::container::{Container, ContainerState};
use super::runtime::{ContainerConfig, ContainerRuntime, Terminated};
use crate::clock::{after, time};
use crate::cluster::Local;
use crate::object::{items, name, namespace, number, set, set_condition, text, uid};

/// A pod that its kubelet runs. Dropping it stops all reports, as a power loss does.
pub(super) struct PodHandle {
    task: JoinHandle<()>,
    stop: Arc<Notify>,
}

impl Drop for PodHandle {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl PodHandle {
    pub(super) fn start(
        api: &Local,
        runtime: &Arc<dyn ContainerRuntime>,
        pod: &Arc<Value>,
        options: PodOptions,
    ) -> Self {
        let stop = Arc::new(Notify::new());
        let all = |list: &str| items(pod, list).iter().map(Container::new).collect();
        let pod_runner = PodRunner {
            api: api.clone(),
            runtime: runtime.clone(),
            pod: pod.clone(),
            init: all("spec.initContainers"),
            containers: all("spec.containers"),
            options,
        };
        let task = tokio::spawn(pod_runner.run(stop.clone()));
        Self { task, stop }
    }

    /// Terminates a pod that is being deleted.
    pub(super) fn stop(&self) {
        self.stop.notify_one();
    }
}

pub(super) struct PodOptions {
    pub(super) zone: String,
    /// The delay before the first container starts.
    pub(super) latency: Duration,
    /// The machine has just booted, so containers that were running are lost.
    pub(super) after_boot: bool,
    /// The exit code of every container, which is not run.
    pub(super) false_exit_code: Option<i32>,
    /// Set when the task of the pod panics.
    pub(super) panicked: Arc<AtomicBool>,
}

impl Drop for PodOptions {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.panicked.store(true, Ordering::Relaxed);
        }
    }
}

/// Why a pod ends before its containers do.
enum Interruption {
    Deleted,
    Deadline,
}

/// The place of a container: among the init containers, where sidecars are, or among the others.
#[derive(Clone, Copy)]
enum Place {
    Init(usize),
    Main(usize),
}

enum ContainerEvent {
    Start(Place),
    Ended(Place, Terminated),
}

struct PodRunner {
    api: Local,
    runtime: Arc<dyn ContainerRuntime>,
    pod: Arc<Value>,
    init: Vec<Container>,
    containers: Vec<Container>,
    options: PodOptions,
}

impl PodRunner {
    async fn run(mut self, stop: Arc<Notify>) {
        let finished = matches!(text(&self.pod, "status.phase"), "Succeeded" | "Failed");
        let had_started = !text(&self.pod, "status.startTime").is_empty();
        if !finished && self.options.after_boot && had_started && self.policy() == "Never" {
            self.terminate_all(255, "Unknown");
            self.report("Failed", None);
        } else if !finished {
            match self.run_until_interrupted(&stop).await {
                None => {}
                Some(Interruption::Deadline) => {
                    self.terminate_all(137, "Error");
                    let why = "Pod was active on the node longer than the specified deadline";
                    self.report("Failed", Some(("DeadlineExceeded", why)));
                }
                Some(Interruption::Deleted) => {
                    self.terminate_gracefully(&stop).await;
                    self.terminate_all(137, "Error");
                    self.report("Failed", None);
                    return self.delete_pod();
                }
            }
        }
        stop.notified().await;
        self.delete_pod();
    }

    async fn run_until_interrupted(&mut self, stop: &Notify) -> Option<Interruption> {
        let deadline = number(&self.pod, "spec.activeDeadlineSeconds");
        let deadline = deadline.map(|s| after(Instant::now(), Duration::from_secs(s.unsigned_abs())));
        let expired = async {
            match deadline {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = stop.notified() => Some(Interruption::Deleted),
            () = expired => Some(Interruption::Deadline),
            () = self.run_containers() => None,
        }
    }

    /// Waits until the containers stop, at most for the grace period, which a second delete may shorten.
    async fn terminate_gracefully(&self, stop: &Notify) {
        let asked = Instant::now();
        let longest =
            self.containers.iter().map(|c| self.runtime.shutdown_time(&c.spec)).max().unwrap_or_default();
        loop {
            let pod = self.api.get("pods", namespace(&self.pod), name(&self.pod));
            let grace = pod.and_then(|p| number(&p, "metadata.deletionGracePeriodSeconds")).unwrap_or(0);
            let end = after(asked, longest.min(Duration::from_secs(grace.unsigned_abs())));
            if timeout_at(end, stop.notified()).await.is_err() {
                return;
            }
        }
    }

    /// Runs the init containers in order, then all containers, until the pod has finished. Sidecars run beside the
    /// containers, and no longer than they do.
    async fn run_containers(&mut self) {
        self.report("Pending", None);
        sleep(self.options.latency).await;
        let mut events: FuturesUnordered<BoxFuture<'static, ContainerEvent>> = FuturesUnordered::new();
        for i in 0..self.init.len() {
            if self.init[i].is_sidecar() {
                self.start_or_wait(Place::Init(i), &events);
                self.report("Pending", None);
            } else if !self.run_init(i).await {
                self.end_sidecars();
                return self.report("Failed", None);
            }
        }
        for i in 0..self.containers.len() {
            events.push(start_after(Place::Main(i), Duration::ZERO));
        }
        while let Some(event) = events.next().await {
            match event {
                ContainerEvent::Start(place) => self.start_or_wait(place, &events),
                ContainerEvent::Ended(place, end) => {
                    let (now, count) = (self.now(), self.containers.len());
                    let is_restarted = matches!(place, Place::Init(_)) || self.is_restarted(&end);
                    let container = self.container(place);
                    container.finish(&end, &now, count);
                    if is_restarted {
                        let wait = container.back_off();
                        events.push(start_after(place, wait));
                    }
                }
            }
            let phase = self.phase();
            let has_finished = matches!(phase, "Succeeded" | "Failed");
            if has_finished {
                self.end_sidecars();
            }
            self.report(phase, None);
            if has_finished {
                return;
            }
        }
    }

    fn container(&mut self, place: Place) -> &mut Container {
        match place {
            Place::Init(i) => &mut self.init[i],
            Place::Main(i) => &mut self.containers[i],
        }
    }

    /// Starts a container, or waits for its image.
    fn start_or_wait(&mut self, place: Place, events: &FuturesUnordered<BoxFuture<'static, ContainerEvent>>) {
        let now = self.now();
        let spec = self.container(place).spec.clone();
        if self.runtime.has_image(&spec) {
            self.container(place).start(&now);
            let run = self.run_container(&spec);
            events.push(Box::pin(async move { ContainerEvent::Ended(place, run.await) }));
        } else {
            self.container(place).state = ContainerState::Waiting("ImagePullBackOff");
            events.push(start_after(place, Duration::from_secs(10)));
        }
    }

    fn end_sidecars(&mut self) {
        let now = self.now();
        for sidecar in self.init.iter_mut().filter(|container| container.is_sidecar()) {
            sidecar.kill(143, "Error", &now);
        }
    }

    /// Runs an init container until it succeeds. Returns false if the pod has failed.
    async fn run_init(&mut self, i: usize) -> bool {
        loop {
            let now = self.now();
            self.init[i].start(&now);
            self.report("Pending", None);
            let end = self.run_container(&self.init[i].spec).await;
            let (now, count) = (self.now(), self.init.len());
            self.init[i].finish(&end, &now, count);
            if matches!(end, Terminated::Exit { code: 0, .. }) {
                return true;
            }
            if self.policy() == "Never" {
                return false;
            }
            let wait = self.init[i].back_off();
            self.report("Pending", None);
            sleep(wait).await;
        }
    }

    fn run_container(&self, container: &Value) -> BoxFuture<'static, Terminated> {
        if let Some(code) = self.options.false_exit_code {
            return Box::pin(async move { Terminated::Exit { code, message: String::new() } });
        }
        self.runtime.run(ContainerConfig {
            cluster: self.api.cluster().clone(),
            node: text(&self.pod, "spec.nodeName").to_owned(),
            zone: self.options.zone.clone(),
            pod: self.pod.clone(),
            container: container.clone(),
        })
    }

    fn policy(&self) -> &str {
        text(&self.pod, "spec.restartPolicy")
    }

    fn is_restarted(&self, end: &Terminated) -> bool {
        match self.policy() {
            "Always" => true,
            "OnFailure" => !matches!(end, Terminated::Exit { code: 0, .. }),
            _ => false,
        }
    }

    /// The phase as a kubelet derives it from the containers.
    fn phase(&self) -> &'static str {
        if self.containers.iter().any(Container::never_started) {
            return "Pending";
        }
        let codes: Option<Vec<i32>> = self.containers.iter().map(Container::exit_code).collect();
        match codes {
            None => "Running",
            Some(codes) if codes.iter().all(|code| *code == 0) => "Succeeded",
            Some(_) => "Failed",
        }
    }

    fn terminate_all(&mut self, code: i32, reason: &'static str) {
        let now = self.now();
        let sidecars = self.init.iter_mut().filter(|container| container.is_sidecar());
        for container in self.containers.iter_mut().chain(sidecars) {
            container.kill(code, reason, &now);
        }
    }

    fn now(&self) -> String {
        time(self.api.cluster().clock().now())
    }

    fn report(&self, phase: &str, why: Option<(&str, &str)>) {
        let now = self.now();
        let statuses = |all: &[Container]| all.iter().map(Container::status).collect::<Vec<_>>();
        let yes = |so: bool| if so { "True" } else { "False" };
        let ready = yes(phase == "Running" && self.containers.iter().all(Container::is_running));
        let initialized = yes(self.init.iter().all(Container::is_initialized));
        let node = text(&self.pod, "spec.nodeName");
        let _ = self.api.change(&self.pod, Some("status"), |pod| {
            set(pod, "status.phase", json!(phase));
            set(pod, "status.containerStatuses", json!(statuses(&self.containers)));
            if !self.init.is_empty() {
                set(pod, "status.initContainerStatuses", json!(statuses(&self.init)));
            }
            crate::object::default(pod, "status.startTime", json!(now));
            if phase == "Running" {
                let ip = pod_ip(uid(pod));
                set(pod, "status.podIP", json!(ip));
                set(pod, "status.podIPs", json!([{"ip": ip}]));
                set(pod, "status.hostIP", json!("10.0.0.1"));
            }
            if let Some((reason, message)) = why {
                set(pod, "status.reason", json!(reason));
                set(pod, "status.message", json!(message));
            }
            for (kind, status) in [
                ("PodScheduled", "True"),
                ("Initialized", initialized),
                ("ContainersReady", ready),
                ("Ready", ready),
            ] {
                set_condition(pod, json!({"type": kind, "status": status}), &now);
            }
        });
        let pod = name(&self.pod);
        self.api.cluster().trace().record(|| format!("kubelet {node}: pod {pod} is {phase}"));
    }

    fn delete_pod(&self) {
        let _ = self.api.delete(&self.pod, Some(0));
    }
}

fn start_after(place: Place, wait: Duration) -> BoxFuture<'static, ContainerEvent> {
    Box::pin(async move {
        sleep(wait).await;
        ContainerEvent::Start(place)
    })
}

/// Derived from the pod's uid alone, so that it is the same in every run.
fn pod_ip(uid: &str) -> String {
    let n = uid.bytes().fold(0_u32, |sum, b| sum.wrapping_mul(31).wrapping_add(u32::from(b)));
    format!("10.244.{}.{}", (n >> 8) & 0xff, (n & 0xff).clamp(2, 254))
}
