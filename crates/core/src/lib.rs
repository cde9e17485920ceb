//! The types and decisions of Nodekeeper: no I/O, no clock, no environment, no randomness.
//!
//! [`node`] is a node's view, [`gate`] decides about it, [`worker`] is the pod that verifies it, [`report`] is that
//! pod's result, [`record`] is the state kept on the node, [`fleet`] counts all nodes, [`remediate`] decides whether a
//! node may be replaced, [`configured`] applies the objects of the installation, and [`lease`] decides which replica leads.

#![cfg_attr(
    not(test),
    deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::print_stdout, clippy::print_stderr)
)]

#[cfg(feature = "api")]
pub mod api;
#[cfg(feature = "api")]
pub mod autoscaler;
pub mod checks;
#[cfg(feature = "api")]
pub mod condition;
#[cfg(feature = "api")]
pub mod configured;
pub mod env_var;
#[cfg(feature = "api")]
pub mod fleet;
#[cfg(feature = "api")]
pub mod gate;
#[cfg(feature = "api")]
pub mod id;
#[cfg(feature = "api")]
mod jitter;
#[cfg(feature = "api")]
pub mod labels;
#[cfg(feature = "api")]
pub mod lease;
#[cfg(feature = "api")]
pub mod limits;
#[cfg(feature = "api")]
pub mod node;
#[cfg(feature = "api")]
pub mod outage;
#[cfg(feature = "api")]
mod partial;
pub mod reasons;
#[cfg(feature = "api")]
pub mod record;
#[cfg(feature = "api")]
pub mod remediate;
pub mod report;
pub mod text;
#[cfg(feature = "api")]
pub mod topology;
#[cfg(feature = "api")]
pub mod worker;
