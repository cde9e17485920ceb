//! Requests and the policy, as people make them and read them.

use anyhow::{Context as _, Result};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject};
use nodekeeper_core::api::{NodeRemediation, RemediationPolicy};
use serde_json::{Value, json};

use crate::play::until;
use crate::world::World;

/// Requests as people see them.
pub fn requests(world: &impl World) -> Api<DynamicObject> {
    Api::all_with(world.client(), &ApiResource::erase::<NodeRemediation>(&()))
}

pub fn policies(world: &impl World) -> Api<DynamicObject> {
    Api::all_with(world.client(), &ApiResource::erase::<RemediationPolicy>(&()))
}

/// Makes the policy: as `spec` says, enforced, and on the word of all who ask, if it does not say otherwise.
pub async fn policy(world: &impl World, spec: Value) -> Result<()> {
    let mut whole = json!({"enforcement": "Enforce", "deleteNodeObjectFor": ["*"]});
    for (key, value) in spec.as_object().into_iter().flatten() {
        whole[key] = value.clone();
    }
    let policy = json!({"apiVersion": "nodekeeper.dev/v1alpha1", "kind": "RemediationPolicy",
        "metadata": {"name": "default"}, "spec": whole});
    policies(world).create(&PostParams::default(), &serde_json::from_value(policy)?).await?;
    Ok(())
}

/// Changes the policy as `kubectl patch` does.
pub async fn edit_policy(world: &impl World, spec: Value) -> Result<()> {
    let patch = Patch::Merge(json!({"spec": spec}));
    policies(world).patch("default", &PatchParams::default(), &patch).await?;
    Ok(())
}

fn condition<'a>(object: &'a DynamicObject, type_: &str) -> Option<&'a Value> {
    object.data["status"]["conditions"].as_array()?.iter().find(|one| one["type"] == type_)
}

/// Waits until one of these objects has a condition with this type, status and reason, with these words in its
/// message, which is given.
async fn says(
    world: &impl World,
    who: &str,
    objects: &Api<DynamicObject>,
    is: impl Fn(&DynamicObject) -> bool,
    what: (&str, &str, &str),
    words: &str,
) -> Result<String> {
    let last = std::cell::RefCell::new(Value::Null);
    let look = async || {
        let all = objects.list(&ListParams::default()).await?.items;
        let Some(one) = all.into_iter().find(|one| is(one)) else { return Ok(None) };
        let found = condition(&one, what.0).filter(|one| one["status"] == what.1 && one["reason"] == what.2);
        let message = found.and_then(|one| one["message"].as_str()).filter(|message| message.contains(words));
        let message = message.map(str::to_owned);
        *last.borrow_mut() = one.data["status"].clone();
        Ok(message)
    };
    let seen = until(world, &format!("{who} says {what:?} {words:?}"), look).await;
    seen.with_context(|| last.borrow().to_string())
}

/// Waits until the request for a node says this, and gives the message.
pub async fn request_says(
    world: &impl World,
    node: &str,
    what: (&str, &str, &str),
    words: &str,
) -> Result<String> {
    let is = |one: &DynamicObject| one.data["spec"]["node"]["name"] == node;
    says(world, &format!("the request for {node}"), &requests(world), is, what, words).await
}

/// The same of the policy.
pub async fn policy_says(world: &impl World, what: (&str, &str, &str), words: &str) -> Result<String> {
    says(world, "the policy", &policies(world), |_| true, what, words).await
}
