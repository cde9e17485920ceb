//! Labels by which `kubectl get noderemediations --selector` finds remediations.

use std::collections::BTreeMap;

use super::Target;
use crate::api::{CauseSource, RemediationCause};
use crate::jitter::stable_hash;

pub const NODE_LABEL: &str = "nodekeeper.dev/node";
pub const GROUP_LABEL: &str = "nodekeeper.dev/group";
/// Set only if a gate requested the remediation.
pub const GATE_LABEL: &str = "nodekeeper.dev/gate";
/// The API server accepts no longer label values.
const MAX_LENGTH: usize = 63;

/// The labels of a `NodeRemediation` for this node and cause.
#[must_use]
pub fn labels(target: &Target, cause: &RemediationCause) -> BTreeMap<String, String> {
    let gate = (cause.source == CauseSource::Gate).then_some((GATE_LABEL, &cause.name));
    [(NODE_LABEL, &target.identity.name), (GROUP_LABEL, &target.group)]
        .into_iter()
        .chain(gate)
        .map(|(key, value)| (key.to_owned(), label_value(value)))
        .collect()
}

/// The text itself if it is a valid label value. Otherwise its valid characters, cut to make room for a hash of the text.
#[must_use]
pub fn label_value(text: &str) -> String {
    let is_inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let is_outer = |c: char| c.is_ascii_alphanumeric();
    let ends_well = text.starts_with(is_outer) && text.ends_with(is_outer);
    if text.is_empty() || (text.len() <= MAX_LENGTH && ends_well && text.chars().all(is_inner)) {
        return text.to_owned();
    }
    let hash = format!("{:08x}", stable_hash(text, 0) & 0xffff_ffff);
    let valid: String = text.chars().map(|c| if is_inner(c) { c } else { '-' }).collect();
    let start = valid.trim_start_matches(|c| !is_outer(c));
    let start = &start[..start.len().min(MAX_LENGTH - hash.len() - 1)];
    if start.is_empty() { hash } else { format!("{start}-{hash}") }
}
