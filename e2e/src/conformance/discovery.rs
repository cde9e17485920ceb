//! Discovery, health and version.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::check::{is, list, present, text};
use super::ctx::Ctx;

cases!["discovery":
    core_versions,
    groups,
    core_resources,
    resources_of_groups,
    one_group,
    subresources,
    custom_kinds,
    version,
    health,
    who_am_i,
    may_i,
];

async fn core_versions(c: &Ctx) -> Result<()> {
    let api = c.read("/api").await?;
    is(&api, "/kind", "APIVersions")?;
    is(&api, "/versions", json!(["v1"]))
}

async fn groups(c: &Ctx) -> Result<()> {
    let apis = c.read("/apis").await?;
    is(&apis, "/kind", "APIGroupList")?;
    is(&apis, "/apiVersion", "v1")?;
    let groups = list(&apis, "/groups")?;
    for name in [
        "apps",
        "coordination.k8s.io",
        "events.k8s.io",
        "apiextensions.k8s.io",
        "scheduling.k8s.io",
        "discovery.k8s.io",
    ] {
        let group = groups.iter().find(|g| g["name"] == name).cloned().unwrap_or_default();
        is(&group, "/preferredVersion/groupVersion", format!("{name}/v1"))?;
        ensure!(list(&group, "/versions")?.iter().any(|v| v["version"] == "v1"), "{group}");
    }
    Ok(())
}

fn resource(found: &Value, name: &str) -> Result<Value> {
    let resource = list(found, "/resources")?.iter().find(|r| r["name"] == name);
    resource.cloned().ok_or_else(|| anyhow::anyhow!("no {name}"))
}

async fn core_resources(c: &Ctx) -> Result<()> {
    let found = c.read("/api/v1").await?;
    is(&found, "/kind", "APIResourceList")?;
    is(&found, "/groupVersion", "v1")?;
    for (name, kind, singular, namespaced, short) in [
        ("pods", "Pod", "pod", true, "po"),
        ("nodes", "Node", "node", false, "no"),
        ("configmaps", "ConfigMap", "configmap", true, "cm"),
        ("namespaces", "Namespace", "namespace", false, "ns"),
        ("services", "Service", "service", true, "svc"),
        ("events", "Event", "event", true, "ev"),
        ("serviceaccounts", "ServiceAccount", "serviceaccount", true, "sa"),
    ] {
        let found = resource(&found, name)?;
        is(&found, "/kind", kind)?;
        is(&found, "/singularName", singular)?;
        is(&found, "/namespaced", namespaced)?;
        is(&found, "/shortNames", json!([short]))?;
        for verb in ["create", "delete", "get", "list", "patch", "update", "watch"] {
            ensure!(list(&found, "/verbs")?.iter().any(|v| v == verb), "no {verb} in {found}");
        }
    }
    Ok(())
}

async fn resources_of_groups(c: &Ctx) -> Result<()> {
    for (version, name, kind) in [
        ("apps/v1", "deployments", "Deployment"),
        ("apps/v1", "daemonsets", "DaemonSet"),
        ("coordination.k8s.io/v1", "leases", "Lease"),
        ("events.k8s.io/v1", "events", "Event"),
        ("discovery.k8s.io/v1", "endpointslices", "EndpointSlice"),
        ("scheduling.k8s.io/v1", "priorityclasses", "PriorityClass"),
        ("apiextensions.k8s.io/v1", "customresourcedefinitions", "CustomResourceDefinition"),
    ] {
        let found = c.read(&format!("/apis/{version}")).await?;
        is(&found, "/apiVersion", "v1")?;
        is(&found, "/groupVersion", version)?;
        is(&resource(&found, name)?, "/kind", kind)?;
    }
    Ok(())
}

async fn one_group(c: &Ctx) -> Result<()> {
    let group = c.read("/apis/coordination.k8s.io").await?;
    is(&group, "/kind", "APIGroup")?;
    is(&group, "/name", "coordination.k8s.io")?;
    is(&group, "/preferredVersion/version", "v1")
}

async fn subresources(c: &Ctx) -> Result<()> {
    let found = c.read("/api/v1").await?;
    for name in ["pods/status", "nodes/status", "pods/binding"] {
        is(&resource(&found, name)?, "/singularName", "")?;
    }
    is(&resource(&found, "pods/binding")?, "/kind", "Binding")
}

async fn custom_kinds(c: &Ctx) -> Result<()> {
    c.widgets().await?;
    let path = format!("/apis/{}/v1", c.run.group());
    let found = c.until(&path, |found| resource(found, "widgets").is_ok()).await?;
    is(&resource(&found, "widgets")?, "/namespaced", true)?;
    let status = resource(&found, "widgets/status")?;
    is(&status, "/kind", "Widget")?;
    is(&status, "/verbs", json!(["get", "patch", "update"]))
}

async fn version(c: &Ctx) -> Result<()> {
    let version = c.read("/version").await?;
    is(&version, "/major", "1")?;
    present(&version, "/minor")?;
    ensure!(text(&version, "/gitVersion")?.starts_with("v1."), "{version}");
    present(&version, "/platform")
}

async fn health(c: &Ctx) -> Result<()> {
    for path in ["/healthz", "/readyz", "/livez"] {
        let reply = c.get(path).await?;
        ensure!(reply.status == 200 && reply.body == "ok", "{path}: {} {}", reply.status, reply.body);
    }
    Ok(())
}

/// The request of the worker's `api` check. The server responds with the object and does not store it.
async fn who_am_i(c: &Ctx) -> Result<()> {
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let asked = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let review = c.post(path, &asked).await?.ok(201)?;
    is(&review, "/kind", "SelfSubjectReview")?;
    ensure!(!text(&review, "/status/userInfo/username")?.is_empty(), "{review}");
    ensure!(
        list(&review, "/status/userInfo/groups")?.iter().any(|g| g == "system:authenticated"),
        "{review}"
    );
    c.get(path).await?.fails(405, "MethodNotAllowed")?;
    let found = c.read("/apis/authentication.k8s.io/v1").await?;
    is(&resource(&found, "selfsubjectreviews")?, "/verbs", json!(["create"]))
}

/// The request of the controller for a policy that enforces. The server responds with the object and does not store it.
async fn may_i(c: &Ctx) -> Result<()> {
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let attributes = json!({"verb": "create", "resource": "pods", "subresource": "eviction"});
    let asked = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes}});
    let review = c.post(path, &asked).await?.ok(201)?;
    is(&review, "/kind", "SelfSubjectAccessReview")?;
    is(&review, "/spec/resourceAttributes", attributes)?;
    is(&review, "/status/allowed", true)?;
    c.get(path).await?.fails(405, "MethodNotAllowed")?;
    let found = c.read("/apis/authorization.k8s.io/v1").await?;
    is(&resource(&found, "selfsubjectaccessreviews")?, "/verbs", json!(["create"]))
}
