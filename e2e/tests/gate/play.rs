//! What scenarios do and look at, in any world.

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, ResourceExt as _};
use nodekeeper_core::api::NodeGate;
use nodekeeper_core::record::{ANNOTATION, Record};
use nodekeeper_core::worker::{NODE_UID, SELECTOR, Template};
use nodekeeper_operator::{Settings, run};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::line::Line;
use crate::world::{IMAGE, LABEL, NAMESPACE, TAINT, World};

/// So often a scenario looks while it is patient. It decides nothing: what is waited for stays as it is.
const LOOKS: u32 = 600;
const LEASE: &str = "kube-node-ready-leader";

/// A controller at work. Dropping it is `kill -9`.
pub struct Controller {
    pub line: Line,
    task: JoinHandle<()>,
}

impl Controller {
    pub fn kill(&self) {
        self.line.kill();
        self.task.abort();
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts a controller as it is documented.
pub fn controller(world: &impl World, identity: &str) -> Controller {
    controller_with(world, identity, Line::default(), |_| {})
}

/// Starts a controller on this line and with other settings.
pub fn controller_with(
    world: &impl World,
    identity: &str,
    line: Line,
    set: impl FnOnce(&mut Settings),
) -> Controller {
    let template = Template {
        namespace: NAMESPACE.into(),
        image: IMAGE.into(),
        service_account: "nodekeeper-worker".into(),
        ..Template::default()
    };
    let mut settings = Settings::new(template, identity.into(), 7);
    set(&mut settings);
    let (client, clock, cut) = (line.client(world.client()), world.clock(), line.clone());
    let task = tokio::spawn(async move {
        tokio::select! {
            biased;
            () = cut.killed() => {}
            () = run(client, settings, clock, std::future::pending()) => {}
        }
    });
    Controller { line, task }
}

/// Takes the lease of a controller that was killed away, so that nobody has to wait for its end.
pub async fn end_the_lease(world: &impl World) -> Result<()> {
    let leases: Api<Lease> = Api::namespaced(world.client(), NAMESPACE);
    match leases.delete(LEASE, &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        deleted => deleted.map(drop).map_err(Into::into),
    }
}

/// Who leads.
pub async fn leader(world: &impl World) -> Result<String> {
    let leases: Api<Lease> = Api::namespaced(world.client(), NAMESPACE);
    let lease = leases.get_opt(LEASE).await?;
    Ok(lease.and_then(|lease| lease.spec?.holder_identity).unwrap_or_default())
}

/// Gates as people write them: as objects without a type.
pub fn gates(world: &impl World) -> Api<DynamicObject> {
    Api::all_with(world.client(), &ApiResource::erase::<NodeGate>(&()))
}

/// Makes a gate that is more impatient than the default, and otherwise as `spec` says.
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

/// Changes a gate as `kubectl patch` does.
pub async fn edit_gate(world: &impl World, name: &str, spec: Value) -> Result<()> {
    let patch = Patch::Merge(json!({"spec": spec}));
    gates(world).patch(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Waits until a condition of a gate, with this type, status and reason, is there, and gives its message.
pub async fn gate_says(world: &impl World, name: &str, what: (&str, &str, &str)) -> Result<String> {
    let last = std::cell::RefCell::new(Value::Null);
    let look = async || {
        let status = gates(world).get(name).await?.data["status"].take();
        let so = |one: &&Value| {
            (one["type"].as_str(), one["status"].as_str(), one["reason"].as_str())
                == (Some(what.0), Some(what.1), Some(what.2))
        };
        let found = status["conditions"].as_array().into_iter().flatten().find(so);
        let message = found.map(|one| one["message"].as_str().unwrap_or_default().to_owned());
        *last.borrow_mut() = status;
        Ok(message)
    };
    let seen = until(world, &format!("gate {name} says {what:?}"), look).await;
    seen.with_context(|| last.borrow().to_string())
}

pub fn is_gated(node: &Node) -> bool {
    bears(node, TAINT)
}

pub fn bears(node: &Node, key: &str) -> bool {
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

/// Looks until there is something to be seen.
pub async fn until<T, L>(world: &impl World, what: &str, look: impl Fn() -> L) -> Result<T>
where
    L: Future<Output = Result<Option<T>>>,
{
    let end = Instant::now() + world.patience();
    loop {
        if let Some(seen) = look().await? {
            return Ok(seen);
        }
        ensure!(Instant::now() < end, "not so after {:?}: {what}; {}", world.patience(), world.hint());
        sleep(world.patience() / LOOKS).await;
    }
}

/// Waits until something is so of a node.
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

/// Waits until a node is let in, and looks whether it was let in properly.
pub async fn opens(world: &impl World, name: &str) -> Result<Record> {
    let node = node_is(world, name, "open", |node| !is_gated(node)).await?;
    ensure!(is_labelled(&node), "{name} is open without the label: {:?}", node.labels());
    record(&node).with_context(|| format!("{name} is open without a record"))
}

/// A worker that is bound to a node and neither ended nor deleted, as soon as there is one.
pub async fn worker_on(world: &impl World, name: &str) -> Result<Pod> {
    let what = format!("a worker runs on {name}");
    let look =
        async || Ok(workers_of(world, name).await?.into_iter().find(|pod| is_live(pod) && is_bound(pod)));
    until(world, &what, look).await
}

/// All worker pods that there are of a node.
pub async fn workers_of(world: &impl World, name: &str) -> Result<Vec<Pod>> {
    let Some(uid) = node(world, name).await?.uid() else { bail!("{name} has no uid") };
    let pods: Api<Pod> = Api::namespaced(world.client(), NAMESPACE);
    Ok(pods.list(&ListParams::default().labels(&format!("{SELECTOR},{NODE_UID}={uid}"))).await?.items)
}

pub fn is_live(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    pod.metadata.deletion_timestamp.is_none() && !matches!(phase, Some("Succeeded" | "Failed"))
}

fn is_bound(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some())
}

/// Somebody deletes a worker, and does not wait.
pub async fn delete_pod(world: &impl World, pod: &Pod) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(world.client(), NAMESPACE);
    pods.delete(&pod.name_any(), &DeleteParams::default().grace_period(0)).await?;
    Ok(())
}

pub async fn delete_node(world: &impl World, name: &str) -> Result<()> {
    Api::<Node>::all(world.client()).delete(name, &DeleteParams::default()).await?;
    Ok(())
}

/// An Event on the node says it. Events outlive their nodes, and other scenarios have namesakes: only its own count.
pub async fn tells(world: &impl World, name: &str, reason: &str, word: &str) -> Result<()> {
    let uid = node(world, name).await?.uid().context("a node without a uid")?;
    tells_of(world, &uid, reason, word).await
}

/// As [`tells`], of a node that may be gone.
pub async fn tells_of(world: &impl World, uid: &str, reason: &str, word: &str) -> Result<()> {
    let events: Api<Event> = Api::namespaced(world.client(), "default");
    let fields = format!("regarding.kind=Node,regarding.uid={uid},reason={reason}");
    let look = async || {
        let told = events.list(&ListParams::default().fields(&fields)).await?.items;
        Ok(told.into_iter().find(|event| event.note.as_ref().is_some_and(|note| note.contains(word))))
    };
    until(world, &format!("an Event {reason} on the node {uid} says {word:?}"), look).await.map(drop)
}

/// No worker is needed any more, and none stays.
pub async fn no_workers_left(world: &impl World) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(world.client(), NAMESPACE);
    let look = async || {
        let left = pods.list_metadata(&ListParams::default().labels(SELECTOR)).await?.items;
        Ok(left.is_empty().then_some(()))
    };
    until(world, "no worker is left", look).await
}
