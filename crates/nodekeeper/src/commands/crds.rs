//! `nodekeeper crds`: prints the CustomResourceDefinitions.

use std::io::Write as _;

use anyhow::Result;
use clap::ValueEnum;
use kube::CustomResourceExt as _;
use nodekeeper_core::api::{NodeGate, NodeRemediation, RemediationPolicy};

use crate::args::Definition;

/// Prints all definitions, or one.
pub fn run(only: Option<Definition>) -> Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "# Written by `make generate` from crates/core/src/api: do not edit.")?;
    let kinds = only.as_ref().map_or(Definition::value_variants(), std::slice::from_ref);
    for (index, kind) in kinds.iter().enumerate() {
        let definition = match kind {
            Definition::Nodegates => NodeGate::crd(),
            Definition::Noderemediations => NodeRemediation::crd(),
            Definition::Remediationpolicies => RemediationPolicy::crd(),
        };
        let separator = if index == 0 { "" } else { "---\n" };
        write!(out, "{separator}{}", serde_saphyr::to_string(&definition)?)?;
    }
    Ok(())
}
