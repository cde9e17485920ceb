//! The chart grants exactly the needed rights: no more, by the rendered rules and access reviews; no less, because a
//! controller and a worker run with them without a refusal. Also tests what the chart's CRDs refuse.

mod agent;
mod agent_chart;
mod audit;
mod chart;
mod destructive_rights;
mod helm;
mod node;
mod policies;
mod refusals;
mod replacement;
mod upgrades;

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::authorization::v1::{ResourceRule, SelfSubjectRulesReview};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, Secret, ServiceAccount};
use k8s_openapi::api::events::v1::Event;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client, Config};
use nodekeeper_core::api::NodeGate;
use nodekeeper_core::configured::ConfiguredObject;
use nodekeeper_core::worker::Template;
use nodekeeper_e2e::control_plane::Options;
use nodekeeper_e2e::{Cluster, or_skip};
use nodekeeper_operator::clock::Clock;
use nodekeeper_operator::config::{load, load_objects};
use nodekeeper_operator::{Settings, run};
use serde_json::json;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::audit::AuditLog;
use crate::node::{First, Machines};
use crate::refusals::Refusals;

const NAMESPACE: &str = "nodekeeper-system";
const PATIENCE: Duration = Duration::from_mins(2);
const LOOK: Duration = Duration::from_millis(50);

/// A configuration file of kube-node-ready, with short timeouts, because one worker fails.
const CONFIG: &str = "{worker: {checkTimeoutSeconds: 2, timeoutSeconds: 30,
    dnsTestDomains: [kubernetes.default.svc.cluster.local.]}, reconciliation: {intervalSeconds: 5}}";

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
    start_with(Vec::new()).await
}

/// A cluster whose API server has these additional flags.
async fn start_with(api_server_flags: Vec<String>) -> Result<Cluster> {
    let mut options = Options { api_server_flags, ..Options::from_env()? };
    // The leases of these nodes are not renewed.
    options.controller_manager_flags.push("--node-monitor-grace-period=1h".into());
    Cluster::start(options).await
}

async fn token(cluster: &Cluster, account: &str) -> Result<String> {
    token_for(cluster, account, None).await
}

/// A token of this account, as the kubelet requests it for a pod; or bound to none, like those of `kubectl create token`.
async fn token_for(cluster: &Cluster, account: &str, pod: Option<&Pod>) -> Result<String> {
    let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client()?, NAMESPACE);
    let bound = pod.map(|pod| {
        let metadata = &pod.metadata;
        json!({"apiVersion": "v1", "kind": "Pod", "name": metadata.name, "uid": metadata.uid})
    });
    let spec = json!({"audiences": [], "expirationSeconds": 3600, "boundObjectRef": bound});
    let asked: TokenRequest = serde_json::from_value(json!({"spec": spec}))?;
    let given = accounts.create_token_request(account, &PostParams::default(), &asked).await?;
    Ok(given.status.context("no token")?.token)
}

/// A configuration with only the rights of this account.
async fn config_of(cluster: &Cluster, account: &str) -> Result<Config> {
    config_with(cluster, &token(cluster, account).await?)
}

fn config_with(cluster: &Cluster, token: &str) -> Result<Config> {
    let mut config = cluster.config()?;
    config.auth_info = serde_json::from_value(json!({"token": token}))?;
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

/// The objects that the installed chart mounts for its controllers.
async fn installed_objects(cluster: &Cluster) -> Result<Vec<ConfiguredObject>> {
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client()?, NAMESPACE);
    let data = maps.get("nodekeeper-controller").await?.data.unwrap_or_default();
    let file = data.get("objects.yaml").context("the chart has no objects")?;
    load_objects(file).map_err(|problems| anyhow::anyhow!("{problems:?}"))
}

/// A controller that leads until it is stopped.
struct Running {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Running {
    fn start(client: Client, settings: Settings) -> Self {
        let (stop, stopped) = oneshot::channel::<()>();
        let stopped = async move { drop(stopped.await) };
        Self { stop, task: tokio::spawn(run(client, settings, Clock::real(), stopped)) }
    }

    /// A controller of the installed chart, with the rights that the chart grants.
    async fn installed(cluster: &Cluster) -> Result<Self> {
        let client = Client::try_from(config_of(cluster, "nodekeeper-controller").await?)?;
        let objects = installed_objects(cluster).await?;
        Ok(Self::start(client, Settings { objects, ..settings() }))
    }

    async fn stop(self) -> Result<()> {
        drop(self.stop);
        Ok(timeout(PATIENCE, self.task).await.context("the controller does not stop")??)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_of_controller_and_worker_is_refused() -> Result<()> {
    let log = AuditLog::new()?;
    let Some(cluster) = or_skip(start_with(log.flags()).await)? else { return Ok(()) };
    let rbac = json!({"daemonSetPods": true, "nodeConditions": true});
    let values = json!({
        "controller": {"replicas": 0},
        "rbac": rbac,
        "config": {"worker": {"checkTimeoutSeconds": 2}},
    });
    let Some(()) = or_skip(helm::install(&cluster, &values).await)? else { return Ok(()) };
    let held = [(node::FIRST, node::TAINT), (node::SECOND, node::OTHER_TAINT)];
    let machines = Machines::start(&cluster, &held, First::Heals).await?;
    // A second gate with settings that the file does not support.
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
    let objects = loaded.objects().into_iter().chain(installed_objects(&cluster).await?).collect();
    let settings = Settings { objects, resync: loaded.resync, ..settings() };
    let controller = Running::start(client.clone(), settings);

    let nodes: Api<Node> = Api::all(cluster.client()?);
    for name in [node::FIRST, node::SECOND] {
        let open = until(&format!("{name} is verified"), async || node::is_open(&nodes, name).await).await;
        open.with_context(|| format!("refused: {:?}", refusals.list()))?;
    }
    let reported =
        until("the verification is reported", async || is_reported(&cluster, &nodes, &gates).await).await;
    reported.with_context(|| format!("refused: {:?}", refusals.list()))?;
    assert_eq!(gates.get("config").await?.spec, gate);
    ensure!(machines.failed() > 0, "no worker failed, so nothing was recorded but the pass");

    controller.stop().await?;
    let leases: Api<Lease> = Api::namespaced(cluster.client()?, NAMESPACE);
    let holder = leases.get("kube-node-ready-leader").await?.spec.and_then(|spec| spec.holder_identity);
    assert_eq!(holder.as_deref(), Some(""), "the lease was given back");
    assert_eq!(refusals.list(), Vec::<String>::new());
    let always = chart::granted_with(&json!({}))?;
    let more = &chart::granted_with(&json!({"rbac": rbac}))? - &always;
    ensure!(more.len() == 2, "{more:?}");
    assert_eq!(log.unused(&more)?, Vec::<String>::new(), "u07: rights that nothing uses");

    // Proves that a refusal would be seen.
    let secrets: Api<Secret> = Api::namespaced(client, NAMESPACE);
    assert!(secrets.list(&ListParams::default()).await.is_err());
    assert_eq!(refusals.list().len(), 1);
    Ok(())
}

/// Whether gates, nodes and Events report the successful verification.
async fn is_reported(cluster: &Cluster, nodes: &Api<Node>, gates: &Api<NodeGate>) -> Result<Option<()>> {
    let of_gates = gates.list(&ListParams::default()).await?;
    let verified = |gate: &NodeGate| gate.status.as_ref().is_some_and(|status| status.nodes.verified == 1);
    let status = nodes.get(node::SECOND).await?.status.unwrap_or_default();
    let condition = status.conditions.unwrap_or_default().into_iter().any(|c| c.type_ == "NetworkVerified");
    let events: Api<Event> = Api::namespaced(cluster.client()?, "default");
    let events = events.list(&ListParams::default()).await?;
    let has_event = |reason: &str| events.items.iter().any(|event| event.reason.as_deref() == Some(reason));
    let all = of_gates.items.iter().all(verified)
        && condition
        && has_event("NodeVerified")
        && has_event("NodeCheckFailed");
    Ok(all.then_some(()))
}

/// The rights of an account in a namespace, by a `SelfSubjectRulesReview`.
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
async fn accounts_have_exactly_the_charts_rights() -> Result<()> {
    let Some(cluster) = or_skip(start().await)? else { return Ok(()) };
    let Some(()) = or_skip(
        helm::install(&cluster, &json!({"deploymentMode": "both", "controller": {"replicas": 0}})).await,
    )?
    else {
        return Ok(());
    };
    // An account without any binding has only the rights of every account.
    until("the default account", async || {
        let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client()?, NAMESPACE);
        Ok(accounts.get_opt("default").await?.map(drop))
    })
    .await?;
    let checks: &[&str] = &["/services [] get", "discovery.k8s.io/endpointslices [] list"];
    let agent = [agent_chart::EVERYWHERE, &["nodekeeper.dev/nodegates [] list"]].concat();
    for (account, namespace, wanted) in [
        ("worker", "default", checks),
        ("worker", "kube-system", checks),
        ("worker", NAMESPACE, &[]),
        ("worker", "kube-public", &[]),
        ("controller", "kube-public", &[chart::EVERYWHERE, chart::APPLY].concat()),
        ("agent", "kube-public", &agent),
        ("agent", NAMESPACE, &agent),
        ("agent", "kube-system", &[&agent, checks].concat()),
        ("agent", "default", &[&agent, checks, &["events.k8s.io/events [] create"]].concat()),
    ] {
        let unprivileged = Client::try_from(config_of(&cluster, "default").await?)?;
        let account = Client::try_from(config_of(&cluster, &format!("nodekeeper-{account}")).await?)?;
        let common = rights(unprivileged, namespace).await?;
        ensure!(!common.is_empty(), "every account has some rights");
        let more: BTreeSet<String> = rights(account, namespace).await?.difference(&common).cloned().collect();
        assert_eq!(more, wanted.iter().map(|&line| line.to_owned()).collect(), "in {namespace}");
    }
    Ok(())
}
