//! Stops where the replacements of replaced nodes fail alike: deleting more is not the fix.
//!
//! Nodes that failed before anything was replaced are generation 0. A node that was made after the first act of a
//! generation, and fails the same check in the same group, is of the next one.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::{BlockReason, Blocked, GroupCounts, GroupStats, Policy, Target};
use crate::api::{Fuse, FuseState};

/// What happened longer ago is no loop.
const MEMORY: SignedDuration = SignedDuration::from_hours(7 * 24);
/// So many are remembered, as the schema has it.
const MOST: usize = 128;

/// The generation of a node that was made then.
fn generation(fuse: &FuseState, created: Timestamp) -> usize {
    fuse.generations.iter().filter(|first| **first < created).count()
}

/// What is left of it after what happened before somebody reset all fuses is forgotten.
fn since_reset(fuse: &FuseState, spec: &Fuse, now: Timestamp) -> FuseState {
    // One that is to come would be no fuse at all until then.
    let reset = spec.reset_at.filter(|reset| *reset <= now);
    let mut fuse = fuse.clone();
    fuse.generations.retain(|first| reset.is_none_or(|reset| *first > reset));
    fuse
}

fn is_of_other_template(fuse: &FuseState, target: &Target) -> bool {
    !fuse.template.is_empty() && !target.template.is_empty() && fuse.template != target.template
}

fn is_of(fuse: &FuseState, group: &str, check: &str) -> bool {
    fuse.group == group && fuse.check == check
}

/// Whether replacing goes on for each check that fails.
pub(super) fn check(
    policy: &Policy,
    checks: &[&str],
    target: &Target,
    group_stats: &GroupStats,
    now: Timestamp,
) -> Result<(), Blocked> {
    let spec = &policy.spec.fuse;
    let most = usize::try_from(spec.generations).unwrap_or(usize::MAX);
    let group = group_stats.group(&target.group);
    for check in checks {
        let known = policy.status.fuses.iter().find(|fuse| is_of(fuse, &target.group, check));
        let Some(fuse) = known.map(|fuse| since_reset(fuse, spec, now)) else { continue };
        let generation = generation(&fuse, target.created);
        if generation >= most && !is_of_other_template(&fuse, target) && !group_is_well(&fuse, &group) {
            return Err(Blocked::new(BlockReason::FuseBlown, describe(&fuse, target, generation)));
        }
    }
    Ok(())
}

/// Most of the nodes that came since the last generation began passed: no loop, but single bad machines.
fn group_is_well(fuse: &FuseState, group: &GroupCounts) -> bool {
    let Some(last) = fuse.generations.last() else { return true };
    let newer = || group.judged.iter().filter(|(created, _)| created > last);
    let passed = newer().filter(|(_, passed)| *passed).count();
    passed * 2 > newer().count()
}

fn describe(fuse: &FuseState, target: &Target, generation: usize) -> String {
    let mut shared = target.attributes.clone();
    shared.retain(|key, value| fuse.shared.get(key) == Some(value));
    let shared = if shared.is_empty() {
        "they have neither image nor type nor zone in common".to_owned()
    } else {
        let words: Vec<String> = shared.iter().map(|(key, value)| format!("{key} {value}")).collect();
        format!("all of them have {}", words.join(", "))
    };
    format!(
        "{generation} generations of replacements in group {} failed the check {} alike: {shared}. Replacing more is not the fix: change what the group's nodes are made from, or set `spec.fuse.resetAt` of the policy to now",
        fuse.group, fuse.check
    )
}

/// Remembers one more act.
pub(super) fn burn(
    fuses: &mut Vec<FuseState>,
    spec: &Fuse,
    checks: &[&str],
    target: &Target,
    now: Timestamp,
) {
    for check in checks {
        let place = fuses.iter().position(|fuse| is_of(fuse, &target.group, check));
        let known = place.map(|place| since_reset(&fuses.remove(place), spec, now));
        let counts = |fuse: &FuseState| !fuse.generations.is_empty() && !is_of_other_template(fuse, target);
        let fuse = match known.filter(counts) {
            Some(mut fuse) => {
                if generation(&fuse, target.created) >= fuse.generations.len() {
                    fuse.generations.push(now);
                }
                fuse.shared = in_common(&fuse.shared, &target.attributes);
                fuse
            }
            None => FuseState {
                group: target.group.clone(),
                check: (*check).to_owned(),
                generations: vec![now],
                template: target.template.clone(),
                shared: target.attributes.clone(),
            },
        };
        fuses.push(fuse);
    }
    // The oldest go: what does not fit is not written, and nothing would be approved any more.
    fuses.drain(..fuses.len().saturating_sub(MOST));
}

fn in_common(one: &BTreeMap<String, String>, other: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    one.iter()
        .filter(|(key, value)| other.get(*key) == Some(value))
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect()
}

/// Forgets what no longer means anything.
pub(super) fn settle(fuses: &mut Vec<FuseState>, spec: &Fuse, group_stats: &GroupStats, now: Timestamp) {
    fuses.retain_mut(|fuse| {
        *fuse = since_reset(fuse, spec, now);
        let is_young = |last: &Timestamp| now.duration_since(*last) < MEMORY;
        fuse.generations.last().is_some_and(is_young) && !group_is_well(fuse, &group_stats.group(&fuse.group))
    });
}
