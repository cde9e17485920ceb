//! What the chart grants is what is needed: no more, by the rendered rules and by asking the API server; no less, by a
//! controller and a worker that run with it and are refused nothing. And what the API server refuses by the definitions
//! that the chart brings.

mod chart;
mod harm;
mod node;
mod policies;
mod refusals;
mod replacing;

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::authorization::v1::{ResourceRule, SelfSubjectRulesReview};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Secret, ServiceAccount};
use k8s_openapi::api::events::v1::Event;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client, Config};
use nodekeeper_core::api::NodeGate;
use nodekeeper_core::worker::Template;
use nodekeeper_e2e::control_plane::Options;
use nodekeeper_e2e::{Cluster, or_skip};
use nodekeeper_operator::clock::Clock;
use nodekeeper_operator::config::load;
use nodekeeper_operator::{Settings, run};
use serde_json::json;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use crate::node::{First, Machines};
use crate::refusals::Refusals;

const NAMESPACE: &str = "nodekeeper-system";
const PATIENCE: Duration = Duration::from_mins(2);
const LOOK: Duration = Duration::from_millis(50);

/// As kube-node-ready has it; quick, because one worker is to fail.
const CONFIG: &str = "{worker: {checkTimeoutSeconds: 2, timeoutSeconds: 30,
    dnsTestDomains: [kubernetes.default.svc.cluster.local.]}, reconciliation: {intervalSeconds: 5}}";

/// Asks until there is an answer.
async fn until<T, A: Future<Output = Result<Option<T>>>>(
    what: &str,
    mut ask: impl FnMut() -> A,
) -> Result<T> {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask().await? {
            return Ok(answer);
        }
        ensure!(Instant::now() < end, "waited {PATIENCE:?} for {what}");
        sleep(LOOK).await;
    }
}

async fn start() -> Result<Cluster> {
    let mut options = Options::from_env()?;
    // Nobody renews the leases of these nodes.
    options.controller_manager_flags.push("--node-monitor-grace-period=1h".into());
    Cluster::start(options).await
}

/// A token of this account.
async fn token(cluster: &Cluster, account: &str) -> Result<String> {
    let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client()?, NAMESPACE);
    let asked: TokenRequest =
        serde_json::from_value(json!({"spec": {"audiences": [], "expirationSeconds": 3600}}))?;
    let given = accounts.create_token_request(account, &PostParams::default(), &asked).await?;
    Ok(given.status.context("no token")?.token)
}

/// The configuration of somebody who has this account's token, and no other right.
async fn config_of(cluster: &Cluster, account: &str) -> Result<Config> {
    let mut config = cluster.config()?;
    config.auth_info = serde_json::from_value(json!({"token": token(cluster, account).await?}))?;
    Ok(config)
}

fn settings() -> Settings {
    let template = Template {
        namespace: NAMESPACE.into(),
        image: "nodekeeper.local/worker:1".into(),
        service_account: "nodekeeper-worker".into(),
        ..Template::default()
    };
    Settings::new(template, "controller".into(), 7)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_controller_and_its_workers_are_refused_nothing() -> Result<()> {
    let Some(cluster) = or_skip(start().await)? else { return Ok(()) };
    let values = json!({
        "controller": {"replicas": 0},
        "rbac": {"daemonSetPods": true, "nodeConditions": true},
        "config": {"worker": {"checkTimeoutSeconds": 2}},
    });
    let Some(()) = or_skip(chart::install(&cluster, &values).await)? else { return Ok(()) };
    let held = [(node::FIRST, node::TAINT), (node::SECOND, node::OTHER_TAINT)];
    let machines = Machines::start(&cluster, &held, First::Heals).await?;
    // Another gate, for what a file cannot say.
    let other = json!({"apiVersion": "nodekeeper.dev/v1alpha1", "kind": "NodeGate", "metadata": {"name": "other"}, "spec": {
        "taints": [{"key": node::OTHER_TAINT}], "nodeCondition": "NetworkVerified", "deadlines": {"checkSeconds": 2},
        "checks": {"skip": ["tcp", "peers"]},
        "waitFor": {"daemonSets": [{"namespace": "kube-system", "name": "network"}]}}});
    let gates: Api<NodeGate> = Api::all(cluster.client()?);
    gates.create(&PostParams::default(), &serde_json::from_value(other)?).await?;

    let refusals = Refusals::default();
    let client = refusals.client(config_of(&cluster, "nodekeeper-controller").await?)?;
    let loaded = load(CONFIG, None).map_err(|problems| anyhow::anyhow!("{problems:?}"))?;
    let gate = loaded.gate.clone();
    let settings = Settings { gate: Some(loaded.gate), sweep: loaded.resync, ..settings() };
    let (stop, stopped) = oneshot::channel::<()>();
    let stopped = async move { drop(stopped.await) };
    let controller = tokio::spawn(run(client.clone(), settings, Clock::real(), stopped));

    let nodes: Api<Node> = Api::all(cluster.client()?);
    for name in [node::FIRST, node::SECOND] {
        let open = until(&format!("{name} to be let in"), async || node::is_open(&nodes, name).await).await;
        open.with_context(|| format!("refused: {:?}", refusals.told()))?;
    }
    let told = until("what is said about a pass", async || said(&cluster, &nodes, &gates).await).await;
    told.with_context(|| format!("refused: {:?}", refusals.told()))?;
    assert_eq!(gates.get("config").await?.spec, gate);
    ensure!(machines.failed() > 0, "no worker failed, so nothing was recorded but the pass");

    drop(stop);
    timeout(PATIENCE, controller).await.context("the controller does not stop")??;
    let leases: Api<Lease> = Api::namespaced(cluster.client()?, NAMESPACE);
    let holder = leases.get("kube-node-ready-leader").await?.spec.and_then(|spec| spec.holder_identity);
    assert_eq!(holder.as_deref(), Some(""), "the lease was given back");
    assert_eq!(refusals.told(), Vec::<String>::new());

    // The eye that saw no refusal sees one.
    let secrets: Api<Secret> = Api::namespaced(client, NAMESPACE);
    assert!(secrets.list(&ListParams::default()).await.is_err());
    assert_eq!(refusals.told().len(), 1);
    Ok(())
}

/// Whether gates, nodes and Events say what they should after a pass.
async fn said(cluster: &Cluster, nodes: &Api<Node>, gates: &Api<NodeGate>) -> Result<Option<()>> {
    let of_gates = gates.list(&ListParams::default()).await?;
    let verified = |gate: &NodeGate| gate.status.as_ref().is_some_and(|status| status.nodes.verified == 1);
    let status = nodes.get(node::SECOND).await?.status.unwrap_or_default();
    let condition = status.conditions.unwrap_or_default().into_iter().any(|c| c.type_ == "NetworkVerified");
    let events: Api<Event> = Api::namespaced(cluster.client()?, "default");
    let events = events.list(&ListParams::default()).await?;
    let told = |reason: &str| events.items.iter().any(|event| event.reason.as_deref() == Some(reason));
    let all =
        of_gates.items.iter().all(verified) && condition && told("NodeVerified") && told("NodeCheckFailed");
    Ok(all.then_some(()))
}

/// What an account may do in a namespace, as the API server sees it.
async fn rights(client: Client, namespace: &str) -> Result<BTreeSet<String>> {
    let asked = serde_json::from_value(json!({"spec": {"namespace": namespace}}))?;
    let reviews: Api<SelfSubjectRulesReview> = Api::all(client);
    let status = reviews.create(&PostParams::default(), &asked).await?.status.context("no answer")?;
    ensure!(!status.incomplete, "the API server does not know all");
    let line = |rule: &ResourceRule| {
        let words = |words: &Option<Vec<String>>| words.clone().unwrap_or_default().join(",");
        format!(
            "{}/{} [{}] {}",
            words(&rule.api_groups),
            words(&rule.resources),
            words(&rule.resource_names),
            rule.verbs.join(",")
        )
    };
    let others = status.non_resource_rules.iter().map(|rule| format!("{rule:?}"));
    Ok(status.resource_rules.iter().map(line).chain(others).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_may_do_what_the_chart_says_and_nothing_else() -> Result<()> {
    let Some(cluster) = or_skip(start().await)? else { return Ok(()) };
    let Some(()) = or_skip(chart::install(&cluster, &json!({"controller": {"replicas": 0}})).await)? else {
        return Ok(());
    };
    // Somebody of the same namespace who was granted nothing: all that everybody may do.
    until("an account of everybody's", async || {
        let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client()?, NAMESPACE);
        Ok(accounts.get_opt("default").await?.map(drop))
    })
    .await?;
    for (account, namespace, wanted) in [
        ("worker", "default", &["/services [] get", "discovery.k8s.io/endpointslices [] list"] as &[&str]),
        ("worker", "kube-system", &["/services [] get", "discovery.k8s.io/endpointslices [] list"]),
        ("worker", NAMESPACE, &[]),
        ("worker", "kube-public", &[]),
        ("controller", "kube-public", chart::EVERYWHERE),
    ] {
        let everybody = Client::try_from(config_of(&cluster, "default").await?)?;
        let account = Client::try_from(config_of(&cluster, &format!("nodekeeper-{account}")).await?)?;
        let common = rights(everybody, namespace).await?;
        ensure!(!common.is_empty(), "everybody may at least ask who they are");
        let more: BTreeSet<String> = rights(account, namespace).await?.difference(&common).cloned().collect();
        assert_eq!(more, wanted.iter().map(|&line| line.to_owned()).collect(), "in {namespace}");
    }
    Ok(())
}
