//! How a node is emptied: which pods go, which stay, and when it is given up.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;

use super::target::opts_out;
use crate::api::{Drain, Evictable};

/// So many evictions are asked for at once.
const AT_ONCE: usize = 50;

/// A pod of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct PodView {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// When it should be gone, if somebody deleted it.
    pub gone_at: Option<Timestamp>,
    /// It stays with its node: a `DaemonSet`'s, a mirror pod, or the node's own.
    pub stays: bool,
    /// It ended.
    pub finished: bool,
    /// It has an `emptyDir`.
    pub local_storage: bool,
    /// Somebody makes it again elsewhere.
    pub managed: bool,
    /// The annotation by which it is not to be disrupted.
    pub opted_out: Option<&'static str>,
}

impl PodView {
    /// Keeps what is needed of a pod.
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
            gone_at: metadata.deletion_timestamp.as_ref().map(|time| time.0),
            stays,
            finished,
            local_storage: volumes.into_iter().flatten().any(|volume| volume.empty_dir.is_some()),
            managed: owners().any(|owner| owner.controller == Some(true)),
            // One that ended or stays is not disrupted.
            opted_out: opts_out(|key| annotation(key).map(String::as_str)).filter(|_| !stays && !finished),
        }
    }

    fn title(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// What is next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DrainPlan {
    /// Nothing is left that has to go.
    Done,
    /// These have to be evicted. Those of them whose budget does not allow it are asked for again later.
    Evict(Vec<PodView>),
    /// All that has to go is going.
    Waiting(String),
    /// It cannot be emptied; why, in one word and for people.
    Refused(&'static str, String),
}

/// What is next, since it began then.
#[must_use]
pub fn plan(pods: &[PodView], spec: &Drain, began: Timestamp, now: Timestamp) -> DrainPlan {
    let leaves: Vec<&PodView> = pods.iter().filter(|pod| !pod.stays).collect();
    if leaves.is_empty() {
        return DrainPlan::Done;
    }
    let going = |pod: &&&PodView| pod.gone_at.is_some();
    let to_evict: Vec<&&PodView> = leaves.iter().filter(|pod| pod.gone_at.is_none()).collect();
    let kept = |pod: &&&PodView| {
        let lost = pod.local_storage && spec.empty_dir_pods == Evictable::Refuse;
        let lonely = !pod.managed && spec.unmanaged_pods == Evictable::Refuse;
        let why = lost.then_some(("has an emptyDir", "emptyDirPods"));
        why.or(lonely.then_some(("is made again by nobody", "unmanagedPods"))).filter(|_| !pod.finished)
    };
    if let Some((pod, (what, field))) = to_evict.iter().find_map(|pod| Some((pod, kept(pod)?))) {
        let message = format!(
            "pod {} {what}: delete it, or set `spec.drain.{field}` of the policy to 'Evict'",
            pod.title()
        );
        return DrainPlan::Refused("PodNotEvictable", message);
    }
    let total = SignedDuration::from_secs(spec.timeout_seconds.into());
    if now.duration_since(began) >= total {
        let names: Vec<String> = leaves.iter().take(3).map(|pod| pod.title()).collect();
        let message = format!(
            "{} pods are left after {} s, {} among them",
            leaves.len(),
            spec.timeout_seconds,
            names.join(", ")
        );
        return DrainPlan::Refused("DrainTimedOut", message);
    }
    let patience = SignedDuration::from_secs(spec.pod_overtime_seconds.into());
    let stuck = |pod: &&&PodView| pod.gone_at.is_some_and(|at| now.duration_since(at) >= patience);
    if let Some(pod) = leaves.iter().find(stuck) {
        let message = format!(
            "pod {} does not go: {} s after the end of its grace period it is still there",
            pod.title(),
            spec.pod_overtime_seconds
        );
        return DrainPlan::Refused("PodStuck", message);
    }
    if to_evict.is_empty() {
        let count = leaves.iter().filter(going).count();
        return DrainPlan::Waiting(format!("{count} pods are going, {} among them", leaves[0].title()));
    }
    DrainPlan::Evict(to_evict.into_iter().take(AT_ONCE).map(|pod| (**pod).clone()).collect())
}
