//! Karpenter's `NodeClaims`.

use kube::Api;
use kube::core::DynamicObject;
use nodekeeper_core::remediate::provider::NodeClaimView;

use super::{WriteError, Writer, deleted, with_uid};
use crate::providers::karpenter::node_claims;

impl Writer {
    /// Deletes a `NodeClaim`: Karpenter ends the machine, and creates another if it needs one.
    pub async fn delete_node_claim(&self, claim: &NodeClaimView) -> Result<(), WriteError> {
        let claims: Api<DynamicObject> = node_claims(&self.client);
        deleted(self.write(claims.delete(&claim.name, &with_uid(&claim.uid))).await)
    }
}
