//! Lists and watches one collection of the API server as a stream of small projections.
//!
//! Built on `Api::watch` and not on `kube::runtime::watcher`, which reconnects without a pause when the server ends its
//! watches at once, repeats a resourceVersion that the server refuses (a 410 as the answer), and forgets its backoff
//! while lists fail. None of these can be mended from outside of it.

use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::stream::{self, BoxStream, Peekable, Stream, StreamExt as _};
use kube::api::{ListParams, WatchEvent as RawEvent, WatchParams};
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use super::call::call;
use crate::clock::Clock;

/// The server is asked to keep a watch open for so long.
const WATCH_SECONDS: u32 = 290;
/// A watch without any event for longer is considered broken, although its connection is open. The API server sends a
/// bookmark about every minute.
const MAX_SILENCE: Duration = Duration::from_secs(150);
/// For the first line of an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// The bookmark that ends a streamed list carries this annotation.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";
/// After so many streamed lists in a row that broke off, the next list is read in pages: each is an answer of its own.
const MAX_BROKEN_LISTS: u32 = 2;
/// The page size where the server does not stream lists.
const PAGE_SIZE: u32 = 100;
/// So long a change may wait for those that follow it.
const GATHERED_FOR: Duration = Duration::from_millis(100);
const FIRST_BACKOFF: Duration = Duration::from_millis(500);
const LONGEST_BACKOFF: Duration = Duration::from_secs(30);
/// The same for a watch that the server accepted and that broke: until it goes on, we act on what is old.
const LONGEST_BACKOFF_OPEN: Duration = Duration::from_secs(5);
/// The end of a watch that lived for so long resets the backoff.
const HEALTHY: Duration = Duration::from_secs(30);

/// An event of a watched collection. Each carries the resourceVersion that the watch has reached with it.
#[derive(Debug)]
pub enum WatchEvent<V> {
    /// A list begins. What a list before it brought is no part of it.
    ListStarted,
    /// An object of the list.
    Listed(V),
    /// The list is complete: what it did not bring is not there any more.
    ListEnded(String),
    /// An object was added or modified.
    Applied(V, String),
    /// The object of this name was deleted, or its projection no longer keeps it.
    Deleted(String, String),
    /// Nothing else happened up to this resourceVersion.
    Bookmark(String),
    /// The API server does not serve the optional kind or forbids to read it. It counts as empty until it is served.
    NotServed,
}

/// Turns an object into what is kept of it, or into nothing if it is of no interest.
pub type Projection<K, V> = Arc<dyn Fn(&K) -> Option<V> + Send + Sync>;

/// Selects a part of a collection, and how it is watched; everything, and at once, by default.
#[derive(Clone, Debug, Default)]
pub struct Selector {
    pub labels: Option<String>,
    pub fields: Option<String>,
    /// Changes that follow another one are received together, up to [`GATHERED_FOR`] later: for collections that change
    /// all the time, where most of the cost is to wake up.
    pub gathers: bool,
    /// A server that does not serve the kind, or forbids to read it, is treated as if there were no objects.
    pub optional: bool,
}

/// Watches a collection for ever.
pub fn watch<K, V>(
    api: Api<K>,
    kind: &'static str,
    selector: Selector,
    projection: Projection<K, V>,
    clock: Clock,
    seed: u64,
) -> impl Stream<Item = WatchEvent<V>> + Send
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    V: Send + 'static,
{
    let watcher = Watcher {
        api,
        kind,
        selector,
        projection,
        clock,
        random: fastrand::Rng::with_seed(seed),
        state: WatchState::Empty,
        streams_lists: true,
        broken_lists: 0,
        backoff: Duration::ZERO,
        since: Duration::ZERO,
        reported_not_served: false,
    };
    stream::unfold(watcher, |mut watcher| async move {
        let event = watcher.next().await;
        Some((event, watcher))
    })
}

type Lines<K> = Pin<Box<Peekable<BoxStream<'static, kube::Result<RawEvent<K>>>>>>;

enum WatchState<K, V> {
    /// Nothing is known.
    Empty,
    /// A streamed list is being received.
    InitialEvents(Lines<K>),
    /// A list is read in pages.
    Pages(Page<V>),
    /// Everything up to a resourceVersion is known, and no watch is open.
    Listed(String),
    /// A watch is open.
    Watching(Lines<K>, String),
}

/// What is left of a page, and how the list goes on.
struct Page<V> {
    rest: std::vec::IntoIter<V>,
    /// The token of the next page; none after the last.
    next: Option<String>,
    version: String,
}

struct Watcher<K, V> {
    api: Api<K>,
    kind: &'static str,
    selector: Selector,
    projection: Projection<K, V>,
    clock: Clock,
    random: fastrand::Rng,
    state: WatchState<K, V>,
    streams_lists: bool,
    /// Streamed lists in a row that broke off; the one that is being received counts until it is complete.
    broken_lists: u32,
    backoff: Duration,
    /// When the last request was answered.
    since: Duration,
    reported_not_served: bool,
}

/// Why a step failed, and from where to continue.
enum WatchError {
    /// Continue from the last resourceVersion.
    Resume(String),
    /// List again.
    Relist(String),
    /// List again; an optional kind counts as empty until then.
    NotServed(String),
}

impl<K, V> Watcher<K, V>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    V: Send + 'static,
{
    async fn next(&mut self) -> WatchEvent<V> {
        loop {
            match self.step().await {
                Ok(Some(event)) => return event,
                Ok(None) => {}
                Err(WatchError::NotServed(why)) if self.selector.optional && !self.reported_not_served => {
                    warn!(kind = self.kind, why, "kind not served; continuing without it");
                    self.reported_not_served = true;
                    return WatchEvent::NotServed;
                }
                Err(error) => self.recover(error).await,
            }
        }
    }

    async fn step(&mut self) -> Result<Option<WatchEvent<V>>, WatchError> {
        match &mut self.state {
            WatchState::Empty if self.streams_lists && self.broken_lists < MAX_BROKEN_LISTS => {
                let params = WatchParams { timeout: Some(WATCH_SECONDS), ..WatchParams::streaming_lists() };
                let lines = self.open_watch(params, "").await?;
                self.broken_lists += 1;
                self.state = WatchState::InitialEvents(lines);
                Ok(Some(WatchEvent::ListStarted))
            }
            WatchState::Empty => {
                let page = self.page(String::new()).await?;
                self.state = WatchState::Pages(page);
                Ok(Some(WatchEvent::ListStarted))
            }
            WatchState::InitialEvents(..) => self.receive_initial().await,
            WatchState::Pages(..) => self.next_of_page().await,
            WatchState::Listed(version) => {
                let version = version.clone();
                let params = WatchParams::default().timeout(WATCH_SECONDS);
                let lines = self.open_watch(params, &version).await?;
                self.state = WatchState::Watching(lines, version);
                Ok(None)
            }
            WatchState::Watching(lines, version) => {
                let event = match next_change(lines, self.selector.gathers).await? {
                    RawEvent::Added(object) | RawEvent::Modified(object) => {
                        *version = object.resource_version().unwrap_or_default();
                        match (self.projection)(&object) {
                            Some(view) => WatchEvent::Applied(view, version.clone()),
                            None => WatchEvent::Deleted(object.name_any(), version.clone()),
                        }
                    }
                    RawEvent::Deleted(object) => {
                        *version = object.resource_version().unwrap_or_default();
                        WatchEvent::Deleted(object.name_any(), version.clone())
                    }
                    RawEvent::Bookmark(mark) => {
                        *version = mark.metadata.resource_version;
                        WatchEvent::Bookmark(version.clone())
                    }
                    RawEvent::Error(status) if status.code == 410 => {
                        return Err(WatchError::Relist(status.message));
                    }
                    RawEvent::Error(status) => return Err(WatchError::Resume(status.message)),
                };
                Ok(Some(event))
            }
        }
    }

    /// Takes one object of a page, or reads the next page.
    async fn next_of_page(&mut self) -> Result<Option<WatchEvent<V>>, WatchError> {
        let WatchState::Pages(page) = &mut self.state else { return Ok(None) };
        if let Some(view) = page.rest.next() {
            return Ok(Some(WatchEvent::Listed(view)));
        }
        if let Some(token) = page.next.take() {
            let page = self.page(token).await?;
            self.state = WatchState::Pages(page);
            return Ok(None);
        }
        let version = std::mem::take(&mut page.version);
        self.broken_lists = 0;
        self.state = WatchState::Listed(version.clone());
        Ok(Some(WatchEvent::ListEnded(version)))
    }

    /// Receives one line of a streamed list.
    async fn receive_initial(&mut self) -> Result<Option<WatchEvent<V>>, WatchError> {
        let WatchState::InitialEvents(mut lines) = std::mem::replace(&mut self.state, WatchState::Empty)
        else {
            return Ok(None);
        };
        let mut listed = None;
        match next_line(&mut lines, ANSWER_TIMEOUT).await? {
            RawEvent::Added(object) | RawEvent::Modified(object) => {
                listed = (self.projection)(&object).map(WatchEvent::Listed);
            }
            RawEvent::Bookmark(mark) if mark.metadata.annotations.contains_key(INITIAL_EVENTS_END) => {
                let version = mark.metadata.resource_version;
                self.broken_lists = 0;
                self.state = WatchState::Watching(lines, version.clone());
                return Ok(Some(WatchEvent::ListEnded(version)));
            }
            RawEvent::Bookmark(_) => {}
            other => return Err(WatchError::Relist(format!("{other:?} in a list"))),
        }
        self.state = WatchState::InitialEvents(lines);
        Ok(listed)
    }

    async fn open_watch(&mut self, mut params: WatchParams, version: &str) -> Result<Lines<K>, WatchError> {
        params.label_selector.clone_from(&self.selector.labels);
        params.field_selector.clone_from(&self.selector.fields);
        let listing = params.send_initial_events;
        let answer = call(ANSWER_TIMEOUT, self.api.watch(&params, version)).await;
        self.since = self.clock.elapsed();
        let error = match answer {
            Ok(lines) => {
                self.reported_not_served = false;
                return Ok(Box::pin(lines.boxed().peekable()));
            }
            Err(error) => error,
        };
        Err(match error.code() {
            Some(400 | 422) if listing => {
                // This server has streamed lists switched off.
                self.streams_lists = false;
                WatchError::Relist(error.to_string())
            }
            Some(410) => WatchError::Relist(error.to_string()),
            Some(403 | 404) => WatchError::NotServed(error.to_string()),
            _ => WatchError::Resume(error.to_string()),
        })
    }

    /// Reads the first page of a list, or the one with this token.
    async fn page(&mut self, token: String) -> Result<Page<V>, WatchError> {
        let Selector { labels, fields, .. } = self.selector.clone();
        let params = ListParams {
            label_selector: labels,
            field_selector: fields,
            continue_token: Some(token).filter(|token| !token.is_empty()),
            ..ListParams::default().limit(PAGE_SIZE)
        };
        self.since = self.clock.elapsed();
        let page = call(ANSWER_TIMEOUT, self.api.list(&params)).await;
        let page = page.map_err(|error| match error.code() {
            Some(403 | 404) => WatchError::NotServed(error.to_string()),
            _ => WatchError::Relist(error.to_string()),
        })?;
        let views: Vec<V> = page.items.iter().filter_map(|object| (self.projection)(object)).collect();
        Ok(Page {
            rest: views.into_iter(),
            next: page.metadata.continue_.filter(|token| !token.is_empty()),
            version: page.metadata.resource_version.unwrap_or_default(),
        })
    }

    async fn recover(&mut self, error: WatchError) {
        let lived = self.clock.elapsed().saturating_sub(self.since);
        let (kind, previous) = (self.kind, self.backoff);
        let broke = matches!((&error, &self.state), (WatchError::Resume(_), WatchState::Watching(..)));
        let longest = if broke { LONGEST_BACKOFF_OPEN } else { LONGEST_BACKOFF };
        self.backoff =
            if lived >= HEALTHY { FIRST_BACKOFF } else { (self.backoff * 2).clamp(FIRST_BACKOFF, longest) };
        match error {
            WatchError::Resume(why) => {
                // Every watch ends now and then. One that cannot even begin is logged at once, and then each time that
                // the backoff has reached its maximum.
                if lived < HEALTHY && (previous.is_zero() || self.backoff == longest) {
                    warn!(kind, why, "watch failed; retrying");
                } else {
                    debug!(kind, why, "watch ended");
                }
                self.state = match std::mem::replace(&mut self.state, WatchState::Empty) {
                    WatchState::Watching(_, version) | WatchState::Listed(version) if !version.is_empty() => {
                        WatchState::Listed(version)
                    }
                    _ => WatchState::Empty,
                };
            }
            WatchError::Relist(why) | WatchError::NotServed(why) => {
                warn!(kind, why, "listing again");
                self.state = WatchState::Empty;
            }
        }
        let jitter = self.random.f64() / 4.0;
        sleep(self.backoff.mul_f64(1.0 + jitter)).await;
    }
}

async fn next_change<K>(lines: &mut Lines<K>, gathers: bool) -> Result<RawEvent<K>, WatchError> {
    if gathers {
        gather(lines).await;
    }
    next_line(lines, MAX_SILENCE).await
}

/// Gives lines time to come, if none has been received yet.
async fn gather<K>(lines: &mut Lines<K>) {
    if lines.as_mut().peek().now_or_never().is_none() {
        // The connection is a task of its own, which may hold the next part of the answer.
        yield_now().await;
        if lines.as_mut().peek().now_or_never().is_none() {
            sleep(GATHERED_FOR).await;
        }
    }
}

async fn next_line<K>(lines: &mut Lines<K>, limit: Duration) -> Result<RawEvent<K>, WatchError> {
    match timeout(limit, lines.next()).await {
        Ok(Some(Ok(event))) => Ok(event),
        Ok(Some(Err(error))) => Err(WatchError::Resume(error.to_string())),
        Ok(None) => Err(WatchError::Resume("the server ended the watch".into())),
        Err(_) => Err(WatchError::Resume("no event or bookmark".into())),
    }
}

#[cfg(test)]
mod tests;
