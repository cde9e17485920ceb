//! Each fault of a transport has the effect that its name says.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, GetParams, PostParams, WatchParams};
use nodekeeper_sim::faults::{Coverage, Faults, Rates};
use nodekeeper_sim::transport::Transport;
use nodekeeper_sim::value::json;
use nodekeeper_sim::{Cluster, Options};
use parking_lot::Mutex;
use tokio::time::timeout;

struct Bench {
    cluster: Cluster,
    faults: Faults,
    coverage: Arc<Mutex<Coverage>>,
    maps: Api<ConfigMap>,
}

impl Bench {
    fn new(rates: Rates) -> Self {
        let cluster = Cluster::new(Options::simulated(1));
        let coverage = Arc::<Mutex<Coverage>>::default();
        let faults = Faults::new(1, rates, coverage.clone());
        let client = Transport::new(&cluster, "test").with_faults(faults.clone()).client();
        Self { cluster, faults, coverage, maps: Api::default_namespaced(client) }
    }

    /// Creates objects. Returns how many requests succeeded and how many objects exist.
    async fn create(&self, count: usize) -> (usize, usize) {
        let mut answered = 0;
        for i in 0..count {
            let map: ConfigMap =
                json!({"metadata": {"name": format!("m{i:03}")}}).decode().expect("it is well formed");
            answered += usize::from(self.maps.create(&PostParams::default(), &map).await.is_ok());
        }
        (answered, self.cluster.local("test").all("configmaps").len())
    }

    fn count(&self, fault: &str) -> usize {
        let count = self.coverage.lock().faults.get(fault).copied().unwrap_or(0);
        usize::try_from(count).expect("it is small")
    }
}

#[tokio::test(start_paused = true)]
async fn without_faults_every_request_is_applied() {
    let bench = Bench::new(Rates::NONE);
    assert_eq!(bench.create(50).await, (50, 50));
    assert!(bench.coverage.lock().faults.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_refused_request_changes_nothing() {
    let bench = Bench::new(Rates { refused: 2_000, ..Rates::NONE });
    let (answered, there) = bench.create(200).await;
    assert_eq!(answered, there, "a refused request was applied");
    assert_eq!(200 - answered, bench.count("409") + bench.count("429") + bench.count("500"));
    assert!(bench.count("409") > 0 && bench.count("429") > 0 && bench.count("500") > 0);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_times_out_may_be_applied() {
    let bench = Bench::new(Rates { lost: 2_000, ..Rates::NONE });
    let (answered, there) = bench.create(200).await;
    assert_eq!(there - answered, bench.count("timeout, applied"));
    assert_eq!(200 - there, bench.count("timeout, not applied"));
    assert!(there > answered && there < 200);
}

#[tokio::test(start_paused = true)]
async fn a_delayed_write_is_applied_after_the_client_timeout() {
    let bench = Bench::new(Rates { delayed: 10_000, ..Rates::NONE });
    let map: ConfigMap = json!({"metadata": {"name": "m"}}).decode().unwrap();
    let answer = timeout(Duration::from_secs(4), bench.maps.create(&PostParams::default(), &map)).await;
    assert!(!matches!(answer, Ok(Ok(_))), "the delayed write got a response");
    // A delayed write is applied even if its client has crashed.
    bench.faults.crash();
    let there = || bench.cluster.local("test").all("configmaps").len();
    assert_eq!(there(), 0);
    tokio::time::sleep(Duration::from_secs(41)).await;
    assert_eq!((there(), bench.count("delayed write applied")), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_crashed_client_sends_nothing_more() {
    let (mut before, mut after) = (0, 0);
    for seed in 0..40 {
        let bench = Bench::new(Rates::NONE);
        let faults = Faults::new(seed, Rates { crash: 5_000, ..Rates::NONE }, bench.coverage.clone());
        let client = Transport::new(&bench.cluster, "test").with_faults(faults.clone()).client();
        let maps: Api<ConfigMap> = Api::default_namespaced(client);
        let map: ConfigMap = json!({"metadata": {"name": "m"}}).decode().unwrap();
        let answer = timeout(Duration::from_mins(10), maps.create(&PostParams::default(), &map)).await;
        assert!(answer.is_err() && faults.has_crashed(), "every request crashes its client");
        let landed = bench.cluster.local("test").all("configmaps").len();
        (before, after) = if landed == 0 { (before + 1, after) } else { (before, after + 1) };
        assert!(
            timeout(Duration::from_mins(10), maps.get("m")).await.is_err(),
            "a crashed client got a response"
        );
    }
    assert!(before > 0 && after > 0, "{before} before, {after} after");
}

#[tokio::test(start_paused = true)]
async fn a_cut_watch_loses_no_event_in_between() {
    let bench = Bench::new(Rates { cut: 1_000, late: 3_000, ..Rates::NONE });
    let (made, _) = bench.create(100).await;
    assert_eq!(made, 100);
    let mut version = "0".to_owned();
    let mut seen = Vec::new();
    for _ in 0..100 {
        let mut events =
            bench.maps.watch(&WatchParams::default().timeout(30), &version).await.unwrap().boxed();
        if version == "0" {
            seen.clear();
        }
        while let Ok(Some(event)) = events.try_next().await {
            if let kube::api::WatchEvent::Added(map) = event {
                seen.push(map.metadata.name.unwrap());
                version = map.metadata.resource_version.unwrap();
            }
        }
        if seen.len() == 100 {
            break;
        }
    }
    let wanted: Vec<String> = (0..100).map(|i| format!("m{i:03}")).collect();
    assert_eq!(seen, wanted, "after {} cuts", bench.count("watch cut"));
    assert!(bench.count("watch cut") > 0 && bench.count("late event") > 0);
}

#[tokio::test(start_paused = true)]
async fn only_reads_that_allow_it_are_stale() {
    let bench = Bench::new(Rates { stale: 10_000, ..Rates::NONE });
    bench.create(50).await;
    let any = GetParams::any();
    let mut old = 0;
    for _ in 0..50 {
        assert!(bench.maps.get("m049").await.is_ok(), "a consistent read was stale");
        old += usize::from(bench.maps.get_with("m049", &any).await.is_err());
    }
    assert!(old > 0, "no read was stale");
}

#[tokio::test(start_paused = true)]
async fn rates_can_be_set_to_none() {
    let bench = Bench::new(Rates { refused: 3_000, lost: 500, ..Rates::NONE });
    bench.create(20).await;
    bench.faults.set_rates(Rates::NONE);
    let met: u64 = bench.coverage.lock().faults.values().sum();
    for _ in 0..100 {
        let _ = bench.maps.get("m000").await;
    }
    assert_eq!(bench.coverage.lock().faults.values().sum::<u64>(), met);
}
