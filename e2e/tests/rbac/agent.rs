//! Agents on a real API server: each may change its own Node and no other, and there only what verification needs.

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use nodekeeper_core::node::VERIFY;
use nodekeeper_e2e::fake_kubelet::{join, ready_condition};
use nodekeeper_e2e::{Cluster, or_skip};
use serde_json::{Value, json};

use crate::node::{FIRST, OTHER_TAINT, SECOND, TAINT};
use crate::{NAMESPACE, config_with, helm, start, token, token_for, until};

const ACCOUNT: &str = "nodekeeper-agent";
const LABEL: &str = "/metadata/labels/node-ready~1verified";
const RECORD: &str = "/metadata/annotations/nodekeeper.dev~1record";
const REQUEST: &str = "/metadata/annotations/nodekeeper.dev~1verify";

/// The resource that a patch is sent to.
#[derive(Clone, Copy, Debug)]
enum To {
    Node,
    Status,
}

fn gate_taint() -> Value {
    json!({"key": TAINT, "value": "true", "effect": "NoSchedule"})
}

fn add(path: &str, value: impl Into<Value>) -> Value {
    json!({"op": "add", "path": path, "value": value.into()})
}

fn remove(path: &str) -> Value {
    json!({"op": "remove", "path": path})
}

fn condition(type_: &str) -> Value {
    json!({"type": type_, "status": "False", "reason": "Tried", "message": "",
        "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

/// Joins a node that others have tainted, labelled and annotated too. A real Node has many of each.
async fn join_node(client: &Client, name: &str) -> Result<()> {
    let mut metadata = json!({"name": name, "labels": {"kubernetes.io/os": "linux", "zone": "a"}, "annotations": {"other/note": "n", VERIFY: "now"}});
    let mut taints = vec![json!({"key": OTHER_TAINT, "effect": "NoSchedule"}), gate_taint()];
    for number in 0..60 {
        metadata["labels"][format!("label-{number}")] = "v".repeat(60).into();
        metadata["annotations"][format!("annotation-{number}")] = "v".repeat(1000).into();
        taints.push(json!({"key": format!("taint-{number}"), "effect": "NoSchedule"}));
    }
    join(client, name, json!({"metadata": metadata, "spec": {"taints": taints}}), "boot", true).await?;
    let image = |number: usize| json!({"names": [format!("r.example.com/{number}@{}", "v".repeat(64))], "sizeBytes": number});
    let images: Vec<Value> = (0..50).map(image).collect();
    let conditions = [ready_condition(true), condition("MemoryPressure"), condition("DiskPressure")];
    let patch = Patch::Merge(json!({"status": {"images": images, "conditions": conditions}}));
    Api::<Node>::all(client.clone()).patch_status(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// The pod that the DaemonSet has on a node.
async fn pod_on(cluster: &Cluster, node: &str) -> Result<Pod> {
    let pods: Api<Pod> = Api::namespaced(cluster.client()?, NAMESPACE);
    let of_agents = ListParams::default().labels("app.kubernetes.io/component=agent");
    let is_there = |pod: &Pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.as_deref() == Some(node));
    until(&format!("an agent on {node}"), async || {
        Ok(pods.list(&of_agents).await?.items.into_iter().find(is_there))
    })
    .await
}

/// A client with the token of the agent on this node.
async fn agent_on(cluster: &Cluster, node: &str) -> Result<Client> {
    let token = token_for(cluster, ACCOUNT, Some(&pod_on(cluster, node).await?)).await?;
    Ok(Client::try_from(config_with(cluster, &token)?)?)
}

/// The message of a refusal; `None` if the request was accepted.
fn refusal<T>(answer: kube::Result<T>) -> Result<Option<String>> {
    match answer {
        Ok(_) => Ok(None),
        // Any other code would be taken for a conflict, and tried again.
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(Some(status.message)),
        Err(error) => bail!("neither accepted nor refused: {error}"),
    }
}

async fn patch(
    client: &Client,
    node: &str,
    to: To,
    operations: &[Value],
    dry_run: bool,
) -> Result<Option<String>> {
    let nodes: Api<Node> = Api::all(client.clone());
    let patch = Patch::<()>::Json(serde_json::from_value(json!(operations))?);
    let params = PatchParams { dry_run, ..PatchParams::default() };
    refusal(match to {
        To::Node => nodes.patch(node, &params, &patch).await,
        To::Status => nodes.patch_status(node, &params, &patch).await,
    })
}

/// The answer to a patch that is not stored.
async fn tried(client: &Client, node: &str, to: To, operations: &[Value]) -> Result<Option<String>> {
    patch(client, node, to, operations, true).await
}

/// Waits until the API server enforces the policies, and checks that it finds nothing wrong with them.
async fn enforced(cluster: &Cluster) -> Result<()> {
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(cluster.client()?);
    for name in ["nodekeeper-agent", "nodekeeper-agent-events"] {
        let checked = until(&format!("{name} is type-checked"), async || {
            let policy = policies.get(name).await?;
            let is_current = |status: &_| {
                let status: &k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicyStatus =
                    status;
                status.observed_generation == policy.metadata.generation && status.type_checking.is_some()
            };
            Ok(policy.status.filter(is_current).and_then(|status| status.type_checking))
        })
        .await?;
        let warnings = checked.expression_warnings.unwrap_or_default();
        ensure!(warnings.is_empty(), "{name}: {warnings:#?}");
    }
    // A request without a token of a pod: as soon as one policy is enforced, both are looked for.
    let anyone = Client::try_from(config_with(cluster, &token(cluster, ACCOUNT).await?)?)?;
    until("Nodes are protected", async || {
        Ok(tried(&anyone, FIRST, To::Node, &[add(RECORD, "{}")]).await?.map(drop))
    })
    .await?;
    until("Events are protected", async || Ok(report(&anyone, FIRST, "u").await?.map(drop))).await
}

/// The answer to an Event about a Node, which is not stored.
async fn report(client: &Client, node: &str, uid: &str) -> Result<Option<String>> {
    let events: Api<Event> = Api::namespaced(client.clone(), "default");
    let event = json!({"metadata": {"name": format!("{node}.1")}, "eventTime": "2026-01-01T00:00:00.000000Z", "type": "Normal",
        "reason": "NodeVerified", "action": "RemoveTaint", "note": "n", "reportingController": "nodekeeper.dev/agent",
        "reportingInstance": "i", "regarding": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}});
    let params = PostParams { dry_run: true, ..PostParams::default() };
    refusal(events.create(&params, &serde_json::from_value(event)?).await)
}

/// Every change that an agent makes, in order.
async fn may_verify(agent: &Client) -> Result<()> {
    let nodes: Api<Node> = Api::all(agent.clone());
    // As the operator writes it: the kubelet's conditions are not in the patch.
    for status in ["Unknown", "False"] {
        let mut condition = condition("NetworkVerified");
        condition["status"] = status.into();
        let patch = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
        let refused = refusal(nodes.patch_status(FIRST, &PatchParams::default(), &patch).await)?;
        ensure!(refused.is_none(), "{refused:?}");
    }
    for (what, operations) in [
        ("write the record", vec![add(RECORD, "{\"attempts\":1}")]),
        (
            "open",
            vec![
                json!({"op": "test", "path": "/spec/taints/1/key", "value": TAINT}),
                remove("/spec/taints/1"),
                add(LABEL, "true"),
                remove(REQUEST),
                add(RECORD, "{\"passed\":true}"),
            ],
        ),
        ("change nothing", vec![json!({"op": "test", "path": LABEL, "value": "true"})]),
        ("taint again", vec![add("/spec/taints/-", gate_taint()), remove(LABEL), add(RECORD, "{}")]),
    ] {
        let refused = patch(agent, FIRST, To::Node, &operations, false).await.context(what)?;
        ensure!(refused.is_none(), "{what}: {refused:?}");
    }
    Ok(())
}

/// Changes of an agent's own Node, each with a part of the message that refuses it.
fn foreign_changes() -> Vec<(To, Value, &'static str)> {
    let noexecute = json!({"key": TAINT, "value": "true", "effect": "NoExecute"});
    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": SECOND, "uid": "u"}]);
    let address = json!([{"type": "InternalIP", "address": "10.0.0.9"}]);
    let taints = "may change no taints but node-ready/unverified:NoSchedule";
    let spec = "must not change the fields of spec ";
    vec![
        (To::Node, add("/spec/taints/-", json!({"key": "a/b", "effect": "NoSchedule"})), taints),
        (To::Node, add("/spec/taints/-", noexecute), taints),
        (To::Node, remove("/spec/taints/0"), taints),
        (To::Node, add("/spec/taints/0/value", "other"), taints),
        (To::Node, remove("/spec/taints"), taints),
        (To::Node, add("/spec/unschedulable", true), spec),
        (To::Node, add("/spec/providerID", "aws:///a/i-1"), spec),
        (To::Node, add("/metadata/labels/a", "b"), "may change no label but node-ready/verified, and not a"),
        (To::Node, add("/metadata/labels/zone", "b"), "and not zone"),
        (To::Node, remove("/metadata/labels/zone"), "and not zone"),
        (To::Node, remove("/metadata/labels"), "and not "),
        (To::Node, add(LABEL, "maybe"), "may set the label node-ready/verified to 'true' only"),
        (
            To::Node,
            add("/metadata/annotations/a", "b"),
            "may change no annotations but nodekeeper.dev/record and",
        ),
        (To::Node, remove("/metadata/annotations/other~1note"), "and not other/note"),
        (To::Node, add(REQUEST, "again"), "may only remove the annotation nodekeeper.dev/verify"),
        (To::Node, add("/metadata/finalizers", json!(["a.example.com/b"])), "fields of metadata finalizers"),
        (To::Node, add("/metadata/ownerReferences", owner), "fields of metadata ownerReferences"),
        (
            To::Status,
            add("/status/conditions/0/status", "False"),
            "may change no condition but NetworkVerified",
        ),
        (
            To::Status,
            add("/status/conditions/-", condition("Other")),
            "may change no condition but NetworkVerified",
        ),
        (To::Status, remove("/status/conditions"), "may change no condition but NetworkVerified"),
        (To::Status, add("/status/capacity/cpu", "8"), "and not capacity"),
        (To::Status, add("/status/addresses", address), "and not addresses"),
        (To::Status, add(LABEL, "true"), "must not change labels and annotations through nodes/status"),
        (To::Status, add(RECORD, "{}"), "must not change labels and annotations through nodes/status"),
        (To::Status, remove(REQUEST), "must not change labels and annotations through nodes/status"),
        (To::Status, add("/metadata/labels/a", "b"), "may change no label"),
        (
            To::Status,
            add("/metadata/finalizers", json!(["a.example.com/b"])),
            "fields of metadata finalizers",
        ),
    ]
}

async fn must_change_nothing_else(agent: &Client) -> Result<()> {
    for (to, operation, wanted) in foreign_changes() {
        let refused = tried(agent, FIRST, to, std::slice::from_ref(&operation)).await;
        let refused = refused.with_context(|| format!("{to:?} {operation}"))?;
        ensure!(
            refused.as_ref().is_some_and(|message| message.contains(wanted)),
            "{to:?} {operation}: {refused:?}"
        );
    }
    // Nor together with what it may change.
    let both = [remove("/spec/taints/1"), add(LABEL, "true"), add("/spec/unschedulable", true)];
    ensure!(tried(agent, FIRST, To::Node, &both).await?.is_some(), "a part of the patch is foreign");
    let nodes: Api<Node> = Api::all(agent.clone());
    let deleted =
        refusal(nodes.delete(FIRST, &DeleteParams { dry_run: true, ..DeleteParams::default() }).await)?;
    ensure!(
        deleted.is_some_and(|message| message.contains("cannot delete resource")),
        "RBAC grants no deletion"
    );
    Ok(())
}

/// What opens a gate, written to a Node that is not its own.
fn opening() -> [Value; 3] {
    [remove("/spec/taints/1"), add(LABEL, "true"), add(RECORD, "{}")]
}

async fn must_leave_other_nodes(cluster: &Cluster, agent: &Client) -> Result<()> {
    let wanted = format!("the agent of node {FIRST} must not change node {SECOND}");
    let condition = [add("/status/conditions/-", condition("NetworkVerified"))];
    for (to, operations) in [(To::Node, &opening()[..]), (To::Status, &condition)] {
        let refused = tried(agent, SECOND, to, operations).await?;
        ensure!(refused.as_ref().is_some_and(|message| message.contains(&wanted)), "{refused:?}");
    }
    // Without the claims that the API server puts into the token of a pod.
    let anyone = Client::try_from(config_with(cluster, &token(cluster, ACCOUNT).await?)?)?;
    let refused = tried(&anyone, FIRST, To::Node, &opening()).await?;
    ensure!(
        refused.as_ref().is_some_and(|message| message.contains("the token names no node")),
        "{refused:?}"
    );
    Ok(())
}

async fn may_report_its_own_node(cluster: &Cluster, agent: &Client) -> Result<()> {
    let nodes: Api<Node> = Api::all(cluster.client()?);
    let uid = |name: &'static str| {
        let nodes = nodes.clone();
        async move { nodes.get(name).await?.uid().context("no uid") }
    };
    let (first, second) = (uid(FIRST).await?, uid(SECOND).await?);
    let own = report(agent, FIRST, &first).await?;
    ensure!(own.is_none(), "{own:?}");
    for (name, uid) in [(SECOND, &second), (FIRST, &second), (SECOND, &first)] {
        let refused = report(agent, name, uid).await?;
        ensure!(
            refused.is_some_and(|message| message.contains("may create Events about that Node only")),
            "{name}"
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_changes_only_its_own_node() -> Result<()> {
    let Some(cluster) = or_skip(start().await)? else { return Ok(()) };
    // The verified label must not remove the pod, and with it its token.
    let agent = json!({"mode": "continuous", "networkPolicy": {"enabled": true}});
    let values = json!({"deploymentMode": "daemonset", "agent": agent, "rbac": {"nodeConditions": true}});
    let Some(()) = or_skip(helm::install(&cluster, &values).await)? else { return Ok(()) };
    let client = cluster.client()?;
    for name in [FIRST, SECOND] {
        join_node(&client, name).await?;
    }
    let (first, second) = (agent_on(&cluster, FIRST).await?, agent_on(&cluster, SECOND).await?);
    enforced(&cluster).await?;

    must_leave_other_nodes(&cluster, &first).await?;
    must_change_nothing_else(&first).await?;
    may_report_its_own_node(&cluster, &first).await?;
    may_verify(&first).await?;

    // A Node that is created again is another one, until the kubelet has renewed the token.
    let nodes: Api<Node> = Api::all(client.clone());
    nodes.delete(SECOND, &DeleteParams::default()).await?;
    join_node(&client, SECOND).await?;
    let refused = tried(&second, SECOND, To::Node, &opening()).await?;
    ensure!(
        refused.as_ref().is_some_and(|message| message.contains("an earlier Node of this name")),
        "{refused:?}"
    );

    // The roles alone do not say which Node.
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client);
    bindings.delete("nodekeeper-agent", &DeleteParams::default()).await?;
    until("the policy is gone", async || {
        Ok(tried(&first, SECOND, To::Node, &opening()).await?.is_none().then_some(()))
    })
    .await
}

/// Where controller and agents run, and for the default mode of agents.
#[tokio::test(flavor = "multi_thread")]
async fn a_verified_node_loses_its_agent_with_once() -> Result<()> {
    let Some(cluster) = or_skip(start().await)? else { return Ok(()) };
    let values = json!({"deploymentMode": "both", "controller": {"replicas": 0}});
    let Some(()) = or_skip(helm::install(&cluster, &values).await)? else { return Ok(()) };
    let client = cluster.client()?;
    for name in [FIRST, SECOND] {
        join_node(&client, name).await?;
    }
    let (verified, other) = (pod_on(&cluster, FIRST).await?, pod_on(&cluster, SECOND).await?);
    enforced(&cluster).await?;
    let agent = agent_on(&cluster, FIRST).await?;
    let refused = patch(&agent, FIRST, To::Node, &opening(), false).await?;
    ensure!(refused.is_none(), "{refused:?}");
    let pods: Api<Pod> = Api::namespaced(client, NAMESPACE);
    // No kubelet ends the pod.
    until("the pod of the verified node is deleted", async || {
        let pod = pods.get_opt(&verified.name_any()).await?;
        Ok(pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some()).then_some(()))
    })
    .await?;
    let other = pods.get(&other.name_any()).await?;
    ensure!(other.metadata.deletion_timestamp.is_none(), "the node is not verified");
    // It reads all gates, because another one may have precedence, and watches none.
    let granted = crate::rights(agent, "kube-public").await?;
    let of_gates: Vec<&String> = granted.iter().filter(|line| line.starts_with("nodekeeper.dev/")).collect();
    assert_eq!(of_gates, ["nodekeeper.dev/nodegates [] list"]);
    Ok(())
}
