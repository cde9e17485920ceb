//! `nodekeeper crds`: what `kubectl apply` needs before anything else.

use std::io::Write as _;

use anyhow::Result;
use clap::ValueEnum;
use kube::CustomResourceExt as _;
use nodekeeper_core::api::{NodeGate, NodeRemediation, RemediationPolicy};

use crate::args::Definition;

/// Prints the definitions, or the one that is asked for.
pub fn run(only: Option<Definition>) -> Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "# Written by `make generate` from crates/core/src/api: do not edit.")?;
    let kinds = only.as_ref().map_or(Definition::value_variants(), std::slice::from_ref);
    for (place, kind) in kinds.iter().enumerate() {
        let definition = match kind {
            Definition::Nodegates => NodeGate::crd(),
            Definition::Noderemediations => NodeRemediation::crd(),
            Definition::Remediationpolicies => RemediationPolicy::crd(),
        };
        let between = if place == 0 { "" } else { "---\n" };
        write!(out, "{between}{}", serde_saphyr::to_string(&definition)?)?;
    }
    Ok(())
}
