//! Watches as clients rely on them: bookmarks, one object by name, a restored etcd, and a stalled connection.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use kube::Client;
use nodekeeper_sim::actors::kubelet::{FakeRuntime, Kubelets, NodeSpec};
use nodekeeper_sim::actors::{self, Timing};
use nodekeeper_sim::cluster::Local;
use nodekeeper_sim::faults::{Faults, Rates};
use nodekeeper_sim::object::text;
use nodekeeper_sim::transport::Transport;
use nodekeeper_sim::value::{Value, json};
use nodekeeper_sim::{Cluster, Options};
use tokio::time::{Instant, sleep, timeout};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
const INITIAL: &str = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";

type Events = BoxStream<'static, Value>;

async fn get(client: &Client, path: &str) -> Value {
    let request = http::Request::get(path).body(Vec::new()).expect("the path is valid");
    client.request(request).await.expect("the request is served")
}

/// The stream ends when the server ends the watch.
async fn watch(client: &Client, path: &str) -> Events {
    let request = http::Request::get(path).body(kube::client::Body::empty()).expect("the path is valid");
    let response = client.send(request).await.expect("the watch is served");
    let body = http_body_util::BodyStream::new(response.into_body());
    // The simulated transport sends one event a frame.
    let events = body.filter_map(|frame| async move { serde_json::from_slice(frame.ok()?.data_ref()?).ok() });
    events.boxed()
}

fn create_lease(api: &Local, name: &str) -> Arc<Value> {
    let body = json!({"metadata": {"name": name}, "spec": {"holderIdentity": "a"}});
    api.create("coordination.k8s.io/v1", "Lease", "default", body).expect("the lease is valid")
}

fn renew(api: &Local, name: &str, holder: &str) {
    let lease = api.get("coordination.k8s.io/leases", "default", name).expect("the lease exists");
    api.change(&lease, None, |lease| lease["spec"]["holderIdentity"] = json!(holder)).expect("it is valid");
}

async fn next(events: &mut Events) -> (String, String) {
    let event = timeout(Duration::from_mins(2), events.next()).await.expect("in time").expect("not ended");
    (text(&event, "type").to_owned(), text(&event, "object.metadata.name").to_owned())
}

fn version(object: &Value) -> u64 {
    text(object, "metadata.resourceVersion").parse().expect("a resource version is a number here")
}

fn is(kind: &str, name: &str) -> (String, String) {
    (kind.to_owned(), name.to_owned())
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_watched_by_name_with_initial_events() {
    let cluster = Cluster::new(Options::simulated(1));
    let (api, client) = (cluster.local("test"), cluster.client("test"));
    create_lease(&api, "leader");
    create_lease(&api, "other");
    let path = format!("{LEASES}?watch=1&fieldSelector=metadata.name=leader&{INITIAL}");
    let mut events = watch(&client, &path).await;
    assert_eq!(next(&mut events).await, is("ADDED", "leader"));
    assert_eq!(next(&mut events).await, is("BOOKMARK", ""));
    renew(&api, "other", "b");
    renew(&api, "leader", "b");
    assert_eq!(next(&mut events).await, is("MODIFIED", "leader"));
}

#[tokio::test(start_paused = true)]
async fn a_quiet_watch_gets_a_bookmark_once_a_minute() {
    let cluster = Cluster::new(Options::simulated(1));
    let (api, client) = (cluster.local("test"), cluster.client("test"));
    let since = version(&create_lease(&api, "leader"));
    let path = format!("{LEASES}?watch=1&allowWatchBookmarks=true&resourceVersion={since}");
    let mut events = watch(&client, &path).await;
    // A write of another kind moves the revision, and with it the bookmark.
    let map = json!({"metadata": {"name": "m"}});
    let other = api.create("v1", "ConfigMap", "default", map).expect("the map is valid");
    for minute in 1..=2 {
        let start = Instant::now();
        let event = events.next().await.expect("the watch goes on");
        assert_eq!(text(&event, "type"), "BOOKMARK");
        assert_eq!(version(&event["object"]), version(&other));
        assert!(start.elapsed() > Duration::from_secs(55), "minute {minute}: {:?}", start.elapsed());
        assert!(start.elapsed() < Duration::from_secs(65), "minute {minute}: {:?}", start.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_of_one_item_has_the_current_version() {
    let cluster = Cluster::new(Options::simulated(1));
    let (api, client) = (cluster.local("test"), cluster.client("test"));
    create_lease(&api, "a");
    let last = create_lease(&api, "b");
    let page = get(&client, &format!("{LEASES}?limit=1&fieldSelector=metadata.name!=x")).await;
    assert_eq!(page["items"].as_array().map(Vec::len), Some(1));
    assert_eq!(version(&page), version(&last));
    assert!(!text(&page, "metadata.continue").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_restored_etcd_ends_watches_and_takes_versions_back() {
    let cluster = Cluster::new(Options::simulated(1));
    let mut actors = actors::start(&cluster, Timing::default());
    let started = actors.running();
    let kubelets = Kubelets::start(&cluster, 1, Arc::new(FakeRuntime));
    kubelets.join(NodeSpec { name: "n1".into(), ..NodeSpec::default() });
    let (api, client) = (cluster.local("test"), cluster.client("test"));
    create_lease(&api, "leader");
    sleep(Duration::from_secs(20)).await;
    let backup = cluster.snapshot();
    let saved = version(&get(&client, LEASES).await);
    create_lease(&api, "later");
    renew(&api, "leader", "b");
    let before = version(&get(&client, LEASES).await);
    let mut open = watch(&client, &format!("{LEASES}?watch=1&resourceVersion={before}")).await;
    let mut changes = api.watch(&["coordination.k8s.io/leases"]);

    cluster.restore(backup);
    assert!(timeout(Duration::from_secs(1), open.next()).await.expect("it ends").is_none());
    let list = get(&client, LEASES).await;
    assert_eq!(version(&list), saved);
    assert_eq!(list["items"].as_array().map(Vec::len), Some(1));
    assert_eq!(text(&list["items"][0], "spec.holderIdentity"), "a");
    let restored: Vec<_> = changes.drain().iter().map(|c| (c.key.clone(), c.after.is_some())).collect();
    assert!(restored.contains(&("default/later".into(), false)), "{restored:?}");
    assert!(restored.contains(&("default/leader".into(), true)), "{restored:?}");

    // The cluster continues: kubelets renew their leases, and watches work from the restored version.
    let mut events = watch(&client, &format!("{LEASES}?watch=1&resourceVersion={saved}")).await;
    create_lease(&api, "new");
    assert_eq!(next(&mut events).await, is("ADDED", "new"));
    sleep(Duration::from_mins(2)).await;
    let node = api.get("nodes", "", "n1").expect("it was in the backup");
    assert_eq!(nodekeeper_sim::object::condition_status(&node, "Ready"), "True");
    assert!(kubelets.is_running() && actors.running() == started);
}

#[tokio::test(start_paused = true)]
async fn a_stalled_watch_stays_open_and_silent_until_resumed() {
    let cluster = Cluster::new(Options::simulated(1));
    let api = cluster.local("test");
    let faults = Faults::new(1, Rates::NONE, Arc::default());
    let client = Transport::new(&cluster, "test").with_faults(faults.clone()).client();
    let other = cluster.client("other");
    let path = format!("{LEASES}?watch=1&allowWatchBookmarks=true&resourceVersion=0");
    let mut stalled = watch(&client, &path).await;
    let mut maps =
        watch(&client, "/api/v1/configmaps?watch=1&allowWatchBookmarks=true&resourceVersion=0").await;
    let mut unaffected = watch(&other, &path).await;
    faults.stall_watches("leases");
    create_lease(&api, "a");
    assert!(timeout(Duration::from_mins(10), stalled.next()).await.is_err(), "it delivered something");
    assert_eq!(next(&mut unaffected).await, is("ADDED", "a"));
    assert_eq!(next(&mut maps).await.0, "BOOKMARK");
    // A watch that is opened later is served.
    let mut later = watch(&client, &path).await;
    assert_eq!(next(&mut later).await, is("ADDED", "a"));
    faults.resume_watches("leases");
    assert_eq!(next(&mut stalled).await, is("ADDED", "a"));
}
