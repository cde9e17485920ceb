//! Updates the metrics of controllers and workqueues.

use super::table::Runtime;

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

impl Runtime {
    /// Serves all series of a controller from the start: a rate over a counter that appears with its first event
    /// misses that event.
    pub fn register_controller(&self, controller: &'static str) {
        for result in ReconcileResult::ALL {
            self.reconciles.init(&[controller, result.as_str()]);
        }
        for counter in [&self.errors, &self.panics, &self.terminal_errors] {
            counter.init(&[controller]);
        }
        self.time.init(&[controller]);
        self.active.init(&[controller]);
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
