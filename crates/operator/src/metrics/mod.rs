//! The metrics of the controller: of Nodekeeper itself, of controller-runtime and client-go, and, on request, of
//! kube-node-ready. `docs/metrics.md` is generated from the same definitions.

mod agent;
mod nodes;
mod process;
mod reference;
mod registry;
mod runtime;
mod series;
mod table;
#[cfg(test)]
mod tests;
mod text;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use nodekeeper_core::fleet::FleetIndex;
use nodekeeper_core::report::{CheckResult, Outcome as CheckOutcome, Verdict};
use parking_lot::Mutex;

use crate::runtime::reconciler::{Action, ReconcileError};
use crate::runtime::workqueue::QueueStats;
use nodes::NodeCollector;
pub use nodes::compat_state;
use registry::Registry;
pub use runtime::ReconcileResult;
use series::AnySeries as _;
use table::{Agents, COLLECTED, Compat, CompatNodes, Gates, Runtime};
pub use text::Format;

/// The name of the gate controller. The metrics of kube-node-ready, which has one controller, are those of this one.
pub const GATE: &str = "gate";

/// The values of `result` in kube-node-ready that can occur here.
const COMPAT_RESULTS: [&str; 11] = [
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

/// Which optional metrics are served.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Serve metrics under the names of kube-node-ready.
    pub compat_names: bool,
    /// Serve metrics that have series for each node.
    pub per_node: bool,
    /// Serve the metrics of an agent.
    pub agent: bool,
}

/// The labels of `nodekeeper_build_info` and `kube_node_ready_build_info`.
#[derive(Clone, Copy, Debug)]
pub struct Build<'a> {
    pub version: &'a str,
    pub revision: &'a str,
    pub date: &'a str,
}

/// A worker that ended.
#[derive(Clone, Copy, Debug)]
pub struct FinishedWorker<'a> {
    pub node: &'a str,
    pub gate: &'a str,
    pub verdict: Verdict,
    /// The time from when its pod was first seen to its end.
    pub duration: Duration,
    /// Empty if there is no report.
    pub checks: &'a [CheckResult],
}

/// The error types of `kube_node_ready_controller_reconciliation_errors_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeError {
    ReadNode,
    CreateWorker,
    PatchNode,
    AttemptsExhausted,
}

/// All metrics of one process.
pub struct Metrics {
    registry: Registry,
    nodes: NodeCollector,
    gates: Gates,
    runtime: Runtime,
    compat: Compat,
    compat_nodes: CompatNodes,
    agents: Agents,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new(Options::default())
    }
}

impl Metrics {
    #[must_use]
    pub fn new(options: Options) -> Self {
        let mut registry = Registry::new(options);
        let gates = Gates::new(&mut registry);
        let runtime = Runtime::new(&mut registry);
        let compat = Compat::new(&mut registry);
        let compat_nodes = CompatNodes::new(&mut registry);
        let agents = Agents::new(&mut registry);
        let nodes = NodeCollector::new(&mut registry);
        registry.prometheus.register_collector(Box::new(process::Process));
        for entry in COLLECTED {
            registry.document(*entry);
        }
        // A rate over a counter that appears with its first event misses that event.
        for result in ["success", "error"] {
            gates.taints.init(&["remove", result]);
        }
        for status in ["success", "failed"] {
            compat.verifications.init(&[status]);
        }
        for result in COMPAT_RESULTS {
            compat.reconciliations.init(&[result]);
        }
        for status in ["running", "succeeded", "failed"] {
            compat.worker_pods.init(&[status]);
        }
        Self { registry, nodes, gates, runtime, compat, compat_nodes, agents }
    }

    /// Returns the response to a scrape.
    ///
    /// # Errors
    /// Never in practice: writing to a `String` cannot fail.
    pub fn render(&self, format: Format) -> Result<String, fmt::Error> {
        text::render(&self.registry.prometheus, format)
    }

    /// Returns the content of `docs/metrics.md`.
    #[must_use]
    pub fn reference() -> String {
        reference::page(
            &Self::new(Options { compat_names: true, per_node: true, agent: true }).registry.entries,
        )
    }

    pub fn set_build_info(&self, build: Build<'_>) {
        self.gates.build.set(&[build.version, build.revision], 1.0);
        self.compat.build.set(&[build.version, build.revision, build.date], 1.0);
    }

    /// Records whether `/readyz` answers 200.
    pub fn set_ready(&self, ready: bool) {
        self.compat.healthy.set(&[], flag(ready));
    }

    /// Records the start of the process and the lease that it campaigns for.
    pub fn record_start(&self, now: Timestamp, lease: &str, lease_duration: Duration) {
        #[expect(clippy::cast_precision_loss, reason = "a f64 holds Unix seconds exactly")]
        self.compat.started.set(&[], now.as_second() as f64);
        self.compat.lease.set(&[], lease_duration.as_secs_f64());
        self.runtime.leading.set(&[lease], 0.0);
        self.runtime.slow_path.init(&[lease]);
    }

    /// Serves all series of a controller from the start.
    pub fn register_controller(&self, controller: &'static str, max_concurrent_reconciles: usize) {
        self.runtime.register_controller(controller);
        self.runtime.concurrency.set(&[controller], number(max_concurrent_reconciles));
    }

    pub fn start_leading(&self, lease: &str) {
        self.runtime.leading.set(&[lease], 1.0);
        self.gates.leader_ready.set(&[], 0.0);
        self.compat.leading.set(&[], 1.0);
        self.compat.transitions.inc(&[]);
        self.nodes.start_leading();
    }

    /// Records the time from acquiring the lease to the first reconcile of this term.
    pub fn leader_ready(&self, after: Duration) {
        self.gates.leader_ready.set(&[], after.as_secs_f64());
    }

    /// Removes what only the leader serves. Does nothing if this replica does not lead.
    pub fn stop_leading(&self, lease: &str) {
        if !self.nodes.stop_leading() {
            return;
        }
        self.runtime.leading.set(&[lease], 0.0);
        self.gates.leader_ready.set(&[], 0.0);
        self.compat.leading.set(&[], 0.0);
        self.compat.transitions.inc(&[]);
        self.registry.per_node.iter().for_each(|series| series.clear());
        self.gates.policy.clear();
        self.gates.autoscaler.clear();
        self.set_active_workers(0);
        self.runtime.reset_queues();
        self.compat.depth.reset();
    }

    /// Records that a renewal had to read the Lease first.
    pub fn inc_lease_slow_path(&self, lease: &str) {
        self.runtime.slow_path.inc(&[lease]);
    }

    /// Records a request to the API server; `code` is absent if there was no response.
    pub fn observe_request(&self, method: &str, host: &str, code: Option<u16>, duration: Duration) {
        let code = code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
        self.runtime.requests.inc(&[&code, method, host]);
        self.runtime.request_time.observe(&[method, host], duration);
    }

    pub fn set_queue_stats(&self, controller: &'static str, stats: &QueueStats) {
        let (runtime, queue) = (&self.runtime, &[controller, controller]);
        runtime.depth.set(queue, number(stats.depth));
        runtime.unfinished.set(queue, stats.unfinished.as_secs_f64());
        runtime.longest.set(queue, stats.longest.as_secs_f64());
        runtime.adds.add(queue, stats.adds);
        runtime.retries.add(queue, stats.retries);
        if controller == GATE {
            self.compat.depth.set(&[], number(stats.depth));
        }
    }

    /// Records the time from when a key was due until its reconcile started.
    pub fn observe_queue_time(&self, controller: &'static str, duration: Duration) {
        self.runtime.queue_time.observe(&[controller, controller], duration);
        if controller == GATE {
            self.compat.latency.observe(&[], duration);
        }
    }

    pub fn set_active_reconciles(&self, controller: &'static str, count: usize) {
        self.runtime.active.set(&[controller], number(count));
    }

    pub fn observe_reconcile(&self, controller: &'static str, result: ReconcileResult, duration: Duration) {
        self.runtime.reconciles.inc(&[controller, result.as_str()]);
        self.runtime.time.observe(&[controller], duration);
        self.runtime.work_time.observe(&[controller, controller], duration);
        if result == ReconcileResult::Error {
            self.runtime.errors.inc(&[controller]);
            if controller == GATE {
                self.compat.errors.inc(&[]);
            }
        }
    }

    /// Records a reconcile of a node under the names of kube-node-ready, beside [`Self::observe_reconcile`].
    pub fn observe_node_reconcile(&self, node: &str, result: ReconcileResult, duration: Duration) {
        self.with_node(node, |compat| compat.reconcile_time.observe(&[node], duration));
        if result == ReconcileResult::Error {
            self.compat.reconciliations.inc(&["error"]);
            return;
        }
        self.compat.reconciliations.inc(&[match self.nodes.compat_state(node) {
            Some("verified") => "already_verified",
            Some("no_taint") => "no_taint",
            Some("pending" | "in_progress") => "worker_running",
            Some("failed") => "verification_failed_permanent",
            Some("unverified") => "backoff",
            _ => "deleted",
        }]);
    }

    pub fn inc_node_errors(&self, node: &str, error: NodeError) {
        let error = match error {
            NodeError::ReadNode => "node_fetch_error",
            NodeError::CreateWorker => "worker_job_creation_error",
            NodeError::PatchNode => "node_update_error",
            NodeError::AttemptsExhausted => "max_retries_exceeded",
        };
        self.with_node(node, |compat| compat.errors.inc(&[node, error]));
    }

    /// Sets the index that the metrics about nodes are read from at each scrape. The caller keeps it up to date.
    pub fn set_fleet(&self, fleet: Arc<Mutex<FleetIndex>>) {
        self.nodes.set_fleet(fleet);
    }

    /// Removes all series of a node.
    pub fn remove_node(&self, node: &str) {
        self.registry.per_node.iter().for_each(|series| series.remove_by_first_label(node));
    }

    pub fn set_gate(&self, gate: &str, enforcement: &str) {
        for other in ["Enforce", "DryRun", "Paused"].into_iter().filter(|other| *other != enforcement) {
            self.gates.policy.remove(&["NodeGate", gate, other]);
        }
        self.gates.policy.set(&["NodeGate", gate, enforcement], 1.0);
        self.nodes.add_gate(gate);
        for result in ["passed", "failed", "inconclusive"] {
            self.gates.verifications.init(&[gate, result]);
        }
    }

    /// Removes all series of a gate.
    pub fn remove_gate(&self, gate: &str) {
        let Gates { policy, verifications, retries, gated, start_time, .. } = &self.gates;
        for enforcement in ["Enforce", "DryRun", "Paused"] {
            policy.remove(&["NodeGate", gate, enforcement]);
        }
        verifications.remove_by_first_label(gate);
        retries.remove_by_first_label(gate);
        gated.remove_by_first_label(gate);
        start_time.remove_by_first_label(gate);
        self.nodes.remove_gate(gate);
    }

    /// Records whether an autoscaler treats the gate's taint as a startup taint.
    pub fn set_autoscaler_compatible(&self, name: &str, compatible: bool) {
        self.gates.autoscaler.set(&[name], flag(compatible));
    }

    /// Sets the number of worker pods that count against the limit.
    pub fn set_active_workers(&self, count: usize) {
        self.gates.active.set(&[], number(count));
        self.compat.worker_pods.set(&["running"], number(count));
    }

    /// Records the creation of a worker pod; `previous` is the verdict of the node's worker before it.
    pub fn inc_workers_created(&self, node: &str, gate: &str, previous: Option<&str>) {
        self.compat.reconciliations.inc(&["worker_created"]);
        self.with_node(node, |compat| compat.created.inc(&[node]));
        if let Some(reason) = previous {
            self.gates.retries.inc(&[gate, reason]);
            self.compat.retries.inc(&[]);
            self.compat.reconciliations.inc(&["retry"]);
        }
    }

    pub fn inc_worker_create_errors(&self, node: &str, error_type: &str) {
        self.with_node(node, |compat| compat.creation_errors.inc(&[node, error_type]));
        self.inc_node_errors(node, NodeError::CreateWorker);
    }

    /// Records the time from the creation of a worker pod until its container runs.
    pub fn observe_worker_start(&self, gate: &str, duration: Duration) {
        self.gates.start_time.observe(&[gate], duration);
    }

    /// Records a worker whose end is in the node's record. To be called once for each worker.
    pub fn observe_worker(&self, worker: &FinishedWorker<'_>) {
        let FinishedWorker { node, gate, verdict, duration, checks } = *worker;
        let (result, status, compat_result) = match verdict {
            Verdict::Passed => ("passed", Some("success"), "worker_succeeded"),
            Verdict::Failed => ("failed", Some("failed"), "worker_failed"),
            Verdict::Inconclusive => ("inconclusive", None, "worker_failed"),
        };
        self.gates.verifications.inc(&[gate, result]);
        self.compat.reconciliations.inc(&[compat_result]);
        let pods = if verdict == Verdict::Passed { "succeeded" } else { "failed" };
        self.compat.worker_pods.add(&[pods], 1.0);
        if let Some(status) = status {
            self.compat.verifications.inc(&[status]);
        }
        self.with_node(node, |compat| {
            status.inspect(|status| compat.attempts.inc(&[node, status]));
            match verdict {
                Verdict::Passed => compat.succeeded.inc(&[node]),
                Verdict::Failed | Verdict::Inconclusive => compat.failed.inc(&[node, result]),
            }
            compat.worker_time.observe(&[node, result], duration);
        });
        self.observe_checks(checks);
    }

    fn observe_checks(&self, checks: &[CheckResult]) {
        for check in checks.iter().filter(|check| check.outcome != CheckOutcome::Skipped) {
            self.observe_check(check);
        }
    }

    fn observe_check(&self, check: &CheckResult) {
        self.gates.check_runs.inc(&[&check.name]);
        self.gates.check_time.observe(&[&check.name], Duration::from_millis(check.ms));
        if check.outcome == CheckOutcome::Failed {
            self.gates.check_failures.inc(&[&check.name, &check.reason]);
        }
    }

    /// Updates the series of a node that exists: a late update must not bring back those of a deleted node.
    fn with_node(&self, node: &str, update: impl FnOnce(&CompatNodes)) {
        if self.nodes.has_node(node) {
            update(&self.compat_nodes);
        }
    }

    /// Records the patch that removes the gate's taints from a node.
    pub fn observe_taint_removal(&self, node: &str, success: bool, duration: Duration) {
        self.gates.taints.inc(&["remove", if success { "success" } else { "error" }]);
        let status = if success { "success" } else { "failed" };
        self.with_node(node, |compat| {
            compat.taint_removals.inc(&[node, status]);
            compat.label_adds.inc(&[node, status]);
            compat.update_time.observe(&[node, "untaint"], duration);
        });
        if !success {
            self.inc_node_errors(node, NodeError::PatchNode);
        }
    }

    /// Records the patch that adds the gate's taints to a node again.
    pub fn inc_taint_additions(&self, success: bool) {
        self.gates.taints.inc(&["add", if success { "success" } else { "error" }]);
    }

    /// Records the time from a Node's creation until its taints were removed.
    pub fn observe_node_verified(&self, gate: &str, duration: Duration) {
        self.gates.gated.observe(&[gate, "passed"], duration);
    }

    /// Records the time from a Node's creation until its attempts were used up.
    pub fn observe_node_failed(&self, node: &str, gate: &str, duration: Duration) {
        self.gates.gated.observe(&[gate, "failed"], duration);
        self.inc_node_errors(node, NodeError::AttemptsExhausted);
    }

    /// Records the end of an approved remediation.
    pub fn inc_remediations(&self, provider: &str, action: &str, result: &str) {
        self.gates.remediations.inc(&[provider, action, result]);
    }

    /// Records that a remediation became blocked.
    pub fn inc_remediations_blocked(&self, gate: &str, reason: &str) {
        self.gates.blocked.inc(&[gate, reason]);
    }
}

impl From<&Result<Action, ReconcileError>> for ReconcileResult {
    fn from(result: &Result<Action, ReconcileError>) -> Self {
        match result {
            Ok(Action::AwaitChange) => Self::Success,
            Ok(Action::RequeueAfter(_)) => Self::RequeueAfter,
            Err(_) => Self::Error,
        }
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Metrics({} entries)", self.registry.entries.len())
    }
}

fn flag(value: bool) -> f64 {
    value.into()
}

fn number(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}
