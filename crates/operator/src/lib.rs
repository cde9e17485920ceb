//! The controller: watches fill small views, a queue says whom to look at, `core` decides, one file writes.
//!
//! ```text
//!  watch ──► views ──► queue ──► gate ──► core::gate::decide ──► apply ──► API server
//!                                  ▲                               │
//!                                  └────── what was written ───────┘        leader: may we write at all?
//! ```

mod apply;
mod client;
pub mod clock;
pub mod config;
mod gate;
mod leader;
mod queue;
mod run;
mod slots;
mod views;
mod watch;

pub use client::client;
pub use run::{Settings, run};
