//! A real control plane with fake kubelets that report Ready and run the worker of each pod as a process with its own
//! loopback DNS server.

use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures::StreamExt as _;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, Client, CustomResourceExt as _, ResourceExt as _};
use nodekeeper_core::api::{NodeGate, NodeGateSpec};
use nodekeeper_e2e::Cluster;
use nodekeeper_e2e::control_plane::Options;
use nodekeeper_e2e::fake_kubelet::{binary, create, join, worker};
use nodekeeper_operator::clock::Clock;
use nodekeeper_operator::{Settings, run};
use nodekeeper_sim::actors::kubelet::Terminated;
use nodekeeper_sim::loopback;
use nodekeeper_sim::process::{Processes, Setup};
use serde_json::{Value, json};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::simulated::template;
use crate::world::{Dns, LABEL, NAMESPACE, TAINT, World};

pub struct FakeKubeletWorld {
    cluster: Cluster,
    client: Client,
    processes: Processes,
    tasks: JoinSet<()>,
    _folder: tempfile::TempDir,
}

impl FakeKubeletWorld {
    pub async fn start(dns: Dns) -> Result<Self> {
        let mut options = Options::from_env()?;
        // The leases of these nodes are not renewed.
        options.controller_manager_flags.push("--node-monitor-grace-period=1h".into());
        let cluster = Cluster::start(options).await?;
        let client = cluster.client()?;
        create_services(&client, dns).await?;
        let folder = tempfile::tempdir()?;
        let token = token(&client, "nodekeeper-worker").await?;
        let processes = Processes::new(Setup {
            binary: worker()?,
            folder: folder.path().to_owned(),
            api_server: address(&cluster)?,
            authority: std::fs::read_to_string(cluster.folder().join("ca.crt"))?,
            tokens: Arc::new(move |_| token.clone()),
        })?;
        let mut tasks = JoinSet::new();
        for name in names() {
            let taints = json!([{"key": TAINT, "value": "true", "effect": "NoSchedule"}]);
            let node = json!({"metadata": {"name": name}, "spec": {"taints": taints}});
            join(&client, &name, node, &format!("boot-of-{name}"), true).await?;
            if dns == Dns::NotYet {
                processes.endpoints(&name).await?.set_dns(loopback::Dns::Drop);
            }
            tasks.spawn(kubelet(client.clone(), name, processes.clone()));
        }
        Ok(Self { cluster, client, processes, tasks, _folder: folder })
    }
}

impl FakeKubeletWorld {
    /// Starts an agent as a process in the network of a node, with these flags.
    pub async fn start_agent(&self, node: &str, flags: &[&str]) -> Result<AgentProcess> {
        let network = self.processes.endpoints(node).await?;
        let folder = tempfile::tempdir()?;
        let kubeconfig = folder.path().join("kubeconfig");
        let authority = self.cluster.folder().join("ca.crt");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "agent",
            "clusters": [{"name": "c", "cluster": {"server": format!("https://{}", network.api), "certificate-authority": authority}}],
            "users": [{"name": "u", "user": {"token": self.agent_token().await?}}],
            "contexts": [{"name": "agent", "context": {"cluster": "c", "user": "u"}}],
        });
        std::fs::write(&kubeconfig, config.to_string())?;
        let log = std::fs::File::create(self.cluster.folder().join(format!("agent-{node}.log")))?;
        let child = Command::new(binary("nodekeeper")?)
            .args(["agent", "--node-name", node, "--enable-metrics=false", "--health-port=0"])
            .arg("--kubeconfig")
            .arg(&kubeconfig)
            .args(["--dns-server", &network.dns.to_string(), "--pods-at", &network.pods.to_string()])
            .args(flags)
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()?;
        Ok(AgentProcess { child, _folder: folder })
    }

    /// A token with the rights that the chart grants to agents.
    async fn agent_token(&self) -> Result<String> {
        let roles: Api<ClusterRole> = Api::all(self.client.clone());
        let name = "nodekeeper-agent";
        if roles.get_opt(name).await?.is_none() {
            let rules = json!([
                {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "patch"]},
                {"apiGroups": [""], "resources": ["services"], "verbs": ["get"]},
                {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list"]},
                {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create"]},
                {"apiGroups": ["nodekeeper.dev"], "resources": ["nodegates"], "verbs": ["list"]},
            ]);
            let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), NAMESPACE);
            create(&accounts, json!({"metadata": {"name": name}})).await?;
            let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name});
            let subjects = json!([{"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}]);
            let bindings: Api<ClusterRoleBinding> = Api::all(self.client.clone());
            create(&roles, json!({"metadata": {"name": name}, "rules": rules})).await?;
            let binding = json!({"metadata": {"name": name}, "roleRef": role, "subjects": subjects});
            create(&bindings, binding).await?;
        }
        token(&self.client, name).await
    }

    /// A user removes the verified label.
    pub async fn remove_label(&self, node: &str) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let patch = Patch::Merge(json!({"metadata": {"labels": {LABEL: null}}}));
        nodes.patch(node, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// The ends of the logs of all agents.
    pub fn agent_logs(&self) -> String {
        let log = |node: &String| {
            let read = std::fs::read_to_string(self.cluster.folder().join(format!("agent-{node}.log")));
            let text = read.unwrap_or_default();
            let lines: Vec<&str> = text.lines().rev().take(15).collect();
            format!("{node}:\n{}\n", lines.into_iter().rev().collect::<Vec<_>>().join("\n"))
        };
        names().iter().map(log).collect()
    }

    /// Lets connections of a node to the API server fail, or work again. Open ones are closed.
    pub async fn set_api(&self, node: &str, api: loopback::Api) -> Result<()> {
        self.processes.endpoints(node).await?.set_api(api);
        Ok(())
    }
}

/// An agent, which is killed when it is dropped.
pub struct AgentProcess {
    child: Child,
    _folder: tempfile::TempDir,
}

impl AgentProcess {
    /// Sends SIGTERM and returns the exit code.
    pub async fn stop(mut self) -> Result<Option<i32>> {
        let pid = self.child.id().context("it has ended already")?;
        let status = Command::new("kill").args(["-TERM", &pid.to_string()]).status().await?;
        ensure!(status.success(), "kill: {status}");
        Ok(timeout(Duration::from_secs(30), self.child.wait()).await.context("it does not end")??.code())
    }
}

fn names() -> Vec<String> {
    (1..=3).map(|n| format!("node-{n}")).collect()
}

fn address(cluster: &Cluster) -> Result<SocketAddr> {
    let url = cluster.config()?.cluster_url;
    let (host, port) = (url.host().context("no host")?, url.port_u16().context("no port")?);
    Ok(SocketAddr::new(host.parse()?, port))
}

/// Creates the Services and RBAC objects that a real cluster has.
async fn create_services(client: &Client, dns: Dns) -> Result<()> {
    create(&Api::<Namespace>::all(client.clone()), json!({"metadata": {"name": NAMESPACE}})).await?;
    let account = json!({"metadata": {"name": "nodekeeper-worker"}});
    create(&Api::<ServiceAccount>::namespaced(client.clone(), NAMESPACE), account).await?;
    let services: Api<Service> = Api::namespaced(client.clone(), "kube-system");
    let ports = json!([{"name": "dns", "port": 53, "protocol": "UDP"}]);
    create(
        &services,
        json!({"metadata": {"name": "kube-dns"}, "spec": {"clusterIP": "10.96.0.10", "ports": ports}}),
    )
    .await?;
    for (namespace, service, ready) in
        [("default", "kubernetes", true), ("kube-system", "kube-dns", dns == Dns::Runs)]
    {
        let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), namespace);
        create(&slices, slice(service, ready)).await?;
    }
    // The rights that the chart grants to workers.
    for namespace in ["default", "kube-system"] {
        let rules = json!([
            {"apiGroups": [""], "resources": ["services"], "verbs": ["get"]},
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list"]},
        ]);
        let metadata = json!({"name": "nodekeeper-worker"});
        let roles: Api<k8s_openapi::api::rbac::v1::Role> = Api::namespaced(client.clone(), namespace);
        create(&roles, json!({"metadata": metadata, "rules": rules})).await?;
        let bindings: Api<k8s_openapi::api::rbac::v1::RoleBinding> =
            Api::namespaced(client.clone(), namespace);
        let role =
            json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "nodekeeper-worker"});
        let subjects =
            json!([{"kind": "ServiceAccount", "name": "nodekeeper-worker", "namespace": NAMESPACE}]);
        create(&bindings, json!({"metadata": metadata, "roleRef": role, "subjects": subjects})).await?;
    }
    Ok(())
}

fn slice(service: &str, ready: bool) -> Value {
    json!({
        "metadata": {"name": format!("{service}-walk"), "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.244.0.2"], "conditions": {"ready": ready}}],
        "ports": [{"name": "any", "port": 53, "protocol": "UDP"}],
    })
}

async fn token(client: &Client, account: &str) -> Result<String> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), NAMESPACE);
    let asked: TokenRequest =
        serde_json::from_value(json!({"spec": {"audiences": [], "expirationSeconds": 3600}}))?;
    let given = accounts.create_token_request(account, &PostParams::default(), &asked).await?;
    Ok(given.status.context("no token")?.token)
}

/// Runs pods of a node, and stops deleted ones. Restarts its watch whenever it ends.
async fn kubelet(client: Client, node: String, processes: Processes) {
    let pods: Api<Pod> = Api::namespaced(client, NAMESPACE);
    let fields = format!("spec.nodeName={node}");
    let mut running = JoinSet::new();
    let mut known = std::collections::BTreeSet::new();
    loop {
        let params = WatchParams::streaming_lists().fields(&fields).timeout(200);
        if let Ok(events) = pods.watch(&params, "").await {
            let mut events = events.boxed();
            while let Some(Ok(event)) = events.next().await {
                let (WatchEvent::Added(pod) | WatchEvent::Modified(pod)) = event else { continue };
                if pod.metadata.deletion_timestamp.is_some() {
                    let _ = pods.delete(&pod.name_any(), &DeleteParams::default().grace_period(0)).await;
                } else if known.insert(pod.uid()) {
                    running.spawn(run_pod(pods.clone(), node.clone(), pod, processes.clone()));
                }
            }
        }
        sleep(Duration::from_millis(100)).await;
    }
}

async fn run_pod(pods: Api<Pod>, node: String, pod: Pod, processes: Processes) {
    let value = nodekeeper_sim::value::json!(pod);
    let container = value["spec"]["containers"][0].clone();
    let (code, message) = match processes.execute(&node, &value, &container).await {
        Terminated::Exit { code, message } => (code, message),
        Terminated::OutOfMemory => (137, String::new()),
    };
    let state = json!({"terminated": {"exitCode": code, "message": message, "reason": "Ended"}});
    let container = json!({"name": "worker", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state});
    let phase = if code == 0 { "Succeeded" } else { "Failed" };
    let status = json!({"status": {"phase": phase, "containerStatuses": [container]}});
    // The pod may have been deleted meanwhile.
    let _ = pods.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(status)).await;
}

impl World for FakeKubeletWorld {
    fn nodes(&self) -> Vec<String> {
        names()
    }

    fn client(&self) -> Client {
        self.client.clone()
    }

    fn patience(&self) -> Duration {
        Duration::from_mins(2)
    }

    async fn start_controller(&mut self, gate: &NodeGateSpec) -> Result<()> {
        let definitions: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        create(&definitions, serde_json::to_value(NodeGate::crd())?).await?;
        let gates: Api<NodeGate> = Api::all(self.client.clone());
        let end = Instant::now() + self.patience();
        while let Err(error) = gates.list(&ListParams::default()).await {
            ensure!(Instant::now() < end, "the new kind is not served: {error}");
            sleep(Duration::from_millis(100)).await;
        }
        gates.create(&PostParams::default(), &NodeGate::new("default", gate.clone())).await?;
        let client = nodekeeper_operator::client(self.cluster.config()?)?;
        let settings = Settings::new(template("nodekeeper.local/worker:1"), "controller".into(), 7);
        self.tasks.spawn(run(client, settings, Clock::real(), std::future::pending()));
        Ok(())
    }

    async fn break_dns(&self, node: &str) -> Result<()> {
        self.processes.endpoints(node).await?.set_dns(loopback::Dns::Drop);
        Ok(())
    }

    async fn heal_dns(&self, node: &str) -> Result<()> {
        self.processes.endpoints(node).await?.set_dns(loopback::Dns::Healthy);
        Ok(())
    }

    async fn start_cluster_dns(&self) -> Result<()> {
        for node in names() {
            self.heal_dns(&node).await?;
        }
        let slices: Api<EndpointSlice> = Api::namespaced(self.client.clone(), "kube-system");
        let ready = json!({"endpoints": slice("kube-dns", true)["endpoints"]});
        slices.patch("kube-dns-walk", &PatchParams::default(), &Patch::Merge(ready)).await?;
        Ok(())
    }

    fn hint(&self) -> String {
        format!("logs of the control plane are in {}", self.cluster.folder().display())
    }
}
