//! The clock of the cluster.

#![expect(clippy::disallowed_methods, reason = "the clock of the cluster")]

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// Wall-clock time that follows tokio's clock, so that a paused runtime has paused time.
///
/// Clones share one clock; [`Clock::independent`] returns one with its own skew.
#[derive(Clone, Debug)]
pub struct Clock {
    epoch: Timestamp,
    start: Instant,
    skew_millis: Arc<AtomicI64>,
}

impl Clock {
    /// Starts at the same time in every run. Call it inside a paused runtime, since tokio's clock is real outside.
    #[must_use]
    pub fn simulated() -> Self {
        Self::starting_at(Timestamp::constant(1_767_225_600, 0))
    }

    #[must_use]
    pub fn real() -> Self {
        Self::starting_at(Timestamp::now())
    }

    fn starting_at(epoch: Timestamp) -> Self {
        Self { epoch, start: Instant::now(), skew_millis: Arc::default() }
    }

    #[must_use]
    pub fn now(&self) -> Timestamp {
        let elapsed = SignedDuration::try_from(self.start.elapsed()).unwrap_or(SignedDuration::MAX);
        let skew = SignedDuration::from_millis(self.skew_millis.load(Ordering::Relaxed));
        self.epoch.saturating_add(elapsed.saturating_add(skew)).unwrap_or(self.epoch)
    }

    /// The monotonic time since the clock was created.
    #[must_use]
    pub fn elapsed(&self) -> std::time::Duration {
        self.start.elapsed()
    }

    /// A clock with its own skew.
    #[must_use]
    pub fn independent(&self) -> Self {
        let skew = self.skew_millis.load(Ordering::Relaxed);
        Self { skew_millis: Arc::new(AtomicI64::new(skew)), ..self.clone() }
    }

    /// Moves the clock forwards or backwards.
    pub fn jump(&self, by: SignedDuration) {
        let millis = i64::try_from(by.as_millis()).unwrap_or(0);
        self.skew_millis.fetch_add(millis, Ordering::Relaxed);
    }
}

/// Saturates, since clients may send any duration.
#[must_use]
pub fn after(start: Instant, wait: std::time::Duration) -> Instant {
    const FAR: std::time::Duration = std::time::Duration::from_hours(24 * 365 * 10);
    start.checked_add(wait.min(FAR)).unwrap_or(start)
}

/// `metav1.Time`, in whole seconds.
#[must_use]
pub fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// `metav1.MicroTime`, as in Leases and Events.
#[must_use]
pub fn micro_time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}
