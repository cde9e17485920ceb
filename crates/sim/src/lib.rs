//! An embedded Kubernetes cluster: an API server small enough to read and honest enough to trust, with a
//! scheduler, kubelets and the few controllers that nodes meet, on a clock that can be paused.
//!
//! - [`Cluster`] is the whole of it. [`Cluster::client`] gives a `kube::Client` that runs on it without a socket;
//!   [`bind`] puts it on a TLS port for kubectl and everybody else.
//! - [`api`] is the server proper: synchronous, without a clock. [`resources`] is the table of registry, [`registry`] what
//!   single registry do, [`store`] the objects and their history.
//! - [`actors`] are the controllers around it, [`transport`] is the way between a client and the server, where faults happen.
//! - [`worker`] runs the real checks in the cluster's own network, on its clock; [`process`] runs the real worker on
//!   the real clock, against [`loopback`].
//! - [`harness`] runs a program under test through seeds of faults and checks invariants at every step.
//!
//! Where it differs from a real API server it is wrong: `make conformance` shows it.

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
pub mod worker;

pub use clock::Clock;
pub use cluster::{Cluster, Options};
