//! The checks that prove a node's network, and the worker that runs them there.
//!
//! - [`run`] does all checks of an assignment at once and comes to a report. It has no clock but tokio's and no way
//!   into the network but [`Net`], so that a simulator can give it both.
//! - [`net`] is that way; `real` is the one with sockets.
//! - Each check is a file: what it asks, and what its answers mean.

mod api;
mod assignment;
mod dns;
pub mod net;
mod plan;
#[cfg(feature = "real")]
pub mod real;
mod run;
mod services;
mod tcp;

pub use assignment::read as read_assignment;
pub use net::{Answer, Net, Trouble};
pub use plan::{ConfigError, Target, list, only};
pub use run::{misconfigured, run};
