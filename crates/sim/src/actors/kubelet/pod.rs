//! One pod on one machine, from its binding to its end, as its kubelet reports it.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt as _};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::runner::{End, Job, Runner};
use crate::clock::time;
use crate::cluster::Local;
use crate::object::{items, name, number, set, set_condition, text, uid};

/// The kubelet keeps this much of the termination messages of a pod, divided among its containers...
const ALL_MESSAGES: usize = 12 * 1024;
/// ...and at most this much of one.
const ONE_MESSAGE: usize = 4 * 1024;

/// A pod that its kubelet has taken on. Dropping it is pulling the plug: nothing more is reported.
pub(super) struct Work {
    task: JoinHandle<()>,
    stop: Arc<Notify>,
}

impl Drop for Work {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Work {
    pub(super) fn start(
        api: &Local,
        runner: &Arc<dyn Runner>,
        pod: &Arc<Value>,
        zone: String,
        latency: Duration,
        after_boot: bool,
        lie: Option<i32>,
    ) -> Self {
        let stop = Arc::new(Notify::new());
        let containers = items(pod, "spec.containers").iter().map(Container::new).collect();
        let keeper =
            Keeper { api: api.clone(), runner: runner.clone(), pod: pod.clone(), zone, lie, containers };
        let task = tokio::spawn(keeper.keep(latency, after_boot, stop.clone()));
        Self { task, stop }
    }

    /// The pod is being deleted: end it and let it go.
    pub(super) fn stop(&self) {
        self.stop.notify_one();
    }
}

struct Container {
    spec: Value,
    restarts: i64,
    state: ContainerState,
}

#[derive(Clone)]
enum ContainerState {
    Waiting(&'static str),
    Running { since: String },
    Ended { since: String, at: String, code: i32, reason: &'static str, message: String },
}

impl Container {
    fn new(spec: &Value) -> Self {
        Self { spec: spec.clone(), restarts: 0, state: ContainerState::Waiting("ContainerCreating") }
    }

    fn status(&self) -> Value {
        let state = match &self.state {
            ContainerState::Waiting(reason) => json!({"waiting": {"reason": reason}}),
            ContainerState::Running { since } => json!({"running": {"startedAt": since}}),
            ContainerState::Ended { since, at, code, reason, message } => {
                let mut ended =
                    json!({"exitCode": code, "reason": reason, "startedAt": since, "finishedAt": at});
                if !message.is_empty() {
                    ended["message"] = json!(message);
                }
                json!({"terminated": ended})
            }
        };
        let running = matches!(self.state, ContainerState::Running { .. });
        json!({"name": self.spec["name"], "image": self.spec["image"], "imageID": "", "ready": running,
            "started": running, "restartCount": self.restarts, "state": state})
    }
}

/// Why a pod came to its end before its containers did.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cut {
    Deleted,
    Deadline,
}

struct Keeper {
    api: Local,
    runner: Arc<dyn Runner>,
    pod: Arc<Value>,
    zone: String,
    lie: Option<i32>,
    containers: Vec<Container>,
}

impl Keeper {
    async fn keep(mut self, latency: Duration, after_boot: bool, stop: Arc<Notify>) {
        if matches!(text(&self.pod, "status.phase"), "Succeeded" | "Failed") {
            stop.notified().await;
            return self.let_go();
        }
        let had_begun = !text(&self.pod, "status.startTime").is_empty();
        if after_boot && had_begun && text(&self.pod, "spec.restartPolicy") == "Never" {
            self.find_dead();
            self.report("Failed", None);
            stop.notified().await;
            return self.let_go();
        }
        let deadline =
            number(&self.pod, "spec.activeDeadlineSeconds").map(|s| Duration::from_secs(s.unsigned_abs()));
        let deadline = deadline.map(|d| Instant::now() + d);
        self.report("Pending", None);
        let cut = {
            let stopped = stop.notified();
            let expired = async {
                match deadline {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = stopped => Some(Cut::Deleted),
                () = expired => Some(Cut::Deadline),
                () = self.live(latency) => None,
            }
        };
        match cut {
            None => {}
            Some(Cut::Deadline) => {
                self.kill();
                let why =
                    ("DeadlineExceeded", "Pod was active on the node longer than the specified deadline");
                self.report("Failed", Some(why));
            }
            Some(Cut::Deleted) => {
                // A process is asked first; these all go when asked, a moment later.
                let grace =
                    number(&self.pod, "metadata.deletionGracePeriodSeconds").unwrap_or(1).unsigned_abs();
                let _ = timeout(Duration::from_secs(grace), sleep(Duration::from_millis(20))).await;
                self.kill();
                self.report("Failed", None);
                return self.let_go();
            }
        }
        stop.notified().await;
        self.let_go();
    }

    /// Init containers one after the other, then all containers, restarted as the pod says, until it is finished.
    async fn live(&mut self, latency: Duration) {
        sleep(latency).await;
        for init in items(&self.pod.clone(), "spec.initContainers") {
            if self.run(init.clone()).await != (End::Exit { code: 0, message: String::new() })
                && text(&self.pod, "spec.restartPolicy") == "Never"
            {
                self.report("Failed", None);
                return;
            }
        }
        let mut running = FuturesUnordered::new();
        for i in 0..self.containers.len() {
            let since = self.now();
            self.containers[i].state = ContainerState::Running { since };
            running.push(self.start(i, Duration::ZERO));
        }
        self.report("Running", None);
        while let Some((i, end)) = running.next().await {
            self.record(i, &end);
            if self.restarts(i, &end) {
                self.containers[i].restarts += 1;
                let doubled = u32::try_from(self.containers[i].restarts.clamp(1, 5)).unwrap_or(5);
                let backoff = 10 * 2_u64.pow(doubled);
                running.push(self.start(i, Duration::from_secs(backoff.min(300))));
            }
            let phase = if running.is_empty() { self.last_phase() } else { "Running" };
            self.report(phase, None);
            if phase != "Running" {
                return;
            }
        }
    }

    fn start(&self, i: usize, after: Duration) -> futures::future::BoxFuture<'static, (usize, End)> {
        let run = self.run(self.containers[i].spec.clone());
        Box::pin(async move {
            sleep(after).await;
            (i, run.await)
        })
    }

    fn run(&self, container: Value) -> futures::future::BoxFuture<'static, End> {
        if let Some(code) = self.lie {
            return Box::pin(async move { End::Exit { code, message: String::new() } });
        }
        self.runner.run(Job {
            cluster: self.api.cluster().clone(),
            node: text(&self.pod, "spec.nodeName").to_owned(),
            zone: self.zone.clone(),
            pod: self.pod.clone(),
            container,
        })
    }

    fn record(&mut self, i: usize, end: &End) {
        let at = self.now();
        let limit = (ALL_MESSAGES / self.containers.len().max(1)).min(ONE_MESSAGE);
        let container = &mut self.containers[i];
        let since = match &container.state {
            ContainerState::Running { since } => since.clone(),
            _ => at.clone(),
        };
        let ended = |code, reason, message| ContainerState::Ended { since, at, code, reason, message };
        container.state = match end {
            End::Exit { code: 0, message } => ended(0, "Completed", cut_to(message, limit)),
            End::Exit { code, message } => ended(*code, "Error", cut_to(message, limit)),
            End::OutOfMemory => ended(137, "OOMKilled", String::new()),
            End::NoImage => ContainerState::Waiting("ImagePullBackOff"),
        };
    }

    /// Whether a container is tried again. One without an image is, whatever the policy.
    fn restarts(&self, i: usize, end: &End) -> bool {
        let failed = !matches!(end, End::Exit { code: 0, .. });
        match text(&self.pod, "spec.restartPolicy") {
            _ if matches!(self.containers[i].state, ContainerState::Waiting(_)) => true,
            "Always" => true,
            "OnFailure" => failed,
            _ => false,
        }
    }

    fn last_phase(&self) -> &'static str {
        let well = |c: &Container| matches!(c.state, ContainerState::Ended { code: 0, .. });
        if self.containers.iter().all(well) { "Succeeded" } else { "Failed" }
    }

    /// The containers as a kill leaves them.
    fn kill(&mut self) {
        self.end_all(137, "Error");
    }

    /// The containers as a boot finds them.
    fn find_dead(&mut self) {
        self.end_all(255, "Unknown");
    }

    fn end_all(&mut self, code: i32, reason: &'static str) {
        let at = self.now();
        for container in &mut self.containers {
            let since = match &container.state {
                ContainerState::Running { since } => since.clone(),
                ContainerState::Ended { .. } => continue,
                ContainerState::Waiting(_) => at.clone(),
            };
            container.state =
                ContainerState::Ended { since, at: at.clone(), code, reason, message: String::new() };
        }
    }

    fn now(&self) -> String {
        time(self.api.cluster().clock().now())
    }

    fn report(&self, phase: &str, why: Option<(&str, &str)>) {
        let now = self.now();
        let statuses: Vec<Value> = self.containers.iter().map(Container::status).collect();
        let ready =
            if phase == "Running" && statuses.iter().all(|s| s["ready"] == true) { "True" } else { "False" };
        let node = text(&self.pod, "spec.nodeName");
        let _ = self.api.change(&self.pod, Some("status"), |pod| {
            set(pod, "status.phase", json!(phase));
            set(pod, "status.containerStatuses", json!(statuses));
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
                ("Initialized", "True"),
                ("ContainersReady", ready),
                ("Ready", ready),
            ] {
                set_condition(pod, json!({"type": kind, "status": status}), &now);
            }
        });
        let pod = name(&self.pod);
        self.api.cluster().trace().line(|| format!("kubelet {node}: pod {pod} is {phase}"));
    }

    /// The containers are gone; the object may go.
    fn let_go(&self) {
        let _ = self.api.delete(&self.pod, Some(0));
    }
}

/// An address in the pod range that depends on nothing but the pod.
fn pod_ip(uid: &str) -> String {
    let n = uid.bytes().fold(0_u32, |sum, b| sum.wrapping_mul(31).wrapping_add(u32::from(b)));
    format!("10.244.{}.{}", (n >> 8) & 0xff, (n & 0xff).clamp(2, 254))
}

/// The longest prefix within so many bytes that is still text.
fn cut_to(message: &str, bytes: usize) -> String {
    let end = (0..=bytes.min(message.len())).rev().find(|i| message.is_char_boundary(*i)).unwrap_or(0);
    message[..end].to_owned()
}
