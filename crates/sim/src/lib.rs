//! An embedded Kubernetes cluster: an API server with a scheduler, kubelets and the controllers that act on nodes, on
//! a clock that can be paused.
//!
//! - [`Cluster`] is the entry point. [`Cluster::client`] returns a `kube::Client` without a socket; [`bind`] serves the
//!   cluster on a TLS port.
//! - [`api`] is the API server, [`resources`] the table of built-in kinds, [`registry`] their strategies, [`store`] the
//!   storage.
//! - [`actors`] are the controllers and kubelets, [`transport`] is the connection of a client, with faults.
//! - [`worker`] runs the real checks in the simulated network; [`process`] runs the real worker binary against
//!   [`loopback`].
//! - [`harness`] runs a program under test through seeds of faults and checks invariants.
//!
//! Where it differs from a real API server, it is wrong: `make conformance` compares them.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

pub mod actors;
pub mod api;
pub mod bind;
pub mod clock;
pub mod cluster;
pub mod faults;
pub mod harness;
pub mod loopback;
pub mod network;
pub mod object;
pub mod process;
pub mod registry;
pub mod resource;
pub mod resources;
pub mod server;
pub mod store;
pub mod trace;
pub mod transport;
pub mod value;
pub mod worker;

pub use clock::Clock;
pub use cluster::{Cluster, Options};
