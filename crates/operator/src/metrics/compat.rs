//! Metrics under the names of kube-node-ready, served with `--metrics-compat-names`.

use super::registry::Stability::Stable;
use super::registry::{Entry, Registry, Set, entry};
use super::series::{Counter, Gauge, Histogram, Series};

const SECONDS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
const WORKER_SECONDS: &[f64] = &[10.0, 30.0, 60.0, 120.0, 180.0, 300.0, 600.0];

/// The values of `result` in kube-node-ready that can occur here.
const RESULTS: [&str; 11] = [
    "deleted",
    "error",
    "already_verified",
    "no_taint",
    "worker_created",
    "worker_running",
    "worker_succeeded",
    "worker_failed",
    "backoff",
    "retry",
    "verification_failed_permanent",
];

#[derive(Debug)]
pub struct Compat {
    pub verifications: Series<Counter>,
    pub worker_pods: Series<Gauge>,
    pub errors: Series<Counter>,
    pub retries: Series<Counter>,
    pub reconciliations: Series<Counter>,
    pub transitions: Series<Counter>,
    pub leading: Series<Gauge>,
    pub healthy: Series<Gauge>,
    pub lease: Series<Gauge>,
    pub started: Series<Gauge>,
    pub depth: Series<Gauge>,
    pub latency: Series<Histogram>,
    pub build: Series<Gauge>,
    pub nodes: CompatNodes,
}

/// Metrics with series for each node. The node name is always the first label.
#[derive(Debug)]
pub struct CompatNodes {
    pub attempts: Series<Counter>,
    pub taint_removals: Series<Counter>,
    pub label_adds: Series<Counter>,
    pub update_time: Series<Histogram>,
    pub reconcile_time: Series<Histogram>,
    pub errors: Series<Counter>,
    pub created: Series<Counter>,
    pub succeeded: Series<Counter>,
    pub failed: Series<Counter>,
    pub worker_time: Series<Histogram>,
    pub creation_errors: Series<Counter>,
}

const fn plain(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Entry {
    entry(Set::Compat, Stable, name, labels, help)
}

const fn by_node(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Entry {
    entry(Set::CompatPerNode, Stable, name, labels, help)
}

const VERIFICATIONS: Entry = plain(
    "kube_node_ready_verifications_total",
    &["status"],
    "Workers that passed or failed, by status: success, failed",
);
const WORKER_PODS: Entry = plain(
    "kube_node_ready_worker_pods",
    &["status"],
    "running: worker pods that count against `--max-workers` now; succeeded, failed: workers that ended since the process started",
);
const ERRORS: Entry =
    plain("kube_node_ready_controller_reconcile_errors_total", &[], "Reconciles that failed");
const RETRIES: Entry = plain(
    "kube_node_ready_verification_retries_total",
    &[],
    "Workers created after another worker of the same node",
);
const RECONCILIATIONS: Entry = plain(
    "kube_node_ready_controller_reconciliation_total",
    &["result"],
    "Reconciles of nodes by result, and worker results",
);
const TRANSITIONS: Entry = plain(
    "kube_node_ready_controller_leader_election_transitions_total",
    &[],
    "Times this replica acquired or lost the lease",
);
const LEADING: Entry = plain(
    "kube_node_ready_controller_leader_election_status",
    &[],
    "1 if this replica holds the lease, otherwise 0",
);
const HEALTHY: Entry =
    plain("kube_node_ready_controller_healthy", &[], "1 if /readyz of this replica answers 200, otherwise 0");
const LEASE: Entry = plain(
    "kube_node_ready_controller_leader_election_lease_duration_seconds",
    &[],
    "Duration of the lease in seconds",
);
const STARTED: Entry = plain(
    "kube_node_ready_controller_start_time_seconds",
    &[],
    "Start time of this controller as Unix time in seconds",
);
const DEPTH: Entry = plain(
    "kube_node_ready_controller_reconcile_queue_depth",
    &[],
    "Keys that are due and not yet reconciled; refreshed every 5 s",
);
const LATENCY: Entry = plain(
    "kube_node_ready_controller_reconcile_queue_latency_seconds",
    &[],
    "Seconds from when a key was due until its reconcile started",
);
const BUILD: Entry = plain(
    "kube_node_ready_build_info",
    &["version", "commit_hash", "build_date"],
    "Version, commit and date of this build; always 1",
);
const ATTEMPTS: Entry = by_node(
    "kube_node_ready_verification_attempts_total",
    &["node", "status"],
    "Workers of this node that passed or failed, by status: success, failed",
);
const TAINT_REMOVALS: Entry = by_node(
    "kube_node_ready_node_taint_removal_total",
    &["node", "status"],
    "Patches that remove the gate's taints from this node, by status: success, failed",
);
const LABEL_ADDS: Entry = by_node(
    "kube_node_ready_node_label_add_total",
    &["node", "status"],
    "Patches that add the verified label to this node, which is one patch with the removal of taints, by status: success, failed",
);
const UPDATE_TIME: Entry = by_node(
    "kube_node_ready_node_update_duration_seconds",
    &["node", "operation"],
    "Duration of the patch that removes the taints from this node, in seconds",
);
const RECONCILE_TIME: Entry = by_node(
    "kube_node_ready_controller_reconciliation_duration_seconds",
    &["node"],
    "Duration of reconciles of this node in seconds",
);
const NODE_ERRORS: Entry = by_node(
    "kube_node_ready_controller_reconciliation_errors_total",
    &["node", "error_type"],
    "Errors by type: node_fetch_error, worker_job_creation_error, node_update_error, max_retries_exceeded",
);
const CREATED: Entry = by_node(
    "kube_node_ready_controller_worker_pods_created_total",
    &["node"],
    "Worker pods created for this node",
);
const SUCCEEDED: Entry = by_node(
    "kube_node_ready_controller_worker_pods_succeeded_total",
    &["node"],
    "Workers of this node that passed",
);
const FAILED: Entry = by_node(
    "kube_node_ready_controller_worker_pods_failed_total",
    &["node", "reason"],
    "Workers of this node that did not pass, by reason: failed, inconclusive",
);
const WORKER_TIME: Entry = by_node(
    "kube_node_ready_controller_worker_pod_duration_seconds",
    &["node", "result"],
    "Duration of the workers of this node in seconds",
);
const CREATION_ERRORS: Entry = by_node(
    "kube_node_ready_controller_worker_pod_creation_errors_total",
    &["node", "error_type"],
    "Worker pods of this node that could not be created",
);

impl Compat {
    pub fn new(registry: &mut Registry) -> Self {
        let results = RESULTS.map(|result| [result]);
        let results: Vec<&[&str]> = results.iter().map(<[&str; 1]>::as_slice).collect();
        let ended: &[&[&str]] = &[&["success"], &["failed"]];
        Self {
            verifications: registry.counter(VERIFICATIONS, ended),
            worker_pods: registry.gauge(WORKER_PODS),
            errors: registry.counter(ERRORS, &[]),
            retries: registry.counter(RETRIES, &[]),
            reconciliations: registry.counter(RECONCILIATIONS, &results),
            transitions: registry.counter(TRANSITIONS, &[]),
            leading: registry.gauge(LEADING),
            healthy: registry.gauge(HEALTHY),
            lease: registry.gauge(LEASE),
            started: registry.gauge(STARTED),
            depth: registry.gauge(DEPTH),
            latency: registry.histogram(LATENCY, SECONDS),
            build: registry.gauge(BUILD),
            nodes: CompatNodes::new(registry),
        }
    }
}

impl CompatNodes {
    fn new(registry: &mut Registry) -> Self {
        Self {
            attempts: registry.counter(ATTEMPTS, &[]),
            taint_removals: registry.counter(TAINT_REMOVALS, &[]),
            label_adds: registry.counter(LABEL_ADDS, &[]),
            update_time: registry.histogram(UPDATE_TIME, SECONDS),
            reconcile_time: registry.histogram(RECONCILE_TIME, SECONDS),
            errors: registry.counter(NODE_ERRORS, &[]),
            created: registry.counter(CREATED, &[]),
            succeeded: registry.counter(SUCCEEDED, &[]),
            failed: registry.counter(FAILED, &[]),
            worker_time: registry.histogram(WORKER_TIME, WORKER_SECONDS),
            creation_errors: registry.counter(CREATION_ERRORS, &[]),
        }
    }

    /// Calls a function for each metric. An unused field in the pattern is a compiler warning, so none is forgotten.
    pub fn for_each(
        &self,
        mut counters: impl FnMut(&Series<Counter>),
        mut histograms: impl FnMut(&Series<Histogram>),
    ) {
        let Self {
            attempts,
            taint_removals,
            label_adds,
            update_time,
            reconcile_time,
            errors,
            created,
            succeeded,
            failed,
            worker_time,
            creation_errors,
        } = self;
        for series in
            [attempts, taint_removals, label_adds, errors, created, succeeded, failed, creation_errors]
        {
            counters(series);
        }
        for series in [update_time, reconcile_time, worker_time] {
            histograms(series);
        }
    }
}
