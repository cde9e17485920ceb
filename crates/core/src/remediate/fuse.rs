//! Stops where the replacements of replaced nodes fail alike: deleting more is not the fix.
//!
//! Nodes that failed before anything was replaced are generation 0. A node that was made after the first act of a
//! generation, and fails the same check in the same group, is of the next one.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::{GroupFacts, Held, Hold, Policy, Request, Survey, Target};
use crate::api::{Fuse, FuseState};

/// What happened longer ago is no loop.
const MEMORY: SignedDuration = SignedDuration::from_hours(7 * 24);

/// The generation of a node that was made then.
fn generation(fuse: &FuseState, created: Timestamp) -> usize {
    fuse.generations.iter().filter(|first| **first < created).count()
}

fn is_of(fuse: &FuseState, group: &str, check: &str) -> bool {
    fuse.group == group && fuse.check == check
}

/// Whether replacing goes on for each check that fails.
pub(super) fn check(
    policy: &Policy,
    request: &Request,
    target: &Target,
    survey: &Survey,
) -> Result<(), Held> {
    let spec = &policy.spec.fuse;
    let most = usize::try_from(spec.generations).unwrap_or(usize::MAX);
    for check in request.check_names() {
        let fuse = policy.status.fuses.iter().find(|fuse| is_of(fuse, &target.group, check));
        let Some(fuse) = fuse.filter(|fuse| counts(fuse, spec, target, &survey.group(&target.group))) else {
            continue;
        };
        let generation = generation(fuse, target.created);
        if generation >= most {
            return Err(Held::new(Hold::FuseBlown, describe(fuse, target, generation)));
        }
    }
    Ok(())
}

/// Whether the past still means anything for this node.
fn counts(fuse: &FuseState, spec: &Fuse, target: &Target, group: &GroupFacts) -> bool {
    let Some(last) = fuse.generations.last() else { return false };
    let is_reset = spec.reset_at.is_some_and(|reset| *last <= reset);
    let other_template =
        !fuse.template.is_empty() && !target.template.is_empty() && fuse.template != target.template;
    !is_reset && !other_template && !group_is_well(fuse, group)
}

/// Most of the nodes that came since the last generation began passed: no loop, but single bad machines.
fn group_is_well(fuse: &FuseState, group: &GroupFacts) -> bool {
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
pub(super) fn burn(fuses: &mut Vec<FuseState>, request: &Request, target: &Target, now: Timestamp) {
    for check in request.check_names() {
        let known = fuses.iter_mut().find(|fuse| is_of(fuse, &target.group, check));
        let Some(fuse) = known else {
            fuses.push(FuseState {
                group: target.group.clone(),
                check: check.to_owned(),
                generations: vec![now],
                template: target.template.clone(),
                shared: target.attributes.clone(),
            });
            continue;
        };
        if !fuse.template.is_empty() && !target.template.is_empty() && fuse.template != target.template {
            *fuse = FuseState {
                generations: vec![now],
                template: target.template.clone(),
                shared: target.attributes.clone(),
                ..fuse.clone()
            };
            continue;
        }
        if generation(fuse, target.created) >= fuse.generations.len() {
            fuse.generations.push(now);
        }
        fuse.shared = in_common(&fuse.shared, &target.attributes);
    }
}

fn in_common(one: &BTreeMap<String, String>, other: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    one.iter()
        .filter(|(key, value)| other.get(*key) == Some(value))
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect()
}

/// Forgets what no longer means anything.
pub(super) fn settle(fuses: &mut Vec<FuseState>, spec: &Fuse, survey: &Survey, now: Timestamp) {
    fuses.retain(|fuse| {
        let last = fuse.generations.last().copied().unwrap_or(Timestamp::UNIX_EPOCH);
        let is_reset = spec.reset_at.is_some_and(|reset| last <= reset);
        !is_reset && now.duration_since(last) < MEMORY && !group_is_well(fuse, &survey.group(&fuse.group))
    });
}
