//! The controllers: watches fill caches, queues hold keys, `core` decides, `apply` writes.
//!
//! ```text
//!  watcher ──► cache ──► work queue ──► reconciler ──► core decides ──► apply ──► API server
//!                                          ▲                              │
//!                                          └────────── responses ─────────┘     leader: may this replica write?
//! ```

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

pub mod agent;
mod apply;
mod client;
pub mod clock;
pub mod config;
mod controllers;
pub mod health;
pub mod http;
pub mod metrics;
mod providers;
mod run;
pub mod runtime;
pub mod telemetry;

pub use client::{client, client_with_metrics};
pub use run::{Settings, run, run_with};
