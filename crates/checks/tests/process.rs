//! The worker as the embedded cluster's kubelets run it: a process in the loopback network of its node.

#![allow(clippy::unwrap_used, reason = "all of it is part of a test")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nodekeeper_core::checks::Assignment;
use nodekeeper_core::report::{Report, Verdict, parse, reason};
use nodekeeper_sim::actors::kubelet::{ContainerConfig, ContainerRuntime as _, Terminated};
use nodekeeper_sim::bind::{Bound, bind};
use nodekeeper_sim::loopback::{Api, Dns, Pods};
use nodekeeper_sim::process::{Processes, Setup};
use nodekeeper_sim::worker::service_account;
use nodekeeper_sim::{Cluster, Options, network};
use serde_json::json;

struct Bench {
    cluster: Cluster,
    processes: Processes,
    folder: tempfile::TempDir,
    _bound: Arc<Bound>,
}

impl Bench {
    async fn new() -> Self {
        let cluster = Cluster::new(Options::real(1));
        network::install(&cluster).unwrap();
        let bound = Arc::new(bind(&cluster, SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap());
        let folder = tempfile::tempdir().unwrap();
        let issuer = bound.clone();
        let processes = Processes::new(Setup {
            binary: env!("CARGO_BIN_EXE_nodekeeper-worker").into(),
            folder: folder.path().to_owned(),
            api_server: bound.address,
            authority: bound.authority.clone(),
            tokens: Arc::new(move |pod| issuer.token_of(&service_account(pod))),
        });
        Self { cluster, processes: processes.unwrap(), folder, _bound: bound }
    }

    fn job(&self, node: &str) -> ContainerConfig {
        let assignment = Assignment { check_timeout_seconds: 1, ..Assignment::default() };
        let pod =
            json!({"metadata": {"name": "w", "namespace": "ns", "uid": format!("uid-{node}")}, "spec": {}});
        let env = json!([{"name": Assignment::ENV, "value": serde_json::to_string(&assignment).unwrap()}]);
        ContainerConfig {
            cluster: self.cluster.clone(),
            node: node.into(),
            zone: String::new(),
            pod: Arc::new(pod.into()),
            container: json!({"name": "worker", "env": env}).into(),
        }
    }

    async fn work(&self, node: &str) -> (i32, Report) {
        match self.processes.run(self.job(node)).await {
            Terminated::Exit { code, message } => (code, parse(&message).unwrap()),
            Terminated::OutOfMemory => unreachable!("nobody limits it"),
        }
    }

    /// Runs workers on `n1` until a report matches: faults are injected by another task, so the first worker may not see
    /// them.
    async fn work_until(&self, is_told: impl Fn(&Report) -> bool) -> Report {
        let told = async {
            loop {
                let (_, report) = self.work("n1").await;
                if is_told(&report) {
                    return report;
                }
            }
        };
        tokio::time::timeout(Duration::from_mins(1), told).await.expect("it is told in the end")
    }

    fn files(&self) -> usize {
        std::fs::read_dir(self.folder.path()).unwrap().count()
    }
}

#[tokio::test]
async fn a_healthy_node_passes() {
    let bench = Bench::new().await;
    let (code, report) = bench.work("n1").await;
    assert_eq!((code, report.verdict), (0, Verdict::Passed), "{report:?}");
    assert_eq!(report.checks[1].message, "system:serviceaccount:ns:default");
    assert_eq!(bench.files(), 1, "only the authority stays");
}

#[tokio::test]
async fn each_fault_fails_one_node_only() {
    let bench = Bench::new().await;
    let broken = bench.processes.endpoints("n1").await.unwrap();
    for (dns, told) in
        [(Dns::Drop, reason::TIMEOUT), (Dns::ServFail, reason::SERV_FAIL), (Dns::NxDomain, reason::NX_DOMAIN)]
    {
        broken.set_dns(dns);
        let (code, report) = bench.work("n1").await;
        assert_eq!((code, report.checks[0].reason.as_str()), (1, told), "{report:?}");
    }
    broken.set_dns(Dns::Healthy);
    for (api, told) in [
        (Api::Refuse, reason::REFUSED),
        (Api::Blackhole, reason::TIMEOUT),
        (Api::WrongCertificate, reason::TLS_ERROR),
    ] {
        broken.set_api(api);
        let report = bench.work_until(|report| report.checks[1].reason == told).await;
        assert_eq!(report.verdict, Verdict::Failed, "{report:?}");
        assert_eq!(bench.work("n2").await.0, 0);
    }
    broken.set_api(Api::Healthy);
    let healed = async { while bench.work("n1").await.0 != 0 {} };
    tokio::time::timeout(Duration::from_mins(1), healed).await.expect("a healed node passes");
}

#[tokio::test]
async fn f23_unreachable_pods_fail_one_node_only() {
    let bench = Bench::new().await;
    let broken = bench.processes.endpoints("n1").await.unwrap();
    broken.set_pods(Pods::Refuse);
    let report = bench.work_until(|report| report.verdict != Verdict::Passed).await;
    let peers = report.checks.iter().find(|check| check.name == "peers").unwrap();
    assert_eq!((report.verdict, peers.reason.as_str()), (Verdict::Failed, reason::REFUSED), "{report:?}");
    assert!(peers.message.contains("10.244.0.2:53 on system-1 in a"), "{peers:?}");
    assert_eq!(report.summary().split(' ').next(), Some("peers"), "nothing else fails");
    assert_eq!(bench.work("n2").await.0, 0);
}

#[tokio::test]
async fn a_cancelled_worker_is_killed() {
    let bench = Bench::new().await;
    bench.processes.endpoints("n1").await.unwrap().set_dns(Dns::Drop);
    let run = bench.processes.run(bench.job("n1"));
    assert!(tokio::time::timeout(Duration::from_millis(300), run).await.is_err());
    assert_eq!(bench.files(), 1, "its token and its report are gone");
}

#[tokio::test]
async fn a_missing_binary_is_named() {
    let bench = Bench::new().await;
    let nowhere = Processes::new(Setup {
        binary: "/nowhere/at/all".into(),
        folder: bench.folder.path().to_owned(),
        api_server: SocketAddr::from(([127, 0, 0, 1], 1)),
        authority: String::new(),
        tokens: Arc::new(|_| String::new()),
    });
    match nowhere.unwrap().run(bench.job("n1")).await {
        Terminated::Exit { code: 128, message } => assert!(message.contains("/nowhere/at/all"), "{message}"),
        other => unreachable!("{other:?}"),
    }
}
