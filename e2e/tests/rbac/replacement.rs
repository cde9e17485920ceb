//! A complete replacement with only the rights that the chart grants where remediation is enforced.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use nodekeeper_core::api::{NodeGate, NodeRemediation, RemediationPolicy};
use nodekeeper_core::configured::{ConfiguredObject, ObjectKind};
use nodekeeper_e2e::fake_kubelet::{create, join};
use nodekeeper_e2e::{Cluster, or_skip};
use nodekeeper_operator::Settings;
use serde_json::{Value, json};

use crate::node::{self, First, Machines};
use crate::refusals::Refusals;
use crate::{Running, chart, config_of, helm, installed_objects, settings, start, until};

/// The control group.
const GOOD: [&str; 2] = ["node-3", "node-4"];
/// A node whose `NodeClaim` cannot be found, so it stays.
const CLAIMED: &str = "claimed";
/// The smallest history that a policy may have.
const HISTORY: usize = 10;

/// A node that never passes is compared with two others, cordoned, drained and deleted. No request of the controller
/// is refused.
#[tokio::test(flavor = "multi_thread")]
async fn no_request_of_a_replacement_is_refused() -> Result<()> {
    let Some(cluster) = or_skip(start().await)? else { return Ok(()) };
    let checks = json!({"skip": ["tcp", "peers"]});
    let spec = json!({"onFailure": "Replace", "retry": {"maxRetries": 0, "recheckPeriodSeconds": 10},
        "deadlines": {"checkSeconds": 2, "workerSeconds": 30}, "checks": checks});
    let remediation = json!({"enforcement": "Enforce", "history": {"ttlSeconds": 3600, "maxCount": HISTORY}, "deleteNodeObjectFor": [{"source": "Gate", "name": "*"}, {"source": "Person", "name": "*"}]});
    let values = json!({"controller": {"replicas": 0}, "gate": {"spec": spec}, "remediation": remediation});
    let Some(()) = or_skip(helm::install(&cluster, &values).await)? else { return Ok(()) };
    let refusals = Refusals::default();
    let client = refusals.client(config_of(&cluster, "nodekeeper-controller").await?)?;
    let objects = installed_objects(&cluster).await?;
    an_earlier_release(&cluster, client.clone(), &objects).await?;
    let held = [node::FIRST, GOOD[0], GOOD[1]].map(|name| (name, node::TAINT));
    let _machines = Machines::start(&cluster, &held, First::NeverHeals).await?;
    workload(&cluster).await?;
    let finished = requests(&cluster).await?;

    pause(&cluster, json!("2030-01-31T18:00:00Z")).await?;
    let controller = Running::start(client, Settings { objects, ..settings() });
    let paused = until("a cause that was observed again", async || is_refreshed(&cluster).await).await;
    paused.with_context(|| format!("refused: {:?}", refusals.list()))?;
    pause(&cluster, json!(null)).await?;
    let replaced = until("a replacement that succeeded", async || has_succeeded(&cluster).await).await;
    replaced.with_context(|| format!("refused: {:?}", refusals.list()))?;
    let nodes: Api<Node> = Api::all(cluster.client()?);
    let left: Vec<String> = nodes.list(&ListParams::default()).await?.iter().map(Node::name_any).collect();
    ensure!(left == [CLAIMED, GOOD[0], GOOD[1]], "{left:?}");
    let pods: Api<Pod> = Api::namespaced(cluster.client()?, "default");
    let bound = ListParams::default().fields(&format!("spec.nodeName={}", node::FIRST));
    ensure!(pods.list(&bound).await?.items.is_empty(), "the node went before its pod");
    let requests: Api<NodeRemediation> = Api::all(cluster.client()?);
    until("the oldest of too many requests is deleted", async || {
        let all = requests.list(&ListParams::default()).await?.items;
        let left = all.iter().filter(|one| finished.contains(&one.name_any())).count();
        Ok((left < finished.len()).then_some(()))
    })
    .await?;
    controller.stop().await?;
    assert_eq!(refusals.list(), Vec::<String>::new());
    // NodeClaims are deleted in the tests with a real Karpenter.
    let harm: Vec<&str> = chart::HARM.iter().copied().filter(|rule| !rule.contains("nodeclaims")).collect();
    let rules = [chart::EVERYWHERE, chart::APPLY, &harm].concat();
    assert_eq!(refusals.unused(&rules), Vec::<String>::new(), "u07: rights that nothing uses");
    Ok(())
}

/// Applies other objects, as a release with other values would, so that those of now are patched.
async fn an_earlier_release(cluster: &Cluster, client: Client, objects: &[ConfiguredObject]) -> Result<()> {
    let mut others = objects.to_vec();
    for object in &mut others {
        match object.key.kind {
            ObjectKind::NodeGate => object.spec["priority"] = json!(1),
            ObjectKind::RemediationPolicy => object.spec["evidenceSeconds"] = json!(300),
        }
    }
    let controller = Running::start(client, Settings { objects: others, ..settings() });
    let gates: Api<NodeGate> = Api::all(cluster.client()?);
    let policies: Api<RemediationPolicy> = Api::all(cluster.client()?);
    until("gate and policy", async || {
        Ok(gates.get_opt("default").await?.zip(policies.get_opt("default").await?).map(drop))
    })
    .await?;
    controller.stop().await
}

/// Pauses remediation until this time, or no longer.
async fn pause(cluster: &Cluster, until: Value) -> Result<()> {
    let policies: Api<RemediationPolicy> = Api::all(cluster.client()?);
    let patch = Patch::Merge(json!({"metadata": {"annotations": {"nodekeeper.dev/pause-until": until}}}));
    policies.patch("default", &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Whether the gate has requested the replacement of the first node, and has failed it once more since.
async fn is_refreshed(cluster: &Cluster) -> Result<Option<()>> {
    let requests: Api<NodeRemediation> = Api::all(cluster.client()?);
    let all = requests.list(&ListParams::default()).await?.items;
    let of_first = all.iter().find(|one| one.spec.node.name == node::FIRST);
    Ok(of_first.filter(|one| one.metadata.generation.is_some_and(|generation| generation > 1)).map(drop))
}

/// People request the replacement of a node that Karpenter is said to have created, and of more nodes that are gone than the
/// history keeps. Returns the names of the latter.
async fn requests(cluster: &Cluster) -> Result<Vec<String>> {
    let client = cluster.client()?;
    let owner =
        json!({"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "name": "claim", "uid": "claim-uid"});
    let node = json!({"metadata": {"name": CLAIMED, "ownerReferences": [owner]}});
    join(&client, CLAIMED, node, "boot", true).await?;
    let uid = Api::<Node>::all(client.clone()).get(CLAIMED).await?.uid().context("no uid")?;
    let gone: Vec<String> = (0..=HISTORY).map(|number| format!("gone-{number}")).collect();
    let causes = json!([{"source": "Person", "name": "me"}]);
    for uid in gone.iter().chain([&uid]) {
        let name = if uid.starts_with("gone") { "gone" } else { CLAIMED };
        let node = json!({"name": name, "uid": uid});
        let request = json!({"apiVersion": "nodekeeper.dev/v1alpha1", "kind": "NodeRemediation", "metadata": {"name": uid}, "spec": {"node": node, "causes": causes, "action": "Replace"}});
        create(&Api::<NodeRemediation>::all(client.clone()), request).await?;
    }
    Ok(gone)
}

/// A pod that must be evicted. Its successor finds no other node and stays pending.
async fn workload(cluster: &Cluster) -> Result<()> {
    let client = cluster.client()?;
    let labels = json!({"app": "web"});
    let pool = json!({"pool": "web"});
    let nodes: Api<Node> = Api::all(client.clone());
    let label = Patch::Merge(json!({"metadata": {"labels": pool}}));
    nodes.patch(node::FIRST, &PatchParams::default(), &label).await?;
    let spec = json!({"nodeSelector": pool, "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": false, "tolerations": [{"key": node::TAINT, "operator": "Exists"}],
        "containers": [{"name": "web", "image": "nodekeeper.local/none:1"}]});
    let template = json!({"metadata": {"labels": labels}, "spec": spec});
    let set = json!({"metadata": {"name": "web"}, "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}});
    create(&Api::<ReplicaSet>::namespaced(client.clone(), "default"), set).await?;
    let pods: Api<Pod> = Api::namespaced(client, "default");
    until("a pod that runs on the node", async || {
        let pods = pods.list(&ListParams::default().labels("app=web")).await?.items;
        let runs = |pod: &Pod| pod.status.as_ref().is_some_and(|one| one.phase.as_deref() == Some("Running"));
        Ok(pods.iter().any(runs).then_some(()))
    })
    .await
}

async fn has_succeeded(cluster: &Cluster) -> Result<Option<()>> {
    let requests: Api<NodeRemediation> = Api::all(cluster.client()?);
    // A new kind is not served at once.
    let Ok(requests) = requests.list(&ListParams::default()).await else { return Ok(None) };
    let conditions =
        requests.items.iter().filter_map(|one| one.status.as_ref()).flat_map(|one| &one.conditions);
    let so = |type_: &str| {
        conditions.clone().any(|condition| condition.type_ == type_ && condition.status == "True")
    };
    Ok((so("Drained") && so("Succeeded")).then_some(()))
}
