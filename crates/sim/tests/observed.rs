//! Metrics and health of a running controller.

mod gate;

use std::sync::Arc;
use std::time::Duration;

use gate::bench::Bench;
use gate::template;
use nodekeeper_operator::Settings;
use nodekeeper_operator::clock::Clock;
use nodekeeper_operator::health::Health;
use nodekeeper_operator::metrics::{Format, Metrics, Options as Served};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::sleep;

struct Replica {
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    clock: Clock,
    stop: Arc<Notify>,
    running: JoinHandle<()>,
}

fn controller(bench: &Bench, name: &str) -> Replica {
    let clock = bench.clock();
    let metrics = Arc::new(Metrics::new(Served { compat_names: true, per_node: true, ..Served::default() }));
    let health: Arc<Health> = Arc::default();
    let settings = Settings {
        metrics: metrics.clone(),
        health: health.clone(),
        ..Settings::new(template(), format!("{name}_1"), 1)
    };
    let (running, stop) = bench.controller_with(settings, name, clock.clone());
    Replica { metrics, health, clock, stop, running }
}

impl Replica {
    fn ready(&self) -> Result<&'static str, String> {
        self.health.ready(self.clock.elapsed())
    }

    fn text(&self) -> String {
        self.metrics.render(Format::Prometheus).expect("rendering to a string cannot fail")
    }

    #[track_caller]
    fn assert_has(&self, lines: &[&str]) {
        let text = self.text();
        for line in lines {
            assert!(text.lines().any(|served| served == *line), "no {line} in\n{text}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn f02_metrics_of_a_node_last_until_it_is_deleted() {
    let bench = Bench::new();
    let replica = controller(&bench, "replica-0");
    bench.join("n1");
    bench.until("the node is verified", |bench| bench.is_verified("n1")).await;
    // Some metrics are updated every five seconds.
    sleep(Duration::from_secs(10)).await;
    replica.assert_has(&[
        "kube_node_ready_verification_status{node=\"n1\",status=\"verified\"} 1.0",
        "kube_node_ready_verifications_total{status=\"success\"} 1",
        "kube_node_ready_verifications_total{status=\"failed\"} 0",
        "kube_node_ready_worker_pods{status=\"running\"} 0.0",
        "kube_node_ready_worker_pods{status=\"succeeded\"} 1.0",
        "kube_node_ready_node_taint_removal_total{node=\"n1\",status=\"success\"} 1",
        "kube_node_ready_controller_worker_pods_created_total{node=\"n1\"} 1",
        "nodekeeper_verifications_total{gate=\"default\",result=\"passed\"} 1",
        "nodekeeper_taint_operations_total{operation=\"remove\",result=\"success\"} 1",
        "nodekeeper_worker_start_duration_seconds_count{gate=\"default\"} 1",
        "nodekeeper_node_gated_duration_seconds_count{gate=\"default\",result=\"passed\"} 1",
        "leader_election_master_status{name=\"kube-node-ready-leader\"} 1.0",
    ]);
    let text = replica.text();
    for check in ["dns", "api", "tcp"] {
        assert!(
            text.contains(&format!("nodekeeper_check_runs_total{{check=\"{check}\"}} ")),
            "{check}: {text}"
        );
    }
    let verified =
        |line: &str| line.starts_with("nodekeeper_nodes{") && line.ends_with("state=\"verified\"} 1.0");
    assert!(text.lines().any(verified), "{text}");
    assert!(text.contains("kube_node_ready_verification_duration_seconds{node=\"n1\"} "), "{text}");
    assert!(!text.contains("workqueue_adds_total{name=\"gate\",controller=\"gate\"} 0\n"), "{text}");
    let user = bench.cluster.local("test");
    let node = user.get("nodes", "", "n1").expect("it is there");
    bench.kubelets.power_off("n1");
    user.delete(&node, None).expect("the node has no finalizers");
    bench.until("its series are gone", |_| !replica.text().contains("n1")).await;
}

#[tokio::test(start_paused = true)]
async fn f21_standbys_are_ready_and_leaders_once_synced() {
    let bench = Bench::new();
    let mut first = controller(&bench, "replica-0");
    assert_eq!(first.ready(), Err("the lease was not read yet".into()));
    bench.until("the first leads", |_| first.ready() == Ok("leading")).await;
    let second = controller(&bench, "replica-1");
    bench.until("the second stands by", |_| second.ready() == Ok("following")).await;
    assert!(!second.text().contains("nodekeeper_nodes{"), "only a leader exports node metrics");
    // The heartbeat goes on without events.
    sleep(Duration::from_hours(1)).await;
    assert_eq!((first.ready(), second.ready()), (Ok("leading"), Ok("following")));
    first.stop.notify_one();
    bench.until("the second leads", |_| second.ready() == Ok("leading")).await;
    (&mut first.running).await.expect("it stops without a panic");
    assert_eq!(first.ready(), Err("stopping".into()));
    first.assert_has(&["leader_election_master_status{name=\"kube-node-ready-leader\"} 0.0"]);
    second.assert_has(&["leader_election_master_status{name=\"kube-node-ready-leader\"} 1.0"]);
}
