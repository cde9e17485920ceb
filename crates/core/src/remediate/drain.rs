//! Decides which pods of a node are evicted, and when the drain has failed.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;

use super::target::do_not_disrupt;
use crate::api::{Drain, Evictable};
use crate::reasons::remediation::{DRAIN_TIMED_OUT, POD_NOT_EVICTABLE, POD_STUCK};

/// A pod of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "the facts are independent of each other")]
pub struct PodView {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// When the grace period ends, if the pod is being deleted.
    pub deletion_timestamp: Option<Timestamp>,
    /// The drain leaves the pod alone: it belongs to a `DaemonSet` or to the Node, or is a mirror pod.
    pub stays: bool,
    pub finished: bool,
    pub has_empty_dir: bool,
    /// A controller creates the pod again elsewhere.
    pub managed: bool,
    /// The annotation that forbids the disruption of the pod.
    pub opted_out: Option<&'static str>,
}

impl PodView {
    #[must_use]
    pub fn new(pod: &Pod) -> Self {
        let metadata = &pod.metadata;
        let annotation = |key: &str| metadata.annotations.as_ref().and_then(|all| all.get(key));
        let owners = || metadata.owner_references.iter().flatten();
        let is_controlled_by =
            |kind: &str| owners().any(|owner| owner.controller == Some(true) && owner.kind == kind);
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
        let stays = is_controlled_by("DaemonSet")
            || annotation("kubernetes.io/config.mirror").is_some()
            || owners().any(|owner| owner.kind == "Node");
        let finished = matches!(phase, Some("Succeeded" | "Failed"));
        Self {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            deletion_timestamp: metadata.deletion_timestamp.as_ref().map(|time| time.0),
            stays,
            finished,
            has_empty_dir: volumes.into_iter().flatten().any(|volume| volume.empty_dir.is_some()),
            managed: owners().any(|owner| owner.controller == Some(true)),
            // The drain does not disrupt a pod that has finished or stays.
            opted_out: do_not_disrupt(|key| annotation(key).map(String::as_str))
                .filter(|_| !stays && !finished),
        }
    }

    fn title(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// The next step of a drain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DrainPlan {
    /// No pod is left that has to leave.
    Done,
    /// Pods to evict. An eviction that a `PodDisruptionBudget` refuses is tried again later.
    Evict(Vec<PodView>),
    /// All pods that have to leave are terminating.
    Waiting(String),
    /// The drain has failed, with reason and message.
    Refused(&'static str, String),
}

/// The next step of a drain that started at `began`.
#[must_use]
pub fn plan(pods: &[PodView], spec: &Drain, began: Timestamp, now: Timestamp) -> DrainPlan {
    let leaving: Vec<&PodView> = pods.iter().filter(|pod| !pod.stays).collect();
    let Some(first) = leaving.first() else { return DrainPlan::Done };
    let to_evict: Vec<&PodView> =
        leaving.iter().copied().filter(|pod| pod.deletion_timestamp.is_none()).collect();
    if let Some(message) = to_evict.iter().find_map(|pod| refusal(pod, spec)) {
        return DrainPlan::Refused(POD_NOT_EVICTABLE, message);
    }
    if now.duration_since(began) >= SignedDuration::from_secs(spec.timeout_seconds.into()) {
        let names: Vec<String> = leaving.iter().take(3).map(|pod| pod.title()).collect();
        let message = format!(
            "{} pods are left after {} s (`spec.drain.timeoutSeconds` of the policy), such as {}",
            leaving.len(),
            spec.timeout_seconds,
            names.join(", ")
        );
        return DrainPlan::Refused(DRAIN_TIMED_OUT, message);
    }
    let overtime = SignedDuration::from_secs(spec.pod_overtime_seconds.into());
    let is_stuck =
        |pod: &&&PodView| pod.deletion_timestamp.is_some_and(|at| now.duration_since(at) >= overtime);
    if let Some(pod) = leaving.iter().find(is_stuck) {
        let message = format!(
            "pod {} still exists {} s after the end of its grace period: check its finalizers and its kubelet",
            pod.title(),
            spec.pod_overtime_seconds
        );
        return DrainPlan::Refused(POD_STUCK, message);
    }
    if to_evict.is_empty() {
        let message = format!("{} pods are terminating, such as {}", leaving.len(), first.title());
        return DrainPlan::Waiting(message);
    }
    DrainPlan::Evict(to_evict.into_iter().cloned().collect())
}

/// Why the policy forbids the eviction of the pod.
fn refusal(pod: &PodView, spec: &Drain) -> Option<String> {
    let (what, field) = if pod.finished {
        return None;
    } else if pod.has_empty_dir && spec.empty_dir_pods == Evictable::Refuse {
        ("has an emptyDir volume", "emptyDirPods")
    } else if !pod.managed && spec.unmanaged_pods == Evictable::Refuse {
        ("has no controller that would create it again", "unmanagedPods")
    } else {
        return None;
    };
    Some(format!(
        "pod {} {what}: delete it, or set `spec.drain.{field}` of the policy to 'Evict'",
        pod.title()
    ))
}
