//! Metrics of controllers, workqueues, leader election and API requests, under the names of controller-runtime and
//! client-go. Those of controllers and workqueues carry the controller's name.

use super::registry::Stability::Stable;
use super::registry::{Entry, Registry, Set, entry};
use super::series::{Counter, Gauge, Histogram, Series};

const CONTROLLER: &[&str] = &["controller"];
const QUEUE: &[&str] = &["name", "controller"];

/// The buckets of controller-runtime, in seconds.
const RECONCILE_SECONDS: &[f64] = &[
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25,
    1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0,
    50.0, 60.0,
];
/// The buckets of client-go, in seconds.
const QUEUE_SECONDS: &[f64] = &[1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1000.0];
const REQUEST_SECONDS: &[f64] = &[0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];

/// The result of one reconcile, as `controller_runtime_reconcile_total` counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReconcileResult {
    Success,
    Error,
    Requeue,
    RequeueAfter,
}

impl ReconcileResult {
    const ALL: [Self; 4] = [Self::Success, Self::Error, Self::Requeue, Self::RequeueAfter];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Error => "error",
            Self::Requeue => "requeue",
            Self::RequeueAfter => "requeue_after",
        }
    }
}

#[derive(Debug)]
pub struct Runtime {
    pub reconciles: Series<Counter>,
    pub errors: Series<Counter>,
    pub time: Series<Histogram>,
    pub active: Series<Gauge>,
    pub concurrency: Series<Gauge>,
    pub depth: Series<Gauge>,
    pub adds: Series<Counter>,
    pub retries: Series<Counter>,
    pub queue_time: Series<Histogram>,
    pub work_time: Series<Histogram>,
    pub unfinished: Series<Gauge>,
    pub longest: Series<Gauge>,
    /// Counters that dashboards query and that stay 0 here.
    always_zero: [Series<Counter>; 2],
    pub leading: Series<Gauge>,
    pub slow_path: Series<Counter>,
    pub requests: Series<Counter>,
    pub request_time: Series<Histogram>,
}

const fn common(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Entry {
    entry(Set::Common, Stable, name, labels, help)
}

const RECONCILES: Entry = common(
    "controller_runtime_reconcile_total",
    &["controller", "result"],
    "Reconciles by result: success, error, requeue, requeue_after",
);
const ERRORS: Entry =
    common("controller_runtime_reconcile_errors_total", CONTROLLER, "Reconciles that failed and are retried");
const PANICS: Entry =
    common("controller_runtime_reconcile_panics_total", CONTROLLER, "Always 0: a panic ends the process");
const TERMINAL_ERRORS: Entry = common(
    "controller_runtime_terminal_reconcile_errors_total",
    CONTROLLER,
    "Always 0: every failed reconcile is retried",
);
const TIME: Entry =
    common("controller_runtime_reconcile_time_seconds", CONTROLLER, "Duration of reconciles in seconds");
const ACTIVE: Entry =
    common("controller_runtime_active_workers", CONTROLLER, "Reconciles that are running now");
const CONCURRENCY: Entry = common(
    "controller_runtime_max_concurrent_reconciles",
    CONTROLLER,
    "Largest number of reconciles that may run at once",
);
const DEPTH: Entry =
    common("workqueue_depth", QUEUE, "Keys that are due and not yet reconciled; refreshed every 5 s");
const ADDS: Entry = common("workqueue_adds_total", QUEUE, "Keys added to the queue");
const RETRIES: Entry =
    common("workqueue_retries_total", QUEUE, "Keys added to the queue again after a failed reconcile");
const QUEUE_TIME: Entry = common(
    "workqueue_queue_duration_seconds",
    QUEUE,
    "Seconds from when a key was due until its reconcile started",
);
const WORK_TIME: Entry =
    common("workqueue_work_duration_seconds", QUEUE, "Duration of reconciles in seconds");
const UNFINISHED: Entry = common(
    "workqueue_unfinished_work_seconds",
    QUEUE,
    "Sum of the seconds that the running reconciles have taken so far; refreshed every 5 s",
);
const LONGEST: Entry = common(
    "workqueue_longest_running_processor_seconds",
    QUEUE,
    "Seconds that the longest running reconcile has taken so far; refreshed every 5 s",
);
const LEADING: Entry =
    common("leader_election_master_status", &["name"], "1 if this replica holds the lease, otherwise 0");
const SLOW_PATH: Entry =
    common("leader_election_slowpath_total", &["name"], "Lease renewals that had to read the Lease first");
const REQUESTS: Entry = common(
    "rest_client_requests_total",
    &["code", "method", "host"],
    "Requests to the API server by HTTP status; <error> if there was no response",
);
const REQUEST_TIME: Entry = common(
    "rest_client_request_duration_seconds",
    &["verb", "host"],
    "Seconds until the API server responded; for a watch, until it started",
);

impl Runtime {
    pub fn new(registry: &mut Registry) -> Self {
        Self {
            reconciles: registry.counter(RECONCILES, &[]),
            errors: registry.counter(ERRORS, &[]),
            time: registry.histogram(TIME, RECONCILE_SECONDS),
            active: registry.gauge(ACTIVE),
            concurrency: registry.gauge(CONCURRENCY),
            depth: registry.gauge(DEPTH),
            adds: registry.counter(ADDS, &[]),
            retries: registry.counter(RETRIES, &[]),
            queue_time: registry.histogram(QUEUE_TIME, QUEUE_SECONDS),
            work_time: registry.histogram(WORK_TIME, QUEUE_SECONDS),
            unfinished: registry.gauge(UNFINISHED),
            longest: registry.gauge(LONGEST),
            always_zero: [PANICS, TERMINAL_ERRORS].map(|entry| registry.counter(entry, &[])),
            leading: registry.gauge(LEADING),
            slow_path: registry.counter(SLOW_PATH, &[]),
            requests: registry.counter(REQUESTS, &[]),
            request_time: registry.histogram(REQUEST_TIME, REQUEST_SECONDS),
        }
    }

    /// Serves all series of a controller from the start: a rate over a counter that appears with its first event
    /// misses that event.
    pub fn register_controller(&self, controller: &'static str) {
        for result in ReconcileResult::ALL {
            self.reconciles.init(&[controller, result.as_str()]);
        }
        self.errors.init(&[controller]);
        self.time.init(&[controller]);
        self.active.init(&[controller]);
        for series in &self.always_zero {
            series.init(&[controller]);
        }
        let queue = &[controller, controller];
        for gauge in [&self.depth, &self.unfinished, &self.longest] {
            gauge.init(queue);
        }
        for counter in [&self.adds, &self.retries] {
            counter.init(queue);
        }
        for histogram in [&self.queue_time, &self.work_time] {
            histogram.init(queue);
        }
    }

    /// Resets what describes the running queues of all controllers.
    pub fn reset_queues(&self) {
        for gauge in [&self.active, &self.depth, &self.unfinished, &self.longest] {
            gauge.reset();
        }
    }
}
