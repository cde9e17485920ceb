//! The gates that an agent knows: the one of its flags, or all `NodeGate` objects, of which it enforces one. They are not watched:
//! they are listed every ten minutes, and again before a node is written.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::api::ListParams;
use nodekeeper_core::api::{NodeGate, NodeGateStatus};
use nodekeeper_core::gate::{AgentTiming, Effect, GateView, needs_worker_pod, of_agent};
use parking_lot::Mutex;
use tracing::warn;

use super::GateSource;
use crate::controllers::{Shared, parse, untyped};
use crate::health::Health;
use crate::runtime::ReconcileError;
use crate::runtime::call::{READ_TIMEOUT, call};
use crate::runtime::watcher::WatchEvent;

/// How often the gates are listed though nothing is to be written.
pub const REFRESH_PERIOD: Duration = Duration::from_mins(10);
/// Gates that were listed count as current for so long.
const VALIDITY: Duration = Duration::from_secs(10);
/// The name and the uid of the gate of the flags, in Events and in the record.
const FLAGS: &str = "agent";
/// More gates than any cluster has, so that one page holds all of them.
const MAX_GATES: u32 = 500;

/// The gates of an agent.
pub struct AgentGates {
    source: GateSource,
    timing: AgentTiming,
    health: Arc<Health>,
    /// When the gates were last listed, on the monotonic clock.
    listed_at: Mutex<Option<Duration>>,
}

impl AgentGates {
    pub fn new(source: GateSource, timing: AgentTiming, health: Arc<Health>) -> Self {
        if let GateSource::NodeGate(name) = &source {
            health.hold(Some(format!("NodeGate {name} was not read yet")));
        }
        Self { source, timing, health, listed_at: Mutex::default() }
    }

    /// Whether the agent decides for this gate.
    #[must_use]
    pub fn is_own(&self, gate: Option<&GateView>) -> bool {
        let Some(gate) = gate else { return false };
        match &self.source {
            GateSource::Flags(_) => true,
            GateSource::NodeGate(name) => gate.name == *name && needs_worker_pod(&gate.spec).is_none(),
        }
    }

    /// Reads the gates into the cache. Returns whether the agent has one that it can enforce.
    pub async fn refresh(&self, shared: &Shared) -> bool {
        let held = match self.read(shared).await {
            Ok(()) => self.missing(shared),
            Err(error) if self.listed_at.lock().is_some() => {
                // What was read before holds until it can be read again.
                warn!(error, "gates not listed; retrying");
                return false;
            }
            Err(error) => Some(error),
        };
        if let Some(why) = &held {
            warn!(why, "the agent cannot verify its node; retrying");
        }
        let can_work = held.is_none();
        self.health.hold(held);
        can_work
    }

    /// Why there is no gate to enforce.
    fn missing(&self, shared: &Shared) -> Option<String> {
        let GateSource::NodeGate(name) = &self.source else { return None };
        let gates = shared.caches.gates.lock();
        let Some(gate) = gates.get(name) else {
            return Some(format!("there is no NodeGate {name}: create it, or name another one with --gate"));
        };
        needs_worker_pod(&gate.spec).map(|field| {
            format!("NodeGate {name} has `{field}`, for which the node needs a worker pod: the controller verifies it")
        })
    }

    async fn read(&self, shared: &Shared) -> Result<(), String> {
        let (views, version) = match &self.source {
            GateSource::Flags(spec) => {
                let spec = of_agent(spec, self.timing);
                let view = GateView {
                    name: FLAGS.into(),
                    uid: FLAGS.into(),
                    resource_version: "1".into(),
                    generation: 1,
                    created: Timestamp::UNIX_EPOCH,
                    deleting: false,
                    last_applied: None,
                    spec,
                    status: NodeGateStatus::default(),
                };
                (vec![view], "1".to_owned())
            }
            GateSource::NodeGate(name) => {
                let gates = untyped::<NodeGate>(&shared.client);
                let page = ListParams::default().limit(MAX_GATES);
                let list = call(READ_TIMEOUT, gates.list(&page)).await;
                let list = list.map_err(|error| format!("NodeGates not listed: {error}"))?;
                let read = list.items.iter().filter_map(parse::<NodeGate>);
                let views = read.map(|gate| self.view(name, &gate)).collect();
                (views, list.metadata.resource_version.unwrap_or_default())
            }
        };
        let now = shared.clock.elapsed();
        let changes = [WatchEvent::ListStarted]
            .into_iter()
            .chain(views.into_iter().map(WatchEvent::Listed))
            .chain([WatchEvent::ListEnded(version)])
            .flat_map(|event| shared.caches.gates.handle_event(event, now, true))
            .collect::<Vec<_>>();
        *self.listed_at.lock() = Some(now);
        for change in &changes {
            shared.dispatcher.dispatch(change);
        }
        Ok(())
    }

    /// The agent's own gate with the agent's own timing.
    fn view(&self, own: &str, gate: &NodeGate) -> GateView {
        let view = GateView::new(gate);
        if view.name != own {
            return view;
        }
        GateView { spec: of_agent(&view.spec, self.timing), ..view }
    }

    /// Whether the gate is still what a decision was made for. It is read again before the node is written; checks that run
    /// in this process harm nobody.
    pub async fn is_current(
        &self,
        shared: &Shared,
        gate: &GateView,
        effects: &[Effect],
    ) -> Result<bool, ReconcileError> {
        let is_harmless = |effect: &Effect| {
            matches!(effect, Effect::StartWorker(_) | Effect::RemoveWorker { .. } | Effect::EmitEvent(_))
        };
        let is_recent = |at: Duration| shared.clock.elapsed() < at + VALIDITY;
        let is_flags = matches!(self.source, GateSource::Flags(_));
        if is_flags || effects.iter().all(is_harmless) || self.listed_at.lock().is_some_and(is_recent) {
            return Ok(true);
        }
        self.read(shared).await.map_err(ReconcileError)?;
        let gates = shared.caches.gates.lock();
        let identity = |gate: &GateView| (gate.uid.clone(), gate.generation, gate.deleting);
        Ok(gates.get(&gate.name).is_some_and(|now| identity(now) == identity(gate)))
    }
}
