//! The embedded cluster: API server, clock, network, and clients for them.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::value::{Value, json};

use crate::api::status::ApiError;
use crate::api::{Caller, DeleteOptions, Deleted, Edit, State};
use crate::clock::Clock;
use crate::network::Network;
use crate::resource::Resource;
use crate::store::{ANY, Change, Observer, Snapshot};
use crate::trace::Trace;
use crate::transport::{SentWrite, Transport, WriteObserver};

#[derive(Clone, Debug)]
pub struct Options {
    /// The seed of all random values of the API server.
    pub seed: u64,
    pub clock: Clock,
}

impl Options {
    /// Simulated time, the same in every run.
    #[must_use]
    pub fn simulated(seed: u64) -> Self {
        Self { seed, clock: Clock::simulated() }
    }

    #[must_use]
    pub fn real(seed: u64) -> Self {
        Self { seed, clock: Clock::real() }
    }
}

struct Shared {
    state: Mutex<State>,
    clock: Clock,
    trace: Trace,
    network: Network,
    write_observers: Mutex<Vec<WriteObserver>>,
}

/// An embedded cluster. Clones share it.
#[derive(Clone)]
pub struct Cluster(Arc<Shared>);

impl Cluster {
    /// Creates the default namespaces, priority classes and Service. [`crate::actors::start`] starts the controllers.
    #[must_use]
    pub fn new(options: Options) -> Self {
        let shared = Shared {
            state: Mutex::new(State::new(options.seed)),
            trace: Trace::new(options.clock.clone()),
            clock: options.clock,
            network: Network::default(),
            write_observers: Mutex::default(),
        };
        let cluster = Self(Arc::new(shared));
        cluster.bootstrap();
        cluster
    }

    fn bootstrap(&self) {
        let local = self.local("kube-apiserver");
        for name in ["default", "kube-system", "kube-public", "kube-node-lease"] {
            local.expect_create("v1", "Namespace", "", json!({"metadata": {"name": name}}));
            // The service account controller does this for later namespaces; these must be usable at once.
            local.expect_create("v1", "ServiceAccount", name, json!({"metadata": {"name": "default"}}));
        }
        for (name, value) in
            [("system-node-critical", 2_000_001_000), ("system-cluster-critical", 2_000_000_000)]
        {
            let class = json!({"metadata": {"name": name}, "value": value});
            local.expect_create("scheduling.k8s.io/v1", "PriorityClass", "", class);
        }
        let service = json!({"metadata": {"name": "kubernetes", "labels": {"component": "apiserver", "provider": "kubernetes"}},
            "spec": {"clusterIP": "10.96.0.1", "ports": [{"name": "https", "port": 443, "targetPort": 6443}]}});
        local.expect_create("v1", "Service", "default", service);
    }

    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.0.clock
    }

    #[must_use]
    pub fn trace(&self) -> &Trace {
        &self.0.trace
    }

    /// The network between the nodes, and its outages.
    #[must_use]
    pub fn network(&self) -> &Network {
        &self.0.network
    }

    /// Never hold the guard across an await.
    pub fn state(&self) -> MutexGuard<'_, State> {
        // After a panic in an observer the state is that of the last commit, which is consistent.
        self.0.state.lock()
    }

    /// Calls the observer for each change at its commit, before clients can see it.
    pub fn observe(&self, observer: Observer) {
        self.state().store.observe(observer);
    }

    /// Calls the observer for each write that a client sends through a [`Transport`], once it is answered or lost. It must
    /// not send requests itself.
    pub fn observe_writes(&self, observer: WriteObserver) {
        self.0.write_observers.lock().push(observer);
    }

    pub(crate) fn observed_write(&self, write: SentWrite<'_>) {
        for observer in self.0.write_observers.lock().iter_mut() {
            observer(write);
        }
    }

    /// Backs etcd up.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.state().store.snapshot()
    }

    /// Restores etcd from a backup: resource versions go back, what was written since is lost, and all open watches
    /// end, as when the API server restarts. Observers are not called for the difference.
    pub fn restore(&self, snapshot: Snapshot) {
        let now = self.clock().now();
        self.state().restore(snapshot, "etcd", now);
        self.trace().record(|| "etcd restored from a backup".into());
    }

    /// A client without a socket and without faults. Call it inside a tokio runtime.
    #[must_use]
    pub fn client(&self, user: &str) -> kube::Client {
        Transport::new(self, user).client()
    }

    /// A client for components of the cluster.
    #[must_use]
    pub fn local(&self, user: &str) -> Local {
        Local { cluster: self.clone(), user: user.to_owned() }
    }
}

/// A client without HTTP and without faults, for components of the cluster.
#[derive(Clone)]
pub struct Local {
    cluster: Cluster,
    user: String,
}

impl Local {
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    fn caller(&self) -> Caller {
        Caller::new(&self.user, self.cluster.clock().now())
    }

    fn resource(&self, api_version: &str, kind: &str) -> Result<Arc<Resource>, ApiError> {
        self.cluster.state().resource_of(api_version, kind).ok_or_else(ApiError::no_such_path)
    }

    #[must_use]
    pub fn get(&self, collection: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.cluster.state().store.get(collection, &crate::api::key(namespace, name)).cloned()
    }

    #[must_use]
    pub fn all(&self, collection: &str) -> Vec<Arc<Value>> {
        self.cluster.state().store.all(collection).map(|(_, o)| o.clone()).collect()
    }

    pub fn create(
        &self,
        api_version: &str,
        kind: &str,
        namespace: &str,
        body: impl Into<Value>,
    ) -> Result<Arc<Value>, ApiError> {
        let resource = self.resource(api_version, kind)?;
        self.cluster.state().create(&resource, namespace, body.into(), &self.caller())
    }

    /// Creates an object that is valid by construction.
    fn expect_create(&self, api_version: &str, kind: &str, namespace: &str, body: Value) {
        if let Err(error) = self.create(api_version, kind, namespace, body) {
            unreachable!("the initial objects are valid: {error}");
        }
    }

    /// Updates the current state of an object, or one of its subresources.
    pub fn change(
        &self,
        object: &Value,
        subresource: Option<&str>,
        change: impl FnOnce(&mut Value),
    ) -> Result<Arc<Value>, ApiError> {
        use crate::object::{name, namespace, text, uid};
        let resource = self.resource(text(object, "apiVersion"), text(object, "kind"))?;
        let target = (namespace(object), name(object));
        let mut state = self.cluster.state();
        if uid(&*state.get(&resource, target.0, target.1)?) != uid(object) {
            let detail = "the object was replaced by another of its name";
            return Err(ApiError::conflict(&resource, target.1, detail));
        }
        state.update(&resource, target, subresource, Edit::With(Box::new(change)), &self.caller())
    }

    /// Deletes an object, with its uid as a precondition.
    pub fn delete(&self, object: &Value, grace: Option<i64>) -> Result<Deleted, ApiError> {
        use crate::object::{name, namespace, text, uid};
        let resource = self.resource(text(object, "apiVersion"), text(object, "kind"))?;
        let options = DeleteOptions { grace, uid: Some(uid(object).to_owned()), ..DeleteOptions::default() };
        let target = (namespace(object), name(object));
        self.cluster.state().delete(&resource, target, &options, &self.caller())
    }

    /// Evicts a pod, with its uid as a precondition.
    pub fn evict(&self, pod: &Value) -> Result<(), ApiError> {
        use crate::object::{name, namespace, uid};
        let pods = self.resource("v1", "Pod")?;
        let eviction =
            json!({"metadata": {"name": name(pod)}, "deleteOptions": {"preconditions": {"uid": uid(pod)}}});
        let target = (namespace(pod), name(pod));
        self.cluster.state().evict(&pods, target, eviction, &self.caller())
    }

    /// Watches the changes of some collections, or of [`ANY`], from now on.
    #[must_use]
    pub fn watch(&self, collections: &[&str]) -> ChangeWatch {
        let mut state = self.cluster.state();
        let (seen, epoch) = (state.store.revision(), state.store.epoch());
        let wake = collections.iter().map(|c| state.store.changes_of(c)).collect();
        let collections = collections.iter().map(ToString::to_string).collect();
        drop(state);
        ChangeWatch { cluster: self.cluster.clone(), collections, wake, seen, epoch }
    }
}

/// A position in the log of changes.
pub struct ChangeWatch {
    cluster: Cluster,
    collections: Vec<String>,
    wake: Vec<Arc<tokio::sync::Notify>>,
    seen: u64,
    epoch: u64,
}

impl ChangeWatch {
    /// The changes since the last call, without waiting.
    pub fn drain(&mut self) -> Vec<Arc<Change>> {
        let state = self.cluster.state();
        let wanted =
            |c: &&Arc<Change>| self.collections.iter().any(|name| *name == c.collection || name == ANY);
        let is_restored = self.epoch != state.store.epoch();
        let restored = if is_restored { state.store.restored() } else { &[] };
        let since = if is_restored { state.store.compacted() } else { self.seen };
        let changes = restored.iter().chain(state.store.since(since)).filter(wanted);
        let changes = changes.cloned().collect();
        self.epoch = state.store.epoch();
        self.seen = state.store.revision();
        changes
    }

    /// Waits for the next changes.
    pub async fn next(&mut self) -> Vec<Arc<Change>> {
        loop {
            let wake = self.wake.clone();
            let mut woken: Vec<_> = wake.iter().map(|w| Box::pin(w.notified())).collect();
            // Registers before it reads, so that no change is missed in between.
            for waiter in &mut woken {
                waiter.as_mut().enable();
            }
            let changes = self.drain();
            if !changes.is_empty() {
                return changes;
            }
            futures::future::select_all(woken).await;
        }
    }
}
