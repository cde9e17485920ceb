//! The cluster as one handle: the API server's state, its clock, and the way in for everybody.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

use crate::api::status::ApiError;
use crate::api::{Caller, DeleteOptions, Deleted, Edit, State};
use crate::clock::Clock;
use crate::network::Network;
use crate::resource::Resource;
use crate::store::{ANY, Change, Observer, Snapshot};
use crate::trace::Trace;
use crate::transport::Transport;

/// How a cluster is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// All randomness of the server comes from it.
    pub seed: u64,
    /// Its time.
    pub clock: Clock,
}

impl Options {
    /// Simulated time, the same in every run.
    #[must_use]
    pub fn simulated(seed: u64) -> Self {
        Self { seed, clock: Clock::simulated() }
    }

    /// The time it is.
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
}

/// An embedded cluster. Clones are the same cluster.
#[derive(Clone)]
pub struct Cluster(Arc<Shared>);

impl Cluster {
    /// A cluster with the namespaces and priority classes that every cluster has, and nobody at work in it:
    /// [`crate::actors::start`] does that.
    #[must_use]
    pub fn new(options: Options) -> Self {
        let shared = Shared {
            state: Mutex::new(State::new(options.seed)),
            trace: Trace::new(options.clock.clone()),
            clock: options.clock,
            network: Network::default(),
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

    /// The server's clock.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.0.clock
    }

    /// What observations so far.
    #[must_use]
    pub fn trace(&self) -> &Trace {
        &self.0.trace
    }

    /// The network between the nodes, and its outages.
    #[must_use]
    pub fn network(&self) -> &Network {
        &self.0.network
    }

    /// The state, for as long as the guard lives. Never hold it over an await.
    pub fn state(&self) -> MutexGuard<'_, State> {
        // A panic in an observer leaves the state as the last commit made it, which is consistent.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets user look at each change as it is committed, before anybody else can see it.
    pub fn observe(&self, observer: Observer) {
        self.state().store.observe(observer);
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

    /// A client without a socket, without faults. To be called inside a tokio runtime.
    #[must_use]
    pub fn client(&self, user: &str) -> kube::Client {
        Transport::new(self, user).client()
    }

    /// Direct access for the actors of the cluster itself.
    #[must_use]
    pub fn local(&self, user: &str) -> Local {
        Local { cluster: self.clone(), user: user.to_owned() }
    }
}

/// The API without HTTP and without faults, for those who live inside the cluster.
#[derive(Clone)]
pub struct Local {
    cluster: Cluster,
    user: String,
}

impl Local {
    /// The cluster it belongs to.
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

    /// One object.
    #[must_use]
    pub fn get(&self, collection: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.cluster.state().store.get(collection, &crate::api::key(namespace, name)).cloned()
    }

    /// All objects of a collection.
    #[must_use]
    pub fn all(&self, collection: &str) -> Vec<Arc<Value>> {
        self.cluster.state().store.all(collection).map(|(_, o)| o.clone()).collect()
    }

    /// Makes an object.
    pub fn create(
        &self,
        api_version: &str,
        kind: &str,
        namespace: &str,
        body: Value,
    ) -> Result<Arc<Value>, ApiError> {
        let resource = self.resource(api_version, kind)?;
        self.cluster.state().create(&resource, namespace, body, &self.caller())
    }

    /// Makes an object that cannot be refused, at the start of the cluster.
    fn expect_create(&self, api_version: &str, kind: &str, namespace: &str, body: Value) {
        if let Err(error) = self.create(api_version, kind, namespace, body) {
            unreachable!("the first objects of a cluster are valid: {error}");
        }
    }

    /// Changes an object of this kind as it is now, main part or a subresource.
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

    /// Deletes this incarnation of an object.
    pub fn delete(&self, object: &Value, grace: Option<i64>) -> Result<Deleted, ApiError> {
        use crate::object::{name, namespace, text, uid};
        let resource = self.resource(text(object, "apiVersion"), text(object, "kind"))?;
        let options = DeleteOptions { grace, uid: Some(uid(object).to_owned()), ..DeleteOptions::default() };
        let target = (namespace(object), name(object));
        self.cluster.state().delete(&resource, target, &options, &self.caller())
    }

    /// Evicts this incarnation of a pod, if its budget lets it go.
    pub fn evict(&self, pod: &Value) -> Result<(), ApiError> {
        use crate::object::{name, namespace, uid};
        let pods = self.resource("v1", "Pod")?;
        let eviction =
            json!({"metadata": {"name": name(pod)}, "deleteOptions": {"preconditions": {"uid": uid(pod)}}});
        let target = (namespace(pod), name(pod));
        self.cluster.state().evict(&pods, target, eviction, &self.caller())
    }

    /// The changes of some collections, or of [`ANY`], from now on.
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

/// A place in the log that moves as it is read.
pub struct ChangeWatch {
    cluster: Cluster,
    collections: Vec<String>,
    wake: Vec<Arc<tokio::sync::Notify>>,
    seen: u64,
    epoch: u64,
}

impl ChangeWatch {
    /// What changed since the last call, without waiting.
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

    /// What changed since the last call, as soon as there is something.
    pub async fn next(&mut self) -> Vec<Arc<Change>> {
        loop {
            let wake = self.wake.clone();
            let mut woken: Vec<_> = wake.iter().map(|w| Box::pin(w.notified())).collect();
            // Enlist before looking, so that a change in between is not missed.
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
