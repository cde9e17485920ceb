//! The table of metrics. A metric is served, updated and documented from its one entry.

use prometheus_client::metrics::MetricType;

use super::registry::Stability::{Alpha, Beta, Stable};
use super::registry::{Entry, Registry, Set};
use super::series::{Counter, Gauge, Histogram, Series, Value as _};

/// Declares a struct of metrics, and `new`, which registers them in this order.
macro_rules! updated {
    ($(
        $(#[$doc:meta])*
        $group:ident: $set:ident {
            $($field:ident: $value:ident($($bounds:expr)?), $stability:ident, $name:literal, $labels:expr, $help:literal;)*
        }
    )*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $group {
            $(pub $field: Series<$value>,)*
        }

        impl $group {
            pub fn new(registry: &mut Registry) -> Self {
                Self {$(
                    $field: registry.register(
                        Entry {
                            set: Set::$set, stability: $stability, kind: $value::KIND, name: $name, labels: $labels, help: $help,
                        },
                        $value::new($($bounds)?),
                    ),
                )*}
            }
        }
    )*};
}

/// Declares metrics that are computed at each scrape, and the list of them.
macro_rules! collected {
    ($($entry:ident: $kind:ident, $set:ident, $stability:ident, $name:literal, $labels:expr, $help:literal;)*) => {
        $(pub const $entry: Entry = Entry {
            set: Set::$set, stability: $stability, kind: MetricType::$kind, name: $name, labels: $labels, help: $help,
        };)*

        pub const COLLECTED: &[Entry] = &[$($entry),*];
    };
}

const CONTROLLER: &[&str] = &["controller"];
const QUEUE: &[&str] = &["name", "controller"];

const GATED_SECONDS: &[f64] = &[5.0, 10.0, 15.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 300.0, 600.0, 900.0];
const CHECK_SECONDS: &[f64] = &[0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
const START_SECONDS: &[f64] = &[0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0];
/// The buckets of controller-runtime.
const RECONCILE_SECONDS: &[f64] = &[
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25,
    1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0,
    50.0, 60.0,
];
/// The buckets of client-go.
const QUEUE_SECONDS: &[f64] = &[1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1000.0];
const REQUEST_SECONDS: &[f64] = &[0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];
/// The buckets of kube-node-ready.
const COMPAT_SECONDS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
const COMPAT_WORKER_SECONDS: &[f64] = &[10.0, 30.0, 60.0, 120.0, 180.0, 300.0, 600.0];

updated! {
    /// Metrics of the gate and of remediation. Their labels are gates, checks and fixed words, so they are bounded.
    Gates: Nodekeeper {
        build: Gauge(), Stable, "nodekeeper_build_info", &["version", "revision"],
            "Version and commit of this build; always 1";
        leader_ready: Gauge(), Beta, "nodekeeper_leader_ready_seconds", &[],
            "Seconds from acquiring the lease to the first reconcile of this term; 0 before it";
        gated: Histogram(GATED_SECONDS), Stable, "nodekeeper_node_gated_duration_seconds", &["gate", "result"],
            "Seconds from a Node's creation until its taints were removed (passed) or its attempts were used up (failed)";
        verifications: Counter(), Stable, "nodekeeper_verifications_total", &["gate", "result"],
            "Workers that ended, by verdict: passed, failed, inconclusive";
        retries: Counter(), Beta, "nodekeeper_verification_retries_total", &["gate", "reason"],
            "Workers created after another worker of the same node, by the verdict of that one: failed, inconclusive";
        check_runs: Counter(), Stable, "nodekeeper_check_runs_total", &["check"],
            "Checks that workers ran";
        check_failures: Counter(), Stable, "nodekeeper_check_failures_total", &["check", "reason"],
            "Checks that failed";
        check_time: Histogram(CHECK_SECONDS), Stable, "nodekeeper_check_duration_seconds", &["check"],
            "Duration of checks in seconds";
        start_time: Histogram(START_SECONDS), Beta, "nodekeeper_worker_start_duration_seconds", &["gate"],
            "Seconds from the creation of a worker pod until its container runs";
        active: Gauge(), Beta, "nodekeeper_workers_active", &[],
            "Worker pods that count against `--max-workers` now";
        taints: Counter(), Stable, "nodekeeper_taint_operations_total", &["operation", "result"],
            "Patches that remove a gate's taints from a node or add them (operation: remove, add), by result: success, error";
        autoscaler: Gauge(), Beta, "nodekeeper_autoscaler_compatible", &["autoscaler"],
            "1 if the autoscaler is configured to treat the gate's taint as a startup taint, otherwise 0";
        policy: Gauge(), Beta, "nodekeeper_policy_info", &["kind", "name", "enforcement"],
            "One series for each NodeGate with its enforcement; always 1";
        remediations: Counter(), Stable, "nodekeeper_remediations_total", &["provider", "action", "result"],
            "Approved remediations that ended, by result: succeeded, given_up";
        blocked: Counter(), Stable, "nodekeeper_remediations_blocked_total", &["gate", "reason"],
            "Times a remediation became blocked, by reason";
    }

    /// Metrics of controllers, workqueues, leader election and API requests, under the names of controller-runtime and
    /// client-go. Those of controllers and workqueues carry the controller's name.
    Runtime: Common {
        reconciles: Counter(), Stable, "controller_runtime_reconcile_total", &["controller", "result"],
            "Reconciles by result: success, error, requeue, requeue_after";
        errors: Counter(), Stable, "controller_runtime_reconcile_errors_total", CONTROLLER,
            "Reconciles that failed and are retried";
        time: Histogram(RECONCILE_SECONDS), Stable, "controller_runtime_reconcile_time_seconds", CONTROLLER,
            "Duration of reconciles in seconds";
        active: Gauge(), Stable, "controller_runtime_active_workers", CONTROLLER,
            "Reconciles that are running now";
        concurrency: Gauge(), Stable, "controller_runtime_max_concurrent_reconciles", CONTROLLER,
            "Largest number of reconciles that may run at once";
        depth: Gauge(), Stable, "workqueue_depth", QUEUE,
            "Keys that are due and not yet reconciled; refreshed every 5 s";
        adds: Counter(), Stable, "workqueue_adds_total", QUEUE,
            "Keys added to the queue";
        retries: Counter(), Stable, "workqueue_retries_total", QUEUE,
            "Keys added to the queue again after a failed reconcile";
        queue_time: Histogram(QUEUE_SECONDS), Stable, "workqueue_queue_duration_seconds", QUEUE,
            "Seconds from when a key was due until its reconcile started";
        work_time: Histogram(QUEUE_SECONDS), Stable, "workqueue_work_duration_seconds", QUEUE,
            "Duration of reconciles in seconds";
        unfinished: Gauge(), Stable, "workqueue_unfinished_work_seconds", QUEUE,
            "Sum of the seconds that the running reconciles have taken so far; refreshed every 5 s";
        longest: Gauge(), Stable, "workqueue_longest_running_processor_seconds", QUEUE,
            "Seconds that the longest running reconcile has taken so far; refreshed every 5 s";
        panics: Counter(), Stable, "controller_runtime_reconcile_panics_total", CONTROLLER,
            "Always 0: a panic ends the process";
        terminal_errors: Counter(), Stable, "controller_runtime_terminal_reconcile_errors_total", CONTROLLER,
            "Always 0: every failed reconcile is retried";
        leading: Gauge(), Stable, "leader_election_master_status", &["name"],
            "1 if this replica holds the lease, otherwise 0";
        slow_path: Counter(), Stable, "leader_election_slowpath_total", &["name"],
            "Lease renewals that had to read the Lease first";
        requests: Counter(), Stable, "rest_client_requests_total", &["code", "method", "host"],
            "Requests to the API server by HTTP status; <error> if there was no response";
        request_time: Histogram(REQUEST_SECONDS), Stable, "rest_client_request_duration_seconds", &["verb", "host"],
            "Seconds until the API server responded; for a watch, until it started";
    }

    /// Metrics under the names of kube-node-ready.
    Compat: Compat {
        verifications: Counter(), Stable, "kube_node_ready_verifications_total", &["status"],
            "Workers that passed or failed, by status: success, failed";
        worker_pods: Gauge(), Stable, "kube_node_ready_worker_pods", &["status"],
            "running: worker pods that count against `--max-workers` now; succeeded, failed: workers that ended since the process started";
        errors: Counter(), Stable, "kube_node_ready_controller_reconcile_errors_total", &[],
            "Reconciles that failed";
        retries: Counter(), Stable, "kube_node_ready_verification_retries_total", &[],
            "Workers created after another worker of the same node";
        reconciliations: Counter(), Stable, "kube_node_ready_controller_reconciliation_total", &["result"],
            "Reconciles of nodes by result, and worker results";
        transitions: Counter(), Stable, "kube_node_ready_controller_leader_election_transitions_total", &[],
            "Times this replica acquired or lost the lease";
        leading: Gauge(), Stable, "kube_node_ready_controller_leader_election_status", &[],
            "1 if this replica holds the lease, otherwise 0";
        healthy: Gauge(), Stable, "kube_node_ready_controller_healthy", &[],
            "1 if /readyz of this replica answers 200, otherwise 0";
        lease: Gauge(), Stable, "kube_node_ready_controller_leader_election_lease_duration_seconds", &[],
            "Duration of the lease in seconds";
        started: Gauge(), Stable, "kube_node_ready_controller_start_time_seconds", &[],
            "Start time of this controller as Unix time in seconds";
        depth: Gauge(), Stable, "kube_node_ready_controller_reconcile_queue_depth", &[],
            "Keys that are due and not yet reconciled; refreshed every 5 s";
        latency: Histogram(COMPAT_SECONDS), Stable, "kube_node_ready_controller_reconcile_queue_latency_seconds", &[],
            "Seconds from when a key was due until its reconcile started";
        build: Gauge(), Stable, "kube_node_ready_build_info", &["version", "commit_hash", "build_date"],
            "Version, commit and date of this build; always 1";
    }

    /// Metrics of an agent, most of them under the names of kube-node-ready's DaemonSet mode.
    Agents: Agent {
        status: Gauge(), Stable, "node_check_status", &["node"],
            "1 if the last run of the checks passed, otherwise 0";
        dns: Gauge(), Stable, "node_check_dns_duration_seconds", &["node"],
            "Duration of the DNS check in the last run, in seconds; 0 before it";
        api: Gauge(), Stable, "node_check_api_duration_seconds", &["node"],
            "Duration of the API check in the last run, in seconds; 0 before it";
        completion: Gauge(), Stable, "node_check_completion_timestamp", &["node"],
            "End of the last run of the checks as Unix time in seconds; 0 before it";
        failures: Counter(), Stable, "node_check_failures_total", &["node", "check"],
            "Checks that failed";
        gave_up: Gauge(), Beta, "nodekeeper_agent_gave_up", &[],
            "1 while the node is tainted and its attempts are used up or its deadline has passed, otherwise 0; it is verified again at the interval";
    }

    /// Metrics under the names of kube-node-ready with series for each node, whose name is the first label.
    CompatNodes: CompatPerNode {
        attempts: Counter(), Stable, "kube_node_ready_verification_attempts_total", &["node", "status"],
            "Workers of this node that passed or failed, by status: success, failed";
        taint_removals: Counter(), Stable, "kube_node_ready_node_taint_removal_total", &["node", "status"],
            "Patches that remove the gate's taints from this node, by status: success, failed";
        label_adds: Counter(), Stable, "kube_node_ready_node_label_add_total", &["node", "status"],
            "Patches that add the verified label to this node, which is one patch with the removal of taints, by status: success, failed";
        update_time: Histogram(COMPAT_SECONDS), Stable, "kube_node_ready_node_update_duration_seconds", &["node", "operation"],
            "Duration of the patch that removes the taints from this node, in seconds";
        reconcile_time: Histogram(COMPAT_SECONDS), Stable, "kube_node_ready_controller_reconciliation_duration_seconds", &["node"],
            "Duration of reconciles of this node in seconds";
        errors: Counter(), Stable, "kube_node_ready_controller_reconciliation_errors_total", &["node", "error_type"],
            "Errors by type: node_fetch_error, worker_job_creation_error, node_update_error, max_retries_exceeded";
        created: Counter(), Stable, "kube_node_ready_controller_worker_pods_created_total", &["node"],
            "Worker pods created for this node";
        succeeded: Counter(), Stable, "kube_node_ready_controller_worker_pods_succeeded_total", &["node"],
            "Workers of this node that passed";
        failed: Counter(), Stable, "kube_node_ready_controller_worker_pods_failed_total", &["node", "reason"],
            "Workers of this node that did not pass, by reason: failed, inconclusive";
        worker_time: Histogram(COMPAT_WORKER_SECONDS), Stable, "kube_node_ready_controller_worker_pod_duration_seconds", &["node", "result"],
            "Duration of the workers of this node in seconds";
        creation_errors: Counter(), Stable, "kube_node_ready_controller_worker_pod_creation_errors_total", &["node", "error_type"],
            "Worker pods of this node that could not be created";
    }
}

collected! {
    // Of the fleet index.
    NODES: Gauge, Nodekeeper, Stable, "nodekeeper_nodes", &["gate", "state"],
        "Nodes by gate and state. Those of `status.nodes`, whose sum without verified is `gated` there: waiting, verifying, inconclusive, stuck (no conclusive worker before the deadline), failed, verified. And audited (admitted by a gate that audits, though it did not pass), unserved (tainted, and no gate selects it), terminating (being deleted), excluded (never gated)";
    OLDEST: Gauge, Nodekeeper, Stable, "nodekeeper_node_oldest_gated_timestamp_seconds", &["gate"],
        "Creation time of the oldest node that is not verified yet, as Unix time in seconds; absent if there is none";
    INFO: Gauge, PerNode, Alpha, "nodekeeper_node_info", &["node", "gate", "state"],
        "One series for each node that a gate selects; always 1";
    COMPAT_UNVERIFIED: Gauge, Compat, Stable, "kube_node_ready_controller_nodes_unverified", &[],
        "Nodes that wait for a worker";
    COMPAT_VERIFYING: Gauge, Compat, Stable, "kube_node_ready_controller_nodes_verifying", &[],
        "Nodes with a worker";
    COMPAT_VERIFIED: Gauge, Compat, Stable, "kube_node_ready_controller_nodes_verified", &[],
        "Nodes that are verified";
    COMPAT_FAILED: Gauge, Compat, Stable, "kube_node_ready_controller_nodes_failed", &[],
        "Nodes whose attempts are used up";
    STATUS: Gauge, CompatPerNode, Stable, "kube_node_ready_verification_status", &["node", "status"],
        "The state of a node: unverified, pending, in_progress, verified, failed, deleting, and no_taint for a node that an audit admitted; always 1";
    DURATION: Gauge, CompatPerNode, Stable, "kube_node_ready_verification_duration_seconds", &["node"],
        "Duration of the worker that gave this node its last verdict, in seconds";
    RETRIES: Counter, CompatPerNode, Stable, "kube_node_ready_retry_attempts_total", &["node"],
        "Attempts after the first, from the node's record";
    RETRY_COUNT: Gauge, CompatPerNode, Stable, "kube_node_ready_controller_node_retry_count", &["node"],
        "The same number as kube_node_ready_retry_attempts_total";
    VERIFIED: Gauge, CompatPerNode, Stable, "kube_node_ready_node_status", &["node"],
        "1 if the node is verified, otherwise 0";
    ACTIVE: Gauge, CompatPerNode, Stable, "kube_node_ready_controller_worker_pods_active", &["node"],
        "1 while the node has a worker, otherwise 0";
    // Of `/proc`.
    CPU: Counter, Common, Stable, "process_cpu_seconds_total", &[],
        "User and system CPU time spent, in seconds";
    RESIDENT: Gauge, Common, Stable, "process_resident_memory_bytes", &[],
        "Resident memory in bytes";
    VIRTUAL: Gauge, Common, Stable, "process_virtual_memory_bytes", &[],
        "Virtual memory in bytes";
    START: Gauge, Common, Stable, "process_start_time_seconds", &[],
        "Start time of the process as Unix time in seconds";
    OPEN: Gauge, Common, Stable, "process_open_fds", &[],
        "Number of open file descriptors";
    MAX_FDS: Gauge, Common, Stable, "process_max_fds", &[],
        "Largest number of open file descriptors";
    THREADS: Gauge, Common, Stable, "process_threads", &[],
        "Number of threads";
}
