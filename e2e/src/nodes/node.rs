//! One real node and its operations. All of them block, for at most two seconds unless they fail.

use std::{
    ffi::OsString,
    fs,
    path::PathBuf,
    process::{Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use parking_lot::{Mutex, MutexGuard};

use super::{
    cgroups::Cgroups,
    network::{self, Namespace},
};
use crate::{
    assets::NodeAssets,
    control_plane::run::{Launcher, Process},
    image::Image,
    machine,
};

const INIT: &str = include_str!("init.sh");
const IMPORT: &str = include_str!("import.sh");
const PATIENCE: Duration = Duration::from_secs(20);

/// Before NAT, so that the destination is visible. Traffic from other nodes passes: they may use a DNS pod on this
/// node.
const NO_DNS: &str = r#"
table inet nodekeeper_no_dns {
    chain from_pods {
        type filter hook prerouting priority raw
        iifname != { "eth0", "lo" } meta l4proto { udp, tcp } th dport 53 drop
    }
    chain from_node {
        type filter hook output priority raw
        meta l4proto { udp, tcp } th dport 53 drop
    }
}
"#;
/// Before NAT: the direct connection to the API server stays, so that the node remains Ready.
const NO_API: &str = r#"
table inet nodekeeper_no_api {
    chain from_pods {
        type filter hook prerouting priority raw
        iifname != { "eth0", "lo" } ip daddr API_SERVICE drop
    }
}
"#;
/// Like a broken overlay network: after NAT, so that all addresses of a pod are covered, and in both directions.
const NO_OTHER_PODS: &str = r#"
table inet nodekeeper_no_other_pods {
    chain to_other_nodes {
        type filter hook forward priority filter
        iifname != "eth0" oifname "eth0" ip daddr PODS drop
    }
}
"#;

pub struct Node {
    pub(super) name: String,
    pub(super) address: String,
    pub(super) zone: String,
    pub(super) folder: PathBuf,
    /// Set while the node is on: the parent of its first process.
    pub(super) boot: Mutex<Option<Process>>,
    pub(super) namespace: Namespace,
    pub(super) cgroups: Cgroups,
    pub(super) launcher: Launcher,
    pub(super) programs: NodeAssets,
}

impl Node {
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The label `topology.kubernetes.io/zone`: `zone-a`, `zone-b` and `zone-c` in turn.
    #[must_use]
    pub fn zone(&self) -> &str {
        &self.zone
    }

    /// Runs a program of the machine in the node's network and returns its output.
    pub fn exec_in(&self, words: &[&str]) -> anyhow::Result<String> {
        said(&words.join(" "), &self.namespace.exec(words)?)
    }

    /// Blocks all DNS responses to programs on this node. On a node that is off, this applies from its next boot;
    /// [`Node::power_off`] undoes it.
    pub fn break_dns(&self) -> anyhow::Result<()> {
        self.rule("no_dns", NO_DNS)
    }

    pub fn heal_dns(&self) -> anyhow::Result<()> {
        self.rule("no_dns", "")
    }

    /// Blocks the Service `default/kubernetes` for pods on this node. Other Services work, and the kubelet is not
    /// affected: it uses another address.
    pub fn break_api_service(&self) -> anyhow::Result<()> {
        self.rule("no_api", &NO_API.replace("API_SERVICE", network::API_SERVICE))
    }

    pub fn heal_api_service(&self) -> anyhow::Result<()> {
        self.rule("no_api", "")
    }

    /// Blocks traffic between pods on this node and pods on other nodes.
    pub fn break_pod_to_pod(&self) -> anyhow::Result<()> {
        self.rule("no_other_pods", &NO_OTHER_PODS.replace("PODS", network::PODS))
    }

    pub fn heal_pod_to_pod(&self) -> anyhow::Result<()> {
        self.rule("no_other_pods", "")
    }

    /// Terminates the only process of a container gracefully. `id` is the container id of the pod's status, including
    /// `containerd://`.
    pub fn end_container(&self, id: &str) -> anyhow::Result<()> {
        let id = id.trim_start_matches("containerd://");
        self.run("ctr", &["ctr", "--namespace", "k8s.io", "tasks", "kill", "--signal", "SIGTERM", id])
    }

    /// Removes an image from the node's disk, which has to pull it then.
    pub fn lose_image(&self, image: &str) -> anyhow::Result<()> {
        self.run("ctr", &["ctr", "--namespace", "k8s.io", "images", "remove", "--sync", image])
    }

    /// Replaces the rules of a table.
    fn rule(&self, table: &str, rules: &str) -> anyhow::Result<()> {
        // Adding the table first makes deleting it succeed always.
        let table = format!("table inet nodekeeper_{table}");
        self.namespace.feed(&["nft", "-f", "-"], &format!("{table}\ndelete {table}\n{rules}"))
    }

    /// Stops everything on the node at once, like a power cut. Does nothing if the node is off.
    pub fn power_off(&self) -> anyhow::Result<()> {
        let mut boot = self.lock();
        let Some(process) = boot.as_mut() else { return Ok(()) };
        let deadline = Instant::now() + PATIENCE;
        // Waits for the first process, not its parent: the kernel removes it after everything else on the node.
        while process.is_running()? {
            for child in children(process.id()) {
                Command::new("kill").args(["-KILL", &child.to_string()]).output()?;
            }
            ensure!(Instant::now() < deadline, "{} does not end", self.name);
            thread::sleep(Duration::from_millis(5));
        }
        *boot = None;
        drop(boot);
        // The network outlives the node, but a machine that is off has no rules.
        self.namespace.feed(&["nft", "-f", "-"], "flush ruleset\n")?;
        self.cgroups.remove()
    }

    /// Boots a node that is off: with a new boot id and the same disk. Fails if it is on.
    pub fn boot(&self) -> anyhow::Result<()> {
        let mut boot = self.lock();
        if let Some(process) = boot.as_mut() {
            ensure!(!process.is_running()?, "{} is on", self.name);
        }
        self.cgroups.make()?;
        *boot = Some(self.launcher.start(&self.name, &self.init()?, Stdio::null())?);
        Ok(())
    }

    /// Fails with the reason if the node has stopped by itself.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        match self.lock().as_mut().map(Process::is_running).transpose()? {
            Some(false) => bail!("{} went off:\n{}", self.name, self.launcher.log_tail(&self.name)),
            Some(true) | None => Ok(()),
        }
    }

    /// Marks an image as changed, so that it is imported again.
    pub(super) fn forget_image(&self, image: &Image) -> anyhow::Result<()> {
        let imported = self.folder.join("imported").join(image.file_name());
        if imported.exists() {
            fs::remove_file(imported)?;
        }
        Ok(())
    }

    /// Imports an image from the cluster's folder. A node that is off does so at its next boot.
    pub(super) fn import_image(&self, image: &Image) -> anyhow::Result<()> {
        let words = ["sh", "-c", IMPORT, "import", &image.file_name(), image.name()];
        self.run(&format!("the import of {}", image.name()), &words)
    }

    /// Runs a program on the node as root. Does nothing if the node is off.
    fn run(&self, what: &str, words: &[&str]) -> anyhow::Result<()> {
        let Some(parent) = self.lock().as_ref().map(Process::id) else { return Ok(()) };
        let first = *children(parent).first().with_context(|| format!("{} is just going off", self.name))?;
        let output = machine::command("nsenter")
            .args(["--target", &first.to_string(), "--mount", "--net", "--pid", "--"])
            .args(words)
            .stdin(Stdio::null())
            .output()?;
        said(&format!("{what} on {}", self.name), &output)?;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Option<Process>> {
        self.boot.lock()
    }

    fn init(&self) -> anyhow::Result<Vec<OsString>> {
        let cluster = self.launcher.folder();
        let variables: [(&str, OsString); 10] = [
            ("NAME", self.name.clone().into()),
            ("ADDRESS", self.address.clone().into()),
            ("ZONE", self.zone.clone().into()),
            ("PODS", network::PODS.into()),
            ("FOLDER", self.folder.clone().into()),
            ("IMAGES", cluster.join("images").into()),
            ("LOGS", cluster.join("log").into()),
            ("CGROUP", self.cgroups.system()?.into()),
            ("KUBELET", self.programs.kubelet.clone().into()),
            ("KUBE_PROXY", self.programs.kube_proxy.clone().into()),
        ];
        let mut words = self.namespace.prefix();
        words.push("env".into());
        words.extend(variables.into_iter().map(|(name, value)| {
            let mut word = OsString::from(name);
            word.push("=");
            word.push(value);
            word
        }));
        // If the parent is killed, so is the first process, and with it everything on the node.
        let unshare = ["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child"];
        words.extend(unshare.map(OsString::from));
        words.extend(["--propagation", "private", "sh", "-c", INIT, "init"].map(OsString::from));
        Ok(words)
    }
}

fn children(pid: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    children.split_whitespace().filter_map(|child| child.parse().ok()).collect()
}

fn said(what: &str, output: &Output) -> anyhow::Result<String> {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{what} ended with {}:\n{out}{err}", output.status);
    Ok(out.into_owned())
}
