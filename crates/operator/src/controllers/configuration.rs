//! The configuration controller: applies the objects that the installation brings.
//!
//! Every decision is made from a live read: an object that cannot be parsed is in no cache.

use std::sync::Arc;
use std::time::Duration;

use kube::Api;
use kube::core::DynamicObject;
use nodekeeper_core::api::{NodeGate, RemediationPolicy};
use nodekeeper_core::condition::Finding;
use nodekeeper_core::configured::{ApplyStep, ConfiguredObject, ObjectKey, ObjectKind, finding, next_step};
use nodekeeper_core::gate::GateView;
use nodekeeper_core::remediate::Policy;
use serde::Serialize;
use tracing::info;

use super::{Shared, caches, kinds};
use crate::apply::WriteError;
use crate::runtime::call::{READ_TIMEOUT, call};
use crate::runtime::{Action, Change, ReconcileError, Reconciler};

/// After a write that met a change.
const SOON: Duration = Duration::from_millis(100);
/// How often an object is looked at that is being deleted: a cache may not hold it any more.
const DELETION_PERIOD: Duration = Duration::from_secs(5);

impl Shared {
    fn configured(&self, key: &ObjectKey) -> Option<&ConfiguredObject> {
        self.settings.objects.iter().find(|object| object.key == *key)
    }

    /// The condition `ConfigurationApplied` of an object with this annotation and spec.
    pub(super) fn configuration_finding(
        &self,
        kind: ObjectKind,
        name: &str,
        last_applied: Option<&str>,
        spec: &impl Serialize,
    ) -> Option<Finding> {
        let key = ObjectKey { kind, name: name.to_owned() };
        let failure = self.apply_failures.lock().summary(&key.to_string());
        let failure = failure.as_ref().map(|failure| failure.message.as_str());
        let spec = serde_json::to_value(spec).unwrap_or_default();
        finding(&key, self.configured(&key), last_applied, &spec, failure)
    }

    /// Remembers why an object could not be applied, or that it could, and has its status written. A lost answer counts
    /// once it has been so for a while.
    fn set_apply_failure(&self, key: &ObjectKey, failure: Option<&WriteError>) {
        let (mut failures, key) = (self.apply_failures.lock(), key.to_string());
        let is_news = match failure {
            Some(failure) => {
                let is_refused = !matches!(failure, WriteError::OutcomeUnknown(_));
                let now = self.clock.elapsed();
                failures.insert(&key.as_str().into(), &key, &failure.message(), is_refused, now)
            }
            None => failures.remove(&key).is_some(),
        };
        drop(failures);
        if is_news {
            self.dispatcher.dispatch(&Change::derived(kinds::CONFIGURATION, key.into()));
        }
    }
}

/// Reconciles the objects of the configuration.
pub struct ConfigurationReconciler {
    shared: Arc<Shared>,
}

impl ConfigurationReconciler {
    pub fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    async fn read(&self, key: &ObjectKey) -> Result<Option<DynamicObject>, ReconcileError> {
        let api: Api<DynamicObject> = Api::all_with(self.shared.client.clone(), &key.kind.resource());
        let read = call(READ_TIMEOUT, api.get_opt(&key.name)).await;
        read.map_err(|error| ReconcileError(format!("{key} not read: {error}")))
    }

    /// Writes what differs, and returns what was written; none if nothing was to write.
    async fn apply(
        &self,
        key: &ObjectKey,
        step: &ApplyStep,
        live: Option<&DynamicObject>,
    ) -> Result<Option<DynamicObject>, WriteError> {
        let writer = &self.shared.writer;
        match (step, live) {
            (ApplyStep::Create(object), _) => {
                info!(object = %key, "creating the object of the configuration");
                writer.create_configured(key.kind, object).await.map(Some)
            }
            (ApplyStep::Patch(patch), Some(live)) => {
                info!(object = %key, %patch, "patching the object of the configuration");
                writer.patch_configured(key.kind, live, patch).await.map(Some)
            }
            _ => Ok(None),
        }
    }

    fn store(&self, kind: ObjectKind, written: &DynamicObject) {
        let caches = &self.shared.caches;
        match kind {
            ObjectKind::NodeGate => {
                if let Some(gate) = caches::parse::<NodeGate>(written) {
                    self.shared.apply_response(&caches.gates, GateView::new(&gate));
                }
            }
            ObjectKind::RemediationPolicy => {
                if let Some(policy) =
                    caches::parse::<RemediationPolicy>(written).as_ref().and_then(Policy::new)
                {
                    self.shared.apply_response(&caches.policies, policy);
                }
            }
        }
    }

    /// Whether the object is as it was: then the API server found the write invalid, and trying again soon would not help.
    async fn is_unchanged(&self, key: &ObjectKey, before: Option<&DynamicObject>) -> bool {
        let version = |object: &DynamicObject| object.metadata.resource_version.clone();
        self.read(key).await.is_ok_and(|now| now.as_ref().map(version) == before.map(version))
    }
}

impl Reconciler for ConfigurationReconciler {
    const NAME: &'static str = "configuration";
    type Key = ObjectKey;

    fn needs(&self) -> Vec<&'static str> {
        Vec::new()
    }

    fn keys(&self, change: &Change) -> Vec<ObjectKey> {
        // The status, which changes often, does not matter.
        let (kind, is_same) = match change.kind {
            kinds::GATES => {
                let (before, after) = change.states::<GateView>();
                let state = |gate: &GateView| (gate.uid.clone(), gate.generation, gate.last_applied.clone());
                (ObjectKind::NodeGate, before.map(state) == after.map(state))
            }
            kinds::POLICIES => {
                let (before, after) = change.states::<Policy>();
                let state = |policy: &Policy| {
                    (policy.uid.clone(), policy.generation, policy.annotations.last_applied.clone())
                };
                (ObjectKind::RemediationPolicy, before.map(state) == after.map(state))
            }
            _ => return Vec::new(),
        };
        let key = ObjectKey { kind, name: change.key.to_string() };
        let concerns = !is_same && self.shared.configured(&key).is_some();
        concerns.then_some(key).into_iter().collect()
    }

    fn all_keys(&self) -> Vec<ObjectKey> {
        self.shared.settings.objects.iter().map(|object| object.key.clone()).collect()
    }

    async fn reconcile(&self, key: &ObjectKey) -> Result<Action, ReconcileError> {
        let Some(configured) = self.shared.configured(key) else { return Ok(Action::AwaitChange) };
        let live = self.read(key).await?;
        let step = next_step(configured, live.as_ref());
        match self.apply(key, &step, live.as_ref()).await {
            Ok(written) => {
                if let Some(written) = written {
                    self.store(key.kind, &written);
                }
                self.shared.set_apply_failure(key, None);
                let awaits = step == ApplyStep::AwaitDeletion;
                Ok(if awaits { Action::RequeueAfter(DELETION_PERIOD) } else { Action::AwaitChange })
            }
            Err(error @ WriteError::NotLeader) => Err(ReconcileError(error.to_string())),
            Err(WriteError::Conflict(_)) if !self.is_unchanged(key, live.as_ref()).await => {
                Ok(Action::RequeueAfter(SOON))
            }
            Err(error) => {
                self.shared.set_apply_failure(key, Some(&error));
                Err(ReconcileError(format!("{key} not applied: {error}")))
            }
        }
    }
}
