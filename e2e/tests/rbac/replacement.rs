//! A complete replacement with only the rights that the chart grants where remediation is enforced.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use nodekeeper_core::api::{NodeGate, NodeRemediation, RemediationPolicy};
use nodekeeper_core::configured::{ConfiguredObject, ObjectKind};
use nodekeeper_core::record::{ANNOTATION, Record};
use nodekeeper_core::report::Verdict;
use nodekeeper_e2e::fake_kubelet::{create, join};
use nodekeeper_e2e::karpenter::objects::node_claims;
use nodekeeper_e2e::{Cluster, or_skip};
use nodekeeper_operator::Settings;
use serde_json::{Value, json};

use crate::audit::AuditLog;
use crate::node::{self, First, Machines};
use crate::refusals::Refusals;
use crate::{Running, chart, config_of, helm, installed_objects, settings, start_with, until};

/// The control group.
const GOOD: [&str; 2] = ["node-3", "node-4"];
/// A node with a `NodeClaim`.
const CLAIMED: &str = "claimed";
/// The smallest history that a policy may have.
const HISTORY: usize = 10;

/// A node that never passes is compared with two others, cordoned, drained and deleted, and of another node the `NodeClaim` is
/// deleted. Another replica stands by, and one worker never starts. No request of the controller is refused, and every right
/// of the chart is used.
#[tokio::test(flavor = "multi_thread")]
async fn no_request_of_a_replacement_is_refused() -> Result<()> {
    let log = AuditLog::new()?;
    let Some(cluster) = or_skip(start_with(log.flags()).await)? else { return Ok(()) };
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
    let held = [node::FIRST, GOOD[0], GOOD[1], node::SILENT].map(|name| (name, node::TAINT));
    let _machines = Machines::start(&cluster, &held, First::NeverHeals).await?;
    workload(&cluster).await?;
    let finished = requests(&cluster).await?;

    pause(&cluster, json!("2030-01-31T18:00:00Z")).await?;
    let controller = Running::start(client.clone(), Settings { objects: objects.clone(), ..settings() });
    let standby = Running::start(client, Settings { objects, identity: "standby".into(), ..settings() });
    let paused = until("a cause that was observed again", async || is_refreshed(&cluster).await).await;
    paused.with_context(|| format!("refused: {:?}", refusals.list()))?;
    pause(&cluster, json!(null)).await?;
    let replaced = until("two replacements that succeeded", async || are_replaced(&cluster).await).await;
    replaced.with_context(|| format!("refused: {:?}", refusals.list()))?;
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
    until("the worker that does not start is given up", async || is_given_up(&cluster).await).await?;
    standby.stop().await?;
    controller.stop().await?;
    assert_eq!(refusals.list(), Vec::<String>::new());
    assert_eq!(
        log.unused(&chart::granted_with(&values)?)?,
        Vec::<String>::new(),
        "u07: rights that nothing uses"
    );
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
    let claim = node_claim(cluster).await?;
    let owner = json!({"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "name": claim.name_any(), "uid": claim.uid()});
    let labels = json!({"karpenter.sh/nodepool": "claims", "karpenter.sh/registered": "true"});
    let node = json!({"metadata": {"name": CLAIMED, "labels": labels, "ownerReferences": [owner]}});
    // It is not Ready, so it is not the last schedulable node of its pool.
    join(&client, CLAIMED, node, "boot", false).await?;
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

/// Creates the kinds of Karpenter, as far as the controller knows them, and a `NodeClaim`. Nobody holds up its deletion, and the
/// garbage collector deletes its node.
async fn node_claim(cluster: &Cluster) -> Result<DynamicObject> {
    let client = cluster.client()?;
    for (kind, plural) in [("NodeClaim", "nodeclaims"), ("NodePool", "nodepools")] {
        let schema =
            json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
        let version = json!({"name": "v1", "served": true, "storage": true, "schema": schema});
        let names = json!({"kind": kind, "plural": plural});
        let definition = json!({"metadata": {"name": format!("{plural}.karpenter.sh")}, "spec": {"group": "karpenter.sh",
            "scope": "Cluster", "names": names, "versions": [version]}});
        create(&Api::<CustomResourceDefinition>::all(client.clone()), definition).await?;
    }
    let claims = node_claims(&client);
    until("NodeClaims are served", async || Ok(claims.list(&ListParams::default()).await.ok().map(drop)))
        .await?;
    let claim = json!({"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {"name": "claim"}});
    Ok(claims.create(&PostParams::default(), &serde_json::from_value(claim)?).await?)
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

/// Whether the nodes that are to be replaced are gone, with a request that says so.
async fn are_replaced(cluster: &Cluster) -> Result<Option<()>> {
    let nodes: Api<Node> = Api::all(cluster.client()?);
    let left: Vec<String> = nodes.list(&ListParams::default()).await?.iter().map(Node::name_any).collect();
    let requests: Api<NodeRemediation> = Api::all(cluster.client()?);
    let requests = requests.list(&ListParams::default()).await?.items;
    let succeeded = requests.iter().filter(|one| {
        let conditions = one.status.iter().flat_map(|status| &status.conditions);
        let so = |type_| conditions.clone().any(|one| one.type_ == type_ && one.status == "True");
        so("Drained") && so("Succeeded")
    });
    Ok((left == [GOOD[0], GOOD[1], node::SILENT] && succeeded.count() == 2).then_some(()))
}

/// Whether the node whose kubelet starts nothing is recorded as inconclusive.
async fn is_given_up(cluster: &Cluster) -> Result<Option<()>> {
    let node = Api::<Node>::all(cluster.client()?).get(node::SILENT).await?;
    let uid = node.uid().context("no uid")?;
    let record = Record::read(node.annotations().get(ANNOTATION).map(String::as_str), &uid);
    Ok(record.filter(|record| record.verdict == Some(Verdict::Inconclusive)).map(drop))
}
