//! The trace of a run: one line an event, identical for the same seed.

use std::fmt::Write as _;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::clock::Clock;

/// Each line starts with the virtual time.
#[derive(Clone)]
pub struct Trace {
    clock: Clock,
    lines: Arc<Mutex<Option<String>>>,
}

impl Trace {
    /// Records nothing until [`Trace::enable`] is called.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self { clock, lines: Arc::default() }
    }

    pub fn enable(&self) {
        self.lock().get_or_insert_default();
    }

    /// Adds a line if the trace is enabled.
    pub fn record(&self, text: impl FnOnce() -> String) {
        if let Some(lines) = self.lock().as_mut() {
            let elapsed = self.clock.elapsed();
            let _ = writeln!(lines, "{:>5}.{:03} {}", elapsed.as_secs(), elapsed.subsec_millis(), text());
        }
    }

    #[must_use]
    pub fn text(&self) -> String {
        self.lock().clone().unwrap_or_default()
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, Option<String>> {
        self.lines.lock()
    }
}
