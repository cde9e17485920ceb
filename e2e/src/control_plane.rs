//! A real control plane: etcd, kube-apiserver, kube-controller-manager and kube-scheduler on loopback.
//!
//! Each has its own port, certificates and folder, so any number can run side by side, and each is gone when
//! its owner is (see [`run`]).

mod components;
mod run;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use k8s_openapi::{ByteString, api::core::v1::ServiceAccount};
use kube::{Api, Client, Config, config::AuthInfo};
use serde_json::json;
use tokio::{
    net::TcpSocket,
    sync::OnceCell,
    task::spawn_blocking,
    time::{Instant, sleep, timeout},
};

use self::run::Run;
use crate::{
    assets::{Assets, Settings},
    pki::{Authority, Identity},
};

/// Long, because a build on the same cores makes everything slow; what fails, fails at once.
const START_PATIENCE: Duration = Duration::from_mins(2);

/// What a cluster is started with.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which binaries, and the cache below which the cluster lives.
    pub settings: Settings,
    /// More flags for the controller manager; they win over ours.
    pub controller_manager_flags: Vec<String>,
}

impl Options {
    /// What the environment asks for, and no flags of its own.
    pub fn from_env() -> anyhow::Result<Self> {
        Ok(Self { settings: Settings::from_env()?, controller_manager_flags: Vec::new() })
    }
}

/// A running control plane. Dropping it ends it.
pub struct Cluster {
    run: Run,
    assets: Assets,
    authority: Authority,
    admin: Identity,
    port: ReservedPort,
}

impl Cluster {
    /// Starts one as the environment asks for: `KUBE`, `KUBEBUILDER_ASSETS`, `NODEKEEPER_CACHE`.
    pub async fn control_plane() -> anyhow::Result<Self> {
        Self::start(Options::from_env()?).await
    }

    /// The one that all tests of this process share; it is gone soon after the process is.
    pub async fn shared() -> anyhow::Result<&'static Self> {
        static SHARED: OnceCell<Cluster> = OnceCell::const_new();
        SHARED.get_or_try_init(Self::control_plane).await
    }

    /// Starts one, and returns when it serves and its controllers work.
    pub async fn start(options: Options) -> anyhow::Result<Self> {
        let Options { settings, controller_manager_flags } = options;
        let runs = settings.cache.join("run");
        let assets = spawn_blocking(move || Assets::ensure(&settings)).await??;
        let authority = Authority::new()?;
        let admin = authority.client("admin", Some("system:masters"))?;
        let run = spawn_blocking(move || Run::create(&runs)).await??;
        let mut cluster = Self { run, assets, authority, admin, port: ReservedPort::new()? };

        cluster.write_files()?;
        cluster.spawn("etcd", &components::etcd())?;
        cluster.spawn("kube-apiserver", &components::api_server(cluster.port.number))?;
        let client = cluster.client()?;
        cluster.wait_for("kube-apiserver to be ready", || is_ready(&client)).await?;

        let flags = components::controller_manager(controller_manager_flags);
        cluster.spawn("kube-controller-manager", &flags)?;
        cluster.spawn("kube-scheduler", &components::scheduler())?;
        cluster.wait_for("the default service account", || has_default_service_account(&client)).await?;
        Ok(cluster)
    }

    /// A new client for the cluster's administrator. Make one in each test: it belongs to the runtime it was
    /// made in.
    pub fn client(&self) -> anyhow::Result<Client> {
        Ok(Client::try_from(self.config()?)?)
    }

    /// A new client for somebody else, who may do what RBAC grants to that name and those groups, and nothing
    /// more.
    pub fn client_as(&self, user: &str, groups: &[&str]) -> anyhow::Result<Client> {
        let mut config = self.config()?;
        // By impersonation: a certificate of rcgen's cannot carry more than one group.
        config.auth_info.impersonate = Some(user.to_owned());
        config.auth_info.impersonate_groups = Some(groups.iter().map(|group| (*group).to_owned()).collect());
        Ok(Client::try_from(config)?)
    }

    /// The administrator's configuration, for clients with layers of their own.
    pub fn config(&self) -> anyhow::Result<Config> {
        let mut config = Config::new(self.url().parse()?);
        config.root_cert = Some(vec![self.authority.der()]);
        config.auth_info = serde_json::from_value::<AuthInfo>(user(&self.admin))?;
        // A test wants to see the first answer. And nothing waits forever: this is a little longer than any
        // watch.
        config.default_retry = false;
        config.connect_timeout = Some(Duration::from_secs(5));
        config.read_timeout = Some(Duration::from_secs(295));
        config.reset_reader_on_write = true;
        Ok(config)
    }

    /// The administrator's kubeconfig, complete in one file.
    #[must_use]
    pub fn kubeconfig_path(&self) -> PathBuf {
        self.folder().join("kubeconfig")
    }

    /// The kubectl of the cluster's version.
    #[must_use]
    pub fn kubectl(&self) -> PathBuf {
        self.assets.path("kubectl")
    }

    /// The folder with everything the cluster wrote: the logs are in `log`.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.run.folder()
    }

    /// Ends it, as dropping it does.
    pub fn stop(self) {
        drop(self);
    }

    fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port.number)
    }

    fn write_files(&self) -> anyhow::Result<()> {
        self.authority.write_files(self.folder())?;
        self.write_kubeconfig("kubeconfig", &self.admin)?;
        for component in ["kube-controller-manager", "kube-scheduler"] {
            let identity = self.authority.client(&format!("system:{component}"), None)?;
            self.write_kubeconfig(&format!("{component}.kubeconfig"), &identity)?;
        }
        Ok(())
    }

    fn write_kubeconfig(&self, name: &str, identity: &Identity) -> anyhow::Result<()> {
        let ca = ByteString(self.authority.pem().into_bytes());
        let cluster = json!({"server": self.url(), "certificate-authority-data": ca});
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "e2e", "cluster": cluster}],
            "users": [{"name": "e2e", "user": user(identity)}],
            "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": "e2e"}}],
            "current-context": "e2e",
        });
        std::fs::write(self.folder().join(name), format!("{kubeconfig:#}"))?;
        Ok(())
    }

    fn spawn(&mut self, name: &'static str, flags: &[String]) -> anyhow::Result<()> {
        self.run.spawn(name, &self.assets.path(name), flags)
    }

    /// Asks until the answer is yes. Ends early, with the reason, if a component does.
    async fn wait_for<A>(&mut self, what: &str, ask: impl Fn() -> A) -> anyhow::Result<()>
    where
        A: Future<Output = kube::Result<bool>>,
    {
        let deadline = Instant::now() + START_PATIENCE;
        loop {
            self.run.check()?;
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

/// A user as a kubeconfig has it. `ByteString` is base64 there, as it is in the API.
fn user(identity: &Identity) -> serde_json::Value {
    json!({
        "client-certificate-data": ByteString(identity.certificate.clone().into_bytes()),
        "client-key-data": ByteString(identity.key.clone().into_bytes()),
    })
}

async fn is_ready(client: &Client) -> kube::Result<bool> {
    let request = http::Request::get("/readyz").body(Vec::new()).map_err(kube::Error::HttpError)?;
    client.request_text(request).await.map(|answer| answer == "ok")
}

/// The controller manager makes it: without it no pod is admitted.
async fn has_default_service_account(client: &Client) -> kube::Result<bool> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
    accounts.get_opt("default").await.map(|account| account.is_some())
}

/// A port that is ours from before the server starts until after it ended, so that there is no race for it:
/// we hold it bound, but do not listen, and the server is told that it may share it.
struct ReservedPort {
    number: u16,
    _socket: TcpSocket,
}

impl ReservedPort {
    fn new() -> anyhow::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseport(true)?;
        socket.bind(([127, 0, 0, 1], 0).into()).context("no free port on loopback")?;
        Ok(Self { number: socket.local_addr()?.port(), _socket: socket })
    }
}
