//! The worker: the pod that looks at one node, and what it came to.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerStateTerminated, Pod};
use serde_json::json;

use crate::api::NodeGateSpec;
use crate::checks::{Assignment, Subject};
use crate::node::NodeView;
use crate::report::{self, Report};

/// The container whose termination message is the report.
pub const CONTAINER: &str = "worker";
/// Selects all workers in their namespace.
pub const SELECTOR: &str = "app.kubernetes.io/name=nodekeeper,app.kubernetes.io/component=worker";
/// Label and annotations of a worker: for which node, in which boot, for which gate, as which one.
pub const NODE_UID: &str = "nodekeeper.dev/node-uid";
const NODE_NAME: &str = "nodekeeper.dev/node-name";
const SUBJECT: &str = "nodekeeper.dev/subject";

/// The seed's default taints that a node bears before it is ready for anything.
const EARLY_TAINTS: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

/// What the controller was installed with and every worker gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    /// Where workers run.
    pub namespace: String,
    /// What they run, where the gate says nothing else.
    pub image: String,
    /// As whom.
    pub service_account: String,
    /// Their priority class; none if empty.
    pub priority_class: String,
}

/// How far a worker is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The scheduler finds that it cannot run there; why.
    Unscheduled(String),
    /// It has not started; why, where the kubelet says so.
    Waiting(String),
    /// It looks.
    Running,
    /// It ended with a report that is its own.
    Reported(Report),
    /// It ended and cannot tell anything; why.
    Silent(String),
}

/// A worker pod, as far as anything here is decided by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerView {
    /// Name of the pod.
    pub name: String,
    /// uid of the pod.
    pub uid: String,
    /// For guarded writes and for order.
    pub resource_version: String,
    /// When we first saw it, on our own clock: nobody's time of day says how old it is.
    pub first_seen: Duration,
    /// Somebody deleted it.
    pub deleting: bool,
    /// Name of the node.
    pub node_name: String,
    /// For whom it works.
    pub subject: Subject,
    /// How far it is.
    pub progress: Progress,
}

impl WorkerView {
    /// Keeps what is needed of a worker pod; none if it is not one of ours.
    #[must_use]
    pub fn new(pod: &Pod) -> Option<Self> {
        let metadata = &pod.metadata;
        let annotations = metadata.annotations.as_ref()?;
        let subject: Subject = serde_json::from_str(annotations.get(SUBJECT)?).ok()?;
        let node_name = annotations.get(NODE_NAME)?.clone();
        // The name is what reserves the number: a pod under another is not the one that was made.
        let pod_name = metadata.name.clone().filter(|is| *is == name(&subject.node_uid, subject.number))?;
        let runs_on = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
        let progress = match runs_on.filter(|node| **node != node_name) {
            Some(other) => Progress::Silent(format!("it ran on {other}")),
            None => progress(pod, &subject),
        };
        Some(Self {
            name: pod_name,
            uid: metadata.uid.clone()?,
            resource_version: metadata.resource_version.clone().unwrap_or_default(),
            first_seen: Duration::ZERO,
            deleting: metadata.deletion_timestamp.is_some(),
            node_name,
            subject,
            progress,
        })
    }

    /// A pod that has a worker's name and cannot be read as one: its number is used up.
    #[must_use]
    pub fn unreadable(pod: &Pod, node: &NodeView, subject: &Subject) -> Self {
        let metadata = &pod.metadata;
        Self {
            name: name(&subject.node_uid, subject.number),
            uid: metadata.uid.clone().unwrap_or_default(),
            resource_version: metadata.resource_version.clone().unwrap_or_default(),
            first_seen: Duration::ZERO,
            deleting: metadata.deletion_timestamp.is_some(),
            node_name: node.name.clone(),
            subject: subject.clone(),
            progress: Progress::Silent("there is a pod of its name that is no worker".into()),
        }
    }

    /// Whether its container ended, or never will have run.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        matches!(self.progress, Progress::Reported(_) | Progress::Silent(_))
    }
}

/// Read from the container called `worker`, never from the phase alone: other containers may fail for other reasons.
fn progress(pod: &Pod, subject: &Subject) -> Progress {
    let status = pod.status.as_ref();
    let containers = status.and_then(|status| status.container_statuses.as_ref()).into_iter().flatten();
    let state = containers
        .into_iter()
        .find(|container| container.name == CONTAINER)
        .and_then(|container| container.state.as_ref());
    if let Some(terminated) = state.and_then(|state| state.terminated.as_ref()) {
        return outcome(terminated, subject);
    }
    let phase = status.and_then(|status| status.phase.as_deref()).unwrap_or_default();
    if matches!(phase, "Failed" | "Succeeded") {
        let reason = status.and_then(|status| status.reason.as_deref()).unwrap_or("no reason given");
        return Progress::Silent(format!("the pod ended before its worker did: {reason}"));
    }
    if let Some(waiting) = state.and_then(|state| state.waiting.as_ref()) {
        let reason = waiting.reason.clone().unwrap_or_default();
        return Progress::Waiting(match &waiting.message {
            Some(message) if !message.is_empty() => format!("{reason}: {message}"),
            _ => reason,
        });
    }
    let mut conditions = status.and_then(|status| status.conditions.as_ref()).into_iter().flatten();
    if let Some(refused) = conditions.find(|one| one.type_ == "PodScheduled" && one.status == "False") {
        return Progress::Unscheduled(refused.message.clone().unwrap_or_default());
    }
    if state.is_some_and(|state| state.running.is_some()) {
        Progress::Running
    } else {
        Progress::Waiting(String::new())
    }
}

/// Believes a report only if it is about what this worker was made for, and agrees with its exit code.
fn outcome(terminated: &ContainerStateTerminated, subject: &Subject) -> Progress {
    let code = terminated.exit_code;
    let reason = terminated.reason.as_deref().unwrap_or_default();
    let message = terminated.message.as_deref().unwrap_or_default();
    if message.is_empty() {
        return Progress::Silent(format!("exit code {code} without a report ({reason})"));
    }
    match report::parse(message) {
        Err(error) => {
            Progress::Silent(format!("exit code {code} with a report that cannot be read: {error}"))
        }
        Ok(report) if report.subject != *subject => {
            Progress::Silent(format!("exit code {code} with a report about something else"))
        }
        Ok(report) if i32::from(report.exit_code()) == code => Progress::Reported(report),
        Ok(report) => {
            Progress::Silent(format!("exit code {code} contradicts the report, {}", report.verdict))
        }
    }
}

/// The name of a worker's pod. The name reserves the number: two controllers cannot both make it.
#[must_use]
pub fn name(node_uid: &str, number: u32) -> String {
    format!("{}{number}", name_prefix(node_uid))
}

/// How the names of all workers of a node begin.
#[must_use]
pub fn name_prefix(node_uid: &str) -> String {
    format!("nodekeeper-{node_uid}-")
}

/// The pod of a worker.
///
/// # Errors
/// Where a field of the gate cannot be written as JSON, which none can be.
pub fn pod(
    template: &Template,
    node: &NodeView,
    gate: &NodeGateSpec,
    subject: &Subject,
) -> Result<Pod, serde_json::Error> {
    let assignment = Assignment {
        subject: subject.clone(),
        check_timeout_seconds: gate.deadlines.check_seconds.unsigned_abs(),
        // Ends by itself, with a report, before the kubelet ends it without one.
        deadline_seconds: gate.deadlines.worker_seconds.unsigned_abs().saturating_sub(5).max(1),
        checks: gate.checks.clone(),
    };
    let labels: BTreeMap<&str, &str> = BTreeMap::from([
        ("app.kubernetes.io/name", "nodekeeper"),
        ("app.kubernetes.io/component", "worker"),
        ("app.kubernetes.io/managed-by", "nodekeeper"),
        (NODE_UID, node.uid.as_str()),
        // A mesh's sidecar would have to start before we can look, and may never end.
        ("sidecar.istio.io/inject", "false"),
    ]);
    serde_json::from_value(json!({
        "metadata": {
            "name": name(&node.uid, subject.number),
            "namespace": template.namespace,
            "labels": labels,
            "annotations": {
                NODE_NAME: node.name,
                SUBJECT: serde_json::to_string(subject)?,
                "linkerd.io/inject": "disabled",
            },
            // Gone with the node, whatever else happens.
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid}],
        },
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": gate.deadlines.worker_seconds,
            "terminationGracePeriodSeconds": 1,
            "serviceAccountName": template.service_account,
            "automountServiceAccountToken": gate.checks.api.is_some() || gate.checks.services.is_some(),
            "enableServiceLinks": false,
            "priorityClassName": (!template.priority_class.is_empty()).then_some(&template.priority_class),
            "affinity": pinned_to(&node.name),
            "tolerations": tolerations(node, gate),
            "securityContext": {
                "runAsNonRoot": true,
                "runAsUser": 65532,
                "runAsGroup": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container(template, gate, &assignment)?],
        },
    }))
}

/// The gate's taints, those that a node bears while it comes up, and all others that it bears now: a node for GPUs or
/// one that a second gate holds is looked at like any other.
fn tolerations(node: &NodeView, gate: &NodeGateSpec) -> Vec<serde_json::Value> {
    let own = gate.taints.iter().map(|taint| (taint.key.as_str(), taint.effect.as_str()));
    let borne = node.taints.iter().map(|taint| (taint.key.as_str(), taint.effect.as_str()));
    let early = EARLY_TAINTS.iter().flat_map(|key| [(*key, "NoSchedule"), (*key, "NoExecute")]);
    let all: BTreeSet<(&str, &str)> = own.chain(borne).chain(early).collect();
    let toleration =
        |(key, effect): (&str, &str)| json!({"key": key, "operator": "Exists", "effect": effect});
    all.into_iter().map(toleration).collect()
}

/// By name and not by the hostname label, which may differ from it.
fn pinned_to(node: &str) -> serde_json::Value {
    json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]},
    ]}}})
}

fn container(
    template: &Template,
    gate: &NodeGateSpec,
    assignment: &Assignment,
) -> Result<serde_json::Value, serde_json::Error> {
    Ok(json!({
        "name": CONTAINER,
        "image": gate.worker.image.as_ref().unwrap_or(&template.image),
        "imagePullPolicy": "IfNotPresent",
        "command": ["/nodekeeper-worker"],
        "env": [
            {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
            {"name": Assignment::ENV, "value": serde_json::to_string(assignment)?},
        ],
        "terminationMessagePolicy": "File",
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]},
        },
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}},
    }))
}

#[cfg(test)]
mod tests;
