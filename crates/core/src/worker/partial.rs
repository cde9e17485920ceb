//! The part of a pod that the view of a worker needs. A watch decodes this instead of the whole pod.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::de::{Deserialize, Deserializer, IgnoredAny};

use crate::partial::{part, resource};

/// What the view of a worker needs of its pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PartialPod {
    /// Only name, uid, resourceVersion, annotations and the time of deletion.
    pub(super) metadata: ObjectMeta,
    pub(super) spec: Spec,
    pub(super) status: Option<Status>,
}

part!(Fields { metadata: Metadata = "metadata", spec: Spec = "spec", status: Status = "status" });
part!(Metadata {
    name: String = "name",
    uid: String = "uid",
    resource_version: String = "resourceVersion",
    deleted: Time = "deletionTimestamp",
    annotations: BTreeMap<String, String> = "annotations",
});
part!(Spec { node_name: String = "nodeName", containers: Vec<Container> = "containers" });
part!(Container { name: String = "name" });
part!(Status {
    phase: String = "phase",
    reason: String = "reason",
    conditions: Vec<Condition> = "conditions",
    containers: Vec<ContainerStatus> = "containerStatuses",
    init_containers: Vec<ContainerStatus> = "initContainerStatuses",
});
part!(Condition { kind: String = "type", status: String = "status", message: String = "message" });
part!(ContainerStatus { name: String = "name", state: State = "state" });
part!(State {
    waiting: Waiting = "waiting",
    running: IgnoredAny = "running",
    terminated: Terminated = "terminated"
});
part!(Waiting { reason: String = "reason", message: String = "message" });
part!(Terminated {
    exit_code: i32 = "exitCode",
    reason: String = "reason",
    message: String = "message",
    started_at: Time = "startedAt",
});

resource!(PartialPod, Pod);

impl<'de> Deserialize<'de> for PartialPod {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let Fields { metadata, spec, status } = Fields::deserialize(from)?;
        let Metadata { name, uid, resource_version, deleted, annotations } = metadata.unwrap_or_default();
        let metadata = ObjectMeta {
            name,
            uid,
            resource_version,
            deletion_timestamp: deleted,
            annotations,
            ..ObjectMeta::default()
        };
        Ok(Self { metadata, spec: spec.unwrap_or_default(), status })
    }
}

impl ContainerStatus {
    pub(super) fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    pub(super) fn is_running(&self) -> bool {
        self.state.as_ref().is_some_and(|state| state.running.is_some())
    }
}

impl Terminated {
    pub(super) fn exit_code(&self) -> i32 {
        self.exit_code.unwrap_or_default()
    }
}
