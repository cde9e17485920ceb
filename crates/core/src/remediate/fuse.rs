//! The fuse blocks further replacements in a node group whose replacements fail the same check.
//!
//! Nodes that failed before any replacement are generation 0. A node that was created after the first replacement of a
//! generation, and fails the same check in the same group, belongs to the next generation.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::annotations::RESET_FUSE;
use super::target::may_have;
use super::{BlockReason, Blocked, GroupCounts, GroupStats, Policy, Target};
use crate::api::FuseState;

/// Replacements longer ago than this are forgotten.
const MAX_AGE: SignedDuration = SignedDuration::from_hours(7 * 24);
/// The maximum of the CRD's schema.
const MAX_FUSES: usize = 128;

/// The generation of a node that was created at this time.
fn generation(fuse: &FuseState, created: Timestamp) -> usize {
    fuse.generations.iter().filter(|first| **first < created).count()
}

/// The fuse without the generations before its last reset.
fn since_reset(fuse: &FuseState, policy: &Policy, now: Timestamp) -> FuseState {
    // A reset in the future would turn the fuse off until then.
    let resets = [policy.spec.fuse.reset_at, policy.annotations.reset_at(fuse)];
    let reset = resets.into_iter().flatten().filter(|reset| *reset <= now).max();
    let mut fuse = fuse.clone();
    fuse.generations.retain(|first| reset.is_none_or(|reset| *first > reset));
    fuse
}

fn has_other_template(fuse: &FuseState, target: &Target) -> bool {
    !fuse.template.is_empty() && !target.template.is_empty() && fuse.template != target.template
}

fn is_for(fuse: &FuseState, group: &str, check: &str) -> bool {
    fuse.group == group && fuse.check == check
}

/// Whether the fuses of all failed checks allow another replacement.
pub(super) fn check(
    policy: &Policy,
    checks: &[&str],
    target: &Target,
    group_stats: &GroupStats,
    now: Timestamp,
) -> Result<(), Blocked> {
    let max = usize::try_from(policy.spec.fuse.generations).unwrap_or(usize::MAX);
    let group = group_stats.group(&target.group);
    for check in checks {
        let known = policy.status.fuses.iter().filter(|fuse| is_for(fuse, &target.group, check));
        for fuse in known.map(|fuse| since_reset(fuse, policy, now)) {
            let generation = generation(&fuse, target.created);
            if generation >= max && !has_other_template(&fuse, target) && is_about(&fuse, target, &group) {
                return Err(Blocked::new(BlockReason::FuseBlown, describe(&fuse, target, generation)));
            }
        }
    }
    Ok(())
}

/// Whether most nodes with these attributes that were created since the last generation passed: then single machines are
/// bad, not what they are created from. Nodes with other attributes say nothing: one type of a group may always fail.
fn mostly_passes(fuse: &FuseState, shared: &BTreeMap<String, String>, group: &GroupCounts) -> bool {
    let Some(last) = fuse.generations.last() else { return true };
    let newer = || group.verdicts.iter().filter(|one| one.created > *last && may_have(&one.labels, shared));
    let passed = newer().filter(|one| one.passed).count();
    passed * 2 > newer().count()
}

/// Whether the target may fail for what the replaced nodes have in common with it. It does not if most newer nodes that
/// have this in common, too, pass.
fn is_about(fuse: &FuseState, target: &Target, group: &GroupCounts) -> bool {
    !mostly_passes(fuse, &in_common(&fuse.shared, &target.attributes), group)
}

fn describe(fuse: &FuseState, target: &Target, generation: usize) -> String {
    let common = in_common(&target.attributes, &fuse.shared);
    let common = if common.is_empty() {
        "they have neither image nor type nor zone in common".to_owned()
    } else {
        let attributes: Vec<String> = common.iter().map(|(key, value)| format!("{key} {value}")).collect();
        format!("all of them have {}", attributes.join(", "))
    };
    format!(
        "{generation} generations of replacements in group {} failed the check {}: {common}. Fix what the group's nodes are created from, or reset the fuse with the annotation {RESET_FUSE} or `spec.fuse.resetAt` of the policy",
        fuse.group, fuse.check
    )
}

/// Records the replacement of the target for each failed check. A target that fails for another reason than the nodes of
/// a fuse begins a fuse of its own: recorded there, it would hide what they have in common.
pub(super) fn record_replacement(
    fuses: &mut Vec<FuseState>,
    policy: &Policy,
    checks: &[&str],
    target: &Target,
    group: &GroupCounts,
    now: Timestamp,
) {
    // Rounded down, because creation times of nodes are, too.
    let at = Timestamp::from_second(now.as_second()).unwrap_or(now);
    for fuse in fuses.iter_mut() {
        *fuse = since_reset(fuse, policy, now);
    }
    fuses.retain(|fuse| !fuse.generations.is_empty());
    for check in checks {
        let is_own = |fuse: &FuseState| is_for(fuse, &target.group, check);
        fuses.retain(|fuse| !is_own(fuse) || !has_other_template(fuse, target));
        let position = fuses.iter().position(|fuse| is_own(fuse) && is_about(fuse, target, group));
        let fuse = match position.map(|position| fuses.remove(position)) {
            Some(mut fuse) => {
                if generation(&fuse, target.created) >= fuse.generations.len() {
                    fuse.generations.push(at);
                }
                fuse.shared = in_common(&fuse.shared, &target.attributes);
                fuse
            }
            None => FuseState {
                group: target.group.clone(),
                check: (*check).to_owned(),
                generations: vec![at],
                template: target.template.clone(),
                shared: target.attributes.clone(),
            },
        };
        fuses.push(fuse);
    }
    // The API server would refuse more than the schema allows, and no remediation could be approved.
    fuses.drain(..fuses.len().saturating_sub(MAX_FUSES));
}

fn in_common(one: &BTreeMap<String, String>, other: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    one.iter()
        .filter(|(key, value)| other.get(*key) == Some(value))
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect()
}

/// Removes fuses that were reset, are old, or whose nodes pass again.
pub(super) fn prune(fuses: &mut Vec<FuseState>, policy: &Policy, group_stats: &GroupStats, now: Timestamp) {
    fuses.retain_mut(|fuse| {
        *fuse = since_reset(fuse, policy, now);
        let is_recent = |last: &Timestamp| now.duration_since(*last) < MAX_AGE;
        fuse.generations.last().is_some_and(is_recent)
            && !mostly_passes(fuse, &fuse.shared, &group_stats.group(&fuse.group))
    });
}
