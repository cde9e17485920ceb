//! Starts the controllers of one replica.

use std::sync::Arc;
use std::time::Duration;

use futures::future::FutureExt as _;
use kube::Client;
use nodekeeper_core::configured::ConfiguredObject;
use nodekeeper_core::lease::{Candidate, Timing};
use nodekeeper_core::worker::Template;

use crate::apply::WritePermit;
use crate::clock::Clock;
use crate::controllers::{self, Caches, Shared};
use crate::health::Health;
use crate::metrics::Metrics;
use crate::runtime::leader::LeaderElector;
use crate::runtime::reconciler::Controller;
use crate::runtime::{Manager, Stop};

/// The settings of one replica.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What every worker pod is made from.
    pub template: Template,
    /// Name of the Lease.
    pub lease: String,
    /// Namespace of the Lease; that of the workers if none.
    pub lease_namespace: Option<String>,
    /// The holder identity in the Lease. It is never used twice: a restarted process has another.
    pub identity: String,
    /// The durations of the Lease.
    pub timing: Timing,
    /// How many workers may run at once.
    pub most_workers: usize,
    /// How many nodes are reconciled at once.
    pub concurrency: usize,
    /// The seed of all jitter.
    pub seed: u64,
    pub metrics: Arc<Metrics>,
    pub health: Arc<Health>,
    /// The objects that the installation brings.
    pub objects: Vec<ConfiguredObject>,
    /// How often all nodes are reconciled though nothing changed; never if none.
    pub resync: Option<Duration>,
    /// The gate whose nodes are left to agents, where agents run.
    pub agents: Option<String>,
    /// The namespace of the agents; that of the workers if none.
    pub agents_namespace: Option<String>,
}

impl Settings {
    /// Settings with the documented defaults.
    #[must_use]
    pub fn new(template: Template, identity: String, seed: u64) -> Self {
        Self {
            template,
            lease: "kube-node-ready-leader".into(),
            lease_namespace: None,
            identity,
            timing: Timing::default(),
            most_workers: 100,
            concurrency: 32,
            seed,
            metrics: Arc::default(),
            health: Arc::default(),
            objects: Vec::new(),
            resync: None,
            agents: None,
            agents_namespace: None,
        }
    }
}

/// Runs until `stop` completes, then lets reconciles end and releases the lease.
pub async fn run(
    client: Client,
    settings: Settings,
    clock: Clock,
    stop: impl Future<Output = ()> + Send + 'static,
) {
    run_with(client, settings, clock, stop, |_| Vec::new).await;
}

/// Like [`run`], with more controllers. `extend` watches what they need, and returns a function that makes them at the
/// beginning of each term.
pub async fn run_with<M>(
    client: Client,
    settings: Settings,
    clock: Clock,
    stop: impl Future<Output = ()> + Send + 'static,
    extend: impl FnOnce(&mut Manager) -> M,
) where
    M: Fn() -> Vec<Arc<dyn Controller>> + Send,
{
    let stop: Stop = stop.boxed().shared();
    let namespace = settings.lease_namespace.as_ref().unwrap_or(&settings.template.namespace);
    let Settings { metrics, health, lease, .. } = &settings;
    metrics.record_start(clock.now(), lease, settings.timing.lease_duration);
    let elector = LeaderElector::new(
        client.clone(),
        namespace,
        lease,
        clock.clone(),
        Candidate::new(settings.identity.clone(), settings.timing),
        metrics.clone(),
        health.clone(),
    );
    let mut manager = Manager::new(clock, settings.seed, metrics.clone(), health.clone());
    let caches = Caches::watch(&mut manager, &client, &settings);
    let permit = WritePermit::Lease(elector.candidate());
    let shared = Arc::new(Shared::new(&client, &settings, caches, &manager, permit));
    let more = extend(&mut manager);
    let build = move || controllers::build(&shared).into_iter().chain(more()).collect();
    manager.run(Some(elector), build, stop).await;
}
