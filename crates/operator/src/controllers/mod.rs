//! The controllers. Each observes, lets `core` decide, and applies the effects of the decision.

mod caches;
mod configuration;
mod daemon_pods;
mod gate;
mod gate_status;
mod policy;
mod remediation;
mod rights;

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client, Resource};
use nodekeeper_core::api::{NodeRemediation, RemediationPolicy};
use nodekeeper_core::fleet::{FailedWrites, FleetIndex};
use nodekeeper_core::limits::WorkerLimiter;
use nodekeeper_core::node::PartialNode;
use nodekeeper_core::remediate::{Policy, Remediation, Right, Target};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;

use crate::agent::AgentParts;
use crate::apply::{WorkerPods, WritePermit, Writer};
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::run::Settings;
use crate::runtime::call::{CallError, READ_TIMEOUT, call};
use crate::runtime::manager::Manager;
use crate::runtime::reconciler::Controller;
use crate::runtime::{Cache, Cached, Change, Dispatcher, controller};

pub use caches::Caches;
pub(crate) use caches::{parse, untyped};

/// The names of the kinds that are watched, and of figures that are derived from them.
pub mod kinds {
    pub const NODES: &str = "nodes";
    pub const WORKERS: &str = "workers";
    pub const GATES: &str = "gates";
    pub const CONTROLS: &str = "controls";
    pub const REMEDIATIONS: &str = "remediations";
    pub const POLICIES: &str = "policy";
    /// Pods of agents.
    pub const AGENTS: &str = "agents";
    /// Pods of DaemonSets on a node; the key is the node's name.
    pub const DAEMON_PODS: &str = "daemon pods";
    /// The counts of a gate's nodes, or whether its workers can run; the key is the gate's name.
    pub const GATE_COUNTS: &str = "gate counts";
    /// Whether an object of the configuration could be applied; the key is its kind and name.
    pub const CONFIGURATION: &str = "configuration";
}

/// What the controllers of one replica share.
pub struct Shared {
    pub client: Client,
    pub clock: Clock,
    pub caches: Arc<Caches>,
    pub writer: Arc<Writer>,
    pub pods: Arc<WorkerPods>,
    pub metrics: Arc<Metrics>,
    pub dispatcher: Dispatcher,
    rights: rights::Rights,
    /// Why objects of the configuration could not be applied.
    apply_failures: Mutex<FailedWrites>,
    pub settings: Settings,
    /// What an agent has instead of worker pods and watched gates; none in the controller.
    pub agent: Option<AgentParts>,
}

/// What the controllers of one term share.
pub struct TermState {
    pub fleet: Arc<Mutex<FleetIndex>>,
    pub limiter: Mutex<WorkerLimiter>,
    pub failed_writes: Mutex<FailedWrites>,
    /// What the API server has not accepted, for the condition of the policy: of the policy controller under
    /// [`Policy::NAME`], and the statuses of remediations.
    policy_writes: Mutex<FailedWrites>,
}

impl TermState {
    /// Remembers that a write which the policy's condition reports failed, and whether it was refused, or that all were
    /// accepted.
    fn remember_policy_write(&self, shared: &Shared, name: &str, failed: Option<(String, bool)>) {
        let mut writes = self.policy_writes.lock();
        let is_news = match failed {
            Some((message, is_refused)) => {
                writes.insert(&name.into(), Policy::NAME, &message, is_refused, shared.clock.elapsed())
            }
            None => writes.remove(name).is_some(),
        };
        drop(writes);
        if is_news {
            shared.dispatcher.dispatch(&Change::derived(kinds::CONFIGURATION, Policy::NAME.into()));
        }
    }
}

impl Shared {
    pub fn new(
        client: &Client,
        settings: &Settings,
        caches: Caches,
        manager: &Manager,
        permit: WritePermit,
    ) -> Self {
        let clock = manager.clock().clone();
        Self {
            client: client.clone(),
            clock: clock.clone(),
            caches: Arc::new(caches),
            writer: Arc::new(Writer::new(client.clone(), clock, permit, &settings.identity)),
            pods: Arc::new(WorkerPods { template: settings.template.clone() }),
            metrics: settings.metrics.clone(),
            dispatcher: manager.dispatcher(),
            rights: rights::Rights::default(),
            apply_failures: Mutex::default(),
            settings: settings.clone(),
            agent: None,
        }
    }

    /// Puts the response to a request of ours into its cache, and tells all controllers.
    fn apply_response<V: Cached>(&self, cache: &Cache<V>, object: V) {
        if let Some(change) = cache.apply_response(object, self.clock.elapsed()) {
            self.dispatcher.dispatch(&change);
        }
    }

    fn apply_node(&self, node: &PartialNode) {
        self.apply_response(&self.caches.nodes, self.caches.view_node(node));
    }

    /// Reads a custom resource from the API server, past the cache.
    /// One that cannot be parsed is treated as if it were not there.
    async fn get<K>(&self, name: &str) -> Result<Option<K>, CallError>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned,
    {
        let object = call(READ_TIMEOUT, caches::untyped::<K>(&self.client).get_opt(name)).await?;
        Ok(object.and_then(|object| caches::parse(&object)))
    }

    async fn get_policy(&self) -> Result<Option<Policy>, CallError> {
        let policy = self.get::<RemediationPolicy>(Policy::NAME).await?;
        Ok(policy.and_then(|policy| Policy::new(&policy)))
    }

    /// The permissions that acts under this policy need, and that the controller does not have.
    async fn missing_rights(&self, policy: Option<&Policy>) -> Vec<Right> {
        self.rights.missing(&self.writer, &self.clock, policy).await
    }

    /// Whether the policy is still the one that was read. Then a write that failed with a conflict was refused. Otherwise the
    /// cache takes in what was read: the watch may say nothing for minutes, and the next write would fail as well.
    async fn is_policy_unchanged(&self, policy: &Policy) -> bool {
        match self.get_policy().await {
            Ok(Some(now)) => {
                let is_same = now.resource_version == policy.resource_version;
                self.apply_response(&self.caches.policies, now);
                is_same
            }
            Ok(None) => {
                self.caches.policies.lock().remove_until(Policy::NAME, &policy.resource_version);
                false
            }
            Err(_) => false,
        }
    }

    /// The same for a remediation.
    async fn is_remediation_unchanged(&self, remediation: &Remediation) -> bool {
        match self.get::<NodeRemediation>(&remediation.name).await {
            Ok(Some(now)) => {
                let now = Remediation::new(&now);
                let is_same =
                    (&now.uid, &now.resource_version) == (&remediation.uid, &remediation.resource_version);
                self.apply_response(&self.caches.remediations, now);
                is_same
            }
            Ok(None) => {
                self.caches
                    .remediations
                    .lock()
                    .remove_until(&remediation.name, &remediation.resource_version);
                false
            }
            Err(_) => false,
        }
    }

    /// Whether a node is still the one that was read.
    async fn is_node_unchanged(&self, target: &Target) -> bool {
        let now = self.get_node(&target.identity.name).await.ok().flatten();
        now.is_some_and(|now| now.metadata.resource_version.as_ref() == Some(&target.resource_version))
    }

    /// Reads a node from the API server, past the cache.
    async fn get_node(&self, name: &str) -> Result<Option<Node>, CallError> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        call(READ_TIMEOUT, nodes.get_opt(name)).await
    }
}

fn begin_term(shared: &Shared) -> Arc<TermState> {
    shared.caches.forget_unwatched_workers();
    let fleet: Arc<Mutex<FleetIndex>> = Arc::default();
    shared.metrics.set_fleet(fleet.clone());
    let limiter = Mutex::new(WorkerLimiter::new(shared.settings.most_workers));
    let failed_writes = Mutex::default();
    Arc::new(TermState { fleet, limiter, failed_writes, policy_writes: Mutex::default() })
}

/// Makes the controllers of an agent.
pub fn build_agent(shared: &Arc<Shared>) -> Vec<Arc<dyn Controller>> {
    vec![controller(gate::GateReconciler::new(shared.clone(), begin_term(shared)))]
}

/// Makes the controllers of one term.
pub fn build(shared: &Arc<Shared>) -> Vec<Arc<dyn Controller>> {
    let term = begin_term(shared);
    vec![
        controller(configuration::ConfigurationReconciler::new(shared.clone())),
        controller(gate::GateReconciler::new(shared.clone(), term.clone())),
        controller(gate_status::GateStatusReconciler::new(shared.clone(), term.clone())),
        controller(remediation::RemediationReconciler::new(shared.clone(), term.clone())),
        controller(policy::PolicyReconciler::new(shared.clone(), term)),
    ]
}
