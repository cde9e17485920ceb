//! The real checks, run by simulated kubelets in a simulated network.

use std::sync::Arc;
use std::time::Duration;

use nodekeeper_core::checks::{Assignment, Checks, Clock, Dns, Mtu, Replicas};
use nodekeeper_core::report::{Outcome, Report, Verdict, parse, reason};
use nodekeeper_sim::actors::kubelet::{Kubelets, NodeSpec};
use nodekeeper_sim::actors::{self, Actors, Timing};
use nodekeeper_sim::network::{self, Fault, Outage};
use nodekeeper_sim::object::{items, text};
use nodekeeper_sim::value::{Value, json};
use nodekeeper_sim::worker::Workers;
use nodekeeper_sim::{Cluster, Options};
use tokio::time::timeout;

/// Two machines, `n1` in zone `a` and `n2` in zone `b`.
struct Bench {
    cluster: Cluster,
    _kubelets: Kubelets,
    _actors: Actors,
}

impl Bench {
    fn new() -> Self {
        let cluster = Cluster::new(Options::simulated(7));
        network::install(&cluster).expect("the objects do not exist yet");
        let actors = actors::start(&cluster, Timing::default());
        let kubelets = Kubelets::start(&cluster, 7, Arc::new(Workers));
        for (name, zone) in [("n1", "a"), ("n2", "b")] {
            kubelets.join(NodeSpec { name: name.into(), zone: zone.into(), ..NodeSpec::default() });
        }
        Self { cluster, _kubelets: kubelets, _actors: actors }
    }

    /// Runs a worker. Returns its exit code and its report.
    async fn run_worker(&self, name: &str, node: &str, assignment: &str) -> (i64, Report) {
        let container = json!({"name": "worker", "image": "example.com/worker:1",
            "env": [{"name": Assignment::ENV, "value": assignment}]});
        let pod = json!({"metadata": {"name": name},
            "spec": {"nodeName": node, "restartPolicy": "Never", "containers": [container]}});
        let api = self.cluster.local("test");
        api.create("v1", "Pod", "default", pod).expect("the pod is valid");
        let mut changes = api.watch(&["pods"]);
        let result = async {
            loop {
                let pod = api.get("pods", "default", name).expect("the pod exists");
                if matches!(text(&pod, "status.phase"), "Succeeded" | "Failed") {
                    return pod;
                }
                changes.next().await;
            }
        };
        let pod: Arc<Value> = timeout(Duration::from_mins(5), result).await.expect("workers end");
        let end = &items(&pod, "status.containerStatuses")[0]["state"]["terminated"];
        let report = parse(text(end, "message")).expect("it is a report");
        (end["exitCode"].as_i64().expect("it has ended"), report)
    }

    async fn standard(&self, name: &str, node: &str) -> (i64, Report) {
        self.run_worker(name, node, &standard()).await
    }
}

fn standard() -> String {
    let mut assignment = Assignment::default();
    assignment.identity.node_uid = "a-uid".into();
    serde_json::to_string(&assignment).expect("it is JSON")
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_network_works_passes() {
    let (code, report) = Bench::new().standard("w", "n1").await;
    assert_eq!((code, report.verdict), (0, Verdict::Passed), "{report:?}");
    assert_eq!((report.checks.len(), report.identity.node_uid.as_str()), (6, "a-uid"));
    assert_eq!(report.checks[0].message, "10.96.0.1");
    assert_eq!(report.checks[1].message, "system:serviceaccount:default:default");
}

#[tokio::test(start_paused = true)]
async fn a_dns_outage_fails_the_nodes_in_its_scope() {
    let bench = Bench::new();
    for (outage, n1, n2) in [
        (Outage::Node("n1".into()), Verdict::Failed, Verdict::Passed),
        (Outage::Zone("b".into()), Verdict::Passed, Verdict::Failed),
        (Outage::All, Verdict::Failed, Verdict::Failed),
    ] {
        bench.cluster.network().fail(outage.clone());
        for (node, verdict) in [("n1", n1), ("n2", n2)] {
            let name = format!("w-{node}-{}", format!("{outage:?}").len());
            let (code, report) = bench.standard(&name, node).await;
            assert_eq!(report.verdict, verdict, "{node} {outage:?}");
            assert_eq!(code, i64::from(verdict == Verdict::Failed));
            if verdict == Verdict::Failed {
                let told = "dns kubernetes.default.svc.cluster.local.: Timeout (no answer within 10 s)";
                assert_eq!(report.summary(), told);
            }
        }
        bench.cluster.network().heal(&outage);
    }
}

#[tokio::test(start_paused = true)]
async fn stopped_cluster_dns_is_inconclusive() {
    let bench = Bench::new();
    network::run_cluster_dns(&bench.cluster, false).expect("it is there");
    let (code, report) = bench.standard("w1", "n1").await;
    assert_eq!((code, report.verdict), (3, Verdict::Inconclusive));
    let reasons: Vec<_> = report
        .checks
        .iter()
        .filter(|c| c.outcome == Outcome::Inconclusive)
        .map(|c| c.reason.as_str())
        .collect();
    assert_eq!(reasons, [reason::CLUSTER_DNS_NOT_RUNNING; 3], "names, the Service and its pods");
    network::run_cluster_dns(&bench.cluster, true).expect("it is there");
    assert_eq!(bench.standard("w2", "n1").await.1.verdict, Verdict::Passed);
}

#[tokio::test(start_paused = true)]
async fn f23_a_network_fault_fails_its_check_on_its_node_only() {
    let bench = Bench::new();
    let mut assignment = Assignment::default();
    assignment.identity.node_uid = "a-uid".into();
    assignment.checks =
        Checks { mtu: Some(Mtu::default()), clock: Some(Clock::default()), ..Checks::default().resolve() };
    let text = serde_json::to_string(&assignment).expect("it is JSON");
    for (fault, told) in [
        (Fault::Services, "api 10.96.0.1:443: Timeout (no answer within 10 s); and 3 more"),
        (
            Fault::Pods,
            "peers kube-system/kube-dns: Timeout (10.244.0.2:53 on system-1 in a: no answer; 10.244.1.2:53 on system-2 in b: no answer)",
        ),
        (
            Fault::LargePackets,
            "mtu 10.96.0.1:443: MtuBlackHole (small packets pass, 32768 bytes in full-size packets do not: MTU black hole?)",
        ),
    ] {
        let outage = Outage::Node("n1".into());
        bench.cluster.network().fail_at(fault, outage.clone());
        let (code, report) = bench.run_worker(&format!("n1-{fault:?}").to_lowercase(), "n1", &text).await;
        assert_eq!((code, report.summary().as_str()), (1, told), "{report:?}");
        let (code, report) = bench.run_worker(&format!("n2-{fault:?}").to_lowercase(), "n2", &text).await;
        assert_eq!(code, 0, "{report:?}");
        bench.cluster.network().heal_at(fault, &outage);
    }
}

#[tokio::test(start_paused = true)]
async fn each_cluster_dns_server_is_queried_by_address() {
    let bench = Bench::new();
    let dns = Dns { replicas: Replicas::Each, ..Dns::default() };
    let assignment =
        Assignment { checks: Checks { dns: Some(dns), ..Checks::default() }, ..Assignment::default() };
    let text = serde_json::to_string(&assignment).expect("it is JSON");
    let (code, report) = bench.run_worker("w1", "n1", &text).await;
    assert_eq!((code, report.checks[1].message.as_str()), (0, "2 of 2 know it"), "{report:?}");
    bench.cluster.network().fail_at(Fault::Pods, Outage::All);
    let (code, report) = bench.run_worker("w2", "n1", &text).await;
    assert_eq!((code, report.checks[1].outcome), (1, Outcome::Failed), "{report:?}");
}

#[tokio::test(start_paused = true)]
async fn an_invalid_assignment_exits_2() {
    let (code, report) = Bench::new().run_worker("w", "n1", "what?").await;
    assert_eq!((code, report.verdict), (2, Verdict::Inconclusive));
}

#[test]
fn workers_take_the_same_time_in_every_run() {
    let trace = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.expect("there are enough files").block_on(async {
            let bench = Bench::new();
            bench.cluster.trace().enable();
            bench.standard("w1", "n1").await;
            bench.standard("w2", "n2").await;
            bench.cluster.trace().text()
        })
    };
    let (first, second) = (trace(), trace());
    assert!(first.contains("worker w1 on n1: Passed"), "{first}");
    assert_eq!(first, second);
}
