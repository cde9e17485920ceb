//! How a worker is run: what a gate may say about its pod.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a worker is run. What is left out is as the controller was installed with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Worker {
    /// Its image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512), regex(pattern = r"^[^\s]+$"))]
    pub image: Option<String>,
    /// When the image is pulled.
    #[serde(default)]
    pub pull_policy: PullPolicy,
    /// Secrets to pull images with, in the namespace of the workers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(min = 1, max = 253)))]
    pub pull_secrets: Vec<String>,
    /// What the container `worker` asks for. Default: 10m of CPU and 16Mi, at most 64Mi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// Its priority class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub priority_class_name: Option<String>,
    /// What it tolerates besides all that its node bears when it is made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub tolerations: Vec<Toleration>,
    /// Environment of the container `worker`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub env: Vec<EnvVar>,
    /// As whom it runs: the account that the controller was installed with, or one of those that it was told to allow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub service_account_name: Option<String>,
    /// Run before the checks, one after the other. One that ends with an exit code from 1 to 125 is a failed check of
    /// its name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub init_containers: Vec<InitContainer>,
    /// What they mount. A ConfigMap is also mounted in the container `worker`, at `/etc/nodekeeper/<name of the volume>`,
    /// for `caFile` of the check `http`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub volumes: Vec<Volume>,
}

/// When an image is pulled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PullPolicy {
    /// Always.
    Always,
    /// If the node does not have it.
    #[default]
    IfNotPresent,
    /// Never.
    Never,
}

impl PullPolicy {
    /// As Kubernetes writes it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}

/// Quantities by resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// What is set aside for it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 8))]
    pub requests: BTreeMap<String, Quantity>,
    /// What it may use at most.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 8))]
    pub limits: BTreeMap<String, Quantity>,
}

/// A quantity such as `50m` or `64Mi`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Quantity(
    #[schemars(length(max = 32), regex(pattern = r"^[0-9]+([.][0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti)?$"))] pub String,
);

/// What a pod tolerates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[x_kube(
    validation = Rule::new("!has(self.value) || self.value == '' || (has(self.operator) && self.operator == 'Equal')")
        .message("`value` must be left out unless `operator` is 'Equal': 'Exists', the default, takes any value"),
)]
#[serde(rename_all = "camelCase")]
pub struct Toleration {
    /// Key of the taint; none: every key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 317))]
    pub key: Option<String>,
    /// `Exists` (default) or `Equal`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^(Exists|Equal)$"))]
    pub operator: Option<String>,
    /// For `Equal`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub value: Option<String>,
    /// Effect of the taint; none: every effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^(NoSchedule|PreferNoSchedule|NoExecute)$"))]
    pub effect: Option<String>,
    /// For how long, with `NoExecute`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub toleration_seconds: Option<i64>,
}

/// A variable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EnvVar {
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Its value.
    #[serde(default)]
    #[schemars(length(max = 4096))]
    pub value: String,
}

/// A container that runs before the checks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[x_kube(
    validation = Rule::new("self.name != 'worker' && !self.name.startsWith('check-')")
        .message("`name` must not be `worker` nor begin with `check-`: so the worker's own containers are called; choose another"),
)]
#[serde(rename_all = "camelCase")]
pub struct InitContainer {
    /// Its name, which is that of the check as well.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Its image.
    #[schemars(length(min = 1, max = 512), regex(pattern = r"^[^\s]+$"))]
    pub image: String,
    /// What it runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(max = 4096)))]
    pub command: Vec<String>,
    /// With what.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(max = 4096)))]
    pub args: Vec<String>,
    /// Its environment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub env: Vec<EnvVar>,
    /// What it mounts, from `worker.volumes`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub volume_mounts: Vec<VolumeMount>,
    /// What it asks for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// What it may do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security_context: Option<SecurityContext>,
    /// Where it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub working_dir: Option<String>,
}

/// A volume in a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeMount {
    /// Which volume.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Where.
    #[schemars(length(min = 1, max = 4096))]
    pub mount_path: String,
    /// Whether it cannot be written to.
    #[serde(default)]
    pub read_only: bool,
    /// Which part of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub sub_path: Option<String>,
}

/// What an init container may do. Without it: as the worker, which may do nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecurityContext {
    /// All that the node's root may; only where the controller was told to allow it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub privileged: Option<bool>,
    /// Whether its own files cannot be written to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only_root_filesystem: Option<bool>,
    /// Whether it must not be root. `false` only where the controller was told to allow privileged containers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_as_non_root: Option<bool>,
    /// As which user; 0 as `runAsNonRoot: false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_as_user: Option<i64>,
    /// As which group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_as_group: Option<i64>,
    /// Whether it can gain rights; as `privileged`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_privilege_escalation: Option<bool>,
}

/// A volume: one of the kinds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[x_kube(
    validation = Rule::new("[has(self.emptyDir), has(self.configMap), has(self.hostPath)].exists_one(kind, kind)")
        .message("a volume must be exactly one of `emptyDir`, `configMap` and `hostPath`"),
    validation = Rule::new("self.name != 'nodekeeper-access'")
        .message("`name` must not be `nodekeeper-access`: that is the volume with the worker's token; choose another"),
)]
#[serde(rename_all = "camelCase")]
pub struct Volume {
    /// Its name.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Lives and dies with the worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub empty_dir: Option<EmptyDir>,
    /// A ConfigMap in the namespace of the workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map: Option<ConfigMapVolume>,
    /// A path of the node; only those that the controller was told to allow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_path: Option<HostPathVolume>,
}

/// An empty folder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EmptyDir {}

/// A ConfigMap as a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigMapVolume {
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// A path of the node as a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostPathVolume {
    /// Which.
    #[schemars(length(min = 1, max = 4096), regex(pattern = r"^/"))]
    pub path: String,
}
