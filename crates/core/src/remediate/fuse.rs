//! The fuse blocks further replacements in a node group whose replacements fail the same check.
//!
//! Nodes that failed before any replacement are generation 0. A node that was created after the first replacement of a
//! generation, and fails the same check in the same group, belongs to the next generation.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::annotations::RESET_FUSE;
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
        let known = policy.status.fuses.iter().find(|fuse| is_for(fuse, &target.group, check));
        let Some(fuse) = known.map(|fuse| since_reset(fuse, policy, now)) else { continue };
        let generation = generation(&fuse, target.created);
        if generation >= max && !has_other_template(&fuse, target) && !mostly_passes(&fuse, &group) {
            return Err(Blocked::new(BlockReason::FuseBlown, describe(&fuse, target, generation)));
        }
    }
    Ok(())
}

/// Whether most nodes created since the last generation passed: then single machines are bad, not what they are created
/// from.
fn mostly_passes(fuse: &FuseState, group: &GroupCounts) -> bool {
    let Some(last) = fuse.generations.last() else { return true };
    let newer = || group.verdicts.iter().filter(|(created, _)| created > last);
    let passed = newer().filter(|(_, passed)| *passed).count();
    passed * 2 > newer().count()
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

/// Records the replacement of the target for each failed check.
pub(super) fn record_replacement(
    fuses: &mut Vec<FuseState>,
    policy: &Policy,
    checks: &[&str],
    target: &Target,
    now: Timestamp,
) {
    // Rounded down, because creation times of nodes are, too.
    let at = Timestamp::from_second(now.as_second()).unwrap_or(now);
    for check in checks {
        let position = fuses.iter().position(|fuse| is_for(fuse, &target.group, check));
        let known = position.map(|position| since_reset(&fuses.remove(position), policy, now));
        let counts = |fuse: &FuseState| !fuse.generations.is_empty() && !has_other_template(fuse, target);
        let fuse = match known.filter(counts) {
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

/// Removes fuses that were reset, are old, or whose group passes again.
pub(super) fn prune(fuses: &mut Vec<FuseState>, policy: &Policy, group_stats: &GroupStats, now: Timestamp) {
    fuses.retain_mut(|fuse| {
        *fuse = since_reset(fuse, policy, now);
        let is_recent = |last: &Timestamp| now.duration_since(*last) < MAX_AGE;
        fuse.generations.last().is_some_and(is_recent)
            && !mostly_passes(fuse, &group_stats.group(&fuse.group))
    });
}
