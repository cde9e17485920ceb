//! Runs workers as real processes, each in the loopback network of its node.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use crate::value::Value;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::process::Command;

use crate::actors::kubelet::{ContainerConfig, ContainerRuntime, FakeRuntime, Terminated};
use crate::bind;
use crate::loopback::Endpoints;
use crate::object::{items, text, uid};
use crate::worker::assignment;

/// The exit code of a container that the runtime could not start.
const CANNOT_START: i32 = 128;
/// The exit code of a process that was killed.
const KILLED: i32 = 137;

/// Returns the service account token of a pod.
pub type Tokens = Arc<dyn Fn(&Value) -> String + Send + Sync>;

#[derive(Clone)]
pub struct Setup {
    pub binary: PathBuf,
    /// Holds tokens and reports; each is removed when its worker exits.
    pub folder: PathBuf,
    pub api_server: SocketAddr,
    /// The CA certificate of the API server, in PEM.
    pub authority: String,
    pub tokens: Tokens,
}

/// Runs worker containers as processes, and all others as [`FakeRuntime`] does.
#[derive(Clone)]
pub struct Processes(Arc<Inner>);

struct Inner {
    setup: Setup,
    ca_file: PathBuf,
    nodes: Mutex<BTreeMap<String, Arc<Endpoints>>>,
}

impl Processes {
    /// The folder must exist.
    pub fn new(setup: Setup) -> io::Result<Self> {
        let ca_file = setup.folder.join("ca.crt");
        std::fs::write(&ca_file, &setup.authority)?;
        Ok(Self(Arc::new(Inner { setup, ca_file, nodes: Mutex::default() })))
    }

    /// The network of a node, created on first use.
    pub async fn endpoints(&self, node: &str) -> Result<Arc<Endpoints>, bind::Error> {
        if let Some(known) = self.nodes().get(node) {
            return Ok(known.clone());
        }
        let opened = Arc::new(Endpoints::open(self.0.setup.api_server).await?);
        // A concurrent call may have created it.
        Ok(self.nodes().entry(node.to_owned()).or_insert(opened).clone())
    }

    fn nodes(&self) -> parking_lot::MutexGuard<'_, BTreeMap<String, Arc<Endpoints>>> {
        self.0.nodes.lock()
    }

    /// Runs the worker container of a pod as a process. Dropping the future kills it.
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

/// The files of one worker, removed when it exits.
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
            // The file may not exist.
            let _ = std::fs::remove_file(file);
        }
    }
}
