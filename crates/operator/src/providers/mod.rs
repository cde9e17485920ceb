//! Who replaces a machine: one file for each provider, with what finds, replaces and observes it. Which one is
//! responsible for a node is decided in `core::remediate::provider`.

pub mod karpenter;
pub mod node_object;

use kube::Client;
use nodekeeper_core::remediate::Target;
use nodekeeper_core::remediate::provider::{NodeClaims, Replacement};
use tracing::warn;

use crate::apply::{WriteError, Writer};

/// Reads from what [`nodekeeper_core::remediate::provider::find`] decides who would replace a node.
pub async fn read(client: &Client, target: &Target) -> NodeClaims {
    let claims = karpenter::find(client, target).await;
    if let NodeClaims::Unreadable(why) = &claims {
        warn!(node = target.identity.name, why, "NodeClaims not read; nothing is deleted");
    }
    claims
}

/// Asks the provider to replace the machine.
pub async fn replace(writer: &Writer, replacement: &Replacement, target: &Target) -> Result<(), WriteError> {
    match replacement {
        Replacement::Karpenter(claim) => karpenter::replace(writer, claim, target).await,
        Replacement::NodeObject => node_object::replace(writer, target).await,
        Replacement::None | Replacement::NodeClaimMissing | Replacement::Unknown(_) => Ok(()),
    }
}
