//! Objects that the installation brings: their creation and the fields that the configuration changed.

use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use nodekeeper_core::configured::ObjectKind;
use serde_json::{Value, json};

use super::{WriteError, Writer};

impl Writer {
    pub async fn create_configured(
        &self,
        kind: ObjectKind,
        object: &Value,
    ) -> Result<DynamicObject, WriteError> {
        let object = serde_json::from_value(object.clone());
        let object = object.map_err(|error| WriteError::Refused(error.to_string()))?;
        self.write(self.configured(kind).create(&PostParams::default(), &object)).await
    }

    /// Applies a merge patch to the object that it was decided from, and to no other version of it.
    pub async fn patch_configured(
        &self,
        kind: ObjectKind,
        known: &DynamicObject,
        patch: &Value,
    ) -> Result<DynamicObject, WriteError> {
        let metadata = &known.metadata;
        let mut patch = patch.clone();
        patch["metadata"]["uid"] = json!(metadata.uid);
        patch["metadata"]["resourceVersion"] = json!(metadata.resource_version);
        let name = metadata.name.as_deref().unwrap_or_default();
        let patch = Patch::Merge(&patch);
        self.write(self.configured(kind).patch(name, &PatchParams::default(), &patch)).await
    }

    fn configured(&self, kind: ObjectKind) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), &kind.resource())
    }
}
