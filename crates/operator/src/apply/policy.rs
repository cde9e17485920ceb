//! The RemediationPolicy: its status, which holds the reservations, and the policy of a configuration file.

use kube::Api;
use kube::api::{PatchParams, PostParams};
use nodekeeper_core::api::{RemediationPolicy, RemediationPolicySpec, RemediationPolicyStatus};
use nodekeeper_core::remediate::Policy;
use serde_json::json;

use super::{WriteError, Writer, json_patch, test_uid, test_version};

impl Writer {
    /// Replaces the status that it was decided from, and no other: a reservation written so is the only one.
    pub async fn update_policy_status(
        &self,
        policy: &Policy,
        status: &RemediationPolicyStatus,
    ) -> Result<RemediationPolicy, WriteError> {
        let patch = json_patch(&[
            test_uid(&policy.uid),
            test_version(&policy.resource_version),
            json!({"op": "add", "path": "/status", "value": status}),
        ])?;
        let policies: Api<RemediationPolicy> = self.all();
        self.write(policies.patch_status(Policy::NAME, &PatchParams::default(), &patch)).await
    }

    /// Creates the policy of the configuration file. An existing policy is the user's and stays.
    pub async fn create_policy(&self, spec: &RemediationPolicySpec) -> Result<(), WriteError> {
        let policy = RemediationPolicy::new(Policy::NAME, spec.clone());
        let policies: Api<RemediationPolicy> = self.all();
        match self.write(policies.create(&PostParams::default(), &policy)).await {
            Ok(_) | Err(WriteError::Conflict(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
