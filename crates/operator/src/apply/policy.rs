//! The status of the RemediationPolicy, which holds the reservations.

use kube::Api;
use kube::api::PatchParams;
use nodekeeper_core::api::{RemediationPolicy, RemediationPolicyStatus};
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
}
