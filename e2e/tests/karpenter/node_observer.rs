//! Records the phases of all nodes from a watch without gaps.

use nodekeeper_e2e::karpenter::objects::{is, is_disrupted};
use nodekeeper_e2e::scenario::steps::is_gated;
use nodekeeper_e2e::scenario::world::World;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Node;
use kube::api::{WatchEvent, WatchParams};
use kube::{Api, Client, ResourceExt as _};
use nodekeeper_core::node::CORDONED;
use tokio::task::JoinHandle;
use tokio::time::sleep;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodePhase {
    Gated,
    Registered,
    /// The gate's taint was removed.
    Opened,
    Initialized,
    /// The node has the controller's cordon annotation.
    Cordoned,
    /// Karpenter is removing the node.
    Disrupted,
}

/// The phases of each node by name, with the number of the watch event.
pub type NodePhases = BTreeMap<String, Vec<(usize, NodePhase)>>;

#[derive(Default)]
struct NodeHistory {
    steps: NodePhases,
    events: usize,
    gap: Option<String>,
}

impl NodeHistory {
    fn record(&mut self, node: &Node) {
        self.events += 1;
        let steps = self.steps.entry(node.name_any()).or_default();
        let was_gated = steps.iter().any(|(_, step)| *step == NodePhase::Gated);
        let now = [
            (NodePhase::Gated, is_gated(node)),
            (NodePhase::Registered, is(node, "registered")),
            (NodePhase::Opened, was_gated && !is_gated(node)),
            (NodePhase::Initialized, is(node, "initialized")),
            (NodePhase::Cordoned, node.annotations().contains_key(CORDONED)),
            (NodePhase::Disrupted, is_disrupted(node)),
        ];
        for (step, is_so) in now {
            if is_so && !steps.iter().any(|(_, known)| *known == step) {
                steps.push((self.events, step));
            }
        }
    }
}

/// Stops watching when dropped.
pub struct NodeObserver {
    seen: Arc<Mutex<NodeHistory>>,
    task: JoinHandle<()>,
}

impl Drop for NodeObserver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl NodeObserver {
    /// Start it before the first node is created.
    pub fn start(world: &impl World) -> Self {
        let seen = Arc::<Mutex<NodeHistory>>::default();
        let task = tokio::spawn(watch_nodes(world.client(), seen.clone()));
        Self { seen, task }
    }

    /// Fails if the watch had a gap.
    pub fn steps(&self) -> Result<NodePhases> {
        let seen = self.seen.lock();
        ensure!(seen.gap.is_none(), "the watch on nodes has a gap: {:?}", seen.gap);
        Ok(seen.steps.clone())
    }

    /// The number of the event with which the node reached a phase.
    pub fn when(&self, node: &str, step: NodePhase) -> Result<Option<usize>> {
        let all = self.steps()?;
        let steps = all.get(node).with_context(|| format!("{node} was not seen"))?;
        Ok(steps.iter().find(|(_, known)| *known == step).map(|(event, _)| *event))
    }

    /// Asserts that the node was registered, then untainted, then initialized, in separate events.
    pub fn in_order(&self, node: &str) -> Result<()> {
        let all = self.steps()?;
        let steps = all.get(node).with_context(|| format!("{node} was not seen"))?;
        let at = |step| {
            let found = steps.iter().find(|(_, known)| *known == step);
            found.map(|(event, _)| *event).with_context(|| format!("{node} never was {step:?}: {steps:?}"))
        };
        let (gated, registered, opened, initialized) = (
            at(NodePhase::Gated)?,
            at(NodePhase::Registered)?,
            at(NodePhase::Opened)?,
            at(NodePhase::Initialized)?,
        );
        ensure!(
            gated <= registered && registered < opened && opened < initialized,
            "{node} in a wrong order: {steps:?}"
        );
        Ok(())
    }
}

async fn watch_nodes(client: Client, seen: Arc<Mutex<NodeHistory>>) {
    let nodes: Api<Node> = Api::all(client);
    let locked = || seen.lock();
    let mut version = String::new();
    loop {
        let params = WatchParams { timeout: Some(200), ..WatchParams::default() };
        // "0" starts from the oldest version that the server still has.
        let from = if version.is_empty() { "0" } else { &version };
        if let Ok(events) = nodes.watch(&params, from).await {
            let mut events = events.boxed();
            while let Some(Ok(event)) = events.next().await {
                match &event {
                    WatchEvent::Bookmark(mark) => version.clone_from(&mark.metadata.resource_version),
                    WatchEvent::Error(status) => {
                        locked().gap = Some(status.message.clone());
                        return;
                    }
                    WatchEvent::Added(node) | WatchEvent::Modified(node) | WatchEvent::Deleted(node) => {
                        version = node.resource_version().unwrap_or_default();
                        locked().record(node);
                    }
                }
            }
        }
        sleep(Duration::from_millis(10)).await;
    }
}
