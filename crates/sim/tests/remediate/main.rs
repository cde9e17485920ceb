//! The real controller remediates nodes on a cluster without injected faults.
//!
//! The incidents of other systems are tests with their numbers (`i03_…`). I1 (an admission webhook that fails
//! closed), I7 and I9 (finalizers on Nodes) are missing, because the operator has neither webhooks nor Node
//! finalizers yet.

#[path = "../gate/mod.rs"]
mod gate;

mod budget;
mod controls;
mod fuse;
mod gate_refusals;
mod incidents;
mod outage;
mod refusals;
mod test_cluster;
mod withdrawals;
