//! Runs Helm 3 and Helm 4, built from their modules.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Result, ensure};
use nodekeeper_e2e::Cluster;
use nodekeeper_e2e::assets::{self, Settings};
use serde_json::Value;
use tokio::task::spawn_blocking;

use crate::NAMESPACE;

/// A release of Helm.
#[derive(Clone, Copy, Debug)]
pub enum Helm {
    V3,
    V4,
}

impl Helm {
    fn path(self) -> Result<PathBuf> {
        let settings = Settings::from_env()?;
        Ok(match self {
            Self::V3 => assets::helm3(&settings)?,
            Self::V4 => assets::helm(&settings)?,
        })
    }

    /// Runs a command on the release that needs no chart, such as `rollback`.
    pub async fn run(self, cluster: &Cluster, arguments: &[&str]) -> Result<()> {
        let mut command = Command::new(self.path()?);
        command
            .args(arguments)
            .args(["--namespace", NAMESPACE, "--kubeconfig"])
            .arg(cluster.kubeconfig_path());
        succeeded(spawn_blocking(move || command.stdin(Stdio::null()).output()).await??).map(drop)
    }

    /// Installs or upgrades the chart with these values.
    pub async fn install(self, cluster: &Cluster, values: &Value) -> Result<()> {
        let (kubeconfig, values) = (cluster.kubeconfig_path(), values.clone());
        let arguments = ["upgrade", "--install", "--create-namespace", "--wait", "--timeout", "2m"];
        let done = spawn_blocking(move || self.with_chart(&arguments, &values, Some(&kubeconfig))).await??;
        succeeded(done).map(drop)
    }

    /// The manifests rendered with these values.
    pub fn template(self, values: &Value) -> Result<String> {
        succeeded(self.with_chart(&["template"], values, None)?)
    }

    pub fn with_chart(self, arguments: &[&str], values: &Value, kubeconfig: Option<&Path>) -> Result<Output> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("values.json");
        std::fs::write(&file, values.to_string())?;
        let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/nodekeeper");
        let mut command = Command::new(self.path()?);
        command.args(arguments).arg("nodekeeper").arg(chart);
        command.args(["--namespace", NAMESPACE, "--values"]).arg(file);
        if let Some(kubeconfig) = kubeconfig {
            command.arg("--kubeconfig").arg(kubeconfig);
        }
        Ok(command.stdin(Stdio::null()).output()?)
    }
}

fn succeeded(done: Output) -> Result<String> {
    ensure!(done.status.success(), "helm: {}", String::from_utf8_lossy(&done.stderr));
    Ok(String::from_utf8(done.stdout)?)
}

/// Installs or upgrades the chart with these values.
pub async fn install(cluster: &Cluster, values: &Value) -> Result<()> {
    Helm::V4.install(cluster, values).await
}

pub fn parse(manifests: &str) -> Result<Vec<Value>> {
    Ok(serde_saphyr::from_str_multiple::<Value, Vec<Value>>(manifests)?)
}

/// What the controller applies, of rendered manifests: the text of its file.
pub fn applied_file(manifests: &[Value]) -> Option<&str> {
    let mut maps = manifests.iter().filter(|object| object["kind"] == "ConfigMap");
    maps.find_map(|map| map["data"]["objects.yaml"].as_str())
}
