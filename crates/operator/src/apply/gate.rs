//! The status of `NodeGates`.

use kube::Api;
use kube::api::PatchParams;
use nodekeeper_core::api::{NodeGate, NodeGateStatus};
use nodekeeper_core::gate::GateView;
use serde_json::json;

use super::{WriteError, Writer, json_patch, test_uid};

impl Writer {
    pub async fn patch_gate_status(
        &self,
        gate: &GateView,
        status: &NodeGateStatus,
    ) -> Result<NodeGate, WriteError> {
        let patch =
            json_patch(&[test_uid(&gate.uid), json!({"op": "add", "path": "/status", "value": status})])?;
        let gates: Api<NodeGate> = self.all();
        self.write(gates.patch_status(&gate.name, &PatchParams::default(), &patch)).await
    }
}
