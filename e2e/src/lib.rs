//! Real control planes and real nodes on one machine, and the test suites that run on them.

pub mod assets;
pub mod conformance;
pub mod control_plane;
pub mod fake_kubelet;
pub mod image;
pub mod karpenter;
mod kubeconfig;
pub mod machine;
pub mod nodes;
pub mod persistent_cluster;
mod pki;
pub mod pool;
pub mod product;
mod progress;
pub mod scenario;
mod skip;
mod text;

pub use control_plane::Cluster;
pub use skip::{is_unavailable, or_skip};
pub use text::shell_word;
