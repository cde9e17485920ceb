//! A follower takes over: when, from which caches, and at which cost.

mod gate;

use std::sync::Arc;
use std::time::Duration;

use gate::bench::Bench;
use gate::template;
use http::Request;
use kube::Client;
use kube::client::Body;
use nodekeeper_operator::{Settings, run};
use nodekeeper_sim::faults::{Faults, Rates};
use nodekeeper_sim::object::set;
use nodekeeper_sim::transport::Transport;
use nodekeeper_sim::value::json;
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tower::ServiceExt as _;

/// The lease lasts 15 s. The rest is the time of two requests.
const LEASE: Duration = Duration::from_millis(15_100);

/// A replica whose requests are recorded and whose watches can be stalled.
struct Replica {
    running: JoinHandle<()>,
    requests: Arc<Mutex<Vec<String>>>,
    faults: Faults,
}

impl Replica {
    fn start(bench: &Bench, name: &str) -> Self {
        let faults = Faults::new(1, Rates::NONE, Arc::default());
        let transport = Transport::new(&bench.cluster, name).with_faults(faults.clone());
        let requests: Arc<Mutex<Vec<String>>> = Arc::default();
        let log = requests.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let line = format!("{} {}", request.method(), request.uri());
            log.lock().push(line);
            transport.clone().oneshot(request)
        });
        let settings = Settings::new(template(), format!("{name}_1"), 1);
        let client = Client::new(service, "default");
        let running = tokio::spawn(run(client, settings, bench.clock(), std::future::pending()));
        Self { running, requests, faults }
    }

    /// How many complete lists of a collection were requested since the last call.
    fn take_lists(&self, collection: &str) -> usize {
        let requests = std::mem::take(&mut *self.requests.lock());
        let is_list = |request: &&String| {
            let path = request.split('?').next().unwrap_or_default();
            path.starts_with("GET") && path.ends_with(collection) && request.contains("sendInitialEvents")
        };
        requests.iter().filter(is_list).count()
    }
}

async fn leader_and_follower(bench: &Bench) -> (Replica, Replica) {
    let leader = Replica::start(bench, "replica-0");
    bench.until("the first replica leads", |bench| bench.holder() == "replica-0_1").await;
    let follower = Replica::start(bench, "replica-1");
    bench.join("n1");
    bench.until("n1 is verified", |bench| bench.is_verified("n1")).await;
    (leader, follower)
}

/// Ends the leader without a release of its lease, and waits for the follower.
async fn crash(bench: &Bench, leader: &Replica) {
    leader.running.abort();
    let took = bench.until("the follower leads", |bench| bench.holder() == "replica-1_1").await;
    assert!(took <= LEASE, "the lease was taken after {took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_follower_takes_over_where_only_the_lease_changes() {
    let bench = Bench::new();
    let (leader, follower) = leader_and_follower(&bench).await;
    sleep(Duration::from_mins(10)).await;
    follower.take_lists("");
    crash(&bench, &leader).await;
    bench.join("n2");
    bench.until("n2 is verified", |bench| bench.is_verified("n2")).await;
    assert!(follower.take_lists("/nodegates") <= 1, "a quiet kind is listed once");
}

#[tokio::test(start_paused = true)]
async fn a_live_watch_is_not_listed_again() {
    let bench = Bench::new();
    let (leader, follower) = leader_and_follower(&bench).await;
    let cluster = bench.cluster.clone();
    let heartbeats = tokio::spawn(async move {
        let api = cluster.local("kubelet");
        for beat in 0..10_000 {
            let node = api.get("nodes", "", "n1").expect("it is there");
            api.change(&node, None, |node| set(node, "metadata.labels.beat", json!(beat.to_string())))
                .expect("there is no conflict");
            sleep(Duration::from_millis(200)).await;
        }
    });
    sleep(Duration::from_mins(5)).await;
    follower.take_lists("");
    crash(&bench, &leader).await;
    bench.join("n2");
    bench.until("n2 is verified", |bench| bench.is_verified("n2")).await;
    assert_eq!(follower.take_lists("/nodes"), 0);
    heartbeats.abort();
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_does_not_trust_a_silent_watch() {
    let bench = Bench::new();
    let (leader, follower) = leader_and_follower(&bench).await;
    follower.faults.stall_watches("nodes");
    leader.running.abort();
    bench.join("n2");
    crash(&bench, &leader).await;
    bench.until("n2 is verified", |bench| bench.is_verified("n2")).await;
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_forgets_what_a_restored_etcd_took_back() {
    let bench = Bench::new();
    let (leader, _follower) = leader_and_follower(&bench).await;
    let backup = bench.cluster.snapshot();
    bench.join("n2");
    bench.until("n2 is verified", |bench| bench.is_verified("n2")).await;
    leader.running.abort();
    bench.cluster.restore(backup);
    let took = bench.until("the follower leads", |bench| bench.holder() == "replica-1_1").await;
    assert!(took <= Duration::from_secs(20), "the lease was taken after {took:?}");
    bench.join("n3");
    bench.until("n3 is verified", |bench| bench.is_verified("n3")).await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_node_gets_no_workers_while_the_watch_is_silent() {
    let bench = Bench::new();
    let leader = Replica::start(&bench, "replica-0");
    bench.join("n1");
    bench.until("a worker is created", |bench| !bench.cluster.local("test").all("pods").is_empty()).await;
    leader.faults.stall_watches("nodes");
    let user = bench.cluster.local("user");
    let node = user.get("nodes", "", "n1").expect("it is there");
    bench.kubelets.remove("n1");
    bench.writes.lock().clear();
    user.delete(&node, None).expect("it is there");
    // The garbage collector deletes the worker, which the controller sees, and would delete all others.
    sleep(Duration::from_mins(10)).await;
    let created = bench.writes.lock().iter().filter(|(_, what)| what == "created pods").count();
    assert_eq!(created, 0, "workers of a node that is gone");
    assert!(bench.cluster.local("test").all("pods").is_empty());
}
