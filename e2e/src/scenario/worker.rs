//! Worker statuses, as a kubelet reports them.

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use nodekeeper_core::checks::{Assignment, WorkerIdentity};
use nodekeeper_core::report::{CheckResult, MESSAGE_LIMIT, Outcome, Report, reason};
use nodekeeper_core::worker::CONTAINER;
use serde_json::{Value, json};

use super::world::NAMESPACE;

const STARTED: &str = "2026-01-01T00:00:00Z";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Runs,
    Passed,
    Failed,
    OutOfMemory,
    Evicted,
    NoImage,
}

/// Patches the status of the worker's pod.
pub async fn say(client: &Client, pod: &Pod, state: State) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let status = Patch::Merge(json!({"status": status(pod, state)?}));
    pods.patch_status(&pod.name_any(), &PatchParams::default(), &status).await?;
    Ok(())
}

/// The state of each init container, and whether one has failed, so that the worker is never started.
fn init_statuses(pod: &Pod, state: State) -> (Vec<Value>, bool) {
    let mut has_failed = false;
    let mut statuses = Vec::new();
    for container in pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten()) {
        let is_sidecar = container.restart_policy.as_deref() == Some("Always");
        let fails = container.command.as_deref().is_some_and(|command| command == ["false"]);
        has_failed = has_failed || (fails && !is_sidecar);
        let ended = |code: i32| {
            let reason = if code == 0 { "Completed" } else { "Error" };
            json!({"terminated": {"exitCode": code, "reason": reason, "startedAt": STARTED, "finishedAt": STARTED}})
        };
        let (is_running, state) = match (is_sidecar, state) {
            (true, State::Runs) => (true, json!({"running": {"startedAt": STARTED}})),
            // The kubelet stops sidecars after the other containers have ended.
            (true, _) => (false, ended(143)),
            (false, _) => (false, ended(i32::from(fails))),
        };
        statuses.push(json!({"name": container.name, "image": "", "imageID": "", "ready": is_running,
            "started": is_running, "restartCount": 0, "state": state}));
    }
    (statuses, has_failed)
}

fn status(pod: &Pod, state: State) -> Result<Value> {
    let (init, has_failed) = init_statuses(pod, state);
    let mut status = if has_failed { never_started() } else { worker_status(pod, state)? };
    if !init.is_empty() {
        status["initContainerStatuses"] = json!(init);
    }
    Ok(status)
}

/// A pod of which an init container has failed.
fn never_started() -> Value {
    let waiting = json!({"waiting": {"reason": "PodInitializing"}});
    json!({"phase": "Failed", "containerStatuses": [container_status(false, &waiting)]})
}

fn container_status(is_ready: bool, state: &Value) -> Value {
    json!({"name": CONTAINER, "image": "", "imageID": "", "ready": is_ready, "restartCount": 0, "state": state})
}

fn worker_status(pod: &Pod, state: State) -> Result<Value> {
    let (phase, container) = match state {
        State::Runs => ("Running", json!({"running": {"startedAt": STARTED}})),
        State::Passed | State::Failed => {
            let report = report(pod, state == State::Passed)?;
            let (code, message) = (report.exit_code(), report.to_message(MESSAGE_LIMIT));
            let ended = json!({"exitCode": code, "message": message, "reason": if code == 0 { "Completed" } else { "Error" }});
            (if code == 0 { "Succeeded" } else { "Failed" }, json!({"terminated": ended}))
        }
        State::OutOfMemory => ("Failed", json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}})),
        State::NoImage => {
            let message = "Back-off pulling image";
            ("Pending", json!({"waiting": {"reason": "ImagePullBackOff", "message": message}}))
        }
        State::Evicted => {
            let why = "The node was low on resource: memory.";
            return Ok(
                json!({"phase": "Failed", "reason": "Evicted", "message": why, "containerStatuses": []}),
            );
        }
    };
    let container = container_status(state == State::Runs, &container);
    Ok(json!({"phase": phase, "containerStatuses": [container]}))
}

/// The report of this pod's worker, with a result for every assigned check.
fn report(pod: &Pod, passed: bool) -> Result<Report> {
    let assignment = assignment(pod)?;
    let subject = identity_of(&assignment)?;
    let checks = assignment["checks"].as_object().context("an assignment without checks")?;
    let result = |name: &String| match (name.as_str(), passed) {
        ("dns", false) => {
            let name = "kubernetes.default.svc.cluster.local.";
            CheckResult::new("dns", name, Outcome::Failed, reason::TIMEOUT, "no answer")
        }
        (name, _) => CheckResult::new(name, "", Outcome::Passed, "", ""),
    };
    Ok(Report::judge(subject, checks.keys().map(result).collect(), 1))
}

pub fn identity(pod: &Pod) -> Result<WorkerIdentity> {
    identity_of(&assignment(pod)?)
}

fn identity_of(assignment: &Value) -> Result<WorkerIdentity> {
    Ok(serde_json::from_value(assignment["subject"].clone())?)
}

fn assignment(pod: &Pod) -> Result<Value> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let worker = containers.into_iter().find(|one| one.name == CONTAINER).context("no worker in the pod")?;
    let variable = worker.env.iter().flatten().find(|variable| variable.name == Assignment::ENV);
    let text =
        variable.and_then(|variable| variable.value.as_ref()).context("a worker without an assignment")?;
    Ok(serde_json::from_str(text)?)
}
