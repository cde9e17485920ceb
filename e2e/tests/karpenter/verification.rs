//! Karpenter's nodes that pass.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ListParams, PostParams};
use kube::core::DynamicObject;
use kube::{Api, ResourceExt as _};
use nodekeeper_core::report::Verdict;
use nodekeeper_e2e::karpenter::objects::{
    Under, claim_of, claims_of, condition, instance_of, is, make_pods, make_pool, node_claims, node_pools,
    nodes_of,
};
use nodekeeper_e2e::scenario::pod_observer::PodObserver;
use nodekeeper_e2e::scenario::steps::{
    controller, gate, gate_condition, is_gated, is_verified, no_workers_left, node, node_is, patch_node,
    until,
};
use nodekeeper_e2e::scenario::world::{TAINT, World, taint};
use serde_json::{Value, json};

use crate::karpenter_world::KarpenterWorld;
use crate::node_observer::NodeObserver;

/// Waits until all pods of an app run, and returns the names of their nodes.
pub async fn app_runs(world: &impl World, app: &str, count: usize) -> Result<Vec<String>> {
    let pods: Api<Pod> = Api::namespaced(world.client(), "default");
    let look = async || {
        let pods = pods.list(&ListParams::default().labels(&format!("app={app}"))).await?.items;
        let running = |pod: Pod| {
            let phase = pod.status?.phase?;
            (phase == "Running").then_some(pod.spec?.node_name?)
        };
        let nodes: Vec<String> = pods.into_iter().filter_map(running).collect();
        Ok((nodes.len() == count).then_some(nodes))
    };
    until(world, &format!("{count} pods of {app} run"), look).await
}

/// Waits until Karpenter has initialized a node and its claim is Ready.
pub async fn initialized(world: &impl World, name: &str) -> Result<DynamicObject> {
    let node = node_is(world, name, "initialized", |node| is(node, "initialized")).await?;
    let look = async || {
        let claim = claim_of(&world.client(), &node).await?;
        Ok(claim.filter(|claim| condition(claim, "Ready") == Some("True")))
    };
    until(world, &format!("the claim of {name} is Ready"), look).await
}

/// Pending pods make Karpenter create nodes. Each is gated, checked, untainted, initialized, and gets its pod.
/// Neither gated nodes nor workers make Karpenter create more.
pub async fn a_pool_scales_up_with_verified_nodes(world: KarpenterWorld) -> Result<()> {
    let observer = NodeObserver::start(&world);
    let client = world.client();
    make_pool(&client, "good", TAINT, Under::StartupTaints, "0s").await?;
    gate(&world, "default", json!({})).await?;
    let _controller = controller(&world, "a");
    let said = gate_condition(&world, "default", ("AutoscalerCompatible", "True", "Compatible")).await?;
    ensure!(said.contains("good"), "{said}");
    make_pods(&client, "app", "good", 3).await?;
    let names = app_runs(&world, "app", 3).await?;
    for name in &names {
        let record = is_verified(&world, name).await?;
        ensure!(record.verdict == Some(Verdict::Passed) && record.attempts == 1, "{record:?}");
        initialized(&world, name).await?;
        observer.in_order(name)?;
    }
    no_workers_left(&world).await?;
    let claims = claims_of(&client, "good").await?.len();
    ensure!(claims == names.len(), "{claims} claims for {names:?}");
    Ok(())
}

/// A Ready node that Karpenter has not registered is not checked: here its provider ID is missing, without which
/// Karpenter finds no claim for it.
pub async fn no_node_is_verified_before_it_is_registered(world: KarpenterWorld) -> Result<()> {
    let (observer, workers) = (NodeObserver::start(&world), PodObserver::start(&world));
    let client = world.client();
    make_pool(&client, "late", TAINT, Under::StartupTaints, "1h").await?;
    make_pool(&client, "good", TAINT, Under::StartupTaints, "0s").await?;
    gate(&world, "default", json!({})).await?;
    let _controller = controller(&world, "a");
    make_pods(&client, "late", "late", 1).await?;
    let look =
        async || Ok(claims_of(&client, "late").await?.into_iter().find(|one| instance_of(one).is_some()));
    let claim = until(&world, "the late node is launched", look).await?;
    let name = instance_of(&claim).context("launched, and no instance")?.to_owned();
    join(&world, &name, &claim).await?;
    let ready = |node: &Node| {
        let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions.into_iter().flatten().any(|one| one.type_ == "Ready" && one.status == "True")
    };
    let late = node_is(&world, &name, "ready", ready).await?;

    // Another node is verified later, so the controller had time to act.
    make_pods(&client, "app", "good", 1).await?;
    app_runs(&world, "app", 1).await?;
    let uid = late.uid().context("no uid")?;
    let late = node(&world, &name).await?;
    ensure!(is_gated(&late) && !is(&late, "registered"), "{:?}, {:?}", late.spec, late.labels());
    ensure!(workers.seen()?.of(&uid) == 0, "checked too early: {:?}", workers.seen()?);

    patch_node(&world, &name, json!({"spec": {"providerID": format!("kwok://{name}")}})).await?;
    is_verified(&world, &name).await?;
    app_runs(&world, "late", 1).await?;
    initialized(&world, &name).await?;
    observer.in_order(&name)
}

/// Registers a node like a kubelet with the user data of a cloud.
pub async fn join(world: &impl World, name: &str, claim: &DynamicObject) -> Result<()> {
    let unregistered = json!({"key": "karpenter.sh/unregistered", "effect": "NoExecute"});
    let body = json!({
        "metadata": {
            "name": name,
            "labels": claim.labels(),
            "annotations": {"kwok.x-k8s.io/node": "fake"},
        },
        "spec": {"taints": [unregistered, taint(TAINT)]},
        "status": {"capacity": claim.data["status"]["capacity"], "allocatable": claim.data["status"]["allocatable"]},
    });
    let mut node: Node = serde_json::from_value(body)?;
    node.labels_mut().insert("kubernetes.io/hostname".into(), name.into());
    Api::<Node>::all(world.client()).create(&PostParams::default(), &node).await?;
    Ok(())
}

/// Karpenter expects taints under `taints` to stay. The gate reports this and the fix.
pub async fn a_taint_outside_startup_taints_is_reported(world: KarpenterWorld) -> Result<()> {
    let client = world.client();
    make_pool(&client, "wrong", TAINT, Under::Taints, "0s").await?;
    gate(&world, "default", json!({})).await?;
    let _controller = controller(&world, "a");
    let said =
        gate_condition(&world, "default", ("AutoscalerCompatible", "False", "TaintIsPermanent")).await?;
    for part in ["NodePool wrong", TAINT, "`startupTaints`"] {
        ensure!(said.contains(part), "{part} is missing in: {said}");
    }
    Ok(())
}

/// Karpenter's API accepts the pool in `examples`, and the gate next to it matches such nodes.
pub async fn the_example_pool_matches_the_example_gate(world: KarpenterWorld) -> Result<()> {
    let pool: Value = serde_saphyr::from_str(include_str!("../../../examples/karpenter/nodepool.yaml"))?;
    let gate: Value = serde_saphyr::from_str(include_str!("../../../examples/remediation-gate.yaml"))?;
    let only_tried = PostParams { dry_run: true, ..PostParams::default() };
    let taken = node_pools(&world.client()).create(&only_tried, &serde_json::from_value(pool)?).await?;
    let spec = &gate["spec"];
    ensure!(taken.data["spec"]["template"]["spec"]["startupTaints"] == spec["taints"], "{taken:?}");
    let selected = &spec["nodeSelector"]["matchLabels"]["karpenter.sh/nodepool"];
    ensure!(*selected == *taken.name_any(), "the gate selects {selected}");
    Ok(())
}

/// Removing the gate's taint needs no access to claims.
pub async fn nodes_are_verified_without_access_to_claims(world: KarpenterWorld) -> Result<()> {
    let client = world.client();
    let seat = world.without_claims("opens-only").await?;
    make_pool(&client, "good", TAINT, Under::StartupTaints, "0s").await?;
    gate(&world, "default", json!({})).await?;
    let refused = node_claims(&seat.client()).list(&ListParams::default()).await;
    ensure!(matches!(&refused, Err(kube::Error::Api(status)) if status.code == 403), "{refused:?}");
    let _controller = controller(&seat, "a");
    make_pods(&client, "app", "good", 1).await?;
    for name in app_runs(&world, "app", 1).await? {
        initialized(&world, &name).await?;
    }
    let there = nodes_of(&client, "good").await?.len();
    ensure!(there == 1, "{there} nodes for one pod");
    Ok(())
}
