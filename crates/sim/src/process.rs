//! Edge: workers as real processes, each in the loopback network of its node, on the real clock.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::Value;
use tokio::process::Command;

use crate::actors::kubelet::{ContainerConfig, ContainerRuntime, FakeRuntime, Terminated};
use crate::bind;
use crate::loopback::Endpoints;
use crate::object::{items, text, uid};
use crate::worker::assignment;

/// What a runtime exits with for a container that it could not start.
const CANNOT_START: i32 = 128;
/// What a shell says of a process that a signal ended.
const KILLED: i32 = 137;

/// Gives the token of a pod.
pub type Tokens = Arc<dyn Fn(&Value) -> String + Send + Sync>;

/// Where workers find everything.
#[derive(Clone)]
pub struct Setup {
    /// The worker's binary.
    pub binary: PathBuf,
    /// A folder for tokens and reports; each is removed when its worker ends.
    pub folder: PathBuf,
    /// The API server.
    pub api_server: SocketAddr,
    /// The certificate of its authority, in PEM.
    pub authority: String,
    /// Who its clients are.
    pub tokens: Tokens,
}

/// Runs containers named `worker` that have an assignment as processes; all others as [`FakeRuntime`] does.
#[derive(Clone)]
pub struct Processes(Arc<Inner>);

struct Inner {
    setup: Setup,
    ca_file: PathBuf,
    nodes: Mutex<BTreeMap<String, Arc<Endpoints>>>,
}

impl Processes {
    /// Makes ready; the folder must be there.
    pub fn new(setup: Setup) -> io::Result<Self> {
        let ca_file = setup.folder.join("ca.crt");
        std::fs::write(&ca_file, &setup.authority)?;
        Ok(Self(Arc::new(Inner { setup, ca_file, nodes: Mutex::default() })))
    }

    /// The network of a node, with its switches; opened when it is first asked for.
    pub async fn endpoints(&self, node: &str) -> Result<Arc<Endpoints>, bind::Error> {
        if let Some(known) = self.nodes().get(node) {
            return Ok(known.clone());
        }
        let opened = Arc::new(Endpoints::open(self.0.setup.api_server).await?);
        // Another may have opened it meanwhile; the first stays.
        Ok(self.nodes().entry(node.to_owned()).or_insert(opened).clone())
    }

    fn nodes(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Arc<Endpoints>>> {
        self.0.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the container of a worker's pod on a node, as a process. Dropping the future kills it.
    pub async fn execute(&self, node: &str, pod: &Value, container: &Value) -> Terminated {
        let cannot = |error: String| Terminated::Exit { code: CANNOT_START, message: error };
        let network = match self.endpoints(node).await {
            Ok(network) => network,
            Err(error) => return cannot(error.to_string()),
        };
        let files = Files::new(&self.0.setup.folder, uid(pod));
        if let Err(error) = std::fs::write(&files.token, (self.0.setup.tokens)(pod)) {
            return cannot(format!("cannot write the token of the worker: {error}"));
        }
        let status = self.command(node, container, &network, &files).status().await;
        let message = std::fs::read_to_string(&files.log).unwrap_or_default();
        match status {
            Ok(status) => Terminated::Exit { code: status.code().unwrap_or(KILLED), message },
            Err(error) => cannot(format!("cannot start {}: {error}", self.0.setup.binary.display())),
        }
    }

    fn command(&self, node: &str, container: &Value, network: &Endpoints, files: &Files) -> Command {
        let mut command = Command::new(&self.0.setup.binary);
        command.env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        for variable in items(container, "env") {
            let value = match text(variable, "valueFrom.fieldRef.fieldPath") {
                "spec.nodeName" => node,
                _ => text(variable, "value"),
            };
            command.env(text(variable, "name"), value);
        }
        command.env("KUBERNETES_SERVICE_HOST", network.api.ip().to_string());
        command.env("KUBERNETES_SERVICE_PORT", network.api.port().to_string());
        command.arg("--dns-server").arg(network.dns.to_string());
        command.arg("--pods-at").arg(network.pods.to_string());
        command.arg("--token-file").arg(&files.token).arg("--ca-file").arg(&self.0.ca_file);
        command.arg("--termination-log").arg(&files.log);
        command.kill_on_drop(true);
        command
    }
}

impl ContainerRuntime for Processes {
    fn has_image(&self, container: &Value) -> bool {
        FakeRuntime.has_image(container)
    }

    fn shutdown_time(&self, container: &Value) -> Duration {
        FakeRuntime.shutdown_time(container)
    }

    fn run(&self, config: ContainerConfig) -> BoxFuture<'static, Terminated> {
        if assignment(&config.container).is_none() {
            return FakeRuntime.run(config);
        }
        let processes = self.clone();
        Box::pin(async move { processes.execute(&config.node, &config.pod, &config.container).await })
    }
}

/// What one worker needs on disk, while it lives.
struct Files {
    token: PathBuf,
    log: PathBuf,
}

impl Files {
    fn new(folder: &Path, pod: &str) -> Self {
        Self { token: folder.join(format!("{pod}.token")), log: folder.join(format!("{pod}.log")) }
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        for file in [&self.token, &self.log] {
            // Not there where it was never written.
            let _ = std::fs::remove_file(file);
        }
    }
}
