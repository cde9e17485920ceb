//! The checks that verify a node's network, and the worker that runs them.
//!
//! - [`run`] runs all checks of an assignment at once and returns a report. It uses only tokio's clock and [`Net`], so
//!   that a simulator can provide both.
//! - [`net`] defines that trait; `real` implements it with sockets.
//! - Each check is one file.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod api;
mod assignment;
mod clock;
pub mod console;
mod dns;
mod http;
mod mtu;
pub mod net;
mod peers;
mod plan;
#[cfg(feature = "real")]
pub mod real;
mod run;
mod services;
mod slices;
mod tcp;

pub use assignment::read as read_assignment;
pub use net::{Answer, Answers, Environment, Net, NetError, Packets, Server};
pub use plan::{ConfigError, Need, Target, list, only};
pub use run::{Progress, misconfigured, run, run_again, run_with_progress};
pub use url::Url;
