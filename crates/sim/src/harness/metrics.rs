//! The metrics of a replica, which invariants read.

use std::sync::Arc;

use parking_lot::Mutex;

type Scrape = Box<dyn Fn() -> String + Send>;

/// Returns the metrics of a replica as text. Clones share it.
#[derive(Clone, Default)]
pub struct MetricsEndpoint(Arc<Mutex<Option<Scrape>>>);

impl MetricsEndpoint {
    pub fn serve(&self, scrape: impl Fn() -> String + Send + 'static) {
        *self.0.lock() = Some(Box::new(scrape));
    }

    pub(super) fn scrape(&self) -> Option<String> {
        self.0.lock().as_ref().map(|scrape| scrape())
    }

    pub(super) fn close(&self) {
        *self.0.lock() = None;
    }
}
