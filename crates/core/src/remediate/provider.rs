//! Finds the provider that replaces the machine of a node.

use super::{BlockReason, Blocked, Target};

/// A `NodeClaim` of Karpenter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeClaimView {
    pub name: String,
    pub uid: String,
    /// `status.providerID`; empty if not set.
    pub provider_id: String,
    /// `status.nodeName`; empty if not set.
    pub node_name: String,
    pub deleting: bool,
}

/// What the API server answered about `NodeClaims`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeClaims {
    /// The API server does not serve the kind.
    NotServed,
    /// They cannot be read, and why.
    Unreadable(String),
    Known(Vec<NodeClaimView>),
}

/// How the machine of a node is replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replacement {
    /// The `NodeClaim` is deleted, and Karpenter replaces the machine.
    Karpenter(NodeClaimView),
    /// No provider replaces the machine. The policy allows the deletion of the Node object.
    NodeObject,
    /// No provider replaces the machine.
    None,
    /// The node belongs to Karpenter, but has no `NodeClaim`.
    NodeClaimMissing,
    /// The provider cannot be determined now, and why.
    Unknown(String),
}

impl Replacement {
    /// The provider's name in status and metrics. Empty if there is none.
    #[must_use]
    pub fn provider(&self) -> &'static str {
        match self {
            Self::Karpenter(_) | Self::NodeClaimMissing => "Karpenter",
            Self::NodeObject => "NodeObject",
            Self::None | Self::Unknown(_) => "",
        }
    }

    /// Name of the provider's object for the machine. Empty if there is none.
    #[must_use]
    pub fn machine(&self) -> &str {
        match self {
            Self::Karpenter(claim) => &claim.name,
            Self::NodeObject | Self::None | Self::NodeClaimMissing | Self::Unknown(_) => "",
        }
    }

    /// Whether the provider is removing the machine already.
    #[must_use]
    pub fn is_terminating(&self) -> bool {
        matches!(self, Self::Karpenter(claim) if claim.deleting)
    }

    /// The action of the Event that reports the replacement.
    #[must_use]
    pub fn action(&self) -> &'static str {
        match self {
            Self::Karpenter(_) => "DeleteNodeClaim",
            Self::NodeObject => "DeleteNode",
            Self::None | Self::NodeClaimMissing | Self::Unknown(_) => "None",
        }
    }

    /// What is done to replace the machine, or why nothing is.
    #[must_use]
    pub fn message(&self) -> String {
        match self {
            Self::Karpenter(claim) => format!("NodeClaim {} is deleted", claim.name),
            Self::NodeObject => "the Node object is deleted".into(),
            Self::None => "no provider replaces the machine: the node has no NodeClaim of Karpenter, and `spec.deleteNodeObjectFor` of the policy does not match all causes".into(),
            Self::NodeClaimMissing => "the node belongs to Karpenter, but has no NodeClaim: nothing else is deleted in its place".into(),
            Self::Unknown(why) => why.clone(),
        }
    }

    /// Whether the machine of the node can be replaced.
    pub(super) fn check(&self, target: &Target) -> Result<(), Blocked> {
        let blocked = |reason, message: &str| Err(Blocked::new(reason, message));
        match self {
            // The NodeClaim is found by what the registration writes on the Node.
            Self::Karpenter(_) | Self::NodeClaimMissing if !target.registered => {
                blocked(BlockReason::NotRegistered, "Karpenter has not registered the node yet")
            }
            Self::Karpenter(claim) if claim.deleting => {
                blocked(BlockReason::NodeTerminating, "its NodeClaim is being deleted: wait for Karpenter")
            }
            Self::Karpenter(_) | Self::NodeObject => Ok(()),
            Self::NodeClaimMissing | Self::Unknown(_) => {
                blocked(BlockReason::ProviderUnreadable, &self.message())
            }
            Self::None => blocked(BlockReason::NoProvider, &self.message()),
        }
    }
}

/// Finds the `NodeClaim` of a node: by owner, then by `providerID`, then by the name of the node. If the answer is not
/// certain, nothing else is replaced instead.
#[must_use]
pub fn find(target: &Target, claims: &NodeClaims, deletes_node_objects: bool) -> Replacement {
    let claims = match claims {
        NodeClaims::Unreadable(why) => return Replacement::Unknown(why.clone()),
        NodeClaims::NotServed if target.is_karpenter_node => {
            return Replacement::Unknown(
                "the node belongs to Karpenter, but the API server does not serve NodeClaims of karpenter.sh/v1"
                    .into(),
            );
        }
        NodeClaims::NotServed => &[] as &[NodeClaimView],
        NodeClaims::Known(claims) => claims,
    };
    let owner = target.owner.as_ref();
    let by_owner = |claim: &&NodeClaimView| owner.is_some_and(|(_, uid)| claim.uid == *uid);
    let id = &target.identity.provider_id;
    let by_id = |claim: &&NodeClaimView| !id.is_empty() && claim.provider_id == *id;
    let by_name = |claim: &&NodeClaimView| {
        claim.node_name == target.identity.name && (claim.provider_id.is_empty() || id.is_empty())
    };
    let all = |fits: &dyn Fn(&&NodeClaimView) -> bool| claims.iter().filter(fits).collect::<Vec<_>>();
    let mut found = all(&by_owner);
    if found.is_empty() {
        found = all(&by_id);
    }
    // If the node has an owner, a NodeClaim with the same node name belongs to a later node.
    if found.is_empty() && owner.is_none() {
        found = all(&by_name);
    }
    match found[..] {
        [claim] => Replacement::Karpenter(claim.clone()),
        [one, other, ..] => Replacement::Unknown(format!(
            "the NodeClaims {} and {} both claim this node: delete the wrong one",
            one.name, other.name
        )),
        [] if target.is_karpenter_node => Replacement::NodeClaimMissing,
        [] if deletes_node_objects => Replacement::NodeObject,
        [] => Replacement::None,
    }
}
