//! The whole controller on a cluster without injected faults: cost, failover and shutdown.

mod gate;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gate::bench::Bench;
use gate::{taint, template};
use nodekeeper_operator::clock::Clock;
use nodekeeper_operator::{Settings, run};
use nodekeeper_sim::actors::kubelet::NodeSpec;
use nodekeeper_sim::object::{items, text};
use nodekeeper_sim::value::{Value, json};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout};

#[tokio::test(start_paused = true)]
async fn a_node_that_passes_costs_three_writes_and_an_event() {
    let bench = Bench::new();
    let _controller = bench.controller("replica-0");
    bench.join("n1");
    bench.until("the node is verified", |bench| bench.is_verified("n1")).await;
    sleep(Duration::from_mins(30)).await;
    let mut writes: BTreeMap<String, u32> = BTreeMap::new();
    for (_, what) in bench.writes.lock().iter().filter(|(_, what)| !what.ends_with("leases")) {
        *writes.entry(what.clone()).or_default() += 1;
    }
    // The gate's status is written for many nodes at once: at the start, while workers run, and when all are verified.
    let status = writes.remove("updated nodekeeper.dev/nodegates").unwrap_or_default();
    assert!((1..=3).contains(&status), "the gate's status was written {status} times");
    let wanted = [("updated nodes", 1), ("created events", 1), ("created pods", 1), ("deleted pods", 1)];
    assert_eq!(writes, wanted.map(|(what, n)| (what.to_owned(), n)).into());
}

#[tokio::test(start_paused = true)]
async fn a_stopped_leader_releases_its_lease_at_once() {
    let bench = Bench::new();
    let (first, stop) = bench.controller("replica-0");
    bench.until("replica-0 leads", |bench| bench.holder() == "replica-0_1").await;
    let (_second, _) = bench.controller("replica-1");
    sleep(Duration::from_secs(10)).await;
    assert_eq!(bench.holder(), "replica-0_1", "a live leader keeps its lease");
    stop.notify_one();
    timeout(Duration::from_secs(1), first).await.expect("it stops").expect("without a panic");
    let took = bench.until("replica-1 leads", |bench| bench.holder() == "replica-1_1").await;
    assert!(took <= Duration::from_millis(2_500), "{took:?}");
    bench.join("n1");
    bench.until("the node is verified", |bench| bench.is_verified("n1")).await;
}

#[tokio::test(start_paused = true)]
async fn a_crashed_leader_is_replaced_when_its_lease_expires() {
    let bench = Bench::new();
    let (first, _) = bench.controller("replica-0");
    bench.until("replica-0 leads", |bench| bench.holder() == "replica-0_1").await;
    let (_second, _) = bench.controller("replica-1");
    bench.join("n1");
    // The leader dies after it created the worker and before it recorded anything.
    bench.until("a worker runs", |bench| !bench.cluster.local("test").all("pods").is_empty()).await;
    first.abort();
    let took = bench.until("replica-1 leads", |bench| bench.holder() == "replica-1_1").await;
    assert!(took > Duration::from_secs(12) && took <= Duration::from_secs(18), "{took:?}");
    bench.until("the node is verified", |bench| bench.is_verified("n1")).await;
    let made = bench.writes.lock().iter().filter(|(_, what)| what == "created pods").count();
    assert_eq!(made, 1, "the worker of the previous leader was adopted");
}

#[tokio::test(start_paused = true)]
async fn started_writes_finish_before_the_lease_is_released() {
    let bench = Bench::new();
    let (controller, stop) = bench.controller("replica-0");
    bench.until("replica-0 leads", |bench| bench.holder() == "replica-0_1").await;
    for n in 0..40 {
        bench.join(&format!("n{n}"));
    }
    bench.until("workers are created", |bench| bench.cluster.local("test").all("pods").len() > 5).await;
    stop.notify_one();
    timeout(Duration::from_secs(11), controller).await.expect("it stops").expect("without a panic");
    assert_eq!(bench.holder(), "");
    let writes = bench.writes.lock().clone();
    let last = writes.last().expect("it wrote");
    assert_eq!(
        last.1, "updated coordination.k8s.io/leases",
        "nothing is written after the lease is released"
    );
    sleep(Duration::from_mins(1)).await;
    assert_eq!(bench.writes.lock().len(), writes.len());
}

#[tokio::test(start_paused = true)]
async fn the_worker_limit_holds_and_all_nodes_are_verified() {
    let bench = Bench::new();
    let clock = bench.cluster.clock().clone();
    let settings = Settings { most_workers: 3, ..Settings::new(template(), "replica-0_1".into(), 1) };
    let client = bench.cluster.client("replica-0");
    let _controller =
        tokio::spawn(run(client, settings, Clock::new(move || clock.now()), std::future::pending()));
    let most = Arc::new(Mutex::new((0_usize, 0_usize)));
    let count = most.clone();
    bench.cluster.observe(Box::new(move |change| {
        if change.collection == "pods" {
            let mut count = count.lock();
            let ends = |pod: &Value| matches!(text(pod, "status.phase"), "Succeeded" | "Failed");
            let was = change.before.as_ref().is_some_and(|pod| !ends(pod));
            let is = change.after.as_ref().is_some_and(|pod| !ends(pod));
            count.0 = count.0 + usize::from(is) - usize::from(was);
            count.1 = count.1.max(count.0);
        }
    }));
    for n in 0..25 {
        bench.join(&format!("n{n}"));
    }
    bench.until("all nodes are verified", |bench| (0..25).all(|n| bench.is_verified(&format!("n{n}")))).await;
    assert_eq!(most.lock().1, 3);
}

#[tokio::test(start_paused = true)]
async fn an_invalid_gate_does_not_block_others() {
    let bench = Bench::new();
    let user = bench.cluster.local("user");
    // A newer release may have added the field to the CRD, and this controller does not know it.
    let definition =
        user.get("apiextensions.k8s.io/customresourcedefinitions", "", "nodegates.nodekeeper.dev");
    let loose = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    user.change(&definition.expect("setup created it"), None, |definition| {
        definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = loose.clone();
    })
    .expect("it is valid");
    let strange = json!({
        "apiVersion": "nodekeeper.dev/v1alpha1", "kind": "NodeGate", "metadata": {"name": "from-the-future"},
        "spec": {"taints": [{"key": "a", "effect": "Sometimes"}], "checks": {"peers": {}}},
    });
    user.create("nodekeeper.dev/v1alpha1", "NodeGate", "", strange).expect("it is taken");
    let _controller = bench.controller("replica-0");
    bench.join("n1");
    bench.until("the node is verified", |bench| bench.is_verified("n1")).await;
}

#[tokio::test(start_paused = true)]
async fn workers_tolerate_foreign_taints() {
    let bench = Bench::new();
    let gpu = json!({"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"});
    bench.kubelets.join(NodeSpec { name: "n1".into(), taints: vec![gpu, taint()], ..NodeSpec::default() });
    let _controller = bench.controller("replica-0");
    bench.until("the node is verified", |bench| bench.is_verified("n1")).await;
    let node = bench.cluster.local("test").get("nodes", "", "n1").expect("it is there");
    assert_eq!(items(&node, "spec.taints").len(), 1, "the foreign taint stays");
}

#[tokio::test(start_paused = true)]
async fn a_worker_without_its_labels_is_replaced() {
    for (part, key) in [("labels", "app.kubernetes.io/component"), ("annotations", "nodekeeper.dev/subject")]
    {
        let bench = Bench::new();
        let _controller = bench.controller("replica-0");
        bench.join("n1");
        let pods = |bench: &Bench| bench.cluster.local("test").all("pods");
        bench.until("a worker is created", |bench| !pods(bench).is_empty()).await;
        let user = bench.cluster.local("user");
        user.change(&pods(&bench)[0], None, |pod| {
            pod["metadata"][part].as_object_mut().expect("a map").remove(key);
        })
        .expect("it may be changed");
        let start = Instant::now();
        while !bench.is_verified("n1") {
            assert!(start.elapsed() < Duration::from_mins(10), "stuck without {key}");
            sleep(Duration::from_secs(1)).await;
        }
        let writes = bench.writes.lock().len();
        assert!(writes < 40 + 5 * 60, "{writes} writes");
    }
}

#[tokio::test(start_paused = true)]
async fn deleted_nodes_are_not_read() {
    let bench = Bench::new();
    let _controller = bench.controller("replica-0");
    for n in 0..10 {
        bench.join(&format!("n{n}"));
    }
    bench.until("workers are created", |bench| bench.cluster.local("test").all("pods").len() > 1).await;
    let user = bench.cluster.local("user");
    for node in user.all("nodes") {
        user.delete(&node, None).expect("it is there");
    }
    sleep(Duration::from_mins(2)).await;
    bench.cluster.trace().enable();
    sleep(Duration::from_mins(30)).await;
    let asked =
        bench.cluster.trace().text().lines().filter(|line| line.contains("GET /api/v1/nodes/")).count();
    assert_eq!(asked, 0);
}

#[tokio::test(start_paused = true)]
async fn a_rejected_worker_pod_is_retried_with_backoff() {
    let bench = Bench::new();
    let clock = bench.cluster.clock().clone();
    // The API server refuses a container without an image.
    let template = nodekeeper_core::worker::Template { image: String::new(), ..template() };
    let settings = Settings::new(template, "replica-0_1".into(), 1);
    let client = bench.cluster.client("replica-0");
    bench.cluster.trace().enable();
    let _controller =
        tokio::spawn(run(client, settings, Clock::new(move || clock.now()), std::future::pending()));
    bench.join("n1");
    sleep(Duration::from_mins(10)).await;
    let trace = bench.cluster.trace().text();
    let asked = |what: &str| trace.lines().filter(|line| line.contains(what)).count();
    let refused = asked("POST /api/v1/namespaces/nodekeeper-system/pods? -> 422");
    assert!((10..=40).contains(&refused), "tried {refused} times in ten minutes");
    assert_eq!(asked("replica-0 GET /api/v1/nodes/"), 0, "the node is not read");
}

/// Creates a worker and deletes each one at once, without grace, for ten minutes. Returns how many there were.
async fn workers_that_vanish(bench: &Bench, node: &str) -> usize {
    let created = Arc::new(Mutex::new(0));
    let (count, user) = (created.clone(), bench.cluster.local("user"));
    bench.cluster.observe(Box::new(move |change| {
        *count.lock() += usize::from(change.collection == "pods" && change.before.is_none());
    }));
    bench.join(node);
    let start = Instant::now();
    while start.elapsed() < Duration::from_mins(10) {
        for pod in user.all("pods") {
            user.delete(&pod, Some(0)).expect("it is there");
        }
        sleep(Duration::from_millis(10)).await;
    }
    *created.lock()
}

#[tokio::test(start_paused = true)]
async fn workers_that_are_deleted_at_once_come_ever_more_rarely() {
    let bench = Bench::new();
    let _controller = bench.controller("replica-0");
    let created = workers_that_vanish(&bench, "n1").await;
    assert!((8..=24).contains(&created), "{created} workers in ten minutes");
    bench.until("the node is verified when nobody deletes them", |bench| bench.is_verified("n1")).await;
}
