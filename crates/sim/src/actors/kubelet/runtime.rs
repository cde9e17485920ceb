//! PodOptions containers run: in process here, as real processes elsewhere.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::Value;

use crate::cluster::Cluster;
use crate::object::{items, text};

/// A container to run.
#[derive(Clone)]
pub struct ContainerConfig {
    /// The cluster it runs in.
    pub cluster: Cluster,
    /// The node it runs on.
    pub node: String,
    /// The zone of that node.
    pub zone: String,
    /// Its pod.
    pub pod: Arc<Value>,
    /// Its entry in the pod's spec.
    pub container: Value,
}

/// PodOptions a container ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Terminated {
    /// It exited, and left this in its termination message file.
    Exit {
        /// The exit code.
        code: i32,
        /// The termination message, whole; the kubelet cuts it.
        message: String,
    },
    /// It took more memory than it may.
    OutOfMemory,
}

/// Runs containers.
pub trait ContainerRuntime: Send + Sync {
    /// Runs one container to its end. Dropping the future kills it.
    fn run(&self, job: ContainerConfig) -> BoxFuture<'static, Terminated>;

    /// Whether the image of a container can be had; without it the container waits.
    fn has_image(&self, _container: &Value) -> bool {
        true
    }

    /// PodOptions long a container goes on after it was asked to stop; killed when the pod's grace is over.
    fn shutdown_time(&self, _container: &Value) -> Duration {
        Duration::from_millis(20)
    }
}

/// Understands a handful of commands: `true`, `false`, `exit N`, `sleep SECONDS`, `resolve` (asks the simulated DNS),
/// `oom`, `stubborn` (does not stop when asked). Images whose name contains `missing` cannot be pulled. Everything else
/// runs until it is asked to stop.
#[derive(Debug)]
pub struct FakeRuntime;

impl ContainerRuntime for FakeRuntime {
    fn has_image(&self, container: &Value) -> bool {
        !text(container, "image").contains("missing")
    }

    fn shutdown_time(&self, container: &Value) -> Duration {
        let stubborn = items(container, "command").first().is_some_and(|word| word == "stubborn");
        if stubborn { Duration::MAX } else { Duration::from_millis(20) }
    }

    fn run(&self, job: ContainerConfig) -> BoxFuture<'static, Terminated> {
        Box::pin(async move {
            let words: Vec<&str> = ["command", "args"]
                .iter()
                .flat_map(|list| items(&job.container, list))
                .filter_map(Value::as_str)
                .collect();
            let exit = |code: i32, message: &str| Terminated::Exit { code, message: message.to_owned() };
            match words.as_slice() {
                ["true"] => exit(0, ""),
                ["false"] => exit(1, ""),
                ["exit", code, message @ ..] => exit(code.parse().unwrap_or(1), &message.join(" ")),
                ["sleep", seconds] => {
                    tokio::time::sleep(Duration::from_secs(seconds.parse().unwrap_or(0))).await;
                    exit(0, "")
                }
                ["resolve"] if job.cluster.network().resolves(&job.node, &job.zone) => exit(0, "resolved"),
                ["resolve"] => exit(1, "no answer"),
                ["oom"] => Terminated::OutOfMemory,
                _ => std::future::pending().await,
            }
        })
    }
}
