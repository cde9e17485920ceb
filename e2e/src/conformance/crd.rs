//! Custom resource definitions: lifecycle, discovery and validation.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::check::{absent, condition, is, list, present};
use super::ctx::{CRDS, Ctx, PATIENCE, established, eventually};
use super::objects::with;

cases!["crd":
    becomes_established,
    is_defaulted,
    fields_can_be_made_selectable,
    appears_in_discovery,
    kind_is_unknown_before,
    name_must_match,
    needs_a_structural_schema,
    needs_one_storage_version,
    refuses_a_change_of_scope,
    second_of_the_same_name,
    deletion_takes_its_objects,
    new_schema_takes_effect,
    defaults_apply_to_what_is_stored,
    new_pruning_applies_to_what_is_stored,
    unserved_version_is_unknown,
    two_versions_serve_the_same_objects,
    names_in_use_are_not_accepted,
];

fn definition(c: &Ctx, plural: &str, kind: &str) -> Value {
    let schema = json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {"a": {"type": "integer"}}},
    }});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{}", group(c))},
        "spec": {
            "group": group(c), "scope": "Cluster",
            "names": {"plural": plural, "kind": kind},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    })
}

async fn fields_can_be_made_selectable(c: &Ctx) -> Result<()> {
    let mut crd = definition(c, "things", "Thing");
    crd["spec"]["versions"][0]["selectableFields"] = json!([{"jsonPath": ".spec.a"}]);
    let path = define(c, crd).await?;
    for (name, a) in [("one", 1), ("two", 2)] {
        c.create(&path, thing(c, name, json!({"a": a}))).await?;
    }
    let found = c.read(&format!("{path}?fieldSelector=spec.a=2")).await?;
    ensure!(super::check::names(&found)? == ["two"], "{found}");
    c.get(&format!("{path}?fieldSelector=spec.b=2")).await?.fails(400, "BadRequest").map(drop)
}

fn group(c: &Ctx) -> String {
    format!("{}.example.org", c.id)
}

fn at(c: &Ctx, plural: &str) -> String {
    format!("{CRDS}/{plural}.{}", group(c))
}

/// Creates the definition, waits until it is served, and returns the path of its objects.
async fn define(c: &Ctx, body: Value) -> Result<String> {
    let made = c.create(CRDS, body).await?;
    established(c.client(), super::check::text(&made, "/metadata/name")?).await?;
    let plural = super::check::text(&made, "/spec/names/plural")?;
    Ok(format!("/apis/{}/v1/{plural}", group(c)))
}

fn thing(c: &Ctx, name: &str, spec: Value) -> Value {
    let mut thing = json!({
        "apiVersion": format!("{}/v1", group(c)), "kind": "Thing", "metadata": {"name": name},
    });
    thing["spec"] = spec;
    thing
}

async fn becomes_established(c: &Ctx) -> Result<()> {
    let made = c.create(CRDS, definition(c, "things", "Thing")).await?;
    is(&made, "/metadata/generation", 1)?;
    let path = at(c, "things");
    let ready = |crd: &Value, kind: &str| condition(crd, kind).is_some_and(|c| c["status"] == "True");
    let crd = c.until(&path, |crd| ready(crd, "Established")).await?;
    ensure!(ready(&crd, "NamesAccepted"), "{}", crd["status"]);
    is(&crd, "/status/acceptedNames/plural", "things")?;
    is(&crd, "/status/acceptedNames/kind", "Thing")?;
    is(&crd, "/status/storedVersions", json!(["v1"]))
}

async fn is_defaulted(c: &Ctx) -> Result<()> {
    let made = c.create(CRDS, definition(c, "things", "Thing")).await?;
    is(&made, "/spec/names/singular", "thing")?;
    is(&made, "/spec/names/listKind", "ThingList")?;
    is(&made, "/spec/conversion/strategy", "None")
}

async fn appears_in_discovery(c: &Ctx) -> Result<()> {
    define(c, with(definition(c, "things", "Thing"), json!({"spec": {"names": {"shortNames": ["tg"]}}})))
        .await?;
    let group = group(c);
    let found = eventually(PATIENCE, || async { c.read(&format!("/apis/{group}/v1")).await }).await?;
    is(&found, "/kind", "APIResourceList")?;
    is(&found, "/groupVersion", format!("{group}/v1"))?;
    let thing = list(&found, "/resources")?.iter().find(|r| r["name"] == "things");
    let thing = thing.cloned().unwrap_or_default();
    is(&thing, "/kind", "Thing")?;
    is(&thing, "/namespaced", false)?;
    is(&thing, "/singularName", "thing")?;
    is(&thing, "/shortNames", json!(["tg"]))?;
    for verb in ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"] {
        ensure!(list(&thing, "/verbs")?.iter().any(|v| v == verb), "no {verb} in {thing}");
    }
    ensure!(
        !list(&found, "/resources")?.iter().any(|r| r["name"] == "things/status"),
        "a status subresource that is not defined"
    );
    let groups = c.until("/apis", |groups| groups.to_string().contains(&group)).await?;
    let mine = list(&groups, "/groups")?.iter().find(|g| g["name"] == group).cloned().unwrap_or_default();
    is(&mine, "/preferredVersion/version", "v1")
}

async fn kind_is_unknown_before(c: &Ctx) -> Result<()> {
    let path = format!("/apis/{}/v1/things", group(c));
    ensure!(c.get(&path).await?.status == 404);
    ensure!(c.post(&path, &thing(c, "a", json!({}))).await?.status == 404);
    Ok(())
}

async fn name_must_match(c: &Ctx) -> Result<()> {
    let wrong =
        with(definition(c, "things", "Thing"), json!({"metadata": {"name": format!("other.{}", group(c))}}));
    c.post(CRDS, &wrong).await?.invalid(&["metadata.name"])?;
    let wrong = with(definition(c, "things", "Thing"), json!({"spec": {"scope": "Everywhere"}}));
    c.post(CRDS, &wrong).await?.invalid(&["spec.scope"]).map(drop)
}

async fn needs_a_structural_schema(c: &Ctx) -> Result<()> {
    let mut bare = definition(c, "things", "Thing");
    bare["spec"]["versions"][0]["schema"] = Value::Null;
    let failed = c.post(CRDS, &bare).await?.fails(422, "Invalid")?;
    ensure!(
        failed["details"]["causes"][0]["field"].as_str().is_some_and(|f| f.contains("openAPIV3Schema")),
        "{failed}"
    );
    let mut typeless = definition(c, "things", "Thing");
    typeless["spec"]["versions"][0]["schema"]["openAPIV3Schema"] =
        json!({"type": "object", "properties": {"a": {}}});
    c.post(CRDS, &typeless).await?.fails(422, "Invalid").map(drop)
}

async fn needs_one_storage_version(c: &Ctx) -> Result<()> {
    let mut none = definition(c, "things", "Thing");
    none["spec"]["versions"][0]["storage"] = false.into();
    c.post(CRDS, &none).await?.fails(422, "Invalid").map(drop)
}

async fn refuses_a_change_of_scope(c: &Ctx) -> Result<()> {
    define(c, definition(c, "things", "Thing")).await?;
    let failed = c.merge(&at(c, "things"), json!({"spec": {"scope": "Namespaced"}})).await?;
    failed.invalid(&["spec.scope"]).map(drop)
}

async fn second_of_the_same_name(c: &Ctx) -> Result<()> {
    c.create(CRDS, definition(c, "things", "Thing")).await?;
    c.post(CRDS, &definition(c, "things", "Thing")).await?.fails(409, "AlreadyExists").map(drop)
}

async fn deletion_takes_its_objects(c: &Ctx) -> Result<()> {
    let path = define(c, definition(c, "things", "Thing")).await?;
    c.create(&path, thing(c, "a", json!({}))).await?;
    let answer = c.delete(&at(c, "things")).await?.ok(200)?;
    is(&answer, "/metadata/finalizers", json!(["customresourcecleanup.apiextensions.k8s.io"]))?;
    c.gone(&at(c, "things")).await?;
    eventually(PATIENCE, || async {
        let reply = c.get(&path).await?;
        ensure!(reply.status == 404, "{}", reply.status);
        Ok(())
    })
    .await?;
    // A definition created again has none of the old objects.
    let path = define(c, definition(c, "things", "Thing")).await?;
    is(&c.read(&path).await?, "/items", json!([]))
}

async fn new_schema_takes_effect(c: &Ctx) -> Result<()> {
    let path = define(c, definition(c, "things", "Thing")).await?;
    c.create(&path, thing(c, "a", json!({"a": 50}))).await?;
    let schema = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/a";
    let patch = json!([{"op": "add", "path": format!("{schema}/maximum"), "value": 9}]);
    let changed = c.json_patch(&at(c, "things"), patch).await?.ok(200)?;
    is(&changed, "/metadata/generation", 2)?;
    eventually(PATIENCE, || async {
        let reply = c.post(&format!("{path}?dryRun=All"), &thing(c, "b", json!({"a": 50}))).await?;
        reply.invalid(&["spec.a"]).map(drop)
    })
    .await?;
    // Objects stored before stay readable, and unchanged fields stay valid.
    is(&c.read(&format!("{path}/a")).await?, "/spec/a", 50)?;
    c.merge(&format!("{path}/a"), json!({"metadata": {"labels": {"l": "1"}}})).await?.ok(200)?;
    c.merge(&format!("{path}/a"), json!({"spec": {"a": 51}})).await?.invalid(&["spec.a"]).map(drop)
}

async fn defaults_apply_to_what_is_stored(c: &Ctx) -> Result<()> {
    let path = define(c, definition(c, "things", "Thing")).await?;
    let made = c.create(&path, thing(c, "a", json!({}))).await?;
    absent(&made, "/spec/a")?;
    let schema = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/a";
    let patch = json!([{"op": "add", "path": format!("{schema}/default"), "value": 7}]);
    c.json_patch(&at(c, "things"), patch).await?.ok(200)?;
    let read = c.until(&format!("{path}/a"), |a| a["spec"]["a"] == 7).await?;
    // Reading changes nothing.
    is(&read, "/metadata/resourceVersion", made["metadata"]["resourceVersion"].clone())?;
    is(&read, "/metadata/generation", 1)
}

async fn new_pruning_applies_to_what_is_stored(c: &Ctx) -> Result<()> {
    let path = define(c, definition(c, "things", "Thing")).await?;
    c.create(&path, thing(c, "a", json!({"a": 5}))).await?;
    let schema = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
    let patch = json!([{"op": "remove", "path": format!("{schema}/a")}]);
    c.json_patch(&at(c, "things"), patch).await?.ok(200)?;
    c.until(&format!("{path}/a"), |a| a.pointer("/spec/a").is_none()).await.map(drop)
}

/// The definition with a second version.
fn two_versions(c: &Ctx, served: bool) -> Value {
    let mut body = definition(c, "things", "Thing");
    let mut second = body["spec"]["versions"][0].clone();
    second["name"] = "v1alpha1".into();
    second["storage"] = false.into();
    second["served"] = served.into();
    if let Some(versions) = body["spec"]["versions"].as_array_mut() {
        versions.push(second);
    }
    body
}

async fn unserved_version_is_unknown(c: &Ctx) -> Result<()> {
    define(c, two_versions(c, false)).await?;
    let reply = c.get(&format!("/apis/{}/v1alpha1/things", group(c))).await?;
    ensure!(reply.status == 404, "{}", reply.status);
    Ok(())
}

async fn two_versions_serve_the_same_objects(c: &Ctx) -> Result<()> {
    let path = define(c, two_versions(c, true)).await?;
    let made = c.create(&path, thing(c, "a", json!({"a": 1}))).await?;
    let other = format!("/apis/{}/v1alpha1/things/a", group(c));
    let read = c.read(&other).await?;
    is(&read, "/apiVersion", format!("{}/v1alpha1", group(c)))?;
    is(&read, "/metadata/uid", made["metadata"]["uid"].clone())?;
    is(&read, "/spec/a", 1)?;
    c.merge(&other, json!({"spec": {"a": 2}})).await?.ok(200)?;
    is(&c.read(&format!("{path}/a")).await?, "/spec/a", 2)
}

async fn names_in_use_are_not_accepted(c: &Ctx) -> Result<()> {
    define(c, definition(c, "things", "Thing")).await?;
    c.create(CRDS, definition(c, "stuff", "Thing")).await?;
    let second = c.until(&at(c, "stuff"), |crd| condition(crd, "NamesAccepted").is_some()).await?;
    let accepted = condition(&second, "NamesAccepted").cloned().unwrap_or_default();
    is(&accepted, "/status", "False")?;
    present(&accepted, "/reason")?;
    let ready = condition(&second, "Established").is_some_and(|c| c["status"] == "True");
    ensure!(!ready, "a kind that is taken was established again");
    Ok(())
}
