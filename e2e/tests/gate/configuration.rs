//! Objects that the installation brings: the leader applies them, and keeps what others set.

use anyhow::{Context as _, Result, ensure};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, ResourceExt as _};
use nodekeeper_core::api::RemediationPolicy;
use nodekeeper_core::configured::{Adoption, ConfiguredObject, LAST_APPLIED, ObjectKey, ObjectKind};
use nodekeeper_e2e::scenario::fault_proxy::FaultProxy;
use nodekeeper_e2e::scenario::steps::{
    Controller, controller_with, delete_lease, edit_gate, gate_condition, gates, has_condition, is_verified,
    until,
};
use nodekeeper_e2e::scenario::world::{TAINT, World, machine};
use serde_json::{Value, json};

const APPLIED: (&str, &str, &str) = ("ConfigurationApplied", "True", "Applied");
const EDITED: (&str, &str, &str) = ("ConfigurationApplied", "False", "EditedByHand");

fn object(kind: ObjectKind, spec: &Value) -> ConfiguredObject {
    let key = ObjectKey { kind, name: "default".into() };
    ConfiguredObject { key, spec: spec.clone(), adoption: Adoption::KeepLive }
}

/// The gate and the policy that a chart with these values renders.
fn objects(retries: i32, policy: &Value) -> Vec<ConfiguredObject> {
    let spec = json!({"taints": [{"key": TAINT, "value": "true"}], "retry": {"maxRetries": retries},
        "deadlines": {"checkSeconds": 2, "workerSeconds": 60}});
    vec![object(ObjectKind::NodeGate, &spec), object(ObjectKind::RemediationPolicy, policy)]
}

/// Another leader, of an installation with these objects.
async fn install(
    world: &impl World,
    before: Option<Controller>,
    name: &str,
    objects: Vec<ConfiguredObject>,
) -> Result<Controller> {
    drop(before);
    delete_lease(world).await?;
    Ok(controller_with(world, name, FaultProxy::default(), |settings| settings.objects = objects))
}

fn policies(world: &impl World) -> Api<DynamicObject> {
    Api::all_with(world.client(), &ApiResource::erase::<RemediationPolicy>(&()))
}

async fn policy_condition(world: &impl World, what: (&str, &str, &str), words: &str) -> Result<String> {
    has_condition(world, "the policy", &policies(world), |_| true, what, words).await
}

async fn merge(api: &Api<DynamicObject>, patch: Value) -> Result<()> {
    api.patch("default", &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

/// Waits until a field of an object has a value, and returns the object.
async fn has_value(
    world: &impl World,
    api: &Api<DynamicObject>,
    pointer: &str,
    value: &Value,
) -> Result<DynamicObject> {
    let look = async || {
        let object = api.get_opt("default").await?;
        Ok(object.filter(|object| object.data.pointer(pointer) == Some(value)))
    };
    until(world, &format!("{pointer} is {value}"), look).await
}

/// The gate is created and verifies nodes. An upgrade patches what its values changed, and nothing else.
pub async fn u02_an_upgrade_patches_only_what_its_values_changed(world: impl World) -> Result<()> {
    let first = install(&world, None, "a", objects(2, &json!({"budget": {"maxPerHour": 1}}))).await?;
    gate_condition(&world, "default", APPLIED).await?;
    policy_condition(&world, APPLIED, "").await?;
    let made = gates(&world).get("default").await?;
    ensure!(made.labels().len() == 1 && made.annotations().len() == 1, "{:?}", made.metadata);
    world.join(machine("new")).await?;
    is_verified(&world, "new").await?;

    edit_gate(&world, "default", json!({"priority": 7})).await?;
    let message = gate_condition(&world, "default", EDITED).await?;
    ensure!(message.contains("`spec.priority` is 7, configured is 0"), "{message}");
    let pause = json!({"reason": "a storm", "until": "2030-01-31T18:00:00Z"});
    merge(&policies(&world), json!({"spec": {"pause": pause, "budget": {"maxInFlight": 9}}})).await?;
    policy_condition(&world, EDITED, "`spec.budget.maxInFlight` is 9").await?;

    let second = install(&world, Some(first), "b", objects(4, &json!({"budget": {"maxPerHour": 2}}))).await?;
    let gate = has_value(&world, &gates(&world), "/spec/retry/maxRetries", &json!(4)).await?;
    ensure!(gate.uid() == made.uid() && gate.data["spec"]["priority"] == 7, "{gate:?}");
    let policy = has_value(&world, &policies(&world), "/spec/budget/maxPerHour", &json!(2)).await?;
    let spec = &policy.data["spec"];
    ensure!(spec["budget"]["maxInFlight"] == 9 && spec["pause"]["reason"] == "a storm", "{spec}");

    edit_gate(&world, "default", json!({"priority": 0})).await?;
    gate_condition(&world, "default", APPLIED).await?;
    let third = install(&world, Some(second), "c", objects(4, &json!({"budget": {"maxPerHour": 2}}))).await?;
    gate_condition(&world, "default", APPLIED).await?;
    world.join(machine("newer")).await?;
    is_verified(&world, "newer").await?;
    let writes = third.proxy.requests().into_iter().filter(|one| {
        let is_object =
            one.uri.contains("/nodegates/default") || one.uri.contains("/remediationpolicies/default");
        is_object && one.method != http::Method::GET && !one.uri.contains("/status")
    });
    let writes: Vec<_> = writes.collect();
    ensure!(writes.is_empty(), "nothing was to write: {writes:?}");
    Ok(())
}

/// As long as an object is configured it is created again. After that it stays, and says so.
pub async fn u02_an_object_that_is_dropped_from_the_values_stays(world: impl World) -> Result<()> {
    let first = install(&world, None, "a", objects(2, &json!({}))).await?;
    gate_condition(&world, "default", APPLIED).await?;
    policy_condition(&world, APPLIED, "").await?;
    let before = gates(&world).get("default").await?.uid();
    for api in [gates(&world), policies(&world)] {
        api.delete("default", &DeleteParams::default()).await?;
        until(&world, "another object", async || Ok(api.get_opt("default").await?)).await?;
    }
    gate_condition(&world, "default", APPLIED).await?;
    let after = gates(&world).get("default").await?.uid();
    ensure!(after != before, "it was not deleted");

    let _second = install(&world, Some(first), "b", Vec::new()).await?;
    let dropped = ("ConfigurationApplied", "False", "NoLongerConfigured");
    let message = gate_condition(&world, "default", dropped).await?;
    ensure!(message.contains("kubectl delete nodegate/default"), "{message}");
    policy_condition(&world, dropped, "kubectl delete remediationpolicy/default").await?;
    world.join(machine("new")).await?;
    is_verified(&world, "new").await?;
    ensure!(gates(&world).get("default").await?.uid() == after, "it was replaced");

    for api in [gates(&world), policies(&world)] {
        merge(&api, json!({"metadata": {"annotations": {LAST_APPLIED: null}}})).await?;
        until(&world, "no condition of the configuration", async || {
            let status = api.get("default").await?.data["status"].take();
            let mut conditions = status["conditions"].as_array().into_iter().flatten();
            Ok((!conditions.any(|one| one["type"] == "ConfigurationApplied")).then_some(()))
        })
        .await?;
    }
    Ok(())
}

/// An object as the hooks of an earlier chart made it.
fn of_an_old_hook(kind: &str, name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "nodekeeper.dev/v1alpha1", "kind": kind, "spec": spec, "metadata": {"name": name,
        "labels": {"helm.sh/chart": "nodekeeper-0.1.0", "app.kubernetes.io/name": "nodekeeper",
            "app.kubernetes.io/instance": "nodekeeper", "app.kubernetes.io/version": "0.1.0",
            "app.kubernetes.io/part-of": "nodekeeper", "app.kubernetes.io/managed-by": "Helm"},
        "annotations": {"helm.sh/hook": "post-install,post-upgrade,post-rollback",
            "helm.sh/hook-delete-policy": "hook-failed", "argocd.argoproj.io/tracking-id": "nodekeeper:x"}}})
}

/// Objects of earlier releases keep their fields, and lose what tools would delete them by. The gate of a configuration
/// file becomes what the file says.
pub async fn u02_objects_of_earlier_releases_are_adopted(world: impl World) -> Result<()> {
    let create = async |api: Api<DynamicObject>, object: Value| -> Result<()> {
        api.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
        Ok(())
    };
    let own = json!({"priority": 3, "taints": [{"key": "a/b"}]});
    create(gates(&world), of_an_old_hook("NodeGate", "default", &own)).await?;
    create(gates(&world), of_an_old_hook("NodeGate", "config", &own)).await?;
    let own = json!({"enforcement": "Enforce"});
    create(policies(&world), of_an_old_hook("RemediationPolicy", "default", &own)).await?;

    let mut all = objects(2, &json!({"enforcement": "DryRun"}));
    let key = ObjectKey { kind: ObjectKind::NodeGate, name: "config".into() };
    let of_file = json!({"priority": 5, "taints": [{"key": "a/b"}]});
    all.push(ConfiguredObject { key, spec: of_file, adoption: Adoption::TakeConfigured });
    let _controller = install(&world, None, "a", all).await?;
    let message = gate_condition(&world, "default", EDITED).await?;
    ensure!(message.contains("`spec.priority` is 3, configured is 0"), "{message}");
    policy_condition(&world, EDITED, "`spec.enforcement` is Enforce, configured is DryRun").await?;
    gate_condition(&world, "config", APPLIED).await?;
    ensure!(gates(&world).get("config").await?.data["spec"]["priority"] == 5, "the file wins");

    for object in [
        gates(&world).get("default").await?,
        gates(&world).get("config").await?,
        policies(&world).get("default").await?,
    ] {
        let keys: Vec<&String> = object.labels().keys().chain(object.annotations().keys()).collect();
        let kept = [
            "app.kubernetes.io/managed-by",
            "app.kubernetes.io/name",
            "app.kubernetes.io/part-of",
            "app.kubernetes.io/version",
            LAST_APPLIED,
        ];
        ensure!(keys == kept, "{keys:?}");
        let manager = object.labels().get("app.kubernetes.io/managed-by").context("no manager")?;
        ensure!(manager == "nodekeeper", "{manager}");
    }
    Ok(())
}

/// The embedded server evaluates no CEL rules. The values name a check that a person skipped.
pub async fn u02_a_configuration_that_the_server_refuses_is_reported(world: impl World) -> Result<()> {
    let gate = |checks: Value| vec![object(ObjectKind::NodeGate, &json!({"checks": checks}))];
    let first = install(&world, None, "a", gate(json!({}))).await?;
    gate_condition(&world, "default", APPLIED).await?;
    edit_gate(&world, "default", json!({"checks": {"skip": ["dns"]}})).await?;
    gate_condition(&world, "default", EDITED).await?;
    let _second = install(&world, Some(first), "b", gate(json!({"dns": {"names": ["a.example."]}}))).await?;
    let refused = ("ConfigurationApplied", "False", "ApplyRefused");
    let message = gate_condition(&world, "default", refused).await?;
    ensure!(message.contains("`skip` must not name a check that is configured"), "{message}");
    edit_gate(&world, "default", json!({"checks": {"skip": null}})).await?;
    gate_condition(&world, "default", APPLIED).await?;
    Ok(())
}
