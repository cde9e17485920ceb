//! Real control planes and real nodes on one machine, and the test suites that run on them.

pub mod conformance;
pub mod control_plane;
pub mod fake_kubelet;
pub mod image;
pub mod karpenter;
mod kubeconfig;
pub mod nodes;
pub mod persistent_cluster;
mod pki;
pub mod pool;
pub mod product;
pub mod scenario;
mod skip;

pub use control_plane::Cluster;
pub use nodekeeper_prepare::text::shell_word;
pub use nodekeeper_prepare::{assets, machine};
use nodekeeper_prepare::{progress, text};
pub use skip::{is_unavailable, or_skip};
