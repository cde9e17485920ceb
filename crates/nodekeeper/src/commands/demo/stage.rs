//! Edge: the stage of the demo. The embedded cluster on a port, kubelets that run real workers, the real controller.

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

use super::cast::ATTEMPTS;
use crate::args::Demo;

/// Where the workers run.
pub const NAMESPACE: &str = "nodekeeper-system";
/// The controller, as the cluster sees it.
pub const CONTROLLER: &str = "nodekeeper";
const ACCOUNT: &str = "nodekeeper-worker";
const WORKER: &str = "nodekeeper-worker";
/// How long the controller may take to give its lease back.
const GOODBYE: Duration = Duration::from_secs(3);

/// Everything that runs.
pub struct Stage {
    /// The cluster.
    pub cluster: Cluster,
    /// Its machines.
    pub kubelets: Kubelets,
    /// Their networks.
    pub processes: Processes,
    /// Where it listens.
    pub address: SocketAddr,
    /// The file with which kubectl gets there.
    pub kubeconfig: PathBuf,
    controller: JoinHandle<()>,
    stop: oneshot::Sender<()>,
    _actors: Actors,
    _front: Bound,
    _back: Arc<Bound>,
}

impl Stage {
    /// Sets everything up; no machine has joined yet.
    pub async fn open(demo: &Demo, folder: &Path) -> Result<Self> {
        let binary = worker_binary(demo.worker.as_deref())?;
        let cluster = Cluster::new(Options::real(1));
        furnish(&cluster)?;
        let front = bind::bind(&cluster, demo.listen).await?;
        let address = front.address;
        let kubeconfig = write_kubeconfig(demo.kubeconfig.clone(), folder, &front.kubeconfig)?;
        // Workers have a door of their own: the other may listen where a certificate for loopback is not valid.
        let back = Arc::new(bind::bind(&cluster, SocketAddr::from(([127, 0, 0, 1], 0))).await?);
        let porter = back.clone();
        let processes = Processes::new(Setup {
            binary,
            folder: folder.to_owned(),
            api_server: back.address,
            authority: back.authority.clone(),
            tokens: Arc::new(move |pod| porter.token_of(&service_account(pod))),
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
            _front: front,
            _back: back,
            address,
            cluster,
            processes,
            kubeconfig,
            controller,
            stop,
        })
    }

    /// Whether the controller and the kubelets are alive.
    pub fn at_work(&self) -> bool {
        !self.controller.is_finished() && self.kubelets.at_work()
    }

    /// Lets the controller finish what it has begun and give its lease back.
    pub async fn close(self) {
        // Either may be gone already; there is nobody to tell.
        let _ = self.stop.send(());
        let _ = tokio::time::timeout(GOODBYE, self.controller).await;
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

/// What an installation puts into a cluster: definition, namespace, account and a gate.
fn furnish(cluster: &Cluster) -> Result<()> {
    let somebody = cluster.local("setup");
    network::furnish(cluster)?;
    for definition in definitions() {
        let crd = serde_json::to_value(definition)?;
        somebody.create("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", crd)?;
    }
    somebody.create("v1", "Namespace", "", json!({"metadata": {"name": NAMESPACE}}))?;
    somebody.create("v1", "ServiceAccount", NAMESPACE, json!({"metadata": {"name": ACCOUNT}}))?;
    // More impatient than the defaults, so that nobody has to wait ten minutes for a node that fails.
    let spec = json!({
        "retry": {"maxRetries": ATTEMPTS - 1, "recheckPeriodSeconds": 10},
        // It is asked for from the beginning; without a policy nothing comes of it.
        "onFailure": "Replace",
        "deadlines": {"checkSeconds": 2, "workerSeconds": 10},
    });
    let (version, kind) = ("nodekeeper.dev/v1alpha1", "NodeGate");
    let gate = json!({"apiVersion": version, "kind": kind, "metadata": {"name": "default"}, "spec": spec});
    somebody.create(version, kind, "", gate)?;
    Ok(())
}

/// The worker, which is built beside this binary.
fn worker_binary(named: Option<&Path>) -> Result<PathBuf> {
    let path = match named {
        Some(path) => path.to_owned(),
        None => std::env::current_exe().context("cannot tell where this binary is")?.with_file_name(WORKER),
    };
    if !path.is_file() {
        bail!(
            "there is no worker at {}: build it with `cargo build --workspace`, or say where it is with --worker FILE",
            path.display()
        );
    }
    // The system would look for a bare name in PATH.
    fs::canonicalize(&path).with_context(|| format!("cannot find {}", path.display()))
}

fn write_kubeconfig(place: Option<PathBuf>, folder: &Path, text: &str) -> Result<PathBuf> {
    let path = place.unwrap_or_else(|| folder.join("kubeconfig"));
    let found = fs::read_to_string(&path).unwrap_or_default();
    if !found.is_empty() && !found.contains("current-context: nodekeeper-sim") {
        bail!("--kubeconfig {}: this file is there, and not from a demo: name another", path.display());
    }
    // Only for its owner: there is a token in it.
    let file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path);
    let written = file.and_then(|mut file| {
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
        file.write_all(text.as_bytes())
    });
    written.with_context(|| format!("--kubeconfig {}: cannot write the file", path.display()))?;
    Ok(path)
}
