//! Behaviour that is specific to single built-in kinds.

use anyhow::{Result, ensure};
use serde_json::json;

use super::check::{absent, is, names, text};
use super::ctx::Ctx;
use super::objects::{self, with};

cases!["kinds":
    secret_string_data,
    secret_data_is_base64,
    config_map_keys,
    service_gets_an_address,
    service_address_is_unique,
    headless_service,
    service_of_no_selector,
    deployment_is_defaulted,
    deployment_selector_must_match,
    lease_times_are_micro,
    namespaces_of_the_system,
    namespace_finalize,
    event_needs_its_namespace,
    endpoint_slice_addresses,
];

async fn secret_string_data(c: &Ctx) -> Result<()> {
    let body =
        json!({"metadata": {"name": "a"}, "data": {"x": "eA==", "k": "b2xk"}, "stringData": {"k": "v"}});
    let made = c.create(&c.path("v1/secrets"), body).await?;
    is(&made, "/data", json!({"k": "dg==", "x": "eA=="}))?;
    absent(&made, "/stringData")?;
    is(&made, "/type", "Opaque")
}

async fn secret_data_is_base64(c: &Ctx) -> Result<()> {
    let body = json!({"metadata": {"name": "a"}, "data": {"x": "not base64!"}});
    c.post(&c.path("v1/secrets"), &body).await?.fails(400, "BadRequest")?;
    c.create(&c.path("v1/secrets"), json!({"metadata": {"name": "a"}, "type": "example.com/t"})).await?;
    // The type cannot be changed.
    c.merge(&c.path("v1/secrets/a"), json!({"type": "Opaque"})).await?.invalid(&["type"]).map(drop)
}

async fn config_map_keys(c: &Ctx) -> Result<()> {
    let path = c.path("v1/configmaps");
    let bad = with(objects::config_map("a"), json!({"data": {"a b": "x"}}));
    c.post(&path, &bad).await?.invalid(&["data[a b]"])?;
    let both = with(objects::config_map("a"), json!({"binaryData": {"a": "eA=="}}));
    c.post(&path, &both).await?.fails(422, "Invalid").map(drop)
}

async fn service_gets_an_address(c: &Ctx) -> Result<()> {
    let made = c.create(&c.path("v1/services"), objects::service("a")).await?;
    let address = text(&made, "/spec/clusterIP")?;
    address.parse::<std::net::Ipv4Addr>()?;
    is(&made, "/spec/clusterIPs", json!([address]))?;
    is(&made, "/spec/type", "ClusterIP")?;
    is(&made, "/spec/sessionAffinity", "None")?;
    is(&made, "/spec/ports/0", json!({"port": 80, "protocol": "TCP", "targetPort": 80}))?;
    is(&made, "/spec/ipFamilies", json!(["IPv4"]))?;
    is(&made, "/status", json!({"loadBalancer": {}}))?;
    // The value stays if an update omits it.
    let put = c.put(&c.path("v1/services/a"), &objects::service("a")).await?.ok(200)?;
    is(&put, "/spec/clusterIP", address)?;
    let moved = json!({"spec": {"clusterIP": "10.96.0.99", "clusterIPs": ["10.96.0.99"]}});
    c.merge(&c.path("v1/services/a"), moved).await?.fails(422, "Invalid").map(drop)
}

async fn service_address_is_unique(c: &Ctx) -> Result<()> {
    let one = c.create(&c.path("v1/services"), objects::service("a")).await?;
    let two = c.create(&c.path("v1/services"), objects::service("b")).await?;
    ensure!(one["spec"]["clusterIP"] != two["spec"]["clusterIP"], "the same address twice");
    let taken = with(objects::service("d"), json!({"spec": {"clusterIP": one["spec"]["clusterIP"]}}));
    c.post(&c.path("v1/services"), &taken).await?.fails(422, "Invalid").map(drop)
}

async fn headless_service(c: &Ctx) -> Result<()> {
    let body = with(objects::service("a"), json!({"spec": {"clusterIP": "None"}}));
    let made = c.create(&c.path("v1/services"), body).await?;
    is(&made, "/spec/clusterIP", "None")?;
    is(&made, "/spec/clusterIPs", json!(["None"]))
}

async fn service_of_no_selector(c: &Ctx) -> Result<()> {
    let body = with(objects::service("a"), json!({"spec": {"selector": null, "ports": null}}));
    c.post(&c.path("v1/services"), &body).await?.invalid(&["spec.ports"])?;
    let body = with(objects::service("a"), json!({"spec": {"selector": null}}));
    absent(&c.create(&c.path("v1/services"), body).await?, "/spec/selector")
}

async fn deployment_is_defaulted(c: &Ctx) -> Result<()> {
    let made = c.create(&c.path("apps/v1/deployments"), objects::deployment("a")).await?;
    is(&made, "/spec/replicas", 0)?;
    is(&made, "/spec/revisionHistoryLimit", 10)?;
    is(&made, "/spec/progressDeadlineSeconds", 600)?;
    is(
        &made,
        "/spec/strategy",
        json!({
            "type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"},
        }),
    )?;
    is(&made, "/spec/template/spec/restartPolicy", "Always")?;
    is(&made, "/status", json!({}))
}

async fn deployment_selector_must_match(c: &Ctx) -> Result<()> {
    let path = c.path("apps/v1/deployments");
    let other = json!({"spec": {"selector": {"matchLabels": {"app": "other"}}}});
    let failed = c.post(&path, &with(objects::deployment("a"), other)).await?;
    failed.invalid(&["spec.template.metadata.labels"])?;
    let none = with(objects::deployment("a"), json!({"spec": {"selector": null}}));
    c.post(&path, &none).await?.fails(422, "Invalid").map(drop)
}

async fn lease_times_are_micro(c: &Ctx) -> Result<()> {
    let path = c.path("coordination.k8s.io/v1/leases");
    let times = json!({"spec": {"acquireTime": "2026-01-01T00:00:00.123456Z", "renewTime": "2026-01-01T00:00:01.000000Z"}});
    let made = c.create(&path, with(objects::lease("a"), times)).await?;
    is(&made, "/spec/acquireTime", "2026-01-01T00:00:00.123456Z")?;
    is(&made, "/spec/renewTime", "2026-01-01T00:00:01.000000Z")?;
    let none = with(objects::lease("b"), json!({"spec": {"leaseDurationSeconds": 0}}));
    c.post(&path, &none).await?.invalid(&["spec.leaseDurationSeconds"])?;
    for time in ["yesterday", "2026-01-01T00:00:01Z"] {
        let wrong = with(objects::lease("b"), json!({"spec": {"renewTime": time}}));
        c.post(&path, &wrong).await?.fails(400, "BadRequest")?;
    }
    Ok(())
}

async fn namespaces_of_the_system(c: &Ctx) -> Result<()> {
    for name in ["default", "kube-system", "kube-public", "kube-node-lease"] {
        is(&c.read(&format!("/api/v1/namespaces/{name}")).await?, "/status/phase", "Active")?;
    }
    for name in ["default", "kube-system", "kube-public"] {
        c.delete(&format!("/api/v1/namespaces/{name}")).await?.fails(403, "Forbidden")?;
    }
    Ok(())
}

async fn namespace_finalize(c: &Ctx) -> Result<()> {
    let name = c.name("a");
    let made = c.create("/api/v1/namespaces", json!({"metadata": {"name": name}})).await?;
    // The spec's finalizers change through their own subresource only.
    let put = c
        .put(&format!("/api/v1/namespaces/{name}"), &with(made, json!({"spec": {"finalizers": null}})))
        .await?;
    is(&put.ok(200)?, "/spec/finalizers", json!(["kubernetes"]))
}

async fn event_needs_its_namespace(c: &Ctx) -> Result<()> {
    let event = |namespace: &str| {
        json!({
            "metadata": {"generateName": "a-"}, "reason": "R", "type": "Normal",
            "involvedObject": {"kind": "ConfigMap", "name": "it", "namespace": namespace},
        })
    };
    c.create(&c.path("v1/events"), event(c.ns())).await?;
    c.post(&c.path("v1/events"), &event("default")).await?.fails(422, "Invalid")?;
    // Events about cluster-scoped objects are in `default`.
    c.post(&c.path("v1/events"), &event("")).await?.fails(422, "Invalid")?;
    c.create("/api/v1/namespaces/default/events", event("")).await.map(drop)
}

async fn endpoint_slice_addresses(c: &Ctx) -> Result<()> {
    let path = c.path("discovery.k8s.io/v1/endpointslices");
    let ready =
        json!([{"addresses": ["10.1.2.3"], "conditions": {"ready": true}, "nodeName": "n", "zone": "z"}]);
    let label = json!({"metadata": {"labels": {"kubernetes.io/service-name": "s"}}, "endpoints": ready});
    let made = c.create(&path, with(objects::endpoint_slice("a"), label)).await?;
    is(&made, "/endpoints/0/conditions/ready", true)?;
    let wrong = with(objects::endpoint_slice("b"), json!({"endpoints": [{"addresses": ["fd00::1"]}]}));
    let failed = c.post(&path, &wrong).await?.fails(422, "Invalid")?;
    // Some versions report the address, some the list.
    ensure!(text(&failed, "/details/causes/0/field")?.starts_with("endpoints[0].addresses"), "{failed}");
    let all = c.read(&format!("{path}?labelSelector=kubernetes.io/service-name=s")).await?;
    ensure!(names(&all)? == ["a"], "{:?}", names(&all)?);
    Ok(())
}
