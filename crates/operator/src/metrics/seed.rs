//! The names of kube-node-ready, for those who come from it: true, and served only where asked for.

use super::book::Stability::Stable;
use super::book::{Book, Entry, Set, entry};
use super::series::{Count, Level, Series, Times};

const TIMES: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
const WORKER: &[f64] = &[10.0, 30.0, 60.0, 120.0, 180.0, 300.0, 600.0];

/// How a reconciliation ends in the seed, as far as ours can.
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

/// What they are kept in.
#[derive(Debug)]
pub struct Seed {
    pub verifications: Series<Count>,
    pub worker_pods: Series<Level>,
    pub errors: Series<Count>,
    pub retries: Series<Count>,
    pub reconciliations: Series<Count>,
    pub transitions: Series<Count>,
    pub leading: Series<Level>,
    pub healthy: Series<Level>,
    pub lease: Series<Level>,
    pub started: Series<Level>,
    pub depth: Series<Level>,
    pub latency: Series<Times>,
    pub build: Series<Level>,
    pub by_node: ByNode,
}

/// Those with a series or more for each node. Its name is always the first label.
#[derive(Debug)]
pub struct ByNode {
    pub attempts: Series<Count>,
    pub taint_removals: Series<Count>,
    pub label_adds: Series<Count>,
    pub update_time: Series<Times>,
    pub reconcile_time: Series<Times>,
    pub errors: Series<Count>,
    pub created: Series<Count>,
    pub succeeded: Series<Count>,
    pub failed: Series<Count>,
    pub worker_time: Series<Times>,
    pub creation_errors: Series<Count>,
}

const fn plain(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Entry {
    entry(Set::Seed, Stable, name, labels, help)
}

const fn by_node(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Entry {
    entry(Set::SeedPerNode, Stable, name, labels, help)
}

const VERIFICATIONS: Entry = plain(
    "kube_node_ready_verifications_total",
    &["status"],
    "Workers that ended with a verdict: success, failed",
);
const WORKER_PODS: Entry = plain(
    "kube_node_ready_worker_pods",
    &["status"],
    "running: workers that take a slot now; succeeded and failed: workers that ended so since this process started",
);
const ERRORS: Entry =
    plain("kube_node_ready_controller_reconcile_errors_total", &[], "Looks at a node that failed");
const RETRIES: Entry =
    plain("kube_node_ready_verification_retries_total", &[], "Workers that followed another one");
const RECONCILIATIONS: Entry = plain(
    "kube_node_ready_controller_reconciliation_total",
    &["result"],
    "Looks at a node by how they ended, and what was done in them",
);
const TRANSITIONS: Entry = plain(
    "kube_node_ready_controller_leader_election_transitions_total",
    &[],
    "How often this replica began or ceased to lead",
);
const LEADING: Entry = plain(
    "kube_node_ready_controller_leader_election_status",
    &[],
    "1 if this replica has the lease, otherwise 0",
);
const HEALTHY: Entry = plain(
    "kube_node_ready_controller_healthy",
    &[],
    "1 if this replica is ready, as /readyz says, otherwise 0",
);
const LEASE: Entry = plain(
    "kube_node_ready_controller_leader_election_lease_duration_seconds",
    &[],
    "How long the lease lasts",
);
const STARTED: Entry = plain(
    "kube_node_ready_controller_start_time_seconds",
    &[],
    "When this controller started, in seconds since 1970",
);
const DEPTH: Entry = plain(
    "kube_node_ready_controller_reconcile_queue_depth",
    &[],
    "Nodes that are due to be looked at; refreshed every 5 s",
);
const LATENCY: Entry = plain(
    "kube_node_ready_controller_reconcile_queue_latency_seconds",
    &[],
    "How long a node was due before it was looked at",
);
const BUILD: Entry =
    plain("kube_node_ready_build_info", &["version", "commit_hash", "build_date"], "Always 1: what this is");
const ATTEMPTS: Entry = by_node(
    "kube_node_ready_verification_attempts_total",
    &["node", "status"],
    "Workers of this node that ended with a verdict: success, failed",
);
const TAINT_REMOVALS: Entry = by_node(
    "kube_node_ready_node_taint_removal_total",
    &["node", "status"],
    "Times that our taints were taken from this node, or could not be: success, failed",
);
const LABEL_ADDS: Entry = by_node(
    "kube_node_ready_node_label_add_total",
    &["node", "status"],
    "Times that this node got the label, or did not: one write with the taints",
);
const UPDATE_TIME: Entry = by_node(
    "kube_node_ready_node_update_duration_seconds",
    &["node", "operation"],
    "How long the write took that lets this node in",
);
const RECONCILE_TIME: Entry = by_node(
    "kube_node_ready_controller_reconciliation_duration_seconds",
    &["node"],
    "How long looks at this node take",
);
const NODE_ERRORS: Entry = by_node(
    "kube_node_ready_controller_reconciliation_errors_total",
    &["node", "error_type"],
    "What failed: node_fetch_error, worker_job_creation_error, node_update_error, max_retries_exceeded",
);
const CREATED: Entry =
    by_node("kube_node_ready_controller_worker_pods_created_total", &["node"], "Workers made for this node");
const SUCCEEDED: Entry = by_node(
    "kube_node_ready_controller_worker_pods_succeeded_total",
    &["node"],
    "Workers that passed this node",
);
const FAILED: Entry = by_node(
    "kube_node_ready_controller_worker_pods_failed_total",
    &["node", "reason"],
    "Workers that did not: failed, inconclusive",
);
const WORKER_TIME: Entry = by_node(
    "kube_node_ready_controller_worker_pod_duration_seconds",
    &["node", "result"],
    "How long workers of this node took",
);
const CREATION_ERRORS: Entry = by_node(
    "kube_node_ready_controller_worker_pod_creation_errors_total",
    &["node", "error_type"],
    "Workers that could not be made",
);

impl Seed {
    /// Enters them all.
    pub fn new(book: &mut Book) -> Self {
        let results = RESULTS.map(|result| [result]);
        let results: Vec<&[&str]> = results.iter().map(<[&str; 1]>::as_slice).collect();
        let ended: &[&[&str]] = &[&["success"], &["failed"]];
        Self {
            verifications: book.counter(VERIFICATIONS, ended),
            worker_pods: book.gauge(WORKER_PODS),
            errors: book.counter(ERRORS, &[]),
            retries: book.counter(RETRIES, &[]),
            reconciliations: book.counter(RECONCILIATIONS, &results),
            transitions: book.counter(TRANSITIONS, &[]),
            leading: book.gauge(LEADING),
            healthy: book.gauge(HEALTHY),
            lease: book.gauge(LEASE),
            started: book.gauge(STARTED),
            depth: book.gauge(DEPTH),
            latency: book.times(LATENCY, TIMES, &[]),
            build: book.gauge(BUILD),
            by_node: ByNode::new(book),
        }
    }
}

impl ByNode {
    fn new(book: &mut Book) -> Self {
        Self {
            attempts: book.counter(ATTEMPTS, &[]),
            taint_removals: book.counter(TAINT_REMOVALS, &[]),
            label_adds: book.counter(LABEL_ADDS, &[]),
            update_time: book.times(UPDATE_TIME, TIMES, &[]),
            reconcile_time: book.times(RECONCILE_TIME, TIMES, &[]),
            errors: book.counter(NODE_ERRORS, &[]),
            created: book.counter(CREATED, &[]),
            succeeded: book.counter(SUCCEEDED, &[]),
            failed: book.counter(FAILED, &[]),
            worker_time: book.times(WORKER_TIME, WORKER, &[]),
            creation_errors: book.counter(CREATION_ERRORS, &[]),
        }
    }

    /// Applies to each of them. In one place, so that none is forgotten: a field without its line here is a warning.
    pub fn each(&self, mut counts: impl FnMut(&Series<Count>), mut times: impl FnMut(&Series<Times>)) {
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
            counts(series);
        }
        for series in [update_time, reconcile_time, worker_time] {
            times(series);
        }
    }
}
