//! The CRDs of `NodeClaims` and `NodePools`, without schemas, and the pools of a run.

use crate::value::{Value, json};

use super::super::cloud::Group;
use super::API;
use crate::api::status::ApiError;
use crate::cluster::Local;

pub(super) fn install(api: &Local, pools: &[Group]) -> Result<(), ApiError> {
    for (plural, kind) in [("nodeclaims", "NodeClaim"), ("nodepools", "NodePool")] {
        api.create("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", definition(plural, kind))?;
    }
    for pool in pools {
        let reference = json!({"group": "karpenter.sim", "kind": "SimNodeClass", "name": "default"});
        let mut spec = json!({"nodeClassRef": reference, "requirements": [], "expireAfter": "720h"});
        if !pool.taints.is_empty() {
            spec["startupTaints"] = json!(pool.taints);
        }
        let template = json!({"metadata": {"labels": pool.labels}, "spec": spec});
        let body = json!({"apiVersion": API, "kind": "NodePool", "metadata": {"name": pool.name},
            "spec": {"template": template, "disruption": {"consolidateAfter": "Never"}}});
        api.create(API, "NodePool", "", body)?;
    }
    Ok(())
}

fn definition(plural: &str, kind: &str) -> Value {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let schema =
        json!({"type": "object", "required": ["spec"], "properties": {"spec": open, "status": open}});
    json!({"metadata": {"name": format!("{plural}.karpenter.sh")}, "spec": {
        "group": "karpenter.sh", "scope": "Cluster",
        "names": {"plural": plural, "singular": kind.to_lowercase(), "kind": kind, "listKind": format!("{kind}List")},
        "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": schema}}],
    }})
}
