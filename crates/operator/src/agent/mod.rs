//! The agent: the gate's decision for one node, made on that node. Its workers run in its own process, it needs no lease,
//! and it watches only its own Node.

mod gates;
mod workers;

use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use kube::Client;
use nodekeeper_core::api::NodeGateSpec;
use nodekeeper_core::checks::Assignment;
use nodekeeper_core::gate::AgentTiming;
use nodekeeper_core::report::Report;
use nodekeeper_core::worker::Template;

use crate::apply::WritePermit;
use crate::clock::Clock;
use crate::controllers::{self, Caches, Shared};
use crate::health::Health;
use crate::metrics::Metrics;
use crate::run::Settings;
use crate::runtime::{Manager, Stop};

pub use gates::AgentGates;
pub use workers::LocalWorkers;

/// Runs the checks of an assignment in this process. To be called again for each verification.
pub trait RunChecks: Send + Sync {
    fn run(&self, assignment: Assignment) -> BoxFuture<'static, Report>;
}

/// Where the settings of the gate come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GateSource {
    /// From the command line and the environment. No NodeGate is read.
    Flags(Box<NodeGateSpec>),
    /// From the NodeGate of this name, which a controller may enforce too.
    NodeGate(String),
}

/// The settings of an agent.
#[derive(Clone)]
pub struct AgentSettings {
    /// The name of the agent's own Node.
    pub node: String,
    pub gate: GateSource,
    pub timing: AgentTiming,
    /// The identity of the agent in Events.
    pub identity: String,
    /// The seed of all jitter.
    pub seed: u64,
    pub metrics: Arc<Metrics>,
    pub health: Arc<Health>,
}

/// What an agent has instead of worker pods and watched gates.
pub struct AgentParts {
    pub workers: LocalWorkers,
    pub gates: AgentGates,
}

/// How often the agent looks again whether there is a NodeGate that it can enforce.
const GATE_RETRY: Duration = Duration::from_secs(10);

/// Runs until `stop` completes. Then checks that run are dropped, and a patch that is under way is awaited.
pub async fn run(
    client: Client,
    settings: AgentSettings,
    checks: Arc<dyn RunChecks>,
    clock: Clock,
    stop: impl Future<Output = ()> + Send + 'static,
) {
    let stop: Stop = stop.boxed().shared();
    let AgentSettings { node, gate, timing, identity, seed, metrics, health } = settings;
    let mut manager = Manager::new(clock.clone(), seed, metrics.clone(), health.clone());
    let caches = Caches::of_node(&mut manager, &client, &node);
    let workers = LocalWorkers::new(&node, checks, &caches, &manager, metrics.clone());
    let gates = AgentGates::new(gate, timing, health.clone());
    let settings = Settings { metrics, health, ..Settings::new(Template::default(), identity, seed) };
    let mut shared = Shared::new(&client, &settings, caches, &manager, WritePermit::Always);
    shared.agent = Some(AgentParts { workers, gates });
    let shared = Arc::new(shared);
    let refresh = refresh_gates(shared.clone());
    let build = move || controllers::build_agent(&shared);
    tokio::select! {
        biased;
        () = manager.run(None, build, stop) => {}
        () = refresh => {}
    }
}

/// Keeps the gates known. Never returns.
async fn refresh_gates(shared: Arc<Shared>) {
    let Some(agent) = &shared.agent else { return std::future::pending().await };
    loop {
        let next = if agent.gates.refresh(&shared).await { gates::REFRESH_PERIOD } else { GATE_RETRY };
        tokio::time::sleep(next).await;
    }
}
