//! The names that dashboards of every controller know: controller-runtime's, client-go's.

use super::book::Stability::Stable;
use super::book::{Book, Entry, Set, entry};
use super::series::{Count, Level, Series, Times};

/// Who reconciles, and what its queue is called.
pub const CONTROLLER: &str = "gate";
const QUEUE: &[&str] = &["name", "controller"];
/// As label values of the queue.
pub const QUEUED: &[&str] = &[CONTROLLER, CONTROLLER];

/// As controller-runtime has them.
const RECONCILE: &[f64] = &[
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25,
    1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0,
    50.0, 60.0,
];
/// As client-go has them.
const WORK: &[f64] = &[1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1000.0];
const REQUEST: &[f64] = &[0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];

/// What they are kept in.
#[derive(Debug)]
pub struct Runtime {
    pub reconciles: Series<Count>,
    pub errors: Series<Count>,
    pub time: Series<Times>,
    pub active: Series<Level>,
    pub concurrency: Series<Level>,
    pub depth: Series<Level>,
    pub adds: Series<Count>,
    pub retries: Series<Count>,
    pub waited: Series<Times>,
    pub worked: Series<Times>,
    pub unfinished: Series<Level>,
    pub longest: Series<Level>,
    pub leading: Series<Level>,
    pub slow_path: Series<Count>,
    pub requests: Series<Count>,
    pub request_time: Series<Times>,
}

const fn usual(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Entry {
    entry(Set::Usual, Stable, name, labels, help)
}

const RECONCILES: Entry = usual(
    "controller_runtime_reconcile_total",
    &["controller", "result"],
    "Looks at a node by how they ended: success, error, requeue, requeue_after",
);
const ERRORS: Entry = usual(
    "controller_runtime_reconcile_errors_total",
    &["controller"],
    "Looks at a node that failed and are tried again",
);
const TIME: Entry =
    usual("controller_runtime_reconcile_time_seconds", &["controller"], "How long a look at a node takes");
const ACTIVE: Entry =
    usual("controller_runtime_active_workers", &["controller"], "Nodes that are being looked at");
const CONCURRENCY: Entry = usual(
    "controller_runtime_max_concurrent_reconciles",
    &["controller"],
    "Nodes that may be looked at at once",
);
const DEPTH: Entry =
    usual("workqueue_depth", QUEUE, "Nodes that are due to be looked at; refreshed every 5 s");
const ADDS: Entry = usual("workqueue_adds_total", QUEUE, "Nodes that were queued");
const RETRIES: Entry =
    usual("workqueue_retries_total", QUEUE, "Nodes that were queued again after a failure");
const WAITED: Entry =
    usual("workqueue_queue_duration_seconds", QUEUE, "How long a node was due before it was looked at");
const WORKED: Entry = usual("workqueue_work_duration_seconds", QUEUE, "How long a look at a node takes");
const UNFINISHED: Entry = usual(
    "workqueue_unfinished_work_seconds",
    QUEUE,
    "How long the looks that are under way have taken, all together; refreshed every 5 s",
);
const LONGEST: Entry = usual(
    "workqueue_longest_running_processor_seconds",
    QUEUE,
    "How long the longest of them has taken; refreshed every 5 s",
);
const LEADING: Entry =
    usual("leader_election_master_status", &["name"], "1 if this replica has the lease, otherwise 0");
const SLOW_PATH: Entry =
    usual("leader_election_slowpath_total", &["name"], "Renewals that had to read the lease first");
const REQUESTS: Entry = usual(
    "rest_client_requests_total",
    &["code", "method", "host"],
    "Requests to the API server by HTTP status; <error> where there was no answer",
);
const REQUEST_TIME: Entry = usual(
    "rest_client_request_duration_seconds",
    &["verb", "host"],
    "How long the API server took to answer; for a watch, to begin",
);

impl Runtime {
    /// Enters them all.
    pub fn new(book: &mut Book) -> Self {
        never(book);
        let ours: &[&str] = &[CONTROLLER];
        let results: Vec<[&str; 2]> =
            ["success", "error", "requeue", "requeue_after"].map(|result| [CONTROLLER, result]).into();
        let results: Vec<&[&str]> = results.iter().map(<[&str; 2]>::as_slice).collect();
        let runtime = Self {
            reconciles: book.counter(RECONCILES, &results),
            errors: book.counter(ERRORS, &[ours]),
            time: book.times(TIME, RECONCILE, &[ours]),
            active: book.gauge(ACTIVE),
            concurrency: book.gauge(CONCURRENCY),
            depth: book.gauge(DEPTH),
            adds: book.counter(ADDS, &[QUEUED]),
            retries: book.counter(RETRIES, &[QUEUED]),
            waited: book.times(WAITED, WORK, &[QUEUED]),
            worked: book.times(WORKED, WORK, &[QUEUED]),
            unfinished: book.gauge(UNFINISHED),
            longest: book.gauge(LONGEST),
            leading: book.gauge(LEADING),
            slow_path: book.counter(SLOW_PATH, &[]),
            requests: book.counter(REQUESTS, &[]),
            request_time: book.times(REQUEST_TIME, REQUEST, &[]),
        };
        for gauge in [&runtime.active, &runtime.concurrency] {
            gauge.start(ours);
        }
        for gauge in [&runtime.depth, &runtime.unfinished, &runtime.longest] {
            gauge.start(QUEUED);
        }
        runtime
    }
}

/// What dashboards ask for and what cannot happen here. Saying 0 is true.
fn never(book: &mut Book) {
    let ours: &[&[&str]] = &[&[CONTROLLER]];
    for (name, help) in [
        ("controller_runtime_reconcile_panics_total", "Always 0: a panic ends the process"),
        ("controller_runtime_terminal_reconcile_errors_total", "Always 0: every failure is tried again"),
    ] {
        book.counter(usual(name, &["controller"], help), ours);
    }
}
