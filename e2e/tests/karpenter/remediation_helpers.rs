//! Helpers that create and read the policy and `NodeRemediation`s.

use std::cell::RefCell;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, ResourceExt as _};
use nodekeeper_core::api::{NodeRemediation, RemediationPolicy};
use serde_json::{Value, json};

use crate::steps::until;
use crate::world::World;

pub fn remediations(world: &impl World) -> Api<DynamicObject> {
    Api::all_with(world.client(), &ApiResource::erase::<NodeRemediation>(&()))
}

pub fn policies(world: &impl World) -> Api<DynamicObject> {
    Api::all_with(world.client(), &ApiResource::erase::<RemediationPolicy>(&()))
}

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

/// Creates a NodeRemediation for a node, as described in docs/remediation.md.
pub async fn request_remediation(world: &impl World, node: &Node) -> Result<()> {
    let (name, uid) = (node.name_any(), node.uid().context("no uid")?);
    let cause = json!({"source": "Person", "name": "ada", "message": "its disk is failing"});
    let remediation = json!({"apiVersion": "nodekeeper.dev/v1alpha1", "kind": "NodeRemediation",
        "metadata": {"name": uid}, "spec": {"node": {"name": name, "uid": uid}, "causes": [cause]}});
    remediations(world).create(&PostParams::default(), &serde_json::from_value(remediation)?).await?;
    Ok(())
}

fn message(status: &Value, (type_, is, reason): (&str, &str, &str)) -> Option<String> {
    let so = |one: &&Value| one["type"] == type_ && one["status"] == is && one["reason"] == reason;
    let found = status["conditions"].as_array()?.iter().find(so)?;
    Some(found["message"].as_str().unwrap_or_default().to_owned())
}

/// Waits until the NodeRemediation of a node has this condition, and returns its message.
pub async fn remediation_condition(
    world: &impl World,
    node: &str,
    what: (&str, &str, &str),
) -> Result<String> {
    let last = RefCell::new(Value::Null);
    let look = async || {
        let all = remediations(world).list(&ListParams::default()).await?;
        let ours = all.items.into_iter().find(|one| one.data["spec"]["node"]["name"] == node);
        let status = ours.map_or(Value::Null, |mut one| one.data["status"].take());
        let said = message(&status, what);
        *last.borrow_mut() = status;
        Ok(said)
    };
    let seen = until(world, &format!("the NodeRemediation of {node} has the condition {what:?}"), look).await;
    seen.with_context(|| last.borrow().to_string())
}

/// Waits until the policy has this condition, and returns its message.
pub async fn policy_condition(world: &impl World, what: (&str, &str, &str)) -> Result<String> {
    let look = async || Ok(message(&policies(world).get("default").await?.data["status"], what));
    until(world, &format!("the policy has the condition {what:?}"), look).await
}
