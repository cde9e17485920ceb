//! The watch adaptor: one collection of the API server as a stream of small views.
//!
//! Written on `Api::watch` and not on `kube::runtime::watcher`: that one reconnects without a pause when a server ends
//! its watches at once, repeats a version that the server refuses (410 as a status), and forgets its backoff while
//! lists fail. From outside of it none of these can be mended.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream, Stream, StreamExt as _};
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, Error, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use crate::clock::Clock;

/// How long the server is asked to keep a watch.
const WATCH_SECONDS: u32 = 290;
/// A watch that says nothing for longer is dead, whatever TCP thinks.
const SILENCE: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 5);
/// To the first line of an answer.
const ANSWER: Duration = Duration::from_secs(30);
/// The bookmark that ends a streamed list bears this annotation.
const LIST_END: &str = "k8s.io/initial-events-end";
/// Pages, where the server does not stream lists.
const PAGE: u32 = 100;
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A watch that lived so long was a good one.
const GOOD: Duration = Duration::from_secs(30);

/// What happened to a collection.
#[derive(Debug)]
pub enum Event<V> {
    /// This is all there is, as of this version.
    All(Vec<V>, String),
    /// One was made or changed.
    Is(V),
    /// The one of this name is gone, or can no longer be read, as of this version.
    Gone(String, String),
    /// Nothing happened up to this version.
    UpTo(String),
}

/// What is kept of an object; nothing of those that are not wanted.
pub type Keep<K, V> = Arc<dyn Fn(&K) -> Option<V> + Send + Sync>;

/// Which part of a collection is followed; all of it by default.
#[derive(Clone, Debug, Default)]
pub struct Part {
    /// By labels.
    pub labels: Option<String>,
    /// By fields.
    pub fields: Option<String>,
    /// A server that does not know the kind, or does not let us read it, has none of them.
    pub optional: bool,
}

/// Follows a collection for ever. Each object becomes a view at once; one that `keep` does not want is dropped.
pub fn follow<K, V>(
    api: Api<K>,
    kind: &'static str,
    part: Part,
    keep: Keep<K, V>,
    clock: Clock,
    seed: u64,
) -> impl Stream<Item = Event<V>> + Send
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    V: Send + 'static,
{
    let follower = Follower {
        api,
        kind,
        part,
        keep,
        clock,
        random: fastrand::Rng::with_seed(seed),
        at: At::Nowhere,
        streams_lists: true,
        pause: Duration::ZERO,
        since: Duration::ZERO,
        has_none: false,
    };
    stream::unfold(follower, |mut follower| async move {
        let event = follower.next().await;
        Some((event, follower))
    })
}

type Lines<K> = BoxStream<'static, kube::Result<WatchEvent<K>>>;

/// Where a follower stands.
enum At<K, V> {
    /// It knows nothing.
    Nowhere,
    /// It is being told all there is.
    Listing(Lines<K>, Vec<V>),
    /// It knows all up to a version, and has no watch.
    Version(String),
    /// It has a watch.
    Watching(Lines<K>, String),
}

struct Follower<K, V> {
    api: Api<K>,
    /// What it follows, for the log.
    kind: &'static str,
    part: Part,
    keep: Keep<K, V>,
    clock: Clock,
    random: fastrand::Rng,
    at: At<K, V>,
    streams_lists: bool,
    pause: Duration,
    since: Duration,
    /// It was said that there are none, because the server does not serve the kind.
    has_none: bool,
}

/// Why a step led nowhere, and where to begin again.
enum Trouble {
    /// From the last version.
    Resume(String),
    /// From the beginning.
    Relist(String),
    /// From the beginning; until then there are none.
    NotServed(String),
}

impl<K, V> Follower<K, V>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    V: Send + 'static,
{
    async fn next(&mut self) -> Event<V> {
        loop {
            match self.step().await {
                Ok(Some(event)) => return event,
                Ok(None) => {}
                Err(Trouble::NotServed(why)) if self.part.optional && !self.has_none => {
                    warn!(kind = self.kind, why, "not served: taken for none");
                    self.has_none = true;
                    return Event::All(Vec::new(), "0".to_owned());
                }
                Err(trouble) => self.recover(trouble).await,
            }
        }
    }

    /// One step.
    async fn step(&mut self) -> Result<Option<Event<V>>, Trouble> {
        match &mut self.at {
            At::Nowhere if self.streams_lists => {
                let params = WatchParams { timeout: Some(WATCH_SECONDS), ..WatchParams::streaming_lists() };
                let lines = self.watch(params, "").await?;
                self.at = At::Listing(lines, Vec::new());
                Ok(None)
            }
            At::Nowhere => {
                let (all, version) = self.list().await?;
                self.at = At::Version(version.clone());
                Ok(Some(Event::All(all, version)))
            }
            At::Listing(..) => self.list_on().await,
            At::Version(version) => {
                let version = version.clone();
                let params = WatchParams::default().timeout(WATCH_SECONDS);
                let lines = self.watch(params, &version).await?;
                self.at = At::Watching(lines, version);
                Ok(None)
            }
            At::Watching(lines, version) => {
                let event = match line(lines, SILENCE).await? {
                    WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                        *version = object.resource_version().unwrap_or_default();
                        match (self.keep)(&object) {
                            Some(view) => Event::Is(view),
                            None => Event::Gone(object.name_any(), version.clone()),
                        }
                    }
                    WatchEvent::Deleted(object) => {
                        *version = object.resource_version().unwrap_or_default();
                        Event::Gone(object.name_any(), version.clone())
                    }
                    WatchEvent::Bookmark(mark) => {
                        *version = mark.metadata.resource_version;
                        Event::UpTo(version.clone())
                    }
                    WatchEvent::Error(status) if status.code == 410 => {
                        return Err(Trouble::Relist(status.message));
                    }
                    WatchEvent::Error(status) => return Err(Trouble::Resume(status.message)),
                };
                Ok(Some(event))
            }
        }
    }

    /// One line of a list that comes as a stream.
    async fn list_on(&mut self) -> Result<Option<Event<V>>, Trouble> {
        let At::Listing(mut lines, mut all) = std::mem::replace(&mut self.at, At::Nowhere) else {
            return Ok(None);
        };
        match line(&mut lines, ANSWER).await? {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => all.extend((self.keep)(&object)),
            WatchEvent::Bookmark(mark) if mark.metadata.annotations.contains_key(LIST_END) => {
                let version = mark.metadata.resource_version;
                self.at = At::Watching(lines, version.clone());
                return Ok(Some(Event::All(all, version)));
            }
            WatchEvent::Bookmark(_) => {}
            other => return Err(Trouble::Relist(format!("{other:?} in a list"))),
        }
        self.at = At::Listing(lines, all);
        Ok(None)
    }

    async fn watch(&mut self, mut params: WatchParams, version: &str) -> Result<Lines<K>, Trouble> {
        params.label_selector.clone_from(&self.part.labels);
        params.field_selector.clone_from(&self.part.fields);
        let listing = params.send_initial_events;
        let answer = timeout(ANSWER, self.api.watch(&params, version)).await;
        self.since = self.clock.elapsed();
        match answer {
            Ok(Ok(lines)) => {
                self.has_none = false;
                Ok(lines.boxed())
            }
            Ok(Err(Error::Api(status))) if listing && matches!(status.code, 400 | 422) => {
                // The feature is off on this server.
                self.streams_lists = false;
                Err(Trouble::Relist(status.message))
            }
            Ok(Err(Error::Api(status))) if status.code == 410 => Err(Trouble::Relist(status.message)),
            Ok(Err(Error::Api(status))) if matches!(status.code, 403 | 404) => {
                Err(Trouble::NotServed(status.message))
            }
            Ok(Err(error)) => Err(Trouble::Resume(error.to_string())),
            Err(_) => Err(Trouble::Resume("no answer".into())),
        }
    }

    async fn list(&mut self) -> Result<(Vec<V>, String), Trouble> {
        let Part { labels, fields, .. } = self.part.clone();
        let mut params = ListParams {
            label_selector: labels,
            field_selector: fields,
            ..ListParams::default().limit(PAGE)
        };
        let mut all = Vec::new();
        loop {
            self.since = self.clock.elapsed();
            let page = timeout(ANSWER, self.api.list(&params)).await;
            let page = page.map_err(|_| Trouble::Relist("no answer".into()))?;
            let page = page.map_err(|error| Trouble::Relist(error.to_string()))?;
            all.extend(page.items.iter().filter_map(|object| (self.keep)(object)));
            match page.metadata.continue_ {
                Some(token) if !token.is_empty() => params = params.continue_token(&token),
                _ => return Ok((all, page.metadata.resource_version.unwrap_or_default())),
            }
        }
    }

    async fn recover(&mut self, trouble: Trouble) {
        let lived = self.clock.elapsed().saturating_sub(self.since);
        let (kind, paused) = (self.kind, self.pause);
        self.pause =
            if lived >= GOOD { FIRST_PAUSE } else { (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE) };
        match trouble {
            Trouble::Resume(why) => {
                // Every watch ends now and then. One that does not even begin is worth a word: at once, and then each
                // time that the pause has become longest.
                let worth_a_word = lived < GOOD && (paused.is_zero() || self.pause == LONGEST_PAUSE);
                if worth_a_word {
                    warn!(kind, why, "cannot watch; trying again");
                } else {
                    debug!(kind, why, "watch ended");
                }
                self.at = match std::mem::replace(&mut self.at, At::Nowhere) {
                    At::Watching(_, version) | At::Version(version) if !version.is_empty() => {
                        At::Version(version)
                    }
                    _ => At::Nowhere,
                };
            }
            Trouble::Relist(why) | Trouble::NotServed(why) => {
                warn!(kind, why, "listing again");
                self.at = At::Nowhere;
            }
        }
        let jitter = self.random.f64() / 4.0;
        sleep(self.pause.mul_f64(1.0 + jitter)).await;
    }
}

/// The next line of a watch.
async fn line<K>(lines: &mut Lines<K>, patience: Duration) -> Result<WatchEvent<K>, Trouble> {
    match timeout(patience, lines.next()).await {
        Ok(Some(Ok(event))) => Ok(event),
        Ok(Some(Err(error))) => Err(Trouble::Resume(error.to_string())),
        Ok(None) => Err(Trouble::Resume("the server ended the watch".into())),
        Err(_) => Err(Trouble::Resume("silence".into())),
    }
}

#[cfg(test)]
mod tests;
