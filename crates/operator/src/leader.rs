//! The lease: who may write. The decisions are `core::lease`'s; here it is read and written.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::{Api, Client, Error};
use nodekeeper_core::lease::{Candidate, Held, Step};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::clock::Clock;
use crate::health::Health;
use crate::metrics::Metrics;

/// One try at the lease takes no longer.
const TRY: Duration = Duration::from_secs(4);

/// A candidate and the Lease object it stands for.
pub struct Leader {
    api: Api<Lease>,
    name: String,
    clock: Clock,
    candidate: Arc<Mutex<Candidate>>,
    /// As it was last read or written: while we hold it, renewing is one request.
    known: Mutex<Option<Lease>>,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
}

impl Leader {
    /// Stands for the lease of this name.
    pub fn new(client: Client, namespace: &str, name: &str, clock: Clock, candidate: Candidate) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            name: name.to_owned(),
            clock,
            candidate: Arc::new(Mutex::new(candidate)),
            known: Mutex::new(None),
            metrics: Arc::default(),
            health: Arc::default(),
        }
    }

    /// Tells these what becomes of the lease.
    pub fn observed_by(self, metrics: Arc<Metrics>, health: Arc<Health>) -> Self {
        Self { metrics, health, ..self }
    }

    /// Shared with whoever asks whether we may write.
    pub fn candidate(&self) -> Arc<Mutex<Candidate>> {
        self.candidate.clone()
    }

    fn state(&self) -> MutexGuard<'_, Candidate> {
        self.candidate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when the lease is ours.
    pub async fn acquire(&self) {
        let retry = self.state().timing().retry;
        loop {
            self.health.heartbeat(self.clock.elapsed());
            if self.attempt().await {
                info!(identity = self.state().identity(), "leading");
                return;
            }
            sleep(retry).await;
        }
    }

    /// Renews the lease, and returns when it is lost.
    pub async fn keep(&self) {
        let retry = self.state().timing().retry;
        loop {
            let Some(until) = self.state().until() else { return };
            let next = (self.clock.elapsed() + retry).min(until);
            self.clock.reach(next).await;
            if next == until {
                warn!("the lease could not be renewed in time");
                self.state().lost();
                return;
            }
            let deadline = until.saturating_sub(self.clock.elapsed());
            let _ = timeout(deadline, self.attempt()).await;
        }
    }

    /// Gives the lease back, so that the next one need not wait. Read anew: a renewal may have been under way.
    pub async fn release(&self) {
        let identity = self.state().identity().to_owned();
        self.state().lost();
        let give_back = async {
            let Some(mut lease) = self.api.get_opt(&self.name).await? else { return Ok(()) };
            if held(&lease).holder != identity {
                return Ok(());
            }
            let spec = lease.spec.get_or_insert_default();
            spec.holder_identity = Some(String::new());
            spec.lease_duration_seconds = Some(1);
            self.api.replace(&self.name, &PostParams::default(), &lease).await.map(drop)
        };
        match timeout(TRY, give_back).await {
            Ok(Ok(())) => info!("lease given back"),
            Ok(Err(error)) => warn!(%error, "the lease could not be given back; it runs out by itself"),
            Err(_) => warn!("the lease could not be given back in time; it runs out by itself"),
        }
    }

    /// One try. Says whether the lease is ours now.
    async fn attempt(&self) -> bool {
        match timeout(TRY, self.try_once()).await {
            Ok(Ok(ours)) => ours,
            Ok(Err(error)) => {
                warn!(%error, "the lease cannot be had or renewed; trying again");
                self.health.set_lease_error(&error.to_string());
                // What we know of it may be old: read it next time.
                *self.known.lock().unwrap_or_else(PoisonError::into_inner) = None;
                false
            }
            Err(_) => {
                warn!("no answer about the lease; trying again");
                self.health.set_lease_error("timeout");
                *self.known.lock().unwrap_or_else(PoisonError::into_inner) = None;
                false
            }
        }
    }

    async fn try_once(&self) -> kube::Result<bool> {
        let ours = self.state().until().is_some();
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).clone().filter(|_| ours);
        if ours && known.is_none() {
            self.metrics.inc_lease_slow_path(&self.name);
        }
        let lease = match known {
            Some(lease) => Some(lease),
            None => self.api.get_opt(&self.name).await?,
        };
        let held = lease.as_ref().map(held);
        let step = self.state().observe(held.as_ref(), self.clock.elapsed());
        let sent = self.clock.elapsed();
        let written = match (step, lease) {
            (Step::Leave, _) => {
                if ours {
                    warn!(holder = held.unwrap_or_default().holder, "somebody else has the lease");
                    self.state().lost();
                }
                self.health.set_standby();
                return Ok(false);
            }
            (Step::Create, _) | (_, None) => {
                let lease = self.claim(Lease::default(), true);
                self.api.create(&PostParams::default(), &lease).await
            }
            (step, Some(lease)) => {
                let lease = self.claim(lease, step == Step::Take);
                self.api.replace(&self.name, &PostParams::default(), &lease).await
            }
        };
        match written {
            Ok(lease) => {
                *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some(lease);
                self.state().renewed(sent);
                Ok(true)
            }
            Err(Error::Api(status)) if status.code == 409 => {
                *self.known.lock().unwrap_or_else(PoisonError::into_inner) = None;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// The lease as it is with us as its holder. Its version stays, and guards the write.
    fn claim(&self, lease: Lease, anew: bool) -> Lease {
        let now = Some(self.clock.micros());
        let (identity, timing) = {
            let state = self.state();
            (state.identity().to_owned(), state.timing())
        };
        let mut spec = lease.spec.unwrap_or_default();
        if anew {
            let transitions = spec.lease_transitions.unwrap_or(-1).saturating_add(1);
            spec = LeaseSpec { acquire_time: now.clone(), lease_transitions: Some(transitions), ..spec };
        }
        let seconds = i32::try_from(timing.lease.as_secs()).unwrap_or(i32::MAX);
        let metadata = ObjectMeta { name: Some(self.name.clone()), ..lease.metadata };
        Lease {
            metadata,
            spec: Some(LeaseSpec {
                holder_identity: Some(identity),
                lease_duration_seconds: Some(seconds),
                renew_time: now,
                ..spec
            }),
        }
    }
}

fn held(lease: &Lease) -> Held {
    let spec = lease.spec.clone().unwrap_or_default();
    let seconds = spec.lease_duration_seconds.unwrap_or_default();
    Held {
        holder: spec.holder_identity.unwrap_or_default(),
        // With its version: whatever happens to the object, its holder is alive or somebody else is.
        renewed: lease.metadata.resource_version.clone().unwrap_or_default(),
        lasts: Duration::from_secs(u64::try_from(seconds).unwrap_or_default()),
    }
}
