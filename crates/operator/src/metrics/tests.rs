use std::collections::BTreeSet;
use std::ops::Deref;

use nodekeeper_core::checks::WorkerIdentity;
use nodekeeper_core::fleet::NodeStatus;
use nodekeeper_core::gate::State;
use nodekeeper_core::report::{Report, reason};

use super::*;

const ALL: Options = Options { compat_names: true, per_node: true, agent: true };

/// Every served metric with its type. Dashboards depend on each.
const NAMES: &[&str] = &[
    "controller_runtime_active_workers gauge",
    "controller_runtime_max_concurrent_reconciles gauge",
    "controller_runtime_reconcile_errors_total counter",
    "controller_runtime_reconcile_panics_total counter",
    "controller_runtime_reconcile_time_seconds histogram",
    "controller_runtime_reconcile_total counter",
    "controller_runtime_terminal_reconcile_errors_total counter",
    "kube_node_ready_build_info gauge",
    "kube_node_ready_controller_healthy gauge",
    "kube_node_ready_controller_leader_election_lease_duration_seconds gauge",
    "kube_node_ready_controller_leader_election_status gauge",
    "kube_node_ready_controller_leader_election_transitions_total counter",
    "kube_node_ready_controller_node_retry_count gauge",
    "kube_node_ready_controller_nodes_failed gauge",
    "kube_node_ready_controller_nodes_unverified gauge",
    "kube_node_ready_controller_nodes_verified gauge",
    "kube_node_ready_controller_nodes_verifying gauge",
    "kube_node_ready_controller_reconcile_errors_total counter",
    "kube_node_ready_controller_reconcile_queue_depth gauge",
    "kube_node_ready_controller_reconcile_queue_latency_seconds histogram",
    "kube_node_ready_controller_reconciliation_duration_seconds histogram",
    "kube_node_ready_controller_reconciliation_errors_total counter",
    "kube_node_ready_controller_reconciliation_total counter",
    "kube_node_ready_controller_start_time_seconds gauge",
    "kube_node_ready_controller_worker_pod_creation_errors_total counter",
    "kube_node_ready_controller_worker_pod_duration_seconds histogram",
    "kube_node_ready_controller_worker_pods_active gauge",
    "kube_node_ready_controller_worker_pods_created_total counter",
    "kube_node_ready_controller_worker_pods_failed_total counter",
    "kube_node_ready_controller_worker_pods_succeeded_total counter",
    "kube_node_ready_node_label_add_total counter",
    "kube_node_ready_node_status gauge",
    "kube_node_ready_node_taint_removal_total counter",
    "kube_node_ready_node_update_duration_seconds histogram",
    "kube_node_ready_retry_attempts_total counter",
    "kube_node_ready_verification_attempts_total counter",
    "kube_node_ready_verification_duration_seconds gauge",
    "kube_node_ready_verification_retries_total counter",
    "kube_node_ready_verification_status gauge",
    "kube_node_ready_verifications_total counter",
    "kube_node_ready_worker_pods gauge",
    "leader_election_master_status gauge",
    "leader_election_slowpath_total counter",
    "node_check_api_duration_seconds gauge",
    "node_check_completion_timestamp gauge",
    "node_check_dns_duration_seconds gauge",
    "node_check_failures_total counter",
    "node_check_status gauge",
    "nodekeeper_agent_gave_up gauge",
    "nodekeeper_autoscaler_compatible gauge",
    "nodekeeper_build_info gauge",
    "nodekeeper_check_duration_seconds histogram",
    "nodekeeper_check_failures_total counter",
    "nodekeeper_check_runs_total counter",
    "nodekeeper_leader_ready_seconds gauge",
    "nodekeeper_node_gated_duration_seconds histogram",
    "nodekeeper_node_info gauge",
    "nodekeeper_node_oldest_gated_timestamp_seconds gauge",
    "nodekeeper_nodes gauge",
    "nodekeeper_policy_info gauge",
    "nodekeeper_remediations_blocked_total counter",
    "nodekeeper_remediations_total counter",
    "nodekeeper_taint_operations_total counter",
    "nodekeeper_verification_retries_total counter",
    "nodekeeper_verifications_total counter",
    "nodekeeper_worker_start_duration_seconds histogram",
    "nodekeeper_workers_active gauge",
    "process_cpu_seconds_total counter",
    "process_max_fds gauge",
    "process_open_fds gauge",
    "process_resident_memory_bytes gauge",
    "process_start_time_seconds gauge",
    "process_threads gauge",
    "process_virtual_memory_bytes gauge",
    "rest_client_request_duration_seconds histogram",
    "rest_client_requests_total counter",
    "workqueue_adds_total counter",
    "workqueue_depth gauge",
    "workqueue_longest_running_processor_seconds gauge",
    "workqueue_queue_duration_seconds histogram",
    "workqueue_retries_total counter",
    "workqueue_unfinished_work_seconds gauge",
    "workqueue_work_duration_seconds histogram",
];

/// The metrics of a leader, with the fleet index that they read.
struct Leader {
    metrics: Metrics,
    fleet: Arc<Mutex<FleetIndex>>,
}

impl Deref for Leader {
    type Target = Metrics;

    fn deref(&self) -> &Metrics {
        &self.metrics
    }
}

fn set_node(leader: &Leader, node: &str, gate: &str, state: State, created_at: Timestamp, attempts: u32) {
    let mut fleet = leader.fleet.lock();
    let (at, created_at, retries) = (fleet.name(gate), created_at.as_second(), attempts.saturating_sub(1));
    let status = NodeStatus {
        at,
        state,
        cause: None,
        retainted: false,
        also_verified_by: Box::default(),
        created_at,
        retries,
        worker_ms: None,
    };
    fleet.set(&node.into(), Some(status));
}

fn remove_node(leader: &Leader, node: &str) {
    leader.fleet.lock().set(&node.into(), None);
    leader.remove_node(node);
}

/// Updates every metric at least once.
fn everything(metrics: &Leader, node: &str) {
    metrics.inc_remediations("karpenter", "replace", "succeeded");
    metrics.inc_remediations_blocked("default", "BudgetSpent");
    let second = Duration::from_secs(1);
    metrics.set_build_info(Build { version: "1", revision: "abc", date: "today" });
    metrics.observe_request("GET", "api", Some(200), second);
    metrics.set_gate("default", "Enforce");
    metrics.set_autoscaler_compatible("karpenter", true);
    set_node(metrics, node, "default", State::InProgress, Timestamp::UNIX_EPOCH, 3);
    metrics.fleet.lock().set_worker_ms(node, 1000);
    metrics.inc_workers_created(node, "default", Some("failed"));
    metrics.inc_worker_create_errors(node, "Refused");
    metrics.observe_worker_start("default", second);
    let dns =
        CheckResult { ms: 20, ..CheckResult::new("dns", "a.", CheckOutcome::Failed, reason::TIMEOUT, "") };
    let api = CheckResult { ms: 10, ..CheckResult::new("api", "", CheckOutcome::Passed, "", "") };
    let checks = &[dns, api];
    for verdict in [Verdict::Passed, Verdict::Failed, Verdict::Inconclusive] {
        metrics.observe_worker(&FinishedWorker { node, gate: "default", verdict, duration: second, checks });
    }
    metrics.observe_taint_removal(node, true, second);
    metrics.observe_node_verified("default", second);
    metrics.observe_node_failed(node, "default", second);
    let report = Report::judge(WorkerIdentity::default(), checks.to_vec(), 20);
    metrics.observe_agent_run(node, &report, Timestamp::UNIX_EPOCH);
    metrics.set_agent_gave_up(true);
    metrics.leader_ready(second);
    metrics.observe_queue_time(GATE, second);
    metrics.observe_reconcile(GATE, ReconcileResult::Error, second);
    metrics.observe_node_reconcile(node, ReconcileResult::Error, second);
}

fn leading(options: Options) -> Leader {
    let metrics = Metrics::new(options);
    let fleet: Arc<Mutex<FleetIndex>> = Arc::default();
    metrics.record_start(Timestamp::UNIX_EPOCH, "lease", Duration::from_secs(15));
    metrics.register_controller(GATE, 32);
    metrics.set_fleet(fleet.clone());
    metrics.start_leading("lease");
    Leader { metrics, fleet }
}

fn text(metrics: &Metrics) -> String {
    metrics.render(Format::Prometheus).unwrap()
}

/// Returns the lines that hold values.
fn series(metrics: &Metrics) -> Vec<String> {
    text(metrics).lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
}

fn types(text: &str) -> Vec<&str> {
    let mut types: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    types.sort_unstable();
    types
}

fn has(metrics: &Metrics, line: &str) -> bool {
    series(metrics).iter().any(|served| served == line)
}

#[track_caller]
fn assert_has(metrics: &Metrics, lines: &[&str]) {
    for line in lines {
        assert!(has(metrics, line), "no {line} in\n{}", text(metrics));
    }
}

#[test]
fn every_metric_is_served_and_documented() {
    let metrics = leading(ALL);
    everything(&metrics, "node-1");
    let text = text(&metrics);
    assert_eq!(types(&text), NAMES);
    let mut entered: Vec<String> = metrics
        .registry
        .entries
        .iter()
        .map(|entry| format!("{} {}", entry.name, entry.type_name()))
        .collect();
    entered.sort();
    assert_eq!(entered, NAMES, "documented and served metrics differ");
    let page = Metrics::reference();
    for name in NAMES.iter().filter_map(|name| name.split(' ').next()) {
        assert!(page.contains(&format!("| `{name}` |")), "{name} is not documented");
    }
}

#[test]
fn served_labels_match_the_documented_ones() {
    let metrics = leading(ALL);
    everything(&metrics, "node-1");
    let served = series(&metrics);
    for entry in &metrics.registry.entries {
        let suffix = if entry.type_name() == "histogram" { "_count" } else { "" };
        let start = format!("{}{suffix}", entry.name);
        let line = served
            .iter()
            .find(|line| line.strip_prefix(&start).is_some_and(|rest| rest.starts_with(['{', ' '])));
        let line = line.unwrap_or_else(|| panic!("no series of {}", entry.name));
        let inside = line.split_once('{').map_or("", |(_, rest)| rest.rsplit_once('}').unwrap().0);
        let labels: Vec<&str> =
            inside.split("\",").filter_map(|label| label.split_once('=')).map(|(name, _)| name).collect();
        assert_eq!(labels, entry.labels, "{line}");
    }
}

#[test]
fn known_series_start_at_zero() {
    let metrics = Metrics::new(ALL);
    metrics.register_controller(GATE, 32);
    assert_has(
        &metrics,
        &[
            "kube_node_ready_verifications_total{status=\"success\"} 0",
            "kube_node_ready_verifications_total{status=\"failed\"} 0",
            "kube_node_ready_worker_pods{status=\"running\"} 0.0",
            "kube_node_ready_worker_pods{status=\"succeeded\"} 0.0",
            "kube_node_ready_controller_reconcile_errors_total 0",
            "controller_runtime_reconcile_total{controller=\"gate\",result=\"error\"} 0",
            "workqueue_adds_total{name=\"gate\",controller=\"gate\"} 0",
            "nodekeeper_taint_operations_total{operation=\"remove\",result=\"error\"} 0",
        ],
    );
}

#[test]
fn an_agent_serves_the_documented_values_of_its_node_from_the_start() {
    let metrics = Metrics::new(Options { agent: true, ..Options::default() });
    metrics.register_agent("node-1");
    assert_has(
        &metrics,
        &[
            "node_check_status{node=\"node-1\"} 0.0",
            "node_check_dns_duration_seconds{node=\"node-1\"} 0.0",
            "node_check_completion_timestamp{node=\"node-1\"} 0.0",
            "node_check_failures_total{node=\"node-1\",check=\"dns\"} 0",
            "nodekeeper_agent_gave_up 0.0",
        ],
    );
    let result = |name, outcome, ms| CheckResult { ms, ..CheckResult::new(name, "", outcome, "", "") };
    let run = |dns| {
        let api = result("api", CheckOutcome::Passed, 456);
        let checks = vec![result("dns", dns, 123), result("dns", CheckOutcome::Passed, 20), api];
        let report = Report::judge(WorkerIdentity::default(), checks, 456);
        metrics.observe_agent_run("node-1", &report, Timestamp::from_second(1_234_567_890).unwrap());
    };
    run(CheckOutcome::Passed);
    assert_has(
        &metrics,
        &[
            "node_check_status{node=\"node-1\"} 1.0",
            "node_check_dns_duration_seconds{node=\"node-1\"} 0.123",
            "node_check_api_duration_seconds{node=\"node-1\"} 0.456",
            "node_check_completion_timestamp{node=\"node-1\"} 1234567890.0",
        ],
    );
    run(CheckOutcome::Failed);
    assert_has(
        &metrics,
        &[
            "node_check_status{node=\"node-1\"} 0.0",
            "node_check_failures_total{node=\"node-1\",check=\"dns\"} 1",
            "node_check_failures_total{node=\"node-1\",check=\"api\"} 0",
        ],
    );
    assert!(
        !text(&Metrics::new(Options::default())).contains("node_check_"),
        "a controller has none of them"
    );
}

#[test]
fn compat_metrics_have_the_documented_values() {
    let metrics = leading(ALL);
    set_node(&metrics, "node-1", "config", State::Verified, Timestamp::UNIX_EPOCH, 1);
    set_node(&metrics, "node-2", "config", State::InProgress, Timestamp::UNIX_EPOCH, 3);
    set_node(&metrics, "node-2", "config", State::Failed, Timestamp::UNIX_EPOCH, 4);
    let duration = Duration::from_millis(45_250);
    let ended = |node, verdict| FinishedWorker { node, gate: "config", verdict, duration, checks: &[] };
    metrics.fleet.lock().set_worker_ms("node-1", 45_250);
    metrics.observe_worker(&ended("node-1", Verdict::Passed));
    metrics.observe_worker(&ended("node-2", Verdict::Failed));
    metrics.observe_worker(&ended("node-2", Verdict::Inconclusive));
    metrics.set_active_workers(2);
    metrics.set_ready(true);
    assert_has(
        &metrics,
        &[
            "kube_node_ready_verification_status{node=\"node-1\",status=\"verified\"} 1.0",
            "kube_node_ready_verification_status{node=\"node-2\",status=\"failed\"} 1.0",
            "kube_node_ready_verification_duration_seconds{node=\"node-1\"} 45.25",
            "kube_node_ready_verifications_total{status=\"success\"} 1",
            "kube_node_ready_verifications_total{status=\"failed\"} 1",
            "kube_node_ready_worker_pods{status=\"running\"} 2.0",
            "kube_node_ready_worker_pods{status=\"succeeded\"} 1.0",
            "kube_node_ready_worker_pods{status=\"failed\"} 2.0",
            "kube_node_ready_retry_attempts_total{node=\"node-2\"} 3",
            "kube_node_ready_controller_healthy 1.0",
            "kube_node_ready_controller_nodes_verified 1.0",
            "kube_node_ready_controller_nodes_verifying 0.0",
        ],
    );
    let of_node_2 = |line: &&String| line.starts_with("kube_node_ready_verification_status{node=\"node-2\"");
    assert_eq!(series(&metrics).iter().filter(of_node_2).count(), 1, "one state per node");
}

#[test]
fn f20_node_series_are_removed_with_the_node_and_the_term() {
    let metrics = leading(ALL);
    for node in ["node-1", "node-10", "node-1-b", "node-1.c"] {
        everything(&metrics, node);
    }
    let of = |node: &str| {
        let label = format!("node=\"{node}\"");
        series(&metrics).iter().filter(|line| line.contains(&label)).count()
    };
    let whole = of("node-1");
    assert!(whole > 15, "{whole}");
    remove_node(&metrics, "node-1");
    assert_eq!([of("node-1"), of("node-10"), of("node-1-b"), of("node-1.c")], [0, whole, whole, whole]);
    // A reconcile that ends after the node was deleted must not bring a series back.
    metrics.observe_node_reconcile("node-1", ReconcileResult::Success, Duration::ZERO);
    metrics.observe_taint_removal("node-1", false, Duration::ZERO);
    metrics.inc_workers_created("node-1", "default", None);
    assert_eq!(of("node-1"), 0);
    metrics.stop_leading("lease");
    let left: Vec<String> = series(&metrics).into_iter().filter(|line| line.contains("node=\"")).collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(!text(&metrics).contains("nodekeeper_nodes{"), "only the leader serves node metrics");
    assert!(!text(&metrics).contains("kube_node_ready_controller_nodes_verified "));
    set_node(&metrics, "node-1", "default", State::Verified, Timestamp::UNIX_EPOCH, 1);
    assert_eq!(of("node-1"), 0, "an update after the term ended");
    assert_has(&metrics, &["leader_election_master_status{name=\"lease\"} 0.0"]);
}

#[test]
fn f20_deleted_nodes_leave_no_series_behind() {
    for options in [Options::default(), ALL] {
        let metrics = leading(options);
        everything(&metrics, "node-0");
        remove_node(&metrics, "node-0");
        let before = series(&metrics).len();
        for index in 1..=1000 {
            let node = format!("ip-10-0-{}-{}.eu-west-1.compute.internal", index / 250, index % 250);
            everything(&metrics, &node);
            remove_node(&metrics, &node);
        }
        assert_eq!(series(&metrics).len(), before, "{options:?}");
    }
}

#[test]
fn without_per_node_no_node_name_is_served() {
    for compat_names in [false, true] {
        let metrics = leading(Options { compat_names, per_node: false, agent: false });
        everything(&metrics, "node-0");
        let before = series(&metrics).len();
        for index in 1..=1000 {
            everything(&metrics, &format!("node-{index}"));
        }
        assert_eq!(series(&metrics).len(), before, "compat_names: {compat_names}");
        assert!(!text(&metrics).contains("node-1"), "{}", text(&metrics));
        assert_eq!(text(&metrics).contains("kube_node_ready_"), compat_names);
        assert_has(&metrics, &["nodekeeper_nodes{gate=\"default\",state=\"verifying\"} 1001.0"]);
    }
}

#[test]
fn forged_check_names_cannot_exceed_the_series_limit() {
    let metrics = leading(Options::default());
    let forge = |index: u32| {
        let name = format!("check-{index}\n\"\u{1f}");
        let check = CheckResult::new(&name, "", CheckOutcome::Failed, "Why", "");
        let verdict = Verdict::Failed;
        metrics.observe_worker(&FinishedWorker {
            node: "n",
            gate: "g",
            verdict,
            duration: Duration::ZERO,
            checks: &[check],
        });
    };
    (0..2000).for_each(forge);
    let runs: Vec<String> =
        series(&metrics).into_iter().filter(|line| line.starts_with("nodekeeper_check_runs_total")).collect();
    assert!(runs.len() <= 400, "{}", runs.len());
    assert!(runs.iter().any(|line| line.contains("\"check-0?\\\"?\"")), "{:?}", runs[0]);
    assert!(has(&metrics, "nodekeeper_check_runs_total{check=\"other\"} 1601"), "{:?}", runs.last());
}

#[test]
fn nodes_are_counted_by_gate_and_state() {
    let metrics = leading(Options::default());
    let at = |second| Timestamp::from_second(second).unwrap();
    metrics.set_gate("gpu", "Enforce");
    set_node(&metrics, "a", "gpu", State::Waiting, at(500), 0);
    set_node(&metrics, "b", "gpu", State::Pending, at(300), 0);
    set_node(&metrics, "c", "gpu", State::Verified, at(100), 1);
    set_node(&metrics, "d", "", State::Ungated, at(50), 0);
    assert_has(
        &metrics,
        &[
            "nodekeeper_nodes{gate=\"gpu\",state=\"waiting\"} 1.0",
            "nodekeeper_nodes{gate=\"gpu\",state=\"verifying\"} 1.0",
            "nodekeeper_nodes{gate=\"gpu\",state=\"verified\"} 1.0",
            "nodekeeper_nodes{gate=\"\",state=\"excluded\"} 1.0",
            "nodekeeper_node_oldest_gated_timestamp_seconds{gate=\"gpu\"} 300.0",
        ],
    );
    set_node(&metrics, "b", "gpu", State::Verified, at(300), 1);
    assert_has(
        &metrics,
        &[
            "nodekeeper_nodes{gate=\"gpu\",state=\"verified\"} 2.0",
            "nodekeeper_nodes{gate=\"gpu\",state=\"verifying\"} 0.0",
            "nodekeeper_node_oldest_gated_timestamp_seconds{gate=\"gpu\"} 500.0",
        ],
    );
}

#[test]
fn a_gate_has_one_enforcement_and_its_series_are_removed() {
    let metrics = leading(Options::default());
    metrics.set_gate("gpu", "DryRun");
    metrics.set_gate("gpu", "Enforce");
    assert_has(
        &metrics,
        &[
            "nodekeeper_policy_info{kind=\"NodeGate\",name=\"gpu\",enforcement=\"Enforce\"} 1.0",
            "nodekeeper_verifications_total{gate=\"gpu\",result=\"inconclusive\"} 0",
        ],
    );
    assert!(!text(&metrics).contains("DryRun"));
    metrics.remove_gate("gpu");
    assert!(!text(&metrics).contains("gpu"), "{}", text(&metrics));
}

#[test]
fn openmetrics_families_have_no_total_suffix() {
    let metrics = leading(ALL);
    everything(&metrics, "node-1");
    let open = metrics.render(Format::OpenMetrics).unwrap();
    assert!(open.ends_with("# EOF\n"));
    let families: Vec<&str> = types(&open);
    assert_eq!(families.len(), families.iter().collect::<BTreeSet<_>>().len(), "a family twice");
    assert!(families.iter().all(|family| !family.contains("_total ")), "{families:?}");
    assert!(open.contains("\ncontroller_runtime_reconcile_errors_total{controller=\"gate\"} 1\n"), "{open}");
    assert!(!open.contains("_total_total"));
}

#[test]
fn s08_every_state_of_kube_node_ready_is_documented() {
    let help = table::STATUS.help;
    for state in [
        State::Unserved,
        State::Verified,
        State::Terminating,
        State::Waiting,
        State::Unverified,
        State::Pending,
        State::InProgress,
        State::Inconclusive,
        State::Stuck,
        State::Failed,
        State::Audited,
    ] {
        assert!(help.contains(nodes::compat_state(state)), "{state:?}: {help}");
    }
}

#[test]
fn durations_are_counted_in_their_buckets() {
    let metrics = leading(Options::default());
    for seconds in [5, 6, 10_000] {
        metrics.observe_node_verified("g", Duration::from_secs(seconds));
    }
    let bucket = |le: &str, count: u32| {
        format!(
            "nodekeeper_node_gated_duration_seconds_bucket{{le=\"{le}\",gate=\"g\",result=\"passed\"}} {count}"
        )
    };
    assert_has(&metrics, &[&bucket("5.0", 1), &bucket("10.0", 2), &bucket("900.0", 2), &bucket("+Inf", 3)]);
    assert_has(
        &metrics,
        &["nodekeeper_node_gated_duration_seconds_sum{gate=\"g\",result=\"passed\"} 10011.0"],
    );
}

#[test]
fn g13_each_controller_has_its_own_series() {
    let metrics = leading(ALL);
    metrics.register_controller("remediation", 4);
    let second = Duration::from_secs(1);
    let numbers = |depth| QueueStats { depth, adds: 2, retries: 1, unfinished: second, longest: second };
    metrics.set_queue_stats(GATE, &numbers(3));
    metrics.set_queue_stats("remediation", &numbers(7));
    metrics.set_active_reconciles("remediation", 2);
    metrics.observe_queue_time("remediation", second);
    metrics.observe_reconcile("remediation", ReconcileResult::RequeueAfter, second);
    assert_has(
        &metrics,
        &[
            "controller_runtime_max_concurrent_reconciles{controller=\"gate\"} 32.0",
            "controller_runtime_max_concurrent_reconciles{controller=\"remediation\"} 4.0",
            "controller_runtime_active_workers{controller=\"gate\"} 0.0",
            "controller_runtime_active_workers{controller=\"remediation\"} 2.0",
            "controller_runtime_reconcile_total{controller=\"remediation\",result=\"requeue_after\"} 1",
            "controller_runtime_reconcile_total{controller=\"gate\",result=\"requeue_after\"} 0",
            "workqueue_depth{name=\"gate\",controller=\"gate\"} 3.0",
            "workqueue_depth{name=\"remediation\",controller=\"remediation\"} 7.0",
            "workqueue_queue_duration_seconds_count{name=\"remediation\",controller=\"remediation\"} 1",
            "workqueue_queue_duration_seconds_count{name=\"gate\",controller=\"gate\"} 0",
            "kube_node_ready_controller_reconcile_queue_depth 3.0",
            "kube_node_ready_controller_reconcile_queue_latency_seconds_count 0",
        ],
    );
    metrics.stop_leading("lease");
    assert_has(
        &metrics,
        &[
            "workqueue_depth{name=\"remediation\",controller=\"remediation\"} 0.0",
            "workqueue_adds_total{name=\"remediation\",controller=\"remediation\"} 2",
            "controller_runtime_active_workers{controller=\"remediation\"} 0.0",
        ],
    );
}

#[test]
fn the_time_to_the_first_reconcile_is_that_of_this_term() {
    let metrics = leading(Options::default());
    metrics.leader_ready(Duration::from_millis(1500));
    assert_has(&metrics, &["nodekeeper_leader_ready_seconds 1.5"]);
    metrics.stop_leading("lease");
    assert_has(&metrics, &["nodekeeper_leader_ready_seconds 0.0"]);
}
