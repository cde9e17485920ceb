//! A real control plane on one machine, and the suites that run on it.

pub mod assets;
pub mod conformance;
pub mod control_plane;
mod pki;
mod skip;
mod text;

pub use control_plane::Cluster;
pub use skip::or_skip;
