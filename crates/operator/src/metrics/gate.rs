//! Metrics of the gate and of remediation. Their labels are gates, checks and fixed words, so they are bounded.

use super::registry::Stability::{Beta, Stable};
use super::registry::{Entry, Registry, Set, Stability, entry};
use super::series::{Counter, Gauge, Histogram, Series};

const GATED_SECONDS: &[f64] = &[5.0, 10.0, 15.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 300.0, 600.0, 900.0];
const CHECK_SECONDS: &[f64] = &[0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
const START_SECONDS: &[f64] = &[0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0];

#[derive(Debug)]
pub struct Gates {
    pub build: Series<Gauge>,
    pub leader_ready: Series<Gauge>,
    pub gated: Series<Histogram>,
    pub verifications: Series<Counter>,
    pub retries: Series<Counter>,
    pub check_runs: Series<Counter>,
    pub check_failures: Series<Counter>,
    pub check_time: Series<Histogram>,
    pub start_time: Series<Histogram>,
    pub active: Series<Gauge>,
    pub taints: Series<Counter>,
    pub autoscaler: Series<Gauge>,
    pub policy: Series<Gauge>,
    pub remediations: Series<Counter>,
    pub blocked: Series<Counter>,
}

const fn own(
    stability: Stability,
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Entry {
    entry(Set::Nodekeeper, stability, name, labels, help)
}

const BUILD: Entry = own(
    Stable,
    "nodekeeper_build_info",
    &["version", "revision"],
    "Version and commit of this build; always 1",
);
const LEADER_READY: Entry = own(
    Beta,
    "nodekeeper_leader_ready_seconds",
    &[],
    "Seconds from acquiring the lease to the first reconcile of this term; 0 before it",
);
const GATED_TIME: Entry = own(
    Stable,
    "nodekeeper_node_gated_duration_seconds",
    &["gate", "result"],
    "Seconds from a Node's creation until its taints were removed (passed) or its attempts were used up (failed)",
);
const VERIFICATIONS: Entry = own(
    Stable,
    "nodekeeper_verifications_total",
    &["gate", "result"],
    "Workers that ended, by verdict: passed, failed, inconclusive",
);
const RETRIES: Entry = own(
    Beta,
    "nodekeeper_verification_retries_total",
    &["gate", "reason"],
    "Workers created after another worker of the same node, by the verdict of that one: failed, inconclusive",
);
const CHECK_RUNS: Entry = own(Stable, "nodekeeper_check_runs_total", &["check"], "Checks that workers ran");
const CHECK_FAILURES: Entry =
    own(Stable, "nodekeeper_check_failures_total", &["check", "reason"], "Checks that failed");
const CHECK_TIME: Entry =
    own(Stable, "nodekeeper_check_duration_seconds", &["check"], "Duration of checks in seconds");
const START_TIME: Entry = own(
    Beta,
    "nodekeeper_worker_start_duration_seconds",
    &["gate"],
    "Seconds from the creation of a worker pod until its container runs",
);
const ACTIVE: Entry =
    own(Beta, "nodekeeper_workers_active", &[], "Worker pods that count against `--max-workers` now");
const TAINTS: Entry = own(
    Stable,
    "nodekeeper_taint_operations_total",
    &["operation", "result"],
    "Patches that remove a gate's taints from a node or add them (operation: remove, add), by result: success, error",
);
const AUTOSCALER: Entry = own(
    Beta,
    "nodekeeper_autoscaler_compatible",
    &["autoscaler"],
    "1 if the autoscaler is configured to treat the gate's taint as a startup taint, otherwise 0",
);
const POLICY: Entry = own(
    Beta,
    "nodekeeper_policy_info",
    &["kind", "name", "enforcement"],
    "One series for each NodeGate with its enforcement; always 1",
);
const REMEDIATIONS: Entry = own(
    Stable,
    "nodekeeper_remediations_total",
    &["provider", "action", "result"],
    "Approved remediations that ended, by result: succeeded, given_up",
);
const BLOCKED: Entry = own(
    Stable,
    "nodekeeper_remediations_blocked_total",
    &["gate", "reason"],
    "Times a remediation became blocked, by reason",
);

impl Gates {
    pub fn new(registry: &mut Registry) -> Self {
        let removals: &[&[&str]] = &[&["remove", "success"], &["remove", "error"]];
        Self {
            build: registry.gauge(BUILD),
            leader_ready: registry.gauge(LEADER_READY),
            gated: registry.histogram(GATED_TIME, GATED_SECONDS),
            verifications: registry.counter(VERIFICATIONS, &[]),
            retries: registry.counter(RETRIES, &[]),
            check_runs: registry.counter(CHECK_RUNS, &[]),
            check_failures: registry.counter(CHECK_FAILURES, &[]),
            check_time: registry.histogram(CHECK_TIME, CHECK_SECONDS),
            start_time: registry.histogram(START_TIME, START_SECONDS),
            active: registry.gauge(ACTIVE),
            taints: registry.counter(TAINTS, removals),
            autoscaler: registry.gauge(AUTOSCALER),
            policy: registry.gauge(POLICY),
            remediations: registry.counter(REMEDIATIONS, &[]),
            blocked: registry.counter(BLOCKED, &[]),
        }
    }
}
