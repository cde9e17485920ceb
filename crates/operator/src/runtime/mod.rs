//! What every controller runs on: caches that are filled by watches, work queues, leader election and a manager.

pub mod cache;
pub mod call;
pub mod leader;
pub mod manager;
pub mod reconciler;
pub mod source;
pub mod store;
pub mod watcher;
pub mod workqueue;

pub use cache::Cache;
pub use manager::{Dispatcher, Manager, Stop};
pub use reconciler::{Action, Change, ControllerOptions, ReconcileError, Reconciler, controller};
pub use store::{Cached, Store};
pub use workqueue::Priority;
