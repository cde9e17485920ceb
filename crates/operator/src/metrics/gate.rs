//! Our own names for what the gate does. Their labels are gates, checks and words of ours: bounded.

use super::book::Stability::{Beta, Stable};
use super::book::{Book, Entry, Set, entry};
use super::series::{Count, Level, Series, Times};

const GATED: &[f64] = &[5.0, 10.0, 15.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 300.0, 600.0, 900.0];
const CHECK: &[f64] = &[0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
const START: &[f64] = &[0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0];

/// What they are kept in.
#[derive(Debug)]
pub struct Gates {
    pub build: Series<Level>,
    pub gated: Series<Times>,
    pub verifications: Series<Count>,
    pub retries: Series<Count>,
    pub check_runs: Series<Count>,
    pub check_failures: Series<Count>,
    pub check_time: Series<Times>,
    pub start_time: Series<Times>,
    pub active: Series<Level>,
    pub taints: Series<Count>,
    pub autoscaler: Series<Level>,
    pub policy: Series<Level>,
    pub remediations: Series<Count>,
    pub blocked: Series<Count>,
}

const BUILD: Entry =
    entry(Set::Ours, Stable, "nodekeeper_build_info", &["version", "revision"], "Always 1: what this is");
const GATED_TIME: Entry = entry(
    Set::Ours,
    Stable,
    "nodekeeper_node_gated_duration_seconds",
    &["gate", "result"],
    "How long nodes were before the gate until they were let in (passed) or their attempts were used up (failed)",
);
const VERIFICATIONS: Entry = entry(
    Set::Ours,
    Stable,
    "nodekeeper_verifications_total",
    &["gate", "result"],
    "Workers that ended by what they said: passed, failed, inconclusive",
);
const RETRIES: Entry = entry(
    Set::Ours,
    Beta,
    "nodekeeper_verification_retries_total",
    &["gate", "reason"],
    "Workers that followed another one, by what that one said",
);
const CHECK_RUNS: Entry =
    entry(Set::Ours, Stable, "nodekeeper_check_runs_total", &["check"], "Checks that workers ran");
const CHECK_FAILURES: Entry =
    entry(Set::Ours, Stable, "nodekeeper_check_failures_total", &["check", "reason"], "Checks that failed");
const CHECK_TIME: Entry =
    entry(Set::Ours, Stable, "nodekeeper_check_duration_seconds", &["check"], "How long checks take");
const START_TIME: Entry = entry(
    Set::Ours,
    Beta,
    "nodekeeper_worker_start_duration_seconds",
    &["gate"],
    "From when a worker's pod was made to when it runs",
);
const ACTIVE: Entry =
    entry(Set::Ours, Beta, "nodekeeper_workers_active", &[], "Workers that take a slot now");
const TAINTS: Entry = entry(
    Set::Ours,
    Stable,
    "nodekeeper_taint_operations_total",
    &["operation", "result"],
    "Taints of gates removed from nodes or added to them: success, error",
);
const AUTOSCALER: Entry = entry(
    Set::Ours,
    Beta,
    "nodekeeper_autoscaler_compatible",
    &["autoscaler"],
    "1 if the autoscaler knows the gate's taint for one that goes away, otherwise 0",
);
const POLICY: Entry = entry(
    Set::Ours,
    Beta,
    "nodekeeper_policy_info",
    &["kind", "name", "enforcement"],
    "Always 1: one series for each policy",
);

const REMEDIATIONS: Entry = entry(
    Set::Ours,
    Stable,
    "nodekeeper_remediations_total",
    &["provider", "action", "result"],
    "Remediations that were approved and ended: succeeded, given_up",
);
const BLOCKED: Entry = entry(
    Set::Ours,
    Stable,
    "nodekeeper_remediations_blocked_total",
    &["gate", "reason"],
    "Times that a remediation began to be held, by what holds it",
);

impl Gates {
    /// Enters them all.
    pub fn new(book: &mut Book) -> Self {
        let removed: &[&[&str]] = &[&["remove", "success"], &["remove", "error"]];
        Self {
            build: book.gauge(BUILD),
            gated: book.times(GATED_TIME, GATED, &[]),
            verifications: book.counter(VERIFICATIONS, &[]),
            retries: book.counter(RETRIES, &[]),
            check_runs: book.counter(CHECK_RUNS, &[]),
            check_failures: book.counter(CHECK_FAILURES, &[]),
            check_time: book.times(CHECK_TIME, CHECK, &[]),
            start_time: book.times(START_TIME, START, &[]),
            active: book.gauge(ACTIVE),
            taints: book.counter(TAINTS, removed),
            autoscaler: book.gauge(AUTOSCALER),
            policy: book.gauge(POLICY),
            remediations: book.counter(REMEDIATIONS, &[]),
            blocked: book.counter(BLOCKED, &[]),
        }
    }
}
