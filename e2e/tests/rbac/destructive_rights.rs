//! The API server refuses destructive requests of the controller unless remediation is enforced.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use http::{Method, Request, StatusCode};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::client::Body;
use kube::{Api, Client, ResourceExt as _};
use nodekeeper_core::api::{ActEnforcement, Condition, NodeRemediation, RemediationPolicy};
use nodekeeper_core::node::CORDONED;
use nodekeeper_e2e::fake_kubelet::{create, join};
use nodekeeper_e2e::{Cluster, or_skip};
use serde_json::{Value, json};

use crate::audit::{AuditLog, Right};
use crate::{Running, chart, config_of, helm, rights, start, start_with, until};

/// For objects that do not exist, so that nothing is deleted.
const TRIED: [(Method, &str); 3] = [
    (Method::DELETE, "/api/v1/nodes/missing"),
    (Method::DELETE, "/apis/karpenter.sh/v1/nodeclaims/missing"),
    (Method::POST, "/api/v1/namespaces/kube-public/pods/missing/eviction"),
];

const NODE: &str = "node-1";

/// The status codes of each request. The API server authorizes before it looks up the object.
async fn answers(client: &Client) -> Result<Vec<StatusCode>> {
    let mut all = Vec::new();
    for (method, path) in TRIED {
        let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "missing", "namespace": "kube-public"}});
        let body = if method == Method::POST { eviction.to_string() } else { String::new() };
        let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
        all.push(client.send(request.body(Body::from(body.into_bytes()))?).await?.status());
    }
    Ok(all)
}

async fn installed(cluster: &Cluster, enforcement: &str) -> Result<Option<RemediationPolicy>> {
    let delete = json!([{"source": "Gate", "name": "default"}]);
    let remediation =
        json!({"enforcement": enforcement, "budget": {"maxPerHour": 2}, "deleteNodeObjectFor": delete});
    let values = json!({"controller": {"replicas": 0}, "remediation": remediation});
    if or_skip(helm::install(cluster, &values).await)?.is_none() {
        return Ok(None);
    }
    let controller = Running::installed(cluster).await?;
    let policies: Api<RemediationPolicy> = Api::all(cluster.client()?);
    let wanted = json!(enforcement);
    let policy = until("the policy is applied", async || {
        let policy = policies.get_opt("default").await?;
        Ok(policy.filter(|policy| json!(policy.spec.enforcement) == wanted))
    })
    .await?;
    controller.stop().await?;
    Ok(Some(policy))
}

#[tokio::test(flavor = "multi_thread")]
async fn destructive_rights_require_enforcement() -> Result<()> {
    let Some(cluster) = or_skip(start().await)? else { return Ok(()) };
    let Some(policy) = installed(&cluster, "DryRun").await? else { return Ok(()) };
    ensure!(policy.spec.enforcement == ActEnforcement::DryRun && policy.spec.budget.max_per_hour == 2);
    let client = Client::try_from(config_of(&cluster, "nodekeeper-controller").await?)?;
    assert_eq!(answers(&client).await?, [StatusCode::FORBIDDEN; 3]);
    let before = rights(client.clone(), "kube-public").await?;

    // A value set by a user that the chart does not manage survives an upgrade.
    let pause: Value = json!({"spec": {"pause": {"reason": "a storm", "until": "2030-01-31T18:00:00Z"}}});
    let policies: Api<RemediationPolicy> = Api::all(cluster.client()?);
    policies.patch("default", &PatchParams::default(), &Patch::Merge(pause)).await?;
    let policy = installed(&cluster, "Enforce").await?.context("Helm was there a moment ago")?;
    ensure!(policy.spec.enforcement == ActEnforcement::Enforce, "{policy:?}");
    ensure!(policy.spec.pause.is_some_and(|pause| pause.reason == "a storm"), "the pause was removed");
    answered(&client, StatusCode::NOT_FOUND).await?;
    let after = rights(client.clone(), "kube-public").await?;
    let more: BTreeSet<String> = after.difference(&before).cloned().collect();
    assert_eq!(more, chart::HARM.iter().map(|&line| line.to_owned()).collect());

    installed(&cluster, "DryRun").await?;
    answered(&client, StatusCode::FORBIDDEN).await?;

    // A user's value stays where the chart does not change its own.
    let less = json!({"spec": {"budget": {"maxPerHour": 1}}});
    policies.patch("default", &PatchParams::default(), &Patch::Merge(less)).await?;
    let policy = installed(&cluster, "Enforce").await?.context("Helm was there a moment ago")?;
    assert_eq!(policy.spec.budget.max_per_hour, 1);
    Ok(())
}

/// A user enforces the policy with `kubectl edit`, and the chart did not bind the destructive role: policy and request name what
/// is missing, and the node is not touched.
#[tokio::test(flavor = "multi_thread")]
async fn r20_missing_rights_are_named() -> Result<()> {
    let log = AuditLog::new()?;
    let Some(cluster) = or_skip(start_with(log.flags()).await)? else { return Ok(()) };
    if installed(&cluster, "DryRun").await?.is_none() {
        return Ok(());
    }
    let policies: Api<RemediationPolicy> = Api::all(cluster.client()?);
    let enforce = json!({"spec": {"enforcement": "Enforce", "deleteNodeObjectFor": [{"source": "Person", "name": "*"}]}});
    policies.patch("default", &PatchParams::default(), &Patch::Merge(enforce)).await?;
    let requests: Api<NodeRemediation> = Api::all(cluster.client()?);
    let uid = requested(&cluster).await?;
    let controller = Running::installed(&cluster).await?;
    let of_policy = until("the policy names the missing rights", async || {
        let conditions = policies.get("default").await?.status.unwrap_or_default().conditions;
        Ok(missing_rights(conditions, "Ready"))
    })
    .await?;
    let of_request = until("the request names the missing rights", async || {
        let conditions = requests.get(&uid).await?.status.unwrap_or_default().conditions;
        Ok(missing_rights(conditions, "Approved"))
    })
    .await?;
    controller.stop().await?;
    for message in [of_policy, of_request] {
        for right in ["create pods/eviction", "delete nodeclaims.karpenter.sh", "delete nodes"] {
            ensure!(message.contains(right), "{message}");
        }
        ensure!(!message.contains("patch nodes"), "the gate has this right: {message}");
    }
    let node = Api::<Node>::all(cluster.client()?).get(NODE).await?;
    ensure!(!node.annotations().contains_key(CORDONED), "{:?}", node.annotations());
    ensure!(node.spec.is_none_or(|spec| spec.unschedulable != Some(true)), "the node is cordoned");
    // The cordon is no part of the destructive role.
    let acts: Vec<String> =
        log.needed()?.iter().map(Right::to_string).filter(|one| one.contains("/nodes [node")).collect();
    let is_read = |act: &String| act.ends_with(" get");
    ensure!(!acts.is_empty() && acts.iter().all(is_read), "{acts:?}");
    Ok(())
}

/// A person requests the replacement of a Ready node. Returns the name of the request.
async fn requested(cluster: &Cluster) -> Result<String> {
    let client = cluster.client()?;
    join(&client, NODE, json!({"metadata": {"name": NODE}}), "boot", true).await?;
    let uid = Api::<Node>::all(client.clone()).get(NODE).await?.uid().context("no uid")?;
    let spec = json!({"node": {"name": NODE, "uid": uid}, "causes": [{"source": "Person", "name": "me"}]});
    let request = json!({"apiVersion": "nodekeeper.dev/v1alpha1", "kind": "NodeRemediation", "metadata": {"name": uid}, "spec": spec});
    create(&Api::<NodeRemediation>::all(client), request).await?;
    Ok(uid)
}

/// The message of this condition, if it is False because of missing rights.
fn missing_rights(conditions: Vec<Condition>, type_: &str) -> Option<String> {
    let mut all = conditions.into_iter();
    let found = all.find(|one| one.type_ == type_ && one.reason == "MissingRights" && one.status == "False");
    found.map(|found| found.message)
}

/// The authorizer sees the change a moment later.
async fn answered(client: &Client, wanted: StatusCode) -> Result<()> {
    until(
        &format!("three times {wanted}"),
        async || Ok((answers(client).await? == [wanted; 3]).then_some(())),
    )
    .await
}
