//! A toy controller to test the harness with: it labels every Ready node once. Variants have typical bugs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::{Client, ResourceExt as _};
use nodekeeper_sim::Cluster;
use nodekeeper_sim::harness::{Invariant, Program, Replica, Scenario};
use nodekeeper_sim::object::{at, condition_status, name, uid};
use nodekeeper_sim::store::Change;
use nodekeeper_sim::value::{Value, json};
use tokio::time::{sleep, timeout};

pub const LABEL: &str = "nodekeeper.dev/labelled";

#[derive(Clone, Copy, Debug)]
pub enum Bug {
    /// Tests uid and resource version in its patch.
    None,
    /// Replaces the whole node without a resource version, so that other writes are lost.
    LostUpdate,
    /// Patches the node by name, whatever its state is by now.
    StaleRead,
    /// Panics at the tenth node.
    Panic,
    /// Sends requests in a loop without a pause.
    Busy,
}

pub fn scenario(bug: Bug) -> Scenario {
    let program: Program = Arc::new(move |replica| Box::pin(label_nodes(replica, bug)));
    let right = Scenario::new(program, || {
        vec![
            Box::new(OnlyOurLabel),
            Box::new(OnlyReadyNodes),
            Box::<OnceEach>::default(),
            Box::new(AllLabelled),
        ]
    });
    match bug {
        Bug::None => right,
        // Two buggy replicas would conflict without any fault.
        _ => Scenario { replicas: 1, ..right },
    }
}

async fn label_nodes(replica: Replica, bug: Bug) {
    let api: Api<Node> = Api::all(replica.client.clone());
    loop {
        // Any error or end of the watch leads to a new list.
        let _ = watch(&api, &replica, bug).await;
        sleep(Duration::from_millis(500)).await;
    }
}

/// Lists once and watches from there.
async fn watch(api: &Api<Node>, replica: &Replica, bug: Bug) -> kube::Result<()> {
    let list = api.list(&ListParams::default().match_any()).await?;
    let mut seen: BTreeMap<String, Node> = list.items.into_iter().map(|n| (n.name_any(), n)).collect();
    let version = list.metadata.resource_version.unwrap_or_default();
    let mut events = api.watch(&WatchParams::default().timeout(60), &version).await?.boxed();
    let mut due: Vec<String> = seen.keys().cloned().collect();
    loop {
        for node in due.drain(..).filter_map(|name| seen.get(&name)) {
            if is_ready(node) && !node.labels().contains_key(LABEL) {
                // A failure is retried at the node's next event, or after five seconds.
                let _ = label(&replica.client, node, &replica.name, bug).await;
            }
        }
        assert!(!matches!(bug, Bug::Panic) || seen.len() < 10, "intended");
        while matches!(bug, Bug::Busy) && seen.len() > 10 {
            let _ = api.get("nobody").await;
        }
        let Ok(event) = timeout(Duration::from_secs(5), events.try_next()).await else {
            due.extend(seen.keys().cloned());
            continue;
        };
        match event? {
            // Only this node: all nodes at each event would be a storm of requests.
            Some(WatchEvent::Added(node) | WatchEvent::Modified(node)) => {
                due.push(node.name_any());
                seen.insert(node.name_any(), node);
            }
            Some(WatchEvent::Deleted(node)) => {
                seen.remove(&node.name_any());
            }
            Some(WatchEvent::Bookmark(_)) => {}
            Some(WatchEvent::Error(error)) => return Err(kube::Error::Api(error)),
            None => return Ok(()),
        }
    }
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|s| s.conditions.iter().flatten());
    conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

async fn label(client: &Client, node: &Node, user: &str, bug: Bug) -> kube::Result<()> {
    let api: Api<Node> = Api::all(client.clone());
    let name = node.name_any();
    match bug {
        Bug::None | Bug::Panic | Bug::Busy => {
            // Every kubelet labels its node, so the map exists.
            let path = format!("/metadata/labels/{}", LABEL.replace('/', "~1"));
            let patch = json!([
                {"op": "test", "path": "/metadata/uid", "value": node.uid()},
                {"op": "test", "path": "/metadata/resourceVersion", "value": node.resource_version()},
                {"op": "add", "path": path, "value": user},
            ]);
            let patch: json_patch::Patch = patch.decode().expect("the patch is well formed");
            api.patch(&name, &PatchParams::default(), &Patch::<()>::Json(patch)).await?;
        }
        Bug::LostUpdate => {
            let mut whole = node.clone();
            whole.metadata.resource_version = None;
            whole.labels_mut().insert(LABEL.into(), user.into());
            api.replace(&name, &PostParams::default(), &whole).await?;
        }
        Bug::StaleRead => {
            let patch = json!({"metadata": {"labels": {LABEL: user}}});
            api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        }
    }
    Ok(())
}

fn is_ours(change: &Change) -> bool {
    change.user.starts_with("replica-")
}

fn label_of(node: Option<&Arc<Value>>) -> Option<&str> {
    at(node?, "metadata.labels")?.get(LABEL)?.as_str()
}

/// The node without our own label and without fields that every write changes.
fn foreign(node: &Value) -> Value {
    let mut node = node.clone();
    let metadata = node["metadata"].as_object_mut().expect("every object has metadata");
    metadata.remove("resourceVersion");
    if let Some(labels) = metadata.get_mut("labels").and_then(Value::as_object_mut) {
        labels.remove(LABEL);
    }
    node
}

struct OnlyOurLabel;
impl Invariant for OnlyOurLabel {
    fn name(&self) -> &'static str {
        "nothing foreign is changed"
    }
    fn check(&mut self, change: &Change) -> Result<(), String> {
        match (&change.before, &change.after) {
            _ if !is_ours(change) => Ok(()),
            (Some(before), Some(after)) if foreign(before) == foreign(after) => Ok(()),
            (Some(before), Some(after)) => Err(format!("{} became {}", foreign(before), foreign(after))),
            _ => Err("an object was created or deleted".into()),
        }
    }
}

struct OnlyReadyNodes;
impl Invariant for OnlyReadyNodes {
    fn name(&self) -> &'static str {
        "only a Ready node is labelled"
    }
    fn check(&mut self, change: &Change) -> Result<(), String> {
        match &change.before {
            Some(node) if is_ours(change) && condition_status(node, "Ready") != "True" => {
                Err(format!("{} was {:?}", name(node), condition_status(node, "Ready")))
            }
            _ => Ok(()),
        }
    }
}

#[derive(Default)]
struct OnceEach(BTreeSet<String>);
impl Invariant for OnceEach {
    fn name(&self) -> &'static str {
        "a node is labelled once"
    }
    fn check(&mut self, change: &Change) -> Result<(), String> {
        let (before, after) = (label_of(change.before.as_ref()), label_of(change.after.as_ref()));
        match &change.after {
            Some(node) if before != after && !self.0.insert(uid(node).to_owned()) => {
                Err(format!("{} had the label {before:?} and got {after:?}", name(node)))
            }
            _ => Ok(()),
        }
    }
}

struct AllLabelled;
impl Invariant for AllLabelled {
    fn name(&self) -> &'static str {
        "every Ready node is labelled"
    }
    fn check(&mut self, _: &Change) -> Result<(), String> {
        Ok(())
    }
    fn check_final(&mut self, cluster: &Cluster) -> Result<(), String> {
        let nodes = cluster.local("invariant").all("nodes");
        let ready = nodes.iter().filter(|n| condition_status(n, "Ready") == "True").count();
        if ready == 0 {
            return Err("no node is Ready".into());
        }
        let without =
            nodes.iter().find(|n| condition_status(n, "Ready") == "True" && label_of(Some(n)).is_none());
        without.map_or(Ok(()), |node| Err(format!("{} is Ready and has no label", name(node))))
    }
}
