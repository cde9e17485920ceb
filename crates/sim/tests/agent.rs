//! Agents on simulated nodes: what they do to their own node, and how they share it with a controller.

mod gate;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use gate::bench::Bench;
use gate::{LABEL, NAMESPACE, TAINT, template};
use http::{Request, Response};
use kube::client::Body;
use nodekeeper_checks::{Answers, run_again};
use nodekeeper_core::api::{Mode, NodeGateSpec};
use nodekeeper_core::checks::Assignment;
use nodekeeper_core::gate::AgentTiming;
use nodekeeper_core::record::{ANNOTATION, Record};
use nodekeeper_core::report::{Report, Verdict};
use nodekeeper_operator::Settings;
use nodekeeper_operator::agent::{AgentSettings, GateSource, RunChecks, run};
use nodekeeper_operator::health::Health;
use nodekeeper_operator::metrics::{Format, Metrics, Options};
use nodekeeper_sim::network::{self, Fault, Outage};
use nodekeeper_sim::object::{items, name, set, text};
use nodekeeper_sim::value::{Value, json};
use nodekeeper_sim::worker::PodNetwork;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tower::service_fn;

const INTERVAL: Duration = Duration::from_mins(1);

/// The checks of a pod on a node, in the network of the simulator.
struct Checks {
    net: PodNetwork,
    answers: Arc<Answers>,
}

impl RunChecks for Checks {
    fn run(&self, assignment: Assignment) -> BoxFuture<'static, Report> {
        let (net, answers) = (self.net.clone(), self.answers.clone());
        async move { run_again(&net, &assignment, &answers, &|_| {}).await }.boxed()
    }
}

/// An agent that runs; dropped without a stop it is killed.
struct Agent {
    running: JoinHandle<()>,
    stop: Arc<Notify>,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.running.abort();
    }
}

impl Agent {
    fn start(bench: &Bench, node: &str, mode: Mode, gate: GateSource) -> Self {
        let client = bench.cluster.client(&format!("replica-agent-{node}"));
        Self::with_client(bench, node, mode, gate, client)
    }

    fn with_client(bench: &Bench, node: &str, mode: Mode, gate: GateSource, client: kube::Client) -> Self {
        let (metrics, health) =
            (Arc::new(Metrics::new(Options { agent: true, ..Options::default() })), Arc::<Health>::default());
        let settings = AgentSettings {
            node: node.into(),
            gate,
            timing: AgentTiming { mode, interval: INTERVAL },
            identity: format!("replica-agent-{node}"),
            seed: 7,
            metrics: metrics.clone(),
            health: health.clone(),
        };
        let net = PodNetwork {
            cluster: bench.cluster.clone(),
            node: node.into(),
            zone: "a".into(),
            user: format!("system:serviceaccount:{NAMESPACE}:nodekeeper-agent"),
            latency: Duration::from_millis(5),
        };
        let checks = Checks { net, answers: Arc::new(Answers::new(Duration::from_mins(10))) };
        let stop = Arc::new(Notify::new());
        let told = stop.clone();
        let running =
            run(client, settings, Arc::new(checks), bench.clock(), async move { told.notified().await });
        Self { running: tokio::spawn(running), stop, metrics, health }
    }

    /// With the gate of its flags.
    fn alone(bench: &Bench, node: &str, mode: Mode) -> Self {
        Self::start(bench, node, mode, GateSource::Flags(Box::default()))
    }

    /// With the gate of the controller.
    fn beside_controller(bench: &Bench, node: &str, mode: Mode) -> Self {
        Self::start(bench, node, mode, GateSource::NodeGate("default".into()))
    }

    #[track_caller]
    fn assert_has(&self, line: &str) {
        let text = self.metrics.render(Format::Prometheus).expect("rendering to a string cannot fail");
        assert!(text.lines().any(|served| served == line), "no {line} in\n{text}");
    }
}

fn node_of(bench: &Bench, node: &str) -> Arc<Value> {
    bench.cluster.local("test").get("nodes", "", node).expect("the node is there")
}

fn is_tainted(bench: &Bench, node: &str) -> bool {
    items(&node_of(bench, node), "spec.taints").iter().any(|taint| text(taint, "key") == TAINT)
}

fn record_of(bench: &Bench, node: &str) -> Record {
    let node = node_of(bench, node);
    let annotations = node["metadata"]["annotations"].as_object();
    let written = annotations.and_then(|all| all.get(ANNOTATION)).and_then(Value::as_str);
    Record::read(written, text(&node, "metadata.uid")).expect("it has a record")
}

fn events(bench: &Bench, reason: &str) -> usize {
    let all = bench.cluster.local("test").all("events");
    all.iter().filter(|event| text(event, "reason") == reason).count()
}

fn worker_pods(bench: &Bench) -> usize {
    let pods = bench.cluster.local("test").all("pods");
    pods.iter()
        .filter(|pod| {
            text(pod, "metadata.labels.app.kubernetes.io/component") == "worker"
                || name(pod).starts_with("nodekeeper-")
        })
        .count()
}

/// The pod of an agent as the DaemonSet and the kubelet make it, for the controller to see.
fn report_agent_pod(bench: &Bench, node: &str, ready: bool) {
    let api = bench.cluster.local("test");
    let pod = format!("agent-{node}");
    let existing = api.get("pods", NAMESPACE, &pod).or_else(|| {
        let labels = json!({"app.kubernetes.io/name": "nodekeeper", "app.kubernetes.io/component": "agent"});
        let body = json!({"metadata": {"name": pod, "labels": labels},
            "spec": {"nodeName": node, "serviceAccountName": template().service_account, "containers": [{"name": "agent", "image": "example.com/agent:1"}]}});
        api.create("v1", "Pod", NAMESPACE, body).expect("the pod is valid");
        api.get("pods", NAMESPACE, &pod)
    });
    let status = if ready { "True" } else { "False" };
    let set_ready =
        |pod: &mut Value| set(pod, "status.conditions", json!([{"type": "Ready", "status": status}]));
    api.change(&existing.expect("it is there"), Some("status"), set_ready).expect("the status is valid");
}

#[tokio::test(start_paused = true)]
async fn an_agent_verifies_its_node_and_then_writes_nothing() {
    let bench = Bench::new();
    bench.join("n1");
    let agent = Agent::alone(&bench, "n1", Mode::Continuous);
    bench.until("n1 is verified", |bench| bench.is_verified("n1")).await;
    assert!(!is_tainted(&bench, "n1"));
    let mut writes = bench.writes.lock().clone();
    writes.sort();
    let user = || "replica-agent-n1".to_owned();
    assert_eq!(
        writes,
        [(user(), "created events".into()), (user(), "updated nodes".into())],
        "one patch opens the node"
    );
    bench.writes.lock().clear();
    sleep(Duration::from_hours(2)).await;
    assert_eq!(*bench.writes.lock(), [], "passes that change nothing are not written");
    assert_eq!(agent.health.ready(bench.clock().elapsed()), Ok("running"));
    agent.assert_has("node_check_status{node=\"n1\"} 1.0");
    agent.assert_has("node_check_failures_total{node=\"n1\",check=\"dns\"} 0");
    agent.assert_has("nodekeeper_agent_gave_up 0.0");
    let text = agent.metrics.render(Format::Prometheus).expect("text");
    let runs = text.lines().find_map(|line| line.strip_prefix("nodekeeper_check_runs_total{check=\"api\"} "));
    let runs: u32 = runs.expect("the check ran").parse().expect("a number");
    assert!((90..=125).contains(&runs), "{runs} runs in two hours at an interval of 60 to 72 s");
}

#[tokio::test(start_paused = true)]
async fn an_agent_in_mode_once_idles_after_its_node_has_passed() {
    let bench = Bench::new();
    bench.join("n1");
    let agent = Agent::alone(&bench, "n1", Mode::Bootstrap);
    bench.until("n1 is verified", |bench| bench.is_verified("n1")).await;
    bench.cluster.network().fail(Outage::All);
    sleep(Duration::from_hours(1)).await;
    assert!(!is_tainted(&bench, "n1") && !agent.running.is_finished(), "it never ends by itself");
    agent.assert_has("nodekeeper_check_runs_total{check=\"api\"} 1");
    bench.cluster.network().heal(&Outage::All);
    // A label that is removed by hand asks for another verification, in place.
    let user = bench.cluster.local("test");
    let remove_label = |node: &mut Value| {
        if let Some(labels) = node["metadata"]["labels"].as_object_mut() {
            labels.remove(LABEL);
        }
    };
    user.change(&node_of(&bench, "n1"), None, remove_label).expect("the node is valid");
    bench.until("the label is back", |bench| bench.is_verified("n1")).await;
    agent.assert_has("nodekeeper_check_runs_total{check=\"api\"} 2");
}

#[tokio::test(start_paused = true)]
async fn one_failure_warns_and_three_in_a_row_taint_until_the_node_heals() {
    let bench = Bench::new();
    bench.join("n1");
    let agent = Agent::alone(&bench, "n1", Mode::Continuous);
    bench.until("n1 is verified", |bench| bench.is_verified("n1")).await;
    let outage = Outage::Node("n1".into());
    // A blip: one run fails.
    bench.cluster.network().fail(outage.clone());
    bench.until("a failure is told", |bench| events(bench, "NodeCheckFailed") == 1).await;
    bench.cluster.network().heal(&outage);
    sleep(Duration::from_mins(5)).await;
    assert!(!is_tainted(&bench, "n1"), "one failure does not taint");
    assert_eq!(events(&bench, "NodeGated"), 0);
    assert_eq!(record_of(&bench, "n1").verdict, Some(Verdict::Passed), "the recovery is recorded");
    // Three in a row.
    bench.cluster.network().fail(outage.clone());
    let broken = Instant::now();
    bench.until_long("n1 is tainted", |bench| is_tainted(bench, "n1")).await;
    assert!(broken.elapsed() > INTERVAL * 2, "{:?}", broken.elapsed());
    assert_eq!((events(&bench, "NodeCheckFailed"), events(&bench, "NodeGated")), (3, 1));
    assert!(!bench.is_verified("n1"), "the label goes with the taint");
    agent.assert_has("node_check_status{node=\"n1\"} 0.0");
    let taints = items(&node_of(&bench, "n1"), "spec.taints").to_vec();
    let own = taints.iter().find(|taint| text(taint, "key") == TAINT).expect("its taint");
    assert_eq!(text(own, "effect"), "NoSchedule");
    // Six more attempts, and then it goes on slowly.
    sleep(Duration::from_mins(10)).await;
    agent.assert_has("nodekeeper_agent_gave_up 1.0");
    bench.cluster.network().heal(&outage);
    bench.until("n1 is verified again", |bench| bench.is_verified("n1")).await;
    assert!(!is_tainted(&bench, "n1"));
    agent.assert_has("nodekeeper_agent_gave_up 0.0");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_fails_its_six_attempts_stays_tainted_and_heals_later() {
    let bench = Bench::new();
    let outage = Outage::Node("n1".into());
    bench.cluster.network().fail(outage.clone());
    bench.join("n1");
    let agent = Agent::alone(&bench, "n1", Mode::Bootstrap);
    bench.until_long("the attempts are used up", |bench| events(bench, "NodeVerificationFailed") == 1).await;
    assert_eq!((events(&bench, "NodeCheckFailed"), is_tainted(&bench, "n1")), (6, true));
    agent.assert_has("nodekeeper_agent_gave_up 1.0");
    bench.cluster.network().heal(&outage);
    bench.until("n1 is verified", |bench| bench.is_verified("n1")).await;
}

/// Otherwise cluster DNS could never be scheduled again on a cluster whose nodes are all tainted.
#[tokio::test(start_paused = true)]
async fn cluster_dns_that_does_not_run_taints_no_node() {
    let bench = Bench::new();
    bench.join("n1");
    let _agent = Agent::alone(&bench, "n1", Mode::Continuous);
    bench.until("n1 is verified", |bench| bench.is_verified("n1")).await;
    network::run_cluster_dns(&bench.cluster, false).expect("it is there");
    sleep(Duration::from_mins(30)).await;
    assert!(!is_tainted(&bench, "n1"));
    network::run_cluster_dns(&bench.cluster, true).expect("it is there");
}

#[tokio::test(start_paused = true)]
async fn a_label_set_by_hand_proves_nothing() {
    let bench = Bench::new();
    let outage = Outage::Node("n1".into());
    bench.cluster.network().fail(outage.clone());
    bench.join("n1");
    let user = bench.cluster.local("test");
    bench.until("n1 is there", |bench| bench.cluster.local("test").get("nodes", "", "n1").is_some()).await;
    user.change(&node_of(&bench, "n1"), None, |node| node["metadata"]["labels"][LABEL] = json!("true"))
        .expect("the node is valid");
    let _agent = Agent::alone(&bench, "n1", Mode::Continuous);
    bench.until_long("it is verified all the same", |bench| events(bench, "NodeCheckFailed") > 0).await;
    assert!(is_tainted(&bench, "n1"));
}

#[tokio::test(start_paused = true)]
async fn a_stop_during_the_checks_ends_the_agent_at_once() {
    let bench = Bench::new();
    bench.cluster.network().fail_at(Fault::Services, Outage::All);
    bench.join("n1");
    let mut agent = Agent::alone(&bench, "n1", Mode::Continuous);
    // A check without an answer takes ten seconds.
    sleep(Duration::from_secs(5)).await;
    agent.stop.notify_one();
    timeout(Duration::from_secs(1), &mut agent.running).await.expect("in time").expect("without a panic");
    assert!(is_tainted(&bench, "n1"));
    assert!(agent.health.ready(bench.clock().elapsed()).is_err());
}

/// There are as many agents as nodes.
#[tokio::test(start_paused = true)]
async fn an_agent_does_not_load_an_api_server_that_refuses_it() {
    let bench = Bench::new();
    let requests = Arc::new(AtomicU32::new(0));
    let count = requests.clone();
    let server = service_fn(move |_: Request<Body>| {
        count.fetch_add(1, Relaxed);
        async {
            let status = serde_json::json!({"kind": "Status", "code": 503, "message": "overloaded"});
            Ok::<_, std::io::Error>(
                Response::builder().status(503).body(Body::from(status.to_string().into_bytes())).unwrap(),
            )
        }
    });
    let agent = Agent::with_client(
        &bench,
        "n1",
        Mode::Continuous,
        GateSource::Flags(Box::default()),
        kube::Client::new(server, "default"),
    );
    sleep(Duration::from_mins(10)).await;
    let requests = requests.load(Relaxed);
    assert!((10..100).contains(&requests), "{requests} requests in ten minutes");
    assert!(agent.health.ready(bench.clock().elapsed()).is_err());
}

#[tokio::test(start_paused = true)]
async fn a_node_that_never_had_the_taint_is_left_alone() {
    let bench = Bench::new();
    let spec = nodekeeper_sim::actors::kubelet::NodeSpec { name: "n1".into(), ..Default::default() };
    bench.kubelets.join(spec);
    let agent = Agent::alone(&bench, "n1", Mode::Continuous);
    sleep(Duration::from_hours(1)).await;
    assert_eq!(*bench.writes.lock(), []);
    agent.assert_has("node_check_completion_timestamp{node=\"n1\"} 0.0");
}

#[tokio::test(start_paused = true)]
async fn an_agent_without_its_gate_waits_for_it() {
    let bench = Bench::new();
    bench.join("n1");
    let agent = Agent::start(&bench, "n1", Mode::Continuous, GateSource::NodeGate("missing".into()));
    sleep(Duration::from_mins(2)).await;
    assert_eq!(*bench.writes.lock(), []);
    let why = agent.health.ready(bench.clock().elapsed()).expect_err("it cannot do its part");
    assert!(why.contains("there is no NodeGate missing"), "{why}");
    let spec: NodeGateSpec = serde_json::from_value(serde_json::json!({"priority": 5})).expect("valid");
    let body = serde_json::to_value(nodekeeper_core::api::NodeGate::new("missing", spec)).expect("JSON");
    let body: Value = serde_json::from_value(body).expect("JSON");
    let user = bench.cluster.local("test");
    user.create("nodekeeper.dev/v1alpha1", "NodeGate", "", body).expect("the gate is valid");
    bench.until("n1 is verified", |bench| bench.is_verified("n1")).await;
}

#[tokio::test(start_paused = true)]
async fn controller_and_agent_keep_one_record_and_never_verify_twice() {
    let bench = Bench::new();
    let settings =
        Settings { agents: Some("default".into()), ..Settings::new(template(), "replica-0_1".into(), 1) };
    let created: Arc<Mutex<Vec<String>>> = Arc::default();
    let log = created.clone();
    bench.cluster.observe(Box::new(move |change| {
        if let (None, Some(after), "pods") = (&change.before, &change.after, &*change.collection)
            && name(after).starts_with("nodekeeper-")
        {
            log.lock().push(name(after).to_owned());
        }
    }));
    let (_controller, _stop) = bench.controller_with(settings, "replica-0", bench.clock());
    bench.join("n1");
    report_agent_pod(&bench, "n1", false);
    // As a pod of a DaemonSet does, it comes some seconds later.
    sleep(Duration::from_secs(15)).await;
    let agent = Agent::beside_controller(&bench, "n1", Mode::Continuous);
    bench.until("the agent is ready", |bench| agent.health.ready(bench.clock().elapsed()).is_ok()).await;
    report_agent_pod(&bench, "n1", true);
    bench.until("n1 is verified", |bench| bench.is_verified("n1")).await;
    let gate = bench.cluster.local("test").get("nodekeeper.dev/nodegates", "", "default").expect("the gate");
    assert_eq!(record_of(&bench, "n1").scope.gate_uid, *text(&gate, "metadata.uid"));
    sleep(Duration::from_hours(24)).await;
    assert_eq!((worker_pods(&bench), created.lock().len()), (0, 0), "the agent verifies the node");
    // The gate counts the node as any other.
    let gate = bench.cluster.local("test").get("nodekeeper.dev/nodegates", "", "default").expect("the gate");
    assert_eq!(gate["status"]["nodes"]["verified"].as_i64(), Some(1), "{gate:?}");
    // The agent is gone: the controller verifies new nodes, and this one when a user asks for it.
    drop(agent);
    report_agent_pod(&bench, "n1", false);
    let user = bench.cluster.local("test");
    let ask = |node: &mut Value| node["metadata"]["annotations"]["nodekeeper.dev/verify"] = json!("now");
    user.change(&node_of(&bench, "n1"), None, ask).expect("the node is valid");
    let asked = Instant::now();
    bench.until_long("a worker verifies n1", |_| !created.lock().is_empty()).await;
    assert!(asked.elapsed() >= Duration::from_secs(59), "it waits for the agent: {:?}", asked.elapsed());
    bench.join("n2");
    bench.until_long("n2 is verified by a worker", |bench| bench.is_verified("n2")).await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_lets_a_gate_with_precedence_decide() {
    let bench = Bench::new();
    let spec: NodeGateSpec =
        serde_json::from_value(serde_json::json!({"priority": 10, "enforcement": "Paused"})).expect("valid");
    let body = serde_json::to_value(nodekeeper_core::api::NodeGate::new("first", spec)).expect("JSON");
    let body: Value = serde_json::from_value(body).expect("JSON");
    let user = bench.cluster.local("test");
    user.create("nodekeeper.dev/v1alpha1", "NodeGate", "", body).expect("the gate is valid");
    bench.join("n1");
    let _agent = Agent::beside_controller(&bench, "n1", Mode::Continuous);
    sleep(Duration::from_mins(10)).await;
    assert!(is_tainted(&bench, "n1"));
    assert_eq!(*bench.writes.lock(), [], "the controller speaks for the other gate");
}
