//! The checks that prove a node's network, and the worker that runs them there.
//!
//! - [`run`] does all checks of an assignment at once and comes to a report. It has no clock but tokio's and no way
//!   into the network but [`Net`], so that a simulator can give it both.
//! - [`net`] is that way; `real` is the one with sockets.
//! - Each check is a file: what it asks, and what its answers mean.

mod api;
mod assignment;
mod clock;
mod date;
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
mod url;

pub use assignment::read as read_assignment;
pub use date::rfc3339;
pub use net::{Answer, Environment, Net, NetError, Packets, Server};
pub use plan::{ConfigError, Need, Target, list, only};
pub use run::{Progress, misconfigured, run, run_and_tell};
pub use url::Url;
