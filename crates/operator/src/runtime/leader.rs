//! Leader election on a Lease. The decisions are made in `core::lease`; here the Lease is read, watched and written.

#![expect(clippy::disallowed_methods, reason = "the Lease is written to become the writer")]

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{BoxStream, StreamExt as _};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{PostParams, WatchEvent, WatchParams};
use kube::{Api, Client};
use nodekeeper_core::lease::{Candidate, LeaseAction, LeaseState};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::timeout;
use tracing::{debug, info, warn};

use super::call::{CallError, WRITE_TIMEOUT, call};
use crate::clock::Clock;
use crate::health::Health;
use crate::metrics::Metrics;

/// The server is asked to keep the watch of the Lease open for so long.
const WATCH_SECONDS: u32 = 290;

type LeaseEvents = BoxStream<'static, kube::Result<WatchEvent<Lease>>>;

/// A candidate for a Lease.
pub struct LeaderElector {
    api: Api<Lease>,
    name: String,
    clock: Clock,
    candidate: Arc<Mutex<Candidate>>,
    /// The Lease as it was last read, watched or written. Its resourceVersion guards the next write.
    known: Mutex<Option<Lease>>,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
}

impl LeaderElector {
    pub fn new(
        client: Client,
        namespace: &str,
        name: &str,
        clock: Clock,
        candidate: Candidate,
        metrics: Arc<Metrics>,
        health: Arc<Health>,
    ) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            name: name.to_owned(),
            clock,
            candidate: Arc::new(Mutex::new(candidate)),
            known: Mutex::new(None),
            metrics,
            health,
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The candidate, which says whether this replica may write.
    pub fn candidate(&self) -> Arc<Mutex<Candidate>> {
        self.candidate.clone()
    }

    fn state(&self) -> MutexGuard<'_, Candidate> {
        self.candidate.lock()
    }

    fn known(&self) -> MutexGuard<'_, Option<Lease>> {
        self.known.lock()
    }

    /// Returns when the Lease is ours.
    pub async fn acquire(&self) {
        let retry = self.state().timing().retry_period;
        *self.known() = None;
        loop {
            if self.attempt().await {
                info!(identity = self.state().identity(), "leading");
                return;
            }
            let until = self.state().expires_at().unwrap_or_else(|| self.clock.elapsed() + retry);
            if !self.watch_lease(until).await {
                // Without a watch the Lease is read again after a while.
                let now = self.clock.elapsed();
                let next = Some(until).filter(|until| *until > now).unwrap_or(Duration::MAX);
                self.clock.reach(next.min(now + retry)).await;
                *self.known() = None;
            }
        }
    }

    /// Watches the Lease until it is free or its holder has not renewed it in time. Returns whether it could be watched.
    async fn watch_lease(&self, mut until: Duration) -> bool {
        let known = self.known().clone();
        let Some(version) = known.and_then(|lease| lease.metadata.resource_version) else { return false };
        let fields = format!("metadata.name={}", self.name);
        let params = WatchParams::default().fields(&fields).timeout(WATCH_SECONDS);
        let mut events: LeaseEvents = match call(WRITE_TIMEOUT, self.api.watch(&params, &version)).await {
            Ok(events) => events.boxed(),
            Err(error) => {
                debug!(%error, "lease not watched");
                return false;
            }
        };
        loop {
            let event = tokio::select! {
                biased;
                event = events.next() => event,
                () = self.clock.reach(until) => return true,
            };
            let lease = match event {
                Some(Ok(WatchEvent::Added(lease) | WatchEvent::Modified(lease))) => Some(lease),
                Some(Ok(WatchEvent::Deleted(_))) => None,
                Some(Ok(WatchEvent::Bookmark(_))) => continue,
                Some(Ok(WatchEvent::Error(_)) | Err(_)) | None => return false,
            };
            let step = self.state().observe(lease.as_ref().map(held).as_ref(), self.clock.elapsed());
            *self.known() = lease;
            match (step, self.state().expires_at()) {
                (LeaseAction::Wait, Some(expires)) => until = expires,
                _ => return true,
            }
            if self.known().is_none() {
                return false;
            }
        }
    }

    /// Renews the Lease, and returns when it is lost.
    pub async fn renew(&self) {
        let retry = self.state().timing().retry_period;
        loop {
            let Some(until) = self.state().write_deadline() else { return };
            let next = (self.clock.elapsed() + retry).min(until);
            self.clock.reach(next).await;
            if next == until {
                warn!("lease not renewed in time");
                self.state().record_loss();
                return;
            }
            let deadline = until.saturating_sub(self.clock.elapsed());
            let _ = timeout(deadline, self.attempt()).await;
        }
    }

    /// Releases the Lease, so that the next leader need not wait. It is read first: a renewal may have been under way.
    pub async fn release(&self) {
        let identity = self.state().identity().to_owned();
        self.state().record_loss();
        let release = async {
            let Some(mut lease) = self.api.get_opt(&self.name).await? else { return Ok(()) };
            if held(&lease).holder_identity != identity {
                return Ok(());
            }
            let spec = lease.spec.get_or_insert_default();
            spec.holder_identity = Some(String::new());
            spec.lease_duration_seconds = Some(1);
            self.api.replace(&self.name, &PostParams::default(), &lease).await.map(drop)
        };
        match call(WRITE_TIMEOUT, release).await {
            Ok(()) => info!("lease released"),
            Err(error) => warn!(%error, "lease not released; it expires by itself"),
        }
    }

    /// Tries once to create, take or renew the Lease. Returns whether it is ours.
    async fn attempt(&self) -> bool {
        match timeout(WRITE_TIMEOUT, self.try_once()).await {
            Ok(Ok(ours)) => ours,
            Ok(Err(error)) => self.failed(&error.to_string()),
            Err(_) => self.failed("no answer"),
        }
    }

    fn failed(&self, error: &str) -> bool {
        warn!(error, "lease not acquired or renewed; retrying");
        self.health.lease_failed(error);
        // What is known may be outdated: it is read before the next try.
        *self.known() = None;
        false
    }

    async fn try_once(&self) -> Result<bool, CallError> {
        let ours = self.state().write_deadline().is_some();
        let known = self.known().clone();
        if ours && known.is_none() {
            self.metrics.inc_lease_slow_path(&self.name);
        }
        let lease = match known {
            Some(lease) => Some(lease),
            None => call(WRITE_TIMEOUT, self.api.get_opt(&self.name)).await?,
        };
        self.known().clone_from(&lease);
        let held = lease.as_ref().map(held);
        let step = self.state().observe(held.as_ref(), self.clock.elapsed());
        let sent = self.clock.elapsed();
        let written = match (step, lease) {
            (LeaseAction::Wait, _) => {
                if ours {
                    warn!(
                        holder = held.unwrap_or_default().holder_identity,
                        "another replica holds the lease"
                    );
                    self.state().record_loss();
                }
                self.health.follows();
                return Ok(false);
            }
            (LeaseAction::Create, _) | (_, None) => {
                let lease = self.claim(Lease::default(), true);
                call(WRITE_TIMEOUT, self.api.create(&PostParams::default(), &lease)).await
            }
            (step, Some(lease)) => {
                let lease = self.claim(lease, step == LeaseAction::Acquire);
                call(WRITE_TIMEOUT, self.api.replace(&self.name, &PostParams::default(), &lease)).await
            }
        };
        match written {
            Ok(lease) => {
                *self.known() = Some(lease);
                self.state().record_renewal(sent);
                Ok(true)
            }
            Err(error) if error.code() == Some(409) => {
                *self.known() = None;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// The Lease with this replica as its holder. Its resourceVersion stays and guards the write.
    fn claim(&self, lease: Lease, take: bool) -> Lease {
        let now = Some(self.clock.micros());
        let (identity, timing) = {
            let state = self.state();
            (state.identity().to_owned(), state.timing())
        };
        let mut spec = lease.spec.unwrap_or_default();
        if take {
            let transitions = spec.lease_transitions.unwrap_or(-1).saturating_add(1);
            spec = LeaseSpec { acquire_time: now.clone(), lease_transitions: Some(transitions), ..spec };
        }
        let seconds = i32::try_from(timing.lease_duration.as_secs()).unwrap_or(i32::MAX);
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

fn held(lease: &Lease) -> LeaseState {
    let spec = lease.spec.clone().unwrap_or_default();
    let seconds = spec.lease_duration_seconds.unwrap_or_default();
    LeaseState {
        holder_identity: spec.holder_identity.unwrap_or_default(),
        // Any write of the object shows that its holder is alive, or that another replica holds it.
        renew_time: lease.metadata.resource_version.clone().unwrap_or_default(),
        lease_duration: Duration::from_secs(u64::try_from(seconds).unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use http::{Method, Request, Response};
    use jiff::Timestamp;
    use kube::client::Body;
    use nodekeeper_core::lease::Timing;
    use serde_json::json;
    use tokio::time::sleep;
    use tower::service_fn;

    use super::*;

    /// A server without a Lease that takes three seconds to create one.
    fn slow_server() -> Client {
        let service = service_fn(|request: Request<Body>| async move {
            let status = json!({"kind": "Status", "code": 404, "reason": "NotFound"});
            let (code, body) = if *request.method() == Method::GET {
                (404, status)
            } else {
                sleep(Duration::from_secs(3)).await;
                (201, json!({"metadata": {"name": "lease", "resourceVersion": "1"}, "spec": {}}))
            };
            let body = Body::from(body.to_string().into_bytes());
            Ok::<_, std::io::Error>(Response::builder().status(code).body(body).expect("a response"))
        });
        Client::new(service, "default")
    }

    #[tokio::test(start_paused = true)]
    async fn t01_the_lease_counts_from_when_its_renewal_was_sent() {
        let clock = Clock::new(|| Timestamp::UNIX_EPOCH);
        let candidate = Candidate::new("us".into(), Timing::default());
        let elector = LeaderElector::new(
            slow_server(),
            "default",
            "lease",
            clock.clone(),
            candidate,
            Arc::default(),
            Arc::default(),
        );
        let sent = clock.elapsed();
        elector.acquire().await;
        assert!(clock.elapsed() >= sent + Duration::from_secs(3), "the answer is late");
        let deadline = elector.candidate().lock().write_deadline().expect("it leads");
        assert!(deadline < sent + Duration::from_secs(11), "{deadline:?}: writes end 10 s after {sent:?}");
    }
}
