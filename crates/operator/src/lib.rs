//! The controller: watches fill small views, a queue says whom to look at, `core` decides, one file writes.
//!
//! ```text
//!  watch ──► views ──► queue ──► gate ──► core::gate::decide ──► apply ──► API server
//!                                  ▲                               │
//!                                  └────── what was written ───────┘        leader: may we write at all?
//! ```

mod account;
mod apply;
mod client;
pub mod clock;
pub mod config;
mod gate;
pub mod health;
pub mod http;
mod leader;
pub mod metrics;
mod providers;
mod queue;
mod remediate;
mod run;
mod slots;
pub mod telemetry;
mod term;
mod views;
mod watch;

pub use client::{client, client_with_metrics};
pub use run::{Settings, run};
