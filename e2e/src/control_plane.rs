//! A real cluster: etcd, kube-apiserver, kube-controller-manager and kube-scheduler, on loopback or in a network of
//! its own with real nodes.
//!
//! Each cluster has its own port, certificates and folder, so any number can run at once, and each is removed when
//! its owner exits (see [`run`]).

mod components;
mod endpoint;
pub(crate) mod run;

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Node as NodeObject, ServiceAccount},
};
use kube::{Api, Client, Config, api::ListParams, config::AuthInfo};
use tokio::{
    sync::OnceCell,
    task::spawn_blocking,
    time::{Instant, sleep, timeout},
};

use self::{
    endpoint::Endpoint,
    run::{Launcher, Run},
};
use crate::{
    assets::{Assets, NodeAssets, Settings},
    image::Image,
    kubeconfig::{kubeconfig, user},
    machine,
    nodes::{self, Node, NodeOptions, Nodes},
    pki::{Authority, Identity},
    progress::progress,
};

/// Long, because a build on the same cores slows everything down. Failures are reported at once.
const START_PATIENCE: Duration = Duration::from_mins(2);

#[derive(Clone, Debug)]
pub struct Options {
    pub settings: Settings,
    /// Additional flags for the controller manager. They override the defaults.
    pub controller_manager_flags: Vec<String>,
    /// Additional flags for the API server.
    pub api_server_flags: Vec<String>,
    /// Real nodes. `None` starts only a control plane, on loopback.
    pub nodes: Option<NodeOptions>,
}

impl Options {
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self { settings, controller_manager_flags: Vec::new(), api_server_flags: Vec::new(), nodes: None }
    }

    pub fn from_env() -> anyhow::Result<Self> {
        Ok(Self::new(Settings::from_env()?))
    }

    #[must_use]
    pub fn with_nodes(mut self, nodes: NodeOptions) -> Self {
        self.nodes = Some(nodes);
        self
    }
}

/// A running cluster. Dropping it stops it.
pub struct Cluster {
    // Dropped before the processes, so that the reaper stops all of them at once.
    run: Run,
    nodes: Option<Nodes>,
    endpoint: Endpoint,
    assets: Assets,
    authority: Authority,
    admin: Identity,
}

impl Cluster {
    /// Starts a control plane configured by `KUBE`, `KUBEBUILDER_ASSETS` and `NODEKEEPER_CACHE`.
    pub async fn control_plane() -> anyhow::Result<Self> {
        Self::start(Options::from_env()?).await
    }

    /// Starts a cluster with `count` real nodes and returns when they are Ready.
    pub async fn with_nodes(count: usize) -> anyhow::Result<Self> {
        Self::start(Options::from_env()?.with_nodes(NodeOptions::new(count))).await
    }

    /// The cluster that all tests of this process share. It is removed soon after the process exits.
    pub async fn shared() -> anyhow::Result<&'static Self> {
        static SHARED: OnceCell<Cluster> = OnceCell::const_new();
        SHARED.get_or_try_init(Self::control_plane).await
    }

    /// Starts a cluster and returns when it serves, its controllers work, and its nodes are Ready.
    pub async fn start(options: Options) -> anyhow::Result<Self> {
        let Options { settings, controller_manager_flags, api_server_flags, nodes } = options;
        let runs = settings.cache.join("run");
        let with_nodes = nodes.is_some();
        let (assets, node_assets) = spawn_blocking(move || binaries(&settings, with_nodes)).await??;
        let authority = Authority::new()?;
        let admin = authority.client("admin", Some("system:masters"))?;
        if with_nodes {
            progress("starting the control plane (usually 5 s) ...");
        }
        let mut run = spawn_blocking(move || Run::create(&runs)).await??;
        let endpoint = match &node_assets {
            Some(node_assets) => Endpoint::forwarded(&mut run, &node_assets.testtool)?,
            None => Endpoint::loopback()?,
        };
        let mut cluster = Self { run, nodes: None, endpoint, assets, authority, admin };

        cluster.write_files()?;
        cluster.spawn("etcd", &components::etcd())?;
        let mut flags = components::api_server(&cluster.endpoint.api_server_flags());
        flags.extend(api_server_flags);
        cluster.spawn("kube-apiserver", &flags)?;
        let client = cluster.client()?;
        cluster.wait_for("kube-apiserver to be ready", || is_ready(&client)).await?;

        let flags = components::controller_manager(controller_manager_flags);
        cluster.spawn("kube-controller-manager", &flags)?;
        cluster.spawn("kube-scheduler", &components::scheduler())?;
        if let (Some(nodes), Some(node_assets)) = (nodes, node_assets) {
            cluster.boot_nodes(&nodes, &node_assets).await?;
        }
        cluster.wait_for("the default service account", || has_default_service_account(&client)).await?;
        Ok(cluster)
    }

    async fn boot_nodes(&mut self, options: &NodeOptions, assets: &NodeAssets) -> anyhow::Result<()> {
        let namespace = self.endpoint.namespace().context("nodes need a network of their own")?;
        progress(&format!("booting {} nodes (usually 5 s) ...", options.count));
        let nodes = Nodes::boot(options, assets, self.run.launcher(), &self.authority, namespace)?;
        self.nodes = Some(nodes);
        let client = self.client()?;
        nodes::deploy_dns(&client, options).await?;
        self.wait_for("the nodes to be ready", async || Ok(ready_nodes(&client).await? >= options.count))
            .await?;
        if options.dns_can_run() {
            self.wait_for("the DNS to be ready", || dns_is_ready(&client)).await?;
        }
        Ok(())
    }

    /// The real nodes, sorted by name. Empty for a control plane without nodes.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        self.nodes.as_ref().map_or(&[], Nodes::all)
    }

    /// The node with this index: 0 is `node-1`.
    #[must_use]
    pub fn node(&self, index: usize) -> &Node {
        &self.nodes()[index]
    }

    /// Adds or replaces an image on every node. Blocks until pods can use it. A node that is off imports it at its
    /// next boot.
    pub fn add_image(&self, image: &Image) -> anyhow::Result<()> {
        let nodes = self.nodes.as_ref().context("there are no nodes to put an image on")?;
        nodes.add_image(image)
    }

    /// Returns when `count` nodes are Ready.
    pub async fn wait_ready(&self, count: usize) -> anyhow::Result<()> {
        let client = self.client()?;
        let deadline = Instant::now() + START_PATIENCE;
        loop {
            for node in self.nodes() {
                node.check()?;
            }
            let ready = ready_nodes(&client).await?;
            if ready >= count {
                return Ok(());
            }
            let late = Instant::now() > deadline;
            ensure!(
                !late,
                "waited {START_PATIENCE:?} for {count} ready nodes, there are {ready}\n{}",
                self.run.log_tails()
            );
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// A new client for the cluster's administrator. Create one per test: it belongs to the runtime in which it is
    /// created.
    pub fn client(&self) -> anyhow::Result<Client> {
        Ok(Client::try_from(self.config()?)?)
    }

    /// A new client that impersonates `user` with `groups`.
    pub fn client_as(&self, user: &str, groups: &[&str]) -> anyhow::Result<Client> {
        let mut config = self.config()?;
        // Uses impersonation: a certificate of rcgen's cannot contain more than one group.
        config.auth_info.impersonate = Some(user.to_owned());
        config.auth_info.impersonate_groups = Some(groups.iter().map(|group| (*group).to_owned()).collect());
        Ok(Client::try_from(config)?)
    }

    /// The administrator's configuration, for clients with their own layers.
    pub fn config(&self) -> anyhow::Result<Config> {
        let mut config = Config::new(self.endpoint.outside().parse()?);
        config.root_cert = Some(vec![self.authority.der()]);
        config.auth_info = serde_json::from_value::<AuthInfo>(user(&self.admin))?;
        // Tests need the first response, so no retries. The timeout is a little longer than any watch, so that
        // nothing blocks forever.
        config.default_retry = false;
        config.connect_timeout = Some(Duration::from_secs(5));
        config.read_timeout = Some(Duration::from_secs(295));
        config.reset_reader_on_write = true;
        Ok(config)
    }

    /// The administrator's kubeconfig, without references to other files.
    #[must_use]
    pub fn kubeconfig_path(&self) -> PathBuf {
        self.folder().join("kubeconfig")
    }

    /// The kubectl of the cluster's version.
    #[must_use]
    pub fn kubectl(&self) -> PathBuf {
        self.assets.path("kubectl")
    }

    /// Runs kubectl as the administrator and returns its output. Blocks.
    pub fn run_kubectl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let output = Command::new(self.kubectl())
            .args(arguments)
            .env("KUBECONFIG", self.kubeconfig_path())
            .stdin(Stdio::null())
            .output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "kubectl {} failed: {said}", arguments.join(" "));
        Ok(String::from_utf8(output.stdout)?)
    }

    /// The folder of the cluster; `log` contains the logs.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.run.folder()
    }

    /// Starts processes that stop with the cluster and may exit earlier.
    pub(crate) fn launcher(&self) -> &Launcher {
        self.run.launcher()
    }

    /// Stops the cluster, like dropping it.
    pub fn stop(self) {
        drop(self);
    }

    fn write_files(&self) -> anyhow::Result<()> {
        self.authority.write_files(self.folder())?;
        self.write_kubeconfig("kubeconfig", &self.endpoint.outside(), &self.admin)?;
        for component in ["kube-controller-manager", "kube-scheduler"] {
            let identity = self.authority.client(&format!("system:{component}"), None)?;
            self.write_kubeconfig(&format!("{component}.kubeconfig"), &self.endpoint.inside(), &identity)?;
        }
        Ok(())
    }

    fn write_kubeconfig(&self, name: &str, url: &str, identity: &Identity) -> anyhow::Result<()> {
        std::fs::write(self.folder().join(name), kubeconfig(url, &self.authority, identity))?;
        Ok(())
    }

    fn spawn(&mut self, name: &str, flags: &[String]) -> anyhow::Result<()> {
        let mut words = self.endpoint.prefix();
        words.push(self.assets.path(name).into());
        words.extend(flags.iter().map(Into::into));
        self.run.spawn(name, &words, Stdio::null())
    }

    /// Polls until `ask` returns true. Fails early if a component exits.
    async fn wait_for<A>(&mut self, what: &str, ask: impl Fn() -> A) -> anyhow::Result<()>
    where
        A: Future<Output = kube::Result<bool>>,
    {
        let deadline = Instant::now() + START_PATIENCE;
        loop {
            self.run.check()?;
            for node in self.nodes() {
                node.check()?;
            }
            let answer = timeout(Duration::from_secs(5), ask()).await;
            if let Ok(Ok(true)) = answer {
                return Ok(());
            }
            if Instant::now() > deadline {
                let tails = self.run.log_tails();
                anyhow::bail!(
                    "waited {START_PATIENCE:?} for {what}, the last answer was {answer:?}\n{tails}"
                );
            }
            sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Removes the remains of clusters whose owners are dead. Every start does so too.
pub fn sweep(settings: &Settings) -> anyhow::Result<()> {
    run::sweep(&settings.cache.join("run"))
}

fn binaries(settings: &Settings, with_nodes: bool) -> anyhow::Result<(Assets, Option<NodeAssets>)> {
    if !with_nodes {
        return Ok((Assets::ensure(settings)?, None));
    }
    // Checks dependencies first, because the builds take minutes.
    machine::ensure_nodes_can_run(&settings.cache)?;
    Ok((Assets::ensure(settings)?, Some(NodeAssets::ensure(settings)?)))
}

async fn is_ready(client: &Client) -> kube::Result<bool> {
    let request = http::Request::get("/readyz").body(Vec::new()).map_err(kube::Error::HttpError)?;
    client.request_text(request).await.map(|answer| answer == "ok")
}

/// The controller manager creates it; without it no pod is admitted.
async fn has_default_service_account(client: &Client) -> kube::Result<bool> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
    accounts.get_opt("default").await.map(|account| account.is_some())
}

async fn ready_nodes(client: &Client) -> kube::Result<usize> {
    let nodes = Api::<NodeObject>::all(client.clone()).list(&ListParams::default()).await?;
    let is_ready = |node: &&NodeObject| {
        let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions.into_iter().flatten().any(|one| one.type_ == "Ready" && one.status == "True")
    };
    Ok(nodes.items.iter().filter(is_ready).count())
}

async fn dns_is_ready(client: &Client) -> kube::Result<bool> {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "kube-system");
    let status = deployments.get("coredns").await?.status.unwrap_or_default();
    Ok(status.ready_replicas > Some(0) && status.ready_replicas == status.replicas)
}
