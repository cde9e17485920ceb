//! Who replaces a replacement.

use super::{BlockReason, Blocked, Target};

/// A `NodeClaim` of Karpenter, as far as anything is decided by it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimView {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// What it says that its cloud calls the replacement.
    pub provider_id: String,
    /// The node that it says it is.
    pub node_name: String,
    /// Somebody deleted it.
    pub deleting: bool,
}

/// All that is known of `NodeClaims`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claims {
    /// The server knows no such kind.
    NotServed,
    /// They cannot be read; why.
    Unreadable(String),
    /// These.
    Known(Vec<ClaimView>),
}

/// Who replaces a replacement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replacement {
    /// Karpenter, by this claim.
    Claim(ClaimView),
    /// Nobody; its Node object is deleted, because the policy says so.
    NodeObject,
    /// Nobody.
    Nobody,
    /// It is Karpenter's, and its claim is not there.
    ClaimMissing,
    /// That cannot be found out now; why.
    Unreadable(String),
}

impl Replacement {
    /// As metrics and status say it.
    #[must_use]
    pub fn provider(&self) -> &'static str {
        match self {
            Self::Claim(_) | Self::ClaimMissing => "karpenter",
            Self::NodeObject => "kubernetes",
            Self::Nobody | Self::Unreadable(_) => "none",
        }
    }
}

/// Finds out who replaces a node: by the node's owner, then by what the cloud calls the replacement, then by the name that
/// a claim gives. What cannot be read is never a reason to do something else.
#[must_use]
pub fn find(target: &Target, claims: &Claims, deletes_node_objects: bool) -> Replacement {
    let claims = match claims {
        Claims::Unreadable(why) => return Replacement::Unreadable(why.clone()),
        Claims::NotServed if target.is_karpenters => {
            return Replacement::Unreadable(
                "the node is Karpenter's, and the server knows no NodeClaims of karpenter.sh/v1".into(),
            );
        }
        Claims::NotServed => &[] as &[ClaimView],
        Claims::Known(claims) => claims,
    };
    let owner = target.owner.as_ref();
    let by_owner = |claim: &&ClaimView| owner.is_some_and(|(_, uid)| claim.uid == *uid);
    let id = &target.identity.provider_id;
    let by_id = |claim: &&ClaimView| !id.is_empty() && claim.provider_id == *id;
    let by_name = |claim: &&ClaimView| {
        claim.node_name == target.identity.name && (claim.provider_id.is_empty() || id.is_empty())
    };
    let all = |fits: &dyn Fn(&&ClaimView) -> bool| claims.iter().filter(fits).collect::<Vec<_>>();
    let mut found = all(&by_owner);
    if found.is_empty() {
        found = all(&by_id);
    }
    // A node that says whose it is may have had a name that is another's by now.
    if found.is_empty() && owner.is_none() {
        found = all(&by_name);
    }
    match found[..] {
        [claim] => Replacement::Claim(claim.clone()),
        [one, other, ..] => Replacement::Unreadable(format!(
            "the NodeClaims {} and {} both say that they are this node: delete the wrong one",
            one.name, other.name
        )),
        [] if target.is_karpenters => Replacement::ClaimMissing,
        [] if deletes_node_objects => Replacement::NodeObject,
        [] => Replacement::Nobody,
    }
}

/// Whether somebody would replace it.
pub(super) fn check(replacement: &Replacement, target: &Target) -> Result<(), Blocked> {
    let held = |hold, message: &str| Err(Blocked::new(hold, message));
    match replacement {
        // Its claim is found by what the registration tells: until then it may seem to have none.
        Replacement::Claim(_) | Replacement::ClaimMissing if !target.registered => {
            held(BlockReason::NotRegistered, "Karpenter has not registered the node yet")
        }
        Replacement::Claim(claim) if claim.deleting => {
            held(BlockReason::BeingRemoved, "somebody deleted its NodeClaim: it is left to Karpenter")
        }
        Replacement::Claim(_) | Replacement::NodeObject => Ok(()),
        Replacement::ClaimMissing => held(
            BlockReason::ProviderUnreadable,
            "the node is Karpenter's, and there is no NodeClaim for it: nothing else is deleted in its place",
        ),
        Replacement::Unreadable(why) => held(BlockReason::ProviderUnreadable, why),
        Replacement::Nobody => held(
            BlockReason::NoProvider,
            "nobody would replace the replacement: it has no NodeClaim of Karpenter, and the policy's `spec.deleteNodeObjectFor` does not name who asks",
        ),
    }
}
