//! Nodes that are replaced, and whoever bears their names afterwards.

use anyhow::{Context as _, Result, ensure};
use http::Method;
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, ResourceExt as _};
use nodekeeper_core::api::{NodeRemediation, RemediationPolicy};
use nodekeeper_core::node::CORDONED;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::draining::run_on;
use crate::line::{Asked, Before, Cut, Line};
use crate::play::{
    Controller, controller, controller_with, delete_node, end_the_lease, gate, node, node_is, opens,
    tells_of, until,
};
use crate::world::{BROKEN, Machine, WORKS, World, machine};

const ZONE: &str = "topology.kubernetes.io/zone";
/// Those that work, with which others are compared.
pub const GOOD: [&str; 3] = ["one", "two", "three"];

/// Requests as people see them.
pub fn requests(world: &impl World) -> Api<DynamicObject> {
    Api::all_with(world.client(), &ApiResource::erase::<NodeRemediation>(&()))
}

pub fn policies(world: &impl World) -> Api<DynamicObject> {
    Api::all_with(world.client(), &ApiResource::erase::<RemediationPolicy>(&()))
}

/// Makes the policy: as `spec` says, enforced, and on the word of all who ask, if it does not say otherwise.
async fn policy(world: &impl World, spec: Value) -> Result<()> {
    let mut whole = json!({"enforcement": "Enforce", "deleteNodeObjectFor": ["*"]});
    for (key, value) in spec.as_object().into_iter().flatten() {
        whole[key] = value.clone();
    }
    let policy = json!({"apiVersion": "nodekeeper.dev/v1alpha1", "kind": "RemediationPolicy",
        "metadata": {"name": "default"}, "spec": whole});
    policies(world).create(&PostParams::default(), &serde_json::from_value(policy)?).await?;
    Ok(())
}

/// Changes the policy as `kubectl patch` does.
pub async fn edit_policy(world: &impl World, spec: Value) -> Result<()> {
    let patch = Patch::Merge(json!({"spec": spec}));
    policies(world).patch("default", &PatchParams::default(), &patch).await?;
    Ok(())
}

fn condition<'a>(object: &'a DynamicObject, type_: &str) -> Option<&'a Value> {
    object.data["status"]["conditions"].as_array()?.iter().find(|one| one["type"] == type_)
}

/// Waits until one of these objects has a condition with this type, status and reason, with these words in its
/// message, which is given.
async fn says(
    world: &impl World,
    who: &str,
    objects: &Api<DynamicObject>,
    is: impl Fn(&DynamicObject) -> bool,
    what: (&str, &str, &str),
    words: &str,
) -> Result<String> {
    let last = std::cell::RefCell::new(Value::Null);
    let look = async || {
        let all = objects.list(&ListParams::default()).await?.items;
        let Some(one) = all.into_iter().find(|one| is(one)) else { return Ok(None) };
        let found = condition(&one, what.0).filter(|one| one["status"] == what.1 && one["reason"] == what.2);
        let message = found.and_then(|one| one["message"].as_str()).filter(|message| message.contains(words));
        let message = message.map(str::to_owned);
        *last.borrow_mut() = one.data["status"].clone();
        Ok(message)
    };
    let seen = until(world, &format!("{who} says {what:?} {words:?}"), look).await;
    seen.with_context(|| last.borrow().to_string())
}

/// Waits until the request for a node says this, and gives the message.
pub async fn request_says(
    world: &impl World,
    node: &str,
    what: (&str, &str, &str),
    words: &str,
) -> Result<String> {
    let is = |one: &DynamicObject| one.data["spec"]["node"]["name"] == node;
    says(world, &format!("the request for {node}"), &requests(world), is, what, words).await
}

/// The same of the policy.
pub async fn policy_says(world: &impl World, what: (&str, &str, &str), words: &str) -> Result<String> {
    says(world, "the policy", &policies(world), |_| true, what, words).await
}

pub fn zoned(name: &str) -> Machine {
    machine(name).labelled(ZONE, "a")
}

/// A gate that asks for replacements, a policy, a controller on this line, and three nodes that were let in.
pub async fn stage_with(world: &impl World, spec: Value, line: Line) -> Result<Controller> {
    let retry = json!({"maxRetries": 1, "recheckPeriodSeconds": 10});
    gate(world, "default", json!({"onFailure": "Replace", "retry": retry})).await?;
    policy(world, spec).await?;
    let controller = controller_with(world, "a", line, |_| {});
    for name in GOOD {
        world.join(zoned(name)).await?;
        opens(world, name).await?;
    }
    Ok(controller)
}

pub async fn stage(world: &impl World, spec: Value) -> Result<Controller> {
    stage_with(world, spec, Line::default()).await
}

/// A node that never passes joins. Gives its uid.
pub async fn hopeless(world: &impl World, machine: Machine) -> Result<String> {
    let name = machine.name.clone();
    world.fates().set(&name, BROKEN);
    world.join(machine).await?;
    uid_of(world, &name).await
}

pub async fn uid_of(world: &impl World, name: &str) -> Result<String> {
    node(world, name).await?.uid().context("a node without a uid")
}

/// Somebody asks for a replacement, with the line of the manual. Gives the uid of the node.
pub async fn ask(world: &impl World, name: &str) -> Result<String> {
    let node = node(world, name).await?;
    let uid = node.uid().context("no uid")?;
    let boot = node.status.and_then(|status| status.node_info).context("no boot")?.boot_id;
    let spec = json!({"node": {"name": name, "uid": uid, "bootID": boot},
        "causes": [{"source": "Person", "name": "ada", "message": "its disk is failing"}]});
    let request = json!({"apiVersion": "nodekeeper.dev/v1alpha1", "kind": "NodeRemediation",
        "metadata": {"name": uid}, "spec": spec});
    requests(world).create(&PostParams::default(), &serde_json::from_value(request)?).await?;
    Ok(uid)
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

/// Waits for the end of a replacement, and looks whether the node is really gone.
pub async fn is_replaced(world: &impl World, name: &str, uid: &str) -> Result<()> {
    request_says(world, name, ("Succeeded", "True", "Replaced"), "").await?;
    ensure!(!is_there(world, name, uid).await?, "{name} is still there");
    Ok(())
}

/// A node that never passes is compared with two that do, and its Node object goes, because the policy says so.
pub async fn a_hopeless_node_is_replaced(world: impl World) -> Result<()> {
    let controller = stage(&world, json!({"deleteNodeObjectFor": ["default"]})).await?;
    let uid = hopeless(&world, zoned("hopeless")).await?;
    is_replaced(&world, "hopeless", &uid).await?;
    let all = controller.line.asked();
    let deleted: Vec<_> = all.iter().filter(|one| one.is_harm()).map(|one| one.uri.as_str()).collect();
    ensure!(deleted.len() == 1 && deleted[0].starts_with("/api/v1/nodes/hopeless"), "{deleted:?}");
    policy_says(&world, ("Ready", "True", "Enforcing"), "").await.map(drop)
}

/// Somebody asks for a node that works: it is cordoned, its pod is evicted and gone, and only then the Node goes.
pub async fn a_person_has_a_node_replaced(world: impl World) -> Result<()> {
    let controller = stage(&world, json!({})).await?;
    run_on(&world, "one", "web", json!({})).await?;
    let uid = ask(&world, "one").await?;
    is_replaced(&world, "one", &uid).await?;
    let harm: Vec<_> = controller.line.asked().into_iter().filter(Asked::is_harm).collect();
    let [eviction, deletion] = harm.as_slice() else { anyhow::bail!("not two acts: {harm:?}") };
    ensure!(eviction.uri.contains("/pods/web/eviction"), "{harm:?}");
    ensure!(deletion.method == Method::DELETE && deletion.uri.starts_with("/api/v1/nodes/one"), "{harm:?}");
    tells_of(&world, &uid, "RemediationApproved", "its disk is failing").await
}

/// Between approval and act the node goes, and another machine comes under its name: first just before our cordon, then
/// just before our deletion. Whatever was approved is not about that one.
pub async fn i08_a_namesake_is_never_touched(world: impl World) -> Result<()> {
    let (at, mut seen) = watch::channel(None::<String>);
    let (go, gone) = watch::channel(());
    let line = Line::overtaken(held_up(world.client(), at, gone));
    let controller = stage_with(&world, json!({"budget": {"groupPercent": 100}}), line).await?;
    for (name, method) in [("phoenix-patch", Method::PATCH), ("phoenix-delete", Method::DELETE)] {
        let uid = hopeless(&world, zoned(name)).await?;
        let moment = format!("{method} {name}");
        tokio::time::timeout(world.patience(), seen.wait_for(|at| at.as_ref() == Some(&moment)))
            .await
            .with_context(|| format!("{moment} does not come"))??;
        world.power_off(name).await?;
        delete_node(&world, name).await?;
        world.fates().set(name, WORKS);
        world.join(zoned(name)).await?;
        let namesake = node_is(&world, name, "another", |node| node.uid().as_ref() != Some(&uid)).await?;
        go.send_replace(());
        opens(&world, name).await?;
        request_says(&world, name, ("Succeeded", "True", "Replaced"), "").await?;
        let now = node(&world, name).await?;
        ensure!(now.uid() == namesake.uid(), "the namesake was deleted");
        ensure!(!is_cordoned(&now) && !is_marked(&now), "the namesake was cordoned: {:?}", now.spec);
    }
    let asked = controller.line.asked();
    let refused = |one: &&Asked| one.uri.contains("/nodes/phoenix-patch") && one.status == 422;
    ensure!(asked.iter().any(|one| refused(&one)), "our cordon came to nothing in another way: {asked:?}");
    let harm: Vec<_> = asked.iter().filter(|one| one.is_harm()).collect();
    ensure!(!harm.is_empty() && harm.iter().all(|one| one.status == 409), "not refused: {harm:?}");
    Ok(())
}

/// Holds up what is written to a `phoenix-METHOD` by this method once its replacement was approved, until told to go on.
fn held_up(client: kube::Client, at: watch::Sender<Option<String>>, gone: watch::Receiver<()>) -> Before {
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
            // Once: what comes later is about the namesake.
            if at.borrow().as_ref() != Some(&moment) && reserved.iter().any(|one| one.node == name) {
                gone.mark_unchanged();
                at.send_replace(Some(moment));
                let _ = gone.changed().await;
            }
        })
    })
}

/// A controller is killed before and after each of its writes, one after the other, until a run has no more of them.
/// Each time the node goes, and nobody else does; it was approved once, and the act has ended. On a real server, which
/// takes its time, it is every fifth write.
pub async fn a_controller_that_is_killed_at_any_write_of_a_replacement_ends_it_once(
    world: impl World,
) -> Result<()> {
    let budget = json!({"perHour": 120, "groupPercent": 100, "inFlight": 1});
    let breaker = json!({"openPercent": 100});
    // Each one that goes is a generation: this is not about the fuse.
    let spec = json!({"budget": budget, "breaker": breaker, "fuse": {"generations": 100}});
    let first = stage(&world, spec).await?;
    first.kill();
    end_the_lease(&world).await?;
    let mut good = Vec::new();
    for name in GOOD {
        good.push((name, uid_of(&world, name).await?));
    }
    for side in [Cut::Before as fn(usize) -> Cut, Cut::After] {
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
        // The lease, two workers, two records, the request, two controls, the approval, cordon, eviction, deletion, and
        // what is said about all of it.
        ensure!(write > 16, "there are only {} writes to be killed at", write - 1);
        println!("killed at each of {} writes", write - 1);
    }
    Ok(())
}

/// Whether there was such a write at all.
async fn replaced_though_killed(world: &impl World, cut: Cut) -> Result<bool> {
    let name = format!("{cut:?}").to_lowercase().replace(['(', ')'], "");
    let doomed = controller_with(world, &format!("{name}-doomed"), Line::cut_at(cut), |_| {});
    // Each in a group of its own: a group is never replaced as a whole.
    let uid = hopeless(world, zoned(&name).labelled("agentpool", &name)).await?;
    run_on(world, &name, &format!("pod-{name}"), json!({})).await?;
    tokio::select! {
        biased;
        () = doomed.line.killed() => {}
        story = has_ended(world, &name, &uid) => story?,
    }
    let reached = doomed.line.writes() >= cut.write();
    doomed.kill();
    end_the_lease(world).await?;
    let next = controller(world, &format!("{name}-next"));
    has_ended(world, &name, &uid).await?;
    next.kill();
    end_the_lease(world).await?;
    Ok(reached)
}

/// The node is gone, and the policy knows of one act for it, which is over.
async fn has_ended(world: &impl World, name: &str, uid: &str) -> Result<()> {
    is_replaced(world, name, uid).await?;
    until(world, "the act has ended", async || {
        let policy = policies(world).get("default").await?;
        let all = policy.data["status"]["reservations"].as_array().cloned().unwrap_or_default();
        let ours: Vec<&Value> = all.iter().filter(|one| one["remediation"] == uid).collect();
        ensure!(ours.len() == 1, "approved {} times: {all:?}", ours.len());
        Ok((!ours[0]["ended"].is_null()).then_some(()))
    })
    .await
}
