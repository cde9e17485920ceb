//! `NodeRemediations`: requests to replace a node, their causes and their status.

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{PatchParams, PostParams};
use nodekeeper_core::api::{
    NodeRemediation, NodeRemediationSpec, NodeRemediationStatus, RemediationAction, RemediationCause,
};
use nodekeeper_core::node::NodeView;
use nodekeeper_core::remediate::{Remediation, Target, labels};
use serde_json::json;

use super::{WriteError, Writer, deleted, json_patch, test_uid, test_version, with_uid};
use crate::runtime::call::{READ_TIMEOUT, call};

impl Writer {
    /// Requests the replacement of a node, or refreshes the cause of a request that is there.
    pub async fn upsert_remediation(
        &self,
        node: &NodeView,
        known: Option<&Remediation>,
        cause: &RemediationCause,
    ) -> Result<NodeRemediation, WriteError> {
        let remediations: Api<NodeRemediation> = self.all();
        if let Some(known) = known {
            let patch = json_patch(&[
                test_uid(&known.uid),
                test_version(&known.resource_version),
                // The cause was observed in this boot.
                json!({"op": "add", "path": "/spec/node/bootID", "value": node.boot_id}),
                json!({"op": "replace", "path": "/spec/causes", "value": known.causes_with(cause, &node.boot_id.to_string())}),
            ])?;
            return self.write(remediations.patch(&known.name, &PatchParams::default(), &patch)).await;
        }
        // The cached view does not hold the providerID.
        let nodes: Api<Node> = self.all();
        let target = Target::new(&call(READ_TIMEOUT, nodes.get(&node.name)).await?);
        let (labels, identity) = (labels(&target, cause), target.identity);
        if identity.uid != node.uid || identity.boot_id != node.boot_id {
            return Err(WriteError::Conflict("the node was replaced or rebooted".into()));
        }
        let name = identity.uid.clone();
        let spec = NodeRemediationSpec {
            node: identity,
            causes: vec![cause.clone()],
            action: RemediationAction::Replace,
        };
        let mut remediation = NodeRemediation::new(&name, spec);
        remediation.metadata.labels = Some(labels);
        self.write(remediations.create(&PostParams::default(), &remediation)).await
    }

    pub async fn update_remediation_status(
        &self,
        remediation: &Remediation,
        status: &NodeRemediationStatus,
    ) -> Result<NodeRemediation, WriteError> {
        let patch = json_patch(&[
            test_uid(&remediation.uid),
            test_version(&remediation.resource_version),
            json!({"op": "add", "path": "/status", "value": status}),
        ])?;
        let remediations: Api<NodeRemediation> = self.all();
        self.write(remediations.patch_status(&remediation.name, &PatchParams::default(), &patch)).await
    }

    pub async fn delete_remediation(&self, remediation: &Remediation) -> Result<(), WriteError> {
        let remediations: Api<NodeRemediation> = self.all();
        deleted(self.write(remediations.delete(&remediation.name, &with_uid(&remediation.uid))).await)
    }
}
