//! Pods: workers and control workers are created and deleted, pods of a drained node are evicted.

use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use kube::core::{Request, Status};
use kube::{Api, Resource as _};
use nodekeeper_core::checks::WorkerIdentity;
use nodekeeper_core::gate::GateView;
use nodekeeper_core::node::NodeView;
use nodekeeper_core::remediate::drain::PodView;
use nodekeeper_core::worker::{self, PartialPod, Template};
use serde_json::json;

use super::{WriteError, Writer, deleted, with_uid};
use crate::runtime::call::{CallError, READ_TIMEOUT, WRITE_TIMEOUT, call};

/// What became of an eviction.
#[derive(Debug, PartialEq, Eq)]
pub enum Eviction {
    /// The pod is terminating or gone.
    Accepted,
    /// A PodDisruptionBudget does not allow it now, or the request failed in another way; the server's message.
    Blocked(String),
}

/// The pod of a worker.
#[derive(Debug)]
pub enum CreatedWorker {
    New(PartialPod),
    /// A pod of this name was there already.
    Adopted(PartialPod),
}

/// Creates and deletes the pods of one namespace that verify nodes.
pub struct WorkerPods {
    pub template: Template,
}

impl WorkerPods {
    fn api(&self, writer: &Writer) -> Api<PartialPod> {
        Api::namespaced(writer.client.clone(), &self.template.namespace)
    }

    /// Creates a pod, and reads of the answer what its view needs. No precondition can fail, so a pod that is invalid is
    /// refused and no conflict.
    async fn create(&self, writer: &Writer, pod: &Pod) -> Result<PartialPod, WriteError> {
        let request = async {
            let body = serde_json::to_vec(pod).map_err(kube::Error::SerdeError)?;
            let path = Pod::url_path(&(), Some(&self.template.namespace));
            let request = Request::new(path).create(&PostParams::default(), body);
            writer.client.request(request.map_err(kube::Error::BuildRequest)?).await
        };
        writer.permit.check(&writer.clock)?;
        match call(WRITE_TIMEOUT, request).await {
            Err(error) if error.code() == Some(422) => Err(WriteError::Refused(error.to_string())),
            created => Ok(created?),
        }
    }

    /// Creates the worker pod of a node. Its name is made from node uid and worker number, so there is never a second.
    pub async fn create_worker(
        &self,
        writer: &Writer,
        node: &NodeView,
        gate: &GateView,
        identity: &WorkerIdentity,
    ) -> Result<CreatedWorker, WriteError> {
        let pod = worker::pod(&self.template, node, &gate.spec, identity)
            .map_err(|error| WriteError::Refused(error.to_string()))?;
        let name = worker::name(&identity.node_uid, identity.number);
        // Without the pod's name a refusal has the same message for all workers.
        let refused = |message: String| WriteError::Refused(message.replace(&name, "worker"));
        match self.create(writer, &pod).await {
            Err(WriteError::Conflict(message)) => match self.adopt_existing_pod(writer, &name).await {
                // The name is free: two requests changed a ResourceQuota at once, and the same request may succeed.
                Err(WriteError::Gone(_)) => Err(WriteError::OutcomeUnknown(message.replace(&name, "worker"))),
                adopted => adopted.map(CreatedWorker::Adopted),
            },
            // The namespace or the ServiceAccount is missing: reading the node again would not help.
            Err(WriteError::Gone(message) | WriteError::Refused(message)) => Err(refused(message)),
            created => created.map(CreatedWorker::New),
        }
    }

    /// Reads the pod that has the name already: the watch is behind or does not select it.
    async fn adopt_existing_pod(&self, writer: &Writer, name: &str) -> Result<PartialPod, WriteError> {
        Ok(call(READ_TIMEOUT, self.api(writer).get(name)).await?)
    }

    /// Reads a worker pod from the API server.
    pub async fn get(&self, writer: &Writer, name: &str) -> Result<Option<PartialPod>, CallError> {
        call(READ_TIMEOUT, self.api(writer).get_opt(name)).await
    }

    pub async fn create_control_worker(
        &self,
        writer: &Writer,
        node: &NodeView,
        gate: &GateView,
        identity: &WorkerIdentity,
    ) -> Result<CreatedWorker, WriteError> {
        let pod = worker::control_pod(&self.template, node, &gate.spec, identity)
            .map_err(|error| WriteError::Refused(error.to_string()))?;
        match self.create(writer, &pod).await {
            // It is there already, and the watch does not show it.
            Err(WriteError::Conflict(_)) => {
                let name = pod.metadata.name.as_deref().unwrap_or_default();
                self.adopt_existing_pod(writer, name).await.map(CreatedWorker::Adopted)
            }
            created => created.map(CreatedWorker::New),
        }
    }

    pub async fn delete_worker(&self, writer: &Writer, name: &str, uid: &str) -> Result<(), WriteError> {
        deleted(writer.write(self.api(writer).delete(name, &with_uid(uid))).await)
    }
}

impl Writer {
    /// Evicts a pod through the Eviction API, which respects PodDisruptionBudgets. Whatever the server answers is about this
    /// pod alone, so it is no error: two budgets for a pod are a 500, for example.
    pub async fn evict_pod(&self, pod: &PodView) -> Result<Eviction, WriteError> {
        self.permit.check(&self.clock)?;
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        // `Api::evict` of kube 5.0 sends `delete_options`, which no server reads, so that the uid would not count.
        let eviction = json!({
            "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        });
        let params = PostParams::default();
        let request = pods.create_subresource::<_, Status>("eviction", &pod.name, &params, &eviction);
        match call(WRITE_TIMEOUT, request).await {
            Ok(_) => Ok(Eviction::Accepted),
            // The pod is gone, or another has its name.
            Err(error) if matches!(error.code(), Some(404 | 409)) => Ok(Eviction::Accepted),
            Err(error) => {
                let message = refusal(&error);
                Ok(Eviction::Blocked(format!("pod {}/{}: {message}", pod.namespace, pod.name)))
            }
        }
    }
}

/// The message of a refused eviction: a budget's is in the causes of the answer.
fn refusal(error: &CallError) -> String {
    let CallError::Status(status) = error else { return error.to_string() };
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let messages: Vec<&str> = causes.map(|cause| cause.message.as_str()).collect();
    if status.code == 429 && !messages.is_empty() { messages.join("; ") } else { status.message.clone() }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::{Method, Request, Response};
    use jiff::Timestamp;
    use kube::Client;
    use kube::client::Body;
    use nodekeeper_core::api::{NodeGate, NodeGateSpec};
    use parking_lot::Mutex;
    use tower::service_fn;

    use super::super::WritePermit;
    use super::*;
    use crate::clock::Clock;

    /// A writer whose requests get the answer to their method: code and reason.
    fn writer_with(answer: fn(&Method) -> (u16, &'static str)) -> Writer {
        let service = service_fn(move |request: Request<Body>| async move {
            let (code, reason) = answer(request.method());
            let status =
                json!({"kind": "Status", "code": code, "reason": reason, "message": "quota of pods"});
            let body = Body::from(status.to_string().into_bytes());
            Ok::<_, std::io::Error>(Response::builder().status(code).body(body).expect("a response"))
        });
        let clock = Clock::new(|| Timestamp::UNIX_EPOCH);
        Writer::new(Client::new(service, "default"), clock, WritePermit::Always, "us")
    }

    #[tokio::test]
    async fn g07_a_conflict_about_a_quota_is_no_refusal() {
        let pods = WorkerPods { template: Template::default() };
        let gate = GateView::new(&NodeGate::new("g", NodeGateSpec::default()));
        let created = async |answer: fn(&Method) -> (u16, &'static str)| {
            let identity = WorkerIdentity { number: 1, ..WorkerIdentity::default() };
            let writer = writer_with(answer);
            let created = pods.create_worker(&writer, &NodeView::default(), &gate, &identity).await;
            created.expect_err("there is no pod")
        };
        // Two requests changed the quota at once: the name of the pod is free, and the same request may succeed.
        let conflict = |method: &Method| match *method {
            Method::POST => (409, "Conflict"),
            _ => (404, "NotFound"),
        };
        let error = created(conflict).await;
        assert!(matches!(error, WriteError::OutcomeUnknown(_)), "{error:?}");
        let error = created(|_| (403, "Forbidden")).await;
        assert!(matches!(error, WriteError::Refused(_)), "it is used up: {error:?}");
    }

    #[tokio::test]
    async fn a_control_worker_that_cannot_be_created_is_not_taken_for_created() {
        let pods = WorkerPods { template: Template::default() };
        let gate = GateView::new(&NodeGate::new("g", NodeGateSpec::default()));
        let identity = WorkerIdentity { number: 1, ..WorkerIdentity::default() };
        // Another request changed the quota at the same time: there is no pod of the name.
        let writer = writer_with(|method| match *method {
            Method::POST => (409, "Conflict"),
            _ => (404, "NotFound"),
        });
        let created = pods.create_control_worker(&writer, &NodeView::default(), &gate, &identity).await;
        assert!(matches!(created, Err(WriteError::Gone(_))), "{created:?}");
    }

    #[tokio::test]
    async fn t07_a_pod_whose_budget_forbids_its_eviction_is_left_alone() {
        let requests: Arc<Mutex<Vec<(Method, String)>>> = Arc::default();
        let log = requests.clone();
        let service = service_fn(move |request: Request<Body>| {
            log.lock().push((request.method().clone(), request.uri().path().to_owned()));
            async {
                let cause = json!({"reason": "DisruptionBudget", "message": "the budget web needs 2"});
                let status = json!({"kind": "Status", "code": 429, "reason": "TooManyRequests",
                    "message": "Cannot evict pod", "details": {"causes": [cause]}});
                let body = Body::from(status.to_string().into_bytes());
                Ok::<_, std::io::Error>(Response::builder().status(429).body(body).expect("a response"))
            }
        });
        let clock = Clock::new(|| Timestamp::UNIX_EPOCH);
        let writer = Writer::new(Client::new(service, "default"), clock, WritePermit::Always, "us");
        let pod: Pod =
            serde_json::from_value(json!({"metadata": {"namespace": "a", "name": "web", "uid": "u"}}))
                .expect("a pod");
        let eviction = writer.evict_pod(&PodView::new(&pod)).await.expect("no error");
        assert_eq!(eviction, Eviction::Blocked("pod a/web: the budget web needs 2".into()));
        assert_eq!(*requests.lock(), [(Method::POST, "/api/v1/namespaces/a/pods/web/eviction".to_owned())]);
    }
}
