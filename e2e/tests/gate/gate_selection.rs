//! Which gate applies to a node, what it waits for, and dry runs.

use anyhow::{Context as _, Result, ensure};
use http::Method;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use nodekeeper_e2e::scenario::fault_proxy::RecordedRequest;
use nodekeeper_e2e::scenario::pod_observer::PodObserver;
use nodekeeper_e2e::scenario::steps::{
    controller, edit_gate, event_on, gate, gate_condition, gates, has_taint, is_gated, is_labelled,
    is_verified, no_workers_left, node, node_is, patch_node, record,
};
use nodekeeper_e2e::scenario::world::{BROKEN, IMAGE, WORKS, World, machine, taint};
use serde_json::json;

/// With a dry-run gate workers run and Events report the outcome, but no node is written until the gate is enforced.
pub async fn a_dry_run_emits_events_and_writes_no_node(world: impl World) -> Result<()> {
    gate(&world, "default", json!({"enforcement": "DryRun"})).await?;
    let controller = controller(&world, "a");
    let written = || {
        let write = |one: &RecordedRequest| one.is_about_nodes() && one.method != Method::GET;
        controller.proxy.requests().into_iter().filter(write).collect::<Vec<_>>()
    };
    world.behaviours().set("bad", BROKEN);
    for name in ["good", "bad"] {
        world.join(machine(name)).await?;
    }
    event_on(&world, "good", "NodeGateDryRun", "the taint would be removed").await?;
    event_on(&world, "bad", "NodeGateDryRun", "would stay tainted: dns").await?;
    // Later workers run too, still without a write.
    event_on(&world, "bad", "NodeGateDryRun", "worker 2").await?;
    gate_condition(&world, "default", ("Ready", "False", "DryRun")).await?;
    for name in ["good", "bad"] {
        let node = node(&world, name).await?;
        ensure!(is_gated(&node) && !is_labelled(&node), "{name} was untainted: {:?}", node.spec);
        ensure!(record(&node).is_none(), "{name} has a record: {:?}", node.annotations());
    }
    ensure!(written().is_empty(), "{:?}", written());
    world.behaviours().set("bad", WORKS);
    edit_gate(&world, "default", json!({"enforcement": "Enforce"})).await?;
    for name in ["good", "bad"] {
        is_verified(&world, name).await?;
    }
    ensure!(written().len() > 1, "what is written is not seen: {:?}", written());
    no_workers_left(&world).await
}

/// No worker starts before the pod of the awaited DaemonSet is Ready on the node.
pub async fn the_gate_waits_for_a_daemon_set(world: impl World) -> Result<()> {
    let observer = PodObserver::start(&world);
    let only = |pool: &str| json!({"matchLabels": {"pool": pool}});
    let wait = json!({"daemonSets": [{"namespace": "kube-system", "name": "network"}]});
    gate(&world, "waiting", json!({"nodeSelector": only("waiting"), "waitFor": wait})).await?;
    gate(&world, "other", json!({"nodeSelector": only("other")})).await?;
    let _controller = controller(&world, "a");
    let set = daemon_set(&world).await?;
    world.join(machine("late").labelled("pool", "waiting")).await?;
    let uid = node(&world, "late").await?.uid().context("no uid")?;
    // Other nodes come later and are verified, before the pod exists and before it is Ready, so the controller had
    // time to act.
    for (turn, other) in ["other-1", "other-2"].into_iter().enumerate() {
        if turn == 1 {
            make_daemon(&world, &set, "late").await?;
        }
        world.join(machine(other).labelled("pool", "other")).await?;
        is_verified(&world, other).await?;
        let late = node(&world, "late").await?;
        ensure!(
            is_gated(&late) && observer.seen()?.of(&uid) == 0,
            "checked too early: {:?}",
            observer.seen()?
        );
    }
    let pods: Api<Pod> = Api::namespaced(world.client(), "kube-system");
    // A real kubelet reports the same later.
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    pods.patch_status("network-late", &PatchParams::default(), &Patch::Merge(ready)).await?;
    let record = is_verified(&world, "late").await?;
    ensure!((record.number, record.attempts) == (1, 1), "{record:?}");
    no_workers_left(&world).await
}

async fn daemon_set(world: &impl World) -> Result<DaemonSet> {
    let labels = json!({"app": "network"});
    let spec = json!({"containers": [{"name": "network", "image": IMAGE}]});
    let template = json!({"metadata": {"labels": labels}, "spec": spec});
    let set = json!({"metadata": {"name": "network"}, "spec": {"selector": {"matchLabels": labels}, "template": template}});
    let sets: Api<DaemonSet> = Api::namespaced(world.client(), "kube-system");
    Ok(sets.create(&PostParams::default(), &serde_json::from_value(set)?).await?)
}

/// Creates the pod of a DaemonSet on a node, like its controller.
async fn make_daemon(world: &impl World, set: &DaemonSet, node: &str) -> Result<()> {
    let owner = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "name": set.name_any(), "uid": set.uid(), "controller": true});
    let slow = json!({"name": "slow", "image": IMAGE, "command": ["sleep", "120"]});
    let pod = json!({"metadata": {"name": format!("network-{node}"), "labels": {"app": "network"}, "ownerReferences": [owner]},
        "spec": {"nodeName": node, "tolerations": [{"operator": "Exists"}], "automountServiceAccountToken": false,
            "initContainers": [slow], "containers": [{"name": "network", "image": IMAGE}]}});
    let pods: Api<Pod> = Api::namespaced(world.client(), "kube-system");
    pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    Ok(())
}

/// Two gates select the same node: the one with the higher priority applies, and the other reports that it does not.
/// When the first is deleted, the other applies.
pub async fn the_gate_with_higher_priority_applies(world: impl World) -> Result<()> {
    gate(&world, "loser", json!({})).await?;
    gate(&world, "winner", json!({"priority": 10})).await?;
    let _controller = controller(&world, "a");
    world.join(machine("wanted-1")).await?;
    let record = is_verified(&world, "wanted-1").await?;
    let uid = async |gate: &str| Ok::<_, anyhow::Error>(gates(&world).get(gate).await?.uid());
    ensure!(uid("winner").await?.is_some_and(|uid| record.scope.gate_uid == uid), "{record:?}");
    let why = gate_condition(&world, "loser", ("Shadowed", "True", "LowerPrecedence")).await?;
    ensure!(why.contains("gate winner") && why.contains("spec.priority"), "{why}");
    gate_condition(&world, "winner", ("Shadowed", "False", "NoOverlap")).await?;
    gates(&world).delete("winner", &DeleteParams::default()).await?;
    gate_condition(&world, "loser", ("Shadowed", "False", "NoOverlap")).await?;
    world.join(machine("wanted-2")).await?;
    let record = is_verified(&world, "wanted-2").await?;
    ensure!(uid("loser").await?.is_some_and(|uid| record.scope.gate_uid == uid), "{record:?}");
    no_workers_left(&world).await
}

/// Two gates with taints of their own verify a node, one after the other. Afterwards the one of lower precedence verifies it
/// again by its own rules, and taints it when it fails.
pub async fn g08_each_of_two_gates_verifies_a_node_again(world: impl World) -> Result<()> {
    const STRICT: &str = "strict.example.com/unverified";
    gate(&world, "wide", json!({"priority": 10, "onReboot": "Ignore"})).await?;
    gate(&world, "strict", json!({"taints": [taint(STRICT)]})).await?;
    let _controller = controller(&world, "a");
    let mut both = machine("both");
    both.taints.push(taint(STRICT));
    world.join(both).await?;
    let is_open = |node: &Node| !is_gated(node) && !has_taint(node, STRICT);
    let opened = node_is(&world, "both", "open", is_open).await?;
    ensure!(is_labelled(&opened), "the last gate sets the label: {:?}", opened.labels());
    let uid = async |gate: &str| gates(&world).get(gate).await?.uid().context("no uid");
    let (wide, strict) = (uid("wide").await?, uid("strict").await?);
    let numbers = |node: &Node| {
        let record = record(node)?;
        let number = |gate: &String| record.section(gate.as_str()).map(|one| (one.number, one.is_open()));
        Some((number(&wide)?, number(&strict)?))
    };
    ensure!(numbers(&opened) == Some(((1, true), (2, true))), "{:?}", record(&opened));
    world.behaviours().set("both", BROKEN);
    world.reboot("both").await?;
    let held = node_is(&world, "both", "held by the stricter gate", |node| has_taint(node, STRICT)).await?;
    ensure!(!is_gated(&held) && !is_labelled(&held), "{:?}", held.spec);
    ensure!(numbers(&held).is_some_and(|(wide, _)| wide == (1, true)), "{:?}", record(&held));
    world.behaviours().set("both", WORKS);
    let opened = node_is(&world, "both", "open again", is_open).await?;
    ensure!(is_labelled(&opened), "{:?}", opened.labels());
    ensure!(numbers(&opened).is_some_and(|(wide, _)| wide == (1, true)), "{:?}", record(&opened));
    no_workers_left(&world).await
}

/// A tainted node that no gate selects gets an Event and no worker, until a gate selects it.
pub async fn a_tainted_node_without_a_gate_gets_an_event(world: impl World) -> Result<()> {
    let observer = PodObserver::start(&world);
    gate(&world, "default", json!({"nodeSelector": {"matchLabels": {"pool": "a"}}})).await?;
    let _controller = controller(&world, "a");
    world.join(machine("stray")).await?;
    event_on(&world, "stray", "NodeUnserved", "no gate with this taint selects the node").await?;
    let why = gate_condition(&world, "default", ("NodesUnserved", "True", "NotSelected")).await?;
    ensure!(why.contains("stray") && why.contains("spec.nodeSelector"), "{why}");
    world.join(machine("chosen").labelled("pool", "a")).await?;
    is_verified(&world, "chosen").await?;
    let stray = node(&world, "stray").await?;
    let uid = stray.uid().context("no uid")?;
    ensure!(
        is_gated(&stray) && observer.seen()?.of(&uid) == 0,
        "handled without a gate: {:?}",
        observer.seen()?
    );
    patch_node(&world, "stray", json!({"metadata": {"labels": {"pool": "a"}}})).await?;
    is_verified(&world, "stray").await?;
    gate_condition(&world, "default", ("NodesUnserved", "False", "AllServed")).await?;
    no_workers_left(&world).await
}
