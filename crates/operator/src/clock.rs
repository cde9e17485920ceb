//! Edge: time enters the controller here and nowhere else.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use tokio::time::Instant;

/// The time of day, which may jump, and the time since the start, which does not.
#[derive(Clone)]
pub struct Clock {
    wall: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    start: Instant,
}

impl Clock {
    /// The machine's clock.
    #[must_use]
    pub fn real() -> Self {
        Self::new(Timestamp::now)
    }

    /// Somebody else's idea of the time of day. To be made inside the runtime whose time it follows.
    pub fn new(wall: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self { wall: Arc::new(wall), start: Instant::now() }
    }

    /// The time of day.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        (self.wall)()
    }

    /// The time of day as Leases and Events carry it.
    #[must_use]
    pub fn micros(&self) -> MicroTime {
        let now = self.now();
        MicroTime(now.round(jiff::Unit::Microsecond).unwrap_or(now))
    }

    /// The time since the clock was made.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Waits until so much time has passed since the clock was made.
    pub async fn reach(&self, elapsed: Duration) {
        tokio::time::sleep_until(self.start + elapsed).await;
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Clock({})", self.now())
    }
}
