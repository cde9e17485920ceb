//! The cluster of the demo: the embedded API server on a port, kubelets that run real workers, the real controller.

use std::fs;
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nodekeeper_core::api::definitions;
use nodekeeper_core::worker::Template;
use nodekeeper_operator::Settings;
use nodekeeper_operator::clock::Clock;
use nodekeeper_sim::actors::kubelet::Kubelets;
use nodekeeper_sim::actors::{self, Actors, Timing};
use nodekeeper_sim::bind::{self, Bound};
use nodekeeper_sim::process::{Processes, Setup};
use nodekeeper_sim::worker::service_account;
use nodekeeper_sim::{Cluster, Options, network};
use serde_json::json;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::Demo;
use crate::machines::ATTEMPTS;

/// The namespace of the workers.
pub const NAMESPACE: &str = "nodekeeper-system";
/// The user name of the controller.
pub const CONTROLLER: &str = "nodekeeper";
const ACCOUNT: &str = "nodekeeper-worker";
const WORKER: &str = "nodekeeper-worker";
/// How long the controller may take to release its lease.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);

pub struct DemoCluster {
    pub cluster: Cluster,
    pub kubelets: Kubelets,
    /// The workers as processes, and the network of each node.
    pub processes: Processes,
    pub address: SocketAddr,
    pub kubeconfig: PathBuf,
    controller: JoinHandle<()>,
    stop: oneshot::Sender<()>,
    _actors: Actors,
    _listener: Bound,
    _worker_listener: Arc<Bound>,
}

impl DemoCluster {
    /// Starts everything; no machine has joined yet.
    pub async fn start(demo: &Demo, folder: &Path) -> Result<Self> {
        let binary = worker_binary(demo.worker.as_deref())?;
        let cluster = Cluster::new(Options::real(1));
        install(&cluster)?;
        let listener = bind::bind(&cluster, demo.listen).await?;
        let address = listener.address;
        let kubeconfig = write_kubeconfig(demo.kubeconfig.clone(), folder, &listener.kubeconfig)?;
        // Workers use a listener of their own: the certificate for loopback may not be valid for `--listen`.
        let worker_listener = Arc::new(bind::bind(&cluster, SocketAddr::from(([127, 0, 0, 1], 0))).await?);
        let issuer = worker_listener.clone();
        let processes = Processes::new(Setup {
            binary,
            folder: folder.to_owned(),
            api_server: worker_listener.address,
            authority: worker_listener.authority.clone(),
            tokens: Arc::new(move |pod| issuer.token_of(&service_account(pod))),
        })
        .with_context(|| format!("cannot write to {}", folder.display()))?;
        let (stop, stopped) = oneshot::channel::<()>();
        let controller = tokio::spawn(nodekeeper_operator::run(
            cluster.client(CONTROLLER),
            settings(),
            Clock::real(),
            async move { drop(stopped.await) },
        ));
        Ok(Self {
            kubelets: Kubelets::start(&cluster, 1, Arc::new(processes.clone())),
            _actors: actors::start(&cluster, Timing::default()),
            _listener: listener,
            _worker_listener: worker_listener,
            address,
            cluster,
            processes,
            kubeconfig,
            controller,
            stop,
        })
    }

    /// Returns whether the controller and the kubelets still run.
    pub fn is_running(&self) -> bool {
        !self.controller.is_finished() && self.kubelets.is_running()
    }

    /// Stops the controller, which finishes its running reconciles and releases its lease.
    pub async fn stop(self) {
        // Both fail if the controller has ended already.
        let _ = self.stop.send(());
        let _ = tokio::time::timeout(STOP_TIMEOUT, self.controller).await;
    }
}

fn settings() -> Settings {
    let template = Template {
        namespace: NAMESPACE.into(),
        image: "nodekeeper.local/worker:demo".into(),
        service_account: ACCOUNT.into(),
        ..Template::default()
    };
    Settings::new(template, "nodekeeper-demo".into(), 1)
}

/// Creates what an installation creates: CRDs, namespace, service account and a gate.
fn install(cluster: &Cluster) -> Result<()> {
    let admin = cluster.local("setup");
    network::install(cluster)?;
    for definition in definitions() {
        let crd = serde_json::to_value(definition)?;
        admin.create("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", crd)?;
    }
    admin.create("v1", "Namespace", "", json!({"metadata": {"name": NAMESPACE}}))?;
    admin.create("v1", "ServiceAccount", NAMESPACE, json!({"metadata": {"name": ACCOUNT}}))?;
    // Shorter times than the defaults: with those a node fails after about ten minutes.
    let spec = json!({
        "retry": {"maxRetries": ATTEMPTS - 1, "recheckPeriodSeconds": 10},
        // Without a RemediationPolicy this is a dry run.
        "onFailure": "Replace",
        "deadlines": {"checkSeconds": 2, "workerSeconds": 10},
        "checks": {
            "dns": {"names": ["kubernetes.default.svc.cluster.local."]},
            "api": {},
            "tcp": {},
            "services": {"targets": [{"namespace": "kube-system", "name": "kube-dns"}]},
            "peers": {},
        },
    });
    let (version, kind) = ("nodekeeper.dev/v1alpha1", "NodeGate");
    let gate = json!({"apiVersion": version, "kind": kind, "metadata": {"name": "default"}, "spec": spec});
    admin.create(version, kind, "", gate)?;
    Ok(())
}

/// Returns the path of the worker; by default it is in the folder of this binary.
fn worker_binary(flag: Option<&Path>) -> Result<PathBuf> {
    let path = match flag {
        Some(path) => path.to_owned(),
        None => {
            std::env::current_exe().context("cannot find the path of this binary")?.with_file_name(WORKER)
        }
    };
    if !path.is_file() {
        bail!(
            "no worker at {}: build it with `cargo build --workspace`, or set its path with --worker FILE",
            path.display()
        );
    }
    // A bare name would be looked up in PATH.
    fs::canonicalize(&path).with_context(|| format!("cannot find {}", path.display()))
}

fn write_kubeconfig(place: Option<PathBuf>, folder: &Path, text: &str) -> Result<PathBuf> {
    let path = place.unwrap_or_else(|| folder.join("kubeconfig"));
    let found = fs::read_to_string(&path).unwrap_or_default();
    if !found.is_empty() && !found.contains("current-context: nodekeeper-sim") {
        bail!("--kubeconfig {}: the file exists and is not from a demo; choose another", path.display());
    }
    // The file contains a token.
    let file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path);
    let written = file.and_then(|mut file| {
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
        file.write_all(text.as_bytes())
    });
    written.with_context(|| format!("--kubeconfig {}: cannot write the file", path.display()))?;
    Ok(path)
}
