//! `nodekeeper crds`: what `kubectl apply` needs before anything else.

use std::io::Write as _;

use anyhow::Result;
use kube::CustomResourceExt as _;
use nodekeeper_core::api::NodeGate;

/// Prints the definitions.
pub fn run() -> Result<()> {
    let yaml = serde_saphyr::to_string(&NodeGate::crd())?;
    write!(std::io::stdout(), "# Written by `make generate` from crates/core/src/api: do not edit.\n{yaml}")?;
    Ok(())
}
