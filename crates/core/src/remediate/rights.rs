//! The permissions that acts need. Without all of them none begins: a node would be cordoned, and not replaced.

use std::fmt;

use super::{BlockReason, Blocked};
use crate::api::{ActEnforcement, RemediationPolicySpec};

/// A permission of the controller, as RBAC has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Right {
    pub verb: &'static str,
    /// The API group; empty for the core group.
    pub group: &'static str,
    pub resource: &'static str,
    /// Empty if the permission is for the resource itself.
    pub subresource: &'static str,
}

impl Right {
    const fn new(verb: &'static str, resource: &'static str) -> Self {
        Self { verb, group: "", resource, subresource: "" }
    }
}

/// As `kubectl auth can-i` takes it, such as `delete nodeclaims.karpenter.sh`.
impl fmt::Display for Right {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {}", self.verb, self.resource)?;
        for (separator, part) in [(".", self.group), ("/", self.subresource)] {
            if !part.is_empty() {
                write!(out, "{separator}{part}")?;
            }
        }
        Ok(())
    }
}

/// The permissions that acts under this policy need: none in a dry run.
#[must_use]
pub fn needed_rights(spec: &RemediationPolicySpec) -> Vec<Right> {
    if spec.enforcement == ActEnforcement::DryRun {
        return Vec::new();
    }
    let mut needed = vec![
        Right::new("patch", "nodes"),
        Right { subresource: "eviction", ..Right::new("create", "pods") },
        Right { group: "karpenter.sh", ..Right::new("delete", "nodeclaims") },
    ];
    if !spec.delete_node_object_for.is_empty() {
        needed.push(Right::new("delete", "nodes"));
    }
    needed
}

/// Which permissions are missing and how to grant them.
pub(super) fn describe(missing: &[Right]) -> Option<String> {
    let names: Vec<String> = missing.iter().map(Right::to_string).collect();
    (!names.is_empty()).then(|| {
        format!(
            "the controller has no permission to {}: install the chart with `remediation.enforcement: Enforce` and `rbac.create: true`, which grants it. Until then no node is cordoned or replaced",
            names.join(", ")
        )
    })
}

/// Whether no permission is missing.
pub(super) fn check(missing: &[Right]) -> Result<(), Blocked> {
    describe(missing).map_or(Ok(()), |message| Err(Blocked::new(BlockReason::MissingRights, message)))
}
