//! What remediation writes: requests and their status, the policy's reservations, and every destructive act there is.

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::{DynamicObject, Status};
use kube::{Api, Error};
use nodekeeper_core::api::{
    NodeIdentity, NodeRemediation, NodeRemediationSpec, NodeRemediationStatus, RemediationAction,
    RemediationCause, RemediationPolicy, RemediationPolicySpec, RemediationPolicyStatus,
};
use nodekeeper_core::checks::WorkerIdentity;
use nodekeeper_core::gate::{EventSpec, GateView};
use nodekeeper_core::node::{CORDONED, NodeView};
use nodekeeper_core::record;
use nodekeeper_core::remediate::drain::PodView;
use nodekeeper_core::remediate::provider::NodeClaimView;
use nodekeeper_core::remediate::{Policy, Remediation, Target, labels};
use nodekeeper_core::worker::{self, WorkerView};
use serde_json::{Value, json};
use tokio::time::timeout;
use tracing::info;

use super::{Trouble, WRITE, Writer, as_patch, asked, escaped};
use crate::providers::node_claims;

/// What became of an eviction that was asked for.
#[derive(Debug, PartialEq, Eq)]
pub enum Evicted {
    /// The pod is going, or gone.
    Going,
    /// A budget does not allow it now; what the server says.
    Blocked(String),
}

impl Writer {
    fn requests(&self) -> Api<NodeRemediation> {
        Api::all(self.client.clone())
    }

    fn policies(&self) -> Api<RemediationPolicy> {
        Api::all(self.client.clone())
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    /// Asks for a node to be replaced, or refreshes what was seen.
    pub(super) async fn ask(&self, node: &NodeView, cause: &RemediationCause) -> Result<(), Trouble> {
        let known = self.views().requests.get(&node.uid).cloned();
        let made = if let Some(request) = known {
            self.refresh_cause(node, &request, cause).await?
        } else {
            // The view does not keep what the cloud calls the machine.
            let live = asked(self.nodes().get(&node.name)).await?;
            let target = Target::new(&live);
            if target.identity.uid != *node.uid || target.identity.boot_id != *node.boot_id {
                return Err(Trouble::Conflict("another node, or another boot".into()));
            }
            info!(node = &*node.name, gate = cause.name, why = cause.message, "Replacement asked for");
            asked(self.requests().create(&PostParams::default(), &request_for(target, cause))).await?
        };
        self.views().requests.learn(Remediation::new(&made), self.clock.elapsed());
        Ok(())
    }

    async fn refresh_cause(
        &self,
        node: &NodeView,
        request: &Remediation,
        cause: &RemediationCause,
    ) -> Result<NodeRemediation, Trouble> {
        let mut causes = request.spec.causes.clone();
        causes.retain(|known| (known.source, &known.name) != (cause.source, &cause.name));
        causes.insert(0, cause.clone());
        causes.truncate(8);
        let operations = [
            json!({"op": "test", "path": "/metadata/uid", "value": request.uid}),
            json!({"op": "test", "path": "/metadata/resourceVersion", "value": request.resource_version}),
            // What is seen now is of this boot.
            json!({"op": "add", "path": "/spec/node/bootID", "value": node.boot_id}),
            json!({"op": "replace", "path": "/spec/causes", "value": causes}),
        ];
        let patch = Patch::<()>::Json(as_patch(&operations)?);
        asked(self.requests().patch(&request.name, &PatchParams::default(), &patch)).await
    }

    /// Writes what became of a request.
    pub async fn report_request(
        &self,
        request: &Remediation,
        status: &NodeRemediationStatus,
    ) -> Result<(), Trouble> {
        self.permitted()?;
        let operations = [
            json!({"op": "test", "path": "/metadata/uid", "value": request.uid}),
            json!({"op": "test", "path": "/metadata/resourceVersion", "value": request.resource_version}),
            json!({"op": "add", "path": "/status", "value": status}),
        ];
        let patch = Patch::<()>::Json(as_patch(&operations)?);
        let written =
            asked(self.requests().patch_status(&request.name, &PatchParams::default(), &patch)).await?;
        self.views().requests.learn(Remediation::new(&written), self.clock.elapsed());
        Ok(())
    }

    /// History that is old enough goes.
    pub async fn remove_request(&self, request: &Remediation) -> Result<(), Trouble> {
        self.permitted()?;
        let params = DeleteParams::default().preconditions(of_uid(&request.uid));
        match asked(self.requests().delete(&request.name, &params)).await {
            Ok(_) | Err(Trouble::Gone(_)) => Ok(()),
            Err(trouble) => Err(trouble),
        }
    }

    /// Writes the policy's status over the one that it was decided from, and over no other: whoever reserves an act
    /// by it has reserved it alone.
    pub async fn report_policy(
        &self,
        policy: &Policy,
        status: &RemediationPolicyStatus,
    ) -> Result<(), Trouble> {
        self.permitted()?;
        let operations = [
            json!({"op": "test", "path": "/metadata/uid", "value": policy.uid}),
            json!({"op": "test", "path": "/metadata/resourceVersion", "value": policy.resource_version}),
            json!({"op": "add", "path": "/status", "value": status}),
        ];
        let patch = Patch::<()>::Json(as_patch(&operations)?);
        let written =
            asked(self.policies().patch_status(Policy::NAME, &PatchParams::default(), &patch)).await?;
        if let Some(policy) = Policy::new(&written) {
            self.views().policy.learn(policy, self.clock.elapsed());
        }
        Ok(())
    }

    /// Makes the policy that the configuration file stands for. One that is there is somebody's, and stays.
    pub async fn make_policy(&self, spec: &RemediationPolicySpec) -> Result<(), Trouble> {
        self.permitted()?;
        let policy = RemediationPolicy::new(Policy::NAME, spec.clone());
        match asked(self.policies().create(&PostParams::default(), &policy)).await {
            Ok(_) | Err(Trouble::Conflict(_)) => Ok(()),
            Err(trouble) => Err(trouble),
        }
    }

    /// No more pods are scheduled to the node. It bears our mark, so that nobody else's cordon is ever undone.
    pub async fn shut(&self, target: &Target, request: &Remediation) -> Result<(), Trouble> {
        self.permitted()?;
        let mut operations = same_machine(target);
        // What was decided from this record must not meet another: the node may have been let in just now.
        let record = format!("/metadata/annotations/{}", escaped(record::ANNOTATION));
        if let Some(text) = &target.record_text {
            operations.push(json!({"op": "test", "path": record, "value": text}));
        }
        if !target.has_annotations {
            operations.push(json!({"op": "add", "path": "/metadata/annotations", "value": {}}));
        }
        let mark = format!("/metadata/annotations/{}", escaped(CORDONED));
        operations.push(json!({"op": "add", "path": mark, "value": request.name}));
        operations.push(json!({"op": "add", "path": "/spec/unschedulable", "value": true}));
        self.patch_target(target, &operations).await?;
        info!(node = target.identity.name, "Node cordoned");
        Ok(())
    }

    /// Takes our own cordon away, and no other.
    pub async fn reopen(&self, target: &Target) -> Result<(), Trouble> {
        self.permitted()?;
        let Some(marked) = &target.cordoned_for else { return Ok(()) };
        let mark = format!("/metadata/annotations/{}", escaped(CORDONED));
        let mut operations = vec![
            json!({"op": "test", "path": "/metadata/uid", "value": target.identity.uid}),
            json!({"op": "test", "path": mark, "value": marked}),
            json!({"op": "remove", "path": mark}),
        ];
        if target.unschedulable {
            operations.push(json!({"op": "test", "path": "/spec/unschedulable", "value": true}));
            operations.push(json!({"op": "remove", "path": "/spec/unschedulable"}));
        }
        self.patch_target(target, &operations).await?;
        info!(node = target.identity.name, "Node uncordoned");
        Ok(())
    }

    async fn patch_target(&self, target: &Target, operations: &[Value]) -> Result<(), Trouble> {
        let patch = Patch::<()>::Json(as_patch(operations)?);
        let patched =
            asked(self.nodes().patch(&target.identity.name, &PatchParams::default(), &patch)).await?;
        self.views().learn_node(&patched, self.clock.elapsed());
        Ok(())
    }

    /// Asks for a pod to go, as its budget allows.
    pub async fn send_off(&self, pod: &PodView) -> Result<Evicted, Trouble> {
        self.permitted()?;
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        // Not by `Api::evict`: kube 5.0 writes `delete_options`, which no server reads, so that the uid would not count.
        let eviction = json!({
            "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        });
        let params = PostParams::default();
        let request = pods.create_subresource::<_, Status>("eviction", &pod.name, &params, &eviction);
        match timeout(WRITE, request).await {
            Ok(Ok(_)) => Ok(Evicted::Going),
            Ok(Err(Error::Api(status))) if status.code == 429 => {
                let causes = status.details.iter().flat_map(|details| &details.causes);
                let said: Vec<&str> = causes.map(|cause| cause.message.as_str()).collect();
                let said = if said.is_empty() { status.message.clone() } else { said.join("; ") };
                Ok(Evicted::Blocked(format!("pod {}/{}: {said}", pod.namespace, pod.name)))
            }
            // Gone already, or another of its name.
            Ok(Err(Error::Api(status))) if matches!(status.code, 404 | 409) => Ok(Evicted::Going),
            Ok(Err(error)) => asked(async { Err::<(), _>(error) }).await.map(|()| Evicted::Going),
            Err(_) => Err(Trouble::Doubtful("timeout".into())),
        }
    }

    /// Deletes a `NodeClaim`: Karpenter ends the machine, and makes another if it needs one.
    pub async fn delete_claim(&self, claim: &NodeClaimView, node: &str) -> Result<(), Trouble> {
        self.permitted()?;
        let name = &claim.name;
        info!(nodeClaim = name, node, "Found NodeClaim for failed node, deleting NodeClaim instead");
        let claims: Api<DynamicObject> = node_claims(&self.client);
        let params = DeleteParams::default().preconditions(of_uid(&claim.uid));
        match asked(claims.delete(name, &params)).await {
            Ok(_) | Err(Trouble::Gone(_)) => {
                info!(
                    nodeClaim = name,
                    "Successfully deleted NodeClaim, node should be terminated by Karpenter"
                );
                Ok(())
            }
            Err(trouble) => Err(trouble),
        }
    }

    /// Deletes the Node object, in the life that was asked for.
    pub async fn delete_node(&self, target: &Target) -> Result<(), Trouble> {
        self.permitted()?;
        let NodeIdentity { name, uid, .. } = &target.identity;
        let params = DeleteParams::default().preconditions(of_uid(uid));
        match asked(self.nodes().delete(name, &params)).await {
            Ok(_) | Err(Trouble::Gone(_)) => {
                info!(node = name, "Node object deleted");
                Ok(())
            }
            Err(trouble) => Err(trouble),
        }
    }

    /// Looks at a node that works, to compare others with it.
    pub async fn start_control(
        &self,
        node: &NodeView,
        gate: &GateView,
        identity: &WorkerIdentity,
    ) -> Result<(), Trouble> {
        self.permitted()?;
        let pod = worker::control_pod(&self.template, node, &gate.spec, identity)
            .map_err(|error| Trouble::Refused(error.to_string()))?;
        info!(node = &*node.name, gate = gate.name, "Creating control worker pod");
        let began = self.clock.elapsed();
        match asked(self.pods().create(&PostParams::default(), &pod)).await {
            Ok(made) => {
                if let Some(view) = WorkerView::control(&made) {
                    let (mut views, name) = (self.views(), view.name.clone());
                    views.controls.learn(view, began);
                    // The watch may have been faster, and knows nothing of when it began.
                    views.controls.update(&name, |known| known.first_seen = began);
                }
                Ok(())
            }
            // Who led before us made it.
            Err(Trouble::Conflict(_)) => Ok(()),
            Err(trouble) => Err(trouble),
        }
    }

    /// A control worker has told what it can.
    pub async fn remove_control(&self, control: &WorkerView) -> Result<(), Trouble> {
        self.permitted()?;
        let params = DeleteParams::default().preconditions(of_uid(&control.uid));
        match asked(self.pods().delete(&control.name, &params)).await {
            Ok(_) | Err(Trouble::Gone(_)) => {
                self.views().controls.update(&control.name, |known| known.deleting = true);
                Ok(())
            }
            Err(trouble) => Err(trouble),
        }
    }

    /// Says something about a node in an Event on it. It stands in a condition as well: not worth a second try.
    pub async fn tell_of(&self, node: &NodeIdentity, event: &EventSpec) -> Result<(), Trouble> {
        self.permitted()?;
        self.tell(&node.name, &node.uid, event).await
    }
}

fn request_for(target: Target, cause: &RemediationCause) -> NodeRemediation {
    let (name, labels) = (target.identity.uid.clone(), labels(&target, cause));
    let spec = NodeRemediationSpec {
        node: target.identity,
        causes: vec![cause.clone()],
        action: RemediationAction::Replace,
    };
    let mut request = NodeRemediation::new(&name, spec);
    request.metadata.labels = Some(labels);
    request
}

fn of_uid(uid: &str) -> Preconditions {
    Preconditions { uid: Some(uid.to_owned()), ..Preconditions::default() }
}

/// The patch lands only on this machine in this life, and not where somebody cordoned it meanwhile.
fn same_machine(target: &Target) -> Vec<Value> {
    vec![
        json!({"op": "test", "path": "/metadata/uid", "value": target.identity.uid}),
        json!({"op": "test", "path": "/status/nodeInfo/bootID", "value": target.identity.boot_id}),
        json!({"op": "test", "path": "/metadata/resourceVersion", "value": target.resource_version}),
    ]
}
