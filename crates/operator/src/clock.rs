//! The only source of time in the controller.

#![expect(clippy::disallowed_methods, reason = "the only source of time in the controller")]

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use tokio::time::Instant;

/// The wall clock, which may jump, and a monotonic clock, which does not.
#[derive(Clone)]
pub struct Clock {
    wall: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    start: Instant,
}

impl Clock {
    /// Returns the clock of this machine.
    #[must_use]
    pub fn real() -> Self {
        Self::new(Timestamp::now)
    }

    /// Returns a clock with another wall clock. To be called inside the tokio runtime whose time it follows.
    pub fn new(wall: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self { wall: Arc::new(wall), start: Instant::now() }
    }

    #[must_use]
    pub fn now(&self) -> Timestamp {
        (self.wall)()
    }

    /// Returns the wall-clock time in the precision of Leases and Events.
    #[must_use]
    pub fn micros(&self) -> MicroTime {
        let now = self.now();
        MicroTime(now.round(jiff::Unit::Microsecond).unwrap_or(now))
    }

    /// Returns the monotonic time since the clock was created.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Sleeps until [`Clock::elapsed`] is at least `elapsed`.
    pub async fn reach(&self, elapsed: Duration) {
        tokio::time::sleep_until(self.start + elapsed).await;
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Clock({})", self.now())
    }
}
