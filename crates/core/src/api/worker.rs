//! The worker pod of a gate.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};

use super::gate::TaintEffect;
use super::volume::{Volume, VolumeMount};
use crate::env_var::EnvVar;

/// The worker pods of a gate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Worker {
    /// The image of the worker container, which has to contain `/nodekeeper-worker`. Images other than that of the
    /// installation have to be allowed by the installation. Defaults to the worker image of the installation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512), regex(pattern = r"^[^\s]+$"))]
    pub image: Option<String>,
    /// Determines when the images of all containers of the worker pod are pulled. `IfNotPresent`, the default, pulls an
    /// image that the node does not have. `Always` asks the registry each time. `Never` uses only images that the node
    /// has.
    #[serde(default)]
    pub image_pull_policy: ImagePullPolicy,
    /// Lists Secrets in the namespace of the workers that hold credentials for pulling images, in addition to those of
    /// the installation. At most 8; defaults to none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub image_pull_secrets: Vec<LocalObjectReference>,
    /// The compute resources of the container `worker`. Defaults to requests of 10m CPU and 16Mi memory and a limit of
    /// 64Mi memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// The priority class of the worker pod. Classes that begin with `system-` have to be allowed by the installation.
    /// Defaults to the class of the installation, which never preempts other pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub priority_class_name: Option<String>,
    /// Lists tolerations of the worker pod. It always tolerates the taints that its node carries when the pod is created,
    /// so this is needed only for taints that are added later. At most 32; defaults to none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub tolerations: Vec<Toleration>,
    /// Lists environment variables of the container `worker`, at most 32. Variables that the controller sets itself
    /// cannot be overridden.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub env: Vec<EnvVar>,
    /// The ServiceAccount that the worker pod runs as. Accounts other than that of the installation have to be allowed
    /// by the installation. Defaults to the account of the installation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub service_account_name: Option<String>,
    /// Lists containers that run one after the other before the checks start, at most 8. One that exits with a code from
    /// 1 to 125 counts as a failed check of its name. Defaults to none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub init_containers: Vec<InitContainer>,
    /// Lists volumes that init containers can mount, at most 8. Defaults to none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub volumes: Vec<Volume>,
}

/// When an image is pulled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ImagePullPolicy {
    /// The registry is asked each time a container starts.
    Always,
    /// The image is pulled if the node does not have it.
    #[default]
    IfNotPresent,
    /// Only an image that the node has is used.
    Never,
}

impl ImagePullPolicy {
    /// The spelling of the Kubernetes API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}

/// A reference to a Secret that holds credentials.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LocalObjectReference {
    /// The name of the Secret that holds the credentials.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// The compute resources of a container. Keys are the names of resources: `cpu`, `memory`, `ephemeral-storage`,
/// `hugepages-SIZE`, and extended resources with a domain such as `nvidia.com/gpu`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// The amounts that the scheduler reserves for the container, by resource: `cpu`, `memory`, `ephemeral-storage`,
    /// `hugepages-SIZE`, or an extended resource such as `nvidia.com/gpu`. No worker is created for a gate that names
    /// another resource. At most 8.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 8))]
    pub requests: BTreeMap<String, Quantity>,
    /// The amounts that the container may use at most, by resource as in `requests`. A container that exceeds its memory
    /// limit is killed, which reaches no verdict. At most 8.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 8))]
    pub limits: BTreeMap<String, Quantity>,
}

impl Resources {
    /// The first name in requests or limits that is no resource of Kubernetes.
    #[must_use]
    pub fn unknown_resource(&self) -> Option<&str> {
        let is_known = |name: &str| {
            matches!(name, "cpu" | "memory" | "ephemeral-storage")
                || name.starts_with("hugepages-")
                || name.contains('/')
        };
        self.requests.keys().chain(self.limits.keys()).map(String::as_str).find(|name| !is_known(name))
    }
}

/// An amount of a resource, written as a number or as text with a unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Quantity(pub String);

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum IntOrString {
            Int(i64),
            String(String),
        }
        Ok(Self(match IntOrString::deserialize(deserializer)? {
            IntOrString::Int(number) => number.to_string(),
            IntOrString::String(text) => text,
        }))
    }
}

impl JsonSchema for Quantity {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Quantity".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "An amount of the resource, written as a number or as text with a unit, for example `1`, `50m` or `64Mi`.",
            "x-kubernetes-int-or-string": true,
            "minimum": 0,
            "maxLength": 32,
            "pattern": r"^[0-9]+([.][0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti)?$",
        })
    }
}

/// A toleration lets the worker pod run on a node in spite of a taint, as in a pod spec.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[x_kube(
    validation = Rule::new("self.operator == 'Equal' || !has(self.value) || self.value == ''")
        .message("`value` must be empty if `operator` is 'Exists', which matches any value"),
    validation = Rule::new("self.operator == 'Exists' || (has(self.key) && self.key != '')")
        .message("`operator` must be 'Exists' if `key` is empty, which matches every taint"),
    validation = Rule::new("!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')")
        .message("`effect` must be 'NoExecute' if `tolerationSeconds` is set"),
)]
#[serde(rename_all = "camelCase")]
pub struct Toleration {
    /// The key of the taint that is tolerated. An empty key with the operator `Exists` matches every taint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 317))]
    pub key: Option<String>,
    /// Determines how the value of the taint is compared. `Equal`, the default, requires the value in `value`. `Exists`
    /// matches any value.
    #[serde(default)]
    pub operator: TolerationOperator,
    /// The value of the taint that `Equal` compares with. It must be empty with `Exists`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub value: Option<String>,
    /// The effect of the taint that is tolerated: `NoSchedule`, `PreferNoSchedule` or `NoExecute`. If it is left out,
    /// taints of every effect match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<TaintEffect>,
    /// The time in seconds for which a taint with the effect `NoExecute` is tolerated before the pod is evicted. If it is
    /// left out, the taint is tolerated forever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub toleration_seconds: Option<i64>,
}

/// How a toleration compares the value of a taint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TolerationOperator {
    /// The value has to be equal.
    #[default]
    Equal,
    /// Any value matches.
    Exists,
}

/// A container that runs before the checks and whose failure is a failed check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[x_kube(
    validation = Rule::new("self.name != 'worker' && !self.name.startsWith('check-')")
        .message("`name` must not be `worker` nor begin with `check-`, which name the other containers of the pod; choose another"),
)]
#[serde(rename_all = "camelCase")]
pub struct InitContainer {
    /// The name of the container and of the check that it stands for. It must not be `worker` nor begin with `check-`.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// The container image that the init container runs.
    #[schemars(length(min = 1, max = 512), regex(pattern = r"^[^\s]+$"))]
    pub image: String,
    /// The entrypoint of the container as a list of words, at most 32. If it is empty, the entrypoint of the image runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(max = 4096)))]
    pub command: Vec<String>,
    /// The arguments of the entrypoint, at most 32. If they are left out, those of the image are used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(max = 4096)))]
    pub args: Vec<String>,
    /// Lists environment variables of the init container, at most 32. Defaults to none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub env: Vec<EnvVar>,
    /// Lists the volumes of `worker.volumes` that the container mounts, at most 8. Defaults to none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub volume_mounts: Vec<VolumeMount>,
    /// The compute resources of the init container. By default it has neither requests nor limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// The security settings of the container. Settings that are left out are as for the worker: not root, no privilege
    /// escalation, no capabilities, a read-only root file system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security_context: Option<SecurityContext>,
    /// The working directory of the container. Defaults to that of the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub working_dir: Option<String>,
}

/// The security settings of an init container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecurityContext {
    /// Determines whether the container runs with all privileges of root on the node. `true` has to be allowed by the
    /// installation. Defaults to false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub privileged: Option<bool>,
    /// Determines whether the root file system of the container is read-only. Defaults to true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only_root_filesystem: Option<bool>,
    /// Determines whether the kubelet refuses to run the container as root. `false` has to be allowed by the
    /// installation. Defaults to true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_as_non_root: Option<bool>,
    /// The user ID that the container runs as. 0, which is root, has to be allowed by the installation. Defaults to
    /// 65532.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_as_user: Option<i64>,
    /// The primary group ID that the container runs with. Defaults to 65532.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_as_group: Option<i64>,
    /// Determines whether a process can gain more privileges than its parent. `true` has to be allowed by the
    /// installation. Defaults to false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_privilege_escalation: Option<bool>,
}
