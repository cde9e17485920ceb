//! A complete replacement with only the rights that the chart grants where remediation is enforced.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use nodekeeper_core::api::NodeRemediation;
use nodekeeper_e2e::fake_kubelet::create;
use nodekeeper_e2e::{Cluster, or_skip};
use nodekeeper_operator::clock::Clock;
use nodekeeper_operator::run;
use serde_json::json;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::node::{self, First, Machines};
use crate::refusals::Refusals;
use crate::{PATIENCE, chart, config_of, settings, start, until};

/// The control group.
const GOOD: [&str; 2] = ["node-3", "node-4"];

/// A node that never passes is compared with two others, cordoned, drained and deleted. No request of the controller
/// is refused.
#[tokio::test(flavor = "multi_thread")]
async fn no_request_of_a_replacement_is_refused() -> Result<()> {
    let Some(cluster) = or_skip(start().await)? else { return Ok(()) };
    let checks = json!({"skip": ["tcp", "peers"]});
    let spec = json!({"onFailure": "Replace", "retry": {"maxRetries": 0, "recheckPeriodSeconds": 10},
        "deadlines": {"checkSeconds": 2, "workerSeconds": 30}, "checks": checks});
    let remediation = json!({"enforcement": "Enforce", "deleteNodeObjectFor": [{"source": "Gate", "name": "*"}, {"source": "Person", "name": "*"}]});
    let values = json!({"controller": {"replicas": 0}, "gate": {"spec": spec}, "remediation": remediation});
    let Some(()) = or_skip(chart::install(&cluster, &values).await)? else { return Ok(()) };
    let held = [node::FIRST, GOOD[0], GOOD[1]].map(|name| (name, node::TAINT));
    let _machines = Machines::start(&cluster, &held, First::NeverHeals).await?;
    workload(&cluster).await?;

    let refusals = Refusals::default();
    let client = refusals.client(config_of(&cluster, "nodekeeper-controller").await?)?;
    let (stop, stopped) = oneshot::channel::<()>();
    let stopped = async move { drop(stopped.await) };
    let controller = tokio::spawn(run(client, settings(), Clock::real(), stopped));
    let replaced = until("a replacement that succeeded", async || has_succeeded(&cluster).await).await;
    replaced.with_context(|| format!("refused: {:?}", refusals.list()))?;
    let nodes: Api<Node> = Api::all(cluster.client()?);
    let left: Vec<String> = nodes.list(&ListParams::default()).await?.iter().map(Node::name_any).collect();
    ensure!(left == GOOD, "{left:?}");
    let pods: Api<Pod> = Api::namespaced(cluster.client()?, "default");
    let bound = ListParams::default().fields(&format!("spec.nodeName={}", node::FIRST));
    ensure!(pods.list(&bound).await?.items.is_empty(), "the node went before its pod");
    drop(stop);
    timeout(PATIENCE, controller).await.context("the controller does not stop")??;
    assert_eq!(refusals.list(), Vec::<String>::new());
    Ok(())
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
