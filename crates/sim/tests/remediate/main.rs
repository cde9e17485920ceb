//! The real controller replaces nodes, on a cluster where nothing goes wrong but what the test does.
//!
//! The incidents that others had are scenarios by their numbers (`i03_…`). Not here: I1 (an admission webhook that fails
//! closed), I7 and I9 (finalizers on Nodes), because nothing in the operator admits Nodes or holds them by a finalizer yet.

#[path = "../gate/mod.rs"]
mod gate;

mod budget;
mod controls;
mod fuse;
mod incidents;
mod outage;
mod test_cluster;
