//! Label and field selectors.

use anyhow::{Result, ensure};
use serde_json::json;

use super::check::{is, names};
use super::ctx::Ctx;
use super::objects::{self, with};

cases!["selectors":
    labels_by_equality,
    labels_by_set,
    labels_by_existence,
    labels_by_several_requirements,
    labels_by_number,
    malformed_label_selectors,
    fields_every_kind_has,
    fields_are_combined,
    unsupported_fields,
    pods_by_node,
    pods_by_phase,
    nodes_by_unschedulable,
    events_by_involved_object,
    namespaces_by_phase,
    secrets_by_type,
];

async fn labelled(c: &Ctx) -> Result<String> {
    let path = c.path("coordination.k8s.io/v1/leases");
    for (name, labels) in [
        ("a", json!({"env": "prod", "tier": "1"})),
        ("b", json!({"env": "test", "example.com/x": ""})),
        ("c", json!({"tier": "2"})),
        ("d", json!({})),
    ] {
        c.create(&path, with(objects::lease(name), json!({"metadata": {"labels": labels}}))).await?;
    }
    Ok(path)
}

/// The names that listing with each selector returns.
async fn selects(c: &Ctx, path: &str, kind: &str, wanted: &[(&str, &[&str])]) -> Result<()> {
    for (selector, want) in wanted {
        // Characters that have a meaning in a query.
        let quoted = selector
            .replace('!', "%21")
            .replace('=', "%3D")
            .replace(',', "%2C")
            .replace('>', "%3E")
            .replace('<', "%3C");
        let all = c.read(&format!("{path}?{kind}={quoted}")).await?;
        ensure!(names(&all)? == *want, "{selector}: wanted {want:?}, got {:?}", names(&all)?);
    }
    Ok(())
}

async fn labels_by_equality(c: &Ctx) -> Result<()> {
    let path = labelled(c).await?;
    let wanted: &[(&str, &[&str])] = &[
        ("env=prod", &["a"]),
        ("env==prod", &["a"]),
        ("env!=prod", &["b", "c", "d"]),
        ("env=none", &[]),
        ("example.com/x=", &["b"]),
        ("", &["a", "b", "c", "d"]),
    ];
    selects(c, &path, "labelSelector", wanted).await
}

async fn labels_by_set(c: &Ctx) -> Result<()> {
    let path = labelled(c).await?;
    let wanted: &[(&str, &[&str])] = &[
        ("env in (prod,test)", &["a", "b"]),
        ("env in (prod)", &["a"]),
        ("env notin (prod)", &["b", "c", "d"]),
        ("env in (),tier", &[]),
        ("env in (,prod)", &["a"]),
    ];
    selects(c, &path, "labelSelector", wanted).await
}

async fn labels_by_existence(c: &Ctx) -> Result<()> {
    let path = labelled(c).await?;
    let wanted: &[(&str, &[&str])] =
        &[("env", &["a", "b"]), ("!env", &["c", "d"]), ("example.com/x", &["b"]), ("! env", &["c", "d"])];
    selects(c, &path, "labelSelector", wanted).await
}

async fn labels_by_several_requirements(c: &Ctx) -> Result<()> {
    let path = labelled(c).await?;
    let wanted: &[(&str, &[&str])] =
        &[("env,tier", &["a"]), ("!env,tier=2", &["c"]), ("env notin (test), tier", &["a", "c"])];
    selects(c, &path, "labelSelector", wanted).await
}

async fn labels_by_number(c: &Ctx) -> Result<()> {
    let path = labelled(c).await?;
    let wanted: &[(&str, &[&str])] = &[("tier>1", &["c"]), ("tier<2", &["a"])];
    selects(c, &path, "labelSelector", wanted).await
}

async fn malformed_label_selectors(c: &Ctx) -> Result<()> {
    let path = c.path("coordination.k8s.io/v1/leases");
    for selector in ["a in (b", "a=b c", "-a=b", "a in b", "=b", "a=b,,c", "a%3E%3Db"] {
        c.get(&format!("{path}?labelSelector={selector}")).await?.fails(400, "BadRequest")?;
    }
    Ok(())
}

async fn fields_every_kind_has(c: &Ctx) -> Result<()> {
    let path = labelled(c).await?;
    let ns = format!("metadata.namespace={}", c.ns());
    let wanted: &[(&str, &[&str])] = &[
        ("metadata.name=b", &["b"]),
        ("metadata.name!=b", &["a", "c", "d"]),
        ("metadata.name=none", &[]),
        (&ns, &["a", "b", "c", "d"]),
        ("metadata.namespace=default", &[]),
    ];
    selects(c, &path, "fieldSelector", wanted).await?;
    c.make_widget("a").await?;
    c.make_widget("b").await?;
    selects(c, &c.widgets().await?, "fieldSelector", &[("metadata.name=b", &["b"])]).await?;
    let (path, _) = c.node("a").await?;
    let nodes = path.rsplit_once('/').map_or("", |(nodes, _)| nodes);
    let name = c.name("a");
    selects(c, nodes, "fieldSelector", &[(&format!("metadata.name={name}"), &[&name])]).await
}

async fn fields_are_combined(c: &Ctx) -> Result<()> {
    let path = labelled(c).await?;
    let wanted: &[(&str, &[&str])] = &[
        ("metadata.name!=a,metadata.name!=b", &["c", "d"]),
        ("metadata.name=a,metadata.name=b", &[]),
        ("", &["a", "b", "c", "d"]),
    ];
    selects(c, &path, "fieldSelector", wanted).await?;
    let both = c.read(&format!("{path}?labelSelector=env&fieldSelector=metadata.name!=a")).await?;
    ensure!(names(&both)? == ["b"], "{:?}", names(&both)?);
    Ok(())
}

async fn unsupported_fields(c: &Ctx) -> Result<()> {
    let leases = c.path("coordination.k8s.io/v1/leases");
    for path in [leases.clone(), c.path("v1/pods"), c.widgets().await?] {
        c.get(&format!("{path}?fieldSelector=spec.nothing=1")).await?.fails(400, "BadRequest")?;
    }
    c.get(&format!("{leases}?fieldSelector=metadata.name")).await?.fails(400, "BadRequest")?;
    c.get("/api/v1/nodes?fieldSelector=spec.providerID=x").await?.fails(400, "BadRequest")?;
    c.get(&format!("{leases}?fieldSelector=metadata.uid=x")).await?.fails(400, "BadRequest").map(drop)
}

async fn pods_by_node(c: &Ctx) -> Result<()> {
    let (_, node) = c.node("n").await?;
    let name = node["metadata"]["name"].as_str().unwrap_or_default();
    c.pod_of(with(objects::pod("a"), json!({"spec": {"nodeName": name}}))).await?;
    c.pod("b").await?;
    let path = c.path("v1/pods");
    let wanted: &[(&str, &[&str])] = &[
        (&format!("spec.nodeName={name}"), &["a"]),
        ("spec.nodeName=", &["b"]),
        (&format!("spec.nodeName!={name}"), &["b"]),
        ("spec.schedulerName=none", &["a", "b"]),
        ("spec.restartPolicy=Never", &[]),
    ];
    selects(c, &path, "fieldSelector", wanted).await?;
    let all = c.read(&format!("/api/v1/pods?fieldSelector=spec.nodeName={name}")).await?;
    ensure!(names(&all)? == ["a"], "{:?}", names(&all)?);
    Ok(())
}

async fn pods_by_phase(c: &Ctx) -> Result<()> {
    let (path, _) = c.pod("a").await?;
    c.pod("b").await?;
    c.merge(&format!("{path}/status"), json!({"status": {"phase": "Failed"}})).await?.ok(200)?;
    let path = c.path("v1/pods");
    let wanted: &[(&str, &[&str])] = &[
        ("status.phase=Failed", &["a"]),
        ("status.phase=Pending", &["b"]),
        ("status.phase!=Failed", &["b"]),
    ];
    selects(c, &path, "fieldSelector", wanted).await
}

async fn nodes_by_unschedulable(c: &Ctx) -> Result<()> {
    let (path, _) = c.node("a").await?;
    c.node("b").await?;
    c.merge(&path, json!({"spec": {"unschedulable": true}})).await?.ok(200)?;
    let mine = format!("/api/v1/nodes?labelSelector=case={}&fieldSelector=spec.unschedulable", c.ns());
    let closed = c.read(&format!("{mine}=true")).await?;
    ensure!(names(&closed)? == [c.name("a")], "{:?}", names(&closed)?);
    let open = c.read(&format!("{mine}=false")).await?;
    ensure!(names(&open)? == [c.name("b")], "{:?}", names(&open)?);
    Ok(())
}

async fn events_by_involved_object(c: &Ctx) -> Result<()> {
    let path = c.path("v1/events");
    for (name, kind, reason) in [("a", "Pod", "Started"), ("b", "Node", "Rebooted")] {
        let event = json!({
            "metadata": {"name": name}, "type": "Normal", "reason": reason,
            "involvedObject": {"kind": kind, "name": "it", "namespace": c.ns(), "uid": "u"},
        });
        c.create(&path, event).await?;
    }
    let wanted: &[(&str, &[&str])] = &[
        ("involvedObject.kind=Pod", &["a"]),
        ("involvedObject.name=it", &["a", "b"]),
        ("involvedObject.uid=u,reason=Rebooted", &["b"]),
        ("type=Normal", &["a", "b"]),
        ("type=Warning", &[]),
        ("reason=Started", &["a"]),
    ];
    selects(c, &path, "fieldSelector", wanted).await?;
    let path = c.path("events.k8s.io/v1/events");
    selects(c, &path, "fieldSelector", &[("regarding.kind=Pod", &["a"]), ("reason=Rebooted", &["b"])]).await
}

async fn namespaces_by_phase(c: &Ctx) -> Result<()> {
    let name = c.name("a");
    c.create("/api/v1/namespaces", json!({"metadata": {"name": name, "labels": {"case": c.ns()}}})).await?;
    let path = format!("/api/v1/namespaces?labelSelector=case={}&fieldSelector=status.phase", c.ns());
    ensure!(names(&c.read(&format!("{path}=Active")).await?)? == [name]);
    ensure!(names(&c.read(&format!("{path}=Terminating")).await?)?.is_empty());
    Ok(())
}

async fn secrets_by_type(c: &Ctx) -> Result<()> {
    let path = c.path("v1/secrets");
    let made = c.create(&path, json!({"metadata": {"name": "a"}, "stringData": {"k": "v"}})).await?;
    is(&made, "/type", "Opaque")?;
    selects(c, &path, "fieldSelector", &[("type=Opaque", &["a"]), ("type=other", &[])]).await
}
