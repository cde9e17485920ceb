//! No provider: the Node object is deleted, where the policy allows it.

use nodekeeper_core::remediate::Target;
use tracing::info;

use crate::apply::{WriteError, Writer};

pub async fn replace(writer: &Writer, target: &Target) -> Result<(), WriteError> {
    writer.delete_node(&target.identity).await?;
    info!(node = target.identity.name, "Node object deleted");
    Ok(())
}
