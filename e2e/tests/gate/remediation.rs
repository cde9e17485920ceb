//! Nodes that are replaced, and new nodes with the same name.

use anyhow::{Context as _, Result, ensure};
use http::Method;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt as _};
use nodekeeper_core::api::RemediationPolicy;
use nodekeeper_core::node::CORDONED;
use nodekeeper_e2e::scenario::fault_proxy::{FaultProxy, KillPoint, RecordedRequest, WriteHook};
use nodekeeper_e2e::scenario::remediation::{
    policies, policy, policy_condition, remediation_condition, request_remediation,
};
use nodekeeper_e2e::scenario::steps::{
    Controller, controller, controller_with, delete_lease, delete_node, event_on_uid, gate, is_verified,
    node, node_is, until,
};
use nodekeeper_e2e::scenario::world::{BROKEN, Machine, WORKS, World, machine};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::drain::run_on;

const ZONE: &str = "topology.kubernetes.io/zone";
/// The control group.
pub const GOOD: [&str; 3] = ["one", "two", "three"];

/// Creates a policy that is enforced and allows every source to delete Node objects, unless `spec` says otherwise.
pub async fn enforced_policy(world: &impl World, spec: Value) -> Result<()> {
    let mut whole = json!({"enforcement": "Enforce", "deleteNodeObjectFor": [{"source": "Gate", "name": "*"}, {"source": "Person", "name": "*"}]});
    for (key, value) in spec.as_object().into_iter().flatten() {
        whole[key] = value.clone();
    }
    policy(world, whole).await
}

pub fn zoned(name: &str) -> Machine {
    machine(name).labelled(ZONE, "a")
}

/// Creates a gate that requests replacements, a policy, a controller behind this proxy, and three verified nodes.
pub async fn start_with(world: &impl World, spec: Value, proxy: FaultProxy) -> Result<Controller> {
    let retry = json!({"maxRetries": 1, "recheckPeriodSeconds": 10});
    gate(world, "default", json!({"onFailure": "Replace", "retry": retry})).await?;
    enforced_policy(world, spec).await?;
    let controller = controller_with(world, "a", proxy, |_| {});
    for name in GOOD {
        world.join(zoned(name)).await?;
        is_verified(world, name).await?;
    }
    Ok(controller)
}

pub async fn start_controller(world: &impl World, spec: Value) -> Result<Controller> {
    start_with(world, spec, FaultProxy::default()).await
}

/// Adds a node that never passes, and returns its uid.
pub async fn join_failing(world: &impl World, machine: Machine) -> Result<String> {
    let name = machine.name.clone();
    world.behaviours().set(&name, BROKEN);
    world.join(machine).await?;
    uid_of(world, &name).await
}

pub async fn uid_of(world: &impl World, name: &str) -> Result<String> {
    node(world, name).await?.uid().context("a node without a uid")
}

pub async fn is_there(world: &impl World, name: &str, uid: &str) -> Result<bool> {
    let node = Api::<Node>::all(world.client()).get_opt(name).await?;
    Ok(node.is_some_and(|node| node.uid().as_deref() == Some(uid)))
}

pub fn is_cordoned(node: &Node) -> bool {
    node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true))
}

pub fn is_marked(node: &Node) -> bool {
    node.annotations().contains_key(CORDONED)
}

/// Waits for the end of a replacement, and checks that the node is gone.
pub async fn is_replaced(world: &impl World, name: &str, uid: &str) -> Result<()> {
    remediation_condition(world, name, ("Succeeded", "True", "Replaced"), "").await?;
    ensure!(!is_there(world, name, uid).await?, "{name} is still there");
    Ok(())
}

/// A node that never passes is compared with two that do, and its Node object is deleted, because the policy allows
/// it.
pub async fn a_node_that_never_passes_is_replaced(world: impl World) -> Result<()> {
    let controller =
        start_controller(&world, json!({"deleteNodeObjectFor": [{"source": "Gate", "name": "default"}]}))
            .await?;
    let uid = join_failing(&world, zoned("failing")).await?;
    is_replaced(&world, "failing", &uid).await?;
    let all = controller.proxy.requests();
    let deleted: Vec<_> = all.iter().filter(|one| one.is_destructive()).map(|one| one.uri.as_str()).collect();
    ensure!(deleted.len() == 1 && deleted[0].starts_with("/api/v1/nodes/failing"), "{deleted:?}");
    policy_condition(&world, ("Ready", "True", "Enforcing"), "").await.map(drop)
}

/// A user requests the replacement of a working node: it is cordoned, its pod is evicted, and then the Node is
/// deleted.
pub async fn a_user_requests_a_replacement(world: impl World) -> Result<()> {
    let controller = start_controller(&world, json!({})).await?;
    run_on(&world, "one", "web", json!({})).await?;
    let uid = request_remediation(&world, "one").await?;
    is_replaced(&world, "one", &uid).await?;
    let harm: Vec<_> =
        controller.proxy.requests().into_iter().filter(RecordedRequest::is_destructive).collect();
    let [eviction, deletion] = harm.as_slice() else { anyhow::bail!("not two acts: {harm:?}") };
    ensure!(eviction.uri.contains("/pods/web/eviction"), "{harm:?}");
    ensure!(deletion.method == Method::DELETE && deletion.uri.starts_with("/api/v1/nodes/one"), "{harm:?}");
    event_on_uid(&world, &uid, "RemediationApproved", "its disk is failing").await
}

/// The node is replaced by another machine with the same name between approval and act: first just before the cordon,
/// then just before the deletion. The approval does not apply to the new node.
pub async fn i08_a_new_node_with_the_same_name_is_not_touched(world: impl World) -> Result<()> {
    let (at, mut seen) = watch::channel(None::<String>);
    let (go, gone) = watch::channel(());
    let proxy = FaultProxy::with_write_hook(held_up(world.client(), at, gone));
    let controller = start_with(&world, json!({"budget": {"maxGroupPercentPerHour": 100}}), proxy).await?;
    for (name, method) in [("phoenix-patch", Method::PATCH), ("phoenix-delete", Method::DELETE)] {
        let uid = join_failing(&world, zoned(name)).await?;
        let moment = format!("{method} {name}");
        tokio::time::timeout(world.patience(), seen.wait_for(|at| at.as_ref() == Some(&moment)))
            .await
            .with_context(|| format!("timed out waiting for {moment}"))??;
        world.power_off(name).await?;
        delete_node(&world, name).await?;
        world.behaviours().set(name, WORKS);
        world.join(zoned(name)).await?;
        let new_node = node_is(&world, name, "replaced", |node| node.uid().as_ref() != Some(&uid)).await?;
        go.send_replace(());
        is_verified(&world, name).await?;
        remediation_condition(&world, name, ("Succeeded", "True", "Replaced"), "").await?;
        let now = node(&world, name).await?;
        ensure!(now.uid() == new_node.uid(), "the new node was deleted");
        ensure!(!is_cordoned(&now) && !is_marked(&now), "the new node was cordoned: {:?}", now.spec);
    }
    let asked = controller.proxy.requests();
    let refused = |one: &&RecordedRequest| one.uri.contains("/nodes/phoenix-patch") && one.status == 422;
    ensure!(asked.iter().any(|one| refused(&one)), "the cordon was not refused: {asked:?}");
    let harm: Vec<_> = asked.iter().filter(|one| one.is_destructive()).collect();
    ensure!(!harm.is_empty() && harm.iter().all(|one| one.status == 409), "not refused: {harm:?}");
    Ok(())
}

/// Blocks the write with this method to `phoenix-METHOD` after its approval until `gone` changes.
fn held_up(client: kube::Client, at: watch::Sender<Option<String>>, gone: watch::Receiver<()>) -> WriteHook {
    let policies: Api<RemediationPolicy> = Api::all(client);
    Box::new(move |method, path| {
        let (policies, at, mut gone) = (policies.clone(), at.clone(), gone.clone());
        Box::pin(async move {
            let name = path.strip_prefix("/api/v1/nodes/").unwrap_or_default().to_owned();
            if name != format!("phoenix-{}", method.as_str().to_lowercase()) {
                return;
            }
            let status = policies.get("default").await.ok().and_then(|policy| policy.status);
            let reserved = status.unwrap_or_default().reservations;
            let moment = format!("{method} {name}");
            // Only once: later writes are about the new node.
            if at.borrow().as_ref() != Some(&moment) && reserved.iter().any(|one| one.node == name) {
                gone.mark_unchanged();
                at.send_replace(Some(moment));
                let _ = gone.changed().await;
            }
        })
    })
}

/// A controller is killed before and after each of its writes, in one run each, until a run has no further write.
/// Each time only this node is deleted, it was approved once, and its reservation has ended.
pub async fn a_crash_at_any_write_completes_a_replacement_once(world: impl World) -> Result<()> {
    let budget = json!({"maxPerHour": 120, "maxGroupPercentPerHour": 100, "maxInFlight": 1});
    let breaker = json!({"openPercent": 100});
    // Each replaced node counts as a generation; this scenario is not about the fuse.
    let spec = json!({"budget": budget, "breaker": breaker, "fuse": {"generations": 100}});
    let first = start_controller(&world, spec).await?;
    first.kill();
    delete_lease(&world).await?;
    let mut good = Vec::new();
    for name in GOOD {
        good.push((name, uid_of(&world, name).await?));
    }
    for side in [KillPoint::BeforeWrite as fn(usize) -> KillPoint, KillPoint::AfterWrite] {
        let mut write = 1;
        while replaced_though_killed(&world, side(write))
            .await
            .with_context(|| format!("{:?}", side(write)))?
        {
            for (name, uid) in &good {
                ensure!(is_there(&world, name, uid).await?, "{name} is gone: killed {:?}", side(write));
            }
            write += 1;
        }
        // The lease, two workers, two records, the NodeRemediation, two control workers, the approval, cordon,
        // eviction, deletion, Events and conditions.
        ensure!(write > 16, "the controller makes only {} writes", write - 1);
        println!("killed at each of {} writes", write - 1);
    }
    Ok(())
}

/// Returns whether the controller reached that write.
async fn replaced_though_killed(world: &impl World, kill_point: KillPoint) -> Result<bool> {
    let name = format!("{kill_point:?}").to_lowercase().replace(['(', ')'], "");
    let first = controller_with(world, &format!("{name}-first"), FaultProxy::killing_at(kill_point), |_| {});
    // Each in its own group: a group is never replaced as a whole.
    let uid = join_failing(world, zoned(&name).labelled("agentpool", &name)).await?;
    run_on(world, &name, &format!("pod-{name}"), json!({})).await?;
    tokio::select! {
        biased;
        () = first.proxy.killed() => {}
        story = has_ended(world, &name, &uid) => story?,
    }
    let reached = first.proxy.writes() >= kill_point.write();
    first.kill();
    delete_lease(world).await?;
    let next = controller(world, &format!("{name}-next"));
    has_ended(world, &name, &uid).await?;
    next.kill();
    delete_lease(world).await?;
    Ok(reached)
}

/// The node is gone, and the policy has exactly one reservation for it, which has ended.
async fn has_ended(world: &impl World, name: &str, uid: &str) -> Result<()> {
    is_replaced(world, name, uid).await?;
    until(world, "the act has ended", async || {
        let policy = policies(world).get("default").await?;
        let all = policy.data["status"]["reservations"].as_array().cloned().unwrap_or_default();
        let ours: Vec<&Value> = all.iter().filter(|one| one["remediation"] == uid).collect();
        ensure!(ours.len() == 1, "reserved {} times: {all:?}", ours.len());
        Ok((!ours[0]["ended"].is_null()).then_some(()))
    })
    .await
}
