//! The volumes of a worker pod.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::env_var::FieldSelector;

/// A mount makes a volume available in a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeMount {
    /// The name of the volume in `worker.volumes` that is mounted.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// The path in the container at which the volume is mounted.
    #[schemars(length(min = 1, max = 4096))]
    pub mount_path: String,
    /// Determines whether the container can only read the volume. Defaults to false.
    #[serde(default)]
    pub read_only: bool,
    /// The path within the volume that is mounted. Defaults to the root of the volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub sub_path: Option<String>,
}

/// A volume that init containers can mount. It has exactly one source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[x_kube(
    validation = Rule::new(
        "[has(self.emptyDir), has(self.configMap), has(self.secret), has(self.projected), has(self.hostPath)].exists_one(kind, kind)"
    )
    .message("a volume must have exactly one of `emptyDir`, `configMap`, `secret`, `projected` and `hostPath`"),
    validation = Rule::new("!self.name.startsWith('nodekeeper-')")
        .message("`name` must not begin with `nodekeeper-`, which names the controller's own volumes; choose another"),
)]
#[serde(rename_all = "camelCase")]
pub struct Volume {
    /// The name by which containers mount the volume. It must not begin with `nodekeeper-`.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// A directory that is empty when the worker pod starts and is deleted with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub empty_dir: Option<EmptyDir>,
    /// A volume that holds the keys of a ConfigMap in the namespace of the workers as files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map: Option<ConfigMapVolume>,
    /// A volume that holds the keys of a Secret in the namespace of the workers as files. The installation has to allow
    /// the Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<SecretVolume>,
    /// A volume that combines files from several sources in one directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub projected: Option<ProjectedVolume>,
    /// A file or directory of the node. The installation has to allow the path or one above it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_path: Option<HostPathVolume>,
}

impl Volume {
    /// The names of all Secrets that the volume reads.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        let projected = self.projected.iter().flat_map(|projected| &projected.sources);
        let projected = projected.filter_map(|source| Some(source.secret.as_ref()?.name.as_str()));
        self.secret.iter().map(|secret| secret.secret_name.as_str()).chain(projected)
    }
}

/// A directory that lives as long as the worker pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EmptyDir {}

/// A ConfigMap as a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigMapVolume {
    /// The name of the ConfigMap whose keys become files.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Lists the keys of the ConfigMap that become files, at most 16. Defaults to all keys, each as a file of its name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub items: Vec<KeyToPath>,
}

/// A Secret as a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretVolume {
    /// The name of the Secret whose keys become files.
    #[schemars(length(min = 1, max = 253))]
    pub secret_name: String,
    /// Lists the keys of the Secret that become files, at most 16. Defaults to all keys, each as a file of its name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub items: Vec<KeyToPath>,
}

/// Maps a key to the path of a file in the volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KeyToPath {
    /// The key whose value is written to the file.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
    /// The path of the file that holds the key, relative to the mount point and without `..`.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[^/]"))]
    pub path: String,
}

/// Files from several sources in one volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProjectedVolume {
    /// Lists the sources of the files, at least 1 and at most 8.
    #[schemars(length(min = 1, max = 8))]
    pub sources: Vec<VolumeProjection>,
}

/// A source that adds files to a projected volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[x_kube(
    validation = Rule::new("[has(self.configMap), has(self.secret), has(self.downwardAPI)].exists_one(kind, kind)")
        .message("a source must have exactly one of `configMap`, `secret` and `downwardAPI`"),
)]
#[serde(rename_all = "camelCase")]
pub struct VolumeProjection {
    /// Adds keys of a ConfigMap in the namespace of the workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map: Option<ConfigMapVolume>,
    /// Adds keys of a Secret in the namespace of the workers. The installation has to allow it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<SecretProjection>,
    /// Adds fields of the worker pod, each as a file.
    #[serde(default, rename = "downwardAPI", skip_serializing_if = "Option::is_none")]
    pub downward_api: Option<DownwardApiProjection>,
}

/// The keys of a Secret in a projected volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretProjection {
    /// The name of the Secret whose keys are added as files.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Lists the keys of the Secret that are added, at most 16. Defaults to all keys, each as a file of its name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub items: Vec<KeyToPath>,
}

/// Fields of the worker pod in a projected volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DownwardApiProjection {
    /// Lists the fields of the worker pod that are added, at least 1 and at most 16.
    #[schemars(length(min = 1, max = 16))]
    pub items: Vec<FieldToPath>,
}

/// Maps a field of the worker pod to the path of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FieldToPath {
    /// The path of the file that holds the field, relative to the mount point and without `..`.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[^/]"))]
    pub path: String,
    /// Selects the field of the worker pod that is written to the file.
    pub field_ref: FieldSelector,
}

/// A path of the node as a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostPathVolume {
    /// The absolute path on the node that is mounted.
    #[schemars(length(min = 1, max = 4096), regex(pattern = r"^/"))]
    pub path: String,
}
