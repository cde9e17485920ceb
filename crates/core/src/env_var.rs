//! Environment variables of the containers in a worker pod.

#![allow(clippy::struct_field_names, reason = "the names of the Kubernetes API")]

use serde::{Deserialize, Serialize};

/// An environment variable with a fixed value or one that the kubelet looks up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(kube::KubeSchema))]
#[cfg_attr(
    feature = "api",
    x_kube(validation = Rule::new("!has(self.valueFrom) || !has(self.value) || self.value == ''")
        .message("`value` must be empty if `valueFrom` is set"))
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EnvVar {
    /// The name of the variable, which must not contain `=` or blanks.
    #[cfg_attr(feature = "api", schemars(length(min = 1, max = 253), regex(pattern = r"^[^=\s]+$")))]
    pub name: String,
    /// The value of the variable, at most 4096 characters. References to other variables such as `$(NAME)` are expanded
    /// by the kubelet. Defaults to the empty string.
    #[serde(default)]
    #[cfg_attr(feature = "api", schemars(length(max = 4096)))]
    pub value: String,
    /// The source that the kubelet reads the value from when the container starts. It excludes `value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_from: Option<EnvVarSource>,
}

/// Where the kubelet reads the value of a variable from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(kube::KubeSchema))]
#[cfg_attr(
    feature = "api",
    x_kube(validation = Rule::new(
        "[has(self.secretKeyRef), has(self.configMapKeyRef), has(self.fieldRef)].exists_one(source, source)"
    )
    .message("`valueFrom` must have exactly one of `secretKeyRef`, `configMapKeyRef` and `fieldRef`"))
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EnvVarSource {
    /// Selects a key of a Secret in the namespace of the workers. Only Secrets that the installation allows can be
    /// selected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_key_ref: Option<KeySelector>,
    /// Selects a key of a ConfigMap in the namespace of the workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_key_ref: Option<KeySelector>,
    /// Selects a field of the worker pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field_ref: Option<FieldSelector>,
}

/// A key of a Secret or a ConfigMap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KeySelector {
    /// The name of the object that holds the value.
    #[cfg_attr(feature = "api", schemars(length(min = 1, max = 253)))]
    pub name: String,
    /// The key whose value becomes the value of the variable.
    #[cfg_attr(feature = "api", schemars(length(min = 1, max = 253)))]
    pub key: String,
    /// Determines whether the container starts without the variable if the object or the key does not exist. Defaults
    /// to false: the container then does not start.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

/// A field of the worker pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "api", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FieldSelector {
    /// The path of the field. These are supported: `metadata.name`, `metadata.namespace`, `metadata.uid`,
    /// `metadata.labels['KEY']`, `metadata.annotations['KEY']`, `spec.nodeName`, `spec.serviceAccountName`,
    /// `status.hostIP` and `status.podIP`.
    #[cfg_attr(
        feature = "api",
        schemars(
            length(min = 1, max = 400),
            regex(
                pattern = r"^(metadata\.(name|namespace|uid|(labels|annotations)\['[^']+'\])|spec\.(nodeName|serviceAccountName)|status\.(hostIP|podIP))$"
            )
        )
    )]
    pub field_path: String,
}
