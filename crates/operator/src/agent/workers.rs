//! The workers of an agent: runs of the checks in this process, which look to the gate like the pods of other nodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use nodekeeper_core::checks::WorkerIdentity;
use nodekeeper_core::gate::GateView;
use nodekeeper_core::node::NodeView;
use nodekeeper_core::report::{Report, Verdict};
use nodekeeper_core::worker::{self, Progress, WorkerView};
use parking_lot::Mutex;
use tokio::task::AbortHandle;
use tracing::{debug, info, warn};

use super::RunChecks;
use crate::clock::Clock;
use crate::controllers::{Caches, kinds};
use crate::metrics::Metrics;
use crate::runtime::manager::Manager;
use crate::runtime::{Cache, Change, Dispatcher};

/// Runs the checks of one node in this process.
pub struct LocalWorkers {
    checks: Arc<dyn RunChecks>,
    reporter: Reporter,
    /// The run that has not ended, by the name of its worker.
    running: Mutex<Option<(String, AbortHandle)>>,
    confirmed_at: Mutex<Option<Duration>>,
    runs: AtomicU64,
}

impl LocalWorkers {
    pub fn new(
        node: &str,
        checks: Arc<dyn RunChecks>,
        caches: &Caches,
        manager: &Manager,
        metrics: Arc<Metrics>,
    ) -> Self {
        metrics.register_agent(node);
        let (cache, dispatcher) = (caches.workers.clone(), manager.dispatcher());
        let reporter =
            Reporter { node: node.into(), cache, dispatcher, clock: manager.clock().clone(), metrics };
        Self {
            checks,
            reporter,
            running: Mutex::default(),
            confirmed_at: Mutex::default(),
            runs: AtomicU64::new(0),
        }
    }

    /// Starts a run of the gate's checks.
    pub fn start(&self, node: &NodeView, gate: &GateView, identity: &WorkerIdentity) {
        let name = worker::name(&identity.node_uid, identity.number);
        let view = WorkerView {
            name: name.clone(),
            // Workers are told apart by their uid, and a number whose result was not recorded is used again.
            uid: format!("run-{}", self.runs.fetch_add(1, Relaxed)),
            resource_version: String::new(),
            first_seen: Duration::ZERO,
            unscheduled_since: Duration::ZERO,
            deleting: false,
            node_name: node.name.to_string(),
            identity: identity.clone(),
            progress: Progress::Running,
        };
        debug!(node = &*node.name, gate = gate.name, worker = identity.number, "checks started");
        self.reporter.cache.lock().force_insert(view, self.reporter.clock.elapsed());
        let run = self.checks.run(worker::assignment(&gate.spec, identity));
        let (reporter, worker) = (self.reporter.clone(), name.clone());
        let task = tokio::spawn(async move { reporter.ended(&worker, run.await) });
        self.end_running();
        *self.running.lock() = Some((name, task.abort_handle()));
    }

    /// Ends a run, or forgets its result.
    pub fn remove(&self, name: &str) {
        if self.running.lock().as_ref().is_some_and(|(running, _)| running == name) {
            self.end_running();
        }
        self.reporter.cache.lock().remove(name);
    }

    /// Takes the result of a run as a confirmation of the record, which is not written again.
    pub fn confirm(&self, worker: &WorkerView, gate: &GateView, now: Duration) {
        *self.confirmed_at.lock() = Some(now);
        self.remove(&worker.name);
        if let Progress::Reported(report) = &worker.progress {
            self.reporter.metrics.observe_confirmation(&gate.name, report);
        }
    }

    /// When a run last confirmed the record, on the monotonic clock.
    pub fn confirmed_at(&self) -> Option<Duration> {
        *self.confirmed_at.lock()
    }

    fn end_running(&self) {
        if let Some((_, running)) = self.running.lock().take() {
            running.abort();
        }
    }
}

impl Drop for LocalWorkers {
    fn drop(&mut self) {
        self.end_running();
    }
}

/// Puts the result of a run where the gate looks for it.
#[derive(Clone)]
struct Reporter {
    node: Arc<str>,
    cache: Cache<WorkerView>,
    dispatcher: Dispatcher,
    clock: Clock,
    metrics: Arc<Metrics>,
}

impl Reporter {
    fn ended(&self, name: &str, report: Report) {
        let (node, verdict) = (&*self.node, report.verdict);
        if report.verdict == Verdict::Passed {
            info!(node, verdict = %verdict, result = report.summary(), "checks ended");
        } else {
            warn!(node, verdict = %verdict, result = report.summary(), "checks ended");
        }
        self.metrics.observe_agent_run(node, &report, self.clock.now());
        let before = self.cache.lock().get(name).cloned();
        let Some(before) = before else { return };
        let after = WorkerView { progress: Progress::Reported(report), ..before.clone() };
        self.cache.lock().update(name, |worker| worker.progress = after.progress.clone());
        self.dispatcher.dispatch(&Change::new(kinds::WORKERS, name.into(), Some(before), Some(after)));
    }
}
