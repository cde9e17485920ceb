//! What the gate reads from the API server because a watch may be behind.

use std::time::Duration;

use nodekeeper_core::api::{NodeGate, NodeRemediation};
use nodekeeper_core::gate::{Effect, GateView};
use nodekeeper_core::node::NodeView;
use nodekeeper_core::remediate::Remediation;
use nodekeeper_core::worker::WorkerView;

use super::super::Shared;
use super::GateReconciler;
use crate::metrics::NodeError;
use crate::runtime::ReconcileError;

/// A gate that was read from the API server counts as current for so long.
const GATE_VALIDITY: Duration = Duration::from_secs(10);

impl GateReconciler {
    /// Reads a node from the API server into the cache. Returns whether there is one.
    pub(super) async fn read_node(&self, name: &str) -> Result<bool, ReconcileError> {
        match self.shared.get_node(name).await {
            Ok(Some(node)) => {
                self.shared.apply_node(&(&node).into());
                Ok(true)
            }
            Ok(None) => {
                if let Some(node) = self.shared.caches.nodes.lock().get(name) {
                    self.gone.lock().insert(node.name.clone(), node.uid.clone());
                }
                Ok(false)
            }
            Err(error) => {
                self.shared.metrics.inc_node_errors(name, NodeError::ReadNode);
                self.needs_live_read.lock().insert(name.into());
                Err(ReconcileError(format!("node not read: {error}")))
            }
        }
    }

    /// Whether the API server does not have the node any more that the cache has.
    pub(super) fn is_gone(&self, name: &str) -> bool {
        let nodes = self.shared.caches.nodes.lock();
        let mut gone = self.gone.lock();
        let is_gone = gone.get(name).zip(nodes.get(name)).is_some_and(|(uid, node)| *uid == node.uid);
        if !is_gone {
            gone.remove(name);
        }
        is_gone
    }

    /// Reads the workers of a node that the watch does not show.
    pub(super) async fn read_unwatched_workers(&self, name: &str) -> Result<(), ReconcileError> {
        let Shared { caches, pods, writer, clock, .. } = &*self.shared;
        let uid = caches.nodes.lock().get(name).map(|node| node.uid.clone());
        let Some(uid) = uid else { return Ok(()) };
        for pod in caches.unwatched_workers_of(&uid) {
            match pods.get(writer, &pod).await {
                Ok(Some(read)) => {
                    if let Some(view) = WorkerView::new(&read) {
                        caches.workers.lock().force_insert(view, clock.elapsed());
                    }
                }
                Ok(None) => caches.remove_unwatched_worker(&pod),
                Err(error) => return Err(ReconcileError(format!("worker {pod} not read: {error}"))),
            }
        }
        Ok(())
    }

    /// Whether a gate is still what a decision was made for. Its watch may say nothing for minutes, and by a gate that was
    /// deleted, paused or changed meanwhile no node is opened.
    pub(super) async fn is_gate_current(
        &self,
        gate: &GateView,
        effects: &[Effect],
    ) -> Result<bool, ReconcileError> {
        if let Some(agent) = &self.shared.agent {
            return agent.gates.is_current(&self.shared, gate, effects).await;
        }
        let now = self.shared.clock.elapsed();
        if self.gates_read.lock().get(&gate.uid).is_some_and(|at| now < *at + GATE_VALIDITY) {
            return Ok(true);
        }
        let live = match self.shared.get::<NodeGate>(&gate.name).await {
            Ok(live) => live.map(|live| GateView::new(&live)),
            // Older roles do not allow it.
            Err(error) if error.code() == Some(403) => Some(gate.clone()),
            Err(error) => return Err(ReconcileError(format!("gate {} not read: {error}", gate.name))),
        };
        let live = live.ok_or_else(|| ReconcileError(format!("gate {} is gone", gate.name)))?;
        let identity = |gate: &GateView| (gate.uid.clone(), gate.generation, gate.deleting);
        if identity(&live) != identity(gate) {
            self.shared.apply_response(&self.shared.caches.gates, live);
            return Ok(false);
        }
        let mut read = self.gates_read.lock();
        read.retain(|_, at| now < *at + GATE_VALIDITY);
        read.insert(live.uid, now);
        Ok(true)
    }

    /// Reads a worker into the cache: the watch may be behind.
    pub(super) async fn read_worker(&self, pod: &str) -> Result<(), ReconcileError> {
        if self.shared.agent.is_some() {
            // The workers of an agent are in its own process.
            return Ok(());
        }
        let Shared { caches, pods, writer, clock, .. } = &*self.shared;
        match pods.get(writer, pod).await {
            Ok(Some(read)) => {
                if let Some(view) = WorkerView::new(&read) {
                    caches.workers.lock().force_insert(view, clock.elapsed());
                }
                Ok(())
            }
            Ok(None) => {
                caches.workers.lock().remove(pod);
                Ok(())
            }
            Err(error) => Err(ReconcileError(format!("worker {pod} not read: {error}"))),
        }
    }

    /// Reads the object that an effect writes, and returns whether it is still what the effect was decided for. The node was
    /// read just now.
    pub(super) async fn is_unchanged(
        &self,
        node: &NodeView,
        effect: &Effect,
    ) -> Result<bool, ReconcileError> {
        let caches = &self.shared.caches;
        match effect {
            Effect::RequestRemediation(_) => {
                let name = node.uid.to_string();
                let known = caches.remediations.lock().get(&name).map(|known| known.resource_version.clone());
                let live = self.shared.get::<NodeRemediation>(&name).await;
                let live =
                    live.map_err(|error| ReconcileError(format!("NodeRemediation not read: {error}")))?;
                let live = live.map(|live| Remediation::new(&live));
                let is_same = live.as_ref().map(|live| live.resource_version.clone()) == known;
                match live {
                    Some(live) => self.shared.apply_response(&caches.remediations, live),
                    None => {
                        caches.remediations.lock().remove(&name);
                    }
                }
                Ok(is_same)
            }
            Effect::RemoveWorker { name, uid } => {
                self.read_worker(name).await?;
                Ok(caches.workers.lock().get(name).is_some_and(|worker| worker.uid == *uid))
            }
            _ => {
                let now = caches.nodes.lock().get(&node.name).map(|node| node.resource_version);
                Ok(now == Some(node.resource_version))
            }
        }
    }
}
