//! Term after term: wait for the lease, watch, work, hand over.

use std::sync::Arc;
use std::time::Duration;

use futures::future::FutureExt as _;
use kube::Client;
use nodekeeper_core::api::{NodeGateSpec, RemediationPolicySpec};
use nodekeeper_core::lease::{Candidate, Timing};
use nodekeeper_core::worker::Template;
use tracing::{info, warn};

use crate::clock::Clock;
use crate::health::Health;
use crate::leader::Leader;
use crate::metrics::{GATE, Metrics};
use crate::term::{Stop, Term};

/// What a controller is told.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What every worker gets.
    pub template: Template,
    /// Name of the Lease.
    pub lease: String,
    /// Where the Lease is; where workers run if none.
    pub lease_namespace: Option<String>,
    /// Who we are in the lease. Never used twice: a restarted process is another.
    pub identity: String,
    /// How long the lease lasts.
    pub timing: Timing,
    /// How many workers may run at once.
    pub most_workers: usize,
    /// How many nodes are looked at at once.
    pub concurrency: usize,
    /// For pauses that should not meet.
    pub seed: u64,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// What is said to probes.
    pub health: Arc<Health>,
    /// The gate of a configuration file, which is kept as the file says.
    pub gate: Option<NodeGateSpec>,
    /// The policy that a configuration file stands for; made if there is none.
    pub policy: Option<RemediationPolicySpec>,
    /// How often all nodes are gone over though nothing changed; never if none.
    pub sweep: Option<Duration>,
}

impl Settings {
    /// The defaults of the documentation.
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
            gate: None,
            policy: None,
            sweep: None,
        }
    }
}

/// Runs until `stop`, then finishes what has begun and gives the lease back.
pub async fn run(
    client: Client,
    settings: Settings,
    clock: Clock,
    stop: impl Future<Output = ()> + Send + 'static,
) {
    let stop: Stop = stop.boxed().shared();
    let candidate = Candidate::new(settings.identity.clone(), settings.timing);
    let namespace = settings.lease_namespace.as_ref().unwrap_or(&settings.template.namespace);
    let Settings { metrics, health, lease, .. } = &settings;
    metrics.record_start(clock.now(), lease, settings.timing.lease);
    metrics.register_controller(GATE, settings.concurrency);
    let leader = Leader::new(client.clone(), namespace, lease, clock.clone(), candidate)
        .observed_by(metrics.clone(), health.clone());
    loop {
        tokio::select! {
            biased;
            () = stop.clone() => break,
            () = leader.acquire() => {}
        }
        // What was known in an earlier term is forgotten: somebody else may have written since.
        metrics.start_leading(lease);
        let mut term = Term::new(&client, &settings, &clock, &leader);
        tokio::select! {
            biased;
            () = leader.keep() => warn!("no longer leading"),
            () = term.work(stop.clone()) => break,
        }
        metrics.stop_leading(lease);
        health.set_starting();
    }
    health.set_stopping();
    leader.release().await;
    metrics.stop_leading(lease);
    info!("stopped");
}
