//! The watches behind the caches: when they start, and how their events reach a cache.

use std::fmt::Debug;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use futures::stream::{AbortHandle, BoxStream, StreamExt as _, abortable};
use kube::api::ListParams;
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

use super::cache::{Cache, CacheState as _};
use super::call::{CallError, READ_TIMEOUT, call};
use super::reconciler::Change;
use super::store::{Cached, parse_version};
use super::watcher::{self, Projection, Selector};
use crate::clock::Clock;

/// An event of a watch that applies itself to its cache, given the time and whether changes are wanted.
pub type Update = Box<dyn FnOnce(Duration, bool) -> Vec<Change> + Send>;

/// The watches of one kind.
pub trait Source: Send {
    /// Starts and ends watches as needed, and returns the streams to poll from now on.
    fn sync(&mut self) -> Vec<BoxStream<'static, Update>>;

    /// Called when this replica begins or ends to lead.
    fn leadership_changed(&mut self) {}
}

/// Whether a watch may start, should go on, or has to start again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    Wait,
    Keep,
    Restart,
}

/// Decides about the start of a watch whose projection depends on another cache.
pub type StartCondition = Box<dyn FnMut(bool) -> Start + Send>;

/// The newest resourceVersion of a kind, read from the API server.
pub type Latest = Box<dyn Fn() -> BoxFuture<'static, Result<u64, CallError>> + Send + Sync>;

/// Reads the newest resourceVersion with a list of one object.
#[must_use]
pub fn latest<K>(api: Api<K>, selector: &Selector) -> Latest
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    let params = ListParams {
        label_selector: selector.labels.clone(),
        field_selector: selector.fields.clone(),
        ..ListParams::default().limit(1)
    };
    Box::new(move || {
        let (api, params) = (api.clone(), params.clone());
        async move {
            let list = call(READ_TIMEOUT, api.list(&params)).await?;
            Ok(parse_version(&list.metadata.resource_version.unwrap_or_default()))
        }
        .boxed()
    })
}

/// The watch of one kind into one cache.
pub struct CachedSource<K, V> {
    pub api: Api<K>,
    pub selector: Selector,
    pub projection: Projection<K, V>,
    pub condition: Option<StartCondition>,
    pub cache: Cache<V>,
    pub clock: Clock,
    pub seed: u64,
    pub running: Option<AbortHandle>,
}

impl<K, V> Source for CachedSource<K, V>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    V: Cached,
{
    fn sync(&mut self) -> Vec<BoxStream<'static, Update>> {
        let is_running = self.running.is_some();
        let start = match &mut self.condition {
            Some(condition) => condition(is_running),
            None if is_running => Start::Keep,
            None => Start::Restart,
        };
        let relist = is_running && self.cache.take_relist_request();
        match start {
            Start::Restart => self.cache.lock().mark_unsynced(),
            Start::Keep if relist => {}
            Start::Wait | Start::Keep => return Vec::new(),
        }
        if let Some(running) = self.running.take() {
            running.abort();
        }
        let events = watcher::watch(
            self.api.clone(),
            self.cache.kind(),
            self.selector.clone(),
            self.projection.clone(),
            self.clock.clone(),
            self.seed,
        );
        let cache = self.cache.clone();
        let (updates, handle) = abortable(events.map(move |event| {
            let cache = cache.clone();
            Box::new(move |now, wanted| cache.handle_event(event, now, wanted)) as Update
        }));
        self.running = Some(handle);
        vec![updates.boxed()]
    }
}
