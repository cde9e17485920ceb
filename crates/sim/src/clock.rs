//! Edge: time enters the cluster here and nowhere else.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// Wall-clock time that follows tokio's clock, so that a paused runtime has paused time.
///
/// Clones share one clock; [`Clock::independent`] makes one that can be wrong on its own.
#[derive(Clone, Debug)]
pub struct Clock {
    epoch: Timestamp,
    start: Instant,
    skew_millis: Arc<AtomicI64>,
}

impl Clock {
    /// A clock that starts at the same moment in every run. To be made inside a paused runtime: outside of any, tokio's
    /// clock is the real one.
    #[must_use]
    pub fn simulated() -> Self {
        Self::starting_at(Timestamp::constant(1_767_225_600, 0))
    }

    /// A clock that starts now.
    #[must_use]
    pub fn real() -> Self {
        Self::starting_at(Timestamp::now())
    }

    fn starting_at(epoch: Timestamp) -> Self {
        Self { epoch, start: Instant::now(), skew_millis: Arc::default() }
    }

    /// The time it is.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        let elapsed = SignedDuration::try_from(self.start.elapsed()).unwrap_or(SignedDuration::MAX);
        let skew = SignedDuration::from_millis(self.skew_millis.load(Ordering::Relaxed));
        self.epoch.saturating_add(elapsed.saturating_add(skew)).unwrap_or(self.epoch)
    }

    /// The time since the clock was made, without its jumps.
    #[must_use]
    pub fn elapsed(&self) -> std::time::Duration {
        self.start.elapsed()
    }

    /// A clock that runs beside this one and jumps alone.
    #[must_use]
    pub fn independent(&self) -> Self {
        let skew = self.skew_millis.load(Ordering::Relaxed);
        Self { skew_millis: Arc::new(AtomicI64::new(skew)), ..self.clone() }
    }

    /// Moves the clock, forwards or backwards.
    pub fn jump(&self, by: SignedDuration) {
        let millis = i64::try_from(by.as_millis()).unwrap_or(0);
        self.skew_millis.fetch_add(millis, Ordering::Relaxed);
    }
}

/// A moment so long after another; what clients may ask for can lie beyond the end of time.
#[must_use]
pub fn after(start: Instant, wait: std::time::Duration) -> Instant {
    const FAR: std::time::Duration = std::time::Duration::from_hours(24 * 365 * 10);
    start.checked_add(wait.min(FAR)).unwrap_or(start)
}

/// `metav1.Time`: whole seconds.
#[must_use]
pub fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// `metav1.MicroTime`, as Leases and Events carry it.
#[must_use]
pub fn micro_time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}
