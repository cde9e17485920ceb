//! Listing: order, envelopes, pagination, consistency, and other representations.

use anyhow::{Result, ensure};
use serde_json::json;

use super::check::{absent, is, list, names, present, rv, text};
use super::ctx::Ctx;
use super::objects::{self, with};

cases!["list":
    envelope_of_a_built_in_kind,
    envelope_of_a_custom_kind,
    is_sorted_by_name,
    of_nothing,
    of_all_namespaces_is_sorted_by_namespace,
    pages,
    pages_are_one_snapshot,
    selectors_go_with_pages,
    one_item_has_the_current_version,
    bad_continue_tokens,
    bad_limits,
    resource_version_zero,
    resource_version_zero_ignores_the_limit,
    at_an_exact_resource_version,
    not_older_than,
    match_without_a_resource_version,
    impossible_resource_versions,
    future_resource_versions,
    resource_version_moves_on,
    get_with_a_resource_version,
    partial_metadata,
    table,
    table_of_a_custom_kind,
];

const PARTIAL: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
const PARTIAL_LIST: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

/// Creates leases with these names and returns the path of the collection. A case's namespace has no other leases.
async fn leases(c: &Ctx, names: &[&str]) -> Result<String> {
    let path = c.path("coordination.k8s.io/v1/leases");
    for name in names {
        c.create(&path, objects::lease(name)).await?;
    }
    Ok(path)
}

async fn envelope_of_a_built_in_kind(c: &Ctx) -> Result<()> {
    let path = leases(c, &["a"]).await?;
    let all = c.read(&path).await?;
    is(&all, "/kind", "LeaseList")?;
    is(&all, "/apiVersion", "coordination.k8s.io/v1")?;
    present(&all, "/metadata/resourceVersion")?;
    absent(&all, "/metadata/continue")?;
    absent(&all, "/metadata/remainingItemCount")?;
    // The list contains kind and version once.
    absent(&all, "/items/0/kind")?;
    absent(&all, "/items/0/apiVersion")?;
    is(&all, "/items/0/metadata/name", "a")
}

async fn envelope_of_a_custom_kind(c: &Ctx) -> Result<()> {
    c.make_widget("a").await?;
    let all = c.read(&c.widgets().await?).await?;
    let version = format!("{}/v1", c.run.group());
    is(&all, "/kind", "WidgetList")?;
    is(&all, "/apiVersion", version.clone())?;
    is(&all, "/items/0/kind", "Widget")?;
    is(&all, "/items/0/apiVersion", version)
}

async fn is_sorted_by_name(c: &Ctx) -> Result<()> {
    let path = leases(c, &["b", "a", "a.b", "a-b", "c", "10", "9"]).await?;
    let all = c.read(&path).await?;
    ensure!(names(&all)? == ["10", "9", "a", "a-b", "a.b", "b", "c"], "{:?}", names(&all)?);
    let order = names(&all)?;
    let cached = format!("{path}?resourceVersion=0");
    c.until(&cached, |cached| names(cached).is_ok_and(|names| names == order)).await.map(drop)
}

async fn of_nothing(c: &Ctx) -> Result<()> {
    let path = leases(c, &[]).await?;
    is(&c.read(&path).await?, "/items", json!([]))?;
    is(&c.read(&c.widgets().await?).await?, "/items", json!([]))?;
    // A namespace that does not exist has nothing in it.
    let path = format!("/api/v1/namespaces/{}/configmaps", c.name("none"));
    is(&c.read(&path).await?, "/items", json!([]))
}

async fn of_all_namespaces_is_sorted_by_namespace(c: &Ctx) -> Result<()> {
    let other = c.name("other");
    c.create("/api/v1/namespaces", json!({"metadata": {"name": other}})).await?;
    let label = json!({"metadata": {"labels": {"case": c.ns()}}});
    let there = format!("/api/v1/namespaces/{other}/configmaps");
    c.create(&there, with(objects::config_map("a"), label.clone())).await?;
    for name in ["z", "b"] {
        c.create(&c.path("v1/configmaps"), with(objects::config_map(name), label.clone())).await?;
    }
    let all = c.read(&format!("/api/v1/configmaps?labelSelector=case={}", c.ns())).await?;
    is(&all, "/kind", "ConfigMapList")?;
    // By "namespace/name" as one text: "x-other/" comes before "x/".
    ensure!(names(&all)? == ["a", "b", "z"], "{:?}", names(&all)?);
    is(&all, "/items/0/metadata/namespace", other)
}

async fn pages(c: &Ctx) -> Result<()> {
    let path = leases(c, &["a", "b", "c", "d", "e"]).await?;
    let first = c.read(&format!("{path}?limit=2")).await?;
    ensure!(names(&first)? == ["a", "b"], "{:?}", names(&first)?);
    is(&first, "/metadata/remainingItemCount", 3)?;
    let token = text(&first, "/metadata/continue")?;
    let second = c.read(&format!("{path}?limit=2&continue={token}")).await?;
    ensure!(names(&second)? == ["c", "d"], "{:?}", names(&second)?);
    is(&second, "/metadata/remainingItemCount", 1)?;
    is(&second, "/metadata/resourceVersion", rv(&first)?)?;
    let token = text(&second, "/metadata/continue")?;
    let third = c.read(&format!("{path}?limit=2&continue={token}")).await?;
    ensure!(names(&third)? == ["e"], "{:?}", names(&third)?);
    absent(&third, "/metadata/continue")?;
    absent(&third, "/metadata/remainingItemCount")?;
    // A page that contains everything has no continue token.
    let all = c.read(&format!("{path}?limit=5")).await?;
    absent(&all, "/metadata/continue")?;
    let rest = c.read(&format!("{path}?continue={token}")).await?;
    ensure!(names(&rest)? == ["e"], "{:?}", names(&rest)?);
    Ok(())
}

async fn pages_are_one_snapshot(c: &Ctx) -> Result<()> {
    let path = leases(c, &["a", "b", "d", "e"]).await?;
    let first = c.read(&format!("{path}?limit=2")).await?;
    c.create(&path, objects::lease("c")).await?;
    c.delete(&format!("{path}/e")).await?.ok(200)?;
    c.merge(&format!("{path}/d"), json!({"spec": {"holderIdentity": "two"}})).await?.ok(200)?;
    let token = text(&first, "/metadata/continue")?;
    let second = c.read(&format!("{path}?limit=2&continue={token}")).await?;
    ensure!(names(&second)? == ["d", "e"], "{:?}", names(&second)?);
    is(&second, "/items/0/spec/holderIdentity", "one")?;
    is(&second, "/metadata/resourceVersion", rv(&first)?)
}

async fn selectors_go_with_pages(c: &Ctx) -> Result<()> {
    let path = leases(c, &["x", "y"]).await?;
    for name in ["a", "b", "c"] {
        c.create(&path, with(objects::lease(name), json!({"metadata": {"labels": {"l": "1"}}}))).await?;
    }
    let first = c.read(&format!("{path}?limit=2&labelSelector=l=1")).await?;
    ensure!(names(&first)? == ["a", "b"], "{:?}", names(&first)?);
    // The number of further matches is not known.
    absent(&first, "/metadata/remainingItemCount")?;
    let token = text(&first, "/metadata/continue")?;
    let second = c.read(&format!("{path}?limit=2&labelSelector=l=1&continue={token}")).await?;
    ensure!(names(&second)? == ["c"], "{:?}", names(&second)?);
    absent(&second, "/metadata/continue")
}

/// The cheapest way to learn how far a watch with the same selector must have come.
async fn one_item_has_the_current_version(c: &Ctx) -> Result<()> {
    let path = leases(c, &["a", "b"]).await?;
    let last = c.create(&path, objects::lease("c")).await?;
    let number = |text: &str| text.parse::<u64>();
    for (selector, count) in [("fieldSelector=metadata.name!%3Dx", 1), ("labelSelector=none%3Dhas", 0)] {
        let page = c.read(&format!("{path}?limit=1&{selector}")).await?;
        ensure!(names(&page)?.len() == count, "{selector}: {:?}", names(&page)?);
        ensure!(number(rv(&page)?)? >= number(rv(&last)?)?, "{selector}: {page} is older than {last}");
        if count == 0 { absent(&page, "/metadata/continue") } else { present(&page, "/metadata/continue") }?;
    }
    Ok(())
}

async fn bad_continue_tokens(c: &Ctx) -> Result<()> {
    let path = leases(c, &["a", "b"]).await?;
    c.get(&format!("{path}?limit=1&continue=nonsense")).await?.fails(400, "BadRequest")?;
    let first = c.read(&format!("{path}?limit=1")).await?;
    let token = text(&first, "/metadata/continue")?;
    // The token contains the resource version.
    let both = format!("{path}?limit=1&continue={token}&resourceVersion={}", rv(&first)?);
    c.get(&both).await?.fails(400, "BadRequest").map(drop)
}

async fn bad_limits(c: &Ctx) -> Result<()> {
    let path = leases(c, &["a", "b"]).await?;
    c.get(&format!("{path}?limit=some")).await?.fails(400, "BadRequest")?;
    for limit in ["0", "-1"] {
        let all = c.read(&format!("{path}?limit={limit}")).await?;
        ensure!(names(&all)? == ["a", "b"], "limit={limit}: {:?}", names(&all)?);
    }
    Ok(())
}

async fn resource_version_zero(c: &Ctx) -> Result<()> {
    let path = leases(c, &["a", "b"]).await?;
    let all = c
        .until(&format!("{path}?resourceVersion=0"), |all| names(all).is_ok_and(|n| n == ["a", "b"]))
        .await?;
    ensure!(rv(&all)? != "0", "a list has no resource version");
    c.read(&format!("{path}?resourceVersion=0&resourceVersionMatch=NotOlderThan")).await.map(drop)
}

async fn resource_version_zero_ignores_the_limit(c: &Ctx) -> Result<()> {
    let path = leases(c, &["a", "b"]).await?;
    let path = format!("{path}?resourceVersion=0&limit=1");
    let all = c.until(&path, |all| names(all).is_ok_and(|n| n == ["a", "b"])).await?;
    absent(&all, "/metadata/continue")
}

async fn at_an_exact_resource_version(c: &Ctx) -> Result<()> {
    let path = leases(c, &["a"]).await?;
    let then = c.read(&path).await?;
    c.create(&path, objects::lease("b")).await?;
    c.merge(&format!("{path}/a"), json!({"spec": {"holderIdentity": "two"}})).await?.ok(200)?;
    let exact = format!("{path}?resourceVersion={}&resourceVersionMatch=Exact", rv(&then)?);
    let again = c.read(&exact).await?;
    ensure!(again == then, "{again} is not {then}");
    let page = c.read(&format!("{exact}&limit=1")).await?;
    ensure!(names(&page)? == ["a"], "{:?}", names(&page)?);
    Ok(())
}

async fn not_older_than(c: &Ctx) -> Result<()> {
    let path = leases(c, &["a"]).await?;
    let then = c.read(&path).await?;
    let made = c.create(&path, objects::lease("b")).await?;
    for version in [rv(&then)?, rv(&made)?] {
        for how in ["", "&resourceVersionMatch=NotOlderThan"] {
            let all = c.read(&format!("{path}?resourceVersion={version}{how}")).await?;
            ensure!(names(&all)?.contains(&"a"), "{:?}", names(&all)?);
        }
    }
    let all = c.read(&format!("{path}?resourceVersion={}", rv(&made)?)).await?;
    ensure!(names(&all)? == ["a", "b"], "{:?}", names(&all)?);
    Ok(())
}

async fn match_without_a_resource_version(c: &Ctx) -> Result<()> {
    let path = leases(c, &[]).await?;
    for how in ["Exact", "NotOlderThan"] {
        let failed = c.get(&format!("{path}?resourceVersionMatch={how}")).await?;
        let failed = failed.invalid(&["resourceVersionMatch"])?;
        is(&failed, "/details/kind", "ListOptions")?;
    }
    for wrong in
        ["resourceVersionMatch=Exact&resourceVersion=0", "resourceVersionMatch=Nearly&resourceVersion=5"]
    {
        c.get(&format!("{path}?{wrong}")).await?.invalid(&["resourceVersionMatch"])?;
    }
    Ok(())
}

async fn impossible_resource_versions(c: &Ctx) -> Result<()> {
    let path = leases(c, &[]).await?;
    c.get(&format!("{path}?resourceVersion=abc")).await?.fails(400, "BadRequest").map(drop)
}

async fn future_resource_versions(c: &Ctx) -> Result<()> {
    let path = leases(c, &["a"]).await?;
    for path in [path.clone(), format!("{path}/a")] {
        let failed = c.get(&format!("{path}?resourceVersion=999999999999")).await?.fails(504, "Timeout")?;
        is(&failed, "/details/causes/0/reason", "ResourceVersionTooLarge")?;
        is(&failed, "/details/retryAfterSeconds", 1)?;
    }
    Ok(())
}

async fn resource_version_moves_on(c: &Ctx) -> Result<()> {
    let path = leases(c, &["a"]).await?;
    let before = c.read(&path).await?;
    let made = c.create(&path, objects::lease("b")).await?;
    let after = c.read(&path).await?;
    let number = |text: &str| text.parse::<u64>();
    ensure!(number(rv(&before)?)? < number(rv(&made)?)?, "a write did not move the resource version on");
    ensure!(number(rv(&made)?)? <= number(rv(&after)?)?, "a list is older than a write before it");
    Ok(())
}

async fn get_with_a_resource_version(c: &Ctx) -> Result<()> {
    let (path, made) = c.config_map("a").await?;
    let read = c.read(&format!("{path}?resourceVersion={}", rv(&made)?)).await?;
    is(&read, "/data/a", "1")?;
    c.until(&format!("{path}?resourceVersion=0"), |read| read["data"]["a"] == "1").await.map(drop)
}

async fn partial_metadata(c: &Ctx) -> Result<()> {
    let (path, made) = c.config_map("a").await?;
    let one = c.get_as(&path, PARTIAL).await?.ok(200)?;
    is(&one, "/kind", "PartialObjectMetadata")?;
    is(&one, "/apiVersion", "meta.k8s.io/v1")?;
    is(&one, "/metadata/uid", made["metadata"]["uid"].clone())?;
    absent(&one, "/data")?;
    let selected = format!("{}?fieldSelector=metadata.name=a", c.path("v1/configmaps"));
    let all = c.get_as(&selected, PARTIAL_LIST).await?.ok(200)?;
    is(&all, "/kind", "PartialObjectMetadataList")?;
    is(&all, "/items/0/kind", "PartialObjectMetadata")?;
    is(&all, "/items/0/metadata/name", "a")?;
    absent(&all, "/items/0/data")?;
    c.make_widget("a").await?;
    let all = c.get_as(&c.widgets().await?, PARTIAL_LIST).await?.ok(200)?;
    is(&all, "/kind", "PartialObjectMetadataList")?;
    absent(&all, "/items/0/spec")?;
    // A representation that lists do not support is refused, unless another accepted one is.
    c.get_as(&c.path("v1/configmaps"), PARTIAL).await?.fails(406, "NotAcceptable")?;
    let either = format!("{PARTIAL_LIST},application/json");
    is(&c.get_as(&c.path("v1/configmaps"), &either).await?.ok(200)?, "/kind", "PartialObjectMetadataList")
}

async fn table(c: &Ctx) -> Result<()> {
    let (path, _) = c.node("a").await?;
    for path in [path, format!("/api/v1/nodes?labelSelector=case={}", c.ns())] {
        let table = c.get_as(&path, &format!("{TABLE},application/json")).await?.ok(200)?;
        is(&table, "/kind", "Table")?;
        is(&table, "/apiVersion", "meta.k8s.io/v1")?;
        present(&table, "/metadata/resourceVersion")?;
        is(&table, "/columnDefinitions/0/name", "Name")?;
        is(&table, "/columnDefinitions/1/name", "Status")?;
        is(&table, "/rows/0/cells/0", c.name("a"))?;
        is(&table, "/rows/0/object/kind", "PartialObjectMetadata")?;
        is(&table, "/rows/0/object/metadata/name", c.name("a"))?;
        let (columns, cells) = (list(&table, "/columnDefinitions")?, list(&table, "/rows/0/cells")?);
        ensure!(columns.len() == cells.len(), "{} columns, {} cells", columns.len(), cells.len());
    }
    Ok(())
}

async fn table_of_a_custom_kind(c: &Ctx) -> Result<()> {
    c.make_widget("a").await?;
    let table = c.get_as(&c.widgets().await?, TABLE).await?.ok(200)?;
    let columns: Vec<_> = list(&table, "/columnDefinitions")?.iter().map(|column| &column["name"]).collect();
    ensure!(columns == ["Name", "Size", "Age"], "{columns:?}");
    is(&table, "/rows/0/cells/0", "a")?;
    is(&table, "/rows/0/cells/1", 3)?;
    present(&table, "/rows/0/cells/2")
}
