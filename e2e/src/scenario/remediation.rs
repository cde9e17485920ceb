//! Helpers that create and read the policy and `NodeRemediation`s.

use anyhow::{Context as _, Result};
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, ResourceExt as _};
use nodekeeper_core::api::{NodeRemediation, RemediationPolicy};
use serde_json::{Value, json};

use super::steps::{has_condition, node};
use super::world::World;

pub fn remediations(world: &impl World) -> Api<DynamicObject> {
    Api::all_with(world.client(), &ApiResource::erase::<NodeRemediation>(&()))
}

pub fn policies(world: &impl World) -> Api<DynamicObject> {
    Api::all_with(world.client(), &ApiResource::erase::<RemediationPolicy>(&()))
}

/// Creates the policy with this spec.
pub async fn policy(world: &impl World, spec: Value) -> Result<()> {
    let policy = json!({"apiVersion": "nodekeeper.dev/v1alpha1", "kind": "RemediationPolicy",
        "metadata": {"name": "default"}, "spec": spec});
    policies(world).create(&PostParams::default(), &serde_json::from_value(policy)?).await?;
    Ok(())
}

/// Patches the policy like `kubectl patch`.
pub async fn edit_policy(world: &impl World, spec: Value) -> Result<()> {
    let patch = Patch::Merge(json!({"spec": spec}));
    policies(world).patch("default", &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Creates a NodeRemediation like a user, as described in docs/remediation.md, and returns the uid of the node.
pub async fn request_remediation(world: &impl World, name: &str) -> Result<String> {
    let node = node(world, name).await?;
    let uid = node.uid().context("no uid")?;
    let mut target = json!({"name": name, "uid": uid});
    if let Some(info) = node.status.and_then(|status| status.node_info) {
        target["bootID"] = json!(info.boot_id);
    }
    let spec = json!({"node": target,
        "causes": [{"source": "Person", "name": "ada", "message": "its disk is failing"}]});
    let request = json!({"apiVersion": "nodekeeper.dev/v1alpha1", "kind": "NodeRemediation",
        "metadata": {"name": uid}, "spec": spec});
    remediations(world).create(&PostParams::default(), &serde_json::from_value(request)?).await?;
    Ok(uid)
}

/// Waits until the NodeRemediation of a node has this condition with `words` in its message, and returns the message.
pub async fn remediation_condition(
    world: &impl World,
    node: &str,
    what: (&str, &str, &str),
    words: &str,
) -> Result<String> {
    let is = |one: &DynamicObject| one.data["spec"]["node"]["name"] == node;
    let who = format!("the NodeRemediation of {node}");
    has_condition(world, &who, &remediations(world), is, what, words).await
}

/// Waits until the policy has this condition with `words` in its message, and returns the message.
pub async fn policy_condition(world: &impl World, what: (&str, &str, &str), words: &str) -> Result<String> {
    has_condition(world, "the policy", &policies(world), |_| true, what, words).await
}
