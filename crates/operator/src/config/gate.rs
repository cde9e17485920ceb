//! Reads `reconciliation` and `nodeManagement`: the taints of the gate and its retries.

use std::time::Duration;

use nodekeeper_core::api::{
    ActEnforcement, Backoff, CauseSelector, CauseSource, FailureAction, GateTaint, RemediationPolicySpec,
    TaintEffect,
};

use super::section::{Field, Section};
use super::{LegacyConfig, validators};

/// The longest interval in seconds.
const DAY: i32 = 86_400;

/// Prefixes of taints that Kubernetes and autoscalers remove themselves.
const FOREIGN: [&str; 5] = [
    "node.kubernetes.io/",
    "node-role.kubernetes.io/",
    "node.cloudprovider.kubernetes.io/",
    "karpenter.sh/",
    "ToBeDeleted",
];

/// The warning about `deleteFailedNodes`, which deletes nodes without limits in kube-node-ready.
const REPLACES: &str = "nodes that failed all attempts are drained and replaced by Karpenter; where no component replaces a \
    node, its Node object is deleted as a last resort, and pods on a machine that still runs keep running. \
    The RemediationPolicy 'default' enforces this, with the default budget: 2 at once and 3 an hour, and no node that fails \
    only what working nodes fail too. It is created, or changed if the installation created it; one of your own stays as it \
    is. A node is compared with two nodes of its zone \
    that passed the gate, so none is replaced until two have passed there, and nodes that kube-node-ready verified do not count. \
    To change that: kubectl edit remediationpolicy default";

pub fn read(root: &mut Section, legacy: &mut LegacyConfig) {
    let mut section = root.section("reconciliation");
    if let Some(field) = section.take("intervalSeconds")
        && let Some(seconds) = field.int(1..=DAY)
    {
        legacy.resync = Some(Duration::from_secs(u64::from(seconds.unsigned_abs())));
        legacy.outside_objects(&field, "only a file has it; every change is acted on at once anyway");
    }
    let retry = &mut legacy.gate.retry;
    if let Some(retries) = section.take("maxRetries").and_then(|field| field.int(0..=100)) {
        retry.max_retries = retries;
    }
    if let Some(chosen) = section.take("retryBackoff").and_then(|field| backoff(&field)) {
        retry.backoff = chosen;
    }
    section.end();

    let mut section = root.section("nodeManagement");
    if let Some(field) = section.take("deleteFailedNodes") {
        delete_failed_nodes(&field, legacy);
    }
    if let Some(field) = section.take("taints") {
        legacy.gate.taints = taints(&field);
    }
    let mut label = section.section("verifiedLabel");
    let verified = &mut legacy.gate.verified_label;
    if let Some(key) = label.take("key").and_then(|field| verified_key(&field)) {
        verified.key = key;
    }
    if let Some(value) =
        label.take("value").and_then(|field| field.checked(validators::is_value, validators::VALUE))
    {
        verified.value = value;
    }
    label.end();
    section.end();
}

pub fn delete_failed_nodes(field: &Field, legacy: &mut LegacyConfig) {
    if field.bool() == Some(true) {
        legacy.gate.on_failure = FailureAction::Replace;
        legacy.policy = Some(policy());
        field.warn(REPLACES);
        let place = "the permissions to evict and delete; `remediation.enforcement: Enforce` in the chart";
        legacy.outside_objects(field, place);
    }
}

/// Replaces failed nodes as kube-node-ready does, but within a budget.
fn policy() -> RemediationPolicySpec {
    RemediationPolicySpec {
        enforcement: ActEnforcement::Enforce,
        delete_node_object_for: vec![CauseSelector { source: CauseSource::Gate, name: "config".into() }],
        ..RemediationPolicySpec::default()
    }
}

/// The two spellings of kube-node-ready.
pub fn backoff(field: &Field) -> Option<Backoff> {
    field.choice(&[("exponential", Backoff::Exponential), ("linear", Backoff::Linear)])
}

fn taints(field: &Field) -> Vec<GateTaint> {
    let items = field.items(8);
    if items.is_empty() && field.is_list() {
        field.wrong(
            "is empty: that would gate every node, including old ones and control planes; \
             name the taint that your new nodes register with, or leave the key out for node-ready/unverified",
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
    let key = key.and_then(|field| taint_key(&field));
    let value = section.take("value").map(|field| field.checked(validators::is_value, validators::VALUE));
    let effect = section.take("effect").map(|field| effect(&field));
    section.end();
    let value = value.unwrap_or(Some(String::new()))?;
    let effect = effect.unwrap_or(Some(TaintEffect::NoSchedule))?;
    Some(GateTaint { key: key?, value, effect })
}

pub fn taint_key(field: &Field) -> Option<String> {
    let key = field.checked(validators::is_key, validators::KEY)?;
    let foreign = FOREIGN.iter().any(|start| key.starts_with(start));
    if foreign {
        field.wrong(format!("'{key}' belongs to Kubernetes or to an autoscaler: name a taint of your own"));
    }
    (!foreign).then_some(key)
}

pub fn effect(field: &Field) -> Option<TaintEffect> {
    let effects = [TaintEffect::NoSchedule, TaintEffect::PreferNoSchedule, TaintEffect::NoExecute];
    field.choice(&effects.map(|effect| (effect.as_str(), effect)))
}

pub fn verified_key(field: &Field) -> Option<String> {
    let key = field.checked(validators::is_key, validators::KEY)?;
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
