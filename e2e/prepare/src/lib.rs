//! The programs of others that real clusters need: Kubernetes, the programs of a node, Karpenter, Helm.
//!
//! A crate of its own with one dependency, so that `make test` builds them while cargo builds the workspace.

pub mod assets;
pub mod machine;
pub mod progress;
pub mod text;

use std::path::PathBuf;

use assets::{Assets, AssetsError, KarpenterAssets, NodeAssets, Settings};
use machine::MachineError;

/// What can be prepared, for the usage of `xtask prepare`.
pub const SETS: [&str; 3] = ["kubernetes", "karpenter", "nodes"];

#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    #[error(transparent)]
    Assets(#[from] AssetsError),
    #[error(transparent)]
    Machine(#[from] MachineError),
    #[error("there is no {set} to prepare, only {}", SETS.join(", "))]
    Unknown { set: String },
}

impl PrepareError {
    /// Whether this machine lacks a dependency.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        match self {
            Self::Assets(error) => error.is_unavailable(),
            Self::Machine(_) => true,
            Self::Unknown { .. } => false,
        }
    }
}

/// Builds and installs what is missing of a set, and returns the paths of its programs.
pub fn prepare(set: &str) -> Result<Vec<PathBuf>, PrepareError> {
    let settings = Settings::from_env()?;
    match set {
        "kubernetes" => Ok(vec![Assets::ensure(&settings)?.folder().to_owned()]),
        "karpenter" => {
            let KarpenterAssets { karpenter, kwok, .. } = KarpenterAssets::ensure(&settings)?;
            Ok(vec![karpenter, kwok])
        }
        "nodes" => {
            machine::ensure_nodes_can_run(&settings.cache)?;
            let NodeAssets { kubelet, kube_proxy, coredns, testtool } = NodeAssets::ensure(&settings)?;
            let (helm, helm3) = (assets::helm(&settings)?, assets::helm3(&settings)?);
            Ok(vec![kubelet, kube_proxy, coredns, testtool, helm, helm3])
        }
        _ => Err(PrepareError::Unknown { set: set.to_owned() }),
    }
}
