//! Annotations by which users pause remediation and reset fuses without a change of the policy's spec, which a `GitOps`
//! controller would revert.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::api::{FuseState, Pause};
use crate::configured::LAST_APPLIED;

/// Pauses remediation until the time of its value, in RFC 3339.
pub const PAUSE_UNTIL: &str = "nodekeeper.dev/pause-until";
/// Explains the pause.
pub const PAUSE_REASON: &str = "nodekeeper.dev/pause-reason";
/// Resets fuses: `<group>/<check>@<time>`, or `*@<time>` for all. Replacements before that time do not count.
pub const RESET_FUSE: &str = "nodekeeper.dev/reset-fuse";

/// The values of the annotations, as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyAnnotations {
    pub pause_until: Option<String>,
    pub pause_reason: Option<String>,
    pub reset_fuse: Option<String>,
    /// The rendering that was applied last, if the installation brought the policy.
    pub last_applied: Option<String>,
}

struct FuseReset<'a> {
    /// Group and check. None for all fuses.
    fuse: Option<(&'a str, &'a str)>,
    at: Timestamp,
}

impl PolicyAnnotations {
    #[must_use]
    pub fn new(annotations: Option<&BTreeMap<String, String>>) -> Self {
        let value = |key: &str| annotations.and_then(|all| all.get(key)).cloned();
        Self {
            pause_until: value(PAUSE_UNTIL),
            pause_reason: value(PAUSE_REASON),
            reset_fuse: value(RESET_FUSE),
            last_applied: value(LAST_APPLIED),
        }
    }

    /// The pause that the annotations ask for. A time that cannot be read is an error, and remediation stays paused.
    pub(super) fn pause(&self) -> Option<Result<Pause, String>> {
        let until = self.pause_until.as_ref()?;
        let pause = |until| Pause {
            reason: self.pause_reason.clone().unwrap_or_else(|| "no reason given".into()),
            until,
        };
        Some(until.parse().map(pause).map_err(|_| {
            format!(
                "the annotation {PAUSE_UNTIL} of the policy cannot be read: '{until}'. Remediation is paused: use a time such as '2030-01-31T18:00:00Z', or remove the annotation"
            )
        }))
    }

    fn fuse_reset(&self) -> Option<Result<FuseReset<'_>, String>> {
        let value = self.reset_fuse.as_ref()?;
        let parse = || {
            let (fuse, at) = value.rsplit_once('@')?;
            let fuse = if fuse == "*" { None } else { Some(fuse.split_once('/')?) };
            Some(FuseReset { fuse, at: at.parse().ok()? })
        };
        Some(parse().ok_or_else(|| {
            format!(
                "the annotation {RESET_FUSE} of the policy cannot be read: '{value}'. Use '<group>/<check>@<time>' or '*@<time>' with a time such as '2026-01-31T18:00:00Z'"
            )
        }))
    }

    /// The time before which replacements do not count for this fuse.
    pub(super) fn reset_at(&self, fuse: &FuseState) -> Option<Timestamp> {
        let reset = self.fuse_reset()?.ok()?;
        reset.fuse.is_none_or(|(group, check)| fuse.group == group && fuse.check == check).then_some(reset.at)
    }

    /// What is wrong with the annotations.
    pub(super) fn invalid(&self) -> Option<String> {
        self.pause().and_then(Result::err).or_else(|| self.fuse_reset().and_then(Result::err))
    }
}
