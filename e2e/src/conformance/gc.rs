//! The garbage collector: owners, dependents and the three propagation policies; namespaces.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::check::{absent, is, list, present};
use super::ctx::Ctx;
use super::objects::{self, owned_by, with};

cases!["gc":
    dependents_follow_their_owner,
    dependents_of_dependents_follow,
    dependent_with_another_uid_is_deleted,
    dependent_of_a_missing_owner_is_deleted,
    dependent_of_a_node_follows_it,
    one_owner_left_keeps_the_dependent,
    orphans_are_left_alone,
    foreground_waits_for_blocking_dependents,
    foreground_does_not_wait_for_others,
    foreground_without_dependents,
    foreground_spares_who_has_another_owner,
    dependents_with_finalizers_are_marked,
    owned_custom_resources_follow,
    namespace_takes_all_with_it,
    namespace_waits_for_finalizers,
    namespace_in_deletion_takes_nothing_new,
    namespace_is_born_with_its_furniture,
];

async fn owned(c: &Ctx, name: &str, owners: Value) -> Result<String> {
    let body = with(objects::config_map(name), json!({"metadata": {"ownerReferences": owners}}));
    c.create(&c.path("v1/configmaps"), body).await?;
    Ok(c.path(&format!("v1/configmaps/{name}")))
}

async fn dependents_follow_their_owner(c: &Ctx) -> Result<()> {
    let (owner_path, owner) = c.config_map("owner").await?;
    let path = owned(c, "a", json!([owned_by(&owner)])).await?;
    c.delete_with(&owner_path, json!({"propagationPolicy": "Background"})).await?.ok(200)?;
    c.get(&owner_path).await?.fails(404, "NotFound")?;
    c.gone(&path).await
}

async fn dependents_of_dependents_follow(c: &Ctx) -> Result<()> {
    let (owner_path, owner) = c.config_map("owner").await?;
    let middle_path = owned(c, "middle", json!([owned_by(&owner)])).await?;
    let middle = c.read(&middle_path).await?;
    let path = owned(c, "a", json!([owned_by(&middle)])).await?;
    c.delete(&owner_path).await?.ok(200)?;
    c.gone(&path).await?;
    c.gone(&middle_path).await
}

async fn dependent_with_another_uid_is_deleted(c: &Ctx) -> Result<()> {
    let (owner_path, owner) = c.config_map("owner").await?;
    let wrong = with(owned_by(&owner), json!({"uid": "11111111-2222-3333-4444-555555555555"}));
    let path = owned(c, "a", json!([wrong])).await?;
    c.gone(&path).await?;
    c.read(&owner_path).await.map(drop)
}

async fn dependent_of_a_missing_owner_is_deleted(c: &Ctx) -> Result<()> {
    let uid = "11111111-2222-3333-4444-555555555556";
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "none", "uid": uid});
    let path = owned(c, "a", json!([owner])).await?;
    c.gone(&path).await
}

async fn dependent_of_a_node_follows_it(c: &Ctx) -> Result<()> {
    let (node_path, node) = c.node("a").await?;
    let path = owned(c, "a", json!([owned_by(&node)])).await?;
    let (pod, _) = c
        .pod_of(with(objects::pod("p"), json!({"metadata": {"ownerReferences": [owned_by(&node)]}})))
        .await?;
    c.delete(&node_path).await?.ok(200)?;
    c.gone(&path).await?;
    c.gone(&pod).await
}

async fn one_owner_left_keeps_the_dependent(c: &Ctx) -> Result<()> {
    let (one_path, one) = c.config_map("one").await?;
    let (two_path, two) = c.config_map("two").await?;
    let path = owned(c, "a", json!([owned_by(&one), owned_by(&two)])).await?;
    c.delete(&one_path).await?.ok(200)?;
    let left =
        c.until(&path, |a| a["metadata"]["ownerReferences"].as_array().is_some_and(|o| o.len() == 1)).await?;
    is(&left, "/metadata/ownerReferences/0/name", "two")?;
    absent(&left, "/metadata/deletionTimestamp")?;
    c.delete(&two_path).await?.ok(200)?;
    c.gone(&path).await
}

async fn orphans_are_left_alone(c: &Ctx) -> Result<()> {
    let (owner_path, owner) = c.config_map("owner").await?;
    let path = owned(c, "a", json!([owned_by(&owner)])).await?;
    let answer = c.delete_with(&owner_path, json!({"propagationPolicy": "Orphan"})).await?.ok(200)?;
    is(&answer, "/kind", "ConfigMap")?;
    is(&answer, "/metadata/finalizers", json!(["orphan"]))?;
    present(&answer, "/metadata/deletionTimestamp")?;
    c.gone(&owner_path).await?;
    let left = c.read(&path).await?;
    absent(&left, "/metadata/ownerReferences")?;
    absent(&left, "/metadata/deletionTimestamp")
}

async fn foreground_waits_for_blocking_dependents(c: &Ctx) -> Result<()> {
    let (owner_path, owner) = c.config_map("owner").await?;
    let blocking = with(owned_by(&owner), json!({"blockOwnerDeletion": true}));
    let path = owned(c, "a", json!([blocking])).await?;
    c.merge(&path, json!({"metadata": {"finalizers": ["example.com/hold"]}})).await?.ok(200)?;
    let answer = c.delete_with(&owner_path, json!({"propagationPolicy": "Foreground"})).await?.ok(200)?;
    is(&answer, "/kind", "ConfigMap")?;
    is(&answer, "/metadata/finalizers", json!(["foregroundDeletion"]))?;
    c.until(&path, |a| a["metadata"]["deletionTimestamp"].is_string()).await?;
    present(&c.read(&owner_path).await?, "/metadata/deletionTimestamp")?;
    c.merge(&path, json!({"metadata": {"finalizers": null}})).await?.ok(200)?;
    c.gone(&path).await?;
    c.gone(&owner_path).await
}

async fn foreground_does_not_wait_for_others(c: &Ctx) -> Result<()> {
    let (owner_path, owner) = c.config_map("owner").await?;
    let path = owned(c, "a", json!([owned_by(&owner)])).await?;
    c.merge(&path, json!({"metadata": {"finalizers": ["example.com/hold"]}})).await?.ok(200)?;
    c.delete_with(&owner_path, json!({"propagationPolicy": "Foreground"})).await?.ok(200)?;
    c.gone(&owner_path).await?;
    c.until(&path, |a| a["metadata"]["deletionTimestamp"].is_string()).await.map(drop)
}

async fn foreground_spares_who_has_another_owner(c: &Ctx) -> Result<()> {
    let (one_path, one) = c.config_map("one").await?;
    let (_, two) = c.config_map("two").await?;
    let blocking = with(owned_by(&one), json!({"blockOwnerDeletion": true}));
    let path = owned(c, "a", json!([blocking, owned_by(&two)])).await?;
    c.delete_with(&one_path, json!({"propagationPolicy": "Foreground"})).await?.ok(200)?;
    c.gone(&one_path).await?;
    let left = c.read(&path).await?;
    absent(&left, "/metadata/deletionTimestamp")?;
    is(&left, "/metadata/ownerReferences/0/name", "two")
}

async fn foreground_without_dependents(c: &Ctx) -> Result<()> {
    let (path, _) = c.config_map("a").await?;
    let answer = c.delete_with(&path, json!({"propagationPolicy": "Foreground"})).await?.ok(200)?;
    is(&answer, "/metadata/finalizers", json!(["foregroundDeletion"]))?;
    c.gone(&path).await
}

async fn dependents_with_finalizers_are_marked(c: &Ctx) -> Result<()> {
    let (owner_path, owner) = c.config_map("owner").await?;
    let path = owned(c, "a", json!([owned_by(&owner)])).await?;
    c.merge(&path, json!({"metadata": {"finalizers": ["example.com/hold"]}})).await?.ok(200)?;
    c.delete(&owner_path).await?.ok(200)?;
    let marked = c.until(&path, |a| a["metadata"]["deletionTimestamp"].is_string()).await?;
    ensure!(list(&marked, "/metadata/ownerReferences")?.len() == 1, "the reference is gone");
    Ok(())
}

async fn owned_custom_resources_follow(c: &Ctx) -> Result<()> {
    let (owner_path, owner) = c.make_widget("owner").await?;
    let (path, _) = c.make_widget("a").await?;
    c.merge(&path, json!({"metadata": {"ownerReferences": [owned_by(&owner)]}})).await?.ok(200)?;
    let map = owned(c, "m", json!([owned_by(&owner)])).await?;
    c.delete(&owner_path).await?.ok(200)?;
    c.gone(&path).await?;
    c.gone(&map).await
}

async fn namespace(c: &Ctx) -> Result<String> {
    let name = c.name("other");
    c.create("/api/v1/namespaces", json!({"metadata": {"name": name}})).await?;
    Ok(name)
}

async fn namespace_takes_all_with_it(c: &Ctx) -> Result<()> {
    let name = namespace(c).await?;
    let path = format!("/api/v1/namespaces/{name}");
    c.create(&format!("{path}/configmaps"), objects::config_map("a")).await?;
    c.widgets().await?;
    let widgets = format!("/apis/{}/v1/namespaces/{name}/widgets", c.run.group());
    c.create(&widgets, c.widget("a")).await?;
    let answer = c.delete(&path).await?.ok(200)?;
    is(&answer, "/kind", "Namespace")?;
    is(&answer, "/status/phase", "Terminating")?;
    is(&answer, "/spec/finalizers", json!(["kubernetes"]))?;
    present(&answer, "/metadata/deletionTimestamp")?;
    c.gone(&path).await?;
    c.get(&format!("{path}/configmaps/a")).await?.fails(404, "NotFound")?;
    c.get(&format!("{widgets}/a")).await?.fails(404, "NotFound").map(drop)
}

async fn namespace_waits_for_finalizers(c: &Ctx) -> Result<()> {
    let name = namespace(c).await?;
    let path = format!("/api/v1/namespaces/{name}");
    let held = with(objects::config_map("a"), json!({"metadata": {"finalizers": ["example.com/a"]}}));
    c.create(&format!("{path}/configmaps"), held).await?;
    c.delete(&path).await?.ok(200)?;
    let map = format!("{path}/configmaps/a");
    c.until(&map, |a| a["metadata"]["deletionTimestamp"].is_string()).await?;
    is(&c.read(&path).await?, "/status/phase", "Terminating")?;
    c.merge(&map, json!({"metadata": {"finalizers": null}})).await?.ok(200)?;
    c.gone(&path).await
}

async fn namespace_in_deletion_takes_nothing_new(c: &Ctx) -> Result<()> {
    let name = namespace(c).await?;
    let path = format!("/api/v1/namespaces/{name}");
    let held = with(objects::config_map("a"), json!({"metadata": {"finalizers": ["example.com/a"]}}));
    c.create(&format!("{path}/configmaps"), held).await?;
    c.delete(&path).await?.ok(200)?;
    let failed =
        c.post(&format!("{path}/configmaps"), &objects::config_map("b")).await?.fails(403, "Forbidden")?;
    is(&failed, "/details/kind", "configmaps")?;
    is(&failed, "/details/causes/0/reason", "NamespaceTerminating")?;
    // Existing objects can still be changed.
    c.merge(&format!("{path}/configmaps/a"), json!({"data": {"b": "2"}})).await?.ok(200).map(drop)
}

async fn namespace_is_born_with_its_furniture(c: &Ctx) -> Result<()> {
    let name = c.name("other");
    let made = c.create("/api/v1/namespaces", json!({"metadata": {"name": name}})).await?;
    is(&made, "/status/phase", "Active")?;
    is(&made, "/spec/finalizers", json!(["kubernetes"]))?;
    is(&made, "/metadata/labels", json!({"kubernetes.io/metadata.name": name}))?;
    absent(&made, "/metadata/generation")?;
    let path = format!("/api/v1/namespaces/{name}");
    c.until(&format!("{path}/serviceaccounts"), |list| list["items"][0]["metadata"]["name"] == "default")
        .await?;
    let maps = format!("{path}/configmaps");
    c.until(&maps, |list| list["items"][0]["metadata"]["name"] == "kube-root-ca.crt").await.map(drop)
}
