//! Creating objects: what the server fills in and what it refuses.

use anyhow::{Result, ensure};
use serde_json::json;

use super::check::{absent, is, present, text};
use super::ctx::Ctx;
use super::objects::{self, with};

cases!["create":
    sets_metadata,
    answers_with_kind_and_version,
    has_generation_by_kind,
    makes_a_name_from_generate_name,
    refuses_a_second_of_the_same_name,
    needs_a_name,
    refuses_invalid_names,
    refuses_another_namespace_in_the_body,
    takes_the_namespace_of_the_path,
    needs_the_namespace_to_exist,
    ignores_identity_given_by_the_client,
    refuses_a_resource_version,
    drops_status_of_pods_and_custom_resources,
    keeps_status_of_nodes,
    dry_run_persists_nothing,
    refuses_bad_label_values,
    refuses_bad_annotation_keys,
    keeps_labels_annotations_and_finalizers,
    refuses_finalizers_without_a_domain,
    refuses_owner_references_without_uid,
    refuses_two_controllers,
    drops_empty_maps_and_nulls,
];

async fn sets_metadata(c: &Ctx) -> Result<()> {
    let (path, made) = c.config_map("a").await?;
    let uid = text(&made, "/metadata/uid")?;
    ensure!(uid.len() == 36 && uid.matches('-').count() == 4, "the uid {uid} is no UUID");
    present(&made, "/metadata/resourceVersion")?;
    let created = text(&made, "/metadata/creationTimestamp")?;
    ensure!(created.len() == 20 && created.ends_with('Z'), "{created} is not whole seconds in UTC");
    is(&made, "/metadata/namespace", c.ns())?;
    absent(&made, "/metadata/selfLink")?;
    absent(&made, "/metadata/deletionTimestamp")?;
    let read = c.read(&path).await?;
    ensure!(read == made, "reads {read}, was made as {made}");
    Ok(())
}

async fn answers_with_kind_and_version(c: &Ctx) -> Result<()> {
    let lease = c.create(&c.path("coordination.k8s.io/v1/leases"), objects::lease("a")).await?;
    is(&lease, "/kind", "Lease")?;
    is(&lease, "/apiVersion", "coordination.k8s.io/v1")?;
    // Both may be omitted: the path determines them.
    let made = c.create(&c.path("v1/configmaps"), json!({"metadata": {"name": "b"}})).await?;
    is(&made, "/kind", "ConfigMap")?;
    is(&made, "/apiVersion", "v1")
}

async fn has_generation_by_kind(c: &Ctx) -> Result<()> {
    let (_, config_map) = c.config_map("a").await?;
    absent(&config_map, "/metadata/generation")?;
    let (_, node) = c.node("a").await?;
    absent(&node, "/metadata/generation")?;
    let (_, pod) = c.pod("a").await?;
    is(&pod, "/metadata/generation", 1)?;
    let (_, widget) = c.make_widget("a").await?;
    is(&widget, "/metadata/generation", 1)?;
    let deployment = c.create(&c.path("apps/v1/deployments"), objects::deployment("a")).await?;
    is(&deployment, "/metadata/generation", 1)?;
    let lease = c.create(&c.path("coordination.k8s.io/v1/leases"), objects::lease("a")).await?;
    absent(&lease, "/metadata/generation")?;
    let slices = c.path("discovery.k8s.io/v1/endpointslices");
    is(&c.create(&slices, objects::endpoint_slice("a")).await?, "/metadata/generation", 1)?;
    let classes = "/apis/scheduling.k8s.io/v1/priorityclasses";
    let class = c.create(classes, objects::priority_class(&c.name("a"), 5)).await?;
    is(&class, "/metadata/generation", 1)?;
    let service = c.create(&c.path("v1/services"), objects::service("a")).await?;
    absent(&service, "/metadata/generation")?;
    let account = json!({"metadata": {"name": "a"}});
    absent(&c.create(&c.path("v1/serviceaccounts"), account).await?, "/metadata/generation")
}

async fn makes_a_name_from_generate_name(c: &Ctx) -> Result<()> {
    let path = c.path("v1/configmaps");
    let made = c.create(&path, json!({"metadata": {"generateName": "some-"}})).await?;
    let name = text(&made, "/metadata/name")?;
    let suffix = name.strip_prefix("some-").unwrap_or_default();
    // No vowels, and no digits that look like letters.
    let plain = suffix.chars().all(|letter| "bcdfghjklmnpqrstvwxz2456789".contains(letter));
    ensure!(suffix.len() == 5 && plain, "the suffix of {name} is not five plain characters");
    is(&made, "/metadata/generateName", "some-")?;
    let named = c.create(&path, json!({"metadata": {"name": "x", "generateName": "y-"}})).await?;
    is(&named, "/metadata/name", "x")?;
    let long = format!("{}-", "n".repeat(100));
    let made = c.create(&path, json!({"metadata": {"generateName": long}})).await?;
    let name = text(&made, "/metadata/name")?;
    ensure!(name.len() == 63, "the long name {name} is not cut to 63 characters");
    Ok(())
}

async fn refuses_a_second_of_the_same_name(c: &Ctx) -> Result<()> {
    c.config_map("a").await?;
    let failed =
        c.post(&c.path("v1/configmaps"), &objects::config_map("a")).await?.fails(409, "AlreadyExists")?;
    is(&failed, "/details/kind", "configmaps")?;
    is(&failed, "/details/name", "a")?;
    absent(&failed, "/details/group")?;
    c.make_widget("a").await?;
    let failed = c.post(&c.widgets().await?, &c.widget("a")).await?.fails(409, "AlreadyExists")?;
    is(&failed, "/details/kind", "widgets")?;
    is(&failed, "/details/group", c.run.group())
}

async fn needs_a_name(c: &Ctx) -> Result<()> {
    let failed =
        c.post(&c.path("v1/configmaps"), &json!({"metadata": {}})).await?.invalid(&["metadata.name"])?;
    is(&failed, "/details/kind", "ConfigMap")?;
    is(&failed, "/details/causes/0/reason", "FieldValueRequired")?;
    let nameless = with(c.widget("a"), json!({"metadata": {"name": null}}));
    let failed = c.post(&c.widgets().await?, &nameless).await?.invalid(&["metadata.name"])?;
    is(&failed, "/details/kind", "Widget")?;
    is(&failed, "/details/group", c.run.group())
}

async fn refuses_invalid_names(c: &Ctx) -> Result<()> {
    for name in ["Upper", "under_score", "-dash", "a..b", "a/b"] {
        let failed = c.post(&c.path("v1/configmaps"), &objects::config_map(name)).await?;
        let failed = failed.invalid(&["metadata.name"])?;
        is(&failed, "/details/causes/0/reason", "FieldValueInvalid")?;
        is(&failed, "/details/name", name)?;
    }
    let long = "n".repeat(254);
    c.post(&c.path("v1/configmaps"), &objects::config_map(&long)).await?.invalid(&["metadata.name"])?;
    let node = objects::node("Not-a-node", c.ns());
    c.post("/api/v1/nodes", &node).await?.invalid(&["metadata.name"])?;
    // Names of namespaces and services are single labels without dots.
    let namespace = json!({"metadata": {"name": "with.dot"}});
    c.post("/api/v1/namespaces", &namespace).await?.invalid(&["metadata.name"])?;
    c.post(&c.path("v1/services"), &objects::service("with.dot")).await?.invalid(&["metadata.name"]).map(drop)
}

async fn refuses_another_namespace_in_the_body(c: &Ctx) -> Result<()> {
    let body = with(objects::config_map("a"), json!({"metadata": {"namespace": "default"}}));
    c.post(&c.path("v1/configmaps"), &body).await?.fails(400, "BadRequest")?;
    let widget = with(c.widget("a"), json!({"metadata": {"namespace": "default"}}));
    c.post(&c.widgets().await?, &widget).await?.fails(400, "BadRequest")?;
    // For cluster-scoped kinds the field is dropped.
    let node = with(objects::node(&c.name("a"), c.ns()), json!({"metadata": {"namespace": "default"}}));
    absent(&c.create("/api/v1/nodes", node).await?, "/metadata/namespace")
}

async fn takes_the_namespace_of_the_path(c: &Ctx) -> Result<()> {
    let body = with(objects::config_map("a"), json!({"metadata": {"namespace": c.ns()}}));
    is(&c.create(&c.path("v1/configmaps"), body).await?, "/metadata/namespace", c.ns())?;
    let (_, widget) = c.make_widget("a").await?;
    is(&widget, "/metadata/namespace", c.ns())
}

async fn needs_the_namespace_to_exist(c: &Ctx) -> Result<()> {
    let path = format!("/api/v1/namespaces/{}/configmaps", c.name("none"));
    let failed = c.post(&path, &objects::config_map("a")).await?.fails(404, "NotFound")?;
    is(&failed, "/details/kind", "namespaces")?;
    is(&failed, "/details/name", c.name("none"))?;
    c.widgets().await?;
    let path = format!("/apis/{}/v1/namespaces/{}/widgets", c.run.group(), c.name("none"));
    let failed = c.post(&path, &c.widget("a")).await?.fails(404, "NotFound")?;
    is(&failed, "/details/kind", "namespaces")
}

async fn ignores_identity_given_by_the_client(c: &Ctx) -> Result<()> {
    let uid = "11111111-2222-3333-4444-555555555555";
    let given = json!({"metadata": {
        "uid": uid, "creationTimestamp": "2001-01-01T00:00:00Z", "generation": 7,
        "deletionTimestamp": "2001-01-01T00:00:00Z", "deletionGracePeriodSeconds": 3,
    }});
    let made = c.create(&c.path("v1/configmaps"), with(objects::config_map("a"), given.clone())).await?;
    ensure!(made["metadata"]["uid"] != uid, "the client's uid was kept");
    ensure!(made["metadata"]["creationTimestamp"] != "2001-01-01T00:00:00Z", "the client's time was kept");
    absent(&made, "/metadata/deletionTimestamp")?;
    absent(&made, "/metadata/deletionGracePeriodSeconds")?;
    let widget = c.create(&c.widgets().await?, with(c.widget("a"), given)).await?;
    ensure!(widget["metadata"]["uid"] != uid, "the client's uid was kept");
    absent(&widget, "/metadata/deletionTimestamp")?;
    is(&widget, "/metadata/generation", 1)
}

async fn refuses_a_resource_version(c: &Ctx) -> Result<()> {
    let given = json!({"metadata": {"resourceVersion": "5"}});
    let body = with(objects::config_map("a"), given.clone());
    let failed = c.post(&c.path("v1/configmaps"), &body).await?;
    failed.fails(500, "").map(drop)?;
    let failed = c.post(&c.widgets().await?, &with(c.widget("a"), given)).await?;
    failed.fails(500, "").map(drop)
}

async fn drops_status_of_pods_and_custom_resources(c: &Ctx) -> Result<()> {
    let status = json!({"status": {"phase": "Running", "message": "no"}});
    let (_, pod) = c.pod_of(with(objects::pod("a"), status)).await?;
    is(&pod, "/status/phase", "Pending")?;
    absent(&pod, "/status/message")?;
    let widget = with(c.widget("a"), json!({"status": {"phase": "Up"}}));
    absent(&c.create(&c.widgets().await?, widget).await?, "/status")?;
    let namespace = json!({"metadata": {"name": c.name("b")}, "status": {"phase": "Terminating"}});
    is(&c.create("/api/v1/namespaces", namespace).await?, "/status/phase", "Active")
}

async fn keeps_status_of_nodes(c: &Ctx) -> Result<()> {
    let status = json!({"status": {
        "capacity": {"cpu": "4"}, "nodeInfo": {"bootID": "one"},
        "conditions": [{"type": "Ready", "status": "True"}],
    }});
    let name = c.name("a");
    let node = c.create("/api/v1/nodes", with(objects::node(&name, c.ns()), status)).await?;
    is(&node, "/status/capacity/cpu", "4")?;
    is(&node, "/status/nodeInfo/bootID", "one")?;
    is(&node, "/status/conditions/0/status", "True")?;
    // Without a status subresource, status is an ordinary field.
    let gadget = with(c.gadget(&c.name("g")), json!({"status": {"phase": "Up"}}));
    is(&c.create(&c.gadgets().await?, gadget).await?, "/status/phase", "Up")
}

async fn dry_run_persists_nothing(c: &Ctx) -> Result<()> {
    let path = c.path("v1/configmaps");
    let made = c.create(&format!("{path}?dryRun=All"), objects::config_map("a")).await?;
    present(&made, "/metadata/uid")?;
    present(&made, "/metadata/creationTimestamp")?;
    absent(&made, "/metadata/resourceVersion")?;
    c.get(&format!("{path}/a")).await?.fails(404, "NotFound")?;
    // Validation still applies.
    let bad = objects::config_map("BAD");
    c.post(&format!("{path}?dryRun=All"), &bad).await?.invalid(&["metadata.name"])?;
    c.post(&format!("{path}?dryRun=Some"), &objects::config_map("b")).await?.fails(422, "Invalid").map(drop)
}

async fn refuses_bad_label_values(c: &Ctx) -> Result<()> {
    let path = c.path("v1/configmaps");
    for labels in
        [json!({"a": "two words"}), json!({"a": "-x"}), json!({"a": "v".repeat(64)}), json!({"a b": "x"})]
    {
        let body = with(objects::config_map("a"), json!({"metadata": {"labels": labels}}));
        c.post(&path, &body).await?.invalid(&["metadata.labels"])?;
    }
    let body = with(
        objects::config_map("a"),
        json!({"metadata": {"labels": {"example.com/ok": "A_b.c-1", "e": ""}}}),
    );
    c.create(&path, body).await.map(drop)
}

async fn refuses_bad_annotation_keys(c: &Ctx) -> Result<()> {
    let path = c.path("v1/configmaps");
    let body = with(objects::config_map("a"), json!({"metadata": {"annotations": {"a b": "x"}}}));
    c.post(&path, &body).await?.invalid(&["metadata.annotations"])?;
    let large = "x".repeat(257 * 1024);
    let body = with(objects::config_map("a"), json!({"metadata": {"annotations": {"a": large}}}));
    let failed = c.post(&path, &body).await?.invalid(&["metadata.annotations"])?;
    is(&failed, "/details/causes/0/reason", "FieldValueTooLong")
}

async fn keeps_labels_annotations_and_finalizers(c: &Ctx) -> Result<()> {
    let metadata = json!({
        "labels": {"example.com/a": "b"}, "annotations": {"c": "any text: {} \u{e9}\n"},
        "finalizers": ["example.com/hold", "example.com/too"],
    });
    let body = with(objects::config_map("a"), json!({"metadata": metadata}));
    let made = c.create(&c.path("v1/configmaps"), body).await?;
    for field in ["labels", "annotations", "finalizers"] {
        is(&made, &format!("/metadata/{field}"), metadata[field].clone())?;
    }
    Ok(())
}

async fn refuses_finalizers_without_a_domain(c: &Ctx) -> Result<()> {
    let path = c.path("v1/configmaps");
    let body = with(objects::config_map("a"), json!({"metadata": {"finalizers": ["bare"]}}));
    c.post(&path, &body).await?.invalid(&["metadata.finalizers[0]"])?;
    let body =
        with(objects::config_map("a"), json!({"metadata": {"finalizers": ["orphan", "foregroundDeletion"]}}));
    c.post(&path, &body).await?.invalid(&["metadata.finalizers"]).map(drop)
}

async fn refuses_owner_references_without_uid(c: &Ctx) -> Result<()> {
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": "n"});
    let body = with(objects::config_map("a"), json!({"metadata": {"ownerReferences": [owner]}}));
    let failed = c.post(&c.path("v1/configmaps"), &body).await?;
    failed.invalid(&["metadata.ownerReferences.uid"])?;
    let owner = json!({"apiVersion": "v1", "kind": "", "name": "", "uid": "u"});
    let body = with(objects::config_map("a"), json!({"metadata": {"ownerReferences": [owner]}}));
    let failed = c.post(&c.path("v1/configmaps"), &body).await?;
    failed.invalid(&["metadata.ownerReferences.kind", "metadata.ownerReferences.name"]).map(drop)
}

async fn refuses_two_controllers(c: &Ctx) -> Result<()> {
    let owner = |name: &str| json!({"apiVersion": "v1", "kind": "Node", "name": name, "uid": name, "controller": true});
    let body =
        with(objects::config_map("a"), json!({"metadata": {"ownerReferences": [owner("x"), owner("y")]}}));
    c.post(&c.path("v1/configmaps"), &body).await?.invalid(&["metadata.ownerReferences"]).map(drop)
}

async fn drops_empty_maps_and_nulls(c: &Ctx) -> Result<()> {
    let body =
        json!({"metadata": {"name": "a", "labels": {}, "annotations": null, "finalizers": []}, "data": {}});
    let made = c.create(&c.path("v1/configmaps"), body).await?;
    for field in ["/metadata/labels", "/metadata/annotations", "/metadata/finalizers", "/data"] {
        absent(&made, field)?;
    }
    Ok(())
}
