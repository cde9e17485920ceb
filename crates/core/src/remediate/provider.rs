//! Who replaces a machine.

use super::{Held, Hold, Target};

/// A `NodeClaim` of Karpenter, as far as anything is decided by it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimView {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// What it says that its cloud calls the machine.
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

/// Who replaces a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Machine {
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

impl Machine {
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

/// Finds out who replaces a node: by the node's owner, then by what the cloud calls the machine, then by the name that
/// a claim gives. What cannot be read is never a reason to do something else.
#[must_use]
pub fn find(target: &Target, claims: &Claims, deletes_node_objects: bool) -> Machine {
    let claims = match claims {
        Claims::Unreadable(why) => return Machine::Unreadable(why.clone()),
        Claims::NotServed if target.is_karpenters => {
            return Machine::Unreadable(
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
        [claim] => Machine::Claim(claim.clone()),
        [one, other, ..] => Machine::Unreadable(format!(
            "the NodeClaims {} and {} both say that they are this node: delete the wrong one",
            one.name, other.name
        )),
        [] if target.is_karpenters => Machine::ClaimMissing,
        [] if deletes_node_objects => Machine::NodeObject,
        [] => Machine::Nobody,
    }
}

/// Whether somebody would replace it.
pub(super) fn check(machine: &Machine, target: &Target) -> Result<(), Held> {
    let held = |hold, message: &str| Err(Held::new(hold, message));
    match machine {
        // Its claim is found by what the registration tells: until then it may seem to have none.
        Machine::Claim(_) | Machine::ClaimMissing if !target.registered => {
            held(Hold::NotRegistered, "Karpenter has not registered the node yet")
        }
        Machine::Claim(claim) if claim.deleting => {
            held(Hold::BeingRemoved, "somebody deleted its NodeClaim: it is left to Karpenter")
        }
        Machine::Claim(_) | Machine::NodeObject => Ok(()),
        Machine::ClaimMissing => held(
            Hold::ProviderUnreadable,
            "the node is Karpenter's, and there is no NodeClaim for it: nothing else is deleted in its place",
        ),
        Machine::Unreadable(why) => held(Hold::ProviderUnreadable, why),
        Machine::Nobody => held(
            Hold::NoProvider,
            "nobody would replace the machine: it has no NodeClaim of Karpenter, and the policy's `spec.deleteNodeObjectFor` does not name who asks",
        ),
    }
}
