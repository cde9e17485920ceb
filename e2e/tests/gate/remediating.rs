//! Nodes that are replaced, and those that are not.

use anyhow::{Context as _, Result, ensure};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, ResourceExt as _};
use nodekeeper_core::api::{NodeRemediation, RemediationPolicy};
use serde_json::{Value, json};

use crate::play::{controller, gate, node, opens, until};
use crate::world::{BROKEN, World, machine};

const ZONE: &str = "topology.kubernetes.io/zone";

/// Requests as people see them.
pub fn requests(world: &impl World) -> Api<DynamicObject> {
    Api::all_with(world.client(), &ApiResource::erase::<NodeRemediation>(&()))
}

pub fn policies(world: &impl World) -> Api<DynamicObject> {
    Api::all_with(world.client(), &ApiResource::erase::<RemediationPolicy>(&()))
}

/// Makes the policy.
pub async fn policy(world: &impl World, spec: Value) -> Result<()> {
    let policy = json!({"apiVersion": "nodekeeper.dev/v1alpha1", "kind": "RemediationPolicy",
        "metadata": {"name": "default"}, "spec": spec});
    policies(world).create(&PostParams::default(), &serde_json::from_value(policy)?).await?;
    Ok(())
}

/// Changes the policy as `kubectl patch` does.
pub async fn edit_policy(world: &impl World, spec: Value) -> Result<()> {
    let patch = Patch::Merge(json!({"spec": spec}));
    policies(world).patch("default", &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Waits until the request for a node says this, and gives the message.
pub async fn request_says(world: &impl World, node: &str, what: (&str, &str, &str)) -> Result<String> {
    let last = std::cell::RefCell::new(Value::Null);
    let look = async || {
        let all = requests(world).list(&ListParams::default()).await?;
        let ours = all.items.into_iter().find(|one| one.data["spec"]["node"]["name"] == node);
        let Some(mut ours) = ours else { return Ok(None) };
        let so = |one: &&Value| {
            (one["type"].as_str(), one["status"].as_str(), one["reason"].as_str())
                == (Some(what.0), Some(what.1), Some(what.2))
        };
        let status = ours.data["status"].take();
        let found = status["conditions"].as_array().into_iter().flatten().find(so);
        let message = found.map(|one| one["message"].as_str().unwrap_or_default().to_owned());
        *last.borrow_mut() = status;
        Ok(message)
    };
    let seen = until(world, &format!("the request for {node} says {what:?}"), look).await;
    seen.with_context(|| last.borrow().to_string())
}

/// A node that never passes is compared with two that do, and its Node object goes, because the policy says so.
pub async fn a_hopeless_node_is_replaced(world: impl World) -> Result<()> {
    gate(
        &world,
        "default",
        json!({"onFailure": "Replace", "retry": {"maxRetries": 1, "recheckSeconds": 10}}),
    )
    .await?;
    let spec = json!({"enforcement": "Enforce", "deleteNodeObjectFor": ["default"]});
    policy(&world, spec).await?;
    let _controller = controller(&world, "a");
    for name in ["one", "two", "three"] {
        world.join(machine(name).labelled(ZONE, "a")).await?;
        opens(&world, name).await?;
    }
    world.fates().set("hopeless", BROKEN);
    world.join(machine("hopeless").labelled(ZONE, "a")).await?;
    let uid = node(&world, "hopeless").await?.uid().context("no uid")?;
    request_says(&world, "hopeless", ("Succeeded", "True", "Replaced")).await?;
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(world.client());
    ensure!(nodes.get_opt("hopeless").await?.is_none_or(|node| node.uid() != Some(uid)), "it is still there");
    Ok(())
}
