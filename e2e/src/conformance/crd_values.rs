//! Custom resources against their schema: validation, defaults, pruning.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::check::{absent, is};
use super::ctx::Ctx;
use super::objects::with;

cases!["crd_values":
    types,
    required,
    numbers_in_bounds,
    enumerations,
    lengths,
    patterns,
    elements_are_validated,
    map_values_are_validated,
    several_failures_at_once,
    defaults_on_create,
    defaults_in_elements,
    defaults_on_update,
    null_takes_the_default,
    nullable,
    int_or_string,
    whole_numbers_are_integers,
    numbers_keep_their_form,
    pruning,
    preserved_fields,
    strict_validation,
    update_is_validated,
    patch_is_validated,
    metadata_is_pruned,
    cluster_scope,
    name_is_validated,
    kind_is_filled_in_nowhere,
];

/// Creates a widget with this spec and a size.
async fn post(c: &Ctx, spec: Value) -> Result<super::http::Reply> {
    let path = c.widgets().await?;
    let unnamed = json!({"metadata": {"name": null, "generateName": "w-"}});
    c.post(&path, &with(with(c.widget(""), unnamed), json!({"spec": spec}))).await
}

async fn types(c: &Ctx) -> Result<()> {
    for (field, value) in [
        ("size", json!("three")),
        ("size", json!(1.5)),
        ("size", json!(true)),
        ("plain", json!(5)),
        ("on", json!("yes")),
        ("ratio", json!("1.5")),
        ("list", json!("x")),
        ("list", json!({})),
        ("deep", json!([])),
        ("port", json!(true)),
    ] {
        let failed = post(c, json!({field: value})).await?.fails(422, "Invalid")?;
        let causes = super::check::list(&failed, "/details/causes")?;
        let named = causes.iter().any(|cause| cause["field"] == format!("spec.{field}"));
        ensure!(named, "{field}={value}: {failed}");
        is(&failed, "/details/kind", "Widget")?;
    }
    let spec = with(c.widget("a"), json!({"spec": "text"}));
    c.post(&c.widgets().await?, &spec).await?.invalid(&["spec"]).map(drop)
}

async fn required(c: &Ctx) -> Result<()> {
    let path = c.widgets().await?;
    let failed = c.post(&path, &with(c.widget("a"), json!({"spec": {"size": null}}))).await?;
    let failed = failed.invalid(&["spec.size"])?;
    is(&failed, "/details/causes/0/reason", "FieldValueRequired")?;
    is(&failed, "/details/name", "a")?;
    c.post(&path, &with(c.widget("a"), json!({"spec": null}))).await?.invalid(&["spec"])?;
    post(c, json!({"parts": [{"count": 1}]})).await?.invalid(&["spec.parts[0].id"]).map(drop)
}

async fn numbers_in_bounds(c: &Ctx) -> Result<()> {
    for size in [0, -1, 11] {
        let failed = post(c, json!({"size": size})).await?.invalid(&["spec.size"])?;
        is(&failed, "/details/causes/0/reason", "FieldValueInvalid")?;
    }
    for size in [1, 10] {
        post(c, json!({"size": size})).await?.ok(201)?;
    }
    Ok(())
}

async fn enumerations(c: &Ctx) -> Result<()> {
    let failed = post(c, json!({"color": "blue"})).await?.invalid(&["spec.color"])?;
    is(&failed, "/details/causes/0/reason", "FieldValueNotSupported")?;
    is(&post(c, json!({"color": "green"})).await?.ok(201)?, "/spec/color", "green")
}

async fn lengths(c: &Ctx) -> Result<()> {
    let failed = post(c, json!({"note": "123456"})).await?.invalid(&["spec.note"])?;
    is(&failed, "/details/causes/0/reason", "FieldValueTooLong")?;
    // Characters, not bytes.
    post(c, json!({"note": "\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}"})).await?.ok(201)?;
    let failed = post(c, json!({"list": ["a", "b", "c"]})).await?.invalid(&["spec.list"])?;
    is(&failed, "/details/causes/0/reason", "FieldValueTooMany")
}

async fn patterns(c: &Ctx) -> Result<()> {
    post(c, json!({"code": "abc"})).await?.ok(201)?;
    let failed = post(c, json!({"code": "ABC"})).await?.invalid(&["spec.code"])?;
    is(&failed, "/details/causes/0/reason", "FieldValueInvalid")
}

async fn elements_are_validated(c: &Ctx) -> Result<()> {
    post(c, json!({"list": ["a", 5]})).await?.invalid(&["spec.list[1]"])?;
    post(c, json!({"parts": [{"id": "x"}, {"id": "y", "count": "many"}]}))
        .await?
        .invalid(&["spec.parts[1].count"])
        .map(drop)
}

async fn map_values_are_validated(c: &Ctx) -> Result<()> {
    is(&post(c, json!({"map": {"a": 1, "b": 2}})).await?.ok(201)?, "/spec/map", json!({"a": 1, "b": 2}))?;
    post(c, json!({"map": {"a": "x"}})).await?.invalid(&["spec.map.a"]).map(drop)
}

async fn several_failures_at_once(c: &Ctx) -> Result<()> {
    post(c, json!({"size": 99, "color": "blue"})).await?.invalid(&["spec.size", "spec.color"]).map(drop)
}

async fn defaults_on_create(c: &Ctx) -> Result<()> {
    let made = post(c, json!({})).await?.ok(201)?;
    is(&made, "/spec", json!({"size": 3, "color": "red", "deep": {"level": 1}}))?;
    // Defaults apply only below objects that exist.
    is(&post(c, json!({"deep": {"level": 5}})).await?.ok(201)?, "/spec/deep", json!({"level": 5}))?;
    is(&post(c, json!({"deep": {}})).await?.ok(201)?, "/spec/deep", json!({"level": 1}))
}

async fn defaults_in_elements(c: &Ctx) -> Result<()> {
    let made = post(c, json!({"parts": [{"id": "x"}, {"id": "y", "count": 1}]})).await?.ok(201)?;
    is(&made, "/spec/parts", json!([{"id": "x", "count": 7}, {"id": "y", "count": 1}]))
}

async fn defaults_on_update(c: &Ctx) -> Result<()> {
    let (path, made) = c.make_widget("a").await?;
    let put = c
        .put(&path, &with(made, json!({"spec": {"color": null, "deep": null, "size": 4}})))
        .await?
        .ok(200)?;
    is(&put, "/spec", json!({"size": 4, "color": "red", "deep": {"level": 1}}))?;
    let patched = c.merge(&path, json!({"spec": {"color": null}})).await?.ok(200)?;
    is(&patched, "/spec/color", "red")
}

async fn null_takes_the_default(c: &Ctx) -> Result<()> {
    let path = c.widgets().await?;
    let body = |name: &str, field: &str| {
        let mut widget = c.widget(name);
        widget["spec"][field] = Value::Null;
        widget
    };
    is(&c.create(&path, body("a", "color")).await?, "/spec/color", "red")?;
    // Null without a default and not nullable is dropped.
    absent(&c.create(&path, body("b", "plain")).await?, "/spec/plain")?;
    c.post(&path, &body("c", "size")).await?.invalid(&["spec.size"]).map(drop)
}

async fn nullable(c: &Ctx) -> Result<()> {
    let mut widget = c.widget("a");
    widget["spec"]["note"] = Value::Null;
    let made = c.create(&c.widgets().await?, widget).await?;
    ensure!(made.pointer("/spec/note") == Some(&Value::Null), "null was not kept: {}", made["spec"]);
    Ok(())
}

async fn int_or_string(c: &Ctx) -> Result<()> {
    is(&post(c, json!({"port": 80})).await?.ok(201)?, "/spec/port", 80)?;
    is(&post(c, json!({"port": "http"})).await?.ok(201)?, "/spec/port", "http")?;
    post(c, json!({"port": 1.5})).await?.fails(422, "Invalid").map(drop)
}

async fn whole_numbers_are_integers(c: &Ctx) -> Result<()> {
    let path = c.widgets().await?;
    let text = c.widget("a").to_string().replace(":3", ":3.0");
    let call = super::http::Call::new(http::Method::POST, &path).text("application/json", &text);
    let made = c.send(call).await?.ok(201)?;
    ensure!(made["spec"]["size"].as_f64() == Some(3.0), "{}", made["spec"]["size"]);
    Ok(())
}

async fn numbers_keep_their_form(c: &Ctx) -> Result<()> {
    let made = post(c, json!({"ratio": 0.25, "free": {"big": 9_007_199_254_740_993_i64, "f": 1.5}}))
        .await?
        .ok(201)?;
    is(&made, "/spec/ratio", 0.25)?;
    is(&made, "/spec/free/big", 9_007_199_254_740_993_i64)?;
    is(&made, "/spec/free/f", 1.5)?;
    is(&post(c, json!({"ratio": 2})).await?.ok(201)?, "/spec/ratio", 2)
}

async fn pruning(c: &Ctx) -> Result<()> {
    let path = c.widgets().await?;
    let extra = json!({
        "extra": 1, "spec": {"extra": 1, "deep": {"extra": 1}, "parts": [{"id": "x", "extra": 1}]},
    });
    let made = c.create(&path, with(c.widget("a"), extra)).await?;
    for field in ["/extra", "/spec/extra", "/spec/deep/extra", "/spec/parts/0/extra"] {
        absent(&made, field)?;
    }
    is(&made, "/spec/parts/0/id", "x")
}

async fn preserved_fields(c: &Ctx) -> Result<()> {
    let free = json!({"a": {"b": [1, "x", null, {"c": true}]}, "n": null});
    is(&post(c, json!({"free": {"a": free["a"]}})).await?.ok(201)?, "/spec/free/a", free["a"].clone())?;
    let name = c.name("g");
    let gadget = with(c.gadget(&name), json!({"any": {"thing": [1, 2]}, "spec": {"deep": {"er": "x"}}}));
    let made = c.create(&c.gadgets().await?, gadget).await?;
    is(&made, "/any", json!({"thing": [1, 2]}))?;
    is(&made, "/spec/deep/er", "x")
}

async fn strict_validation(c: &Ctx) -> Result<()> {
    let path = c.widgets().await?;
    let strict = format!("{path}?fieldValidation=Strict");
    let extra = with(c.widget("a"), json!({"spec": {"extra": 1}}));
    let failed = c.post(&strict, &extra).await?.fails(400, "BadRequest")?;
    ensure!(
        failed["message"].as_str().is_some_and(|m| m.contains("unknown field \"spec.extra\"")),
        "{failed}"
    );
    c.create(&strict, c.widget("a")).await?;
    let failed = c.merge(&format!("{path}/a?fieldValidation=Strict"), json!({"spec": {"extra": 1}})).await?;
    failed.fails(422, "Invalid")?;
    let free = with(c.widget("b"), json!({"spec": {"free": {"any": 1}}}));
    c.create(&strict, free).await.map(drop)
}

async fn update_is_validated(c: &Ctx) -> Result<()> {
    let (path, made) = c.make_widget("a").await?;
    c.put(&path, &with(made.clone(), json!({"spec": {"size": 99}}))).await?.invalid(&["spec.size"])?;
    c.put(&path, &with(made, json!({"spec": null}))).await?.invalid(&["spec"])?;
    is(&c.read(&path).await?, "/spec/size", 3)
}

async fn patch_is_validated(c: &Ctx) -> Result<()> {
    let (path, _) = c.make_widget("a").await?;
    c.merge(&path, json!({"spec": {"size": "x"}})).await?.invalid(&["spec.size"])?;
    c.json_patch(&path, json!([{"op": "remove", "path": "/spec/size"}])).await?.invalid(&["spec.size"])?;
    let patched = c.merge(&path, json!({"spec": {"extra": 1, "size": 4}})).await?.ok(200)?;
    absent(&patched, "/spec/extra")
}

async fn metadata_is_pruned(c: &Ctx) -> Result<()> {
    let body = with(c.widget("a"), json!({"metadata": {"extra": 1, "labels": {"l": "1"}}}));
    let made = c.create(&c.widgets().await?, body).await?;
    absent(&made, "/metadata/extra")?;
    is(&made, "/metadata/labels/l", "1")
}

async fn cluster_scope(c: &Ctx) -> Result<()> {
    let (path, name) = (c.gadgets().await?, c.name("g"));
    let made = c.create(&path, c.gadget(&name)).await?;
    absent(&made, "/metadata/namespace")?;
    is(&made, "/metadata/generation", 1)?;
    let inside = c.path(&format!("{}/v1/gadgets", c.run.group()));
    let reply = c.get(&inside).await?;
    ensure!(reply.status == 404, "a cluster-scoped kind is in a namespace: {}", reply.status);
    // Without a status subresource, everything but metadata counts as spec.
    let patched = c.merge(&format!("{path}/{name}"), json!({"status": {"a": 1}})).await?.ok(200)?;
    is(&patched, "/metadata/generation", 2)?;
    is(&patched, "/status/a", 1)?;
    // A namespaced kind cannot be created at cluster scope.
    c.widgets().await?;
    let outside = format!("/apis/{}/v1/widgets", c.run.group());
    let reply = c.post(&outside, &c.widget("a")).await?;
    ensure!(reply.status == 404, "{}: {}", reply.status, reply.body);
    c.read(&outside).await.map(drop)
}

async fn name_is_validated(c: &Ctx) -> Result<()> {
    let path = c.widgets().await?;
    for name in ["Upper", "a_b", "-a"] {
        c.post(&path, &c.widget(name)).await?.invalid(&["metadata.name"])?;
    }
    c.create(&path, c.widget("a.b-c")).await.map(drop)
}

async fn kind_is_filled_in_nowhere(c: &Ctx) -> Result<()> {
    // Unlike for built-in kinds.
    let path = c.widgets().await?;
    let kindless = with(c.widget("a"), json!({"kind": null}));
    c.post(&path, &kindless).await?.fails(400, "BadRequest")?;
    let versionless = with(c.widget("a"), json!({"apiVersion": null}));
    c.post(&path, &versionless).await?.fails(400, "BadRequest").map(drop)
}
