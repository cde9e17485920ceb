//! A real Karpenter on a control plane, and kwok, which acts as the kubelet of its nodes.
//!
//! The cloud provider is Karpenter's kwok provider: an instance is a Node object. Karpenter provisions for pending
//! pods, registers and initializes nodes, disrupts them, and replaces deleted ones as in a real cluster.

pub mod objects;

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context as _, bail, ensure};
use parking_lot::Mutex;

use crate::{
    Cluster,
    assets::{KarpenterAssets, Settings},
    control_plane::run::{Launcher, Process},
};

/// The address of all kwok nodes. It is never contacted.
const NODE_IP: &str = "10.0.0.1";
const NAMESPACE: &str = "karpenter";
/// kwok's template for the boot id, which is empty by default. Real kubelets report a unique one per boot.
const NO_BOOT: &str = "bootID: {{ or $nodeInfo.bootID `\"\"` }}";
const A_BOOT: &str = "bootID: {{ or $nodeInfo.bootID .metadata.uid }}";

/// A running Karpenter. Dropping it stops it and kwok, and keeps what they created.
pub struct Karpenter {
    launcher: Launcher,
    programs: Mutex<Vec<(&'static str, Process)>>,
}

impl Karpenter {
    /// Starts Karpenter and kwok, after building them if they are missing. Blocks until Karpenter's CRDs are served.
    ///
    /// kwok does not run pods that match the label selector `left_alone`.
    pub fn start(cluster: &Cluster, settings: &Settings, left_alone: &str) -> anyhow::Result<Self> {
        let KarpenterAssets { karpenter, crds, kwok, stages } = KarpenterAssets::ensure(settings)?;
        apply_definitions(cluster, &crds)?;

        let kubeconfig = cluster.kubeconfig_path();
        let mut with_environment: Vec<OsString> = vec!["env".into()];
        // Port 0 is any free port: these endpoints are not used.
        let variables =
            ["METRICS_PORT=0", "HEALTH_PROBE_PORT=0", "DISABLE_LEADER_ELECTION=true", "CLUSTER_NAME=e2e"];
        with_environment.extend(variables.map(OsString::from));
        with_environment.push(format!("SYSTEM_NAMESPACE={NAMESPACE}").into());
        with_environment.push(variable("KUBECONFIG=", &kubeconfig));
        with_environment.push(karpenter.into());

        let mut player: Vec<OsString> = vec![kwok.into(), variable("--kubeconfig=", &kubeconfig)];
        let flags = [
            "--manage-all-nodes=false",
            "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
            "--node-lease-duration-seconds=40",
        ];
        player.extend(flags.map(OsString::from));
        player.push(format!("--node-ip={NODE_IP}").into());
        player.push(format!("--disregard-status-with-label-selector={left_alone}").into());
        for stage in with_boots(stages, cluster.folder())? {
            player.push(variable("--config=", &stage));
        }

        let launcher = cluster.launcher().clone();
        let mut programs = Vec::new();
        for (name, words) in [("kwok", player), ("karpenter", with_environment)] {
            programs.push((name, launcher.start(name, &words, Stdio::null())?));
        }
        Ok(Self { launcher, programs: Mutex::new(programs) })
    }

    /// Fails with the end of the log if either process has exited.
    pub fn check(&self) -> anyhow::Result<()> {
        let mut programs = self.programs.lock();
        for (name, process) in programs.iter_mut() {
            if !process.is_running()? {
                bail!("{name} has ended:\n{}", self.launcher.log_tail(name));
            }
        }
        Ok(())
    }

    #[must_use]
    pub fn log_tail(&self) -> String {
        self.launcher.log_tail("karpenter")
    }
}

fn apply_definitions(cluster: &Cluster, files: &[PathBuf]) -> anyhow::Result<()> {
    let files: Vec<_> = files.iter().map(|file| format!("--filename={}", file.display())).collect();
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    cluster.run_kubectl(&[&["apply", "--server-side"], files.as_slice()].concat())?;
    let served = ["wait", "--for=condition=Established", "--timeout=60s"];
    cluster.run_kubectl(&[&served, files.as_slice()].concat())?;
    Ok(())
}

/// Copies the stages into `folder`, with a boot id in the one that initializes nodes.
fn with_boots(mut stages: Vec<PathBuf>, folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut rewritten = 0;
    for stage in &mut stages {
        let text = fs::read_to_string(&*stage)?;
        if text.contains(NO_BOOT) {
            *stage = folder.join(stage.file_name().context("a stage without a name")?);
            fs::write(&*stage, text.replace(NO_BOOT, A_BOOT))?;
            rewritten += 1;
        }
    }
    ensure!(
        rewritten == 1,
        "{rewritten} stages of kwok have `{NO_BOOT}`: this kwok version needs another template"
    );
    Ok(stages)
}

fn variable(name: &str, path: &Path) -> OsString {
    let mut word = OsString::from(name);
    word.push(path);
    word
}
