//! What can be counted about the controller. Its methods say what happened; which numbers change is decided here.
//!
//! Three sets: our own, whose series are bounded by gates and checks; the usual ones of controllers; and those of
//! kube-node-ready, which are served where somebody asks for them. `docs/metrics.md` is written from the same entries.

mod book;
mod gate;
mod nodes;
mod process;
mod reference;
mod runtime;
mod seed;
mod series;
#[cfg(test)]
mod tests;
mod text;

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use nodekeeper_core::fleet::FleetIndex;
use nodekeeper_core::report::{CheckResult, Outcome as CheckOutcome, Verdict};

use crate::runtime::reconciler::Action;
use crate::runtime::workqueue::QueueStats;
use book::Book;
use gate::Gates;
use nodes::Board;
pub use nodes::seed_word as state_word;
use runtime::{CONTROLLER as GATE, Runtime};
use seed::{ByNode, Seed};
use series::Series;
pub use text::Format;

/// What is served.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// The names of kube-node-ready too.
    pub seed_names: bool,
    /// Also what has a series for each node.
    pub per_node: bool,
}

/// What was built, as `build_info` says it.
#[derive(Clone, Copy, Debug)]
pub struct Build<'a> {
    /// Of the release.
    pub version: &'a str,
    /// The commit.
    pub revision: &'a str,
    /// The day.
    pub date: &'a str,
}

/// A worker that ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended<'a> {
    /// Whose it was.
    pub node: &'a str,
    /// For which gate.
    pub gate: &'a str,
    /// What it is worth.
    pub verdict: Verdict,
    /// From when its pod was first seen to its end.
    pub took: Duration,
    /// What it reported; nothing if it said nothing.
    pub checks: &'a [CheckResult],
}

/// What could not be done, in the words of the seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A node could not be read.
    ReadNode,
    /// A worker could not be made.
    StartWorker,
    /// A node could not be written.
    WriteNode,
    /// A node used its attempts up.
    GaveUp,
}

/// All numbers of one process.
pub struct Metrics {
    book: Book,
    board: Board,
    gates: Gates,
    runtime: Runtime,
    seed: Seed,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new(Options::default())
    }
}

impl Metrics {
    /// Nothing has happened yet.
    #[must_use]
    pub fn new(options: Options) -> Self {
        let mut book = Book::new(options);
        let gates = Gates::new(&mut book);
        let runtime = Runtime::new(&mut book);
        let seed = Seed::new(&mut book);
        let board = Board::new(&mut book);
        process::Process::enter(&mut book);
        for status in ["running", "succeeded", "failed"] {
            seed.worker_pods.start(&[status]);
        }
        Self { book, board, gates, runtime, seed }
    }

    /// All of it, as a scrape wants it.
    ///
    /// # Errors
    /// None that is known: a `String` takes everything.
    pub fn render(&self, format: Format) -> Result<String, fmt::Error> {
        text::render(&self.book.registry, format)
    }

    /// The page of the documentation.
    #[must_use]
    pub fn reference() -> String {
        reference::page(&Self::new(Options { seed_names: true, per_node: true }).book.entries)
    }

    /// What this is.
    pub fn build(&self, build: Build<'_>) {
        self.gates.build.set(&[build.version, build.revision], 1.0);
        self.seed.build.set(&[build.version, build.revision, build.date], 1.0);
    }

    /// Whether `/readyz` would say yes.
    pub fn healthy(&self, ready: bool) {
        self.seed.healthy.set(&[], flag(ready));
    }

    /// A controller starts, and stands for a lease.
    pub fn process_started(&self, now: Timestamp, lease: &str, lasts: Duration) {
        #[expect(clippy::cast_precision_loss, reason = "seconds since 1970 are exact in a f64")]
        self.seed.started.set(&[], now.as_second() as f64);
        self.seed.lease.set(&[], lasts.as_secs_f64());
        self.runtime.leading.set(&[lease], 0.0);
        self.runtime.slow_path.start(&[lease]);
    }

    /// We have the lease.
    pub fn leadership_began(&self, lease: &str) {
        self.runtime.leading.set(&[lease], 1.0);
        self.seed.leading.set(&[], 1.0);
        self.seed.transitions.inc(&[]);
        self.board.lead();
    }

    /// We have it no longer: what nodes are like is somebody else's to say.
    pub fn leadership_ended(&self, lease: &str) {
        if !self.board.step_down() {
            return;
        }
        self.runtime.leading.set(&[lease], 0.0);
        self.seed.leading.set(&[], 0.0);
        self.seed.transitions.inc(&[]);
        self.seed.by_node.each(Series::clear, Series::clear);
        self.gates.policy.clear();
        self.gates.autoscaler.clear();
        self.workers_active(0);
    }

    /// A renewal had to read the lease first.
    pub fn lease_read_again(&self, lease: &str) {
        self.runtime.slow_path.inc(&[lease]);
    }

    /// An answer from the API server, or none.
    pub fn request(&self, method: &str, host: &str, code: Option<u16>, took: Duration) {
        let code = code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
        self.runtime.requests.inc(&[&code, method, host]);
        self.runtime.request_time.took(&[method, host], took);
    }

    pub fn controller_started(&self, controller: &'static str, concurrency: usize) {
        self.runtime.concurrency.set(&[controller], number(concurrency));
    }

    pub fn leader_ready(&self, _took: Duration) {}

    pub fn queue_stats(&self, controller: &'static str, stats: &QueueStats) {
        let (runtime, labels) = (&self.runtime, &[controller, controller]);
        runtime.depth.set(labels, number(stats.depth));
        if controller == GATE {
            self.seed.depth.set(&[], number(stats.depth));
        }
        runtime.unfinished.set(labels, stats.unfinished.as_secs_f64());
        runtime.longest.set(labels, stats.longest.as_secs_f64());
        runtime.adds.add(labels, stats.adds);
        runtime.retries.add(labels, stats.retries);
    }

    pub fn key_taken(&self, controller: &'static str, waited: Duration) {
        self.runtime.waited.took(&[controller, controller], waited);
        if controller == GATE {
            self.seed.latency.took(&[], waited);
        }
    }

    pub fn active_workers(&self, controller: &'static str, count: usize) {
        self.runtime.active.set(&[controller], number(count));
    }

    pub fn reconciled(&self, controller: &'static str, key: &str, action: Option<Action>, took: Duration) {
        let result = match action {
            Some(Action::AwaitChange) => "success",
            Some(Action::RequeueAfter(_)) => "requeue_after",
            None => "error",
        };
        self.runtime.reconciles.inc(&[controller, result]);
        self.runtime.time.took(&[controller], took);
        self.runtime.worked.took(&[controller, controller], took);
        if action.is_none() {
            self.runtime.errors.inc(&[controller]);
            self.seed.errors.inc(&[]);
        }
        if controller != GATE {
            return;
        }
        self.of(key, |series| series.reconcile_time.took(&[key], took));
        if action.is_none() {
            self.seed.reconciliations.inc(&["error"]);
            return;
        }
        self.seed.reconciliations.inc(&[match self.board.seed_state(key) {
            Some("verified") => "already_verified",
            Some("no_taint") => "no_taint",
            Some("pending" | "in_progress") => "worker_running",
            Some("failed") => "verification_failed_permanent",
            Some("unverified") => "backoff",
            _ => "deleted",
        }]);
    }

    /// Something could not be done about a node.
    pub fn failed(&self, node: &str, what: Failure) {
        let word = match what {
            Failure::ReadNode => "node_fetch_error",
            Failure::StartWorker => "worker_job_creation_error",
            Failure::WriteNode => "node_update_error",
            Failure::GaveUp => "max_retries_exceeded",
        };
        self.of(node, |series| series.errors.inc(&[node, word]));
    }

    /// Where the nodes stand; to be filled by the leader.
    #[must_use]
    pub fn fleet(&self) -> Arc<Mutex<FleetIndex>> {
        self.board.fleet()
    }

    /// A node is gone, and all series with its name.
    pub fn forget_node(&self, node: &str) {
        self.seed.by_node.each(|series| series.remove_all_of(node), |series| series.remove_all_of(node));
    }

    /// A gate is there, with its enforcement in one word.
    pub fn gate_is(&self, gate: &str, enforcement: &str) {
        for word in ["Enforce", "DryRun", "Paused"].into_iter().filter(|word| *word != enforcement) {
            self.gates.policy.remove(&["NodeGate", gate, word]);
        }
        self.gates.policy.set(&["NodeGate", gate, enforcement], 1.0);
        self.board.gate_is(gate);
        for result in ["passed", "failed", "inconclusive"] {
            self.gates.verifications.start(&[gate, result]);
        }
    }

    /// A gate is gone.
    pub fn forget_gate(&self, gate: &str) {
        let Gates { policy, verifications, retries, gated, start_time, .. } = &self.gates;
        for word in ["Enforce", "DryRun", "Paused"] {
            policy.remove(&["NodeGate", gate, word]);
        }
        verifications.remove_all_of(gate);
        retries.remove_all_of(gate);
        gated.remove_all_of(gate);
        start_time.remove_all_of(gate);
        self.board.forget_gate(gate);
    }

    /// Whether an autoscaler knows the taint for one that goes away.
    pub fn autoscaler(&self, name: &str, compatible: bool) {
        self.gates.autoscaler.set(&[name], flag(compatible));
    }

    /// So many workers take a slot.
    pub fn workers_active(&self, count: usize) {
        self.gates.active.set(&[], number(count));
        self.seed.worker_pods.set(&["running"], number(count));
    }

    /// A worker was made; `after` is what the one before it said, in one word.
    pub fn worker_created(&self, node: &str, gate: &str, after: Option<&str>) {
        self.seed.reconciliations.inc(&["worker_created"]);
        self.of(node, |series| series.created.inc(&[node]));
        if let Some(reason) = after {
            self.gates.retries.inc(&[gate, reason]);
            self.seed.retries.inc(&[]);
            self.seed.reconciliations.inc(&["retry"]);
        }
    }

    /// A worker could not be made: in one word, why.
    pub fn worker_not_created(&self, node: &str, why: &str) {
        self.of(node, |series| series.creation_errors.inc(&[node, why]));
        self.failed(node, Failure::StartWorker);
    }

    /// A worker runs, so long after it was made.
    pub fn worker_runs(&self, gate: &str, after: Duration) {
        self.gates.start_time.took(&[gate], after);
    }

    /// A worker ended, and its end is recorded. Once for each worker.
    pub fn worker_ended(&self, ended: &Ended<'_>) {
        let Ended { node, gate, verdict, took, checks } = *ended;
        let (word, status, seed_result) = match verdict {
            Verdict::Passed => ("passed", Some("success"), "worker_succeeded"),
            Verdict::Failed => ("failed", Some("failed"), "worker_failed"),
            Verdict::Inconclusive => ("inconclusive", None, "worker_failed"),
        };
        self.gates.verifications.inc(&[gate, word]);
        self.seed.reconciliations.inc(&[seed_result]);
        let pods = if verdict == Verdict::Passed { "succeeded" } else { "failed" };
        self.seed.worker_pods.move_by(&[pods], 1.0);
        if let Some(status) = status {
            self.seed.verifications.inc(&[status]);
            self.board.took(node, took);
        }
        self.of(node, |series| {
            status.inspect(|status| series.attempts.inc(&[node, status]));
            match verdict {
                Verdict::Passed => series.succeeded.inc(&[node]),
                Verdict::Failed | Verdict::Inconclusive => series.failed.inc(&[node, word]),
            }
            series.worker_time.took(&[node, word], took);
        });
        for check in checks.iter().filter(|check| check.outcome != CheckOutcome::Skipped) {
            self.checked(check);
        }
    }

    fn checked(&self, check: &CheckResult) {
        self.gates.check_runs.inc(&[&check.name]);
        self.gates.check_time.took(&[&check.name], Duration::from_millis(check.ms));
        if check.outcome == CheckOutcome::Failed {
            self.gates.check_failures.inc(&[&check.name, &check.reason]);
        }
    }

    /// The series of a node that is there: a late word about one that is gone must not bring them back.
    fn of(&self, node: &str, tell: impl FnOnce(&ByNode)) {
        if self.board.knows(node) {
            tell(&self.seed.by_node);
        }
    }

    /// The write that lets a node in was made, or was refused.
    pub fn taint_removed(&self, node: &str, done: bool, took: Duration) {
        self.gates.taints.inc(&["remove", if done { "success" } else { "error" }]);
        let status = if done { "success" } else { "failed" };
        self.of(node, |series| {
            series.taint_removals.inc(&[node, status]);
            series.label_adds.inc(&[node, status]);
            series.update_time.took(&[node, "untaint"], took);
        });
        if !done {
            self.failed(node, Failure::WriteNode);
        }
    }

    /// A taint was put back on a node, or could not be.
    pub fn taint_added(&self, done: bool) {
        self.gates.taints.inc(&["add", if done { "success" } else { "error" }]);
    }

    /// A node was let in after so long before its gate.
    pub fn opened(&self, gate: &str, after: Duration) {
        self.gates.gated.took(&[gate, "passed"], after);
    }

    /// A node used its attempts up after so long before its gate.
    pub fn gave_up(&self, node: &str, gate: &str, after: Duration) {
        self.gates.gated.took(&[gate, "failed"], after);
        self.failed(node, Failure::GaveUp);
    }

    /// A remediation that was approved came to an end.
    pub fn remediated(&self, provider: &str, action: &str, result: &str) {
        self.gates.remediations.inc(&[provider, action, result]);
    }

    /// A remediation began to be held.
    pub fn remediation_blocked(&self, gate: &str, reason: &str) {
        self.gates.blocked.inc(&[gate, reason]);
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Metrics({} entries)", self.book.entries.len())
    }
}

fn flag(is: bool) -> f64 {
    is.into()
}

fn number(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}
