//! The only place that writes to the API server, besides the Lease in `runtime/leader.rs`: one file for each kind.
//!
//! Every write is guarded, so that it lands only on the object, boot and list that it was decided for. Functions return
//! what the API server answered; who keeps caches puts it there.

#![expect(clippy::disallowed_methods, reason = "this is the one writer")]

mod access;
mod configured;
mod event;
mod gate;
mod node;
mod node_claim;
mod pod;
mod policy;
mod remediation;

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use kube::api::{DeleteParams, Preconditions};
use kube::{Api, Client, Resource};
use nodekeeper_core::lease::Candidate;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::clock::Clock;
use crate::runtime::call::{CallError, WRITE_TIMEOUT, call};

pub use pod::{CreatedWorker, Eviction, WorkerPods};

/// Why a write was not made, or why its outcome is not known.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    #[error("this replica does not hold the lease")]
    NotLeader,
    /// The object is no longer what the decision was made for, or the API server finds the write invalid. Reading the
    /// object again tells the two apart: a failed JSON Patch `test` is a 422, as an invalid object is.
    #[error("conflict: {0}")]
    Conflict(String),
    #[error("not found: {0}")]
    Gone(String),
    #[error("outcome unknown: {0}")]
    OutcomeUnknown(String),
    #[error("refused: {0}")]
    Refused(String),
}

impl WriteError {
    /// What the API server answered, or why it did not.
    pub fn message(&self) -> String {
        match self {
            Self::NotLeader => self.to_string(),
            Self::Conflict(message)
            | Self::Gone(message)
            | Self::OutcomeUnknown(message)
            | Self::Refused(message) => message.clone(),
        }
    }
}

impl From<CallError> for WriteError {
    fn from(error: CallError) -> Self {
        let message = error.to_string();
        match error.code() {
            Some(404) => Self::Gone(message),
            Some(409 | 410 | 412 | 422) => Self::Conflict(message),
            // The request may succeed later.
            None | Some(401 | 408 | 429) => Self::OutcomeUnknown(message),
            Some(400..=499) => Self::Refused(message),
            Some(_) => Self::OutcomeUnknown(message),
        }
    }
}

/// Who may write.
#[derive(Clone)]
pub enum WritePermit {
    /// The holder of the Lease, as long as it was renewed in time.
    Lease(Arc<Mutex<Candidate>>),
    /// An agent, which writes only its own node.
    Always,
}

impl WritePermit {
    fn check(&self, clock: &Clock) -> Result<(), WriteError> {
        let permitted = match self {
            Self::Lease(candidate) => candidate.lock().may_write(clock.elapsed()),
            Self::Always => true,
        };
        if permitted { Ok(()) } else { Err(WriteError::NotLeader) }
    }
}

/// Writes, as long as the permit allows it.
pub struct Writer {
    client: Client,
    clock: Clock,
    permit: WritePermit,
    /// The identity of this replica in Events.
    instance: String,
    /// Keeps the names of two Events within a microsecond apart.
    events: AtomicU32,
}

impl Writer {
    pub fn new(client: Client, clock: Clock, permit: WritePermit, instance: &str) -> Self {
        let instance = instance.chars().take(128).collect();
        Self { client, clock, permit, instance, events: AtomicU32::new(0) }
    }

    /// Sends one write, if this replica may write now.
    async fn write<T>(&self, request: impl Future<Output = kube::Result<T>>) -> Result<T, WriteError> {
        self.permit.check(&self.clock)?;
        Ok(call(WRITE_TIMEOUT, request).await?)
    }

    fn all<K: Resource<DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }
}

/// A deletion of the object with this uid and of no other of its name. An object that is gone already counts as deleted.
fn deleted<T>(answer: Result<T, WriteError>) -> Result<(), WriteError> {
    match answer {
        Ok(_) | Err(WriteError::Gone(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

fn with_uid(uid: &str) -> DeleteParams {
    let preconditions = Preconditions { uid: Some(uid.to_owned()), ..Preconditions::default() };
    DeleteParams::default().preconditions(preconditions)
}

fn json_patch(operations: &[Value]) -> Result<kube::api::Patch<()>, WriteError> {
    let patch = serde_json::from_value(json!(operations));
    patch.map(kube::api::Patch::Json).map_err(|error| WriteError::Refused(error.to_string()))
}

fn test_uid(uid: &str) -> Value {
    json!({"op": "test", "path": "/metadata/uid", "value": uid})
}

fn test_version(version: &str) -> Value {
    json!({"op": "test", "path": "/metadata/resourceVersion", "value": version})
}

/// Escapes a key for a JSON Pointer.
fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;
    use kube::core::Status;
    use nodekeeper_core::lease::Timing;

    use super::*;

    #[tokio::test]
    async fn the_lease_permits_writes_until_its_deadline_and_an_agent_always() {
        let clock = Clock::new(|| Timestamp::UNIX_EPOCH);
        let candidate = Arc::new(Mutex::new(Candidate::new("us".into(), Timing::default())));
        let permit = WritePermit::Lease(candidate.clone());
        assert!(matches!(permit.check(&clock), Err(WriteError::NotLeader)));
        assert!(WritePermit::Always.check(&clock).is_ok());
        candidate.lock().record_renewal(clock.elapsed());
        assert!(permit.check(&clock).is_ok());
        candidate.lock().record_loss();
        assert!(permit.check(&clock).is_err());
    }

    #[test]
    fn t02_answers_of_the_api_server_have_classes() {
        let class = |code: u16| {
            let status = Status { code, ..Status::default() };
            WriteError::from(CallError::Status(Box::new(status)))
        };
        assert!(matches!(class(404), WriteError::Gone(_)));
        for code in [409, 410, 412, 422] {
            assert!(matches!(class(code), WriteError::Conflict(_)), "{code}");
        }
        for code in [400, 403, 413] {
            assert!(matches!(class(code), WriteError::Refused(_)), "{code}");
        }
        for code in [401, 408, 429, 500, 503] {
            assert!(matches!(class(code), WriteError::OutcomeUnknown(_)), "{code}");
        }
        let timeout = WriteError::from(CallError::Timeout(Duration::from_secs(4)));
        assert!(matches!(timeout, WriteError::OutcomeUnknown(_)));
    }
}
