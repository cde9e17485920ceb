//! Types and decisions of Nodekeeper, and nothing else: no I/O, no clock, no environment, no randomness.
//!
//! The rooms, in the order in which a node walks through them: [`node`] is what we know of it, [`gate`] decides what
//! happens to it, [`worker`] is the pod that looks at it, [`report`] is what that pod says, [`record`] is what we
//! remember, [`fleet`] what all nodes say together, [`remediate`] whether one may be replaced. [`lease`] says which controller may write.

#[cfg(feature = "api")]
pub mod api;
#[cfg(feature = "api")]
pub mod autoscaler;
pub mod checks;
#[cfg(feature = "api")]
pub mod condition;
pub mod env_var;
#[cfg(feature = "api")]
pub mod fleet;
#[cfg(feature = "api")]
pub mod gate;
#[cfg(feature = "api")]
mod jitter;
#[cfg(feature = "api")]
pub mod lease;
#[cfg(feature = "api")]
pub mod node;
#[cfg(feature = "api")]
pub mod outage;
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
