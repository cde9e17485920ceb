//! The only file that writes to the API server, besides the lease in `leader.rs`.
//!
//! Every write is guarded: it lands only on the node, boot and list that it was decided for.

mod remediation;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, ObjectReference, Pod};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client, Error};
use nodekeeper_core::api::{GateTaint, NodeGate, NodeGateSpec, NodeGateStatus, VerifiedLabel};
use nodekeeper_core::checks::WorkerIdentity;
use nodekeeper_core::gate::{ConditionUpdate, Effect, EventSpec, GateView};
use nodekeeper_core::lease::Candidate;
use nodekeeper_core::node::{NodeView, VERIFY};
use nodekeeper_core::reasons::NETWORK_VERIFIED;
use nodekeeper_core::record::{self, Record};
use nodekeeper_core::text::clean;
use nodekeeper_core::worker::{self, Template, WorkerView};
use serde_json::{Value, json};
use tokio::time::timeout;
use tracing::{info, warn};

use crate::clock::Clock;
use crate::views::Views;

pub use remediation::Evicted;

/// A write takes no longer than the lease lasts past the moment at which its holder stops writing, and a second less.
const WRITE: Duration = Duration::from_secs(4);

/// Who we are in Events.
const CONTROLLER: &str = "nodekeeper.dev/controller";

/// Why a write was not made, or why we do not know.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// Somebody else may lead by now.
    #[error("the lease is not ours any more")]
    NotLeader,
    /// The object is no longer what the decision was made for.
    #[error("changed meanwhile: {0}")]
    Conflict(String),
    /// There is no such object any more.
    #[error("gone: {0}")]
    Gone(String),
    /// It may have been made or not.
    #[error("no answer: {0}")]
    Doubtful(String),
    /// The server does not want it.
    #[error("refused: {0}")]
    Refused(String),
}

/// Writes, as long as we lead.
pub struct Writer {
    client: Client,
    clock: Clock,
    candidate: Arc<Mutex<Candidate>>,
    template: Template,
    views: Arc<Mutex<Views>>,
    /// How many were told, so that two within a microsecond differ.
    events: AtomicU32,
}

impl Writer {
    /// A writer for one term.
    pub fn new(
        client: Client,
        clock: Clock,
        candidate: Arc<Mutex<Candidate>>,
        template: Template,
        views: Arc<Mutex<Views>>,
    ) -> Self {
        Self { client, clock, candidate, template, views, events: AtomicU32::new(0) }
    }

    /// Does one thing to a node, and takes what the server answered into the views.
    pub async fn apply(
        &self,
        node: &NodeView,
        gate: Option<&GateView>,
        effect: &Effect,
    ) -> Result<(), Trouble> {
        self.permitted()?;
        match (effect, gate) {
            (Effect::StartWorker(identity), Some(gate)) => self.start(node, gate, identity).await,
            (Effect::RemoveTaint(record), Some(gate)) => self.open(node, gate, record).await,
            (Effect::Retaint(record), Some(gate)) => self.regate(node, gate, record).await,
            (Effect::SetNodeCondition(update), _) => self.publish(node, update).await,
            (Effect::PatchRecord(record), _) => self.patch(node, remember(node, record)).await,
            (Effect::RemoveWorker { name, uid }, _) => self.remove(name, uid).await,
            (Effect::RequestRemediation(cause), _) => self.ask(node, cause).await,
            (Effect::EmitEvent(event), _) => {
                // What an Event says stands in the record too: it is not worth a second try.
                match self.tell(&node.name, &node.uid, event).await {
                    Err(error) if event.dedup_key.is_none() => {
                        warn!(node = &*node.name, reason = event.reason, %error, "no Event");
                        Ok(())
                    }
                    // It stands nowhere else.
                    told => told,
                }
            }
            (Effect::StartWorker(_) | Effect::RemoveTaint(_) | Effect::Retaint(_), None) => {
                Err(Trouble::Conflict("the gate is gone".into()))
            }
        }
    }

    fn permitted(&self) -> Result<(), Trouble> {
        let candidate = self.candidate.lock().unwrap_or_else(PoisonError::into_inner);
        if candidate.may_write(self.clock.elapsed()) { Ok(()) } else { Err(Trouble::NotLeader) }
    }

    fn views(&self) -> std::sync::MutexGuard<'_, Views> {
        self.views.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.template.namespace)
    }

    async fn start(
        &self,
        node: &NodeView,
        gate: &GateView,
        identity: &WorkerIdentity,
    ) -> Result<(), Trouble> {
        let pod = worker::pod(&self.template, node, &gate.spec, identity)
            .map_err(|error| Trouble::Refused(error.to_string()))?;
        let name = worker::name(&identity.node_uid, identity.number);
        info!(
            node = &*node.name,
            pod = name,
            gate = gate.name,
            worker = identity.number,
            "Creating worker pod"
        );
        match asked(self.pods().create(&PostParams::default(), &pod)).await {
            Ok(made) => {
                if let Some(view) = WorkerView::new(&made) {
                    self.views().workers.learn(view, self.clock.elapsed());
                }
                Ok(())
            }
            Err(Trouble::Conflict(why)) => match self.recognise(node, identity).await {
                // Its name is free, so the pod itself is what the server does not want.
                Err(Trouble::Gone(_)) => Err(Trouble::Refused(why.replace(&name, "worker"))),
                recognised => recognised,
            },
            // There is no such namespace, or no such account: looking at the node again would not help.
            Err(Trouble::Gone(why)) => Err(Trouble::Refused(why)),
            // The same for all workers, so that it is the same news.
            Err(Trouble::Refused(why)) => Err(Trouble::Refused(why.replace(&name, "worker"))),
            Err(trouble) => Err(trouble),
        }
    }

    /// The name of a worker is taken: by ourselves, and the watch is behind or does not show it; or by something that
    /// cannot be read as a worker.
    async fn recognise(&self, node: &NodeView, identity: &WorkerIdentity) -> Result<(), Trouble> {
        let name = worker::name(&identity.node_uid, identity.number);
        let pod = asked(self.pods().get(&name)).await?;
        let view = WorkerView::new(&pod).unwrap_or_else(|| WorkerView::unreadable(&pod, node, identity));
        let mut views = self.views();
        views.workers.insist(view, self.clock.elapsed());
        views.unwatched.insert(name);
        Ok(())
    }

    /// Reads the workers of a node that the watch does not show.
    pub async fn refresh(&self, node: &NodeView) -> Result<(), Trouble> {
        let prefix = worker::name_prefix(&node.uid);
        let names: Vec<String> = self.views().unwatched.range(prefix.clone()..).cloned().collect();
        for name in names.into_iter().take_while(|name| name.starts_with(&prefix)) {
            let read = asked(self.pods().get(&name)).await;
            let mut views = self.views();
            match read.map(|pod| WorkerView::new(&pod)) {
                Ok(Some(view)) => views.workers.insist(view, self.clock.elapsed()),
                Ok(None) => {}
                Err(Trouble::Gone(_)) => {
                    views.workers.forget(&name);
                    views.unwatched.remove(&name);
                }
                Err(trouble) => return Err(trouble),
            }
        }
        Ok(())
    }

    async fn remove(&self, name: &str, uid: &str) -> Result<(), Trouble> {
        let preconditions = Preconditions { uid: Some(uid.to_owned()), ..Preconditions::default() };
        let params = DeleteParams::default().preconditions(preconditions);
        match asked(self.pods().delete(name, &params)).await {
            Ok(_) | Err(Trouble::Gone(_)) => {
                self.views().mark_deleted(name, uid);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    async fn open(&self, node: &NodeView, gate: &GateView, record: &Record) -> Result<(), Trouble> {
        self.patch(node, open(node, gate, record)).await?;
        let VerifiedLabel { key, value } = &gate.spec.verified_label;
        let label = format!("{key}={value}");
        info!(node = &*node.name, label, gate = gate.name, attempts = record.attempts, "Node verified");
        Ok(())
    }

    async fn regate(&self, node: &NodeView, gate: &GateView, record: &Record) -> Result<(), Trouble> {
        self.patch(node, regate(node, gate, record)).await?;
        info!(node = &*node.name, gate = gate.name, why = record.why, "Node tainted again");
        Ok(())
    }

    /// A kubelet writes its own conditions by their types, and leaves this one alone.
    async fn publish(&self, node: &NodeView, update: &ConditionUpdate) -> Result<(), Trouble> {
        let ConditionUpdate { status, reason, message } = update;
        let now = Time(self.clock.now());
        let condition = json!({
            "type": NETWORK_VERIFIED, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": now, "lastHeartbeatTime": now,
        });
        // A patch with another uid than the object's is refused.
        let patch = json!({"metadata": {"uid": node.uid}, "status": {"conditions": [condition]}});
        let nodes: Api<Node> = Api::all(self.client.clone());
        let patched =
            asked(nodes.patch_status(&node.name, &PatchParams::default(), &Patch::Strategic(patch))).await?;
        self.views().learn_node(&patched, self.clock.elapsed());
        Ok(())
    }

    /// Writes what a gate says about itself.
    pub async fn report(&self, gate: &GateView, status: &NodeGateStatus) -> Result<(), Trouble> {
        self.permitted()?;
        let operations = vec![
            json!({"op": "test", "path": "/metadata/uid", "value": gate.uid}),
            json!({"op": "add", "path": "/status", "value": status}),
        ];
        let patch = Patch::<()>::Json(as_patch(&operations)?);
        let gates: Api<NodeGate> = Api::all(self.client.clone());
        asked(gates.patch_status(&gate.name, &PatchParams::default(), &patch)).await.map(drop)
    }

    /// Makes the gate of the configuration file what the file says.
    pub async fn adopt(
        &self,
        name: &str,
        spec: &NodeGateSpec,
        known: Option<&GateView>,
    ) -> Result<(), Trouble> {
        self.permitted()?;
        let gates: Api<NodeGate> = Api::all(self.client.clone());
        match known {
            Some(gate) if gate.spec == *spec => Ok(()),
            Some(gate) => {
                let operations = vec![
                    json!({"op": "test", "path": "/metadata/uid", "value": gate.uid}),
                    json!({"op": "replace", "path": "/spec", "value": spec}),
                ];
                let patch = Patch::<()>::Json(as_patch(&operations)?);
                info!(gate = name, "the gate is made what the configuration file says");
                asked(gates.patch(name, &PatchParams::default(), &patch)).await.map(drop)
            }
            None => {
                info!(gate = name, "the gate of the configuration file is made");
                let gate = NodeGate::new(name, spec.clone());
                let made = asked(gates.create(&PostParams::default(), &gate)).await;
                if !matches!(made, Err(Trouble::Conflict(_))) {
                    return made.map(drop);
                }
                // There is one that we cannot read.
                let operations = [json!({"op": "replace", "path": "/spec", "value": spec})];
                let patch = Patch::<()>::Json(as_patch(&operations)?);
                asked(gates.patch(name, &PatchParams::default(), &patch)).await.map(drop)
            }
        }
    }

    async fn patch(&self, node: &NodeView, operations: Vec<Value>) -> Result<(), Trouble> {
        let patch = as_patch(&operations)?;
        let nodes: Api<Node> = Api::all(self.client.clone());
        let patched =
            asked(nodes.patch(&node.name, &PatchParams::default(), &Patch::<()>::Json(patch))).await?;
        self.views().learn_node(&patched, self.clock.elapsed());
        Ok(())
    }

    async fn tell(&self, node: &str, uid: &str, spec: &EventSpec) -> Result<(), Trouble> {
        let event = Event {
            metadata: ObjectMeta {
                name: Some(self.event_name(node, uid, spec)),
                namespace: Some("default".into()),
                ..ObjectMeta::default()
            },
            event_time: Some(self.clock.micros()),
            type_: Some(if spec.warning { "Warning" } else { "Normal" }.into()),
            reason: Some(spec.reason.into()),
            action: Some(clean(&spec.action, 128)),
            note: Some(clean(&spec.note, 1024)),
            regarding: Some(ObjectReference {
                api_version: Some("v1".into()),
                kind: Some("Node".into()),
                name: Some(node.to_owned()),
                uid: Some(uid.to_owned()),
                ..ObjectReference::default()
            }),
            reporting_controller: Some(CONTROLLER.into()),
            reporting_instance: Some(self.instance()),
            ..Event::default()
        };
        let events: Api<Event> = Api::namespaced(self.client.clone(), "default");
        match asked(events.create(&PostParams::default(), &event)).await {
            // Who led before us told it.
            Err(Trouble::Conflict(_)) if spec.dedup_key.is_some() => Ok(()),
            told => told.map(drop),
        }
    }

    /// Begins with the node's name and goes on with the time, as Events of other components do: kubectl lists those
    /// without a `lastTimestamp`, which this API does not have, by name. What is told once has one name for ever.
    fn event_name(&self, node: &str, uid: &str, event: &EventSpec) -> String {
        let name: String = node.chars().take(150).collect();
        let name = name.trim_end_matches(['.', '-']);
        if let Some(number) = event.dedup_key {
            let uid: String = uid.chars().take(36).collect();
            return format!("{name}.{uid}.{}.{number}", event.reason.to_lowercase());
        }
        let count = self.events.fetch_add(1, Ordering::Relaxed) % 0x1000;
        format!("{name}.{:x}{count:03x}", self.clock.now().as_microsecond())
    }

    fn instance(&self) -> String {
        let candidate = self.candidate.lock().unwrap_or_else(PoisonError::into_inner);
        candidate.identity().chars().take(128).collect()
    }
}

/// Waits for an answer, but not for ever, and says what it means.
async fn asked<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, Trouble> {
    match timeout(WRITE, request).await {
        Ok(Ok(answer)) => Ok(answer),
        // A failed `test` is a 422; so is an object that the server finds invalid. Whether the node is another one
        // when it is read again tells them apart.
        Ok(Err(Error::Api(status))) => Err(match status.code {
            404 => Trouble::Gone(status.message),
            409 | 410 | 412 | 422 => Trouble::Conflict(status.message),
            // Not now, which is not never.
            401 | 408 | 429 => Trouble::Doubtful(status.message),
            400..=499 => Trouble::Refused(status.message),
            _ => Trouble::Doubtful(status.message),
        }),
        Ok(Err(error)) => Err(Trouble::Doubtful(error.to_string())),
        Err(_) => Err(Trouble::Doubtful("timeout".into())),
    }
}

/// The patch lands only on this machine in this life.
fn same_node(node: &NodeView) -> Vec<Value> {
    vec![
        json!({"op": "test", "path": "/metadata/uid", "value": node.uid}),
        json!({"op": "test", "path": "/status/nodeInfo/bootID", "value": node.boot_id}),
    ]
}

fn as_patch(operations: &[Value]) -> Result<json_patch::Patch, Trouble> {
    serde_json::from_value(json!(operations)).map_err(|error| Trouble::Refused(error.to_string()))
}

fn same_version(node: &NodeView) -> Value {
    json!({"op": "test", "path": "/metadata/resourceVersion", "value": node.resource_version.to_string()})
}

/// Writes the record over the one that the decision was made from, and over no other.
fn remember(node: &NodeView, record: &Record) -> Vec<Value> {
    let mut patch = same_node(node);
    patch.extend(record_only(node, record));
    patch
}

/// The record, and with it the end of what somebody asked for.
fn record_only(node: &NodeView, record: &Record) -> Vec<Value> {
    let mut patch = Vec::new();
    if let Some(word) = &node.verify {
        let path = format!("/metadata/annotations/{}", escaped(VERIFY));
        patch.push(json!({"op": "test", "path": path, "value": word}));
        patch.push(json!({"op": "remove", "path": path}));
    }
    let path = format!("/metadata/annotations/{}", escaped(record::ANNOTATION));
    let text = record.to_annotation();
    if let Some(old) = node.record_annotation() {
        patch.push(json!({"op": "test", "path": path, "value": old}));
        patch.push(json!({"op": "replace", "path": path, "value": text}));
        return patch;
    }
    // There is nothing to test that is not there; the version stands for it.
    patch.push(same_version(node));
    patch.push(if node.has_annotations {
        json!({"op": "add", "path": path, "value": text})
    } else {
        json!({"op": "add", "path": "/metadata/annotations", "value": {record::ANNOTATION: text}})
    });
    patch
}

/// Takes our taints, gives the label and writes the record, all or nothing.
fn open(node: &NodeView, gate: &GateView, record: &Record) -> Vec<Value> {
    let mut patch = same_node(node);
    // From the end, so that what is taken does not move what is still to be taken.
    for position in node.positions(&gate.spec.taints).into_iter().rev() {
        let path = format!("/spec/taints/{position}");
        let taint = &node.taints[position];
        patch.push(json!({"op": "test", "path": format!("{path}/key"), "value": &*taint.key}));
        patch.push(json!({"op": "test", "path": format!("{path}/effect"), "value": &*taint.effect}));
        patch.push(json!({"op": "remove", "path": path}));
    }
    let label = &gate.spec.verified_label;
    if node.has_labels {
        let path = format!("/metadata/labels/{}", escaped(&label.key));
        patch.push(json!({"op": "add", "path": path, "value": label.value}));
    } else {
        patch.push(same_version(node));
        patch.push(json!({"op": "add", "path": "/metadata/labels", "value": {&label.key: label.value}}));
    }
    patch.extend(record_only(node, record));
    patch
}

/// Puts our taints back, takes the label and writes the record, all or nothing. What is added to a list has to be added
/// to the list that was seen.
fn regate(node: &NodeView, gate: &GateView, record: &Record) -> Vec<Value> {
    let mut patch = same_node(node);
    patch.push(same_version(node));
    let missing = |taint: &&GateTaint| node.positions(std::slice::from_ref(taint)).is_empty();
    let taints: Vec<Value> = gate.spec.taints.iter().filter(missing).map(|taint| json!(taint)).collect();
    if node.taints.is_empty() {
        patch.push(json!({"op": "add", "path": "/spec/taints", "value": taints}));
    } else {
        let append = |taint| json!({"op": "add", "path": "/spec/taints/-", "value": taint});
        patch.extend(taints.into_iter().map(append));
    }
    let label = &gate.spec.verified_label.key;
    if node.labels.get(label).is_some() {
        patch.push(json!({"op": "remove", "path": format!("/metadata/labels/{}", escaped(label))}));
    }
    patch.extend(record_only(node, record));
    patch
}

/// As JSON Pointer wants it.
fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests;
