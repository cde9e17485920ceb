//! Error responses to invalid requests.

use anyhow::{Result, ensure};
use http::Method;
use serde_json::json;

use super::check::{absent, is};
use super::ctx::Ctx;
use super::http::Call;
use super::objects::{self, with};

cases!["errors":
    not_found_names_the_object,
    unknown_resource,
    unknown_group_and_path,
    method_not_allowed,
    subresources_of_other_kinds,
    unsupported_body_type,
    unsupported_patch_type,
    not_acceptable,
    malformed_json,
    body_of_another_kind,
    body_of_another_version,
    wrong_types_in_the_body,
    unknown_fields_are_dropped,
    strict_validation_refuses_unknown_fields,
    strict_validation_refuses_duplicate_fields,
    unknown_field_validation,
    yaml_is_accepted,
    unknown_query_parameters_are_ignored,
];

async fn not_found_names_the_object(c: &Ctx) -> Result<()> {
    let failed = c.get(&c.path("v1/configmaps/none")).await?.fails(404, "NotFound")?;
    is(&failed, "/metadata", json!({}))?;
    is(&failed, "/details", json!({"name": "none", "kind": "configmaps"}))?;
    let failed = c.get(&c.path("coordination.k8s.io/v1/leases/none")).await?.fails(404, "NotFound")?;
    is(&failed, "/details", json!({"name": "none", "group": "coordination.k8s.io", "kind": "leases"}))?;
    let failed = c.get(&format!("/api/v1/nodes/{}", c.name("none"))).await?.fails(404, "NotFound")?;
    is(&failed, "/message", format!("nodes \"{}\" not found", c.name("none")))?;
    for method in [Method::PUT, Method::PATCH, Method::DELETE] {
        let path = c.path("v1/configmaps/none");
        let content_type =
            if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let body = if method == Method::DELETE { json!({}) } else { objects::config_map("none") };
        let failed =
            c.send(Call::new(method, &path).body(content_type, &body)).await?.fails(404, "NotFound")?;
        is(&failed, "/details/name", "none")?;
    }
    Ok(())
}

async fn unknown_resource(c: &Ctx) -> Result<()> {
    for path in [&c.path("v1/nothings"), &c.path("apps/v1/nothings/a"), "/api/v1/nothings"] {
        c.get(path).await?.fails(404, "NotFound")?;
    }
    c.get(&c.path("v1/configmaps/a/nothing")).await?.fails(404, "NotFound").map(drop)
}

async fn unknown_group_and_path(c: &Ctx) -> Result<()> {
    for path in ["/apis/nothing.example.com/v1/things", "/apis/apps/v9/deployments", "/nothing"] {
        let reply = c.get(path).await?;
        ensure!(reply.status == 404, "{path}: {}", reply.status);
    }
    Ok(())
}

async fn subresources_of_other_kinds(c: &Ctx) -> Result<()> {
    let (path, made) = c.config_map("a").await?;
    let binding = json!({"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "n"}});
    c.post(&format!("{path}/binding"), &binding).await?.fails(404, "NotFound")?;
    c.put(&format!("{path}/finalize"), &made).await?.fails(404, "NotFound")?;
    c.put(&format!("{path}/status"), &made).await?.fails(404, "NotFound")?;
    c.get(&format!("{path}/nonsense")).await?.fails(404, "NotFound").map(drop)
}

async fn method_not_allowed(c: &Ctx) -> Result<()> {
    let path = c.path("v1/configmaps/a");
    c.post(&path, &objects::config_map("a")).await?.fails(405, "MethodNotAllowed")?;
    let path = c.path("v1/configmaps");
    c.put(&path, &objects::config_map("a")).await?.fails(405, "MethodNotAllowed")?;
    c.merge(&path, json!({})).await?.fails(405, "MethodNotAllowed")?;
    // Objects are created in one namespace, not in all.
    c.post("/api/v1/configmaps", &objects::config_map("a")).await?.fails(405, "MethodNotAllowed")?;
    // Namespaces cannot be deleted as a collection.
    c.delete("/api/v1/namespaces").await?.fails(405, "MethodNotAllowed")?;
    c.get(&c.path("v1/pods/a/binding")).await?.fails(405, "MethodNotAllowed").map(drop)
}

async fn unsupported_body_type(c: &Ctx) -> Result<()> {
    let path = c.path("v1/configmaps");
    let call = Call::new(Method::POST, &path).text("text/plain", "hello");
    c.send(call).await?.fails(415, "UnsupportedMediaType").map(drop)
}

async fn unsupported_patch_type(c: &Ctx) -> Result<()> {
    let (path, _) = c.config_map("a").await?;
    let call = Call::new(Method::PATCH, &path).body("application/json", &json!({}));
    c.send(call).await?.fails(415, "UnsupportedMediaType")?;
    // Lists of custom resources have no merge keys.
    let (path, _) = c.make_widget("a").await?;
    c.strategic(&path, json!({"spec": {"size": 4}})).await?.fails(415, "UnsupportedMediaType").map(drop)
}

async fn not_acceptable(c: &Ctx) -> Result<()> {
    let (path, _) = c.config_map("a").await?;
    c.get_as(&path, "application/xml").await?.fails(406, "NotAcceptable")?;
    c.get_as(&path, "application/xml, application/json").await?.ok(200)?;
    c.get_as(&path, "*/*").await?.ok(200).map(drop)
}

async fn malformed_json(c: &Ctx) -> Result<()> {
    let path = c.path("v1/configmaps");
    for body in ["{bad", "", "[]", "{\"metadata\": {\"name\": \"a\"}"] {
        let call = Call::new(Method::POST, &path).text("application/json", body);
        c.send(call).await?.fails(400, "BadRequest")?;
    }
    let path = c.widgets().await?;
    let call = Call::new(Method::POST, &path).text("application/json", "{bad");
    c.send(call).await?.fails(400, "BadRequest").map(drop)
}

async fn body_of_another_kind(c: &Ctx) -> Result<()> {
    let secret = with(objects::config_map("a"), json!({"kind": "Secret"}));
    c.post(&c.path("v1/configmaps"), &secret).await?.fails(400, "BadRequest")?;
    let gadget = with(c.widget("a"), json!({"kind": "Gadget"}));
    c.post(&c.widgets().await?, &gadget).await?.invalid(&["kind"]).map(drop)
}

async fn body_of_another_version(c: &Ctx) -> Result<()> {
    let v2 = with(objects::config_map("a"), json!({"apiVersion": "v2"}));
    c.post(&c.path("v1/configmaps"), &v2).await?.fails(400, "BadRequest")?;
    let v2 = with(c.widget("a"), json!({"apiVersion": format!("{}/v2", c.run.group())}));
    c.post(&c.widgets().await?, &v2).await?.fails(400, "BadRequest").map(drop)
}

async fn wrong_types_in_the_body(c: &Ctx) -> Result<()> {
    let number = with(objects::config_map("a"), json!({"data": {"a": 5}}));
    c.post(&c.path("v1/configmaps"), &number).await?.fails(400, "BadRequest")?;
    let text = with(objects::pod("a"), json!({"spec": {"containers": "none"}}));
    c.post(&c.path("v1/pods"), &text).await?.fails(400, "BadRequest")?;
    let label = with(objects::node(&c.name("a"), c.ns()), json!({"metadata": {"labels": {"a": true}}}));
    c.post("/api/v1/nodes", &label).await?.fails(400, "BadRequest")?;
    let (path, _) = c.node("b").await?;
    c.merge(&path, json!({"spec": {"unschedulable": "yes"}})).await?.invalid(&["patch"])?;
    // Metadata is typed in custom resources too.
    let widget = with(c.widget("a"), json!({"metadata": {"labels": {"a": 5}}}));
    c.post(&c.widgets().await?, &widget).await?.fails(400, "BadRequest").map(drop)
}

async fn unknown_fields_are_dropped(c: &Ctx) -> Result<()> {
    for mode in ["", "?fieldValidation=Ignore", "?fieldValidation=Warn"] {
        let extra = json!({"extra": 1, "metadata": {"name": null, "generateName": "a-", "extra": 1}});
        let path = format!("{}{mode}", c.path("v1/configmaps"));
        let made = c.create(&path, with(objects::config_map("a"), extra)).await?;
        absent(&made, "/extra")?;
        absent(&made, "/metadata/extra")?;
    }
    let nested =
        with(objects::deployment("a"), json!({"spec": {"template": {"spec": {"extra": {"a": [1]}}}}}));
    absent(&c.create(&c.path("apps/v1/deployments"), nested).await?, "/spec/template/spec/extra")
}

async fn strict_validation_refuses_unknown_fields(c: &Ctx) -> Result<()> {
    let path = format!("{}?fieldValidation=Strict", c.path("v1/configmaps"));
    let failed = c.post(&path, &with(objects::config_map("a"), json!({"extra": 1}))).await?;
    let failed = failed.fails(400, "BadRequest")?;
    ensure!(failed["message"].as_str().is_some_and(|m| m.contains("unknown field \"extra\"")), "{failed}");
    c.create(&path, objects::config_map("a")).await?;
    let (path, _) = c.node("b").await?;
    let patch = json!({"spec": {"extra": true}});
    let strict = format!("{path}?fieldValidation=Strict");
    let failed = c.merge(&strict, patch).await?;
    failed.fails(422, "Invalid").map(drop)
}

async fn strict_validation_refuses_duplicate_fields(c: &Ctx) -> Result<()> {
    let path = c.path("v1/configmaps");
    let body = r#"{"metadata": {"name": "a", "name": "b"}}"#;
    let strict = format!("{path}?fieldValidation=Strict");
    let failed = c.send(Call::new(Method::POST, &strict).text("application/json", body)).await?;
    failed.fails(400, "BadRequest")?;
    let made = c.send(Call::new(Method::POST, &path).text("application/json", body)).await?.ok(201)?;
    is(&made, "/metadata/name", "b")
}

async fn unknown_field_validation(c: &Ctx) -> Result<()> {
    let path = format!("{}?fieldValidation=Nope", c.path("v1/configmaps"));
    let failed = c.post(&path, &objects::config_map("a")).await?.invalid(&["fieldValidation"])?;
    is(&failed, "/details/kind", "CreateOptions")?;
    is(&failed, "/details/group", "meta.k8s.io")
}

async fn yaml_is_accepted(c: &Ctx) -> Result<()> {
    let path = c.path("v1/configmaps");
    let body = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndata: {a: \"1\"}\n";
    let made = c.send(Call::new(Method::POST, &path).text("application/yaml", body)).await?.ok(201)?;
    is(&made, "/data/a", "1")
}

async fn unknown_query_parameters_are_ignored(c: &Ctx) -> Result<()> {
    c.create(&format!("{}?nothing=1&fieldManager=me", c.path("v1/configmaps")), objects::config_map("a"))
        .await?;
    c.read(&format!("{}?pretty=false&nothing=1", c.path("v1/configmaps/a"))).await?;
    c.read(&format!("{}?nothing=1", c.path("v1/configmaps"))).await.map(drop)
}
