//! The API server: it turns requests into objects and errors. It is synchronous and has no clock.

mod bind;
mod decode;
mod delete;
mod discovery;
mod dispatch;
mod evict;
mod identity;
mod list;
mod patch;
pub mod quantity;
mod request;
mod review;
pub mod schema;
mod selector;
pub mod status;
mod table;
mod watch;
mod write;

pub use delete::{DeleteOptions, Deleted, Propagation};
pub use dispatch::Answer;
pub(crate) use evict::{BUDGETS, set_disruption_allowed};
pub use request::{Query, Request, Verb};
pub use review::is_review;
pub(crate) use review::review;
pub(crate) use selector::Labels;
pub use table::Shape;
pub use watch::{Next, Watch};
pub use write::Edit;

use std::sync::Arc;

use crate::value::Value;
use jiff::Timestamp;

use crate::registry;
use crate::resource::Resource;
use crate::resources::builtin;
use crate::store::{Origin, Snapshot, Store};
use status::ApiError;

/// The user of a request, and its options that apply to all verbs.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Also the name in the trace and for invariants.
    pub user: String,
    /// The API server's time.
    pub now: Timestamp,
    /// When the client sent the request.
    pub sent: Timestamp,
    /// Whether the request was under way for longer than its client waited.
    pub is_delayed: bool,
    /// Validate the request and change nothing.
    pub dry_run: bool,
    /// Refuse unknown fields (`fieldValidation=Strict`).
    pub strict: bool,
}

impl Caller {
    #[must_use]
    pub fn new(user: &str, now: Timestamp) -> Self {
        Self { user: user.to_owned(), now, sent: now, is_delayed: false, dry_run: false, strict: false }
    }

    fn origin(&self) -> Origin<'_> {
        Origin { user: &self.user, sent: self.sent, is_delayed: self.is_delayed }
    }
}

/// The state of the API server: stored objects and served resources.
pub struct State {
    pub store: Store,
    resources: Vec<Arc<Resource>>,
    random: fastrand::Rng,
    /// Whether the writes of components of the cluster are decoded too, which is slow.
    pub checks_components: bool,
}

impl State {
    /// Uids and generated names come from the seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let resources = builtin().into_iter().map(Arc::new).collect();
        Self {
            store: Store::new(),
            resources,
            random: fastrand::Rng::with_seed(seed),
            checks_components: false,
        }
    }

    pub fn resources(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.resources.iter()
    }

    #[must_use]
    pub fn resource(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Resource>> {
        let found =
            self.resources.iter().find(|r| r.group == group && r.version == version && r.plural == plural);
        found.cloned()
    }

    #[must_use]
    pub fn resource_of(&self, api_version: &str, kind: &str) -> Option<Arc<Resource>> {
        self.resources.iter().find(|r| r.kind == kind && r.has_api_version(api_version)).cloned()
    }

    #[must_use]
    pub fn resource_in(&self, collection: &str) -> Option<Arc<Resource>> {
        self.resources.iter().find(|r| !r.is_view() && r.collection() == collection).cloned()
    }

    /// Restores a backup of the store and serves the CRDs that are in it.
    pub fn restore(&mut self, snapshot: Snapshot, user: &str, now: Timestamp) {
        self.store.restore(snapshot, user, now);
        self.reload_definitions();
    }

    /// Serves the resources of the stored CRDs.
    fn reload_definitions(&mut self) {
        let definitions: Vec<Arc<Value>> = self
            .store
            .all("apiextensions.k8s.io/customresourcedefinitions")
            .map(|(_, d)| d.clone())
            .collect();
        self.resources.retain(|r| !r.is_custom());
        let custom = definitions.iter().flat_map(|d| registry::resource_of(d)).map(Arc::new);
        self.resources.extend(custom);
    }

    fn new_uid(&mut self) -> String {
        let n = self.random.u128(..);
        let hex = format!("{n:032x}");
        let variant = ['8', '9', 'a', 'b'][usize::from(self.random.u8(0..4))];
        format!("{}-{}-4{}-{variant}{}-{}", &hex[..8], &hex[8..12], &hex[13..16], &hex[17..20], &hex[20..])
    }

    fn name_suffix(&mut self) -> String {
        const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        (0..5).map(|_| char::from(LETTERS[self.random.usize(..LETTERS.len())])).collect()
    }

    pub fn get(&self, resource: &Resource, namespace: &str, name: &str) -> Result<Arc<Value>, ApiError> {
        let found = self.store.get(resource.collection(), &key(namespace, name));
        found.cloned().ok_or_else(|| ApiError::not_found(resource, name))
    }
}

/// The storage key: `name` or `namespace/name`.
#[must_use]
pub fn key(namespace: &str, name: &str) -> String {
    if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") }
}
