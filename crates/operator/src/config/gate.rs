//! `reconciliation` and `nodeManagement`: which nodes are held by what, and how often they are tried.

use std::time::Duration;

use nodekeeper_core::api::{
    ActEnforcement, Backoff, CauseSelector, CauseSource, FailureAction, GateTaint, RemediationPolicySpec,
    TaintEffect,
};

use super::section::{Field, Section};
use super::{Loaded, words};

/// Longer than that and it is not "how often" any more.
const DAY: i32 = 86_400;

/// Those of Kubernetes and of autoscalers are theirs to remove.
const FOREIGN: [&str; 5] = [
    "node.kubernetes.io/",
    "node-role.kubernetes.io/",
    "node.cloudprovider.kubernetes.io/",
    "karpenter.sh/",
    "ToBeDeleted",
];

/// What somebody should know who had nodes deleted without any brake.
const REPLACES: &str = "nodes all of whose attempts failed are drained and replaced by Karpenter; of those that nobody \
    replaces the Node object is deleted as a last resort, and pods on a machine that still runs go on running. \
    If there is no RemediationPolicy 'default' one is made that enforces it, with the default budget: 2 at once and 3 \
    an hour, and none that fails what nodes that work fail too. \
    To change that: kubectl edit remediationpolicy default";

/// Reads both.
pub fn read(root: &mut Section, loaded: &mut Loaded) {
    let mut section = root.section("reconciliation");
    if let Some(seconds) = section.take("intervalSeconds").and_then(|field| field.int(1..=DAY)) {
        loaded.sweep = Some(Duration::from_secs(u64::from(seconds.unsigned_abs())));
    }
    let retry = &mut loaded.gate.retry;
    if let Some(retries) = section.take("maxRetries").and_then(|field| field.int(0..=100)) {
        retry.max_retries = retries;
    }
    if let Some(chosen) = section.take("retryBackoff").and_then(|field| backoff(&field)) {
        retry.backoff = chosen;
    }
    section.end();

    let mut section = root.section("nodeManagement");
    if let Some(field) = section.take("deleteFailedNodes")
        && field.bool() == Some(true)
    {
        loaded.gate.on_failure = FailureAction::Replace;
        loaded.policy = Some(policy());
        field.warn(REPLACES);
    }
    if let Some(field) = section.take("taints") {
        loaded.gate.taints = taints(&field);
    }
    let mut label = section.section("verifiedLabel");
    let verified = &mut loaded.gate.verified_label;
    if let Some(key) = label.take("key").and_then(|field| verified_key(&field)) {
        verified.key = key;
    }
    if let Some(value) = label.take("value").and_then(|field| field.checked(words::is_value, words::VALUE)) {
        verified.value = value;
    }
    label.end();
    section.end();
}

/// As the seed documents it, but for the brakes.
fn policy() -> RemediationPolicySpec {
    RemediationPolicySpec {
        enforcement: ActEnforcement::Enforce,
        delete_node_object_for: vec![CauseSelector { source: CauseSource::Gate, name: "config".into() }],
        ..RemediationPolicySpec::default()
    }
}

/// The two words of the seed.
pub fn backoff(field: &Field) -> Option<Backoff> {
    field.choice(&[("exponential", Backoff::Exponential), ("linear", Backoff::Linear)])
}

fn taints(field: &Field) -> Vec<GateTaint> {
    let items = field.items(8);
    if items.is_empty() && field.is_list() {
        field.wrong(
            "is empty: that would hold every node there is, old ones and control planes included; \
             name the taint that your new nodes come with, or leave the key out for node-ready/unverified",
        );
    }
    items.iter().filter_map(taint).collect()
}

fn taint(item: &Field) -> Option<GateTaint> {
    let mut section = item.section();
    let key = section.take("key");
    if key.is_none() {
        item.wrong("has no `key`: write for example `key: node-ready/unverified`");
    }
    let key = key.and_then(|field| {
        let key = field.checked(words::is_key, words::KEY)?;
        let foreign = FOREIGN.iter().any(|start| key.starts_with(start));
        if foreign {
            field.wrong(format!(
                "'{key}' belongs to Kubernetes or to an autoscaler: name a taint of your own"
            ));
        }
        (!foreign).then_some(key)
    });
    let value = section.take("value").map(|field| field.checked(words::is_value, words::VALUE));
    let effects = [TaintEffect::NoSchedule, TaintEffect::PreferNoSchedule, TaintEffect::NoExecute];
    let effects = effects.map(|effect| (effect.as_str(), effect));
    let effect = section.take("effect").map(|field| field.choice(&effects));
    section.end();
    let value = value.unwrap_or(Some(String::new()))?;
    let effect = effect.unwrap_or(Some(TaintEffect::NoSchedule))?;
    Some(GateTaint { key: key?, value, effect })
}

fn verified_key(field: &Field) -> Option<String> {
    let key = field.checked(words::is_key, words::KEY)?;
    let prefix = key.split_once('/').map_or("", |(prefix, _)| prefix);
    let of = |owner: &str| prefix == owner || prefix.ends_with(&format!(".{owner}"));
    if (of("kubernetes.io") || of("k8s.io")) && !prefix.ends_with("node-restriction.kubernetes.io") {
        field.wrong(format!(
            "'{key}' is a label of Kubernetes: name one of your own, such as node-ready/verified"
        ));
        return None;
    }
    Some(key)
}
