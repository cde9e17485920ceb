//! `NodeGates`: their status, and the gate of a configuration file.

use kube::Api;
use kube::api::{PatchParams, PostParams};
use nodekeeper_core::api::{NodeGate, NodeGateSpec, NodeGateStatus};
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

    /// Creates or changes the gate of the configuration file, so that it is what the file says.
    pub async fn sync_configured_gate(
        &self,
        name: &str,
        spec: &NodeGateSpec,
        known: Option<&GateView>,
    ) -> Result<(), WriteError> {
        let replace = json!({"op": "replace", "path": "/spec", "value": spec});
        let gates: Api<NodeGate> = self.all();
        let guard = match known {
            Some(gate) if gate.spec == *spec => return Ok(()),
            Some(gate) => Some(test_uid(&gate.uid)),
            None => {
                let gate = NodeGate::new(name, spec.clone());
                match self.write(gates.create(&PostParams::default(), &gate)).await {
                    // There is a gate of this name that cannot be parsed.
                    Err(WriteError::Conflict(_)) => None,
                    created => return created.map(drop),
                }
            }
        };
        let patch = json_patch(&guard.into_iter().chain([replace]).collect::<Vec<_>>())?;
        self.write(gates.patch(name, &PatchParams::default(), &patch)).await.map(drop)
    }
}
