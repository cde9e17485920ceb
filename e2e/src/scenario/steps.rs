//! Actions and expectations of scenarios, for any world.

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, ResourceExt as _};
use nodekeeper_core::api::NodeGate;
use nodekeeper_core::record::{ANNOTATION, Record};
use nodekeeper_core::worker::{Allowed, NODE_UID, SELECTOR, Template};
use nodekeeper_operator::{Settings, run};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::fault_proxy::FaultProxy;
use super::world::{IMAGE, LABEL, MISSING, NAMESPACE, TAINT, World};

/// The number of polls within the patience of a world.
const POLLS: u32 = 600;
const LEASE: &str = "kube-node-ready-leader";

/// A running controller. Dropping it is `kill -9`.
pub struct Controller {
    pub proxy: FaultProxy,
    task: JoinHandle<()>,
}

impl Controller {
    pub fn kill(&self) {
        self.proxy.kill();
        self.task.abort();
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts a controller with default settings.
pub fn controller(world: &impl World, identity: &str) -> Controller {
    controller_with(world, identity, FaultProxy::default(), |_| {})
}

/// Starts a controller behind this proxy, with changed settings.
pub fn controller_with(
    world: &impl World,
    identity: &str,
    proxy: FaultProxy,
    set: impl FnOnce(&mut Settings),
) -> Controller {
    let template = Template {
        namespace: NAMESPACE.into(),
        image: IMAGE.into(),
        service_account: "nodekeeper-worker".into(),
        allowed: Allowed { images: vec![MISSING.into()], ..Allowed::default() },
        ..Template::default()
    };
    let mut settings = Settings::new(template, identity.into(), 7);
    set(&mut settings);
    let (client, clock, kill_point) = (proxy.client(world.client()), world.clock(), proxy.clone());
    let task = tokio::spawn(async move {
        tokio::select! {
            biased;
            () = kill_point.killed() => {}
            () = run(client, settings, clock, std::future::pending()) => {}
        }
    });
    Controller { proxy, task }
}

/// Deletes the lease of a killed controller, so that the next one need not wait for its expiry.
pub async fn delete_lease(world: &impl World) -> Result<()> {
    let leases: Api<Lease> = Api::namespaced(world.client(), NAMESPACE);
    match leases.delete(LEASE, &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        deleted => deleted.map(drop).map_err(Into::into),
    }
}

pub async fn leader(world: &impl World) -> Result<String> {
    let leases: Api<Lease> = Api::namespaced(world.client(), NAMESPACE);
    let lease = leases.get_opt(LEASE).await?;
    Ok(lease.and_then(|lease| lease.spec?.holder_identity).unwrap_or_default())
}

pub fn gates(world: &impl World) -> Api<DynamicObject> {
    Api::all_with(world.client(), &ApiResource::erase::<NodeGate>(&()))
}

/// Creates a gate with shorter timeouts than the default, and with `spec` merged in.
pub async fn gate(world: &impl World, name: &str, spec: Value) -> Result<()> {
    let mut whole =
        json!({"retry": {"recheckPeriodSeconds": 10}, "deadlines": {"checkSeconds": 2, "workerSeconds": 60}});
    for (key, value) in spec.as_object().into_iter().flatten() {
        whole[key] = value.clone();
    }
    let gate = json!({"apiVersion": "nodekeeper.dev/v1alpha1", "kind": "NodeGate", "metadata": {"name": name}, "spec": whole});
    gates(world).create(&PostParams::default(), &serde_json::from_value(gate)?).await?;
    Ok(())
}

/// Patches a gate like `kubectl patch`.
pub async fn edit_gate(world: &impl World, name: &str, spec: Value) -> Result<()> {
    let patch = Patch::Merge(json!({"spec": spec}));
    gates(world).patch(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Waits until a gate has a condition with this type, status and reason, and returns its message.
pub async fn gate_condition(world: &impl World, name: &str, what: (&str, &str, &str)) -> Result<String> {
    let is = |one: &DynamicObject| one.name_any() == name;
    has_condition(world, &format!("gate {name}"), &gates(world), is, what, "").await
}

/// Waits until one of these objects has a condition with this type, status and reason and with `words` in its message, and
/// returns the message.
pub async fn has_condition(
    world: &impl World,
    who: &str,
    objects: &Api<DynamicObject>,
    is: impl Fn(&DynamicObject) -> bool,
    what: (&str, &str, &str),
    words: &str,
) -> Result<String> {
    let last = std::cell::RefCell::new(Value::Null);
    let so = |one: &&Value| one["type"] == what.0 && one["status"] == what.1 && one["reason"] == what.2;
    let look = async || {
        let all = objects.list(&ListParams::default()).await?.items;
        let Some(mut one) = all.into_iter().find(|one| is(one)) else { return Ok(None) };
        let status = one.data["status"].take();
        let found = status["conditions"].as_array().into_iter().flatten().find(so);
        let message = found.map(|one| one["message"].as_str().unwrap_or_default().to_owned());
        *last.borrow_mut() = status;
        Ok(message.filter(|message| message.contains(words)))
    };
    let seen = until(world, &format!("{who} has the condition {what:?} {words:?}"), look).await;
    seen.with_context(|| last.borrow().to_string())
}

pub fn is_gated(node: &Node) -> bool {
    has_taint(node, TAINT)
}

pub fn has_taint(node: &Node, key: &str) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    taints.into_iter().flatten().any(|taint| taint.key == key)
}

pub fn is_labelled(node: &Node) -> bool {
    node.labels().get(LABEL).is_some_and(|value| value == "true")
}

pub fn record(node: &Node) -> Option<Record> {
    Record::read(node.annotations().get(ANNOTATION).map(String::as_str), &node.uid()?)
}

pub async fn node(world: &impl World, name: &str) -> Result<Node> {
    Ok(Api::<Node>::all(world.client()).get(name).await?)
}

pub async fn patch_node(world: &impl World, name: &str, patch: Value) -> Result<()> {
    let nodes: Api<Node> = Api::all(world.client());
    nodes.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

/// Polls until `look` returns a value.
pub async fn until<T, L>(world: &impl World, what: &str, look: impl Fn() -> L) -> Result<T>
where
    L: Future<Output = Result<Option<T>>>,
{
    let end = Instant::now() + world.patience();
    loop {
        if let Some(seen) = look().await? {
            return Ok(seen);
        }
        ensure!(Instant::now() < end, "timed out after {:?}: {what}; {}", world.patience(), world.hint());
        sleep(world.patience() / POLLS).await;
    }
}

/// Polls until the predicate holds for a node.
pub async fn node_is(world: &impl World, name: &str, what: &str, so: impl Fn(&Node) -> bool) -> Result<Node> {
    let last = std::cell::RefCell::new(String::new());
    let look = async || {
        let node = node(world, name).await?;
        *last.borrow_mut() = format!("{:?}, {:?}", node.spec, node.annotations().get(ANNOTATION));
        Ok(so(&node).then_some(node))
    };
    let seen = until(world, &format!("{name} is {what}"), look).await;
    seen.with_context(|| last.borrow().clone())
}

/// Waits until a node is untainted, and checks its label and record.
pub async fn is_verified(world: &impl World, name: &str) -> Result<Record> {
    let node = node_is(world, name, "untainted", |node| !is_gated(node)).await?;
    ensure!(is_labelled(&node), "{name} is untainted without the label: {:?}", node.labels());
    record(&node).with_context(|| format!("{name} is untainted without a record"))
}

/// Waits for a worker that is bound to the node and that its kubelet reports as running. Until then the kubelet has not yet
/// decided how the worker behaves, and its report could overwrite one of the scenario.
pub async fn worker_on(world: &impl World, name: &str) -> Result<Pod> {
    let what = format!("a worker runs on {name}");
    let look = async || Ok(workers_of(world, name).await?.into_iter().find(is_running));
    until(world, &what, look).await
}

pub async fn workers_of(world: &impl World, name: &str) -> Result<Vec<Pod>> {
    let Some(uid) = node(world, name).await?.uid() else { bail!("{name} has no uid") };
    let pods: Api<Pod> = Api::namespaced(world.client(), NAMESPACE);
    Ok(pods.list(&ListParams::default().labels(&format!("{SELECTOR},{NODE_UID}={uid}"))).await?.items)
}

pub fn is_live(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    pod.metadata.deletion_timestamp.is_none() && !matches!(phase, Some("Succeeded" | "Failed"))
}

fn is_running(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let is_bound = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
    pod.metadata.deletion_timestamp.is_none() && phase == Some("Running") && is_bound
}

pub async fn delete_pod(world: &impl World, pod: &Pod) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(world.client(), NAMESPACE);
    pods.delete(&pod.name_any(), &DeleteParams::default().grace_period(0)).await?;
    Ok(())
}

pub async fn delete_node(world: &impl World, name: &str) -> Result<()> {
    Api::<Node>::all(world.client()).delete(name, &DeleteParams::default()).await?;
    Ok(())
}

/// Waits for an Event on the node. Filters by uid: Events outlive their nodes, and scenarios share names.
pub async fn event_on(world: &impl World, name: &str, reason: &str, word: &str) -> Result<()> {
    let uid = node(world, name).await?.uid().context("a node without a uid")?;
    event_on_uid(world, &uid, reason, word).await
}

/// Like [`event_on`], for a node that may be gone.
pub async fn event_on_uid(world: &impl World, uid: &str, reason: &str, word: &str) -> Result<()> {
    let events: Api<Event> = Api::namespaced(world.client(), "default");
    let fields = format!("regarding.kind=Node,regarding.uid={uid},reason={reason}");
    let look = async || {
        let found = events.list(&ListParams::default().fields(&fields)).await?.items;
        Ok(found.into_iter().find(|event| event.note.as_ref().is_some_and(|note| note.contains(word))))
    };
    until(world, &format!("an Event {reason} on the node {uid} contains {word:?}"), look).await.map(drop)
}

pub async fn no_workers_left(world: &impl World) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(world.client(), NAMESPACE);
    let look = async || {
        let left = pods.list_metadata(&ListParams::default().labels(SELECTOR)).await?.items;
        Ok(left.is_empty().then_some(()))
    };
    until(world, "no worker is left", look).await
}
