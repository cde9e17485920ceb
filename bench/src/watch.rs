//! A watch as a stream of objects.

use std::fmt::Debug;
use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt as _};
use kube::api::{WatchEvent, WatchParams};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::time::sleep;

/// All existing and future objects. The watch restarts whenever it ends, so objects may be repeated.
pub fn watch<K>(api: Api<K>, labels: &str, fields: &str) -> BoxStream<'static, K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let params = WatchParams::streaming_lists().labels(labels).fields(fields).timeout(280);
    let events = stream::unfold((api, params), |(api, params)| async move {
        let events = if let Ok(events) = api.watch(&params, "").await {
            events.boxed()
        } else {
            sleep(Duration::from_millis(100)).await;
            stream::empty().boxed()
        };
        Some((events, (api, params)))
    });
    let objects = events.flatten().filter_map(|event| async move {
        match event {
            Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => Some(object),
            _ => None,
        }
    });
    objects.boxed()
}
