//! The container runtime: in process here, as real processes in [`crate::process`].

use std::sync::Arc;
use std::time::Duration;

use crate::value::Value;
use futures::future::BoxFuture;

use crate::cluster::Cluster;
use crate::object::{items, text};

/// A container to run.
#[derive(Clone)]
pub struct ContainerConfig {
    pub cluster: Cluster,
    pub node: String,
    pub zone: String,
    pub pod: Arc<Value>,
    /// The container's entry in the pod spec.
    pub container: Value,
}

/// How a container terminated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Terminated {
    Exit {
        code: i32,
        /// The whole termination message; the kubelet truncates it.
        message: String,
    },
    OutOfMemory,
}

pub trait ContainerRuntime: Send + Sync {
    /// Runs one container until it exits. Dropping the future kills it.
    fn run(&self, config: ContainerConfig) -> BoxFuture<'static, Terminated>;

    /// Whether the image can be pulled; without it the container waits.
    fn has_image(&self, _container: &Value) -> bool {
        true
    }

    /// The time from SIGTERM to the exit of a container.
    fn shutdown_time(&self, _container: &Value) -> Duration {
        Duration::from_millis(20)
    }
}

/// Understands a few commands: `true`, `false`, `exit N`, `sleep SECONDS`, `resolve` (queries the simulated DNS),
/// `oom`, `stubborn` (ignores SIGTERM). Images whose name contains `missing` cannot be pulled. Any other command runs
/// until it is stopped.
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

    fn run(&self, config: ContainerConfig) -> BoxFuture<'static, Terminated> {
        Box::pin(async move {
            let words: Vec<&str> = ["command", "args"]
                .iter()
                .flat_map(|list| items(&config.container, list))
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
                ["resolve"] if config.cluster.network().resolves(&config.node, &config.zone) => {
                    exit(0, "resolved")
                }
                ["resolve"] => exit(1, "no answer"),
                ["oom"] => Terminated::OutOfMemory,
                _ => std::future::pending().await,
            }
        })
    }
}
